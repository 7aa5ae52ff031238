//! Layers with the weights of a checkpoint.

use super::config::QuantizationConfig;
use super::linear::QuantLinear;
use super::quantize::Quantizer;
use super::scheme::{Activations, Fp8, Nvfp4, Scheme};
use super::tensors::Module;
use super::weight::QuantWeight;
use super::{awq, compressed, floats, gptq};
use crate::candle::nn::{linear, linear_no_bias};
use ::candle::{bail, Result};
use candle_nn::VarBuilder;

/// The tensors that only narrow weights have.
const NARROW: [&str; 5] = ["weight_scale", "weight_scale_inv", "weight_packed", "qweight", "weight_scale_2"];

impl QuantizationConfig {
    /// Whether a module's weights are narrow: the config says so, and its tensors are not those of an ordinary layer.
    pub fn is_narrow(&self, vb: &VarBuilder) -> bool {
        self.scheme(&vb.prefix()) != Scheme::Plain && NARROW.iter().any(|name| vb.contains_tensor(name))
    }
}

/// A layer with a bias, whose weights are stored as the config says of the builder's path. A module that the config leaves out, or whose tensors are those of an
/// ordinary layer, has the weights of [`linear`]; the others have theirs in a few bits.
///
/// ```
/// use candle::{DType, Device, Module, Tensor};
/// use candle_nn::VarBuilder;
/// use candle_tilegemm::nn::{linear_quantized_no_bias, QuantizationConfig};
/// use std::collections::HashMap;
///
/// let config = QuantizationConfig::from_json(r#"{"quant_method": "fp8", "activation_scheme": "dynamic"}"#)?;
/// let weight = Tensor::new(&[[1f32, 0.5], [2., -1.]], &Device::Cpu)?.to_dtype(DType::F8E4M3)?;
/// let scale = Tensor::new(0.25f32, &Device::Cpu)?;
/// let tensors = HashMap::from([("up.weight".to_string(), weight), ("up.weight_scale".to_string(), scale)]);
/// let vb = VarBuilder::from_tensors(tensors, DType::BF16, &Device::Cpu);
/// let layer = linear_quantized_no_bias(2, 2, &config, vb.pp("up"))?;
/// let y = layer.forward(&Tensor::new(&[[4f32, 4.]], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1.5, 1.]]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Missing tensors, tensors of another shape or type than the format has, and a module whose tensors are narrow where the config says that they are not.
pub fn linear_quantized(
    in_dim: usize,
    out_dim: usize,
    config: &QuantizationConfig,
    vb: VarBuilder,
) -> Result<QuantLinear> {
    linear_of_scheme(in_dim, out_dim, true, config.scheme(&vb.prefix()), vb)
}

/// A layer without a bias; see [`linear_quantized`].
///
/// # Errors
/// As for [`linear_quantized`].
pub fn linear_quantized_no_bias(
    in_dim: usize,
    out_dim: usize,
    config: &QuantizationConfig,
    vb: VarBuilder,
) -> Result<QuantLinear> {
    linear_of_scheme(in_dim, out_dim, false, config.scheme(&vb.prefix()), vb)
}

/// A layer of matrices that a checkpoint has merged, such as `qkv_proj` and `gate_up_proj`, with the rows of each: fp8 may have one factor for each of them. With or
/// without a bias; see [`linear_quantized`].
///
/// # Errors
/// As for [`linear_quantized`].
pub fn linear_quantized_parts(
    in_dim: usize,
    out_dims: &[usize],
    bias: bool,
    config: &QuantizationConfig,
    vb: VarBuilder,
) -> Result<QuantLinear> {
    load(in_dim, out_dims, bias, config.scheme(&vb.prefix()), vb)
}

/// A layer with or without a bias, whose weights are stored as a scheme says; see [`linear_quantized`].
///
/// # Errors
/// As for [`linear_quantized`].
pub fn linear_of_scheme(
    in_dim: usize,
    out_dim: usize,
    bias: bool,
    scheme: Scheme,
    vb: VarBuilder,
) -> Result<QuantLinear> {
    load(in_dim, &[out_dim], bias, scheme, vb)
}

