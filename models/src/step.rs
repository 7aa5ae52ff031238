//! The next token of every sequence.

use crate::cache::{Cache, Next};
use crate::decoder::Decoder;
use crate::sampler::Sampler;
use candle::{bail, DType, Result, Tensor};
use candle_tilegemm::nn::{self, Sampling};

/// Chooses the next token of every sequence, again and again. [`Decoder::step`] makes one.
///
/// Sequences may have different lengths, and one does not change what another gets, but for the rounding of products with more rows. A sequence takes part
/// from its first prompt on until an end token of the model is chosen for it. Its tokens are in the cache whenever [`next`](Self::next) returns, so a following
/// prompt, such as a chat's next turn, goes on after the chosen tokens, the end token included.
///
/// ```
/// # use candle::{DType, Device};
/// # use candle_nn::{VarBuilder, VarMap};
/// # use candle_tilegemm_models::{Cache, Config, Decoder};
/// # let config = Config::from_json(
/// #     r#"{"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
/// #         "num_attention_heads": 2, "max_position_embeddings": 64}"#,
/// # )?;
/// # let weights = VarMap::new();
/// # let decoder = Decoder::load(&config, VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu))?;
/// use candle_tilegemm::nn::Sampling;
/// use candle_tilegemm_models::Sampler;
///
/// let mut cache = Cache::new(&decoder, 3)?;
/// decoder.prefill(0, &[1, 2, 3], &mut cache)?;
/// decoder.prefill(2, &[4], &mut cache)?;
/// let mut step = decoder.step(&mut cache, Sampler::same(Sampling::new(0.8, 42)))?;
/// for _ in 0..4 {
///     let tokens = step.next()?;
///     assert!(tokens[0].is_some() && tokens[1].is_none() && tokens[2].is_some()); // slot 1 is empty
/// }
/// assert_eq!(cache.tokens(2)?.len(), 5);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug)]
pub struct Step<'a> {
    decoder: &'a Decoder,
    cache: &'a mut Cache,
    sampler: Sampler,
    batch: Option<Batch>,
}

/// Sequences that go through the layers together. What the kernels read of them is on the device, where the choice of tokens moves it on: while the sequences are
/// the same ones, a step reads nothing from the host.
#[derive(Debug)]
struct Batch {
    slots: Vec<usize>,
    /// (sequences) in u32: slots, last tokens, their positions, and positions + 1.
    on_device: [Tensor; 4],
    /// (sequences, capacity) in u32, where a penalty looks at it.
    history: Option<Tensor>,
    sampler: nn::Sampler,
    /// One number in u32.
    error: Tensor,
}

impl Decoder {
    /// Starts to choose tokens for all sequences that have tokens and have not ended.
    ///
    /// # Errors
    /// A cache that was made for another decoder, and a sampler without settings for a slot.
    pub fn step<'a>(&'a self, cache: &'a mut Cache, sampler: Sampler) -> Result<Step<'a>> {
        Step::new(self, cache, sampler)
    }
}

impl<'a> Step<'a> {
    fn new(decoder: &'a Decoder, cache: &'a mut Cache, sampler: Sampler) -> Result<Self> {
        cache.check_of(decoder.config())?;
        let step = Self { decoder, cache, sampler, batch: None };
        step.sampler.of(&step.active())?;
        Ok(step)
    }

    /// The next token of each slot; none for a slot that is empty or has ended.
    ///
    /// # Errors
    /// A sequence that is as long as the model's longest (before anything runs), a device without room for longer ones, and logits without a number above -inf.
    /// No sequence has changed then.
    #[allow(clippy::should_implement_trait)] // an iterator would go on after an error
    pub fn next(&mut self) -> Result<Vec<Option<u32>>> {
        let active = self.active();
        let mut chosen = vec![None; self.cache.sequences()];
        if active.is_empty() {
            return Ok(chosen);
        }
        let capacity = self.cache.capacity();
        for &slot in &active {
            // The new token has a position, too.
            self.cache.store.reserve(slot, self.cache.slots[slot].tokens.len() + 1)?;
        }
        let batch = match self.batch.take() {
            Some(batch) if batch.slots == active && (self.cache.capacity() == capacity || batch.history.is_none()) => {
                batch
            }
            _ => Batch::new(&active, &self.sampler, self.decoder, self.cache)?,
        };
        let logits = self.logits(&batch)?;
        let [slots, tokens, positions, lengths] = &batch.on_device;
        let next = nn::Next {
            tokens,
            positions,
            lengths: Some(lengths),
            history: batch.history.as_ref(),
            slots: Some(slots),
            error: Some(&batch.error),
        };
        batch.sampler.choose(&logits, &next)?;
        let failed = batch.error.to_vec1::<u32>()?.first().copied().unwrap_or(0);
        if failed > 0 {
            let slot = active[failed as usize - 1];
            bail!("Step: the logits of slot {slot} have no number above -inf; look for NaN and inf in the weights, or compute in bf16 rather than f16");
        }
        let end_tokens = &self.decoder.config().end_tokens;
        for (&slot, token) in active.iter().zip(tokens.to_vec1::<u32>()?) {
            let sequence = &mut self.cache.slots[slot];
            sequence.tokens.push(token);
            sequence.next = Next::Token;
            sequence.has_ended = end_tokens.contains(&token);
            chosen[slot] = Some(token);
        }
        self.batch = Some(batch);
        Ok(chosen)
    }

