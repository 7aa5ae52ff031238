//! `cublasLtMatmul`: the contract for its descriptors, and the definition.

use super::count::Forwarded;
use super::cublas::{formats, read_scalar};
use super::define::define;
use super::lt_factors::{self, Factors};
use super::lt_header::*;
use super::vendor::{Contract, Product, Refusal};
use crate::error::{Error, Result};
use crate::launch::cublas::api::{Library, CUDA_R_32F, CUDA_R_64F, OP_C, OP_N};
use crate::launch::{Pointers, Queue};
use crate::problem::f32_mode::{compute_type, f32_mode};
use crate::problem::{power_of_two_in, Activation, BiasAxis, Epilogue, F32Mode, Format, Operand, Problem};
use once_cell::sync::OnceCell;
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::ptr::null_mut;

/// `cublasLtMatmulDescGetAttribute` and `cublasLtMatrixLayoutGetAttribute`: descriptor, attribute, value, its bytes, bytes written.
type GetAttribute = unsafe extern "C" fn(*const c_void, c_int, *mut c_void, usize, *mut usize) -> c_int;

/// The functions of libcublasLt that read descriptors.
struct Readers {
    matmul: GetAttribute,
    layout: GetAttribute,
}

fn readers() -> Result<&'static Readers> {
    static READERS: OnceCell<Readers> = OnceCell::new();
    READERS.get_or_try_init(|| {
        // SAFETY: cublasLt.h declares these types.
        unsafe {
            Ok(Readers {
                matmul: Library::CublasLt.function("cublasLtMatmulDescGetAttribute")?,
                layout: Library::CublasLt.function("cublasLtMatrixLayoutGetAttribute")?,
            })
        }
    })
}

/// An attribute; `None` where this version of the library has no attribute of that number and size.
///
/// # Safety
/// `descriptor` is a descriptor of the function, and `T` is a number or a pointer.
unsafe fn get<T: Copy>(function: GetAttribute, descriptor: *const c_void, attribute: c_int, unset: T) -> Option<T> {
    let (mut value, mut written) = (unset, 0);
    // SAFETY: the caller's descriptor, and valid places to write to.
    let status = unsafe { function(descriptor, attribute, (&raw mut value).cast(), size_of::<T>(), &raw mut written) };
    (status == 0 && written == size_of::<T>()).then_some(value)
}

/// The attributes of `cublasLtMatmulDesc_t` that the contract admits.
#[derive(Debug, Clone, Copy)]
struct Matmul {
    compute_type: c_int,
    scale_type: c_int,
    pointer_mode: c_int,
    ops: [c_int; 2],
    epilogue: c_int,
    bias: *const c_void,
    bias_stride: i64,
    bias_type: c_int,
    factors: Factors,
    /// Whether every other attribute has the default value.
    is_plain: bool,
}

/// `CUBLAS_FILL_MODE_FULL` of cublas_api.h.
const FILL_MODE_FULL: c_int = 2;

