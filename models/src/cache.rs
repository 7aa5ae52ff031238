//! The sequences of a decoder.

use crate::batches::Batches;
use crate::config::Config;
use crate::decoder::Decoder;
use crate::store::{bytes, Store};
use candle::{bail, DType, Result, Tensor};

/// The sequences of a decoder: keys and values of all layers, and for each sequence, in a slot of its own, its tokens.
///
/// A slot has room for 4096 positions, or for as many as were asked for. When a sequence needs more, all slots double, up to the model's longest sequence.
/// candle's stream of a GPU is another one on each thread: call `Device::synchronize` on the old thread before a cache goes to a new one.
/// Keys and values take 2 layers slots kv_heads capacity head_size numbers in the decoder's type, or in fp8 by [`with_capacity_in`](Self::with_capacity_in) as
/// many bytes, and 4 more for the scale of each head and position. On a GPU these bytes are checked before they are allocated:
///
/// ```
/// use candle::DType;
/// use candle_tilegemm_models::{Cache, Config};
///
/// let llama3_8b = Config::from_json(
///     r#"{"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
///         "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}"#,
/// )?;
/// // 32 layers of 8 heads with 128 numbers: 128 KiB a position.
/// assert_eq!(Cache::bytes(&llama3_8b, 1, 4096, DType::BF16)?, 512 << 20);
/// assert_eq!(Cache::bytes(&llama3_8b, 1, 4096, DType::F8E4M3)?, (256 + 8) << 20);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug)]
pub struct Cache {
    // Before the memory whose addresses their graphs have.
    pub(crate) batches: Batches,
    pub(crate) store: Store,
    pub(crate) slots: Vec<Slot>,
}

/// A sequence.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slot {
    /// All its tokens. Keys and values of the last one may be missing: see `next`.
    pub tokens: Vec<u32>,
    pub next: Next,
    /// Whether its last token is one that ends it.
    pub has_ended: bool,
}

/// What a sequence goes on with.
#[derive(Debug, Clone, Default)]
pub(crate) enum Next {
    /// The last token, which has not been through the layers.
    #[default]
    Token,
    /// The logits of the last token, (1, vocabulary) in f32.
    Logits(Tensor),
}

impl Slot {
    /// The positions that the cache holds.
    pub fn rows(&self) -> usize {
        match self.next {
            Next::Token => self.tokens.len().saturating_sub(1),
            Next::Logits(_) => self.tokens.len(),
        }
    }
}

impl Cache {
    /// A cache of so many empty sequences.
    ///
    /// # Errors
    /// No sequence; a device without room for 4096 positions of each, or the model's longest sequence where that is shorter.
    pub fn new(decoder: &Decoder, sequences: usize) -> Result<Self> {
        Self::sized(decoder, sequences, None, decoder.dtype())
    }

    /// The same with room for so many positions of each sequence at first.
    ///
    /// # Errors
    /// As for [`new`](Self::new); a capacity of 0.
    pub fn with_capacity(decoder: &Decoder, sequences: usize, capacity: usize) -> Result<Self> {
        Self::with_capacity_in(decoder, sequences, capacity, decoder.dtype())
    }

