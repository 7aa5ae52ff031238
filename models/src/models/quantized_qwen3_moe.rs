//! The names of `candle_transformers::models::quantized_qwen3_moe`.

use super::sequences::embed;
use super::Sequences;
use crate::decoder::Decoder;
use candle::quantized::gguf_file;
use candle::{DType, Device, Result, Tensor};
use std::io::{Read, Seek};

/// A Qwen 3 with experts, with the weights of a GGUF file.
///
/// ```no_run
/// use candle::{quantized::gguf_file, DType, Device, Tensor};
/// use candle_tilegemm_models::models::quantized_qwen3_moe::GGUFQWenMoE;
///
/// let mut file = std::io::BufReader::new(std::fs::File::open("model.gguf")?);
/// let content = gguf_file::Content::read(&mut file)?;
/// let mut model = GGUFQWenMoE::from_gguf(content, &mut file, &Device::Cpu, DType::F32)?;
/// let logits = model.forward(&Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?, 0)?;
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct GGUFQWenMoE {
    decoder: Decoder,
    sequences: Sequences,
}

impl GGUFQWenMoE {
    /// The model of a file; what is not in blocks is in `dtype`.
    ///
    /// # Errors
    /// As for [`Decoder::from_gguf_in`].
    pub fn from_gguf<R: Seek + Read>(
        ct: gguf_file::Content,
        reader: &mut R,
        device: &Device,
        dtype: DType,
    ) -> Result<Self> {
        let decoder = Decoder::from_gguf_in(&ct, reader, dtype, device)?;
        Ok(Self { decoder, sequences: Sequences::default() })
    }

    /// The logits of each sequence's last token, (sequences, tokens) in u32 to (sequences, vocabulary) in f32. The first token is at `offset`.
    ///
    /// # Errors
    /// A position that the cache has not reached, more tokens than the model's longest sequence, and a device without room.
    pub fn forward(&mut self, x: &Tensor, offset: usize) -> Result<Tensor> {
        let body = &self.decoder.body;
        let x = self.sequences.last(body, &embed(body, x)?, offset)?;
        self.decoder.logits(&x)
    }
}