/// A layer with weights in fp8, without a bias: `weight`, (out, in), in F8_E4M3, and `weight_scale` or `weight_scale_inv`, one factor, one for each row, or one for
/// each block of 128 x 128.
///
/// # Errors
/// As for [`linear_quantized`].
pub fn linear_fp8(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<QuantLinear> {
    let scheme = Scheme::Fp8(Fp8 { granularity: None, activations: Activations::Wide });
    linear_of_scheme(in_dim, out_dim, false, scheme, vb)
}

/// A layer with or without a bias, whose weights are stored in 16 or 32 bits and rounded to the nearest in fewer; see [`QuantWeight::quantize`].
///
/// # Errors
/// As for [`linear`] and [`QuantWeight::quantize`].
pub fn linear_rounded(in_dim: usize, out_dim: usize, bias: bool, to: Quantizer, vb: VarBuilder) -> Result<QuantLinear> {
    let device = vb.device().clone();
    let weight = vb.clone().set_device(::candle::Device::Cpu).get((out_dim, in_dim), "weight")?;
    let bias = bias.then(|| vb.get(out_dim, "bias")).transpose()?;
    QuantLinear::new_on(QuantWeight::quantize(&weight, to)?, bias, &device)
}

fn load(in_dim: usize, out_dims: &[usize], bias: bool, scheme: Scheme, vb: VarBuilder) -> Result<QuantLinear> {
    let n = out_dims.iter().sum();
    match read(&Module::new(&vb), [n, in_dim], out_dims, scheme)? {
        Some(weight) => {
            let bias = bias.then(|| vb.get(n, "bias")).transpose()?;
            Ok(QuantLinear::new_on(weight, bias, vb.device())?.with_activations(scheme.activations()))
        }
        None if bias => Ok(linear(in_dim, n, vb)?.into()),
        None => Ok(linear_no_bias(in_dim, n, vb)?.into()),
    }
}

/// The weights of a module, (out, in); none of a module whose tensors are those of an ordinary layer. `parts` are the rows of merged matrices.
pub(super) fn read(of: &Module, shape: [usize; 2], parts: &[usize], scheme: Scheme) -> Result<Option<QuantWeight>> {
    scheme.checked(&of.path())?;
    let mark = match scheme {
        Scheme::Plain => {
            if let Some(name) = NARROW.iter().find(|name| of.has(name)) {
                bail!("{}: the config leaves this module as it is, and the checkpoint has {name}", of.path());
            }
            return Ok(None);
        }
        Scheme::Fp8(_) if of.has("weight_scale_inv") => "weight_scale_inv",
        Scheme::Fp8(_) | Scheme::Int8(_) | Scheme::Mxfp8 | Scheme::Nvfp4(Nvfp4::ModelOpt) => "weight_scale",
        Scheme::Gptq(_) | Scheme::Awq(_) => "qweight",
        Scheme::Packed(_) | Scheme::Mxfp4 | Scheme::Nvfp4(Nvfp4::CompressedTensors) => "weight_packed",
    };
    if !of.has(mark) {
        return match NARROW.iter().find(|name| of.has(name)) {
            None if of.has("weight") => Ok(None),
            None => bail!("{}.{mark}: no such tensor, nor weight", of.path()),
            Some(other) => {
                bail!("{}: the config says that the weights have {mark}, and the checkpoint has {other}", of.path())
            }
        };
    }
    match scheme {
        Scheme::Plain => return Ok(None),
        Scheme::Fp8(scheme) => floats::read_fp8(of, shape, parts, &scheme),
        Scheme::Gptq(scheme) => gptq::read(of, shape, &scheme),
        Scheme::Awq(scheme) => awq::read(of, shape, &scheme),
        Scheme::Packed(scheme) => compressed::read_packed(of, shape, &scheme),
        Scheme::Int8(scheme) => compressed::read_bytes(of, shape, &scheme),
        Scheme::Nvfp4(kind) => floats::read_nvfp4(of, shape, kind),
        Scheme::Mxfp4 => floats::read_mxfp4(of, shape),
        Scheme::Mxfp8 => floats::read_mxfp8(of, shape),
    }
    .map(Some)
}