impl Matmul {
    /// # Safety
    /// `descriptor` is a `cublasLtMatmulDesc_t`.
    unsafe fn read(descriptor: *const c_void, function: GetAttribute) -> Option<Self> {
        // SAFETY: the caller's descriptor; cublasLt.h gives the types.
        let number = |attribute| unsafe { get::<c_int>(function, descriptor, attribute, 0) };
        // SAFETY: as above.
        let address = |attribute| unsafe { get::<usize>(function, descriptor, attribute, 0) };
        // Also the chunks of D for atomic synchronisation, which version 13 no longer has.
        let numbers = [
            MATMUL_DESC_TRANSC,
            MATMUL_DESC_SM_COUNT_TARGET,
            MATMUL_DESC_ATOMIC_SYNC_NUM_CHUNKS_D_ROWS,
            MATMUL_DESC_ATOMIC_SYNC_NUM_CHUNKS_D_COLS,
        ];
        let addresses = [
            MATMUL_DESC_C_SCALE_POINTER,
            MATMUL_DESC_D_SCALE_POINTER,
            MATMUL_DESC_AMAX_D_POINTER,
            MATMUL_DESC_EMULATION_DESCRIPTOR,
        ];
        let are_unset = numbers.into_iter().all(|attribute| number(attribute).is_none_or(|value| value == 0))
            && addresses.into_iter().all(|attribute| address(attribute).is_none_or(|value| value == 0));
        Some(Self {
            compute_type: number(MATMUL_DESC_COMPUTE_TYPE)?,
            scale_type: number(MATMUL_DESC_SCALE_TYPE)?,
            pointer_mode: number(MATMUL_DESC_POINTER_MODE)?,
            ops: [number(MATMUL_DESC_TRANSA)?, number(MATMUL_DESC_TRANSB)?],
            epilogue: number(MATMUL_DESC_EPILOGUE)?,
            bias: address(MATMUL_DESC_BIAS_POINTER)? as *const c_void,
            // SAFETY: as above.
            bias_stride: unsafe { get::<i64>(function, descriptor, MATMUL_DESC_BIAS_BATCH_STRIDE, 0)? },
            bias_type: number(MATMUL_DESC_BIAS_DATA_TYPE)?,
            factors: Factors {
                addresses: [MATMUL_DESC_A_SCALE_POINTER, MATMUL_DESC_B_SCALE_POINTER]
                    .map(|attribute| address(attribute).unwrap_or(0) as *const c_void),
                // Versions before these modes have one factor.
                modes: [MATMUL_DESC_A_SCALE_MODE, MATMUL_DESC_B_SCALE_MODE]
                    .map(|attribute| number(attribute).unwrap_or(MATMUL_MATRIX_SCALE_SCALAR_32F)),
                // SAFETY: as above.
                is_fast: unsafe { get::<i8>(function, descriptor, MATMUL_DESC_FAST_ACCUM, 0) }.unwrap_or(0) != 0,
            },
            is_plain: are_unset && number(MATMUL_DESC_FILL_MODE)? == FILL_MODE_FULL,
        })
    }

    /// The activation, and whether there is a bias.
    fn epilogue(&self) -> Option<(Activation, bool)> {
        match self.epilogue {
            EPILOGUE_DEFAULT => Some((Activation::Identity, false)),
            EPILOGUE_RELU => Some((Activation::Relu, false)),
            EPILOGUE_BIAS => Some((Activation::Identity, true)),
            EPILOGUE_RELU_BIAS => Some((Activation::Relu, true)),
            EPILOGUE_GELU => Some((Activation::GeluTanh, false)),
            EPILOGUE_GELU_BIAS => Some((Activation::GeluTanh, true)),
            _ => None,
        }
    }
}

/// The attributes of a `cublasLtMatrixLayout_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    data_type: c_int,
    /// [`ORDER_COL`], where columns are contiguous, or [`ORDER_ROW`], where rows are; others are not ours.
    order: c_int,
    rows: u64,
    columns: u64,
    ld: i64,
    batch: c_int,
    stride: i64,
}

impl Layout {
    /// # Safety
    /// `descriptor` is a `cublasLtMatrixLayout_t`.
    unsafe fn read(descriptor: *const c_void, function: GetAttribute) -> Option<Self> {
        // SAFETY: the caller's descriptor; cublasLt.h gives the types.
        unsafe {
            if get::<c_int>(function, descriptor, MATRIX_LAYOUT_BATCH_MODE, 0)
                .is_some_and(|mode| mode != BATCH_MODE_STRIDED)
            {
                return None;
            }
            Some(Self {
                data_type: get(function, descriptor, MATRIX_LAYOUT_TYPE, 0)?,
                order: get(function, descriptor, MATRIX_LAYOUT_ORDER, 0)?,
                rows: get(function, descriptor, MATRIX_LAYOUT_ROWS, 0)?,
                columns: get(function, descriptor, MATRIX_LAYOUT_COLS, 0)?,
                ld: get(function, descriptor, MATRIX_LAYOUT_LD, 0)?,
                batch: get(function, descriptor, MATRIX_LAYOUT_BATCH_COUNT, 0)?,
                stride: get(function, descriptor, MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0)?,
            })
        }
    }

