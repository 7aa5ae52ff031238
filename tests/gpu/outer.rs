//! `outer` and `simt_gemm` give the same bits for K = 1.

use crate::cases::{operands, problem, Data, Variant};
use crate::device::Gpu;
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::KernelDesc;
use candle_tilegemm::{Format, Layout};

/// With a single product for each element there is nothing to round but that: K = 1 has one right answer.
pub fn outer_is_simt_to_the_bit(gpu: &Gpu) -> Result<(), String> {
    let built = |family| {
        let reads = |layout| matches!(layout, Layout::TN | Layout::Any);
        let mut kernels = KERNELS.iter().filter(|k| k.is_built() && k.arch.runs_on(gpu.info.capability));
        let kernel = kernels.find(|k| k.family == family && reads(k.layout) && k.align == 4);
        kernel.ok_or(format!("no kernel of {family:?} is built"))
    };
    let (outer, simt) = (built("outer")?, built("simt_gemm")?);
    for (m, n) in [(4096, 64), (3001, 37)] {
        for alpha in [1.0, -0.3] {
            let problem = problem(m, n, 1, Layout::TN, Format::F32, Variant { alpha, ..Variant::PLAIN });
            let mut operands = operands::<f32, f32>(&problem, 0, Data::NonFinite, 1);
            (operands.a[0], operands.a[1], operands.b[0]) = (-0.0, 1e-40, 3e38);
            let bits = |kernel: &KernelDesc| -> Result<Vec<u32>, String> {
                let d = gpu.run(kernel.name, &problem, &operands)?;
                Ok(d.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect())
            };
            if bits(outer)? != bits(simt)? {
                return Err(format!("{problem}: {outer} and {simt} differ"));
            }
        }
    }
    Ok(())
}
