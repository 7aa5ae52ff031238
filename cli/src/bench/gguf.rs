//! Products with the blocks of a GGUF file as B: the numbers of the blocks, candle's own kernels, and the product with weights in bf16.

use super::address::address;
use super::allocation;
use super::grouped::has_candles_kernels;
use super::operands::Operands;
use crate::Result;
use candle::cuda_backend::cudarc::driver::{result, sys::CUdevice_attribute};
use candle::cuda_backend::kernels::ffi;
use candle::quantized::{cuda::QCudaStorage, QStorage, QTensor};
use candle::{CudaDevice, DType, Device, Tensor};
use candle_tilegemm::dispatch::Planned;
use candle_tilegemm::internal::blocks::ggml_type;
use candle_tilegemm::launch::{self, Pointers, Queue};
use candle_tilegemm::nn::QWeights;
use candle_tilegemm::{Format, Layout, Problem};
use std::ffi::c_void;
use std::ptr::null;
use std::sync::Arc;

/// The most rows that candle gives to its kernels for few rows.
const FEW_ROWS: usize = 8;
/// candle pads K in the scratch buffers to a multiple of this.
const PADDING: usize = 512;
/// Numbers of a block of activations in 8 bits, and bytes of a block: for few rows, and for more.
const BLOCK: [usize; 2] = [32, 128];
const BLOCK_BYTES: [usize; 2] = [36, 144];
/// candle's kernels for more rows read blocks of rows that do not exist, up to a tile's rows.
const TILE_ROWS: usize = 128;
/// Bytes of the scratch buffer for parts of tiles, as candle allocates it: 256 tiles of 128 x 128 sums.
const PARTS_BYTES: usize = 256 * 128 * 128 * 4;

/// The numbers of B's blocks as a matrix in f32, by candle's kernels, which compute in f32; on the CPU in formats that candle does not have.
pub fn numbers(problem: &Problem, blocks: &Tensor) -> Result<Tensor> {
    let Problem { n, k, b, .. } = *problem;
    let Some(name) = ggml_type(b.format) else {
        let bytes = blocks.flatten_all()?.narrow(0, 0, b.format.bytes(n * k))?.to_vec1::<u8>()?;
        let weights = QWeights::from_bytes(b.format, bytes, (n, k), &Device::Cpu)?;
        return Ok(weights.dequantize(blocks.device())?);
    };
    let Device::Cuda(device) = blocks.device() else { return Err("the blocks are not on the GPU".into()) };
    let storage = QCudaStorage::zeros(device, n * k, name)?;
    let (to, from, bytes) = (storage.device_ptr()? as u64, address(blocks)?, b.format.bytes(n * k));
    // SAFETY: both buffers have this length, and live until the stream, the only one of the device, has passed.
    unsafe { result::memcpy_dtod_async(to, from, bytes, device.cuda_stream().cu_stream())? };
    Ok(QTensor::new(QStorage::Cuda(storage), (n, k))?.dequantize(blocks.device())?)
}

/// W times a few rows: W, the scratch buffer, D, K, N, blocks of a row in the scratch buffer, elements from a row of D to the next, M, the stream.
type FewRows = unsafe extern "C" fn(*const c_void, *const c_void, *mut c_void, i32, i32, i32, i32, i32, *mut c_void);
/// W times rows: a second scratch buffer, W, the scratch buffer, D, K, N, M, blocks from a row of W to the next, elements from a row of D to the next, four facts of
/// the device, the stream.
type Rows = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    *const c_void,
    *mut c_void,
    i64,
    i64,
    i64,
    i64,
    i64,
    i32,
    i32,
    i64,
    i32,
    *mut c_void,
);
/// Rows of activations in f32: the activations, a list of rows, the scratch buffer, a type that nothing reads, K, elements from a row to the next and to the next
/// matrices, K in the scratch buffer, rows, matrices in two dimensions, the stream.
type QuantizeRows = unsafe extern "C" fn(
    *const c_void,
    *const i32,
    *mut c_void,
    i32,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    *mut c_void,
);

