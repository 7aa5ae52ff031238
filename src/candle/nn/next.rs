//! What a choice of the next token reads and changes.

use ::candle::Tensor;

/// What a choice reads and changes beside the logits: tensors on their device, of one number for each sequence.
#[derive(Debug, Clone, Copy)]
pub struct Next<'a> {
    /// In u32: the chosen tokens.
    pub tokens: &'a Tensor,
    /// In u32: of the tokens that made the logits; each grows by 1.
    pub positions: &'a Tensor,
    /// In u32: as [`attention::decode`](super::attention::decode) reads them; each grows by 1.
    pub lengths: Option<&'a Tensor>,
    /// (sequences, positions) in u32: the tokens of each sequence by position, which the repetition penalty looks at. A chosen token is written at its position.
    pub history: Option<&'a Tensor>,
    /// In u32: nothing changes for a sequence whose slot is 2^31 and above, such as `u32::MAX`.
    pub slots: Option<&'a Tensor>,
    /// One number in u32: becomes 1 + s for a sequence s without a number above -inf, and stays as it is otherwise.
    pub error: Option<&'a Tensor>,
}

impl<'a> Next<'a> {
    /// Tokens and positions alone.
    pub fn new(tokens: &'a Tensor, positions: &'a Tensor) -> Self {
        Self { tokens, positions, lengths: None, history: None, slots: None, error: None }
    }
}
