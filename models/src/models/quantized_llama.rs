//! The names of `candle_transformers::models::quantized_llama`, but for files in the format before GGUF.

use super::sequences::embed;
use super::Sequences;
use crate::decoder::Decoder;
use candle::quantized::gguf_file;
use candle::{Device, Result, Tensor};
use std::io::{Read, Seek};

/// The longest sequence that candle_transformers' model takes. This one takes as many positions as its file says.
pub const MAX_SEQ_LEN: usize = 4096;

/// A model with the weights of a GGUF file.
///
/// ```no_run
/// use candle::{quantized::gguf_file, Device, Tensor};
/// use candle_tilegemm_models::models::quantized_llama::ModelWeights;
///
/// let mut file = std::io::BufReader::new(std::fs::File::open("model.gguf")?);
/// let content = gguf_file::Content::read(&mut file)?;
/// let mut model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
/// let logits = model.forward(&Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?, 0)?;
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ModelWeights {
    decoder: Decoder,
    sequences: Sequences,
}

impl ModelWeights {
    /// The model of a file.
    ///
    /// # Errors
    /// As for [`Decoder::from_gguf`].
    pub fn from_gguf<R: Seek + Read>(ct: gguf_file::Content, reader: &mut R, device: &Device) -> Result<Self> {
        Ok(Self { decoder: Decoder::from_gguf(&ct, reader, device)?, sequences: Sequences::default() })
    }

    /// The logits of each sequence's last token, (sequences, tokens) in u32 to (sequences, vocabulary) in f32. The first token is at `index_pos`.
    ///
    /// # Errors
    /// A position that the cache has not reached, more tokens than the model's longest sequence, and a device without room.
    pub fn forward(&mut self, x: &Tensor, index_pos: usize) -> Result<Tensor> {
        let body = &self.decoder.body;
        let x = self.sequences.last(body, &embed(body, x)?, index_pos)?;
        self.decoder.logits(&x)
    }

    /// Gives the cache back.
    pub fn clear_kv_cache(&mut self) {
        self.sequences.clear();
    }
}
