//! What the blocks of a layer ask of their tensors, on every device.

use ::candle::{bail, DType, Device, Result, Storage, Tensor};

/// A block, by its name in errors.
#[derive(Clone, Copy)]
pub(super) struct Block(pub &'static str);

/// A tensor as rows of numbers side by side.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub tensor: &'a Tensor,
    pub rows: usize,
    pub columns: usize,
    /// Numbers from a row to the next.
    pub stride: usize,
}

impl Block {
    /// Refuses a tensor that tracks gradients.
    pub fn untracked(&self, what: &str, tensor: &Tensor) -> Result<()> {
        if tensor.track_op() {
            bail!("{}: {what} tracks gradients, and this block passes none; call `.detach()` on it, or train with candle_nn's own", self.0);
        }
        Ok(())
    }

    /// The tensor as rows of its last dimensions, which have `columns` numbers together.
    pub fn rows<'a>(&self, what: &str, tensor: &'a Tensor, columns: usize) -> Result<Rows<'a>> {
        self.untracked(what, tensor)?;
        let (dims, strides) = (tensor.dims(), tensor.stride());
        // From the last dimension: those of a row, then those of rows.
        let (mut inner, mut rows, mut stride, mut is_whole) = (1, 1, None, true);
        for (&size, &step) in dims.iter().zip(strides).rev() {
            if inner < columns {
                is_whole &= size == 1 || step == inner;
                inner *= size;
            } else if size != 1 {
                is_whole &= stride.is_none_or(|stride| step == stride * rows);
                stride = stride.or(Some(step));
                rows *= size;
            }
        }
        if inner != columns {
            bail!("{}: {what} has the shape {dims:?}; expected rows of {columns} numbers", self.0);
        }
        if !is_whole && rows > 0 {
            bail!("{}: {what} does not lie in rows of {columns} numbers; call `.contiguous()?` on it", self.0);
        }
        Ok(Rows { tensor, rows, columns, stride: stride.unwrap_or(columns) })
    }

    /// Rows in the type and on the device of another tensor.
    pub fn rows_like<'a>(&self, what: &str, tensor: &'a Tensor, of: Rows) -> Result<Rows<'a>> {
        self.same(what, tensor, of.tensor)?;
        self.rows_as_many(what, tensor, of)
    }

    /// As many rows of as many numbers on the device of another tensor, in any type.
    pub fn rows_as_many<'a>(&self, what: &str, tensor: &'a Tensor, of: Rows) -> Result<Rows<'a>> {
        if !tensor.device().same_device(of.tensor.device()) {
            let (have, need) = (tensor.device().location(), of.tensor.device().location());
            bail!("{}: {what} is on {have:?}; expected {need:?}", self.0);
        }
        let rows = self.rows(what, tensor, of.columns)?;
        if rows.rows != of.rows {
            bail!("{}: {what} has the shape {:?}; expected {:?}", self.0, tensor.dims(), of.tensor.dims());
        }
        Ok(rows)
    }

    /// Refuses a tensor of another type or on another device.
    pub fn same(&self, what: &str, tensor: &Tensor, of: &Tensor) -> Result<()> {
        if tensor.dtype() != of.dtype() || !tensor.device().same_device(of.device()) {
            let (have, need) = ((tensor.dtype(), tensor.device().location()), (of.dtype(), of.device().location()));
            bail!("{}: {what} is {:?} on {:?}; expected {:?} on {:?}", self.0, have.0, have.1, need.0, need.1);
        }
        Ok(())
    }

    /// Refuses all but a contiguous list of `count` numbers in `dtype` on the device.
    pub fn list(&self, what: &str, tensor: &Tensor, dtype: DType, count: usize, device: &Device) -> Result<()> {
        let is_list = tensor.elem_count() == count && tensor.dtype() == dtype && tensor.is_contiguous();
        if !is_list || !tensor.device().same_device(device) {
            bail!(
                "{}: {what} is {:?} {:?} on {:?}; expected {count} contiguous numbers in {dtype:?} on {:?}",
                self.0,
                tensor.dtype(),
                tensor.dims(),
                tensor.device().location(),
                device.location()
            );
        }
        self.untracked(what, tensor)
    }

    /// The same for a tensor that may be missing.
    pub fn list_of(
        &self,
        what: &str,
        tensor: Option<&Tensor>,
        dtype: DType,
        count: usize,
        device: &Device,
    ) -> Result<()> {
        tensor.map_or(Ok(()), |tensor| self.list(what, tensor, dtype, count, device))
    }

    /// Refuses a type that is none of these.
    pub fn among(&self, what: &str, tensor: &Tensor, dtypes: &[DType]) -> Result<()> {
        if !dtypes.contains(&tensor.dtype()) {
            bail!("{}: {what} is in {:?}; expected one of {dtypes:?}", self.0, tensor.dtype());
        }
        Ok(())
    }

    /// Refuses a result that shares numbers with an input.
    pub fn apart(&self, what: &str, input: &Tensor, out: &Tensor) -> Result<()> {
        if overlap(input, out) {
            bail!("{}: {what} and the result share memory; write to another tensor", self.0);
        }
        Ok(())
    }

    /// Refuses a result that shares numbers with what is added to it or multiplied, unless it is that tensor itself. Returns whether it is.
    pub fn apart_or_same(&self, what: &str, residual: &Tensor, out: &Tensor) -> Result<bool> {
        if !overlap(residual, out) {
            return Ok(false);
        }
        let places = |t: &Tensor| -> Vec<(usize, usize)> {
            let strides = t.dims().iter().zip(t.stride()).map(|(&size, &stride)| (size, stride));
            strides.filter(|(size, _)| *size != 1).collect()
        };
        let starts = [residual, out].map(|t| t.layout().start_offset());
        if starts[0] != starts[1] || places(residual) != places(out) {
            bail!("{}: {what} and the result share a part of their memory; the result may be that tensor itself, or apart from it", self.0);
        }
        Ok(true)
    }

    /// The error of a device that this build has no kernels for.
    pub fn elsewhere<T>(&self, device: &Device) -> Result<T> {
        bail!("{} runs on the CPU, and with CUDA: build with the feature layers for {:?}", self.0, device.location())
    }
}

