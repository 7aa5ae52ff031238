//! Layers of one input as one product.

use super::kind::Kind;
use super::narrow::QuantLinear;
use super::{Linear, QLinear};
use crate::candle::qweights::QWeights;
use crate::candle::tensors::{unwritten, Block};
use crate::problem::Activation;
use ::candle::quantized::QMatMul;
use ::candle::{bail, Device, Module, Result, Tensor, D};

const BLOCK: Block = Block("MergedLinear");

/// Layers of one input as one product, whose results lie side by side: weights over one another, dense, in blocks or narrow.
///
/// Neighbours are merged where their weights have one type, or blocks of one format, and their activations are the same; narrow ones where codes, groups, order of
/// columns and the factor of all are the same, and only on the CPU ([`to_device`](Self::to_device) moves the result). Others stay products of their own, into
/// columns of one result: Q4_K_M files have some `attn_v` in Q6_K beside `attn_q` and `attn_k` in Q4_K.
///
/// ```
/// use candle::{DType, Device, Module, Tensor};
/// use candle_tilegemm::nn::{Linear, MergedLinear};
///
/// let layer = |rows: usize| -> candle::Result<Linear> { Ok(Linear::new(Tensor::ones((rows, 3), DType::F32, &Device::Cpu)?, None)) };
/// let merged = MergedLinear::new([layer(2)?, layer(4)?])?;
/// assert_eq!((merged.columns(), merged.products()), (6, 1));
/// let x = Tensor::ones((1, 3), DType::F32, &Device::Cpu)?;
/// assert_eq!(merged.forward(&x)?.to_vec2::<f32>()?, [[3.0; 6]]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct MergedLinear {
    parts: Vec<Part>,
    columns: usize,
}

/// A product of its own.
#[derive(Debug, Clone)]
enum Part {
    Dense(Linear),
    Blocks(QLinear),
    Narrow(QuantLinear),
}

impl From<Linear> for MergedLinear {
    fn from(layer: Linear) -> Self {
        let columns = layer.weight().dims().first().copied().unwrap_or(0);
        Self { parts: vec![Part::Dense(layer)], columns }
    }
}

impl From<QLinear> for MergedLinear {
    fn from(layer: QLinear) -> Self {
        let columns = layer.sizes().map_or(0, |(rows, _)| rows);
        Self { parts: vec![Part::Blocks(layer)], columns }
    }
}

impl From<QuantLinear> for MergedLinear {
    fn from(layer: QuantLinear) -> Self {
        if let Some(weight) = layer.plain_weight() {
            let dense = Linear::new(weight.detach(), layer.bias().map(Tensor::detach));
            return dense.with_activation(layer.activation()).into();
        }
        let columns = layer.sizes().map_or(0, |[rows, _]| rows);
        Self { parts: vec![Part::Narrow(layer)], columns }
    }
}

impl MergedLinear {
    /// These layers, in this order. Weights that are merged are copied, and track no gradients.
    ///
    /// # Errors
    /// No layers, layers of other inputs or on other devices, and a device without room.
    pub fn new<L: Into<MergedLinear>>(layers: impl IntoIterator<Item = L>) -> Result<Self> {
        let parts: Vec<Part> = layers.into_iter().flat_map(|layer| layer.into().parts).collect();
        let Some(first) = parts.first() else { bail!("MergedLinear: no layers to merge") };
        let (mut columns, of_first) = (0, (first.sizes()?.1, first.device()));
        for part in &parts {
            let ((rows, inputs), device) = (part.sizes()?, part.device());
            if inputs != of_first.0 || !device.same_device(&of_first.1) {
                bail!(
                    "MergedLinear: a layer has {inputs} inputs on {:?}; expected {} on {:?}, as the first layer has",
                    device.location(),
                    of_first.0,
                    of_first.1.location()
                );
            }
            columns += rows;
        }
        let can_be_one = |x: &Part, y: &Part| match (x, y) {
            (Part::Narrow(x), Part::Narrow(y)) => x.can_be_over(y),
            _ => x.kind() == y.kind() && x.activation() == y.activation(),
        };
        let parts = parts.chunk_by(can_be_one).map(Part::join).collect::<Result<_>>()?;
        Ok(Self { parts, columns })
    }

