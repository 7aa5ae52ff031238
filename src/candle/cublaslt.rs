//! The functions of the crate [candle-cublaslt](https://docs.rs/candle-cublaslt) by their names and arguments, over this crate's dispatcher.
//!
//! A project that uses candle-cublaslt, and candle 0.11, gets these functions by one line in its Cargo.toml, without a change of its sources
//! (`cublaslt/` in this repository is a crate of that name):
//!
//! ```toml
//! [patch.crates-io]
//! candle-cublaslt = { path = "../candle-tilegemm/cublaslt" } # in a checkout of this crate
//! ```
//!
//! There are four differences. Operands may have any layout, where candle-cublaslt reads each as contiguous. Every device works, the CPU too. A dtype may
//! also be f64. A gradient flows to `a`, `b`, `bias` and `out`.

use super::activation::activated;
use super::cpu::sums_of;
use super::op::Gemm;
use crate::problem;
use ::candle::{DType, Device, Result, Tensor};

/// The function after the bias. cuBLASLt's GELU is the tanh approximation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// max(x, 0)
    Relu,
    /// The tanh approximation of GELU; candle's `gelu`.
    Gelu,
    /// GELU by the error function; candle's `gelu_erf`. Forks of candle-cublaslt have it.
    GeluErf,
}

impl From<Activation> for problem::Activation {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Relu => Self::Relu,
            Activation::Gelu => Self::GeluTanh,
            Activation::GeluErf => Self::GeluErf,
        }
    }
}

/// What candle-cublaslt keeps a handle of cuBLASLt in. The dispatcher has its own handles: this type holds nothing.
#[derive(Debug, Clone)]
pub struct CublasLt(());

impl CublasLt {
    /// Prepares a device: see [`prepare`](crate::prepare).
    ///
    /// # Errors
    /// Those of [`prepare`](crate::prepare).
    pub fn new(device: &Device) -> Result<Self> {
        super::op::prepare(device).map(|_| Self(()))
    }
}

/// `act(alpha * b @ a^T + beta * out + bias)`
///
/// - `a`: M x K, as a rule a weight
/// - `b`: N x K
/// - `out`: N x M, read where beta is not 0; the result is a new tensor
/// - `alpha`, `beta`: 1 and 0 unless given
/// - `bias`: M values, one for each column of the result
///
/// The result has the shape N x M.
///
/// ```
/// use candle::{DType, Device, Tensor};
/// use candle_tilegemm::cublaslt::{fused_matmul, Activation, CublasLt};
///
/// let device = Device::Cpu;
/// let weight = Tensor::ones((5, 4), DType::F32, &device)?;
/// let x = Tensor::ones((3, 4), DType::F32, &device)?;
/// let bias = Tensor::new(&[-5f32, -4., -3., 0., 1.], &device)?;
/// let lt = CublasLt::new(&device)?;
/// let y = fused_matmul(&weight, &x, None, None, None, Some(&bias), Some(Activation::Relu), lt)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[0., 0., 1., 4., 5.]; 3]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes, devices and dtypes that do not fit.
#[allow(clippy::too_many_arguments)] // candle-cublaslt's
pub fn fused_matmul(
    a: &Tensor,
    b: &Tensor,
    out: Option<&Tensor>,
    alpha: Option<f32>,
    beta: Option<f32>,
    bias: Option<&Tensor>,
    act: Option<Activation>,
    _: CublasLt,
) -> Result<Tensor> {
    a.dims2()?;
    b.dims2()?;
    fused(a, b, out, alpha, beta, bias, act)
}

/// As [`fused_matmul`] for each of a batch: `a` is B x M x K, `b` is B x N x K, `out` and the result are B x N x M. One `bias` of M values serves
/// the whole batch.
///
/// ```
/// use candle::{DType, Device, Tensor};
/// use candle_tilegemm::cublaslt::{fused_batch_matmul, CublasLt};
///
/// let device = Device::Cpu;
/// let (keys, queries) = (Tensor::ones((2, 7, 4), DType::F32, &device)?, Tensor::ones((2, 3, 4), DType::F32, &device)?);
/// let mask = Tensor::zeros((2, 3, 7), DType::F32, &device)?;
/// let lt = CublasLt::new(&device)?;
/// let scores = fused_batch_matmul(&keys, &queries, Some(&mask), Some(0.5), Some(1.0), None, None, lt)?;
/// assert_eq!(scores.to_vec3::<f32>()?, [[[2.0; 7]; 3]; 2]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes, devices and dtypes that do not fit.
#[allow(clippy::too_many_arguments)] // candle-cublaslt's
pub fn fused_batch_matmul(
    a: &Tensor,
    b: &Tensor,
    out: Option<&Tensor>,
    alpha: Option<f32>,
    beta: Option<f32>,
    bias: Option<&Tensor>,
    act: Option<Activation>,
    _: CublasLt,
) -> Result<Tensor> {
    let (matrices, ..) = a.dims3()?;
    let (of_b, ..) = b.dims3()?;
    if matrices != of_b {
        ::candle::bail!("fused_batch_matmul: `a` has {matrices} matrices and `b` has {of_b}; expected as many");
    }
    fused(a, b, out, alpha, beta, bias, act)
}

fn fused(
    a: &Tensor,
    b: &Tensor,
    out: Option<&Tensor>,
    alpha: Option<f32>,
    beta: Option<f32>,
    bias: Option<&Tensor>,
    act: Option<Activation>,
) -> Result<Tensor> {
    let gemm = Gemm::new().alpha(alpha.unwrap_or(1.0).into());
    let with_bias = |gemm: Gemm, bias: Option<&Tensor>| bias.map_or(gemm.clone(), |bias| gemm.bias(bias));
    let beta = beta.map_or(0.0, f64::from);
    let (out, a) = (out.filter(|_| beta != 0.0), a.t()?);
    match (out, act.map(problem::Activation::from)) {
        (None, act) => with_bias(gemm, bias).activation(act.unwrap_or_default()).forward(b, &a),
        (Some(out), None) => with_bias(gemm, bias).residual(out).beta(beta).forward(b, &a),
        (Some(out), Some(act)) => {
            // `Gemm` adds the residual after the activation, and so the sum before the activation is in f32 here.
            let dtype = b.dtype();
            check_dtypes(dtype, [Some(out), bias])?;
            let sums = sums_of(dtype);
            let bias = bias.map(|bias| bias.to_dtype(sums)).transpose()?;
            let gemm = with_bias(gemm, bias.as_ref()).residual(&out.to_dtype(sums)?).beta(beta);
            activated(act, &gemm.out_dtype(sums).forward(b, &a)?, dtype)
        }
    }
}

/// `Gemm` refuses other types, too, but sees only converted tensors.
fn check_dtypes(dtype: DType, tensors: [Option<&Tensor>; 2]) -> Result<()> {
    if let Some(tensor) = tensors.into_iter().flatten().find(|tensor| tensor.dtype() != dtype) {
        let have = tensor.dtype();
        ::candle::bail!(
            "fused_matmul: `out` or `bias` is in {have:?}, the operands in {dtype:?}; convert it with `to_dtype`"
        );
    }
    Ok(())
}
