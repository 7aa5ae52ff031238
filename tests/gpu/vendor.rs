//! Products that cuBLAS runs: how exact they are, and what the interposer makes of calls that are not ours.

use crate::cases::{self, Data, Variant};
use crate::device::{Element, Gpu, Operands};
use crate::oracle;
use crate::Test;
use candle::cuda_backend::cudarc::cublas::sys;
use candle::cuda_backend::cudarc::driver::{sys as driver, DevicePtr};
use candle::{DType, Device, Tensor};
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::interpose::{self, Forwarded, Mode};
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::launch::{Pointers, VendorCall};
use candle_tilegemm::{workspace, Format, Layout, Problem};
use half::{bf16, f16};
use std::ffi::{c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};

pub fn tests() -> Vec<(String, Test)> {
    vec![
        ("vendor_adds_16_bits_in_f32".into(), Box::new(vendor_adds_in_f32)),
        ("vendor_leaves_the_math_mode".into(), Box::new(vendor_leaves_the_math_mode)),
        ("interposer_adds_in_f32_where_asked".into(), Box::new(interposer_adds_in_f32_where_asked)),
        ("interposer_adds_to_unaligned_results".into(), Box::new(interposer_adds_to_unaligned_results)),
        ("interposer_copies_unaligned_operands".into(), Box::new(interposer_copies_unaligned_operands)),
        ("interposer_leaves_wrong_arguments_to_cublas".into(), Box::new(interposer_leaves_wrong_arguments)),
        ("interposer_forwards_after_a_panic".into(), Box::new(interposer_forwards_after_a_panic)),
        (HANDED_ON.into(), Box::new(workspaces_are_handed_on)),
    ]
}

/// Batch, M, N, K and layout of products with operands that are not aligned to 16 bytes, of which stock adds many in 16 bits.
const UNALIGNED: [(usize, usize, usize, usize, Layout); 4] = [
    (3, 16, 385, 96, Layout::NN),
    (3, 16, 385, 96, Layout::NT),
    (1, 200, 2056, 1028, Layout::NT),
    (1, 200, 2055, 1028, Layout::TN),
];

fn unaligned(dtype: Format) -> impl Iterator<Item = Problem> {
    let problem = move |(batch, m, n, k, layout)| {
        cases::problem(m, n, k, layout, dtype, Variant { batch: [1, batch], ..Variant::PLAIN })
    };
    UNALIGNED.into_iter().map(problem)
}

fn vendor_adds_in_f32(gpu: &Gpu) -> Result<(), String> {
    fn check<T: Element>(gpu: &Gpu) -> Result<(), String> {
        unaligned(T::KERNEL_DTYPE).try_for_each(|problem| {
            let operands = cases::operands::<T, T>(&problem, 0, Data::Normal, 11);
            let name = format!("cublas_{}_{}", problem.a.format, problem.layout());
            oracle::check_f64(gpu, &name, &problem, &operands).map_err(|e| format!("{problem}: {e}"))
        })
    }
    check::<bf16>(gpu)?;
    check::<f16>(gpu)
}

extern "C" {
    fn cublasGetMathMode(handle: *mut c_void, mode: *mut c_int) -> c_int;
    fn cublasSetMathMode(handle: *mut c_void, mode: c_int) -> c_int;
}

/// After a product, and after one that cuBLAS refuses.
fn vendor_leaves_the_math_mode(gpu: &Gpu) -> Result<(), String> {
    let problem = Problem::dense(16, 385, 96, 1, Layout::NT, Format::BF16);
    let operands = cases::operands::<bf16, bf16>(&problem, 0, Data::Normal, 3);
    let mut short = problem;
    short.a.row_stride = 8; // below K
    let handle = gpu.device.cublas_handle();
    let handle: *mut c_void = (*handle.handle()).cast();
    let result = [0, 3, 16, 16 | 2].into_iter().try_for_each(|mode| {
        let mut after = [-1; 2];
        // SAFETY: the device's handle. The refused call looks at no operand.
        let refused = unsafe {
            cublasSetMathMode(handle, mode);
            gpu.run("cublas_bf16_nt", &problem, &operands)?;
            cublasGetMathMode(handle, &mut after[0]);
            let nowhere = Pointers::new(std::ptr::null(), std::ptr::null(), std::ptr::null_mut());
            let call = VendorCall::of(&short).map_err(|e| e.to_string())?;
            let refused = call.run(nowhere, handle).is_err();
            cublasGetMathMode(handle, &mut after[1]);
            refused
        };
        match refused && after == [mode; 2] {
            true => Ok(()),
            false => Err(format!("math mode {mode} became {after:?}; refused: {refused}")),
        }
    });
    // SAFETY: as above.
    unsafe { cublasSetMathMode(handle, 0) };
    result
}

