//! Batch-invariant mode: a row of the result has the same bits whatever the number of rows and the row's place among them.

use crate::cases::{self, Data, Variant};
use crate::device::{by_types, Element, Gpu, Operands};
use crate::shard::side_by_side;
use crate::Test;
use candle::{DType, Device, Tensor};
use candle_tilegemm::dispatch::{set_batch_invariant, Dispatcher, Policy};
use candle_tilegemm::kernel::SumOrder;
use candle_tilegemm::problem::{BiasAxis, Types};
use candle_tilegemm::{interpose, Activation, F32Mode, Format, Gemm, Layout, Problem};

/// Rows of the products that others are compared with.
const MOST: usize = 300;
const ROWS: [usize; 16] = [1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 65, 100, 128, 129, 200, 257];

pub fn tests() -> Vec<(String, Test)> {
    let mut tests: Vec<(String, Test)> = Vec::new();
    let modes = [F32Mode::Accurate, F32Mode::Strict, F32Mode::Tf32];
    let halves = [(Format::BF16, Format::BF16), (Format::F16, Format::F16), (Format::BF16, Format::F32)];
    let halves = halves.map(|(operands, out)| (Types::new(operands, out), F32Mode::Accurate));
    let singles = modes.map(|mode| (Types::from(Format::F32), mode));
    let doubles = [(Types::from(Format::F64), F32Mode::Accurate)];
    for (types, mode) in halves.into_iter().chain(singles).chain(doubles) {
        for layout in [Layout::NT, Layout::NN, Layout::TN, Layout::TT] {
            let name = format!("batch_invariant_{types}_{mode}_{layout}").replace(" -> ", "_");
            tests.push((name, Box::new(move |gpu| by_types!(types, every_variant(gpu, layout, mode)))));
        }
    }
    tests.push(("batch_invariant_every_m_to_300".into(), Box::new(every_m)));
    tests.push(("batch_invariant_kernels_of_an_order_agree".into(), Box::new(kernels_of_an_order_agree)));
    tests.push(("batch_invariant_op".into(), Box::new(|gpu| op(gpu).map_err(|e| e.to_string()))));
    tests.push(("batch_invariant_interposer".into(), Box::new(|gpu| interposer(gpu).map_err(|e| e.to_string()))));
    tests
}

fn policy() -> Policy {
    Policy::default().with_batch_invariance(true)
}

/// The product of rows `first` to `first + m` of A, in dense operands.
fn rows<T: Element, Out: Element>(
    all: &Problem,
    operands: &Operands<T, Out>,
    first: usize,
    m: usize,
) -> (Problem, Operands<T, Out>) {
    let mut problem = all.with(|problem| problem.m = m);
    let at = |row: usize, k: usize| row as i64 * all.a.row_stride + k as i64 * all.a.col_stride;
    if problem.a.col_stride != 1 {
        problem.a.col_stride = m as i64;
    }
    let mut a = vec![T::from_f64(f64::NAN); m * all.k + crate::oracle::GUARD];
    for row in 0..m {
        for k in 0..all.k {
            a[(row as i64 * problem.a.row_stride + k as i64 * problem.a.col_stride) as usize] =
                operands.a[at(first + row, k) as usize];
        }
    }
    let c = match all.epilogue.c {
        Some(_) => operands.c[first * all.n..].to_vec(),
        None => operands.c.clone(),
    };
    let d = vec![Out::from_f64(f64::NAN); m * all.n + crate::oracle::GUARD];
    (problem, Operands { a, c, d, ..operands.clone() })
}

/// Whether the rows have the same bits in `some`, which begins at row `first` of `all`.
fn same<Out: Element>(all: &[Out], some: &[Out], n: usize, first: usize, m: usize) -> Result<(), String> {
    let bits = |x: &Out| x.to_f64().to_bits();
    for row in 0..m {
        for column in 0..n {
            let (x, y) = (&all[(first + row) * n + column], &some[row * n + column]);
            if bits(x) != bits(y) {
                let (x, y) = (x.to_f64(), y.to_f64());
                return Err(format!(
                    "row {} of {first} to {}, column {column}: {y} instead of {x}",
                    first + row,
                    first + m
                ));
            }
        }
    }
    Ok(())
}