    /// Whether the order is one of ours, and lines do not overlap.
    fn is_valid(&self) -> bool {
        let line = if self.order == ORDER_COL { self.rows } else { self.columns };
        [ORDER_COL, ORDER_ROW].contains(&self.order) && self.ld >= 1 && self.ld as u64 >= line && self.batch >= 1
    }

    /// Rows and columns of the operation on the matrix, and the operand.
    fn operand(&self, op: c_int, format: Format, address: *const c_void) -> ([usize; 2], Operand) {
        let strides = if self.order == ORDER_COL { [1, self.ld] } else { [self.ld, 1] };
        let stored = Operand::new(format, strides, [0, self.stride]);
        let stored = Operand { pointer_align: power_of_two_in(address as u64), ..stored };
        let [rows, columns] = [self.rows, self.columns].map(|size| size as usize);
        if op == OP_N {
            ([rows, columns], stored)
        } else {
            ([columns, rows], stored.transposed())
        }
    }
}

/// A call's matrices by A, B, C and D, and its scalars.
#[derive(Debug, Clone, Copy)]
struct Operands {
    layouts: [Layout; 4],
    addresses: [*const c_void; 4],
    alpha: f64,
    beta: f64,
}

/// The type of alpha and beta, and the f32 mode that the call asks for. `None` where the type of the sums is not that of our kernels.
fn scalars(matmul: &Matmul, operands: Format) -> Option<(Format, Option<F32Mode>)> {
    match operands {
        Format::F64 => {
            let is_f64 = [compute_type::F64, compute_type::F64_PEDANTIC].contains(&matmul.compute_type);
            (is_f64 && matmul.scale_type == CUDA_R_64F).then_some((Format::F64, None))
        }
        _ => {
            let asked = F32Mode::of_compute_type(matmul.compute_type)?;
            (matmul.scale_type == CUDA_R_32F).then_some((Format::F32, asked))
        }
    }
}

/// The product that the descriptors ask for, and its pointers. Where D is column-major, the product is that of the transposed matrices.
fn product(matmul: &Matmul, operands: &Operands) -> std::result::Result<(Problem, Pointers), Forwarded> {
    let Operands { layouts: [a, b, c, d], addresses: [a_at, b_at, c_at, d_at], alpha, beta } = *operands;
    let [format, out] = formats_of([a, b, d]).ok_or(Forwarded::Types)?;
    let is_fp8 = format == Format::F8E4M3;
    let (activation, has_bias) = matmul.epilogue().filter(|_| matmul.is_plain).ok_or(Forwarded::Attributes)?;
    let mut epilogue = Epilogue::new(alpha, beta);
    // cuBLASLt applies the activation after beta * C.
    if epilogue.reads_c() && activation != Activation::Identity {
        return Err(Forwarded::Attributes);
    }
    if !is_fp8 && !matmul.factors.are_unset() {
        return Err(Forwarded::Attributes);
    }
    // The bias of an f32 result of fp8 is in 16 bits unless its type is named.
    let is_own_bias = matmul.bias_type == d.data_type || (matmul.bias_type == -1 && !(is_fp8 && out == Format::F32));
    if has_bias && (!is_own_bias || (d.batch > 1 && matmul.bias_stride != 0)) {
        return Err(Forwarded::Attributes);
    }
    if [a, b, d].iter().any(|layout| layout.order > ORDER_ROW) {
        return Err(Forwarded::Attributes);
    }
    let ([m, k], a_operand) = a.operand(matmul.ops[0], format, a_at);
    let ([b_rows, n], b_operand) = b.operand(matmul.ops[1], format, b_at);
    let ([d_rows, d_columns], d_operand) = d.operand(OP_N, out, d_at);
    let are_valid = [a, b, d].iter().all(|layout| layout.is_valid() && layout.batch == d.batch)
        && matmul.ops.iter().all(|op| (OP_N..=OP_C).contains(op))
        && [b_rows, d_rows, d_columns] == [k, m, n]
        && !(has_bias && matmul.bias.is_null());
    if !are_valid {
        return Err(Forwarded::Arguments);
    }
    if epilogue.reads_c() {
        let is_in_place = c_at == d_at;
        if c.order != d.order || (is_in_place && c != d) {
            return Err(Forwarded::Attributes);
        }
        let is_of_size = [c.data_type, c.batch] == [d.data_type, d.batch] && [c.rows, c.columns] == [d.rows, d.columns];
        if !is_of_size || !c.is_valid() {
            return Err(Forwarded::Arguments);
        }
        epilogue.c = Some(c.operand(OP_N, out, c_at).1);
        epilogue.in_place = is_in_place;
    }
    epilogue.activation = activation;
    epilogue.bias = has_bias.then_some(BiasAxis::M);
    let batch = [1, d.batch as usize];
    let pointers = |a, b| Pointers::new(a, b, d_at.cast_mut()).with_c(c_at).with_bias(matmul.bias);
    let (of, x) = if d.order == ORDER_COL {
        let epilogue = epilogue.transposed();
        let [a, b, d] = [b_operand, a_operand, d_operand].map(Operand::transposed);
        ((Problem { epilogue, ..Problem::new([n, m, k], batch, a, b, d) }, pointers(b_at, a_at)), 1)
    } else {
        let of = Problem { epilogue, ..Problem::new([m, n, k], batch, a_operand, b_operand, d_operand) };
        ((of, pointers(a_at, b_at)), 0)
    };
    if is_fp8 {
        matmul.factors.on(of, x)
    } else {
        Ok(of)
    }
}

