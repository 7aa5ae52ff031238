//! Kernels whose sums are single chains of fused multiply-adds along K, bit by bit; those that split K give the same bits
//! each time.

use crate::cases::{self, Data, Variant};
use crate::device::{Element, Gpu};
use crate::oracle;
use crate::Test;
use candle_tilegemm::kernel::KernelDesc;
use candle_tilegemm::{F32Mode, Problem};
use rayon::prelude::*;

pub fn tests() -> Vec<(String, Test)> {
    let test = |kernel: &'static KernelDesc| -> Option<(String, Test)> {
        let splits = kernel.tile == [128, 128, 32];
        let test: Test = match kernel.family {
            "sm90_sgemm" if splits => Box::new(move |gpu| is_repeatable(gpu, kernel)),
            "sm90_sgemm" => Box::new(move |gpu| is_a_chain(gpu, kernel, f32::mul_add, |x| x.to_bits().into())),
            "sm90_dgemm" => Box::new(move |gpu| is_a_chain(gpu, kernel, f64::mul_add, f64::to_bits)),
            _ => return None,
        };
        Some((format!("{kernel}_{}", if splits { "is_repeatable" } else { "is_a_chain" }), test))
    };
    crate::built().filter_map(test).collect()
}

/// One tile and many, more than multiprocessors have, narrow ones; K of a stage and one more, and deeper than the ring.
const SIZES: [(usize, usize, usize); 6] =
    [(128, 256, 16), (300, 516, 200), (1028, 64, 100), (64, 1000, 68), (3000, 4100, 20), (97, 131, 333)];

fn problems(kernel: &KernelDesc) -> impl Iterator<Item = Problem> + '_ {
    let batched = Variant { batch: [2, 3], padding: 4, ..Variant::PLAIN };
    let all = SIZES.into_iter().flat_map(move |size| {
        let variants = if size.0 * size.1 < 100_000 { vec![Variant::PLAIN, batched] } else { vec![Variant::PLAIN] };
        variants.into_iter().map(move |variant| (size, variant))
    });
    all.map(|((m, n, k), variant)| {
        let dense = cases::problem(m, n, k, kernel.layout, kernel.types, variant);
        dense.with(|p| p.f32_mode = F32Mode::Strict)
    })
}

fn is_a_chain<T: Element + Sync>(
    gpu: &Gpu,
    kernel: &KernelDesc,
    fma: fn(T, T, T) -> T,
    bits: fn(T) -> u64,
) -> Result<(), String> {
    let mut compared = 0;
    for problem in problems(kernel).filter(|p| kernel.supports(&p.canonical().problem, &gpu.info).is_ok()) {
        compared += 1;
        for data in [Data::Normal, Data::NonFinite] {
            let operands = cases::operands::<T, T>(&problem, 0, data, 11);
            let got = gpu.run(kernel.name, &problem, &operands)?;
            let Problem { m, n, k, batch, a, b, d, .. } = problem;
            let indices = |operand, rows, cols| {
                let mut indices = Vec::new();
                oracle::for_each(operand, rows, cols, batch, |index| indices.push(index));
                indices
            };
            let (a_at, b_at, d_at) = (indices(&a, m, k), indices(&b, k, n), indices(&d, m, n));
            let wrong = d_at.par_iter().enumerate().find_map_any(|(element, &place)| {
                let (matrix, i, j) = (element / (m * n), element / n % m, element % n);
                let chain = (0..k).fold(T::from_f64(0.0), |sum, p| {
                    fma(operands.a[a_at[(matrix * m + i) * k + p]], operands.b[b_at[(matrix * k + p) * n + j]], sum)
                });
                let (got, chain) = (got[place], chain);
                let same = bits(got) == bits(chain) || (got.to_f64().is_nan() && chain.to_f64().is_nan());
                (!same).then(|| format!("D[{matrix},{i},{j}] is {}, expected {}", got.to_f64(), chain.to_f64()))
            });
            if let Some(wrong) = wrong {
                return Err(format!("{problem} {data:?}: {wrong}"));
            }
        }
    }
    if compared < 5 {
        return Err(format!("only {compared} products compared"));
    }
    Ok(())
}

fn is_repeatable(gpu: &Gpu, kernel: &KernelDesc) -> Result<(), String> {
    for problem in problems(kernel).filter(|p| kernel.supports(&p.canonical().problem, &gpu.info).is_ok()) {
        let operands = cases::operands::<f32, f32>(&problem, 0, Data::Normal, 12);
        let run = || -> Result<Vec<u32>, String> {
            Ok(gpu.run(kernel.name, &problem, &operands)?.into_iter().map(f32::to_bits).collect())
        };
        if run()? != run()? {
            return Err(format!("{problem}: two runs differ"));
        }
    }
    Ok(())
}