fn compare<T: Element, Out: Element>(
    gpu: &Gpu,
    all: &Problem,
    operands: &Operands<T, Out>,
    ms: &[usize],
) -> Result<(), String> {
    let whole = gpu.run(policy(), all, operands)?;
    // One row is contiguous along K, and an A in columns is another layout: the smallest product in columns has two rows.
    let least = if all.a.col_stride == 1 { 1 } else { 2 };
    for &m in ms.iter().filter(|m| (least..=all.m).contains(*m)) {
        for first in [0, all.m - m] {
            let (problem, operands) = rows(all, operands, first, m);
            let some = gpu.run(policy(), &problem, &operands)?;
            let name = |problem: &Problem| {
                gpu.plan(policy(), problem).map(|(plan, _)| format!("{}@{}", plan.name(), plan.config))
            };
            same(&whole, &some, all.n, first, m).map_err(|e| {
                format!("{problem}: {e}: {} and {}", name(all).unwrap_or_default(), name(&problem).unwrap_or_default())
            })?;
        }
    }
    Ok(())
}

fn every_variant<T: Element, Out: Element>(gpu: &Gpu, layout: Layout, mode: F32Mode) -> Result<(), String> {
    let types = Types::new(T::KERNEL_DTYPE, Out::KERNEL_DTYPE);
    let plain = Variant::PLAIN;
    let variants = [
        plain,
        Variant { alpha: -0.5, ..plain },
        Variant { beta: 0.75, ..plain },
        Variant { bias: Some(BiasAxis::N), activation: Activation::GeluErf, ..plain },
        Variant::FULL,
    ];
    let sizes = [[520, 1032], [1001, 515], [128, 4100], [2056, 64]];
    let products: Vec<_> = variants.into_iter().flat_map(|variant| sizes.map(|size| (variant, size))).collect();
    side_by_side(&products, |&(variant, [n, k])| {
        let problem = cases::problem(MOST, n, k, layout, types, variant).with(|p| p.f32_mode = mode);
        let operands = cases::operands::<T, Out>(&problem, 0, Data::Normal, 5);
        compare(gpu, &problem, &operands, &ROWS).map_err(|e| format!("{variant:?}: {e}"))
    })?;
    let problem = cases::problem(4096, 520, 1032, layout, types, plain).with(|p| p.f32_mode = mode);
    let operands = cases::operands::<T, Out>(&problem, 0, Data::Normal, 6);
    compare(gpu, &problem, &operands, &[1, 5, 64, 300, 513, 801, 1000, 2047])
}

fn every_m(gpu: &Gpu) -> Result<(), String> {
    let every: Vec<usize> = (1..=MOST).collect();
    for [n, k] in [[520, 1032], [1001, 1032]] {
        let problem = cases::problem(MOST, n, k, Layout::NT, Format::BF16, Variant::FULL);
        let operands = cases::operands::<half::bf16, half::bf16>(&problem, 0, Data::Normal, 7);
        compare(gpu, &problem, &operands, &every)?;
    }
    let problem = cases::problem(MOST, 520, 516, Layout::NT, Format::F32, Variant::FULL);
    let operands = cases::operands::<f32, f32>(&problem, 0, Data::Normal, 8);
    compare(gpu, &problem, &operands, &every)
}

/// Every kernel and configuration of one order of sums gives the same bits.
fn kernels_of_an_order_agree(gpu: &Gpu) -> Result<(), String> {
    use candle_tilegemm::family::KERNELS;
    let mut pairs = 0;
    for types in [Types::from(Format::BF16), Types::from(Format::F16), Types::new(Format::BF16, Format::F32)] {
        pairs += by_types!(types, agree(gpu, KERNELS, SumOrder::Wgmma, F32Mode::Accurate))?;
    }
    for (order, mode) in [
        (SumOrder::WgmmaTf32, F32Mode::Tf32),
        (SumOrder::WgmmaBf16x6, F32Mode::Accurate),
        (SumOrder::Chain, F32Mode::Strict),
        (SumOrder::Chains64, F32Mode::Strict),
    ] {
        pairs += agree::<f32, f32>(gpu, KERNELS, order, mode)?;
    }
    match pairs {
        0..200 => Err(format!("only {pairs} comparisons")),
        _ => Ok(()),
    }
}