/// The formats of A and B, and of D.
fn formats_of(layouts: [Layout; 3]) -> Option<[Format; 2]> {
    let types = layouts.map(|layout| layout.data_type);
    formats(types).or_else(|| lt_factors::formats(types))
}

/// The arguments of a call.
struct MatmulCall {
    descriptor: *const c_void,
    /// Descriptors of A, B, C and D.
    layouts: [*const c_void; 4],
    addresses: [*const c_void; 4],
    alpha: *const c_void,
    beta: *const c_void,
    stream: *mut c_void,
}

impl Contract for MatmulCall {
    unsafe fn product(&self) -> std::result::Result<Product, Refusal> {
        let failed = |error: Error| (Forwarded::Failed, Some(error));
        let not_ours = |reason: Forwarded| (reason, None);
        let pointers = [self.descriptor, self.alpha, self.beta].into_iter().chain(self.layouts);
        if pointers.into_iter().any(<*const c_void>::is_null) {
            return Err(not_ours(Forwarded::Arguments));
        }
        let readers = readers().map_err(failed)?;
        // SAFETY: the caller's descriptor.
        let matmul = unsafe { Matmul::read(self.descriptor, readers.matmul) };
        let matmul = matmul.ok_or_else(|| not_ours(Forwarded::Attributes))?;
        if matmul.pointer_mode != POINTER_MODE_HOST {
            return Err(not_ours(Forwarded::PointerMode));
        }
        // SAFETY: the caller's descriptors.
        let layouts = self.layouts.map(|layout| unsafe { Layout::read(layout, readers.layout) });
        let [Some(a), Some(b), Some(c), Some(d)] = layouts else { return Err(not_ours(Forwarded::Attributes)) };
        let [format, _] = formats_of([a, b, d]).ok_or_else(|| not_ours(Forwarded::Types))?;
        let (type_of_scalars, asked) = scalars(&matmul, format).ok_or_else(|| not_ours(Forwarded::ComputeType))?;
        // SAFETY: host pointer mode, and scalars of this type.
        let [alpha, beta] = [self.alpha, self.beta].map(|scalar| unsafe { read_scalar(scalar, type_of_scalars) });
        let operands = Operands { layouts: [a, b, c, d], addresses: self.addresses, alpha, beta };
        let (mut problem, pointers) = product(&matmul, &operands).map_err(not_ours)?;
        if format == Format::F32 {
            problem.f32_mode = asked.map_or_else(f32_mode, Ok).map_err(failed)?;
        }
        Ok(Product { problem, pointers, queue: Queue::new(self.stream, null_mut()), is_tf32: false })
    }

    fn describe(&self) -> String {
        "a call of cublasLtMatmul".into()
    }
}

