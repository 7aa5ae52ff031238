//! What a config says of a module's weights.

use ::candle::{bail, Result};

/// How a module's weights are stored.
///
/// ```
/// use candle_tilegemm::nn::narrow::{Awq, Scheme};
/// use candle_tilegemm::nn::QuantizationConfig;
///
/// let config = r#"{"quant_method":"awq","bits":4,"group_size":128,"zero_point":true,"version":"gemm","modules_to_not_convert":["lm_head"]}"#;
/// let config = QuantizationConfig::from_json(config)?;
/// assert_eq!(config.scheme("model.layers.0.mlp.up_proj"), Scheme::Awq(Awq { group: Some(128), zeros: true }));
/// assert_eq!(config.scheme("lm_head"), Scheme::Plain);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheme {
    /// 16 or 32 bits, as in every checkpoint.
    Plain,
    /// 8-bit floating point.
    Fp8(Fp8),
    /// GPTQ: `qweight`, `qzeros`, `scales`, `g_idx`.
    Gptq(Gptq),
    /// AWQ, version gemm: `qweight`, `qzeros`, `scales`.
    Awq(Awq),
    /// compressed-tensors, integers in words: `weight_packed`.
    Packed(Integers),
    /// compressed-tensors, integers of 8 bits in `weight`.
    Int8(Integers),
    /// 4-bit floating point with a factor in e4m3 for 16 numbers, and one of the whole.
    Nvfp4(Nvfp4),
    /// 4-bit floating point with a power of two for 32 numbers (OCP MX): `weight_packed`, `weight_scale`.
    Mxfp4,
    /// 8-bit floating point with a power of two for 32 numbers (OCP MX): `weight`, `weight_scale`.
    Mxfp8,
}

/// The weights that share a factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// All.
    Tensor,
    /// Those of a row.
    Channel,
    /// So many of a row.
    Group(usize),
    /// Rows and columns of a block.
    Block([usize; 2]),
}

impl Granularity {
    /// Rows and columns of (n, k) weights that share a factor.
    pub(super) fn shared(self, [n, k]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Tensor => [n.max(1), k.max(1)],
            Self::Channel => [1, k.max(1)],
            Self::Group(group) => [1, group],
            Self::Block(block) => block,
        }
    }
}

/// How the activations of a product are quantised, if they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// They stay as they come.
    #[default]
    Wide,
    /// To 8 bits with factors of their own numbers.
    Dynamic,
    /// To 8 bits with the factor `input_scale` of the checkpoint.
    Static,
}

/// 8-bit floating point: `weight` and `weight_scale` or `weight_scale_inv`, both of which multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fp8 {
    /// The weights that share a factor; where it is not known, the factors' shape says it.
    pub granularity: Option<Granularity>,
    /// What the config allows for activations.
    pub activations: Activations,
}

/// A config of GPTQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gptq {
    /// Bits of a code: 2, 3, 4 or 8.
    pub bits: usize,
    /// Numbers of a row that share a factor; without it all do.
    pub group: Option<usize>,
    /// Whether zero points may be missing.
    pub symmetric: bool,
    /// How zero points are stored.
    pub zeros: GptqZeros,
}

/// How GPTQ's zero points are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GptqZeros {
    /// Less 1, each for itself: 0 as the largest code (version 1, auto-gptq).
    LessOne,
    /// Less 1, all of a word at once: a zero point of 0 borrows from the next one (version 1 by gptqmodel). In 3 bits as [`LessOne`](Self::LessOne).
    LessOneBorrowed,
    /// As they are (version 2).
    AsTheyAre,
}

/// A config of AWQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awq {
    /// Numbers of a row that share a factor; without it all do.
    pub group: Option<usize>,
    /// Whether there are zero points.
    pub zeros: bool,
}

/// Integers of compressed-tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Integers {
    /// Bits of an integer: 4 or 8.
    pub bits: usize,
    /// The weights that share a factor.
    pub granularity: Granularity,
    /// Whether there are no zero points.
    pub symmetric: bool,
    /// What the config allows for activations.
    pub activations: Activations,
}

/// Names and meaning of NVFP4's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nvfp4 {
    /// `weight_packed`, `weight_scale`, and `weight_global_scale`, which divides.
    CompressedTensors,
    /// `weight`, `weight_scale`, and `weight_scale_2`, which multiplies.
    ModelOpt,
}

impl Scheme {
    /// Refuses what no reader has, of schemes that no config made.
    pub(super) fn checked(&self, path: &str) -> Result<()> {
        let (bits, read, granularity) = match *self {
            Self::Fp8(of) => (8, &[8][..], of.granularity),
            Self::Gptq(of) => (of.bits, &[2, 3, 4, 8][..], of.group.map(Granularity::Group)),
            Self::Awq(of) => (4, &[4][..], of.group.map(Granularity::Group)),
            Self::Packed(of) => (of.bits, &[4, 8][..], Some(of.granularity)),
            Self::Int8(of) => (of.bits, &[8][..], Some(of.granularity)),
            _ => return Ok(()),
        };
        if !read.contains(&bits) || granularity.is_some_and(|of| of.shared([1, 1]).contains(&0)) {
            bail!("{path}: {self:?}; expected {read:?} bits, and at least one number in a group or a block");
        }
        Ok(())
    }

    /// What the config allows for activations.
    pub fn activations(&self) -> Activations {
        match self {
            Self::Fp8(scheme) => scheme.activations,
            Self::Packed(scheme) | Self::Int8(scheme) => scheme.activations,
            _ => Activations::Wide,
        }
    }

    /// The same weights beside activations as they come.
    pub(super) fn with_wide_activations(mut self) -> Self {
        match &mut self {
            Self::Fp8(scheme) => scheme.activations = Activations::Wide,
            Self::Packed(scheme) | Self::Int8(scheme) => scheme.activations = Activations::Wide,
            _ => {}
        }
        self
    }
}
