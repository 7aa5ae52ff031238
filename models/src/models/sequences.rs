//! Sequences of one length, whose position goes from call to call.

use crate::body::{Body, CHUNK};
use crate::store::Store;
use candle::{bail, Result, Tensor};
use std::sync::Arc;

/// The cache of a model with candle_transformers' signatures. A clone has the same content, in memory of its own from the next call on.
#[derive(Debug, Clone, Default)]
pub(super) struct Sequences {
    store: Option<Arc<Store>>,
    /// The positions that each sequence has.
    rows: usize,
}

impl Sequences {
    /// New tokens of all sequences, (sequences, tokens, hidden), at `past` and after: (sequences, tokens, hidden) before the last norm.
    pub fn forward(&mut self, body: &Body, x: &Tensor, past: usize) -> Result<Tensor> {
        let (sequences, tokens, _) = x.dims3()?;
        if past > self.rows {
            bail!(
                "a model at position {past}, whose cache has {} positions; expected those before, or start at 0",
                self.rows
            );
        }
        let mut store = match self.store.take() {
            Some(store) if store.sizes()[0] == sequences => match Arc::try_unwrap(store) {
                Ok(store) => store,
                Err(shared) => shared.copy()?,
            },
            _ if past > 0 => {
                bail!("a batch of {sequences} at position {past}, which the cache was not made for; start at 0")
            }
            _ => body.store(sequences, None, body.dtype())?,
        };
        let result = store.reserve(0, past + tokens).and_then(|()| Self::through(body, x, past, &store));
        self.store = Some(Arc::new(store));
        self.rows = if result.is_ok() { past + tokens } else { past };
        result
    }

    fn through(body: &Body, x: &Tensor, past: usize, store: &Store) -> Result<Tensor> {
        let (sequences, tokens, _) = x.dims3()?;
        if tokens == 1 {
            let list = |number: usize| Tensor::full(number as u32, sequences, x.device());
            let slots = Tensor::arange(0, sequences as u32, x.device())?;
            let scratch = body.scratch(sequences)?;
            body.step(&x.squeeze(1)?, [&list(past)?, &list(past + 1)?, &slots], store, &scratch)?;
            return scratch.x.unsqueeze(1);
        }
        let mut all = vec![];
        for slot in 0..sequences {
            let x = x.get(slot)?;
            let mut of_slot = vec![];
            for first in (0..tokens).step_by(CHUNK) {
                let chunk = x.narrow(0, first, CHUNK.min(tokens - first))?;
                of_slot.push(body.prompt(&chunk, slot, past + first, store)?);
            }
            all.push(Tensor::cat(&of_slot, 0)?);
        }
        Tensor::stack(&all, 0)
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The rows of tokens, (sequences, tokens) to (sequences, tokens, hidden).
pub(super) fn embed(body: &Body, tokens: &Tensor) -> Result<Tensor> {
    let (sequences, count) = tokens.dims2()?;
    body.table.rows(&tokens.flatten_all()?.contiguous()?)?.reshape((sequences, count, ()))
}

/// The last token of each sequence: (sequences, tokens, hidden) to (sequences, hidden).
pub(super) fn last(x: &Tensor) -> Result<Tensor> {
    let (_, tokens, _) = x.dims3()?;
    x.narrow(1, tokens - 1, 1)?.squeeze(1)?.contiguous()
}
