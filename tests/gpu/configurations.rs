//! Configurations: a kernel computes the same product in each that it has, and its launch function refuses all others.

use crate::cases::{self, Data, Variant};
use crate::device::{by_types, Element, Gpu};
use crate::{oracle, Test};
use candle::cuda_backend::cudarc::driver::sys::CUstreamCaptureMode;
use candle::cuda_backend::cudarc::driver::{result, DriverError};
use candle_tilegemm::family::{by_name, KERNELS};
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::problem::{Epilogue, Operand};
use candle_tilegemm::{launch, Config, Problem};
use rayon::prelude::*;
use std::collections::HashMap;
use std::ffi::{c_void, CStr};
use std::ptr::null_mut;

/// The C ABI itself: no plan holds a configuration that its kernel does not have.
#[allow(non_camel_case_types, dead_code, clippy::all)]
mod abi {
    include!("../../src/bindings.rs");
}

use abi::{tg_config, tg_gemm_args, tg_kernel, tg_matrix, tg_status};

pub fn tests() -> Vec<(String, Test)> {
    let mut tests: Vec<(String, Test)> = vec![
        ("other_configurations_are_refused".into(), Box::new(other_configurations_are_refused)),
        ("configurations_of_other_problems_are_refused".into(), Box::new(configurations_of_other_problems_are_refused)),
    ];
    let has_several = |kernel: &&KernelDesc| kernel.is_built() && kernel.role == Role::Kernel;
    tests.extend(KERNELS.iter().filter(has_several).map(|kernel: &'static KernelDesc| -> (String, Test) {
        let test: Test = Box::new(move |gpu| by_types!(kernel.types, every_configuration(gpu, kernel)));
        (format!("{kernel}_in_every_configuration"), test)
    }));
    tests
}

/// A dense product in the mode that the kernel is tried in.
fn dense(kernel: &KernelDesc, [m, n, k, batch]: [usize; 4], variant: Variant) -> Problem {
    let variant = Variant { batch: [1, batch], ..variant };
    let problem = cases::problem(m, n, k, kernel.layout, kernel.types, variant);
    problem.with(|p| p.f32_mode = cases::f32_mode(kernel))
}

/// Small products: few and many rows, one tile and several, short and long sums, several matrices.
fn problems(gpu: &Gpu, kernel: &KernelDesc) -> Vec<[usize; 4]> {
    let k = |k: usize| cases::sizes_near(gpu, kernel, [1, 264, k])[2];
    let ms = [1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 30, 40, 64, 77, 90, 128, 190, 257, 390];
    let mut problems: Vec<_> = ms.into_iter().flat_map(|m| [64, 264, 1032].map(|n| [m, n, k(520), 1])).collect();
    problems.extend(ms.into_iter().flat_map(|m| [[m, 136, k(64), 3], [m, 328, k(136), 1], [m, 264, k(2056), 1]]));
    problems.extend([1, 2, 4].into_iter().flat_map(|m| [[m, 1000, k(128), 1], [m, 264, k(32), 2]]));
    // K in parts, with tiles for a part of the multiprocessors.
    problems.extend([1, 4, 7, 16, 60, 128, 190, 257, 390].map(|m| [m, 520, k(8200), 1]));
    // More tiles than multiprocessors.
    problems.extend([1, 3, 4, 8, 16, 100, 300].map(|m| [m, 9000, k(264), 1]));
    problems
}

/// How many products each configuration is tried with.
const TRIES: usize = 2;

