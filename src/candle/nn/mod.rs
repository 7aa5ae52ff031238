//! Layers with the names and signatures of `candle_nn`, on this crate's product.
//!
//! A model needs only `use candle_tilegemm::nn::{Linear, linear};` in place of the same names of `candle_nn`. The GEMM
//! kernel applies bias and activation where the dispatcher finds fusion to be faster.
//!
//! Beside products, a model's layer has norms, attention, gates and the choice of the next token: [`RmsNorm`], [`attention`], [`gate()`], [`Embedding`] and
//! [`Sampler`]. They run on the CPU, and with the feature `layers` on GPUs.

pub mod attention;
mod beside;
#[cfg(feature = "experts")]
mod between;
mod draw;
mod embedding;
mod experts;
mod gate;
mod kind;
mod merged;
mod mlp;
pub mod moe;
pub mod narrow;
mod next;
mod norm;
pub mod parallel;
mod qembedding;
mod qkv;
mod qlinear;
#[cfg(feature = "experts")]
mod routed;
mod sampler;

pub use crate::layer::{GateFunction, Sampling};
pub use embedding::{embedding, Embedding};
pub use gate::{gate, gate_into};
pub use merged::MergedLinear;
pub use mlp::{gated_mlp, GatedMlp, GatedMlpWorkspace};
pub use narrow::{linear_quantized, linear_quantized_no_bias, QuantExperts, QuantLinear, QuantizationConfig};
pub use next::Next;
pub use norm::{rms_norm, RmsNorm};
pub use qembedding::QEmbedding;
pub use qkv::{qkv_linear, QkvLinear};
pub use qlinear::{qlinear, qlinear_b, qlinear_no_bias, QLinear};
pub use sampler::Sampler;

pub use super::qweights::QWeights;

use super::op::Gemm;
use crate::problem::{Activation, Gate};
use ::candle::{Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

/// `activation(x @ weight^T + bias)`
///
/// ```
/// use candle::{Device, Module, Tensor};
/// use candle_tilegemm::{Activation, nn::Linear};
///
/// let weight = Tensor::new(&[[1f32, 0., 2.], [0., 1., 0.]], &Device::Cpu)?;
/// let bias = Tensor::new(&[0f32, -8.], &Device::Cpu)?;
/// let layer = Linear::new(weight, Some(bias)).with_activation(Activation::Relu);
/// let y = layer.forward(&Tensor::new(&[[1f32, 2., 3.]], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[7., 0.]]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    activation: Activation,
}

impl Linear {
    /// A layer with weights of shape (out, in) and a bias of shape (out).
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias, activation: Activation::Identity }
    }

    /// The same layer with a function applied to its output.
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Weights, (out, in).
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Bias, (out).
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// `forward(x) + residual`, in one kernel where a kernel fuses the addition.
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use candle_tilegemm::nn::Linear;
    ///
    /// let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
    /// let layer = Linear::new(Tensor::ones((3, 3), DType::F32, &Device::Cpu)?, None);
    /// assert_eq!(layer.forward_residual(&x, &x)?.to_vec2::<f32>()?, [[4.0; 3]; 2]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Gemm::forward`].
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.gemm().residual(residual).forward(x, &self.weight.t()?)
    }

    /// [`forward`](Module::forward) into a tensor of the result's shape and type, whose rows may be apart: see [`Gemm::forward_into`].
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use candle_tilegemm::nn::Linear;
    ///
    /// let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
    /// let layer = Linear::new(Tensor::ones((2, 3), DType::F32, &Device::Cpu)?, None);
    /// let wide = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
    /// layer.forward_into(&x, &wide.narrow(1, 2, 2)?)?;
    /// assert_eq!(wide.to_vec2::<f32>()?, [[0., 0., 3., 3.]; 2]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Gemm::forward_into`].
    pub fn forward_into(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        self.gemm().forward_into(x, &self.weight.t()?, out)
    }

    /// [`forward_residual`](Self::forward_residual) into a tensor that exists, which may be the residual itself.
    ///
    /// # Errors
    /// As for [`Gemm::forward_into`].
    pub fn forward_residual_into(&self, x: &Tensor, residual: &Tensor, out: &Tensor) -> Result<()> {
        self.gemm().residual(residual).forward_into(x, &self.weight.t()?, out)
    }

    /// The gated product, without an activation of the layer, into a tensor that exists; `both` is memory for the product alone.
    fn gated_into(&self, x: &Tensor, gate: (Gate, GateFunction), both: &Tensor, out: &Tensor) -> Result<()> {
        self.gemm().gate(gate.0, gate.1).scratch(both).forward_into(x, &self.weight.t()?, out)
    }

    fn gemm(&self) -> Gemm {
        let gemm = Gemm::new().activation(self.activation);
        match &self.bias {
            Some(bias) => gemm.bias(bias),
            None => gemm,
        }
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.gemm().forward(x, &self.weight.t()?)
    }
}

impl From<candle_nn::Linear> for Linear {
    fn from(layer: candle_nn::Linear) -> Self {
        Self::new(layer.weight().clone(), layer.bias().cloned())
    }
}

/// A layer with a bias; initialised as by [`candle_nn::linear()`].
///
/// ```
/// use candle::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use candle_tilegemm::nn::{linear, linear_no_bias};
///
/// let weights = VarMap::new();
/// let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
/// let (up, down) = (linear(8, 32, vb.pp("up"))?, linear_no_bias(32, 8, vb.pp("down"))?);
/// let y = down.forward(&up.forward(&Tensor::ones((3, 8), DType::F32, &Device::Cpu)?)?)?;
/// assert_eq!(y.dims(), [3, 8]);
/// assert_eq!(weights.all_vars().len(), 3);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    let weight = vb.get_with_hints((out_dim, in_dim), "weight", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
    let bound = 1.0 / (in_dim as f64).sqrt();
    let bias = vb.get_with_hints(out_dim, "bias", Init::Uniform { lo: -bound, up: bound })?;
    Ok(Linear::new(weight, Some(bias)))
}

/// A layer without a bias; initialised as by [`candle_nn::linear_no_bias()`].
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    let weight = vb.get_with_hints((out_dim, in_dim), "weight", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
    Ok(Linear::new(weight, None))
}

/// A layer with or without a bias.
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder) -> Result<Linear> {
    if bias {
        linear(in_dim, out_dim, vb)
    } else {
        linear_no_bias(in_dim, out_dim, vb)
    }
}
