//! Gated products, on the CPU and on a GPU, against their definition in f64.

use crate::into::products::{exact, randn};
use candle::{bail, DType, Device, Result, Tensor};
use candle_tilegemm::nn::GateFunction;
use candle_tilegemm::problem::Gate;
use candle_tilegemm::{Activation, Gemm};

const FUNCTIONS: [GateFunction; 4] =
    [GateFunction::SwiGlu, GateFunction::GeGluTanh, GateFunction::GeGluErf, GateFunction::Relu2];

fn apply(function: GateFunction, x: f64) -> f64 {
    match function {
        GateFunction::SwiGlu => Activation::Silu.apply(x),
        GateFunction::GeGluTanh => Activation::GeluTanh.apply(x),
        GateFunction::GeGluErf => Activation::GeluErf.apply(x),
        _ => Activation::Relu.apply(x).powi(2),
    }
}

/// Half the distance from 1 to the next number.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

/// A product by its definition: operands in f64, rows of x times rows of w.
struct Definition {
    x: Vec<f64>,
    w: Vec<f64>,
    bias: Vec<f64>,
    k: usize,
    alpha: f64,
}

impl Definition {
    /// A column of the biased product of a row, and a bound of the error of its sum in f32, and of its rounding in between to `dtype`, if any.
    fn column(&self, row: usize, column: usize, between: f64) -> (f64, f64) {
        let (x, w) = (&self.x[row * self.k..][..self.k], &self.w[column * self.k..][..self.k]);
        let (sum, size) = x.iter().zip(w).fold((0.0, 0.0), |(sum, size), (x, w)| (sum + x * w, size + (x * w).abs()));
        let bias = self.bias.get(column).copied().unwrap_or(0.0);
        let value = self.alpha * sum + bias;
        (value, 1.2e-6 * (self.alpha.abs() * size + bias.abs()) + between * value.abs())
    }

    /// Refuses a result that is further away than its roundings explain: of the product, on a GPU where the gate is apart, and of the result.
    fn check(&self, what: &str, got: &Tensor, gate: Gate, function: GateFunction) -> Result<()> {
        let (dtype, columns) = (got.dtype(), got.dims().last().copied().unwrap_or(0));
        let on_gpu = got.device().is_cuda();
        for (i, got) in exact(got)?.into_iter().enumerate() {
            let (row, j) = (i / columns, i % columns);
            let [g, u] = if gate == Gate::Halves { [j, columns + j] } else { [2 * j, 2 * j + 1] };
            let between = if on_gpu { 1.01 * unit(dtype) } else { 0.0 };
            let ((gate, of_gate), (up, of_up)) = (self.column(row, g, between), self.column(row, u, between));
            let expected = apply(function, gate) * up;
            let slope = if function == GateFunction::Relu2 { 2.0 * (gate.abs() + of_gate) } else { 1.2 };
            let off = slope * of_gate * (up.abs() + of_up) + apply(function, gate).abs() * of_up;
            // A kernel of its own may round ReLU^2 between its factors.
            let rounds = if on_gpu && function == GateFunction::Relu2 { 2.02 } else { 1.01 };
            let bound = off + (rounds * unit(dtype) + 2e-6) * (expected.abs() + off) + 2f64.powi(-24);
            if (got - expected).abs() > bound || got.is_nan() {
                bail!("{what}: number {i} is {got}, expected {expected} within {bound:e}");
            }
        }
        Ok(())
    }
}

/// The bits of both, but for NaN.
fn same(what: &str, got: &Tensor, expected: &Tensor) -> Result<()> {
    if got.dims() != expected.dims()
        || exact(got)?.iter().zip(exact(expected)?).any(|(x, y)| x.to_bits() != y.to_bits())
    {
        bail!("{what}: other bits than those of `forward`");
    }
    Ok(())
}