/// What the symbol answers to the call for `problem`, with leading dimensions of A that are `less` than it has, and D afterwards.
fn interposed<T: Element>(
    gpu: &Gpu,
    problem: &Problem,
    operands: &Operands<T>,
    less: i32,
) -> Result<(u32, Vec<T>), String> {
    let text = |e: candle::Error| e.to_string();
    let stream = gpu.device.cuda_stream();
    stream.context().bind_to_thread().map_err(|e| e.to_string())?;
    let upload = |values: &Vec<T>| gpu.device.clone_htod(values).map_err(text);
    let (a, b, d) = (upload(&operands.a)?, upload(&operands.b)?, upload(&operands.d)?);
    let at = |slice, offset: usize| DevicePtr::<T>::device_ptr(slice, &stream).0 + (offset * size_of::<T>()) as u64;
    let op = |operand: &candle_tilegemm::problem::Operand| match operand.col_stride {
        1 => (sys::cublasOperation_t::CUBLAS_OP_N, operand.row_stride as i32),
        stride => (sys::cublasOperation_t::CUBLAS_OP_T, stride as i32),
    };
    let ((op_a, ld_a), (op_b, ld_b)) = (op(&problem.a), op(&problem.b));
    let data_type = match T::KERNEL_DTYPE {
        Format::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        Format::F16 => sys::cudaDataType_t::CUDA_R_16F,
        _ => sys::cudaDataType_t::CUDA_R_32F,
    };
    let scalars = [problem.epilogue.alpha() as f32, problem.epilogue.beta() as f32];
    let handle = gpu.device.cublas_handle();
    let [a_offset, b_offset, _, d_offset] = operands.offsets;
    // SAFETY: the buffers hold what the problem spans, and live until D has been read.
    let status = unsafe {
        sys::cublasGemmStridedBatchedEx(
            *handle.handle(),
            op_b,
            op_a,
            problem.n as i32,
            problem.m as i32,
            problem.k as i32,
            (&raw const scalars[0]).cast(),
            at(&b, b_offset) as *const c_void,
            data_type,
            ld_b,
            problem.b.batch_stride[1],
            at(&a, a_offset) as *const c_void,
            data_type,
            ld_a - less,
            problem.a.batch_stride[1],
            (&raw const scalars[1]).cast(),
            at(&d, d_offset) as *mut c_void,
            data_type,
            problem.d.row_stride as i32,
            problem.d.batch_stride[1],
            problem.batch_count() as i32,
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    };
    Ok((status as u32, gpu.device.clone_dtoh(&d).map_err(text)?))
}

/// What happened to the calls in `run`.
fn counted<T>(run: impl FnOnce() -> Result<T, String>) -> Result<(T, interpose::Stats), String> {
    let before = interpose::stats();
    let result = run()?;
    Ok((result, interpose::stats().since(&before)))
}

fn expect_forwarded(what: &dyn std::fmt::Display, stats: &interpose::Stats, reason: Forwarded) -> Result<(), String> {
    match stats.calls() == 1 && stats.forwarded == [(reason, 1)] {
        true => Ok(()),
        false => Err(format!("{what}: {stats:?}, expected a call that was forwarded as {reason:?}")),
    }
}

/// On our kernels, or on cuBLAS as the dispatcher chose.
fn expect_planned(problem: &Problem, stats: &interpose::Stats) -> Result<(), String> {
    match stats.ours {
        1 if stats.calls() == 1 => Ok(()),
        _ => expect_forwarded(problem, stats, Forwarded::Chosen),
    }
}

fn interposer_adds_in_f32_where_asked(gpu: &Gpu) -> Result<(), String> {
    let check = |problem: Problem| {
        let operands = cases::operands::<bf16, bf16>(&problem, 0, Data::Normal, 12);
        interpose::set_exact_sums(true);
        let called = counted(|| interposed(gpu, &problem, &operands, 0));
        interpose::set_exact_sums(false);
        let ((status, d), stats) = called?;
        if status != 0 {
            return Err(format!("{problem}: status {status}"));
        }
        expect_planned(&problem, &stats)?;
        oracle::check_sums(&problem, &operands, &d).map_err(|e| format!("{problem}: {e}"))
    };
    unaligned(Format::BF16).try_for_each(check)
}

fn interposer_adds_to_unaligned_results(gpu: &Gpu) -> Result<(), String> {
    interpose::set_exact_sums(true); // the bound is that of sums in f32
    let check = |(m, n, k, batch)| {
        let variant = Variant { alpha: 0.5, beta: -2.0, in_place: true, batch: [1, batch], ..Variant::PLAIN };
        let problem = cases::problem(m, n, k, Layout::NN, Format::BF16, variant);
        let operands = cases::operands::<bf16, bf16>(&problem, 0, Data::Normal, 13);
        let ((status, d), stats) = counted(|| interposed(gpu, &problem, &operands, 0))?;
        if status != 0 {
            return Err(format!("{problem}: status {status}"));
        }
        expect_planned(&problem, &stats)?;
        oracle::check_sums(&problem, &operands, &d).map_err(|e| format!("{problem}: {e}"))
    };
    let result = [(128, 1001, 515, 1), (100, 333, 65, 3)].into_iter().try_for_each(check);
    interpose::set_exact_sums(false);
    result
}

/// The kernels in a graph that copy operands: copy_rows and transpose, whose names have the namespace.
fn copies_in(graph: driver::CUgraph) -> Result<usize, String> {
    let check = |result: driver::CUresult| result.result().map_err(|e| e.to_string());
    let mut count = 0;
    // SAFETY: the graph lives; without a list the function counts the nodes, and with one the list has room for so many.
    let nodes = unsafe {
        check(driver::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count))?;
        let mut nodes = vec![std::ptr::null_mut(); count];
        check(driver::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count))?;
        nodes
    };
    let mut copies = 0;
    for node in nodes {
        let mut kind = driver::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: the node is the graph's.
        check(unsafe { driver::cuGraphNodeGetType(node, &mut kind) })?;
        if kind != driver::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL {
            continue;
        }
        let mut name = std::ptr::null();
        // SAFETY: the node is a kernel; zeros are valid parameters. A node has a function, or a kernel without a context, with a name that lives as long.
        let name = unsafe {
            let mut parameters: driver::CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
            check(driver::cuGraphKernelNodeGetParams_v2(node, &mut parameters))?;
            check(match parameters.func.is_null() {
                false => driver::cuFuncGetName(&mut name, parameters.func),
                true => driver::cuKernelGetName(&mut name, parameters.kern),
            })?;
            std::ffi::CStr::from_ptr(name).to_string_lossy()
        };
        copies +=
            usize::from(name.contains("tilegemm") && ["copy_rows", "transpose"].iter().any(|copy| name.contains(copy)));
    }
    Ok(copies)
}

