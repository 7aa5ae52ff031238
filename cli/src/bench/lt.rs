//! cuBLASLt: the algorithms of its heuristic, as candidates to time.

use super::address::address;
use super::operands::Operands;
use crate::Result;
use candle::cuda_backend::cudarc::cublaslt::{result, sys};
use candle::cuda_backend::cudarc::driver::sys::CUstream;
use candle::{CudaDevice, Device, Tensor};
use candle_tilegemm::launch::Pointers;
use candle_tilegemm::problem::{BiasAxis, Operand, Scale, MAX_ALIGN};
use candle_tilegemm::{Activation, F32Mode, Format, Problem};
use std::ffi::{c_int, c_void};
use std::mem::{size_of_val, MaybeUninit};
use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
use sys::{cublasLtMatmulAlgoConfigAttributes_t as Config, cublasLtMatmulDescAttributes_t as Desc};

const WORKSPACE: usize = 64 << 20;
/// `cublasOperation_t`, which cuBLASLt takes as an integer.
const OP_N: c_int = 0;
const OP_T: c_int = 1;
/// The most algorithms to request.
const MOST: usize = 32;

/// The partial sums that a split along K may use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Partial sums in f32, as in all our kernels.
    F32,
    /// Partial sums in f32, or in the type of the result, which rounds the sums.
    Any,
}

/// A handle with its workspace.
pub struct CublasLt {
    handle: sys::cublasLtHandle_t,
    workspace: Tensor,
    stream: CUstream,
}

/// cuBLASLt's description of one product, and the algorithms for the product, the heuristic's favourite first.
pub struct LtProblem<'a> {
    lt: &'a CublasLt,
    problem: Problem,
    desc: sys::cublasLtMatmulDesc_t,
    /// Layouts of B, A and D: row-major D = A @ B is column-major D^T = B^T @ A^T.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    pub algorithms: Vec<sys::cublasLtMatmulHeuristicResult_t>,
}

impl CublasLt {
    pub fn new(device: &CudaDevice) -> Result<Self> {
        let workspace = Tensor::zeros(WORKSPACE / 4, candle::DType::F32, &Device::Cuda(device.clone()))?;
        Ok(Self { handle: result::create_handle()?, workspace, stream: device.cuda_stream().cu_stream().cast() })
    }

    /// The version of cuBLASLt, which is the version of cuBLAS.
    pub fn version() -> String {
        // SAFETY: no arguments.
        let version = unsafe { sys::cublasLtGetVersion() };
        format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
    }

    /// The heuristic's algorithms for a product, or the reason why there is none.
    pub fn problem(&self, problem: &Problem, operands: &Operands, reduction: Reduction) -> Result<LtProblem<'_>> {
        let problem = problem.canonical().problem;
        let (epilogue, bias) = epilogue(&problem)?;
        let (compute, scale) = compute(&problem);
        let desc = result::create_matmul_desc(compute, scale)?;
        let mut this =
            LtProblem { lt: self, problem, desc, layouts: [std::ptr::null_mut(); 3], algorithms: Vec::new() };
        let Problem { m, n, k, a, b, d, .. } = problem;
        let (op_b, ld_b) = op(&b);
        let (op_a, ld_a) = op(&a);
        this.set(Desc::CUBLASLT_MATMUL_DESC_TRANSA, &op_b)?;
        this.set(Desc::CUBLASLT_MATMUL_DESC_TRANSB, &op_a)?;
        this.set(Desc::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        if bias {
            this.set(Desc::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.pointers(0)?.bias)?;
        }
        if a.format == Format::F8E4M3 {
            this.set_factors(&operands.pointers(0)?)?;
        }
        let stored = |op: c_int, rows: usize, cols: usize| match op {
            OP_N => (rows as u64, cols as u64),
            _ => (cols as u64, rows as u64),
        };
        let shapes =
            [(stored(op_b, n, k), ld_b, b), (stored(op_a, k, m), ld_a, a), ((n as u64, m as u64), d.row_stride, d)];
        for (layout, ((rows, cols), ld, operand)) in this.layouts.iter_mut().zip(shapes) {
            *layout = result::create_matrix_layout(data_type(operand.format), rows, cols, ld)?;
            set_layout(*layout, Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &(problem.batch_count() as c_int))?;
            set_layout(*layout, Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &operand.batch_stride[1])?;
        }
        this.algorithms = this.heuristic(reduction)?;
        if this.algorithms.is_empty() {
            return Err("its heuristic offers no algorithm".into());
        }
        Ok(this)
    }
}