/// All functions and types, gates in halves and in turns, with and without a bias and a factor; of a batch; and results in f32.
pub fn products(device: &Device) -> Result<()> {
    let sizes = [[1, 1, 1], [3, 7, 5], [1, 64, 64], [17, 24, 40], [66, 136, 264], [130, 520, 72], [0, 8, 8]];
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for (i, [rows, n, k]) in sizes.into_iter().enumerate() {
            let (x, w, bias) = (
                randn(&[rows, k], dtype, device)?,
                randn(&[2 * n, k], dtype, device)?,
                randn(&[2 * n], dtype, device)?,
            );
            let w = w.affine(0.4, 0.0)?;
            for (j, function) in FUNCTIONS.into_iter().enumerate() {
                let gate = if (i + j) % 3 == 2 { Gate::Interleaved } else { Gate::Halves };
                let (has_bias, alpha) = (i % 2 == 1, [1.0, 0.5, -1.25][(i + j) % 3]);
                let what =
                    format!("{rows} x {n} x {k} in {dtype:?}, {function:?}, {gate:?}, bias {has_bias}, alpha {alpha}");
                let gemm = Gemm::new().alpha(alpha).gate(gate, function);
                let gemm = if has_bias { gemm.bias(&bias) } else { gemm };
                let of_bias = if has_bias { exact(&bias)? } else { vec![] };
                let definition = Definition { x: exact(&x)?, w: exact(&w)?, bias: of_bias, k, alpha };
                let y = gemm.forward(&x, &w.t()?)?;
                if y.dims() != [rows, n] || y.dtype() != dtype {
                    bail!("{what}: {y:?}");
                }
                definition.check(&what, &y, gate, function)?;
                if dtype != DType::F32 && !has_bias {
                    let y = gemm.clone().out_dtype(DType::F32).forward(&x, &w.t()?)?;
                    definition.check(&format!("{what}, to f32"), &y, gate, function)?;
                }
                // The same rows in a batch.
                let y3 = gemm.forward(&x.unsqueeze(0)?, &w.t()?)?;
                same(&format!("{what}, in three dimensions"), &y3.squeeze(0)?, &y)?;
            }
        }
    }
    // A NaN stays in its row, and infinities are as IEEE says.
    let x =
        Tensor::new(&[[1f32, 1.], [f32::NAN, 1.], [1., 1.]], &Device::Cpu)?.to_dtype(DType::BF16)?.to_device(device)?;
    let w = Tensor::new(&[[1f32, 0.], [f32::NEG_INFINITY, 1.], [2., 1.], [3., 1.]], &Device::Cpu)?;
    let w = w.to_dtype(DType::BF16)?.to_device(device)?;
    let y = exact(&Gemm::new().gate(Gate::Halves, GateFunction::SwiGlu).forward(&x, &w.t()?)?)?;
    let finite: Vec<bool> = y.iter().map(|y| y.is_finite()).collect();
    if finite != [true, true, false, false, true, true] || y[1] != 0.0 {
        bail!("a NaN leaves its row, or a gate of -inf is not 0: {y:?}");
    }
    Ok(())
}

/// Into tensors that exist: dense, and columns of a wider one.
pub fn into(device: &Device) -> Result<()> {
    for dtype in [DType::BF16, DType::F32] {
        for [rows, n, k] in [[1, 8, 16], [5, 24, 40], [70, 136, 264], [300, 256, 64]] {
            let (x, w) = (randn(&[rows, k], dtype, device)?, randn(&[2 * n, k], dtype, device)?);
            let scratch = randn(&[2 * rows * n + 5], dtype, device)?;
            for function in FUNCTIONS {
                let what = format!("{rows} x {n} x {k} in {dtype:?}, {function:?}");
                let gemm = Gemm::new().gate(Gate::Halves, function).scratch(&scratch);
                let (out, y) = (randn(&[rows, n], dtype, device)?, gemm.forward(&x, &w.t()?)?);
                gemm.forward_into(&x, &w.t()?, &out)?;
                same(&what, &out, &y)?;
                if dtype == DType::BF16 {
                    let wide =
                        Tensor::full(-77f32, (rows, n + 24), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?;
                    gemm.forward_into(&x, &w.t()?, &wide.narrow(1, 8, n)?)?;
                    same(&format!("{what}, columns"), &wide.narrow(1, 8, n)?.contiguous()?, &y)?;
                    let beside = [wide.narrow(1, 0, 8)?, wide.narrow(1, n + 8, 16)?];
                    for beside in beside {
                        if exact(&beside.contiguous()?)?.iter().any(|x| *x != -77.0) {
                            bail!("{what}: wrote beside the columns");
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// What a gated product refuses.
pub fn refusals(device: &Device) -> Result<()> {
    let of = |shape: &[usize]| Tensor::ones(shape, DType::BF16, device);
    let (x, w, odd, out) = (of(&[3, 8])?, of(&[8, 16])?, of(&[8, 15])?, of(&[3, 8])?);
    let gated = || Gemm::new().gate(Gate::Halves, GateFunction::Relu2);
    let var = candle::Var::from_tensor(&x)?;
    let wide = of(&[3, 8])?.to_dtype(DType::F64)?;
    let mut refused = vec![
        ("an odd number of columns", gated().forward(&x, &odd).map(drop), "15 columns"),
        ("an activation", gated().activation(Activation::Silu).forward(&x, &w).map(drop), "activation"),
        ("a residual", gated().residual(&of(&[3, 16])?).forward(&x, &w).map(drop), "residual"),
        ("gradients", gated().forward(var.as_tensor(), &w).map(drop), "gradients"),
        ("f64", gated().forward(&wide, &w.to_dtype(DType::F64)?).map(drop), "F64"),
        ("a result of another shape", gated().forward_into(&x, &w, &of(&[3, 16])?), "expected"),
        ("a result among the operands", gated().forward_into(&x, &w, &x), "share memory"),
    ];
    if device.is_cuda() {
        let of_scratch = |scratch: &Tensor| gated().scratch(scratch).forward_into(&x, &w, &out);
        refused.extend([
            ("no memory for the product", gated().forward_into(&x, &w, &out), "scratch"),
            ("little memory for the product", of_scratch(&of(&[47])?), "48"),
            ("memory in another type", of_scratch(&of(&[48])?.to_dtype(DType::F32)?), "scratch"),
        ]);
    }
    for (what, result, message) in refused {
        match result {
            Err(error) if error.to_string().contains(message) => {}
            Err(error) => bail!("{what}: the error is {error}, expected {message}"),
            Ok(()) => bail!("{what} is taken"),
        }
    }
    Ok(())
}
