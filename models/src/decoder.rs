//! The decoder.

use crate::body::{Body, CHUNK};
use crate::cache::{Cache, Next};
use crate::config::Config;
use crate::sampler::Sampler;
use crate::step::Step;
use crate::weights::{Dense, Gguf, Head, Source};
use candle::quantized::gguf_file::Content;
use candle::{bail, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use std::io::{Read, Seek};

/// A decoder: layers as its [`Config`] describes them, and the product to logits.
///
/// Products to q, k and v are one product, and those to gates and numbers, too; products after attention and after the gate add their input to the result.
/// The crate's documentation has an example.
#[derive(Debug, Clone)]
pub struct Decoder {
    pub(crate) body: Body,
    pub(crate) head: Head,
    chunk: usize,
}

impl Decoder {
    /// A decoder with weights of Hugging Face's names, `model.layers.0.self_attn.q_proj.weight` and so on, in the type and on the device of `vb`.
    ///
    /// # Errors
    /// Missing weights, weights of other shapes than the config has, and a config whose sizes do not go together.
    pub fn load(config: &Config, vb: VarBuilder) -> Result<Self> {
        Self::from_source(&mut Dense::new(config, vb))
    }

    /// A decoder with the weights of a GGUF file, as they lie there; all else is in bf16, and in f32 on the CPU.
    ///
    /// The embedding is not dequantised: rows are, as tokens ask for them.
    ///
    /// ```no_run
    /// use candle::{quantized::gguf_file::Content, Device};
    /// use candle_tilegemm_models::Decoder;
    ///
    /// let mut file = std::io::BufReader::new(std::fs::File::open("model.gguf")?);
    /// let content = Content::read(&mut file)?;
    /// let decoder = Decoder::from_gguf(&content, &mut file, &Device::Cpu)?;
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Config::from_gguf`]; tensors that are missing, or have other shapes than the metadata say.
    pub fn from_gguf<R: Read + Seek>(content: &Content, reader: &mut R, device: &Device) -> Result<Self> {
        let dtype = if device.is_cpu() { DType::F32 } else { DType::BF16 };
        Self::from_gguf_in(content, reader, dtype, device)
    }

    /// The same, with `dtype` for all that is not in blocks: f16, bf16, or on the CPU f32.
    ///
    /// # Errors
    /// As for [`from_gguf`](Self::from_gguf).
    pub fn from_gguf_in<R: Read + Seek>(
        content: &Content,
        reader: &mut R,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let config = Config::from_gguf(content)?;
        Self::from_source(&mut Gguf { config: &config, content, reader, dtype, device })
    }

    fn from_source(source: &mut dyn Source) -> Result<Self> {
        let body = Body::load(source)?;
        let head = source.head(&body.table)?;
        Ok(Self { body, head, chunk: CHUNK })
    }

    /// The same decoder, with at most so many tokens of a prompt in the layers at once; 2048 unless given. Fewer take less memory and more time.
    pub fn with_chunk(mut self, tokens: usize) -> Self {
        self.chunk = tokens.max(1);
        self
    }

    /// What the decoder is made of.
    pub fn config(&self) -> &Config {
        &self.body.config
    }

    /// Where it is.
    pub fn device(&self) -> Device {
        self.body.device()
    }

    /// The type of what goes from layer to layer, and of a cache.
    pub fn dtype(&self) -> DType {
        self.body.dtype()
    }

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
        cache.store.reserve(slot, rows + new.len())?;
        let device = self.device();
        let mut last = None;
        for (i, chunk) in new.chunks(self.chunk).enumerate() {
            let x = self.body.table.rows(&Tensor::new(chunk, &device)?)?;
            let x = self.body.prompt(x, slot, rows + i * self.chunk, &cache.store)?;
            last = Some(x.narrow(0, chunk.len() - 1, 1)?.contiguous()?);
        }
        let Some(last) = last else { bail!("Decoder: no token for slot {slot}") };
        let logits = self.logits(&last)?;
        let sequence = &mut cache.slots[slot];
        sequence.tokens.extend_from_slice(tokens);
        sequence.next = Next::Logits(logits.clone());
        sequence.has_ended = false;
        logits.squeeze(0)
    }

    /// Starts to choose tokens for all sequences that have tokens and have not ended.
    ///
    /// # Errors
    /// A cache that was made for another decoder, and a sampler without settings for a slot.
    pub fn step<'a>(&'a self, cache: &'a mut Cache, sampler: Sampler) -> Result<Step<'a>> {
        Step::new(self, cache, sampler)
    }

    /// (rows, hidden) before the last norm to (rows, vocabulary) in f32.
    pub(crate) fn logits(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.body.normed(x)?)
    }
}