fn set_layout<T>(layout: sys::cublasLtMatrixLayout_t, attribute: Attribute, value: &T) -> Result {
    // SAFETY: `layout` is alive, and callers pass a value of the attribute's type.
    unsafe {
        result::set_matrix_layout_attribute(layout, attribute, std::ptr::from_ref(value).cast(), size_of_val(value))?
    };
    Ok(())
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used any more.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl LtProblem<'_> {
    fn set<T>(&self, attribute: Desc, value: &T) -> Result {
        // SAFETY: `desc` is alive, and callers pass a value of the attribute's type.
        unsafe {
            result::set_matmul_desc_attribute(
                self.desc,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of_val(value),
            )?
        };
        Ok(())
    }

    /// The factors of both operands, those of the first copy in all launches, and how sums are kept.
    fn set_factors(&self, pointers: &Pointers) -> Result {
        let Problem { m, n, k, a, b, fast_accumulation, .. } = self.problem;
        let [of_a, of_b] = [mode(a.scale, [m, k])?, mode(b.scale, [n, k])?];
        // B is cuBLASLt's A.
        for (pointer, mode, at, of) in [
            (
                Desc::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                Desc::CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                pointers.scales[1],
                of_b,
            ),
            (
                Desc::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                Desc::CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
                pointers.scales[0],
                of_a,
            ),
        ] {
            self.set(mode, &(of as i32))?;
            self.set(pointer, &at)?;
        }
        self.set(Desc::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &i8::from(fast_accumulation))
    }

    fn heuristic(&self, reduction: Reduction) -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Wish;
        use sys::cublasLtReductionScheme_t as Scheme;
        let preference = result::create_matmul_pref()?;
        let schemes = match reduction {
            Reduction::F32 => Scheme::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
            Reduction::Any => Scheme::CUBLASLT_REDUCTION_SCHEME_MASK,
        } as u32;
        let mut found = [const { MaybeUninit::uninit() }; MOST];
        let mut count = 0;
        // SAFETY: the preference was made above, the values are of their attributes' types, and `found` has room for MOST.
        let status = unsafe {
            let bytes = (&raw const WORKSPACE_BYTES).cast();
            let max = Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            result::set_matmul_pref_attribute(preference, max, bytes, size_of_val(&WORKSPACE_BYTES))?;
            let mask = Wish::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
            result::set_matmul_pref_attribute(preference, mask, (&raw const schemes).cast(), size_of_val(&schemes))?;
            let Problem { a, b, d, .. } = self.problem;
            let aligned = [
                (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
                (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
                (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d),
                (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d),
            ];
            // Unless told, the heuristic takes addresses for multiples of 256 bytes.
            for (attribute, operand) in aligned.into_iter().filter(|(_, operand)| operand.pointer_align < MAX_ALIGN) {
                let bytes: u32 = operand.pointer_align;
                result::set_matmul_pref_attribute(
                    preference,
                    attribute,
                    (&raw const bytes).cast(),
                    size_of_val(&bytes),
                )?;
            }
            let [b, a, d] = self.layouts;
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.lt.handle,
                self.desc,
                b,
                a,
                d,
                d,
                preference,
                MOST as c_int,
                found.as_mut_ptr().cast(),
                &mut count,
            )
        };
        // SAFETY: made above.
        unsafe { result::destroy_matmul_pref(preference)? };
        if status == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        status.result()?;
        // SAFETY: cuBLASLt has filled the first `count`.
        let found = found.into_iter().take(count as usize).map(|result| unsafe { result.assume_init() });
        let usable = |result: &sys::cublasLtMatmulHeuristicResult_t| {
            result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && result.workspaceSize <= WORKSPACE
        };
        Ok(found.filter(usable).collect())
    }

    /// The identifier of an algorithm.
    pub fn name(&self, index: usize) -> String {
        let algorithm = &self.algorithms[index].algo;
        let get = |attribute: Config| {
            let mut value = 0u32;
            // SAFETY: the requested attributes are integers of at most 32 bits; shorter ones fill the low bytes.
            unsafe {
                sys::cublasLtMatmulAlgoConfigGetAttribute(
                    algorithm,
                    attribute,
                    (&raw mut value).cast(),
                    size_of_val(&value),
                    std::ptr::null_mut(),
                )
            };
            value
        };
        let mut name = format!(
            "cublaslt algo {} tile {}",
            get(Config::CUBLASLT_ALGO_CONFIG_ID),
            get(Config::CUBLASLT_ALGO_CONFIG_TILE_ID)
        );
        let split = get(Config::CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
        if split > 1 {
            let scheme = get(Config::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
            name += &format!(" split-K {split} reduction {scheme}");
        }
        name + &format!(" (choice {})", index + 1)
    }

    /// Launches an algorithm.
    ///
    /// # Safety
    /// As for `candle_tilegemm::launch::launch`.
    pub unsafe fn launch(&self, index: usize, pointers: Pointers) -> Result {
        let (alpha, beta) = (self.problem.epilogue.alpha(), self.problem.epilogue.beta());
        let scalars32 = [alpha as f32, beta as f32];
        let scalars64 = [alpha, beta];
        let scalar = |index: usize| -> *const c_void {
            match self.problem.a.format {
                Format::F64 => (&raw const scalars64[index]).cast(),
                _ => (&raw const scalars32[index]).cast(),
            }
        };
        let [b, a, d] = self.layouts;
        let c = if pointers.c.is_null() { pointers.d.cast_const() } else { pointers.c };
        // SAFETY: the caller vouches for the pointers; descriptors, algorithm and workspace are ours and alive.
        unsafe {
            result::matmul(
                self.lt.handle,
                self.desc,
                scalar(0),
                scalar(1),
                pointers.b,
                b,
                pointers.a,
                a,
                c,
                d,
                pointers.d,
                d,
                &self.algorithms[index].algo,
                address(&self.lt.workspace)? as *mut c_void,
                WORKSPACE,
                self.lt.stream.cast(),
            )?;
        }
        Ok(())
    }
}

impl Drop for LtProblem<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `CublasLt::problem`, and not used any more.
        unsafe {
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.desc);
        }
    }
}

