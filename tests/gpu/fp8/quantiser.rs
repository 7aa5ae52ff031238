//! The quantiser of activations: every code and every factor is the host's.

use crate::device::{Element, Gpu};
use candle::cuda_backend::cudarc::driver::DevicePtr;
use candle_tilegemm::layer::{Factors, Quantise, Rows};
use candle_tilegemm::Format;
use float8::F8E4M3;
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

const SIZES: [[usize; 2]; 9] =
    [[1, 128], [3, 4096], [64, 3584], [5, 1000], [7, 77], [2, 40_000], [300, 640], [65, 1024], [4, 1]];
const GIVEN: f32 = 0.37;

pub fn against_the_host(gpu: &Gpu) -> Result<(), String> {
    for sizes in SIZES {
        for (kind, codes) in [
            (Factors::Tensor, Format::F8E4M3),
            (Factors::Rows, Format::F8E4M3),
            (Factors::Blocks, Format::F8E4M3),
            (Factors::Rows, Format::I8),
        ] {
            for gap in [0, 3] {
                let wrong = |error: String| format!("{sizes:?}, {kind:?}, {codes}, gap {gap}: {error}");
                one::<bf16>(gpu, sizes, kind, codes, gap).map_err(wrong)?;
                one::<f16>(gpu, sizes, kind, codes, gap).map_err(wrong)?;
                one::<f32>(gpu, sizes, kind, codes, gap).map_err(wrong)?;
            }
        }
    }
    Ok(())
}

/// Numbers of many sizes; a row of zeros, a NaN, an infinity, and a row of the smallest numbers.
fn numbers<T: Element>([rows, columns]: [usize; 2], stride: usize, rng: &mut StdRng) -> Vec<T> {
    let mut x = vec![T::from_f64(f64::NAN); rows * stride];
    for row in x.chunks_mut(stride) {
        for piece in row[..columns].chunks_mut(50) {
            let scale = 2f64.powi(rng.random_range(-14..8));
            piece.fill_with(|| T::from_f64(scale * Distribution::<f64>::sample(&StandardNormal, &mut *rng)));
        }
    }
    x[..columns].fill(T::from_f64(0.0));
    if rows > 2 {
        x[stride + columns / 2] = T::from_f64(f64::NAN);
        x[2 * stride + columns - 1] = T::from_f64(f64::NEG_INFINITY);
    }
    if rows > 3 {
        x[3 * stride..][..columns].fill(T::from_f64(if T::KERNEL_DTYPE == Format::F16 { 6e-8 } else { 1e-40 }));
    }
    x
}

/// The factor of numbers.
fn factor(numbers: &[f32], most: f32) -> f32 {
    // int8 has no NaN.
    let spoils = |x: &f32| x.is_infinite() || (most == 127.0 && x.is_nan());
    let largest = numbers.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    match () {
        _ if numbers.iter().any(spoils) => f32::NAN,
        _ if largest == 0.0 => 1.0,
        _ => (largest / most).max(f32::MIN_POSITIVE),
    }
}

fn one<T: Element>(gpu: &Gpu, sizes: [usize; 2], kind: Factors, codes: Format, gap: usize) -> Result<(), String> {
    let [rows, columns] = sizes;
    let mut rng = StdRng::seed_from_u64((rows * 31 + columns) as u64);
    let (stride, blocks) = (columns + gap, columns.div_ceil(128));
    let x: Vec<T> = numbers(sizes, stride, &mut rng);
    // Factors of blocks by columns, as products take them.
    let (row_step, block_step, count) = match kind {
        Factors::Tensor => (0, 0, 1),
        Factors::Rows => (1, 0, rows),
        Factors::Blocks => (1, rows + gap, blocks * (rows + gap)),
    };
    let text = |e: candle::Error| e.to_string();
    let on_device = gpu.device.clone_htod(&x).map_err(text)?;
    let to = gpu.device.clone_htod(&vec![0x55u8; rows * stride + 64]).map_err(text)?;
    let factors = gpu.device.clone_htod(&vec![GIVEN; count]).map_err(text)?;
    let stream = gpu.device.cuda_stream();
    let quantise = Quantise {
        x: Rows::new(on_device.device_ptr(&stream).0 as _, stride as i64),
        codes: Rows::new(to.device_ptr(&stream).0 as _, stride as i64),
        factors: factors.device_ptr(&stream).0 as _,
        row_step: row_step as i64,
        block_step: block_step as i64,
        rows,
        columns,
        kind,
        format: T::KERNEL_DTYPE,
        code_format: codes,
        gate: None,
    };
    // SAFETY: the buffers have the sizes above, and live until the copies below have waited for the stream.
    unsafe { quantise.launch(stream.cu_stream().cast()) }.map_err(|e| e.to_string())?;
    let (to, factors) = (gpu.device.clone_dtoh(&to).map_err(text)?, gpu.device.clone_dtoh(&factors).map_err(text)?);
    let most = if codes == Format::I8 { 127.0 } else { 448.0 };
    for i in 0..rows {
        let row: Vec<f32> = x[i * stride..][..columns].iter().map(|x| x.number() as f32).collect();
        let shared = if kind == Factors::Blocks { 128 } else { columns };
        for (block, numbers) in row.chunks(shared).enumerate() {
            let expected = if kind == Factors::Tensor { GIVEN } else { factor(numbers, most) };
            let got = factors[if kind == Factors::Tensor { 0 } else { i * row_step + block * block_step }];
            if got != expected && !(got.is_nan() && expected.is_nan()) {
                return Err(format!("{}: factor {block} of row {i} is {got}, expected {expected}", T::KERNEL_DTYPE));
            }
            for (at, x) in numbers.iter().enumerate() {
                let place = i * stride + block * shared + at;
                let quotient = if kind == Factors::Tensor && x.is_infinite() { f32::NAN } else { x / expected };
                let (got, expected) = match codes {
                    Format::I8 if expected.is_nan() => continue,
                    Format::I8 => (f32::from(to[place] as i8), quotient.round_ties_even().clamp(-127.0, 127.0)),
                    _ => {
                        let expected = F8E4M3::from_f32(quotient.clamp(-448.0, 448.0)).to_f32();
                        (F8E4M3::from_bits(to[place]).to_f32(), expected)
                    }
                };
                if got != expected && !(got.is_nan() && expected.is_nan()) {
                    return Err(format!("{}: {x} in row {i} became {got}, expected {expected}", T::KERNEL_DTYPE));
                }
            }
        }
        if to[i * stride + columns..(i + 1) * stride].iter().any(|code| *code != 0x55) {
            return Err(format!("wrote behind row {i}"));
        }
    }
    match to[rows * stride..].iter().all(|code| *code == 0x55) {
        true => Ok(()),
        false => Err("wrote behind the codes".into()),
    }
}