/// A call that the dispatcher gives to cuBLAS on copies of the operands runs on copies: a graph of the call has the kernels that copy, and a graph of stock's
/// call has none.
fn interposer_copies_unaligned_operands(gpu: &Gpu) -> Result<(), String> {
    use driver::{CUgraphInstantiate_flags, CUstreamCaptureMode};
    const FLAGS: CUgraphInstantiate_flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let problem = Problem::dense(512, 4095, 4095, 1, Layout::NT, Format::BF16);
    let plan = Dispatcher::new(gpu.info.clone())
        .without_tuning()
        .plan(&problem, Policy::default())
        .map_err(|e| e.to_string())?;
    if plan.packing.is_none() || plan.kernel.role != Role::Vendor {
        println!("{} takes {problem} on this card: no call to look at", plan.name());
        return Ok(());
    }
    let text = |e: candle::Error| e.to_string();
    let (device, stream) = (Device::Cuda(gpu.device.clone()), gpu.device.cuda_stream());
    let draw = |shape| Tensor::randn(0f32, 1f32, shape, &device)?.to_dtype(DType::BF16);
    let (a, b) = (draw((problem.m, problem.k)).map_err(text)?, draw((problem.n, problem.k)).map_err(text)?);
    let copies = |mode: Mode| -> Result<usize, String> {
        interpose::set_mode(mode);
        let multiply = || a.matmul(&b.t()?);
        multiply().map_err(text)?; // loads modules, and the stream gets a workspace
        stream.synchronize().map_err(|e| e.to_string())?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(|e| e.to_string())?;
        let d = multiply();
        let graph = stream.end_capture(FLAGS).map_err(|e| e.to_string())?.ok_or("nothing was captured")?;
        let d = d.map_err(text)?;
        graph.launch().map_err(|e| e.to_string())?; // the memory of the result begins to exist, and can be freed
        stream.synchronize().map_err(|e| e.to_string())?;
        drop(d);
        copies_in(graph.cu_graph())
    };
    let counts = [copies(Mode::Off), copies(Mode::On)];
    interpose::set_mode(Mode::On);
    let [stock, ours] = counts;
    match (stock?, ours?) {
        (0, 1..) => Ok(()),
        (stock, ours) => Err(format!("{}: {ours} kernels that copy, and {stock} in stock's call", plan.name())),
    }
}

