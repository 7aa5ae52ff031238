//! Sequences of one length, whose position goes from call to call.

use crate::body::{Body, CHUNK};
use crate::layer::Step;
use crate::prompt::{Prompt, Wanted};
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
        self.rows(body, x, past, Wanted::All)
    }

    /// The last token of each sequence alone: (sequences, hidden).
    pub fn last(&mut self, body: &Body, x: &Tensor, past: usize) -> Result<Tensor> {
        self.rows(body, x, past, Wanted::Last)?.squeeze(1)
    }

    fn rows(&mut self, body: &Body, x: &Tensor, past: usize, wanted: Wanted) -> Result<Tensor> {
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
        let result = store.reserve(0, past + tokens).and_then(|()| match tokens {
            1 => Self::step(body, x, past, &store),
            _ => Self::prompts(body, x, past, wanted, &store),
        });
        self.store = Some(Arc::new(store));
        self.rows = if result.is_ok() { past + tokens } else { past };
        result
    }

    fn step(body: &Body, x: &Tensor, past: usize, store: &Store) -> Result<Tensor> {
        let (sequences, device) = (x.dim(0)?, x.device());
        let list = |number: usize| Tensor::full(number as u32, sequences, device);
        let slots = Tensor::arange(0, sequences as u32, device)?;
        let scratch = body.scratch(sequences)?;
        let step = Step { positions: &list(past)?, lengths: &list(past + 1)?, slots: &slots };
        body.step(&x.squeeze(1)?, step, store, &scratch)?;
        scratch.x.unsqueeze(1)
    }

    fn prompts(body: &Body, x: &Tensor, past: usize, wanted: Wanted, store: &Store) -> Result<Tensor> {
        let (sequences, tokens, _) = x.dims3()?;
        let scratch = body.scratch(tokens.min(CHUNK))?;
        let mut all = vec![];
        for slot in 0..sequences {
            let (x, (prompt, _)) = (x.get(slot)?, Prompt::new(slot, [past, tokens], &[], x.device())?);
            let mut of_slot = vec![];
            for first in (0..tokens).step_by(CHUNK) {
                let count = CHUNK.min(tokens - first);
                let (scratch, is_last) = (scratch.first(count)?, first + count == tokens);
                let wanted = if wanted == Wanted::Last && !is_last { Wanted::None } else { wanted };
                body.prompt(&x.narrow(0, first, count)?, &prompt.part(first, count)?, wanted, store, &scratch)?;
                match wanted {
                    Wanted::All => of_slot.push(scratch.x.copy()?),
                    Wanted::Last => of_slot.push(scratch.x.narrow(0, count - 1, 1)?.copy()?),
                    Wanted::None => {}
                }
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
