//! The tokens of a prompt.

use crate::cache::{Cache, Next};
use crate::decoder::Decoder;
use crate::prompt::{Prompt, Wanted};
use candle::{bail, Result, Tensor};

impl Decoder {
    /// Appends tokens to what a slot holds, and returns the logits of the last one, (vocabulary) in f32.
    ///
    /// ```
    /// # use candle::{DType, Device};
    /// # use candle_nn::{VarBuilder, VarMap};
    /// # use candle_tilegemm_models::{Cache, Config, Decoder};
    /// # let config = Config::from_json(
    /// #     r#"{"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    /// #         "num_attention_heads": 2, "max_position_embeddings": 8}"#,
    /// # )?;
    /// # let weights = VarMap::new();
    /// # let decoder = Decoder::load(&config, VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu))?;
    /// let mut cache = Cache::new(&decoder, 1)?;
    /// let logits = decoder.prefill(0, &[1, 2, 3], &mut cache)?;
    /// assert_eq!(logits.dims(), [32]);
    ///
    /// decoder.prefill(0, &[4, 5], &mut cache)?; // the sequence goes on
    /// assert_eq!(cache.tokens(0)?, [1, 2, 3, 4, 5]);
    /// let full = decoder.prefill(0, &[6; 4], &mut cache).unwrap_err().to_string();
    /// assert!(full.contains("slot 0 is full"), "{full}");
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// No token, tokens outside of the vocabulary, a slot that the cache lacks, more tokens than the model's longest sequence, and a device without room for
    /// them. The slot is as it was then.
    pub fn prefill(&self, slot: usize, tokens: &[u32], cache: &mut Cache) -> Result<Tensor> {
        let vocabulary = self.config().vocabulary;
        cache.check_of(self.config())?;
        let sequence = cache.slot(slot)?;
        if tokens.is_empty() {
            bail!("Decoder: no token for slot {slot}; expected 1 and more");
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            bail!("Decoder: token {token} for slot {slot}; the vocabulary has {vocabulary}, from 0");
        }
        let rows = sequence.rows();
        let new = [&sequence.tokens[rows..], tokens].concat();
        cache.reserve(slot, rows + new.len())?;
        cache.batches.forget(slot);
        let (prompt, list) = Prompt::new(slot, [rows, new.len()], &new, &self.device())?;
        let scratch = self.body.scratch(new.len().min(self.chunk))?;
        let mut last = scratch.x.narrow(0, 0, 1)?;
        for first in (0..new.len()).step_by(self.chunk) {
            let count = self.chunk.min(new.len() - first);
            let (scratch, is_last) = (scratch.first(count)?, first + count == new.len());
            let wanted = if is_last { Wanted::Last } else { Wanted::None };
            self.body.embed(&list.narrow(0, first, count)?, &scratch)?;
            self.body.prompt(&scratch.x, &prompt.part(first, count)?, wanted, &cache.store, &scratch)?;
            last = scratch.x.narrow(0, count - 1, 1)?;
        }
        let logits = self.logits(&last)?;
        let sequence = &mut cache.slots[slot];
        sequence.tokens.extend_from_slice(tokens);
        sequence.next = Next::Logits(logits.clone());
        sequence.has_ended = false;
        logits.squeeze(0)
    }
}
