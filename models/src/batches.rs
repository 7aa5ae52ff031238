//! The batches of a cache, and the step that runs already.

use crate::batch::{Batch, Kind, Row};
use crate::decoder::Decoder;
use crate::mail::Letter;
use crate::rows::padded;
use crate::store::Store;
use candle::{Error, Result, Tensor};
use candle_tilegemm::internal::settings;
use candle_tilegemm::nn::Sampling;
use std::sync::Arc;

/// Batches with the addresses of one cache and of one decoder's weights.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    all: Vec<Batch>,
    /// Whose weights they are.
    weights: Option<Arc<()>>,
    loaded: Option<Loaded>,
}

/// What the lists of a batch on the device hold.
#[derive(Debug)]
struct Loaded {
    /// The place of the batch.
    batch: usize,
    /// The slot of each sequence; none where the sequence has changed since.
    slots: Vec<Option<usize>>,
    settings: Vec<Sampling>,
    /// Of the step that was launched before anybody asked for it.
    ahead: Option<Letter>,
}

/// A step of some sequences that was launched.
#[derive(Debug)]
pub(crate) struct Launched {
    batch: usize,
    slots: Vec<Option<usize>>,
    letter: Letter,
}

/// What came of a step.
#[derive(Debug)]
pub(crate) enum Told {
    /// Slots and their tokens.
    Tokens(Vec<(usize, u32)>),
    /// The logits of a sequence have no number above -inf. None: a sequence that has changed since. Others may have failed, too.
    Failed(Option<usize>),
}

impl Batches {
    /// Forgets everything unless the weights are these.
    pub fn bind(&mut self, decoder: &Decoder) {
        if self.weights.as_ref().is_none_or(|weights| !Arc::ptr_eq(weights, &decoder.id)) {
            self.clear();
            self.weights = Some(decoder.id.clone());
        }
    }

    /// Drops the batches: the addresses of the cache change.
    pub fn clear(&mut self) {
        self.loaded = None;
        self.all.clear();
    }

    pub fn graphs(&self) -> usize {
        self.all.iter().filter(|batch| batch.is_captured()).count()
    }

    /// A sequence changes otherwise than by a step.
    pub fn forget(&mut self, slot: usize) {
        let slots = self.loaded.iter_mut().flat_map(|loaded| &mut loaded.slots);
        slots.filter(|of| **of == Some(slot)).for_each(|of| *of = None);
    }

    /// All sequences change.
    pub fn forget_all(&mut self) {
        self.loaded = None;
    }

    /// The step that runs already, where it is one of these sequences. It may have others, which count no more.
    pub fn take_ahead(&mut self, active: &[usize], settings: &[Sampling]) -> Option<Launched> {
        let loaded = self.loaded.as_mut()?;
        let has = |(slot, sampling): (&usize, &Sampling)| {
            let place = loaded.slots.iter().position(|of| *of == Some(*slot));
            place.is_some_and(|place| loaded.settings[place] == *sampling)
        };
        if !active.iter().zip(settings).all(has) {
            // Its lists have moved on.
            self.loaded = None;
            return None;
        }
        let letter = loaded.ahead.take()?;
        Some(Launched { batch: loaded.batch, slots: loaded.slots.clone(), letter })
    }

    /// Launches the next step of these sequences, the first after what was read. `known`: logits of those that a prompt has left.
    pub fn launch(
        &mut self,
        sequences: &[Row],
        known: &[Option<Tensor>],
        decoder: &Decoder,
        store: &Store,
    ) -> Result<Launched> {
        if !self.is_loaded(sequences) {
            self.load(sequences, decoder, store)?;
        }
        self.launched(|batch| match known.iter().all(Option::is_none) {
            true => batch.launch(decoder, store),
            false => batch.open(sequences, known, decoder, store),
        })
    }

    /// Launches one more step of the sequences, on a GPU.
    pub fn run_ahead(&mut self, active: &[usize], decoder: &Decoder, store: &Store) -> Result<()> {
        let is_of = |loaded: &Loaded| loaded.slots.iter().copied().eq(active.iter().map(|slot| Some(*slot)));
        if !decoder.device().is_cuda() || !self.loaded.as_ref().is_some_and(is_of) {
            return Ok(());
        }
        let launched = self.launched(|batch| batch.launch(decoder, store))?;
        if let Some(loaded) = &mut self.loaded {
            loaded.ahead = Some(launched.letter);
        }
        Ok(())
    }

    /// Waits for a step.
    pub fn read(&self, launched: Launched) -> Result<Told> {
        let (failed, tokens) = self.all[launched.batch].read(launched.letter)?;
        let slots = launched.slots.iter();
        Ok(match failed {
            Some(row) => Told::Failed(launched.slots[row]),
            None => Told::Tokens(slots.zip(tokens).filter_map(|(slot, token)| Some(((*slot)?, token))).collect()),
        })
    }

    fn launched(&mut self, launch: impl FnOnce(&mut Batch) -> Result<Letter>) -> Result<Launched> {
        // After an error nobody knows what the lists hold.
        let Some(loaded) = self.loaded.take() else { candle::bail!("Step: no sequences") };
        let letter = launch(&mut self.all[loaded.batch])?;
        let launched = Launched { batch: loaded.batch, slots: loaded.slots.clone(), letter };
        self.loaded = Some(loaded);
        Ok(launched)
    }

    fn is_loaded(&self, sequences: &[Row]) -> bool {
        self.loaded.as_ref().is_some_and(|loaded| {
            let slots = loaded.slots.iter().copied().eq(sequences.iter().map(|row| Some(row.slot)));
            slots && loaded.settings.iter().eq(sequences.iter().map(|row| &row.sampling))
        })
    }

    fn load(&mut self, sequences: &[Row], decoder: &Decoder, store: &Store) -> Result<()> {
        self.loaded = None;
        let settings: Vec<Sampling> = sequences.iter().map(|row| row.sampling).collect();
        let (kind, rows) = (Kind::of(&settings), padded(sequences.len(), &decoder.device()));
        let batch = match self.all.iter().position(|batch| batch.is(kind, rows)) {
            Some(batch) => batch,
            None => {
                let captures = settings::graphs().map_err(Error::wrap)?;
                let [_, _, capacity, _] = store.sizes();
                self.all.push(Batch::new(kind, rows, decoder, capacity, captures)?);
                self.all.len() - 1
            }
        };
        self.all[batch].load(sequences)?;
        let slots = sequences.iter().map(|row| Some(row.slot)).collect();
        self.loaded = Some(Loaded { batch, slots, settings, ahead: None });
        Ok(())
    }
}