    /// The sequences.
    pub fn cache(&self) -> &Cache {
        self.cache
    }

    /// Slots with tokens that have not ended.
    fn active(&self) -> Vec<usize> {
        let is_active = |slot: &usize| {
            let slot = &self.cache.slots[*slot];
            !slot.tokens.is_empty() && !slot.has_ended
        };
        (0..self.cache.sequences()).filter(is_active).collect()
    }

    /// The logits of each sequence's last token, (sequences, vocabulary).
    fn logits(&self, batch: &Batch) -> Result<Tensor> {
        let known: Vec<Option<Tensor>> = batch.slots.iter().map(|slot| self.known(*slot)).collect();
        if known.iter().all(Option::is_none) {
            return self.through(&batch.on_device);
        }
        // After a prompt: the logits of some sequences are there.
        let late: Vec<usize> = (0..known.len()).filter(|i| known[*i].is_none()).collect();
        let computed = match late.is_empty() {
            true => None,
            false => {
                let slots: Vec<usize> = late.iter().map(|i| batch.slots[*i]).collect();
                Some(self.through(&lists(&slots, self.decoder, self.cache)?)?)
            }
        };
        let mut rows = vec![];
        for (i, known) in known.into_iter().enumerate() {
            match (known, &computed, late.iter().position(|late| *late == i)) {
                (Some(logits), _, _) => rows.push(logits),
                (None, Some(computed), Some(row)) => rows.push(computed.narrow(0, row, 1)?),
                _ => bail!("Step: slot {} has no logits", batch.slots[i]),
            }
        }
        Tensor::cat(&rows, 0)?.contiguous()
    }

    fn known(&self, slot: usize) -> Option<Tensor> {
        match &self.cache.slots[slot].next {
            Next::Logits(logits) => Some(logits.clone()),
            Next::Token => None,
        }
    }

    fn through(&self, [slots, tokens, positions, lengths]: &[Tensor; 4]) -> Result<Tensor> {
        let x = self.decoder.body.table.rows(tokens)?;
        let x = self.decoder.body.step(x, [positions, lengths, slots], &self.cache.store)?;
        self.decoder.logits(&x)
    }
}

/// Slots, last tokens, their positions, and positions + 1, as the host knows them.
fn lists(slots: &[usize], decoder: &Decoder, cache: &Cache) -> Result<[Tensor; 4]> {
    let of = |number: &dyn Fn(usize) -> u32| {
        let numbers: Vec<u32> = slots.iter().map(|slot| number(*slot)).collect();
        Tensor::new(numbers, &decoder.device())
    };
    let tokens = |slot: usize| &cache.slots[slot].tokens;
    Ok([
        of(&|slot| slot as u32)?,
        of(&|slot| tokens(slot).last().copied().unwrap_or(0))?,
        of(&|slot| tokens(slot).len() as u32 - 1)?,
        of(&|slot| tokens(slot).len() as u32)?,
    ])
}

impl Batch {
    fn new(slots: &[usize], sampler: &Sampler, decoder: &Decoder, cache: &Cache) -> Result<Self> {
        let (device, vocabulary) = (decoder.device(), decoder.config().vocabulary);
        let settings = sampler.of(slots)?;
        let penalises = |sampling: &Sampling| sampling.repetition_penalty != 1.0 && sampling.repetition_penalty > 0.0;
        let is_greedy = |sampling: &Sampling| sampling.temperature <= 0.0 && !penalises(sampling);
        let history = if settings.iter().any(penalises) {
            let capacity = cache.capacity();
            let mut tokens = vec![0u32; slots.len() * capacity];
            for (row, slot) in tokens.chunks_mut(capacity).zip(slots) {
                let of = &cache.slots[*slot].tokens;
                row[..of.len()].copy_from_slice(of);
            }
            Some(Tensor::from_vec(tokens, (slots.len(), capacity), &device)?)
        } else {
            None
        };
        Ok(Self {
            slots: slots.to_vec(),
            on_device: lists(slots, decoder, cache)?,
            history,
            sampler: if settings.iter().all(is_greedy) {
                nn::Sampler::greedy(slots.len(), vocabulary, &device)?
            } else {
                nn::Sampler::new(&settings, vocabulary, &device)?
            },
            error: Tensor::zeros(1, DType::U32, &device)?,
        })
    }
}