    /// The same layers on a device.
    ///
    /// # Errors
    /// A device without room, and those of copies.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let parts = self.parts.iter().map(|part| part.to_device(device)).collect::<Result<_>>()?;
        Ok(Self { parts, columns: self.columns })
    }

    /// Columns of the result.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The products that the layers take: 1 where all of them are merged.
    pub fn products(&self) -> usize {
        self.parts.len()
    }

    /// `forward(x) + residual`, in as many kernels where kernels fuse the addition.
    ///
    /// # Errors
    /// As for the layers, and for a residual of another shape.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        match &self.parts[..] {
            [Part::Dense(layer)] => layer.forward_residual(x, residual),
            [Part::Blocks(layer)] => layer.forward_residual(x, residual),
            [Part::Narrow(layer)] => layer.forward_residual(x, residual),
            _ => {
                let out = self.unwritten(x)?;
                self.forward_residual_into(&x.contiguous()?, residual, &out)?;
                Ok(out)
            }
        }
    }

    /// The result into a tensor of its shape and type, whose rows may be apart, as [`Linear::forward_into`] and [`QLinear::forward_into`].
    ///
    /// # Errors
    /// Those of [`Linear::forward_into`], [`QLinear::forward_into`] and [`QuantLinear::forward_into`].
    pub fn forward_into(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        #[cfg(feature = "cuda")]
        if self.beside(x, None, out)? {
            return Ok(());
        }
        self.each(out, |part, out, _| match part {
            Part::Dense(layer) => layer.forward_into(x, out),
            Part::Blocks(layer) => layer.forward_into(x, out),
            Part::Narrow(layer) => layer.forward_into(x, out),
        })
    }

    /// [`forward_residual`](Self::forward_residual) into a tensor that exists, which may be the residual itself.
    ///
    /// # Errors
    /// As for [`forward_into`](Self::forward_into).
    pub fn forward_residual_into(&self, x: &Tensor, residual: &Tensor, out: &Tensor) -> Result<()> {
        if residual.dims() != out.dims() {
            bail!("MergedLinear: the residual is {:?}; expected {:?}, as the result", residual.dims(), out.dims());
        }
        // As a whole: a product must not write what another one adds.
        BLOCK.apart_or_same("the residual", residual, out)?;
        #[cfg(feature = "cuda")]
        if self.beside(x, Some(residual), out)? {
            return Ok(());
        }
        self.each(out, |part, out, [at, columns]| {
            let residual = &residual.narrow(D::Minus1, at, columns)?;
            match part {
                Part::Dense(layer) => layer.forward_residual_into(x, residual, out),
                Part::Blocks(layer) => layer.forward_residual_into(x, residual, out),
                Part::Narrow(layer) => layer.forward_residual_into(x, residual, out),
            }
        })
    }

    /// Computes products of blocks on a GPU side by side; false: of others it does nothing.
    #[cfg(feature = "cuda")]
    fn beside(&self, x: &Tensor, residual: Option<&Tensor>, out: &Tensor) -> Result<bool> {
        if self.parts.len() < 2
            || !out.device().is_cuda()
            || !self.parts.iter().all(|part| matches!(part, Part::Blocks(_)))
        {
            return Ok(false);
        }
        let mut layers = Vec::with_capacity(self.parts.len());
        self.each(out, |part, out, [at, columns]| {
            if let Part::Blocks(layer) = part {
                let residual = residual.map(|residual| residual.narrow(D::Minus1, at, columns)).transpose()?;
                layers.push((layer, residual, out.clone()));
            }
            Ok(())
        })?;
        QLinear::write_beside(x, &layers)
    }

    /// Calls `with` for each product, its columns of the result, and the first of them and their number.
    fn each<'a>(
        &'a self,
        out: &Tensor,
        mut with: impl FnMut(&'a Part, &Tensor, [usize; 2]) -> Result<()>,
    ) -> Result<()> {
        if out.dims().last() != Some(&self.columns) {
            bail!("MergedLinear: the result is {:?}; expected rows of {}", out.dims(), self.columns);
        }
        let mut at = 0;
        for part in &self.parts {
            let (columns, _) = part.sizes()?;
            with(part, &out.narrow(D::Minus1, at, columns)?, [at, columns])?;
            at += columns;
        }
        Ok(())
    }

    /// The one dense product that the layers are, if they are.
    pub fn as_linear(&self) -> Option<&Linear> {
        match &self.parts[..] {
            [Part::Dense(layer)] => Some(layer),
            _ => None,
        }
    }

    /// The one product with narrow weights that the layers are, if they are.
    #[cfg(feature = "cuda")]
    pub(super) fn as_narrow(&self) -> Option<&QuantLinear> {
        match &self.parts[..] {
            [Part::Narrow(layer)] => Some(layer),
            _ => None,
        }
    }

    /// Columns of x.
    pub(super) fn inputs(&self) -> Result<usize> {
        Ok(self.parts[0].sizes()?.1)
    }

    pub(super) fn device(&self) -> Device {
        self.parts[0].device()
    }

    fn unwritten(&self, x: &Tensor) -> Result<Tensor> {
        let rows = x.dims().split_last().map_or(&[][..], |(_, rows)| rows);
        unwritten(&[rows, &[self.columns]].concat(), x.dtype(), x.device())
    }
}

