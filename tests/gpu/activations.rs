//! Activations of every number of 16 bits, as the epilogue of each kernel computes them, against f64.

use crate::cases::{self, Variant};
use crate::device::{Element, Gpu, Operands};
use crate::oracle;
use crate::Test;
use candle_tilegemm::dispatch::Dispatcher;
use candle_tilegemm::kernel::{Fusion, KernelDesc};
use candle_tilegemm::problem::BiasAxis;
use candle_tilegemm::{Activation, Format, Problem};
use float8::F8E4M3;
use half::{bf16, f16};

pub fn tests() -> Vec<(String, Test)> {
    let fuses = |kernel: &&KernelDesc| kernel.fusion >= Fusion::BiasAct;
    let test = |kernel: &'static KernelDesc| -> (String, Test) {
        let all: fn(&Gpu, &KernelDesc) -> Result<(), String> = match (kernel.types.a, kernel.types.d) {
            (Format::F16, Format::F16) => |gpu, kernel| every_number::<f16, _>(gpu, kernel, f16::from_bits),
            (Format::BF16, Format::BF16) => |gpu, kernel| every_number::<bf16, _>(gpu, kernel, bf16::from_bits),
            (Format::F16, Format::F32) => |gpu, kernel| every_number::<f16, _>(gpu, kernel, single),
            (Format::BF16, Format::F32) => |gpu, kernel| every_number::<bf16, _>(gpu, kernel, single),
            (Format::F8E4M3, Format::BF16) => |gpu, kernel| every_number::<F8E4M3, _>(gpu, kernel, bf16::from_bits),
            (Format::F8E4M3, Format::F32) => |gpu, kernel| every_number::<F8E4M3, _>(gpu, kernel, single),
            (Format::F32, Format::F32) => |gpu, kernel| every_number::<f32, _>(gpu, kernel, single),
            (Format::F64, Format::F64) => {
                |gpu, kernel| every_number::<f64, _>(gpu, kernel, |bits| bf16::from_bits(bits).to_f64())
            }
            _ => panic!("no test for {}", kernel.types),
        };
        (format!("{kernel}_activations"), Box::new(move |gpu| all(gpu, kernel)))
    };
    crate::with_one_b().filter(fuses).map(test).collect()
}

fn single(bits: u16) -> f32 {
    bf16::from_bits(bits).to_f32()
}

/// The numbers are the bias of a product of zeros.
fn every_number<T: Element, Out: Element>(
    gpu: &Gpu,
    kernel: &KernelDesc,
    from_bits: impl Fn(u16) -> Out,
) -> Result<(), String> {
    let device = Dispatcher::new(gpu.info.clone()).device().clone();
    let bias: Vec<Out> = (0..=u16::MAX).map(from_bits).collect();
    for activation in Activation::ALL {
        let variant = Variant { bias: Some(BiasAxis::N), activation, ..Variant::PLAIN };
        let of_size = |(m, k): (usize, usize)| {
            let problem = cases::problem(m, bias.len(), k, kernel.layout, kernel.types, variant);
            problem.with(|p| p.f32_mode = cases::f32_mode(kernel))
        };
        let able = |problem: &Problem| kernel.supports(&problem.canonical().problem, &device).is_ok();
        let problem = [(8, 64), (1, 64), (8, 1), (8, 256)]
            .map(of_size)
            .into_iter()
            .find(able)
            .ok_or("supports no such product")?;
        let zeros = |count: usize| vec![T::from_f64(0.0); count];
        let c = vec![Out::from_f64(0.0)];
        let (a, b) = (zeros(problem.m * problem.k), zeros(problem.k * bias.len()));
        let d = vec![Out::from_f64(f64::NAN); problem.m * bias.len()];
        let operands = Operands { a, b, c, bias: bias.clone(), d, offsets: [0; 4] };
        let expected: Vec<(f64, f64)> = bias.iter().map(|x| (x.to_f64(), activation.apply(x.to_f64()))).collect();
        for (&(x, expected), got) in expected.iter().cycle().zip(gpu.run(kernel.name, &problem, &operands)?) {
            let got = got.to_f64();
            // Half a unit of what is stored and a tenth, and half of f16's smallest number; a few units of f32.
            let (relative, least) = match kernel.types.d {
                Format::F16 | Format::BF16 => (1.1 * Out::UNIT_ROUNDOFF, 4e-8),
                Format::F32 => (1e-6, 3e-8),
                Format::F64 => (1e-14, 1e-14),
                other => panic!("no test for {other}"),
            };
            let tolerance = relative * expected.abs() + least;
            if !oracle::agree(got, expected, tolerance) {
                return Err(format!("{activation:?} of {x} is {got}, expected {expected} within {tolerance:.2e}"));
            }
        }
    }
    Ok(())
}
