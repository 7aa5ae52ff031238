//! A module's tensors, as a checkpoint stores them.

use ::candle::{bail, CpuStorage, DType, Device, Error, Result, Storage, Tensor};
use candle_nn::VarBuilder;

/// The tensors of a module. They are read to the host, whatever device and type the builder has.
pub(super) struct Module<'a> {
    vb: VarBuilder<'a>,
    /// What tensors are asked for in; without it they come as they are stored.
    shape: Option<Vec<usize>>,
}

/// Numbers of a tensor, and its shape.
pub(super) struct Array<T> {
    /// The name in the checkpoint, for errors.
    pub name: String,
    pub values: Vec<T>,
    pub dims: Vec<usize>,
}

impl<T> Array<T> {
    fn map<U>(self, with: impl FnMut(T) -> U) -> Array<U> {
        Array { name: self.name, values: self.values.into_iter().map(with).collect(), dims: self.dims }
    }
}

impl<'a> Module<'a> {
    pub fn new(vb: &VarBuilder<'a>) -> Self {
        Self { vb: vb.clone().set_device(Device::Cpu), shape: None }
    }

    /// The same module, with tensors in this shape alone: on a rank of a group, where they are stored in that shape or are to be cut to it.
    pub fn shaped(&self, dims: &[usize]) -> Self {
        Self { vb: self.vb.clone(), shape: Some(dims.into()) }
    }

    /// Refuses a rank's part that cuts blocks in two: one of `size` rows or columns, `what`, of which `block` are in each. `stored` reads how many a tensor of the
    /// checkpoint has where the part has `asked` of them.
    pub fn uncut(
        &self,
        what: &str,
        [size, block]: [usize; 2],
        asked: usize,
        stored: impl FnOnce() -> Result<Option<usize>>,
    ) -> Result<()> {
        // A last block that is short is the tensor's, unless there are more behind it.
        if size.is_multiple_of(block) || stored()?.is_none_or(|stored| stored <= asked) {
            return Ok(());
        }
        bail!(
            "{}: a rank has {size} {what}, and {block} {what} are one block; expected ranks that have a multiple of {block} {what} each",
            self.path()
        )
    }

    /// The module's path.
    pub fn path(&self) -> String {
        self.vb.prefix()
    }

    pub fn has(&self, name: &str) -> bool {
        self.vb.contains_tensor(name)
    }

    /// A name as the checkpoint has it.
    fn full(&self, name: &str) -> String {
        let path = self.path();
        if path.is_empty() {
            name.into()
        } else {
            format!("{path}.{name}")
        }
    }

    fn read(&self, name: &str, dtype: DType) -> Result<Tensor> {
        match &self.shape {
            Some(dims) => self.vb.get_with_hints_dtype(&dims[..], name, Default::default(), dtype),
            None => self.vb.get_unchecked_dtype(name, dtype),
        }
    }

    fn get(&self, name: &str, dtype: DType) -> Result<Tensor> {
        self.read(name, dtype).map_err(|error| self.explained(name, error))
    }

    /// An error of candle, with the tensor's name and what to do.
    fn explained(&self, name: &str, error: Error) -> Error {
        let name = self.full(name);
        match root(&error) {
            Error::UnsupportedSafeTensorDtype(dtype) => {
                let dtype = format!("{dtype:?}");
                Error::msg(if dtype.ends_with("FNUZ") {
                    format!("{name}: it is stored in {dtype}, whose codes stand for other numbers than those of F8_E4M3; no kernel reads it: convert the checkpoint")
                } else {
                    format!("{name}: it is stored in {dtype}, which candle does not load; make the VarBuilder by nn::narrow::Checkpoint")
                })
            }
            Error::CannotFindTensor { .. } => Error::msg(format!("{name}: no such tensor")),
            Error::UnexpectedShape { got, expected, .. } => {
                Error::msg(format!("{name}: the shape is {:?}; expected {:?}", got.dims(), expected.dims()))
            }
            _ => error.context(name),
        }
    }

    fn array<T>(&self, name: &str, dtype: DType, list: impl Fn(&Tensor) -> Result<Vec<T>>) -> Result<Array<T>> {
        self.list(name, &self.get(name, dtype)?, list)
    }

