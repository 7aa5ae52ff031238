//! The driver, the devices, and whether the kernels of this build run on them.

use super::finding::{Finding, Status};
use candle_tilegemm::arch::{Arch, DeviceInfo};
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::{BUILT_ARCHS, KERNELS};
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::{launch, Error, Format, Layout, Problem};

pub fn findings() -> Vec<Finding> {
    let mut findings = vec![driver(), library(), vendor()];
    #[cfg(all(feature = "candle", feature = "interpose"))]
    findings.push(interposer());
    #[cfg(feature = "interpose-kernels")]
    findings.extend(kernels());
    match launch::device_count() {
        Ok(count) => findings.extend((0..count).flat_map(device)),
        Err(error) => {
            let remedy = match std::env::var("CUDA_VISIBLE_DEVICES") {
                Ok(value) => format!("CUDA_VISIBLE_DEVICES={value} hides all but these; unset it"),
                Err(_) => "run it on a machine with an NVIDIA GPU; a container needs `--gpus all`".into(),
            };
            findings.push(Finding::problem(Status::Missing, "device", reason(error), remedy));
        }
    }
    findings
}

/// CUDA's message; the error itself points to this command.
fn reason(error: Error) -> String {
    match error {
        Error::NoDevice(reason) => reason,
        error => error.to_string(),
    }
}

fn driver() -> Finding {
    match launch::driver_version() {
        Ok(version) => Finding::ok("driver", format!("up to CUDA {}.{}", version / 1000, version % 1000 / 10)),
        Err(error) => {
            let remedy = "install the NVIDIA driver, 580 or newer for CUDA 13; a container needs `--gpus all`";
            Finding::problem(Status::Missing, "driver", reason(error), remedy)
        }
    }
}

fn library() -> Finding {
    match launch::verify_library() {
        Ok(count) => Finding::ok("library", format!("{count} kernels are linked, all as the table has them")),
        Err(error) => Finding::problem(Status::Broken, "library", "does not fit this program", error.to_string()),
    }
}

fn vendor() -> Finding {
    match launch::verify_vendor() {
        Ok(library) => Finding::ok("cuBLAS", library.to_string()),
        Err(_) if Policy::from_env().is_ok_and(|policy| !policy.vendor) => {
            Finding::ok("cuBLAS", "not found, and not used")
        }
        Err(error) => Finding::problem(Status::Missing, "cuBLAS", "cannot be used", error.to_string()),
    }
}

#[cfg(all(feature = "candle", feature = "interpose"))]
fn interposer() -> Finding {
    if candle_tilegemm::interpose::is_active() {
        Finding::ok("interposer", "candle's products arrive at the dispatcher")
    } else {
        let remedy = "link cuBLAS dynamically (Linux only); cudarc must not have `dynamic-loading` on";
        Finding::problem(Status::Broken, "interposer", "candle's products go to cuBLAS directly", remedy)
    }
}

/// Whether candle's calls of its own kernels arrive.
#[cfg(feature = "interpose-kernels")]
fn kernels() -> [Finding; 3] {
    let finding = |name, calls: &str, arrive: bool| {
        if arrive {
            return Finding::ok(name, format!("candle's calls for {calls} arrive at the dispatcher"));
        }
        let remedy = "link candle and candle-tilegemm into the same program or shared library";
        Finding::problem(Status::Broken, name, format!("candle's calls for {calls} go to another definition"), remedy)
    };
    [
        finding("experts", "experts", candle_tilegemm::interpose::experts_are_active()),
        finding("gguf", "quantised weights", candle_tilegemm::interpose::gguf_is_active()),
        finding(
            "gguf experts",
            "experts with quantised weights",
            candle_tilegemm::interpose::gguf_experts_are_active(),
        ),
    ]
}

fn device(ordinal: usize) -> Vec<Finding> {
    let device = match launch::device_info(ordinal) {
        Ok(device) => device,
        Err(error) => {
            let remedy = "see what the driver says of it: nvidia-smi";
            return vec![Finding::problem(Status::Broken, "device", reason(error), remedy)];
        }
    };
    let DeviceInfo { name, capability, sm_count, memory_bytes, .. } = &device;
    let text = format!("{ordinal}: {name}, sm{capability}, {sm_count} SMs, {} GiB", memory_bytes >> 30);
    let runs =
        |kernel: &&KernelDesc| kernel.is_built() && kernel.role != Role::Vendor && kernel.arch.runs_on(*capability);
    let count = KERNELS.iter().filter(runs).count();
    if count == 0 {
        let remedy = format!("none of our kernels runs there: {}", Arch::remedy(*capability, BUILT_ARCHS));
        return vec![Finding::problem(Status::Missing, "device", text, remedy)];
    }
    let mut findings = vec![Finding::ok("device", format!("{text}: {count} of our kernels run there"))];
    let dispatcher = match Dispatcher::new(device.clone()).with_user_tuning() {
        Ok(dispatcher) => dispatcher,
        Err(_) => Dispatcher::new(device), // `measured tables` says why
    };
    findings
        .extend(EXAMPLES.map(|(m, n, k, dtype)| example(&dispatcher, &Problem::dense(m, n, k, 1, Layout::NT, dtype))));
    findings
}

/// Decode, prefill, and products in f32 and f64.
const EXAMPLES: [(usize, usize, usize, Format); 5] = [
    (1, 4096, 4096, Format::BF16),
    (256, 4096, 4096, Format::BF16),
    (4096, 4096, 4096, Format::F16),
    (512, 1024, 1024, Format::F32),
    (512, 1024, 1024, Format::F64),
];

fn example(dispatcher: &Dispatcher, problem: &Problem) -> Finding {
    let policy = Policy::from_env().unwrap_or_default();
    match dispatcher.plan(problem, policy) {
        Ok(plan) => Finding::ok("would run", format!("{:<22} {}", problem.to_string(), plan.name())),
        Err(error) => Finding::problem(Status::Warn, "would run", problem, error.to_string()),
    }
}
