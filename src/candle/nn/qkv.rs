//! The products to q, k and v.

use super::merged::MergedLinear;
use super::{Linear, QLinear, QWeights};
use ::candle::{bail, Module, Result, Tensor, D};
use candle_nn::{init::DEFAULT_KAIMING_NORMAL, Init, VarBuilder};

/// The products to q, k and v of attention as one, for [`attention::append`](super::attention::append): a row of the result is q, then k, then v.
///
/// Weights are dense or in blocks, with biases or without. Where blocks have different formats, neighbours of one format are one product, and all write columns of
/// one result ([`MergedLinear`]).
///
/// ```
/// use candle::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use candle_tilegemm::nn::qkv_linear;
///
/// let weights = VarMap::new();
/// let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
/// let layer = qkv_linear(16, [16, 8, 8], true, vb.pp("self_attn"))?; // q_proj, k_proj and v_proj
/// let qkv = layer.forward(&Tensor::ones((3, 16), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(qkv.dims(), [3, 32]);
/// let [q, k, v] = layer.split(&qkv)?;
/// assert_eq!([q.dims(), k.dims(), v.dims()], [[3, 16], [3, 8], [3, 8]]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct QkvLinear {
    merged: MergedLinear,
    columns: [usize; 3],
}

/// The layer with the weights `q_proj`, `k_proj` and `v_proj`, (columns, `in_dim`) each, with or without a bias. No gradient reaches the variables, whose numbers are copied.
///
/// # Errors
/// Missing weights, and weights of another shape.
pub fn qkv_linear(in_dim: usize, columns: [usize; 3], bias: bool, vb: VarBuilder) -> Result<QkvLinear> {
    let layer = |name: &str, rows: usize| -> Result<Linear> {
        let vb = vb.pp(name);
        let weight = vb.get_with_hints((rows, in_dim), "weight", DEFAULT_KAIMING_NORMAL)?;
        let bias = if bias { Some(vb.get_with_hints(rows, "bias", Init::Const(0.0))?) } else { None };
        Ok(Linear::new(weight, bias))
    };
    let [q, k, v] = columns;
    QkvLinear::new([layer("q_proj", q)?, layer("k_proj", k)?, layer("v_proj", v)?])
}

impl QkvLinear {
    /// The layers to q, k and v: [`Linear`], or [`QLinear`].
    ///
    /// # Errors
    /// As for [`MergedLinear::new`].
    pub fn new<L: Into<MergedLinear>>(layers: [L; 3]) -> Result<Self> {
        let layers = layers.map(Into::into);
        let columns = [0, 1, 2].map(|i| layers[i].columns());
        Ok(Self { merged: MergedLinear::new(layers)?, columns })
    }

    /// A layer whose weights are merged already: the rows of q, k and v.
    ///
    /// # Errors
    /// As many columns in all as the layer has not.
    pub fn from_merged(merged: impl Into<MergedLinear>, columns: [usize; 3]) -> Result<Self> {
        let merged = merged.into();
        if merged.columns() != columns.iter().sum::<usize>() {
            bail!("QkvLinear: the merged layer has {} columns; expected {columns:?}", merged.columns());
        }
        Ok(Self { merged, columns })
    }

    /// The weights of a GGUF file, `attn_q`, `attn_k` and `attn_v`, and their biases. Blocks that are merged are copied: load them to the CPU to have them on a GPU once.
    ///
    /// # Errors
    /// As for [`MergedLinear::new`], and `QMatMul::from_arc`.
    pub fn from_qtensors<W: Into<QWeights>>(weights: [W; 3], biases: Option<[Tensor; 3]>) -> Result<Self> {
        let [q, k, v] = weights;
        let [of_q, of_k, of_v] = biases.map_or([None, None, None], |biases| biases.map(Some));
        let layers = [QLinear::from_blocks(q, of_q)?, QLinear::from_blocks(k, of_k)?, QLinear::from_blocks(v, of_v)?];
        Self::new(layers)
    }

    /// Columns of q, k and v.
    pub fn columns(&self) -> [usize; 3] {
        self.columns
    }

    /// The products that the layer takes: 1, unless blocks have different formats.
    pub fn products(&self) -> usize {
        self.merged.products()
    }

    /// The parts of a result that are q, k and v, without a copy.
    ///
    /// # Errors
    /// A tensor that is no result of this layer.
    pub fn split(&self, qkv: &Tensor) -> Result<[Tensor; 3]> {
        let [q, k, v] = self.columns;
        if qkv.dims().last() != Some(&(q + k + v)) {
            bail!("QkvLinear: {:?} is not a result of {:?} columns", qkv.dims(), self.columns);
        }
        let part = |at: usize, columns: usize| qkv.narrow(D::Minus1, at, columns);
        Ok([part(0, q)?, part(q, k)?, part(q + k, v)?])
    }

    /// The result into a tensor of its shape and type, whose rows may be apart. On a GPU it allocates nothing, and is legal in a capture after
    /// [`prepare`](crate::prepare).
    ///
    /// # Errors
    /// As for [`MergedLinear::forward_into`].
    pub fn forward_into(&self, x: &Tensor, qkv: &Tensor) -> Result<()> {
        self.merged.forward_into(x, qkv)
    }
}

impl Module for QkvLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.merged.forward(x)
    }
}
