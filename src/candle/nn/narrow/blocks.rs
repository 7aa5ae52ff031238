//! What a rank's part of a module's weights must not cut.

use super::awq;
use super::bits::codes_of_whole_words;
use super::compressed::group_order;
use super::config::QuantizationConfig;
use super::floats::{factors_of_blocks, MX_GROUP, NV_GROUP};
use super::gptq::order;
use super::scheme::{Granularity, Scheme};
use super::tensors::Module;
use ::candle::Result;
use candle_nn::VarBuilder;

impl QuantizationConfig {
    /// Whether a rank's part of a module's (n, k) weights cuts a block, a group or a word of them, or splits columns in act order: then reading it is an error.
    /// `vb` is at the path of the module.
    ///
    /// # Errors
    /// Missing tensors, and an order of columns that does not fit the weights.
    pub fn cuts(&self, whole: [usize; 2], part: [usize; 2], vb: &VarBuilder) -> Result<bool> {
        if !self.is_narrow(vb) {
            return Ok(false);
        }
        let [words, shared] = blocks(&Module::new(vb), whole, self.scheme(&vb.prefix()))?;
        let is_cut = |i: usize| {
            let is_within = shared[i] >= whole[i]; // all parts have the factor
            !part[i].is_multiple_of(words[i]) || !(is_within || part[i].is_multiple_of(shared[i]))
        };
        Ok((0..2).any(|i| part[i] != whole[i] && is_cut(i)))
    }
}

/// Rows and columns of (n, k) weights that lie in one word, where columns in act order are one, and those that share a factor.
fn blocks(of: &Module, [n, k]: [usize; 2], scheme: Scheme) -> Result<[[usize; 2]; 2]> {
    Ok(match scheme {
        Scheme::Plain => [[1, 1]; 2],
        Scheme::Fp8(scheme) => [[1, 1], factors_of_blocks(of, n, scheme.granularity)?.unwrap_or([1, 1])],
        Scheme::Gptq(scheme) => {
            let (words, group) = (codes_of_whole_words(scheme.bits), scheme.group.unwrap_or(k).max(1));
            let in_order = of.has("g_idx") && order(&of.integers("g_idx")?, k, group)?.is_some();
            let of_zeros = if of.has("qzeros") { words } else { 1 };
            [[of_zeros, if in_order { k } else { words }], [1, group]]
        }
        Scheme::Awq(scheme) => [[awq::CODES, 1], [1, scheme.group.unwrap_or(k)]],
        Scheme::Packed(scheme) => {
            let (words, shared) = (codes_of_whole_words(scheme.bits), scheme.granularity.shared([n, k]));
            let in_order =
                of.has("weight_g_idx") && group_order(&of.integers("weight_g_idx")?, k, shared[1])?.is_some();
            let has_zeros = !matches!(scheme.granularity, Granularity::Tensor | Granularity::Block(_));
            let of_zeros = if has_zeros && !scheme.symmetric { words } else { 1 };
            [[of_zeros, if in_order { k } else { words }], shared]
        }
        Scheme::Int8(scheme) => [[1, 1], scheme.granularity.shared([n, k])],
        Scheme::Nvfp4(_) => [[1, 2], [1, NV_GROUP]],
        Scheme::Mxfp4 => [[1, 2], [1, MX_GROUP]],
        Scheme::Mxfp8 => [[1, 1], [1, MX_GROUP]],
    })
}