/// Every configuration against the reference kernel: some products, bare and with all that an epilogue can be.
fn every_configuration<T: Element, Out: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    if !kernel.arch.runs_on(gpu.info.capability) {
        return Err(format!("built for {}, which this device does not run", kernel.arch));
    }
    let mut tried: HashMap<Config, usize> = HashMap::new();
    let mut runs: Vec<([usize; 4], Vec<Config>)> = Vec::new();
    for sizes in problems(gpu, kernel) {
        let canonical = dense(kernel, sizes, Variant::PLAIN).canonical().problem;
        let mut configurations = kernel.configurations(&canonical, &gpu.info);
        configurations.retain(|config| {
            let tries = tried.entry(*config).or_default();
            *tries += 1;
            *tries <= TRIES
        });
        runs.push((sizes, configurations));
    }
    if tried.is_empty() {
        return Err("no product to try".into());
    }
    runs.par_iter().enumerate().filter(|(_, (_, configurations))| !configurations.is_empty()).try_for_each(
        |(seed, (sizes, configurations))| {
            for variant in [Variant::PLAIN, Variant { in_place: true, ..Variant::FULL }] {
                let problem = dense(kernel, *sizes, variant);
                // Not every kernel has every epilogue.
                let legal = kernel.configurations(&problem.canonical().problem, &gpu.info);
                let operands = cases::operands::<T, Out>(&problem, 0, Data::Normal, seed as u64);
                for config in configurations.iter().filter(|config| legal.contains(config)) {
                    oracle::compare(gpu, &format!("{kernel}@{config}"), &problem, &operands, Data::Normal)
                        .map_err(|e| format!("{config}: {problem}: {e}"))?;
                }
            }
            Ok(())
        },
    )
}

/// The kernel in the library.
fn linked(kernel: &KernelDesc) -> Result<&'static tg_kernel, String> {
    let mut count = 0;
    // SAFETY: the library gives `count` pointers to static descriptors, whose names are string literals.
    let kernels = unsafe { std::slice::from_raw_parts(abi::tg_kernels(&mut count), count) };
    // SAFETY: as above.
    let mut kernels = kernels.iter().map(|kernel| unsafe { &**kernel });
    // SAFETY: as above.
    let is_meant = |linked: &&tg_kernel| unsafe { CStr::from_ptr(linked.name) }.to_bytes() == kernel.name.as_bytes();
    kernels.find(is_meant).ok_or_else(|| format!("{kernel} is not linked in"))
}

fn abi_config(config: &Config) -> tg_config {
    let Config { tile, cluster, split, stages, warps, swap_ab, .. } = *config;
    let [tile_m, tile_n, cluster_m, cluster_n, split, stages, warps] =
        [tile[0], tile[1], cluster[0], cluster[1], split, stages, warps].map(|x| x as i32);
    tg_config { tile_m, tile_n, cluster_m, cluster_n, split, stages, warps, swap_ab: swap_ab.into() }
}

/// The bare product of a canonical problem, without a workspace.
fn arguments(gpu: &Gpu, problem: &Problem, config: tg_config, stream: *mut c_void) -> tg_gemm_args {
    let nothing = tg_matrix { ptr: null_mut(), row_stride: 0, col_stride: 0, batch_stride: [0, 0] };
    let anywhere = |operand: &Operand| tg_matrix {
        ptr: 0x7f00_0000_0000_usize as *mut c_void,
        row_stride: operand.row_stride,
        col_stride: operand.col_stride,
        batch_stride: operand.batch_stride,
    };
    let operands = abi::tg_format(problem.a.format as u32);
    let no_scale = abi::tg_scale { ptr: std::ptr::null(), format: operands, rows: 0, columns: 0 };
    tg_gemm_args {
        m: problem.m as i64,
        n: problem.n as i64,
        k: problem.k as i64,
        batch: problem.batch.map(|size| size as i64),
        a: anywhere(&problem.a),
        b: anywhere(&problem.b),
        c: nothing,
        d: anywhere(&problem.d),
        bias: nothing,
        alpha: 1.0,
        beta: 0.0,
        activation: abi::tg_activation::TG_IDENTITY,
        config,
        sm_count: gpu.info.sm_count as i32,
        overlap: 0,
        stream,
        workspace: null_mut(),
        workspace_bytes: 0,
        types: abi::tg_types { a: operands, b: operands, c: operands, d: operands, acc: abi::tg_format::TG_F32 },
        a_scale: no_scale,
        b_scale: no_scale,
        d_scale: no_scale,
        groups: abi::tg_groups { first_row: std::ptr::null(), count: 0, expected_rows: 0 },
    }
}