impl Module for MergedLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.parts[..] {
            [Part::Dense(layer)] => layer.forward(x),
            [Part::Blocks(layer)] => layer.forward(x),
            [Part::Narrow(layer)] => layer.forward(x),
            _ => {
                let out = self.unwritten(x)?;
                self.forward_into(&x.contiguous()?, &out)?;
                Ok(out)
            }
        }
    }
}

impl Part {
    /// Rows and columns of the weights.
    fn sizes(&self) -> Result<(usize, usize)> {
        match self {
            Self::Dense(layer) => layer.weight().dims2(),
            Self::Blocks(layer) => layer.sizes(),
            Self::Narrow(layer) => layer.sizes().map(Into::into),
        }
    }

    fn to_device(&self, device: &Device) -> Result<Self> {
        let bias = self.bias().map(|bias| bias.to_device(device)).transpose()?;
        Ok(match self {
            _ if self.device().same_device(device) => self.clone(),
            Self::Narrow(layer) => Self::Narrow(layer.to_device(device)?),
            Self::Dense(layer) => {
                Self::Dense(Linear::new(layer.weight().to_device(device)?, bias).with_activation(layer.activation))
            }
            Self::Blocks(layer) => Self::Blocks(layer.to_device(device)?),
        })
    }

    fn device(&self) -> Device {
        match self {
            Self::Dense(layer) => layer.weight().device().clone(),
            Self::Blocks(layer) => layer.device(),
            Self::Narrow(layer) => layer.device().clone(),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Dense(layer) => Kind::Dense(layer.weight().dtype()),
            Self::Blocks(layer) => layer.kind(),
            Self::Narrow(_) => Kind::Narrow,
        }
    }

    fn activation(&self) -> Activation {
        match self {
            Self::Dense(layer) => layer.activation,
            Self::Blocks(layer) => layer.activation(),
            Self::Narrow(layer) => layer.activation(),
        }
    }

    fn bias(&self) -> Option<&Tensor> {
        match self {
            Self::Dense(layer) => layer.bias(),
            Self::Blocks(layer) => layer.bias(),
            Self::Narrow(layer) => layer.bias(),
        }
    }

    /// Parts of one kind and activation over one another.
    fn join<'a>(parts: &'a [Self]) -> Result<Self> {
        let [first, _, ..] = parts else { return Ok(parts[0].clone()) };
        let bias = match parts.iter().find_map(Self::bias) {
            None => None,
            Some(like) => {
                let bias_of = |part: &Self| match part.bias() {
                    Some(bias) => Ok(bias.detach()),
                    None => Tensor::zeros(part.sizes()?.0, like.dtype(), like.device()),
                };
                Some(Tensor::cat(&parts.iter().map(bias_of).collect::<Result<Vec<_>>>()?, 0)?)
            }
        };
        if let Self::Narrow(_) = first {
            let narrow = |part: &'a Self| match part {
                Self::Narrow(layer) => Some(layer),
                _ => None,
            };
            let layers: Vec<&QuantLinear> = parts.iter().filter_map(narrow).collect();
            return Ok(Self::Narrow(QuantLinear::over_one_another(&layers, bias)?));
        }
        let dense = |part: &Self| match part {
            Self::Narrow(_) => None,
            Self::Dense(layer) => Some(layer.weight().detach()),
            Self::Blocks(layer) => layer.dequantised().map(Tensor::detach),
        };
        let weight = match parts.iter().map(dense).collect::<Option<Vec<_>>>() {
            Some(weights) => Tensor::cat(&weights, 0)?.contiguous()?,
            None => {
                let blocks = parts.iter().filter_map(|part| match part {
                    Self::Blocks(layer) => layer.blocks(),
                    Self::Dense(_) | Self::Narrow(_) => None,
                });
                let weight = QWeights::over_one_another(&blocks.collect::<Vec<_>>(), &first.device())?;
                return Ok(Self::Blocks(QLinear::from_blocks(weight, bias)?.with_activation(first.activation())));
            }
        };
        Ok(match first {
            Self::Dense(_) => Self::Dense(Linear::new(weight, bias).with_activation(first.activation())),
            Self::Blocks(_) | Self::Narrow(_) => {
                Self::Blocks(QLinear::from_weights(QMatMul::Tensor(weight), bias).with_activation(first.activation()))
            }
        })
    }
}
