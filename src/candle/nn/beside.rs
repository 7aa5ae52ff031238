//! What the output of a layer meets.

use crate::candle::op::Gemm;
use ::candle::Tensor;

/// What the output of a layer meets.
#[derive(Clone, Copy)]
pub(super) enum Beside<'a> {
    Nothing,
    Residual(&'a Tensor),
    Up(&'a Tensor),
}

impl<'a> Beside<'a> {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Residual(_) => "the residual",
            Self::Up(_) => "the gated tensor",
        }
    }

    pub fn tensor(self) -> Option<&'a Tensor> {
        match self {
            Self::Nothing => None,
            Self::Residual(tensor) | Self::Up(tensor) => Some(tensor),
        }
    }

    /// Whether the output makes gates of the tensor.
    #[cfg(feature = "cuda")]
    pub fn is_gated(self) -> bool {
        matches!(self, Self::Up(_))
    }

    /// The same beside another tensor.
    pub fn with<'b>(self, tensor: Option<&'b Tensor>) -> Beside<'b> {
        match (self, tensor) {
            (Self::Residual(_), Some(tensor)) => Beside::Residual(tensor),
            (Self::Up(_), Some(tensor)) => Beside::Up(tensor),
            _ => Beside::Nothing,
        }
    }

    /// The product with what it meets.
    pub fn after(self, gemm: Gemm) -> Gemm {
        match self {
            Self::Nothing => gemm,
            Self::Residual(residual) => gemm.residual(residual),
            Self::Up(up) => gemm.gated(up),
        }
    }
}