/// candle's functions for a format, with the names of the two that multiply.
struct Functions {
    few_rows: (FewRows, &'static str),
    rows: (Rows, &'static str),
    quantize_rows: QuantizeRows,
}

macro_rules! functions {
    ($few:ident, $rows:ident, $quantize:ident) => {
        Functions {
            few_rows: (ffi::$few, stringify!($few)),
            rows: (ffi::$rows, stringify!($rows)),
            quantize_rows: ffi::$quantize,
        }
    };
}

impl Functions {
    fn of(format: Format) -> Result<Self> {
        Ok(match format {
            Format::Q4_0 => {
                functions!(launch_mmvq_gguf_q4_0_f32_plain, launch_mmq_gguf_q4_0, launch_mmq_quantize_q8_1_DS4)
            }
            Format::Q4_1 => {
                functions!(launch_mmvq_gguf_q4_1_f32_plain, launch_mmq_gguf_q4_1, launch_mmq_quantize_q8_1_DS4)
            }
            Format::Q5_0 => {
                functions!(launch_mmvq_gguf_q5_0_f32_plain, launch_mmq_gguf_q5_0, launch_mmq_quantize_q8_1_D4)
            }
            Format::Q5_1 => {
                functions!(launch_mmvq_gguf_q5_1_f32_plain, launch_mmq_gguf_q5_1, launch_mmq_quantize_q8_1_DS4)
            }
            Format::Q8_0 => {
                functions!(launch_mmvq_gguf_q8_0_f32_plain, launch_mmq_gguf_q8_0, launch_mmq_quantize_q8_1_D4)
            }
            Format::Q2K => {
                functions!(launch_mmvq_gguf_q2_k_f32_plain, launch_mmq_gguf_q2_k, launch_mmq_quantize_q8_1_D2S6)
            }
            Format::Q3K => {
                functions!(launch_mmvq_gguf_q3_k_f32_plain, launch_mmq_gguf_q3_k, launch_mmq_quantize_q8_1_D4)
            }
            Format::Q4K => {
                functions!(launch_mmvq_gguf_q4_k_f32_plain, launch_mmq_gguf_q4_k, launch_mmq_quantize_q8_1_DS4)
            }
            Format::Q5K => {
                functions!(launch_mmvq_gguf_q5_k_f32_plain, launch_mmq_gguf_q5_k, launch_mmq_quantize_q8_1_DS4)
            }
            Format::Q6K => {
                functions!(launch_mmvq_gguf_q6_k_f32_plain, launch_mmq_gguf_q6_k, launch_mmq_quantize_q8_1_D4)
            }
            other => return Err(format!("candle's kernels for quantised weights have no {other}").into()),
        })
    }
}

/// candle's own kernels: one that writes the activations in 8 bits to a scratch buffer, and one that multiplies, as candle's `fast_mmvq` and `fast_mmq` call
/// them. All copies of the operands share the scratch buffers: launches follow one another.
pub struct CandlesProduct {
    functions: Functions,
    scratch: Tensor,
    parts: Tensor,
    problem: Problem,
    /// K in the scratch buffer.
    padded: usize,
    /// Compute capability times 10, multiprocessors, and the most shared memory of a block.
    device: [i32; 3],
}

impl CandlesProduct {
    pub fn new(problem: &Problem, device: &CudaDevice) -> Result<Self> {
        has_candles_kernels()?;
        let Problem { m, n, k, .. } = *problem;
        let dense = Problem::dense(m, n, k, 1, Layout::NT, Format::F32).with(|p| p.b.format = problem.b.format);
        if problem.canonical() != dense.canonical() {
            return Err("candle's kernels for quantised weights take dense activations in f32 and no epilogue".into());
        }
        let (functions, padded) = (Functions::of(problem.b.format)?, k.next_multiple_of(PADDING));
        let kind = usize::from(m > FEW_ROWS);
        let rows = m + if kind == 1 { TILE_ROWS } else { 0 };
        let bytes = rows * (padded / BLOCK[kind]) * BLOCK_BYTES[kind];
        let memory = |bytes: usize| Tensor::zeros(bytes, DType::U8, &Device::Cuda(device.clone()));
        let context = device.cuda_stream().context().clone();
        let [major, minor, sms, shared] = [
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        ]
        .map(|attribute| context.attribute(attribute));
        Ok(Self {
            functions,
            scratch: memory(bytes)?,
            parts: memory(PARTS_BYTES)?,
            problem: *problem,
            padded,
            device: [100 * major? + 10 * minor?, sms?, shared?],
        })
    }

    /// The name of the function that multiplies.
    pub fn kernel(&self) -> &'static str {
        let Functions { few_rows, rows, .. } = &self.functions;
        if self.problem.m > FEW_ROWS {
            rows.1
        } else {
            few_rows.1
        }
    }

    /// # Safety
    /// As for [`candle_tilegemm::launch::launch`], for the problem of `new`, on the stream of the device.
    pub unsafe fn launch(&self, pointers: Pointers, queue: Queue) -> Result {
        let Self { functions, problem, padded, device: [capability, sms, shared], .. } = self;
        let Pointers { a: x, b: w, d, .. } = pointers;
        let [m, n, k, padded] = [problem.m, problem.n, problem.k, *padded].map(|size| size as i64);
        let (scratch, parts) = (address(&self.scratch)? as *mut c_void, address(&self.parts)? as *mut c_void);
        let (block, stream) = (problem.b.format.block().elements as i64, queue.stream);
        // SAFETY: the caller's promises; the scratch buffers have the lengths that candle gives them.
        unsafe {
            if problem.m > FEW_ROWS {
                (functions.quantize_rows)(x, null(), scratch, 0, k, k, 0, 0, padded, m, 1, 1, stream);
                let of_w = k / block;
                (functions.rows.0)(
                    parts,
                    w,
                    scratch,
                    d,
                    k,
                    n,
                    m,
                    of_w,
                    n,
                    *capability,
                    *sms,
                    (*shared).into(),
                    32,
                    stream,
                );
            } else {
                let [m, n, k, padded] = [m, n, k, padded].map(|size| size as i32);
                ffi::launch_mmvq_gguf_quantize_q8_1_f32(x, scratch, k, padded, m, stream);
                (functions.few_rows.0)(w, scratch, d, k, n, padded / BLOCK[0] as i32, n, m, stream);
            }
        }
        Ok(())
    }
}

/// The product with activations and weights in bf16 before, in groups where it has them: the cost of a model whose weights were not quantised.
pub struct Dense {
    plan: Arc<Planned>,
    /// Activations and weights, in as many copies as keep them out of the cache. All copies of the weights have the first copy's numbers.
    inputs: Vec<[Tensor; 2]>,
    /// Copies of the operands, which may be more: their D has the product of the copy with the same number.
    copies: usize,
}

impl Dense {
    /// The product in bf16 with a result in the format of D.
    pub fn problem(problem: &Problem) -> Problem {
        let Problem { m, n, k, d, .. } = *problem;
        let in_bf16 = match problem.groups {
            Some(groups) => Problem::grouped([m, n, k], groups, Format::BF16),
            None => Problem::dense(m, n, k, 1, Layout::NT, Format::BF16),
        };
        in_bf16.with(|p| p.d.format = d.format)
    }

