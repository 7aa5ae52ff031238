//! Rows of a table by tokens.

#[cfg(feature = "layers")]
use crate::candle::cuda::layers;
use crate::candle::numbers::{change_integers, narrow, wide};
use crate::candle::tensors::{unwritten, Block, FLOATS};
use ::candle::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;

const BLOCK: Block = Block("Embedding");

/// Rows of a table by tokens in u32, with the names of `candle_nn::Embedding`. Nothing is read back: the tokens may be those that a
/// [`Sampler`](super::Sampler) has just chosen.
///
/// The table is (vocabulary, hidden) in f16, bf16 or f32. A token outside of the vocabulary gives a row of zeros. On a GPU the layer needs the feature
/// `layers`, and rows of whole 16 bytes. No gradient passes.
///
/// ```
/// use candle::{Device, Module, Tensor};
/// use candle_tilegemm::nn::Embedding;
///
/// let layer = Embedding::new(Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?, 2);
/// let y = layer.forward(&Tensor::new(&[1u32, 0, 7], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[3., 4.], [1., 2.], [0., 0.]]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Embedding {
    embeddings: Tensor,
    hidden_size: usize,
}

/// A layer with the table `weight`, (`in_size`, `out_size`), as [`candle_nn::embedding()`] makes one.
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder) -> Result<Embedding> {
    let init = candle_nn::Init::Randn { mean: 0., stdev: 1. };
    Ok(Embedding::new(vb.get_with_hints((in_size, out_size), "weight", init)?, out_size))
}

impl Embedding {
    /// A layer with a table of rows of `hidden_size` numbers.
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Self {
        Self { embeddings, hidden_size }
    }

    /// The table.
    pub fn embeddings(&self) -> &Tensor {
        &self.embeddings
    }

    /// The numbers of a row.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// The rows of `tokens` into `out`, of their shape and the hidden size. `error`, one number in u32, becomes 1 + t for a token t outside of the
    /// vocabulary, and stays as it is otherwise. Allocates nothing, and is legal in a capture.
    ///
    /// # Errors
    /// Shapes, types and devices that do not fit, and tensors that track gradients.
    pub fn forward_into(&self, tokens: &Tensor, out: &Tensor, error: Option<&Tensor>) -> Result<()> {
        let (table, count) = (&self.embeddings, tokens.elem_count());
        BLOCK.among("the table", table, &FLOATS)?;
        let (vocabulary, _) = table.dims2()?;
        BLOCK.list("the table", table, table.dtype(), vocabulary * self.hidden_size, table.device())?;
        BLOCK.list("tokens", tokens, DType::U32, count, table.device())?;
        BLOCK.list("the result", out, table.dtype(), count * self.hidden_size, table.device())?;
        BLOCK.list_of("the error", error, DType::U32, 1, table.device())?;
        match table.device() {
            Device::Cpu => self.on_cpu(tokens, out, error),
            #[cfg(feature = "layers")]
            Device::Cuda(device) => layers::embedding(device, tokens, table, out, error),
            other => BLOCK.elsewhere(other),
        }
    }

    fn on_cpu(&self, tokens: &Tensor, out: &Tensor, error: Option<&Tensor>) -> Result<()> {
        let hidden = self.hidden_size;
        let mut values = vec![0.0; tokens.elem_count() * hidden];
        let mut unknown = None;
        for (t, token) in tokens.flatten_all()?.to_vec1::<u32>()?.into_iter().enumerate() {
            match self.embeddings.get(token as usize) {
                Ok(row) => values[t * hidden..][..hidden].copy_from_slice(&wide(BLOCK.rows("a row", &row, hidden)?)?),
                Err(_) => unknown = Some(1 + t as u32),
            }
        }
        if let (Some(error), Some(unknown)) = (error, unknown) {
            change_integers(error, |error| error[0] = unknown)?;
        }
        narrow(BLOCK.rows("the result", out, hidden)?, &values)
    }
}

impl Module for Embedding {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let shape = [tokens.dims(), &[self.hidden_size]].concat();
        let out = unwritten(&shape, self.embeddings.dtype(), self.embeddings.device())?;
        self.forward_into(&tokens.contiguous()?, &out, None)?;
        Ok(out)
    }
}
