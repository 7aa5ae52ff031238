//! Rows of a table in blocks, by tokens.

#[cfg(feature = "layers")]
use crate::candle::cuda::layers;
use crate::candle::numbers::{change_integers, narrow};
use crate::candle::qweights::QWeights;
use crate::candle::tensors::{unwritten, Block, FLOATS};
use ::candle::{bail, DType, Device, Result, Tensor};

const BLOCK: Block = Block("QEmbedding");

/// Rows of a table in blocks of a GGUF file, (vocabulary, hidden), by tokens in u32: they are dequantised as they are gathered.
///
/// Results are in f16, bf16 or f32. A token outside of the vocabulary gives a row of zeros. On a GPU the layer needs the feature `layers`, and takes the
/// formats of [`QLinear`](super::QLinear).
///
/// ```
/// use candle::quantized::{GgmlDType, QTensor};
/// use candle::{DType, Device, Tensor};
/// use candle_tilegemm::nn::QEmbedding;
///
/// let table = QTensor::quantize(&Tensor::ones((4, 32), DType::F32, &Device::Cpu)?, GgmlDType::Q8_0)?;
/// let layer = QEmbedding::new(table)?;
/// let y = layer.forward(&Tensor::new(&[3u32, 9], &Device::Cpu)?, DType::F32)?;
/// assert_eq!((y.dims(), y.get(1)?.max_all()?.to_vec0::<f32>()?), (&[2, 32][..], 0.0));
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct QEmbedding {
    table: QWeights,
}

impl QEmbedding {
    /// A layer with this table.
    ///
    /// # Errors
    /// A table that has not two dimensions.
    pub fn new(table: impl Into<QWeights>) -> Result<Self> {
        let table = table.into();
        table.shape().dims2()?;
        Ok(Self { table })
    }

    /// The table.
    pub fn table(&self) -> &QWeights {
        &self.table
    }

    /// The rows of `tokens`, (..) in u32: (.., hidden) in `dtype`.
    ///
    /// # Errors
    /// As for [`forward_into`](Self::forward_into).
    pub fn forward(&self, tokens: &Tensor, dtype: DType) -> Result<Tensor> {
        let (_, hidden) = self.table.shape().dims2()?;
        let out = unwritten(&[tokens.dims(), &[hidden]].concat(), dtype, tokens.device())?;
        self.forward_into(&tokens.contiguous()?, &out, None)?;
        Ok(out)
    }

    /// The rows of `tokens` into `out`, of their shape and the hidden size. `error`, one number in u32, becomes 1 + t for a token t outside of the
    /// vocabulary, and stays as it is otherwise. Allocates nothing, and is legal in a capture.
    ///
    /// # Errors
    /// Shapes, types and devices that do not fit, and formats that no kernel has.
    pub fn forward_into(&self, tokens: &Tensor, out: &Tensor, error: Option<&Tensor>) -> Result<()> {
        let ((_, hidden), count) = (self.table.shape().dims2()?, tokens.elem_count());
        let device = &self.table.device();
        BLOCK.list("tokens", tokens, DType::U32, count, device)?;
        BLOCK.among("the result", out, &FLOATS)?;
        BLOCK.list("the result", out, out.dtype(), count * hidden, device)?;
        BLOCK.list_of("the error", error, DType::U32, 1, device)?;
        match device {
            Device::Cpu => self.on_cpu(tokens, out, error),
            #[cfg(feature = "layers")]
            Device::Cuda(device) => match self.table.format() {
                Some(format) => layers::embedding_of_blocks(device, tokens, (&self.table, format), out, error),
                None => bail!("QEmbedding: no kernel has a table in {:?}; dequantise it", self.table.stored()),
            },
            other => BLOCK.elsewhere(other),
        }
    }

    fn on_cpu(&self, tokens: &Tensor, out: &Tensor, error: Option<&Tensor>) -> Result<()> {
        let (vocabulary, hidden) = self.table.shape().dims2()?;
        let tokens = tokens.flatten_all()?.to_vec1::<u32>()?;
        let is_known = |token: &u32| (*token as usize) < vocabulary;
        let mut values = vec![0.0; tokens.len() * hidden];
        for (row, token) in values.chunks_mut(hidden.max(1)).zip(&tokens).filter(|(_, token)| is_known(token)) {
            let of_token = self.table.row(*token)?;
            row.copy_from_slice(&of_token.flatten_all()?.to_vec1::<f32>()?);
        }
        if let (Some(error), Some(t)) = (error, tokens.iter().rposition(|token| !is_known(token))) {
            change_integers(error, |error| error[0] = 1 + t as u32)?;
        }
        if hidden == 0 {
            bail!("QEmbedding: a table without columns");
        }
        narrow(BLOCK.rows("the result", out, hidden)?, &values)
    }
}
