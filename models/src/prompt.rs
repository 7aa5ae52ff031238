//! New tokens of one sequence, and what is asked of them.

use candle::{Device, Result, Tensor};

/// The rows that are asked for. Others go through the last layer as far as the cache needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    All,
    Last,
    None,
}

/// Where tokens of one sequence belong, on the device.
#[derive(Debug, Clone)]
pub(crate) struct Prompt {
    pub slot: usize,
    /// The tokens before them in the cache.
    pub past: usize,
    /// (tokens + 1) in u32. The last number is the length of the sequence with them.
    positions: Tensor,
    /// (tokens) in u32.
    slots: Tensor,
}

impl Prompt {
    /// So many tokens after `past` others, and `more` numbers on the device: one copy takes all there.
    pub fn new(slot: usize, [past, tokens]: [usize; 2], more: &[u32], device: &Device) -> Result<(Self, Tensor)> {
        let positions = past as u32..=(past + tokens) as u32;
        let lists: Vec<u32> = more.iter().copied().chain(positions).chain((0..tokens).map(|_| slot as u32)).collect();
        let lists = Tensor::new(lists, device)?;
        let positions = lists.narrow(0, more.len(), tokens + 1)?;
        let slots = lists.narrow(0, more.len() + tokens + 1, tokens)?;
        Ok((Self { slot, past, positions, slots }, lists.narrow(0, 0, more.len())?))
    }

    /// Some of the tokens.
    pub fn part(&self, first: usize, tokens: usize) -> Result<Self> {
        Ok(Self {
            slot: self.slot,
            past: self.past + first,
            positions: self.positions.narrow(0, first, tokens + 1)?,
            slots: self.slots.narrow(0, first, tokens)?,
        })
    }

    pub fn tokens(&self) -> usize {
        self.slots.elem_count()
    }

    pub fn positions(&self) -> Result<Tensor> {
        self.positions.narrow(0, 0, self.tokens())
    }

    pub fn slots(&self) -> &Tensor {
        &self.slots
    }

    /// The sequence's length with the tokens, and its slot: (1) in u32 each.
    pub fn end(&self) -> Result<[Tensor; 2]> {
        Ok([self.positions.narrow(0, self.tokens(), 1)?, self.slots.narrow(0, 0, 1)?])
    }
}