/// What tells storages apart.
pub(super) fn key(tensor: &Tensor) -> usize {
    std::ptr::from_ref::<Storage>(&tensor.storage_and_layout().0).addr()
}

/// Whether two tensors have numbers in common, or may have: columns of one matrix that lie beside one another have none.
fn overlap(x: &Tensor, y: &Tensor) -> bool {
    if x.elem_count() == 0 || y.elem_count() == 0 || key(x) != key(y) {
        return false;
    }
    let [(x0, x_end), (y0, y_end)] = [x, y].map(|t| {
        let steps = t.dims().iter().zip(t.stride()).map(|(size, stride)| (size - 1) * stride);
        let first = t.layout().start_offset();
        (first, first + steps.sum::<usize>() + 1)
    });
    if x_end <= y0 || y_end <= x0 {
        return false;
    }
    match (columns(x), columns(y)) {
        (Some((width, stride)), Some((other, same))) if stride == same => {
            let (a, b) = (x0 % stride, y0 % stride);
            let (first, width, second, other) = if a <= b { (a, width, b, other) } else { (b, other, a, width) };
            first + width > second || second + other > first + stride
        }
        _ => true,
    }
}

/// The numbers side by side in a row, and from a row to the next, where rows of a matrix with longer rows are all that a tensor has.
fn columns(tensor: &Tensor) -> Option<(usize, usize)> {
    let dims = tensor.dims().iter().zip(tensor.stride()).rev().filter(|(size, _)| **size != 1);
    let mut width = 1;
    let mut of_rows = dims.skip_while(|(size, stride)| {
        let goes_on = **stride == width;
        width *= if goes_on { **size } else { 1 };
        goes_on
    });
    let (_, &stride) = of_rows.next()?;
    of_rows.all(|(_, step)| step % stride == 0).then_some(())?;
    (stride > width).then_some((width, stride))
}

/// The types of numbers that blocks compute with.
pub(super) const FLOATS: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// A tensor whose every number the caller writes.
pub(super) fn unwritten(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    // SAFETY: the caller's block writes every number before anything reads it.
    unsafe { Tensor::empty(shape, dtype, device) }
}