define! {
    CublasLt: fn cublasLtMatmul(
        handle: *mut c_void,
        descriptor: *const c_void,
        alpha: *const c_void,
        a: *const c_void,
        a_layout: *const c_void,
        b: *const c_void,
        b_layout: *const c_void,
        beta: *const c_void,
        c: *const c_void,
        c_layout: *const c_void,
        d: *mut c_void,
        d_layout: *const c_void,
        algorithm: *const c_void,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> c_int => MatmulCall {
        descriptor,
        layouts: [a_layout, b_layout, c_layout, d_layout],
        addresses: [a, b, c, d],
        alpha,
        beta,
        stream,
    }
}

#[cfg(test)]
mod tests {
    use super::super::lt_header::*;
    use super::{product, scalars, Factors, Layout, Matmul, Operands};
    use crate::interpose::count::Forwarded;
    use crate::launch::cublas::api::{CUDA_R_16BF, CUDA_R_32F, CUDA_R_64F};
    use crate::problem::f32_mode::compute_type;
    use crate::problem::{self, Activation, BiasAxis, F32Mode, Format, Problem};
    use std::ffi::c_void;

    const BIAS: *const c_void = 0x5000 as *const c_void;

    fn matmul(ops: [i32; 2], epilogue: i32) -> Matmul {
        let (compute_type, scale_type) = (compute_type::F32, CUDA_R_32F);
        let bias = if epilogue & EPILOGUE_BIAS == 0 { std::ptr::null() } else { BIAS };
        Matmul {
            compute_type,
            scale_type,
            pointer_mode: POINTER_MODE_HOST,
            ops,
            epilogue,
            bias,
            bias_stride: 0,
            bias_type: -1,
            factors: Factors::NONE,
            is_plain: true,
        }
    }

    fn layout(order: i32, rows: u64, columns: u64) -> Layout {
        let line = if order == ORDER_COL { rows } else { columns };
        let (ld, stride) = (line as i64 + 8, 4096);
        Layout { data_type: CUDA_R_16BF, order, rows, columns, ld, batch: 2, stride }
    }

    /// m = 24, n = 16, k = 32, all in column order, the transpose of A by B: a Linear layer of 16 rows in PyTorch.
    fn linear(order_of_d: i32) -> Operands {
        let d = layout(order_of_d, 24, 16);
        let addresses = [0x1000, 0x2000, 0x4000, 0x4000].map(|address| address as *const c_void);
        Operands {
            layouts: [layout(ORDER_COL, 32, 24), layout(ORDER_COL, 32, 16), d, d],
            addresses,
            alpha: 1.0,
            beta: 0.0,
        }
    }

    fn problem(matmul: &Matmul, operands: &Operands) -> Result<Problem, Forwarded> {
        product(matmul, operands).map(|(problem, _)| problem)
    }

    #[test]
    fn a_column_major_result_is_the_transposed_product_with_a_bias_for_each_column() {
        let (problem, pointers) = product(&matmul([1, 0], EPILOGUE_GELU_BIAS), &linear(ORDER_COL)).unwrap();
        assert_eq!([problem.m, problem.n, problem.k, problem.batch_count()], [16, 24, 32, 2]);
        assert_eq!(problem.layout(), problem::Layout::NT);
        assert_eq!([problem.a.row_stride, problem.b.col_stride, problem.d.row_stride], [40, 40, 32]);
        assert_eq!((problem.epilogue.bias, problem.epilogue.activation), (Some(BiasAxis::N), Activation::GeluTanh));
        assert_eq!([pointers.a, pointers.b, pointers.bias], [0x2000, 0x1000, 0x5000].map(|at| at as *const c_void));
        assert!(!problem.canonical().swapped);
    }

    #[test]
    fn a_row_major_result_is_the_product_itself_with_a_bias_for_each_row() {
        let (problem, pointers) = product(&matmul([1, 0], EPILOGUE_RELU_BIAS), &linear(ORDER_ROW)).unwrap();
        assert_eq!([problem.m, problem.n, problem.k], [24, 16, 32]);
        assert_eq!((problem.d.row_stride, problem.d.col_stride), (24, 1));
        assert_eq!((problem.epilogue.bias, problem.epilogue.activation), (Some(BiasAxis::M), Activation::Relu));
        assert_eq!(pointers.a, 0x1000 as *const c_void);
        let mut rows = linear(ORDER_ROW);
        rows.layouts[0] = layout(ORDER_ROW, 24, 32);
        let of_rows = super::product(&matmul([0, 0], EPILOGUE_DEFAULT), &rows).unwrap().0;
        assert_eq!((of_rows.a.row_stride, of_rows.a.col_stride, of_rows.k), (40, 1, 32));
    }

    #[test]
    fn c_is_d_or_a_matrix_of_its_own() {
        let added = Operands { beta: 0.5, ..linear(ORDER_COL) };
        let in_place = problem(&matmul([1, 0], EPILOGUE_BIAS), &added).unwrap();
        assert!(in_place.epilogue.in_place && in_place.epilogue.c == Some(in_place.d));
        let mut beside = added;
        beside.addresses[2] = 0x8000 as *const c_void;
        beside.layouts[2].ld += 8;
        let apart = problem(&matmul([1, 0], EPILOGUE_BIAS), &beside).unwrap();
        assert!(!apart.epilogue.in_place && apart.epilogue.c.unwrap().row_stride == apart.d.row_stride + 8);
        beside.addresses[2] = beside.addresses[3];
        assert_eq!(
            problem(&matmul([1, 0], EPILOGUE_BIAS), &beside),
            Err(Forwarded::Attributes),
            "D over a C of other strides"
        );
        assert_eq!(
            problem(&matmul([1, 0], EPILOGUE_RELU_BIAS), &added),
            Err(Forwarded::Attributes),
            "an activation after beta * C"
        );
    }

    #[test]
    fn what_no_kernel_here_has_is_forwarded() {
        let with = |change: &dyn Fn(&mut Matmul, &mut Operands)| {
            let (mut matmul, mut operands) = (matmul([1, 0], EPILOGUE_BIAS), linear(ORDER_COL));
            change(&mut matmul, &mut operands);
            problem(&matmul, &operands).unwrap_err()
        };
        for epilogue in [0, 5, 128 | 2, 128 | 36, 64 | 128, 256, 512] {
            assert_eq!(with(&|matmul, _| matmul.epilogue = epilogue), Forwarded::Attributes, "{epilogue}");
        }
        assert_eq!(with(&|matmul, _| matmul.is_plain = false), Forwarded::Attributes);
        assert_eq!(with(&|matmul, _| matmul.factors.addresses[1] = BIAS), Forwarded::Attributes);
        assert_eq!(with(&|matmul, _| matmul.bias_stride = 24), Forwarded::Attributes);
        assert_eq!(with(&|matmul, _| matmul.bias_type = CUDA_R_32F), Forwarded::Attributes);
        assert_eq!(with(&|matmul, _| matmul.bias = std::ptr::null()), Forwarded::Arguments);
        assert_eq!(with(&|_, operands| operands.layouts[1].order = 2), Forwarded::Attributes);
        assert_eq!(with(&|_, operands| operands.layouts[1].data_type = CUDA_R_32F), Forwarded::Types);
        assert_eq!(with(&|_, operands| operands.layouts[1].rows = 31), Forwarded::Arguments);
        assert_eq!(with(&|_, operands| operands.layouts[0].ld = 31), Forwarded::Arguments);
        assert_eq!(with(&|_, operands| operands.layouts[0].batch = 1), Forwarded::Arguments);
        assert_eq!(with(&|matmul, _| matmul.ops[1] = 3), Forwarded::Arguments);
    }

    #[test]
    fn alpha_has_the_type_of_the_sums() {
        let of = |compute_type, scale_type, operands| {
            scalars(&Matmul { compute_type, scale_type, ..matmul([0, 0], EPILOGUE_DEFAULT) }, operands)
        };
        assert_eq!(of(68, CUDA_R_32F, Format::BF16), Some((Format::F32, None)));
        assert_eq!(of(77, CUDA_R_32F, Format::F32), Some((Format::F32, Some(F32Mode::Tf32))));
        assert_eq!(of(70, CUDA_R_64F, Format::F64), Some((Format::F64, None)));
        assert_eq!(
            [of(64, 2, Format::F16), of(68, CUDA_R_64F, Format::F32), of(68, CUDA_R_32F, Format::F64)],
            [None; 3]
        );
    }
}
