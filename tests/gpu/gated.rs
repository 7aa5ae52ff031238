//! Kernels of gated products, in every configuration, against the reference kernel around the edges of their tiles; and the op, on the GPU.

#[path = "../support/gated.rs"]
mod products;

use crate::cases::{self, Data};
use crate::device::{by_types, Element, Gpu, Operands};
use crate::into::products::{exact, randn};
use crate::oracle::{agree, span, GUARD};
use crate::replayed::as_launched;
use crate::shard::side_by_side;
use crate::{built, Test};
use candle::{DType, Device, Result as Fallible, Tensor};
use candle_tilegemm::kernel::KernelDesc;
use candle_tilegemm::nn::{GateFunction, GatedMlp, Linear};
use candle_tilegemm::problem::{Epilogue, Gate};
use candle_tilegemm::{Activation, Gemm, Layout, Problem};

pub fn tests() -> Vec<(String, Test)> {
    let of_kernel = |kernel: &'static KernelDesc| -> (String, Test) {
        (kernel.name.into(), Box::new(move |gpu| by_types!(kernel.types, all(gpu, kernel, None))))
    };
    let mut tests: Vec<_> = built().filter(|kernel| kernel.needs_gates()).map(of_kernel).collect();
    type Check = fn(&Device) -> Fallible<()>;
    let checks: [(&str, Check); 4] = [
        ("gated_products", products::products),
        ("gated_products_into", products::into),
        ("gated_refusals", products::refusals),
        ("gated_in_a_graph", in_graphs),
    ];
    tests.extend(checks.map(|(name, check)| -> (String, Test) {
        (name.into(), Box::new(move |gpu| check(&Device::Cuda(gpu.device.clone())).map_err(|error| error.to_string())))
    }));
    tests
}

/// A few small products of a kernel, for compute-sanitizer.
pub fn few(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    by_types!(kernel.types, all(gpu, kernel, Some(5)))
}

/// A product of `n` gates.
pub fn gated(kernel: &KernelDesc, [m, n, k]: [usize; 3], turn: usize) -> Problem {
    let mut epilogue = Epilogue::new(if turn % 4 == 1 { -0.75 } else { 1.0 }, 0.0);
    (epilogue.gate, epilogue.activation) = (Some(Gate::Halves), Activation::ALL[turn % 5]);
    Problem::dense(m, 2 * n, k, 1, Layout::NT, kernel.types.a).with(|problem| {
        problem.epilogue = epilogue;
        problem.d.row_stride = (n + [0, 8, 3][turn % 3]) as i64;
        (problem.a.row_stride, problem.b.col_stride) = (k as i64 + 8, k as i64 + 16);
    })
}

fn all<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc, few: Option<usize>) -> Result<(), String> {
    let [rows, width, _] = kernel.tile.map(|side| side as usize);
    let half = width / 2;
    let mut cases = Vec::new();
    for m in [1, 2, 7, rows - 1, rows, rows + 1, 2 * rows + 3, 300] {
        for n in [1, 13, half - 8, half - 1, half, half + 1, half + 8, 2 * half + 3] {
            cases.push([m, n, [8, 64, 72, 520, 1032][cases.len() % 5]]);
        }
    }
    // More tiles than run at a time, and several strips of them.
    cases.extend([[2500, 20 * half, 136], [300, 70 * half + 5, 72], [4300, 3 * half + 1, 72]]);
    if let Some(few) = few {
        cases.truncate(60);
        cases = cases.into_iter().step_by(12).take(few).collect();
    }
    let cases: Vec<_> = cases.into_iter().enumerate().collect();
    let run = |&(turn, sizes): &(usize, [usize; 3])| {
        let data = [Data::Normal, Data::Integers, Data::NonFinite][turn % 3];
        let problem = gated(kernel, sizes, turn);
        let operands = cases::operands::<T, Out>(&problem, 0, data, turn as u64);
        compare(gpu, kernel, &problem, &operands).map_err(|error| format!("{problem}, {data:?}: {error}"))
    };
    side_by_side(&cases, run).map(drop)
}

/// Each configuration's D against the reference kernel's, and everything around D as it was before.
fn compare<T: Element, Out: Element>(
    gpu: &Gpu,
    kernel: &KernelDesc,
    problem: &Problem,
    operands: &Operands<T, Out>,
) -> Result<(), String> {
    let Problem { m, k, d, .. } = *problem;
    let (columns, stride) = (problem.columns_of_d(), d.row_stride as usize);
    if operands.d.len() < span(&d, m, columns, [1, 1]) + GUARD {
        return Err("no guard behind D".into());
    }
    let expected = crate::oracle::expected(gpu, problem, operands)?;
    let configurations = kernel.configurations(&problem.canonical().problem, &gpu.info);
    if configurations.is_empty() {
        return Err("no configuration".into());
    }
    // Sums of k products of N(0, 1) are below 7 sqrt(k), and so is what their error is multiplied by.
    let units = 4.0 * (k as f64 + 32.0) + (k as f64).powf(1.5) / 16.0;
    let of_sums = f64::from(f32::EPSILON) / 2.0 * units * 14.0 * (k as f64).sqrt();
    for config in configurations {
        let got = gpu.run(format!("{kernel}@{config}").as_str(), problem, operands)?;
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let (got, expected) = (got.to_f64(), expected.to_f64());
            if at / stride >= m || at % stride >= columns {
                if !got.is_nan() {
                    return Err(format!("{config}: wrote {got} outside of D, at element {at}"));
                }
                continue;
            }
            let tolerance = 2.0 * Out::UNIT_ROUNDOFF * expected.abs() + of_sums;
            if !agree(got, expected, tolerance) {
                return Err(format!("{config}: element {at} is {got}, expected {expected} within {tolerance:.2e}"));
            }
        }
    }
    Ok(())
}

/// A graph of a gate that may be fused, of one that is not and of a feed-forward part gives the bits of the launches one by one, twice; and the launches allocate
/// nothing.
fn in_graphs(device: &Device) -> Fallible<()> {
    candle_tilegemm::prepare(device)?;
    let bf16 = |shape: &[usize]| randn(shape, DType::BF16, device)?.affine(0.05, 0.0);
    for rows in [1, 64, 300] {
        let (x, h, start) = (bf16(&[rows, 512])?, bf16(&[rows, 512])?, bf16(&[rows, 512])?);
        let (gate_up, down) = (bf16(&[4096, 512])?, bf16(&[512, 2048])?);
        let (both, inner) = (bf16(&[rows, 4096])?, bf16(&[rows, 2048])?);
        let layer = GatedMlp::new(Linear::new(gate_up.clone(), None), Linear::new(down, None), GateFunction::SwiGlu)?;
        let workspace = layer.workspace(rows, DType::BF16)?;
        let gated = |x: &Tensor, gate, function| {
            Gemm::new().gate(gate, function).scratch(&both).forward_into(x, &gate_up.t()?, &inner)
        };
        let run = || {
            gated(&x, Gate::Halves, GateFunction::GeGluErf)?;
            layer.forward_residual_into(&inner.narrow(1, 512, 512)?, &h, &workspace, &h)?;
            gated(&h, Gate::Interleaved, GateFunction::Relu2)
        };
        let state = || -> Fallible<Vec<f64>> { Ok([exact(&h)?, exact(&inner)?].concat()) };
        as_launched(device, &format!("{rows} rows"), || h.slice_set(&start, 0, 0), run, state)?;
    }
    Ok(())
}
