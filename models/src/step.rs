//! The next token of every sequence.

use crate::batch::{Kind, Row};
use crate::batches::{Launched, Told};
use crate::cache::{Cache, Next};
use crate::decoder::Decoder;
use crate::sampler::Sampler;
use candle::{bail, Result, Tensor};
use candle_tilegemm::nn::Sampling;

/// Chooses the next token of every sequence, again and again. [`Decoder::step`] makes one.
///
/// Sequences may have different lengths, and one does not change what another gets, but for the rounding of products with more rows. A sequence takes part
/// from its first prompt on until an end token of the model is chosen for it. Its tokens are in the cache whenever [`next`](Self::next) returns, so a following
/// prompt, such as a chat's next turn, goes on after the chosen tokens, the end token included.
///
/// On a GPU a step is a CUDA graph from its third call on, one for each number of sequences from 1 to 8, 16, 32 and 64: 9 to 15 sequences run as 16. The graphs
/// stay with the cache, for following steps of the same decoder, until it grows. [`next`](Self::next) returns while the step after already runs; what an end
/// token, a prompt or [`Cache::truncate`] makes of it is as if it had not run. `TILEGEMM_GRAPHS=off` launches kernels one by one, with equal results to the bit.
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
}

impl Decoder {
    /// Starts to choose tokens for all sequences that have tokens and have not ended.
    ///
    /// # Errors
    /// A cache that was made for another decoder, a sampler without settings for a slot, and one that draws from a vocabulary that is too large for it
    /// ([`Config::check_device`](crate::Config::check_device)).
    pub fn step<'a>(&'a self, cache: &'a mut Cache, sampler: Sampler) -> Result<Step<'a>> {
        Step::new(self, cache, sampler)
    }
}

impl<'a> Step<'a> {
    fn new(decoder: &'a Decoder, cache: &'a mut Cache, sampler: Sampler) -> Result<Self> {
        cache.check_of(decoder.config())?;
        cache.batches.bind(decoder);
        let step = Self { decoder, cache, sampler };
        let settings = step.sampler.of(&step.active())?;
        decoder.config().check_device(decoder.device().is_cuda(), Kind::of(&settings) != Kind::Greedy)?;
        Ok(step)
    }

    /// The next token of each slot; none for a slot that is empty or has ended.
    ///
    /// # Errors
    /// A sequence that is as long as the model's longest (before anything runs), a device without room for longer ones, and logits without a number above -inf.
    /// No sequence has changed then.
    #[allow(clippy::should_implement_trait)] // an iterator would go on after an error
    pub fn next(&mut self) -> Result<Vec<Option<u32>>> {
        let mut chosen = vec![None; self.cache.sequences()];
        let active = self.active();
        if active.is_empty() {
            return Ok(chosen);
        }
        let settings = self.sampler.of(&active)?;
        for (slot, token) in self.tokens(&active, &settings)? {
            if active.contains(&slot) {
                let sequence = &mut self.cache.slots[slot];
                sequence.tokens.push(token);
                sequence.next = Next::Token;
                sequence.has_ended = self.decoder.config().end_tokens.contains(&token);
                chosen[slot] = Some(token);
            }
        }
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

    /// The next tokens of these slots, and of some that count no more.
    fn tokens(&mut self, active: &[usize], settings: &[Sampling]) -> Result<Vec<(usize, u32)>> {
        loop {
            let launched = match self.cache.batches.take_ahead(active, settings) {
                Some(launched) => launched,
                None => self.launch(active, settings)?,
            };
            // The next step has room for its tokens without a larger cache, whose addresses are others.
            let longest = active.iter().map(|slot| self.cache.slots[*slot].tokens.len()).max();
            if longest.is_some_and(|tokens| tokens + 2 <= self.cache.capacity()) {
                self.cache.batches.run_ahead(active, self.decoder, &self.cache.store)?;
            }
            let slot = match self.cache.batches.read(launched)? {
                Told::Tokens(tokens) => return Ok(tokens),
                Told::Failed(slot) => slot,
            };
            self.cache.batches.forget_all();
            // A sequence that counts no more does not count here either: once more without it.
            if let Some(slot) = slot.filter(|slot| active.contains(slot)) {
                bail!("Step: the logits of slot {slot} have no number above -inf; look for NaN and inf in the weights, or compute in bf16 rather than f16");
            }
        }
    }

    fn launch(&mut self, active: &[usize], settings: &[Sampling]) -> Result<Launched> {
        for &slot in active {
            // The new token has a position, too.
            self.cache.reserve(slot, self.cache.slots[slot].tokens.len() + 1)?;
        }
        let Cache { batches, store, slots } = &mut *self.cache;
        let row = |(&slot, &sampling)| Row { slot, tokens: &slots[slot].tokens, sampling };
        let sequences: Vec<Row> = active.iter().zip(settings).map(row).collect();
        let known = |&slot: &usize| match &slots[slot].next {
            Next::Logits(logits) => Some(logits.clone()),
            Next::Token => None,
        };
        let known: Vec<Option<Tensor>> = active.iter().map(known).collect();
        batches.launch(&sequences, &known, self.decoder, store)
    }
}