    /// The same in the decoder's type, or in fp8 (`F8E4M3`): a number is the stored one times a scale of its head and position. Half of the bytes of 16 bits, which
    /// steps of many or long sequences take less time for, and a rounding to 4 bits of precision of all keys and values.
    ///
    /// ```
    /// # use candle::Device;
    /// # use candle_nn::{VarBuilder, VarMap};
    /// # use candle_tilegemm_models::{Config, Decoder};
    /// # let config = Config::from_json(
    /// #     r#"{"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    /// #         "num_attention_heads": 2, "max_position_embeddings": 8}"#,
    /// # )?;
    /// # let weights = VarMap::new();
    /// # let decoder = Decoder::load(&config, VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu))?;
    /// use candle::DType;
    /// use candle_tilegemm_models::Cache;
    ///
    /// let mut cache = Cache::with_capacity_in(&decoder, 2, 8, DType::F8E4M3)?;
    /// decoder.prefill(1, &[1, 2, 3], &mut cache)?;
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`with_capacity`](Self::with_capacity); other types.
    pub fn with_capacity_in(decoder: &Decoder, sequences: usize, capacity: usize, dtype: DType) -> Result<Self> {
        Self::sized(decoder, sequences, Some(capacity), dtype)
    }

    fn sized(decoder: &Decoder, sequences: usize, capacity: Option<usize>, dtype: DType) -> Result<Self> {
        let store = decoder.body.store(sequences, capacity, dtype)?;
        Ok(Self { batches: Batches::default(), store, slots: vec![Slot::default(); sequences] })
    }

    /// The bytes of keys and values.
    ///
    /// # Errors
    /// Sizes of 0, types that no cache has, and more bytes than a `usize` counts.
    pub fn bytes(config: &Config, sequences: usize, capacity: usize, dtype: DType) -> Result<usize> {
        bytes(config, sequences, capacity, dtype)
    }

    /// Sequences.
    pub fn sequences(&self) -> usize {
        self.slots.len()
    }

    /// The positions for which a sequence has room now.
    pub fn capacity(&self) -> usize {
        self.store.sizes()[2]
    }

    /// The CUDA graphs of steps that the cache keeps: none on the CPU, with `TILEGEMM_GRAPHS=off`, and before a third step.
    pub fn graphs(&self) -> usize {
        self.batches.graphs()
    }

    /// All tokens of a sequence: those of prompts, and those that were chosen.
    ///
    /// # Errors
    /// A slot that the cache lacks.
    pub fn tokens(&self, slot: usize) -> Result<&[u32]> {
        Ok(&self.slot(slot)?.tokens)
    }

    /// Whether a sequence ended: its last token is one of the model's end tokens, and was chosen by a step. A following prompt takes it up again.
    ///
    /// # Errors
    /// A slot that the cache lacks.
    pub fn has_ended(&self, slot: usize) -> Result<bool> {
        Ok(self.slot(slot)?.has_ended)
    }

    /// Takes the tokens of a sequence back but for the first `tokens`.
    ///
    /// # Errors
    /// A slot that the cache lacks.
    pub fn truncate(&mut self, slot: usize, tokens: usize) -> Result<()> {
        if tokens < self.slot(slot)?.tokens.len() {
            self.batches.forget(slot);
            let sequence = &mut self.slots[slot];
            sequence.tokens.truncate(tokens);
            // The last one goes through the layers again, for its logits.
            sequence.next = Next::Token;
            sequence.has_ended = false;
        }
        Ok(())
    }

    /// Empties a slot.
    ///
    /// # Errors
    /// A slot that the cache lacks.
    pub fn clear(&mut self, slot: usize) -> Result<()> {
        self.truncate(slot, 0)
    }

    /// Makes room for so many positions of a slot.
    pub(crate) fn reserve(&mut self, slot: usize, positions: usize) -> Result<()> {
        if positions > self.capacity() {
            self.batches.clear();
        }
        self.store.reserve(slot, positions)
    }

    pub(crate) fn slot(&self, slot: usize) -> Result<&Slot> {
        match self.slots.get(slot) {
            Some(slot) => Ok(slot),
            None => bail!("Cache: there is no slot {slot}; the cache has {}, from 0", self.slots.len()),
        }
    }

    /// Refuses a cache that was made for another decoder.
    pub(crate) fn check_of(&self, config: &Config) -> Result<()> {
        let [_, heads, _, head] = self.store.sizes();
        let (have, need) =
            ([self.store.layers().len(), heads, head], [config.layers, config.kv_heads, config.head_size]);
        if have != need {
            bail!("Cache: layers, heads and numbers of a head are {have:?}; the decoder has {need:?}: make the cache with this decoder");
        }
        Ok(())
    }
}
