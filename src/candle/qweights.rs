//! Weights in the blocks of a GGUF file.

use super::block_numbers::{numbers, FORMATS};
use super::blocks::{format_of, ggml_type};
use crate::problem::Format;
use ::candle::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use ::candle::{bail, CpuStorage, Device, Module, Result, Shape, Storage, Tensor};
use std::borrow::Cow;
use std::sync::Arc;

/// Numbers of weights that are dequantised at a time on the CPU.
const AT_ONCE: usize = 1 << 20;

/// Weights of a GGUF file in any format of [`Format::blocks`], or a dense tensor of the file.
///
/// What candle reads is a `QTensor`. candle has no [`Format::MXFP4`], [`Format::IQ4_NL`] and [`Format::IQ4_XS`]; blocks in these lie as the file has them, too.
///
/// ```
/// use candle::Device;
/// use candle_tilegemm::{nn::QWeights, Format};
///
/// // A row of 32 numbers: the scale 2^0, and in each byte the codes 2 and 12, which stand for 1 and -2.
/// let blocks = [&[127u8][..], &[0xc2; 16]].concat();
/// let weights = QWeights::from_bytes(Format::MXFP4, blocks, (1, 32), &Device::Cpu)?;
/// let numbers = weights.dequantize(&Device::Cpu)?.to_vec2::<f32>()?;
/// assert_eq!((&numbers[0][..16], &numbers[0][16..]), (&[1.0; 16][..], &[-2.0; 16][..]));
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct QWeights(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Candle(Arc<QTensor>),
    /// In a format that candle does not have.
    Bytes {
        format: Format,
        shape: Shape,
        /// In u8, contiguous.
        bytes: Tensor,
    },
}

/// How weights are stored: weights over one another are of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    Candle(GgmlDType),
    Bytes(Format),
}

impl Stored {
    /// Numbers of a block, and its bytes.
    pub(super) fn block(self) -> [usize; 2] {
        match self {
            Self::Candle(of) => [of.block_size(), of.type_size()],
            Self::Bytes(format) => [format.block().elements, format.block().bytes],
        }
    }

    /// Weights on the device.
    pub(super) fn weights(self, bytes: Vec<u8>, shape: Shape, device: &Device) -> Result<QWeights> {
        let [elements, of_block] = self.block();
        let (count, row) = (shape.elem_count(), shape.dims().last().copied().unwrap_or(1));
        if !row.is_multiple_of(elements) || bytes.len() != count / elements * of_block {
            bail!(
                "QWeights: {} bytes are not {shape:?} numbers, in blocks of {elements} numbers in {of_block} bytes",
                bytes.len()
            );
        }
        Ok(QWeights(match self {
            Self::Candle(of) => {
                Kind::Candle(QTensor::new(QStorage::from_data(Cow::Owned(bytes), device, of)?, shape)?.into())
            }
            Self::Bytes(format) => {
                let count = bytes.len();
                Kind::Bytes { format, shape, bytes: Tensor::from_vec(bytes, count, device)? }
            }
        }))
    }
}

impl QWeights {
    /// Weights of these blocks, which lie as in a file. The last dimension is whole blocks.
    ///
    /// # Errors
    /// A format that is none of [`Format::blocks`], and bytes of another number than the shape has.
    pub fn from_bytes(
        format: Format,
        bytes: impl Into<Vec<u8>>,
        shape: impl Into<Shape>,
        device: &Device,
    ) -> Result<Self> {
        let stored = match ggml_type(format) {
            Some(of) => Stored::Candle(of),
            None if FORMATS.contains(&format) => Stored::Bytes(format),
            None => bail!("QWeights: {format} is no block format of GGUF files"),
        };
        stored.weights(bytes.into(), shape.into(), device)
    }

    /// The block format; `None` of a dense tensor.
    pub fn format(&self) -> Option<Format> {
        match &self.0 {
            Kind::Candle(tensor) => format_of(tensor.dtype()),
            Kind::Bytes { format, .. } => Some(*format),
        }
    }

    /// The shape, in numbers.
    pub fn shape(&self) -> &Shape {
        match &self.0 {
            Kind::Candle(tensor) => tensor.shape(),
            Kind::Bytes { shape, .. } => shape,
        }
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        match &self.0 {
            Kind::Candle(tensor) => tensor.device(),
            Kind::Bytes { bytes, .. } => bytes.device().clone(),
        }
    }

    /// candle's tensor; `None` in a format that candle does not have.
    pub fn as_qtensor(&self) -> Option<&Arc<QTensor>> {
        match &self.0 {
            Kind::Candle(tensor) => Some(tensor),
            Kind::Bytes { .. } => None,
        }
    }