    /// `plan` is a plan for [`Dense::problem`].
    pub fn new(problem: &Problem, operands: &Operands, l2_bytes: usize, plan: Arc<Planned>) -> Result<Self> {
        let copies = allocation::copies(&Self::problem(problem), l2_bytes, operands.copies() == 1);
        let [_, blocks, ..] = operands.first();
        let [of_a, of_b] = operands.numbers()?;
        let weights = match problem.groups {
            Some(groups) => {
                let of_group = |group| -> Result<Tensor> { Ok(operands.matrix(group)?.to_dtype(DType::BF16)?) };
                Tensor::cat(&(0..groups.count).map(of_group).collect::<Result<Vec<_>>>()?, 0)?
            }
            None => of_b.map_or_else(|| numbers(problem, blocks), Ok)?.to_dtype(DType::BF16)?,
        };
        let copy = |copy: usize| -> Result<[Tensor; 2]> {
            let [a, ..] = operands.inputs(copy);
            // Codes of A are those of the first copy, whose result is checked.
            Ok([of_a.as_ref().unwrap_or(a).to_dtype(DType::BF16)?.contiguous()?, weights.copy()?])
        };
        let inputs = (0..copies.min(operands.copies())).map(copy).collect::<Result<_>>()?;
        Ok(Self { plan, inputs, copies: operands.copies() })
    }

    /// The kernel's name.
    pub fn kernel(&self) -> String {
        self.plan.name()
    }

    /// # Safety
    /// As for [`candle_tilegemm::launch::launch`]; D and the lists of groups are those of the operands of `new`.
    pub unsafe fn launch(&self, copy: usize, of: Pointers, queue: Queue) -> Result {
        let [a, b] = &self.inputs[copy % self.copies % self.inputs.len()];
        let mut pointers = Pointers::new(address(a)? as _, address(b)? as _, of.d);
        if self.plan.canonical.problem.groups.is_some() {
            pointers = pointers.with_groups(of.groups);
        }
        // SAFETY: the caller's promises; A and B have the plan's sizes.
        unsafe { launch::launch(&self.plan, pointers, queue)? };
        Ok(())
    }
}
