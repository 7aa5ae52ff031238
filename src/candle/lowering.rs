//! From candle's tensors and layouts to a [`Problem`].

use crate::problem::{power_of_two_in, Activation, Batch, BiasAxis, Epilogue, F32Mode, Format, Operand, Problem};
use ::candle::backend::{BackendDevice, BackendStorage};
use ::candle::{DeviceLocation, Error, Layout, Result, Shape, Tensor};

/// The meaning of the op's third input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Third {
    Bias,
    Residual,
}

/// `activation(alpha * lhs @ rhs + bias) + beta * residual`, where the third input is the bias or the residual.
#[derive(Debug, Clone)]
pub(super) struct GemmOp {
    pub alpha: f64,
    pub beta: f64,
    pub activation: Activation,
    /// The mode that the call asks for.
    pub f32_mode: Option<F32Mode>,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // the CPU adds up every element in the same order
    pub batch_invariant: bool,
    /// The element type of the result; `None` for the operands' type.
    pub out: Option<::candle::DType>,
    pub third: Option<Third>,
    /// A contiguous residual beside a bias; no gradient of this op reaches the residual.
    pub residual: Option<Tensor>,
    /// Whether the residual multiplies, rather than is added.
    pub gates_c: bool,
}

/// The format of a tensor's elements.
pub(super) fn format_of(dtype: ::candle::DType) -> Result<Format> {
    match dtype {
        ::candle::DType::F16 => Ok(Format::F16),
        ::candle::DType::BF16 => Ok(Format::BF16),
        ::candle::DType::F32 => Ok(Format::F32),
        ::candle::DType::F64 => Ok(Format::F64),
        _ => Err(Error::UnsupportedDTypeForOp(dtype, "matmul").bt()),
    }
}

/// The batch dimensions of a product: those of both operands, broadcast.
fn batch_dims(lhs: &[usize], rhs: &[usize]) -> Result<Shape> {
    let batch = |dims: &[usize]| Shape::from(&dims[..dims.len() - 2]);
    batch(lhs).broadcast_shape_binary_op(&batch(rhs), "matmul")
}

/// The shape of a product.
pub(super) fn product_shape(lhs: &[usize], rhs: &[usize]) -> Result<Shape> {
    Ok(batch_dims(lhs, rhs)?.extend(&[lhs[lhs.len() - 2], rhs[rhs.len() - 1]]))
}

/// An operand as kernels read it: where it lies, or as a dense copy.
pub(super) struct Readable<'a, S> {
    original: &'a S,
    copy: Option<S>,
    layout: Layout,
}