    fn list<T>(&self, name: &str, tensor: &Tensor, list: impl Fn(&Tensor) -> Result<Vec<T>>) -> Result<Array<T>> {
        Ok(Array { name: self.full(name), values: list(&tensor.flatten_all()?)?, dims: tensor.dims().to_vec() })
    }

    /// Words of 32 bits, stored as I32 or U32.
    pub fn words(&self, name: &str) -> Result<Array<u32>> {
        Ok(self.array(name, DType::I32, Tensor::to_vec1::<i32>)?.map(i32::cast_unsigned))
    }

    /// Integers of any type.
    pub fn integers(&self, name: &str) -> Result<Array<i64>> {
        self.array(name, DType::I64, Tensor::to_vec1::<i64>)
    }

    /// Bytes: U8, or I8 by [`Checkpoint`](super::Checkpoint).
    pub fn bytes(&self, name: &str) -> Result<Array<u8>> {
        self.array(name, DType::U8, Tensor::to_vec1::<u8>)
    }

    /// The codes of a tensor in F8_E4M3.
    pub fn fp8(&self, name: &str) -> Result<Array<u8>> {
        let codes = self.array(name, DType::F8E4M3, Tensor::to_vec1::<float8::F8E4M3>)?;
        Ok(codes.map(|code| code.to_bits()))
    }

    /// Numbers in f32, which has those of F16, BF16, F8_E4M3 and F8_E8M0 exactly.
    pub fn floats(&self, name: &str) -> Result<Array<f32>> {
        match self.cast(name, DType::F32)? {
            Some(tensor) => self.list(name, &tensor, Tensor::to_vec1::<f32>),
            None => Ok(self.raw(name, DType::F8E8M0)?.map(super::codes::e8m0)),
        }
    }

    /// Exponents of powers of two, stored as bytes or as F8_E8M0.
    pub fn exponents(&self, name: &str) -> Result<Array<u8>> {
        match self.cast(name, DType::U8)? {
            Some(tensor) => self.list(name, &tensor, Tensor::to_vec1::<u8>),
            None => self.raw(name, DType::F8E8M0),
        }
    }

    /// Bytes of two codes of 4 bits, (.., k / 2), stored as U8, or as F4, whose shape is that of the codes.
    pub fn nibbles(&self, name: &str) -> Result<Array<u8>> {
        let error = match self.read(name, DType::U8) {
            Ok(tensor) => return self.list(name, &tensor, Tensor::to_vec1::<u8>),
            Err(error) => self.explained(name, error),
        };
        let mut shape = self.shape.clone();
        if let Some(last) = shape.as_mut().and_then(|dims| dims.last_mut()) {
            *last *= 2;
        }
        let of_codes = Self { vb: self.vb.clone(), shape };
        let Ok(mut codes) = of_codes.raw(name, DType::F4) else { return Err(error) };
        if let Some(last) = codes.dims.last_mut() {
            *last /= 2;
        }
        Ok(codes)
    }

    /// The tensor in this type; none of a tensor in a type that candle only stores.
    fn cast(&self, name: &str, dtype: DType) -> Result<Option<Tensor>> {
        match self.read(name, dtype) {
            Ok(tensor) => Ok(Some(tensor)),
            Err(error) if matches!(root(&error), Error::UnsupportedDTypeForOp(..)) => Ok(None),
            Err(error) => Err(self.explained(name, error)),
        }
    }

    /// The bytes of a tensor in a type that candle only stores.
    fn raw(&self, name: &str, dtype: DType) -> Result<Array<u8>> {
        let tensor = self.get(name, dtype)?;
        let (storage, layout) = tensor.storage_and_layout();
        match &*storage {
            Storage::Cpu(CpuStorage::F8E8M0(bytes) | CpuStorage::F4(bytes)) if layout.start_offset() == 0 => {
                Ok(Array { name: self.full(name), values: bytes.clone(), dims: tensor.dims().to_vec() })
            }
            _ => bail!("{}: the tensor is not in {dtype:?} on the CPU", self.full(name)),
        }
    }
}

/// The error itself, without what was wrapped around it.
fn root(error: &Error) -> &Error {
    match error {
        Error::WithBacktrace { inner, .. } | Error::Context { inner, .. } | Error::WithPath { inner, .. } => {
            root(inner)
        }
        error => error,
    }
}