fn agree<T: Element, Out: Element>(
    gpu: &Gpu,
    kernels: &'static [candle_tilegemm::kernel::KernelDesc],
    order: SumOrder,
    mode: F32Mode,
) -> Result<usize, String> {
    let types = Types::new(T::KERNEL_DTYPE, Out::KERNEL_DTYPE);
    let dispatcher = Dispatcher::new(gpu.info.clone());
    let mut pairs = 0;
    for layout in [Layout::NT, Layout::NN, Layout::TN, Layout::TT] {
        for m in [5, 120, 600] {
            for variant in [Variant::PLAIN, Variant::FULL] {
                let problem = cases::problem(m, 520, 1096, layout, types, variant).with(|p| p.f32_mode = mode);
                let operands = cases::operands::<T, Out>(&problem, 0, Data::Normal, 9);
                let mut first: Option<(String, Vec<Out>)> = None;
                for kernel in kernels.iter().filter(|kernel| kernel.is_built() && kernel.types == types) {
                    for config in kernel.configurations(&problem.canonical().problem, dispatcher.device()) {
                        if kernel.sums(&config) != Some(order) {
                            continue;
                        }
                        let name = format!("{}@{config}", kernel.name);
                        let name = if config == Default::default() { kernel.name.to_string() } else { name };
                        let d = gpu.run(name.as_str(), &problem, &operands)?;
                        match &first {
                            Some((other, expected)) => same(expected, &d, problem.n, 0, m)
                                .map_err(|e| format!("{problem}: {name} and {other}: {e}"))?,
                            None => first = Some((name, d)),
                        }
                        pairs += 1;
                    }
                }
            }
        }
    }
    Ok(pairs)
}

/// The same for slices of one tensor, by any way to multiply.
fn slices(gpu: &Gpu, product: impl Fn(&Tensor, &Tensor) -> candle::Result<Tensor>) -> candle::Result<()> {
    let device = Device::Cuda(gpu.device.clone());
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for [n, k] in [[768, 512], [777, 515]] {
            let random = |shape: [usize; 2]| {
                Tensor::randn(0f32, 1f32, &shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(&device)
            };
            let (x, w) = (random([MOST, k])?, random([n, k])?);
            let bits = |t: &Tensor| -> candle::Result<Vec<Vec<u32>>> {
                let rows = t.to_dtype(DType::F32)?.to_vec2::<f32>()?;
                Ok(rows.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect())
            };
            let all = bits(&product(&x, &w.t()?)?)?;
            for m in ROWS {
                for first in [0, 3.min(MOST - m), MOST - m] {
                    let some = bits(&product(&x.narrow(0, first, m)?, &w.t()?)?)?;
                    if all[first..first + m] != some[..] {
                        candle::bail!("{dtype:?} {m} x {n} x {k} from row {first} differs");
                    }
                }
            }
        }
    }
    Ok(())
}

fn op(gpu: &Gpu) -> candle::Result<()> {
    slices(gpu, |x, w| Gemm::new().batch_invariant().forward(x, w))?;
    let device = Device::Cuda(gpu.device.clone());
    slices(gpu, |x, w| {
        let bias = Tensor::ones(w.dim(1)?, x.dtype(), &device)?;
        Gemm::new().batch_invariant().bias(&bias).activation(Activation::Silu).forward(x, w)
    })
}

fn interposer(gpu: &Gpu) -> candle::Result<()> {
    set_batch_invariant(true);
    let before = interpose::stats();
    let result = slices(gpu, Tensor::matmul);
    set_batch_invariant(false);
    result?;
    let counted = interpose::stats().since(&before);
    if counted.forwarded.iter().any(|(_, count)| *count > 0) {
        candle::bail!("a product did not run on our kernels: {counted:?}");
    }
    Ok(())
}
