//! Products of operands in fp8 with factors beside them, against sums in f64 of the numbers that they stand for.

use crate::into::products::{exact, randn, unit};
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::GemmExt;

/// The numbers that share a factor: all, a row, or so many rows by 128.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shared {
    All,
    Row,
    Blocks(usize),
}

/// Codes, factors in the shape that they have for this, and the numbers.
fn drawn([rows, k]: [usize; 2], shared: Shared, device: &Device) -> Result<(Tensor, Tensor, Vec<f64>)> {
    let codes = randn(&[rows, k], DType::F32, &Device::Cpu)?.affine(20.0, 0.0)?.to_dtype(DType::F8E4M3)?;
    let dims = match shared {
        Shared::All => vec![1],
        Shared::Row if k % 32 == 0 => vec![rows, 1],
        Shared::Row => vec![rows],
        Shared::Blocks(block) => vec![rows.div_ceil(block), k.div_ceil(128)],
    };
    let factors = Tensor::rand(0.01f32, 0.1, dims.clone(), &Device::Cpu)?;
    let list = exact(&factors)?;
    let factor = |at: usize| match shared {
        Shared::All => list[0],
        Shared::Row => list[at / k],
        Shared::Blocks(block) => list[at / k / block * dims[1] + at % k / 128],
    };
    let codes_of = exact(&codes.to_dtype(DType::F32)?)?;
    let numbers = codes_of.iter().enumerate().map(|(at, code)| code * factor(at)).collect();
    Ok((codes.to_device(device)?, factors.to_device(device)?, numbers))
}

/// Refuses a product that is further from that of the numbers than sums in f32, of tensor cores, and a rounding may be.
fn near(what: &str, y: &Tensor, [x, w]: [&[f64]; 2], k: usize) -> Result<()> {
    let (n, got) = (w.len() / k, exact(y)?);
    let of_size = 2f64.powi(-24) * (k as f64 + 8.0) + if y.device().is_cpu() { 0.0 } else { 2f64.powi(-9) };
    for (at, got) in got.iter().enumerate() {
        let (x, w) = (&x[at / n * k..][..k], &w[at % n * k..][..k]);
        let (sum, size) = x.iter().zip(w).fold((0.0, 0.0), |(sum, size), (x, w)| (sum + x * w, size + (x * w).abs()));
        let off = 1.01 * unit(y.dtype()) * sum.abs() + of_size * size + 2f64.powi(-25);
        let is_near = (got - sum).abs() <= off;
        if !(is_near || sum.is_nan() && got.is_nan()) {
            bail!("{what}: number {at} is {got}, expected {sum} within {off:e}");
        }
    }
    Ok(())
}

/// Every kind of factors by every other, in every type of result; rows that are apart, and factors that lie the other way round.
pub fn products(device: &Device) -> Result<()> {
    let sizes = [[1, 16, 256], [5, 129, 384], [130, 72, 272], [3, 5, 16], [70, 200, 144], [9, 300, 1040]];
    // On a GPU K is a multiple of 16.
    for [m, n, k] in sizes.into_iter().chain(device.is_cpu().then_some([4, 9, 150])) {
        for of_x in [Shared::All, Shared::Row, Shared::Blocks(1)] {
            for of_w in [Shared::All, Shared::Row, Shared::Blocks(128)] {
                let (x, x_scale, x_numbers) = drawn([m, k], of_x, device)?;
                let (w, w_scale, w_numbers) = drawn([n, k], of_w, device)?;
                for dtype in [DType::F32, DType::BF16, DType::F16] {
                    let what = format!("[{m}, {n}, {k}], {of_x:?} by {of_w:?} in {dtype:?}");
                    let y = x.matmul_scaled(&w, &x_scale, &w_scale, dtype)?;
                    if y.dims() != [m, n] || y.dtype() != dtype {
                        bail!("{what}: the result is {:?} {:?}", y.dtype(), y.dims());
                    }
                    near(&what, &y, [&x_numbers, &w_numbers], k)?;
                    if let Shared::Blocks(_) = of_x {
                        let turned = x_scale.t()?.contiguous()?.t()?;
                        let again = x.matmul_scaled(&w, &turned, &w_scale, dtype)?;
                        if exact(&again)? != exact(&y)? {
                            bail!("{what}: factors that lie the other way round give other bits");
                        }
                    }
                }
            }
        }
    }
    // Columns of a wider matrix.
    let (m, n, k) = (6, 40, 256);
    let (wide, x_scale, numbers) = drawn([m, 2 * k], Shared::Row, device)?;
    let (w, w_scale, w_numbers) = drawn([n, k], Shared::Row, device)?;
    let numbers: Vec<f64> = numbers.chunks(2 * k).flat_map(|row| row[k..].to_vec()).collect();
    let y = wide.narrow(1, k, k)?.matmul_scaled(&w, &x_scale, &w_scale, DType::BF16)?;
    near("columns of a wider matrix", &y, [&numbers, &w_numbers], k)
}

/// NaN codes and factors, results beyond f16, and no rows, columns or K.
pub fn special(device: &Device) -> Result<()> {
    let codes = |codes: Vec<u8>, dims: (usize, usize)| {
        Tensor::from_vec(codes.into_iter().map(float8::F8E4M3::from_bits).collect::<Vec<_>>(), dims, device)
    };
    let one = Tensor::new(1f32, device)?;
    // Ones, then a NaN in the second row.
    let x = codes([vec![0x38; 16], vec![0x7f], vec![0x38; 15]].concat(), (2, 16))?;
    let w = codes(vec![0x7e; 3 * 16], (3, 16))?;
    let y = exact(&x.matmul_scaled(&w, &one, &one, DType::BF16)?)?;
    if y[..3] != [7168.0; 3] || !y[3..].iter().all(|y| y.is_nan()) {
        bail!("a NaN code: {y:?}");
    }
    let y = exact(&x.matmul_scaled(&w, &one, &Tensor::new(&[1f32, f32::NAN, 10.0], device)?, DType::F16)?)?;
    if y[0] != 7168.0 || !y[1].is_nan() || y[2] != f64::INFINITY {
        bail!("a NaN factor, and 71680 in f16: {y:?}");
    }
    if !device.is_cpu() {
        let error = codes(vec![0; 20], (2, 10))?.matmul_scaled(&codes(vec![0; 10], (1, 10))?, &one, &one, DType::F32);
        let error = error.unwrap_err().to_string();
        if !error.contains("rows have 10 numbers; expected a multiple of 16 on a GPU") {
            bail!("{error}");
        }
    }
    for [m, n, k] in [[0, 3, 16], [2, 0, 16], [2, 3, 0]] {
        let zeros = |rows: usize| codes(vec![0; rows * k], (rows, k));
        let y = zeros(m)?.matmul_scaled(&zeros(n)?, &one, &one, DType::F32)?;
        if y.dims() != [m, n] || exact(&y)?.iter().any(|y| *y != 0.0) {
            bail!("[{m}, {n}, {k}]: {:?} {:?}", y.dims(), exact(&y)?);
        }
    }
    Ok(())
}