fn interposer_leaves_wrong_arguments(gpu: &Gpu) -> Result<(), String> {
    const INVALID_VALUE: u32 = 7;
    for layout in [Layout::NN, Layout::TN] {
        let problem = Problem::dense(64, 64, 64, 1, layout, Format::F32);
        let operands = cases::operands::<f32, f32>(&problem, 0, Data::Normal, 14);
        let ((status, d), stats) = counted(|| interposed(gpu, &problem, &operands, 1))?;
        expect_forwarded(&problem, &stats, Forwarded::Arguments)?;
        if status != INVALID_VALUE || d.iter().any(|x| !x.is_nan()) {
            return Err(format!("{problem} with a short leading dimension: status {status}, or D was written"));
        }
    }
    Ok(())
}

/// Panics where the dispatcher tells of its choice.
struct Panicking;

impl tracing::Subscriber for Panicking {
    fn enabled(&self, metadata: &tracing::Metadata) -> bool {
        metadata.target() == "tilegemm::dispatch"
    }

    fn new_span(&self, _: &tracing::span::Attributes) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event) {
        panic!("planted by a test");
    }
}

fn interposer_forwards_after_a_panic(gpu: &Gpu) -> Result<(), String> {
    // A size that no other test has: what was planned before is not chosen again. Nothing is launched yet, so that a sum may go on.
    for (n, beta) in [(1237, 0.0), (1239, 1.0)] {
        let variant = Variant { beta, in_place: beta != 0.0, ..Variant::PLAIN };
        let problem = cases::problem(37, n, 29, Layout::NT, Format::F32, variant);
        let operands = cases::operands::<f32, f32>(&problem, 0, Data::Normal, 15);
        let call = || counted(|| interposed(gpu, &problem, &operands, 0));
        let called = tracing::subscriber::with_default(Panicking, || catch_unwind(AssertUnwindSafe(call)));
        let ((status, d), stats) = called.map_err(|_| "the panic came through")??;
        expect_forwarded(&problem, &stats, Forwarded::Failed)?;
        if status != 0 {
            return Err(format!("{problem}: status {status}"));
        }
        oracle::check_sums(&problem, &operands, &d)?;
    }
    Ok(())
}

const HANDED_ON: &str = "workspaces_of_threads_are_handed_on";

/// More threads than there are workspaces, one after the other: each has one of its own. In a process of its own, for the threads of
/// the other tests live on.
fn workspaces_are_handed_on(gpu: &Gpu) -> Result<(), String> {
    const CHILD: &str = "TILEGEMM_TEST_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let child = std::process::Command::new(program).args(["--exact", HANDED_ON]).env(CHILD, "1").output();
        let child = child.map_err(|e| e.to_string())?;
        return match child.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&child.stdout).into_owned()),
        };
    }
    let problem = Problem::dense(300, 264, 160, 1, Layout::NN, Format::F32);
    let needs_one = |k: &&KernelDesc| {
        let runs = k.is_built() && k.supports(&problem, &gpu.info).is_ok();
        runs && k.layout == Layout::NN && k.workspace(&problem).least > 0
    };
    let kernel = KERNELS.iter().find(needs_one).ok_or("no kernel of this build needs a workspace")?;
    let operands = cases::operands::<f32, f32>(&problem, 0, Data::Normal, 16);
    let expected = gpu.run(kernel.name, &problem, &operands)?;
    let on_a_thread = || -> Result<(), String> {
        let device = candle::Device::Cuda(gpu.device.clone());
        let bytes = candle_tilegemm::prepare(&device).map_err(|e| e.to_string())?;
        let got = gpu.run(kernel.name, &problem, &operands)?;
        let same = got.iter().zip(&expected).all(|(x, y)| x.to_bits() == y.to_bits());
        match same && bytes == workspace::bytes().map_err(|e| e.to_string())? {
            true => Ok(()),
            false => Err(format!("{bytes} bytes; the result is the same: {same}")),
        }
    };
    for index in 0..3 * workspace::MOST_STREAMS {
        let joined = std::thread::scope(|scope| scope.spawn(on_a_thread).join());
        joined.map_err(|_| "a thread panicked")?.map_err(|e| format!("thread {index}: {e}"))?;
    }
    Ok(())
}