/// Launches into a capture, which computes nothing and looks at no operand.
struct Capture<'a> {
    gpu: &'a Gpu,
    stream: *mut c_void,
}

impl Capture<'_> {
    fn during(gpu: &Gpu, launches: impl FnOnce(&Capture) -> Result<(), String>) -> Result<(), String> {
        let text = |error: DriverError| error.to_string();
        let stream = gpu.device.cuda_stream();
        stream.context().bind_to_thread().map_err(text)?;
        // SAFETY: the stream is one of the device, which is now the current one.
        unsafe { launch::prepare(stream.cu_stream().cast()) }.map_err(|e| e.to_string())?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(text)?;
        let launched = launches(&Capture { gpu, stream: stream.cu_stream().cast() });
        // SAFETY: the stream is being captured by this thread, and the graph is destroyed once.
        unsafe {
            let graph = result::stream::end_capture(stream.cu_stream()).map_err(text)?;
            result::graph::destroy(graph).map_err(text)?;
        }
        launched
    }

    fn status(&self, kernel: &KernelDesc, problem: &Problem, config: tg_config) -> Result<tg_status, String> {
        let function = linked(kernel)?.launch.ok_or("it has no launch function")?;
        // SAFETY: a launch function of tilegemm.h; what the arguments point to is never read or written.
        Ok(unsafe { function(&arguments(self.gpu, problem, config, self.stream)) })
    }

    fn is_refused(&self, kernel: &KernelDesc, problem: &Problem, config: tg_config) -> Result<(), String> {
        match self.status(kernel, problem, config)? {
            tg_status::TG_UNSUPPORTED => Ok(()),
            status => Err(format!("{kernel} takes {problem} with {config:?}: status {}", status.0)),
        }
    }
}

fn fields(config: &mut tg_config) -> [&mut i32; 7] {
    let tg_config { tile_m, tile_n, cluster_m, cluster_n, split, stages, warps, .. } = config;
    [tile_m, tile_n, cluster_m, cluster_n, split, stages, warps]
}

/// With any field of a configuration out of place.
fn other_configurations_are_refused(gpu: &Gpu) -> Result<(), String> {
    let mut refused = 0;
    let runs = |kernel: &&KernelDesc| kernel.is_built() && kernel.arch.runs_on(gpu.info.capability);
    Capture::during(gpu, |capture| {
        for kernel in KERNELS.iter().filter(|kernel| kernel.role != Role::Vendor).filter(runs) {
            for sizes in [[4, 264, 520, 1], [1, 64, 64, 2], [7, 136, 1032, 1], [100, 520, 8200, 1]] {
                let problem = dense(kernel, sizes, Variant::PLAIN).canonical().problem;
                assert_eq!(problem.epilogue, Epilogue::new(1.0, 0.0));
                for config in kernel.configurations(&problem, &gpu.info) {
                    let right = abi_config(&config);
                    for field in 0..7 {
                        for value in [0, -1, 1000, i32::MAX, i32::MIN] {
                            let mut wrong = right;
                            let place = fields(&mut wrong).into_iter().nth(field).ok_or("no such field")?;
                            if *place != 0 {
                                *place = value;
                                capture.is_refused(kernel, &problem, wrong)?;
                                refused += 1;
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    })?;
    if refused < 1000 {
        return Err(format!("only {refused} configurations to refuse"));
    }
    Ok(())
}

/// The families' own cases, such as an instance for fewer rows or a shorter K than the problem has, or more parts than K has stages.
fn configurations_of_other_problems_are_refused(gpu: &Gpu) -> Result<(), String> {
    Capture::during(gpu, |capture| {
        for (name, sizes, config) in cases::family::REFUSED {
            let kernel = by_name(name).ok_or_else(|| format!("{name} is no kernel"))?;
            if !kernel.is_built() || !kernel.arch.runs_on(gpu.info.capability) {
                continue;
            }
            let problem = dense(kernel, *sizes, Variant::PLAIN).canonical().problem;
            let config: Config = config.parse().map_err(|e: String| e)?;
            capture.is_refused(kernel, &problem, abi_config(&config))?;
        }
        Ok(())
    })
}