impl<'a, S> Readable<'a, S>
where
    S: BackendStorage<Device: BackendDevice<Storage = S>>,
{
    fn new((original, layout): (&'a S, &Layout)) -> Self {
        Self { original, copy: None, layout: layout.clone() }
    }

    pub fn get(&self) -> (&S, &Layout) {
        (self.copy.as_ref().unwrap_or(self.original), &self.layout)
    }

    fn contiguous(self) -> Result<Self> {
        if self.layout.is_contiguous() {
            return Ok(self);
        }
        let (storage, layout) = self.get();
        // SAFETY: the copy that follows writes every element.
        let mut copy = unsafe { storage.device().alloc_uninit(layout.shape(), storage.dtype())? };
        storage.copy_strided_src(&mut copy, 0, layout)?;
        Ok(Self { original: self.original, copy: Some(copy), layout: Layout::contiguous(layout.shape()) })
    }

    fn with_contiguous_matrices(self) -> Result<Self> {
        let (rows, cols) = self.layout.dims2_last();
        match self.layout.stride() {
            [.., row_stride, col_stride] if *col_stride == 1 || *row_stride == 1 || rows == 1 || cols == 1 => Ok(self),
            _ => self.contiguous(),
        }
    }

    fn broadcast(self, batch: &Shape) -> Result<Self> {
        let (rows, cols) = self.layout.dims2_last();
        let layout = self.layout.broadcast_as(batch.clone().extend(&[rows, cols]))?;
        Ok(Self { layout, ..self })
    }
}

/// The operands with the batch dimensions of their product, copied where kernels cannot read them: matrices without a contiguous dimension, batch
/// dimensions that cannot be reduced to two, and on the CPU layouts that candle's product does not support.
pub(super) fn readable<'a, S>(operands: [(&'a S, &Layout); 2]) -> Result<[Readable<'a, S>; 2]>
where
    S: BackendStorage<Device: BackendDevice<Storage = S>>,
{
    let batch = batch_dims(operands[0].1.dims(), operands[1].1.dims())?;
    let on_cpu = matches!(operands[0].0.device().location(), DeviceLocation::Cpu);
    let [lhs, rhs] = operands.map(|operand| Readable::new(operand).with_contiguous_matrices()?.broadcast(&batch));
    let (lhs, rhs) = (lhs?, rhs?);
    match batch_of(&lhs.layout, &rhs.layout) {
        Some(_) if !on_cpu => Ok([lhs, rhs]),
        // candle 0.11.1 folds a batch over one rhs into the rows of lhs, even where the rows are not contiguous.
        Some(batch) if batch.sizes[0] == 1 && batch.strides[1] == [0, 0] => Ok([lhs.contiguous()?, rhs]),
        Some(batch) if batch.sizes[0] == 1 => Ok([lhs, rhs]),
        _ => Ok([lhs.contiguous()?, rhs.contiguous()?]),
    }
}

/// The last two dimensions.
pub(super) trait MatrixDims {
    fn dims2_last(&self) -> (usize, usize);
}

impl MatrixDims for Layout {
    fn dims2_last(&self) -> (usize, usize) {
        let dims = self.dims();
        (dims[dims.len() - 2], dims[dims.len() - 1])
    }
}

/// The batch dimensions of both operands and of a dense result, reduced to two.
pub(super) fn batch_of(lhs: &Layout, rhs: &Layout) -> Option<Batch<2>> {
    let rank = lhs.dims().len() - 2;
    Batch::collapse(&lhs.dims()[..rank], [&lhs.stride()[..rank], &rhs.stride()[..rank]])
}

fn operand(format: Format, layout: &Layout, batch_stride: [i64; 2], pointer_align: u32) -> Operand {
    let [.., row_stride, col_stride] = layout.stride() else { unreachable!("operands have two dimensions") };
    let strides = [*row_stride as i64, *col_stride as i64];
    Operand { pointer_align, ..Operand::new(format, strides, batch_stride) }
}

/// The effective mode for a call that asks for `asked`; without `asked`, the mode of a candle `matmul` through the
/// interposer.
#[cfg(feature = "cuda")]
fn f32_mode(asked: Option<F32Mode>) -> Result<F32Mode> {
    let asked = asked.or(::candle::cuda_backend::gemm_reduced_precision_f32().then_some(F32Mode::Tf32));
    Ok(asked.map_or_else(crate::problem::f32_mode::f32_mode, Ok)?)
}

#[cfg(not(feature = "cuda"))]
fn f32_mode(asked: Option<F32Mode>) -> Result<F32Mode> {
    Ok(asked.unwrap_or_default())
}

/// The alignment of a layout's first element, in a well-aligned allocation.
fn offset_align(layout: &Layout, format: Format) -> u32 {
    power_of_two_in(format.bytes(layout.start_offset()) as u64)
}

impl GemmOp {
    /// This op's problem for operands with these layouts. `align` gives the alignment of the addresses of A, B, C and D
    /// where the caller knows more than the layouts say.
    pub fn problem(&self, format: Format, lhs: &Layout, rhs: &Layout, align: Option<[u32; 4]>) -> Result<Problem> {
        let Some(batch) = batch_of(lhs, rhs) else {
            ::candle::bail!("gemm: more than two batch dimensions remain; this is a bug in `readable`")
        };
        let (m, n) = (lhs.dims2_last().0, rhs.dims2_last().1);
        let align = align.unwrap_or([offset_align(lhs, format), offset_align(rhs, format), u32::MAX, u32::MAX]);
        let matrix = (m * n) as i64;
        let d = Operand::row_major(self.format_of_result(format)?, n, [matrix * batch.sizes[1] as i64, matrix]);
        let [a, b] = [(lhs, 0), (rhs, 1)].map(|(layout, i)| operand(format, layout, batch.strides[i], align[i]));
        let [c, d] = [align[2], align[3]].map(|pointer_align| Operand { pointer_align, ..d });
        self.problem_of([a, b, c, d], [lhs, rhs], batch.sizes)
    }

    /// This op's problem for operands, a residual and a result where they lie; `None` where the batch dimensions cannot be reduced to two.
    #[cfg(feature = "cuda")]
    pub fn problem_of_layouts(&self, format: Format, layouts: [&Layout; 4]) -> Result<Option<Problem>> {
        let rank = layouts[3].dims().len() - 2;
        let dims = &layouts[3].dims()[..rank];
        let Some(batch) = Batch::collapse(dims, layouts.map(|layout| &layout.stride()[..rank])) else {
            return Ok(None);
        };
        let out = self.format_of_result(format)?;
        let formats = [format, format, out, out];
        let operands = std::array::from_fn(|i| operand(formats[i], layouts[i], batch.strides[i], u32::MAX));
        self.problem_of(operands, [layouts[0], layouts[1]], batch.sizes).map(Some)
    }

    fn format_of_result(&self, operands: Format) -> Result<Format> {
        self.out.map_or(Ok(operands), format_of)
    }

    fn problem_of(&self, [a, b, c, d]: [Operand; 4], [lhs, rhs]: [&Layout; 2], batch: [usize; 2]) -> Result<Problem> {
        let ((m, k), (_, n)) = (lhs.dims2_last(), rhs.dims2_last());
        let fuses_residual = self.third == Some(Third::Residual) || self.residual.is_some();
        let mut epilogue = Epilogue::new(self.alpha, if fuses_residual { self.beta } else { 0.0 });
        epilogue.activation = self.activation;
        epilogue.bias = (self.third == Some(Third::Bias)).then_some(BiasAxis::N);
        epilogue.c = fuses_residual.then_some(c);
        epilogue.gates_c = self.gates_c;
        let f32_mode = if a.format == Format::F32 { f32_mode(self.f32_mode)? } else { F32Mode::default() };
        Ok(Problem { epilogue, f32_mode, ..Problem::new([m, n, k], batch, a, b, d) })
    }
}
