//! Checkpoints with types that candle does not load.

use crate::candle::nn::parallel::Group;
use ::candle::safetensors::{BufferedSafetensors, Load, MmapedSafetensors};
use ::candle::{bail, DType, Device, Error, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use std::ops::Range;

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
pub struct Checkpoint {
    files: Files,
    group: Group,
}

enum Files {
    Mapped(MmapedSafetensors),
    Buffered(BufferedSafetensors),
}

impl From<MmapedSafetensors> for Checkpoint {
    fn from(files: MmapedSafetensors) -> Self {
        Self { files: Files::Mapped(files), group: Group::one() }
    }
}

impl From<BufferedSafetensors> for Checkpoint {
    fn from(file: BufferedSafetensors) -> Self {
        Self { files: Files::Buffered(file), group: Group::one() }
    }
}

impl Checkpoint {
    /// The files for a rank of a group. A tensor that is asked for in a shape which is the file's but for one dimension, there as many times as long as the group has
    /// ranks, is the rank's part of it: no rank reads the others' parts. A tensor in the file's own shape is whole on every rank, but for matrices of weights: they are
    /// whole in modules that are called `gate` or `router` and in those of one expert (`experts.3.up_proj`), and elsewhere an error, as they would count once for each
    /// rank.
    ///
    /// Layers with narrow weights take parts of whole groups, blocks and words, of checkpoints whose columns lie in order; others are errors.
    ///
    /// ```
    /// use candle::safetensors::BufferedSafetensors;
    /// use candle::{DType, Device};
    /// use candle_tilegemm::nn::narrow::Checkpoint;
    /// use candle_tilegemm::nn::parallel::Group;
    /// use std::time::Duration;
    ///
    /// let header = br#"{"weight":{"dtype":"U8","shape":[2,4],"data_offsets":[0,8]}}"#;
    /// let file = [&(header.len() as u64).to_le_bytes()[..], header, &[1, 2, 3, 4, 5, 6, 7, 8]].concat();
    /// let group = &Group::threads(2, Duration::from_secs(1))?[1];
    /// let vb = Checkpoint::from(BufferedSafetensors::new(file)?).of_rank(group).var_builder(DType::U8, &Device::Cpu);
    /// assert_eq!(vb.get((1, 4), "weight")?.to_vec2::<u8>()?, [[5, 6, 7, 8]]);
    /// assert_eq!(vb.get((2, 2), "weight")?.to_vec2::<u8>()?, [[3, 4], [7, 8]]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    pub fn of_rank(self, group: &Group) -> Self {
        Self { group: group.clone(), ..self }
    }

    /// A builder of the files' tensors.
    pub fn var_builder(self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self), dtype, device.clone())
    }

    /// A tensor as it is stored, to be read in `dtype`, and how the file names its type: the rank's part where `shape` is a part's. Nothing of a tensor in another shape is read.
    fn stored(&self, name: &str, shape: Option<&[usize]>, dtype: DType, device: &Device) -> Result<(Tensor, String)> {
        let view = match &self.files {
            Files::Mapped(files) => files.get(name)?,
            Files::Buffered(file) => file.get(name)?,
        };
        let (stored, dims) = (format!("{:?}", view.dtype()), view.shape());
        let bytes_alone = ["I8", "F8_E5M2"].contains(&stored.as_str());
        if bytes_alone && dtype != DType::U8 {
            bail!("{name} is stored in {stored}, which candle has as bytes only; expected it to be read as U8, not as {dtype:?}");
        }
        let dimension = shape.and_then(|shape| cut(dims, shape, self.group.size()));
        if dimension.is_none() && shape == Some(dims) && self.group.size() > 1 && is_split(name, dims) {
            bail!("{name}: the file has the shape {dims:?}, which is what one of {} ranks has of it; expected the files of the model that the config describes. A matrix that all ranks have whole is read without `of_rank`", self.group.size());
        }
        if let Some(shape) = shape.filter(|shape| dimension.is_none() && *shape != dims) {
            let (msg, got) = (format!("shape mismatch for {name}"), dims.into());
            return Err(Error::UnexpectedShape { msg, expected: shape.into(), got }.bt());
        }
        let tensor = match (dimension, shape) {
            (Some(dimension), Some(shape)) => {
                let dtype = if bytes_alone { DType::U8 } else { view.dtype().try_into()? };
                let Some(part) = part(view.data(), dims, dimension, self.group.part(name, dims[dimension])?) else {
                    bail!("{name}: a part of {shape:?} of {dims:?} in {stored} has no whole bytes");
                };
                Tensor::from_raw_buffer(&part, dtype, shape, device)?
            }
            _ if bytes_alone => Tensor::from_slice(view.data(), dims, device)?,
            _ => view.load(device)?,
        };
        Ok((tensor, stored))
    }

    fn read(&self, name: &str, shape: Option<&[usize]>, dtype: DType, device: &Device) -> Result<Tensor> {
        let (tensor, stored) = self.stored(name, shape, dtype, device)?;
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
}

/// Whether each rank has a part of a tensor: of all matrices of weights but those of routers, and those of one expert, which may be another rank's.
fn is_split(name: &str, dims: &[usize]) -> bool {
    let (module, tensor) = name.rsplit_once('.').unwrap_or(("", name));
    let is_router = ["gate", "router"].contains(&module.rsplit('.').next().unwrap_or(module));
    let parts: Vec<&str> = module.split('.').collect();
    let is_of_expert = parts.windows(2).any(|of| of[0] == "experts" && of[1].parse::<usize>().is_ok());
    let has_weights = ["weight", "qweight", "weight_packed"].contains(&tensor) || tensor.ends_with("_blocks");
    dims.len() > 1 && has_weights && !is_router && !is_of_expert
}

/// The one dimension in which `dims` are as many times as long as `shape` as there are ranks, where all others are the same.
fn cut(dims: &[usize], shape: &[usize], ranks: usize) -> Option<usize> {
    if ranks == 1 || dims.len() != shape.len() {
        return None;
    }
    let mut others = (0..dims.len()).filter(|i| dims[*i] != shape[*i]);
    let dimension = others.next()?;
    (others.next().is_none() && dims[dimension] == ranks * shape[dimension]).then_some(dimension)
}

/// The bytes of a range of a dimension; none where numbers have no whole bytes.
fn part(data: &[u8], dims: &[usize], dimension: usize, range: Range<usize>) -> Option<Vec<u8>> {
    if data.is_empty() {
        return Some(vec![]);
    }
    let (outer, size) = (dims[..dimension].iter().product::<usize>(), dims[dimension]);
    let bytes = data.len() / outer; // of the whole dimension
    let is_whole = data.len().is_multiple_of(outer) && (bytes * range.len()).is_multiple_of(size);
    let at = |index: usize| bytes * index / size;
    let lines = data.chunks_exact(bytes).map(|line| &line[at(range.start)..at(range.end)]);
    is_whole.then(|| lines.collect::<Vec<_>>().concat())
}

impl SimpleBackend for Checkpoint {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        self.read(name, Some(shape.dims()), dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.read(name, None, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        match &self.files {
            Files::Mapped(files) => files.get(name).is_ok(),
            Files::Buffered(file) => file.get(name).is_ok(),
        }
    }
}
