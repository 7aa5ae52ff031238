//! Checkpoints with types that candle does not load.

use ::candle::safetensors::{BufferedSafetensors, Load, MmapedSafetensors};
use ::candle::{bail, DType, Device, Error, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

/// Safetensors files for a `VarBuilder`, as candle has them, with two differences: tensors in I8 and F8_E5M2, which candle refuses, are there as bytes (U8), and a
/// tensor is not cast where that would lose or mistake numbers: to F8_E4M3 or bytes from another type, and between integers and floating point.
///
/// ```
/// use candle::safetensors::BufferedSafetensors;
/// use candle::{DType, Device};
/// use candle_tilegemm::nn::narrow::Checkpoint;
///
/// let header = br#"{"weight":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}"#;
/// let file = [&(header.len() as u64).to_le_bytes()[..], header, &[255, 1]].concat();
/// let vb = Checkpoint::from(BufferedSafetensors::new(file)?).var_builder(DType::BF16, &Device::Cpu);
/// assert_eq!(vb.get_unchecked_dtype("weight", DType::U8)?.to_vec1::<u8>()?, [255, 1]);
/// # Ok::<(), candle::Error>(())
/// ```
pub struct Checkpoint(Files);

enum Files {
    Mapped(MmapedSafetensors),
    Buffered(BufferedSafetensors),
}

impl From<MmapedSafetensors> for Checkpoint {
    fn from(files: MmapedSafetensors) -> Self {
        Self(Files::Mapped(files))
    }
}

impl From<BufferedSafetensors> for Checkpoint {
    fn from(file: BufferedSafetensors) -> Self {
        Self(Files::Buffered(file))
    }
}

impl Checkpoint {
    /// A builder of the files' tensors.
    pub fn var_builder(self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self), dtype, device.clone())
    }
}

impl SimpleBackend for Checkpoint {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if tensor.shape() != &shape {
            let (msg, got) = (format!("shape mismatch for {name}"), tensor.shape().clone());
            return Err(Error::UnexpectedShape { msg, expected: shape, got }.bt());
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let view = match &self.0 {
            Files::Mapped(files) => files.get(name)?,
            Files::Buffered(file) => file.get(name)?,
        };
        let stored = format!("{:?}", view.dtype());
        if ["I8", "F8_E5M2"].contains(&stored.as_str()) {
            if dtype != DType::U8 {
                bail!("{name} is stored in {stored}, which candle has as bytes only; expected it to be read as U8, not as {dtype:?}");
            }
            return Tensor::from_slice(view.data(), view.shape(), device);
        }
        let tensor = view.load(device)?;
        let is_opaque = [DType::F4, DType::F8E8M0].contains(&tensor.dtype());
        let is_exact = match dtype {
            _ if tensor.dtype() == dtype || is_opaque => true, // candle casts none of the opaque types
            DType::U8 | DType::F8E4M3 => false,
            dtype => tensor.dtype().is_float() == dtype.is_float(),
        };
        if !is_exact {
            bail!("{name} is stored in {stored}; expected {dtype:?}");
        }
        tensor.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        match &self.0 {
            Files::Mapped(files) => files.get(name).is_ok(),
            Files::Buffered(file) => file.get(name).is_ok(),
        }
    }
}
