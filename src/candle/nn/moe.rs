//! Products of experts, with the names, signatures and shapes of `candle_nn::moe`.
//!
//! In candle such a layer needs `cuda` and 16-bit tensors. Here the layer runs on the CPU, too, and honours start offsets and strides of
//! all tensors, which candle's `moe_gemm` ignores.

use super::super::experts::Experts;
use ::candle::{Result, Tensor};

/// The product of each token with the weights of the token's experts.
///
/// `sorted_token_ids` and `experts_ids` are lists of `tokens * topk` numbers in u32. Entry i stands for the pair
/// `p = sorted_token_ids[i]` of a token and one of its experts, `experts_ids[i]`. Entries are sorted by expert. Without `topk_weights`, row p of
/// the result is row `p / topk` of the input times the expert's weights. With `topk_weights`, of `tokens * topk` numbers in f32, row p of the
/// result is row p of the input times the expert's weights, times weight p.
///
/// - `input`: (tokens, k) without `topk_weights`, (tokens * topk, k) with `topk_weights`; f16, bf16 or f32
/// - `weights`: (experts, n, k), in the input's type
/// - result: (tokens * topk, n), in the input's type; sums are in f32
///
/// `is_prefill` changes nothing: the kernel is chosen by the numbers of tokens and experts. No gradient passes. On a GPU a row of the result that no
/// entry names, or whose expert does not exist, has no defined content.
///
/// ```
/// use candle::{Device, Tensor};
/// use candle_tilegemm::nn::moe::moe_gemm;
///
/// let dev = &Device::Cpu;
/// let x = Tensor::new(&[[1f32, 2.], [3., 4.]], dev)?;
/// let weights = Tensor::new(&[[[1f32, 0.]], [[0., 1.]], [[1., 1.]]], dev)?; // 3 experts, n = 1
/// // Token 0 chooses experts 2 and 0 (pairs 0 and 1), token 1 experts 1 and 2 (pairs 2 and 3).
/// let pairs = Tensor::new(&[1u32, 2, 0, 3], dev)?;
/// let experts = Tensor::new(&[0u32, 1, 2, 2], dev)?;
/// let y = moe_gemm(&x, &weights, &None, &pairs, &experts, 2, true)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[3.], [1.], [4.], [7.]]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Where shapes, types or devices do not fit, and where no kernel of this build runs the product.
pub fn moe_gemm(
    input: &Tensor,
    weights: &Tensor,
    topk_weights: &Option<Tensor>,
    sorted_token_ids: &Tensor,
    experts_ids: &Tensor,
    topk: usize,
    is_prefill: bool,
) -> Result<Tensor> {
    let _ = is_prefill;
    let pairs_per_row = if topk_weights.is_some() { 1 } else { topk };
    Experts { pairs: sorted_token_ids, groups: experts_ids, scales: topk_weights.as_ref(), pairs_per_row }
        .forward(input, weights)
}
