//! Narrow weights: fp8, integers of 8 and fewer bits, NVFP4 and MXFP4, from checkpoints as people publish them.
//!
//! A [`QuantizationConfig`] says of each module which [`Scheme`] its weights have. [`linear_quantized`] reads them, in whatever layout a format has, into one form,
//! the [`QuantWeight`]: codes, factors and zero points as kernels read them. [`QuantLinear`] multiplies by it.
//!
//! | format | tensors | codes |
//! |---|---|---|
//! | fp8 | `weight`, `weight_scale` or `weight_scale_inv` (both multiply): one, for each row, for each block, or for each merged part | `F8E4M3` |
//! | GPTQ, versions 1 and 2, of 2, 3, 4 and 8 bits | `qweight`, `qzeros`, `scales`, `g_idx` | `U4`, `U8`, `I8` |
//! | AWQ, gemm | `qweight`, `qzeros`, `scales` | `U4` |
//! | compressed-tensors, pack-quantized, 4 and 8 bits | `weight_packed`, `weight_scale`, `weight_shape`, `weight_zero_point`, `weight_g_idx` | `U4`, `U8`, `I8` |
//! | compressed-tensors, int-quantized, naive-quantized | `weight`, `weight_scale`, `weight_zero_point` | `I8`, `U8` |
//! | compressed-tensors, float-quantized, naive-quantized | `weight`, `weight_scale` | `F8E4M3` |
//! | NVFP4 | `weight_packed`, `weight_scale`, `weight_global_scale` (divides); ModelOpt: `weight`, `weight_scale`, `weight_scale_2` (multiplies) | `E2M1` |
//! | MXFP4, MXFP8 | `weight_packed` or `weight`, `weight_scale`; experts of gpt-oss: `*_blocks`, `*_scales`, `*_bias` | `E2M1`, `F8E4M3` |
//!
//! Tensors come from any `VarBuilder`, whatever its type and device. One that is made by [`Checkpoint`] also has those in I8, and casts no weights that a file has in
//! another type than the format says; other builders cast.

mod awq;
mod bits;
mod blocks;
mod checkpoint;
mod codes;
mod compressed;
mod config;
mod device;
mod eight_bits;
mod experts;
mod floats;
mod gptq;
mod linear;
mod load;
mod quantize;
mod scales;
mod scheme;
mod stack;
mod tensors;
mod weight;

pub use checkpoint::Checkpoint;
pub use codes::Codes;
pub use config::QuantizationConfig;
pub use device::DeviceWeight;
pub use experts::{ExpertGate, QuantExperts};
pub use linear::QuantLinear;
pub use load::{
    linear_fp8, linear_of_scheme, linear_quantized, linear_quantized_no_bias, linear_quantized_parts, linear_rounded,
};
pub use quantize::Quantizer;
pub use scales::{ScaleFormat, Scales};
pub use scheme::{Activations, Awq, Fp8, Gptq, GptqZeros, Granularity, Integers, Nvfp4, Scheme};
pub use weight::QuantWeight;