static WORKSPACE_BYTES: u64 = WORKSPACE as u64;

fn op(operand: &Operand) -> (c_int, i64) {
    match operand.col_stride {
        1 => (OP_N, operand.row_stride),
        stride => (OP_T, stride),
    }
}

fn data_type(format: Format) -> sys::cudaDataType {
    use sys::cudaDataType_t::{CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F, CUDA_R_64F, CUDA_R_8F_E4M3};
    match format {
        Format::F8E4M3 => CUDA_R_8F_E4M3,
        Format::F16 => CUDA_R_16F,
        Format::BF16 => CUDA_R_16BF,
        Format::F32 => CUDA_R_32F,
        _ => CUDA_R_64F,
    }
}

/// How cuBLASLt names factors of an operand of lines of K numbers.
fn mode(scale: Option<Scale>, [lines, k]: [usize; 2]) -> Result<sys::cublasLtMatmulMatrixScale_t> {
    use sys::cublasLtMatmulMatrixScale_t as Mode;
    // The numbers of a line and of lines that share a factor, in either order of rows and columns.
    let shared = |scale: Scale| scale.granularity.map(|count| count as usize);
    match scale.map(shared) {
        None => Ok(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F),
        Some([x, y]) if x.min(y) >= lines.max(k) => Ok(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F),
        Some([128, 128]) => Ok(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F),
        Some([1, 128]) => Ok(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F),
        Some([1, y]) if y >= k => Ok(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F),
        Some([x, 1]) if x >= k => Ok(Mode::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F),
        Some(other) => Err(format!("it has no factors of {} x {}", other[0], other[1]).into()),
    }
}

/// The type of the sums, and of alpha and beta.
fn compute(problem: &Problem) -> (sys::cublasComputeType_t, sys::cudaDataType) {
    use sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_64F};
    use sys::cudaDataType_t::{CUDA_R_32F, CUDA_R_64F};
    match problem.a.format {
        Format::F64 => (CUBLAS_COMPUTE_64F, CUDA_R_64F),
        Format::F32 if problem.f32_mode == F32Mode::Tf32 => (CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F),
        _ => (CUBLAS_COMPUTE_32F, CUDA_R_32F),
    }
}

/// cuBLASLt's epilogue for ours, and whether the epilogue has a bias.
fn epilogue(problem: &Problem) -> Result<(sys::cublasLtEpilogue_t, bool)> {
    use sys::cublasLtEpilogue_t as Lt;
    let epilogue = &problem.epilogue;
    if epilogue.activation != Activation::Identity && epilogue.reads_c() {
        return Err("it applies its activation after beta * C, not before".into());
    }
    Ok(match (epilogue.activation, epilogue.bias) {
        (_, Some(BiasAxis::M)) => return Err("it has no bias along M for row-major results".into()),
        (Activation::Identity, None) => (Lt::CUBLASLT_EPILOGUE_DEFAULT, false),
        (Activation::Identity, Some(_)) => (Lt::CUBLASLT_EPILOGUE_BIAS, true),
        (Activation::Relu, None) => (Lt::CUBLASLT_EPILOGUE_RELU, false),
        (Activation::Relu, Some(_)) => (Lt::CUBLASLT_EPILOGUE_RELU_BIAS, true),
        (Activation::GeluTanh, None) => (Lt::CUBLASLT_EPILOGUE_GELU, false),
        (Activation::GeluTanh, Some(_)) => (Lt::CUBLASLT_EPILOGUE_GELU_BIAS, true),
        _ => return Err("it has no such activation".into()),
    })
}