    /// The blocks as in a file.
    ///
    /// # Errors
    /// Those of a copy from a GPU.
    pub fn data(&self) -> Result<Cow<'_, [u8]>> {
        match &self.0 {
            Kind::Candle(tensor) => tensor.data(),
            Kind::Bytes { bytes, .. } => bytes.to_vec1().map(Cow::Owned),
        }
    }

    /// The numbers in f32, on the device.
    ///
    /// # Errors
    /// Those of copies to and from a GPU.
    pub fn dequantize(&self, device: &Device) -> Result<Tensor> {
        match &self.0 {
            Kind::Candle(tensor) => tensor.dequantize(device),
            Kind::Bytes { format, shape, .. } => {
                let mut values = vec![0.0; shape.elem_count()];
                numbers(*format, &self.data()?, &mut values);
                Tensor::from_vec(values, shape, device)
            }
        }
    }

    /// The same weights on a device.
    ///
    /// # Errors
    /// Those of copies to and from a GPU.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        if self.device().same_device(device) {
            return Ok(self.clone());
        }
        self.stored().weights(self.data()?.into_owned(), self.shape().clone(), device)
    }

    /// The rows of matrices with as many columns over one another, on a device.
    ///
    /// # Errors
    /// Matrices in other formats or with other columns than the first has, and none at all.
    pub fn over_one_another(matrices: &[&Self], device: &Device) -> Result<Self> {
        let Some(first) = matrices.first() else { bail!("QWeights: no matrices to lie over one another") };
        let (stored, (_, columns)) = (first.stored(), first.shape().dims2()?);
        let (mut bytes, mut rows) = (vec![], 0);
        for matrix in matrices {
            let (n, k) = matrix.shape().dims2()?;
            if k != columns || matrix.stored() != stored {
                bail!("QWeights: {k} columns in {:?}; expected {columns} in {stored:?}", matrix.stored());
            }
            bytes.extend_from_slice(&matrix.data()?);
            rows += n;
        }
        stored.weights(bytes, (rows, columns).into(), device)
    }

    pub(crate) fn stored(&self) -> Stored {
        match &self.0 {
            Kind::Candle(tensor) => Stored::Candle(tensor.dtype()),
            Kind::Bytes { format, .. } => Stored::Bytes(*format),
        }
    }

    /// The bytes of a format that candle does not have, as a tensor.
    #[cfg(feature = "cuda")]
    pub(super) fn bytes(&self) -> Option<&Tensor> {
        match &self.0 {
            Kind::Candle(_) => None,
            Kind::Bytes { bytes, .. } => Some(bytes),
        }
    }

    /// A row of a matrix on the CPU, in f32.
    pub(super) fn row(&self, row: u32) -> Result<Tensor> {
        match &self.0 {
            Kind::Candle(tensor) => tensor.embedding(&Tensor::new(&[row], &Device::Cpu)?),
            Kind::Bytes { format, bytes, .. } => self.rows(*format, bytes, row as usize, 1),
        }
    }

    /// Rows of a matrix on the CPU, in f32, of a format that candle does not have.
    fn rows(&self, format: Format, bytes: &Tensor, first: usize, count: usize) -> Result<Tensor> {
        let (_, columns) = self.shape().dims2()?;
        let (guard, _) = bytes.storage_and_layout();
        let Storage::Cpu(CpuStorage::U8(bytes)) = &*guard else { bail!("QWeights: the blocks are not on the CPU") };
        let of_row = format.bytes(columns);
        let mut values = vec![0.0; count * columns];
        numbers(format, &bytes[first * of_row..(first + count) * of_row], &mut values);
        Tensor::from_vec(values, (count, columns), &Device::Cpu)
    }

    /// `x @ self^T` of a matrix in f32, as candle computes it: x is contiguous and in f32. Of a format that candle does not have some rows of weights are dequantised
    /// at a time, on the CPU.
    pub(super) fn product(&self, x: &Tensor) -> Result<Tensor> {
        let (format, bytes) = match &self.0 {
            Kind::Candle(tensor) => return QMatMul::QTensor(tensor.clone()).forward(x),
            Kind::Bytes { format, bytes, .. } => (*format, bytes),
        };
        if !x.device().is_cpu() || !bytes.device().is_cpu() {
            bail!("QLinear: x in {:?} and weights in {format} on {:?}: expected both on one GPU, in a build with the feature gguf, or on the CPU", x.device().location(), bytes.device().location());
        }
        let (n, k) = self.shape().dims2()?;
        let Some((&columns, outer)) = x.dims().split_last().filter(|(columns, _)| **columns == k) else {
            bail!("QLinear: x is {:?}; expected rows of {k} numbers", x.dims());
        };
        let (rows, out) = (outer.iter().product::<usize>(), [outer, &[n]].concat());
        if rows * n * k == 0 {
            return Tensor::zeros(out, x.dtype(), &Device::Cpu);
        }
        let x = x.reshape((rows, columns))?;
        let step = (AT_ONCE / k).max(1);
        let product = |first: usize| x.matmul(&self.rows(format, bytes, first, step.min(n - first))?.t()?);
        let parts = (0..n).step_by(step).map(product).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&parts, 1)?.reshape(out)
    }
}

/// Weights to make others of: how they are stored, and their blocks as in a file.
pub(crate) struct Listed<'a> {
    pub stored: Stored,
    pub shape: &'a Shape,
    pub data: Cow<'a, [u8]>,
}

impl<'a> Listed<'a> {
    pub fn of_tensor(tensor: &'a QTensor) -> Result<Self> {
        Ok(Self { stored: Stored::Candle(tensor.dtype()), shape: tensor.shape(), data: tensor.data()? })
    }

    pub fn of(weights: &'a QWeights) -> Result<Self> {
        Ok(Self { stored: weights.stored(), shape: weights.shape(), data: weights.data()? })
    }
}

impl From<Arc<QTensor>> for QWeights {
    fn from(tensor: Arc<QTensor>) -> Self {
        Self(Kind::Candle(tensor))
    }
}

impl From<QTensor> for QWeights {
    fn from(tensor: QTensor) -> Self {
        Arc::new(tensor).into()
    }
}
