//! Experts of a rank.

use candle::{Result, Tensor};
use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg};
use std::ops::Range;

/// A rank's part of a layer of experts: `make` makes the layer of the rank's `own`, from their rows of the router.
pub(super) fn of_rank(
    own: &Range<usize>,
    router: Tensor,
    of: &MoeCfg,
    make: impl FnOnce(Tensor, &MoeCfg) -> Result<FusedMoe>,
) -> Result<FusedMoe> {
    let of_own = MoeCfg { num_experts: own.len(), ..of.clone() };
    make(router.narrow(0, own.start, own.len())?, &of_own)?.among(router, own.start)
}
