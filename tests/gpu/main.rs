//! Every kernel of the build against the oracle, by name, on the GPU that is here.
//!
//! Without a device each test is reported as ignored, loudly; with `TILEGEMM_REQUIRE_GPU=1` that is a failure.

mod activations;
mod among;
mod bad_rows;
mod batch_invariant;
// The blocks of `tilegemm bench`.
#[path = "../../cli/src/blocks.rs"]
mod blocks;
mod captures;
mod cases;
mod chains;
mod codes;
mod configurations;
#[cfg(candle_tests)]
mod conformance;
// The numbers of the tables of `tilegemm errors`.
#[path = "../../cli/src/errors/data.rs"]
mod data;
mod device;
mod elsewhere;
mod end_to_end;
mod epilogue;
mod exactness;
mod experts;
mod families;
mod fma;
mod folded;
mod fp8;
mod gated;
mod gguf;
mod gguf_errors;
#[cfg(feature = "interpose-kernels")]
mod gguf_experts;
mod groups;
mod into;
mod launches;
#[cfg(feature = "layers")]
mod layers;
mod learn;
mod limits;
mod memory;
#[path = "models.rs"]
mod model_families;
// Shared with the test on the CPU.
#[path = "../support/models.rs"]
mod models;
mod narrow;
mod narrow_layers;
mod numbers;
mod odd_addresses;
mod oracle;
mod outer;
mod packing;
mod qmatmul;
mod random;
mod replayed;
mod rounding;
mod scaled;
mod shard;
mod speed;
mod tf32;
mod two_devices;
mod vendor;

use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::{KernelDesc, Role};
use device::Gpu;
use float8::F8E4M3;
use libtest_mimic::{Failed, Trial};
use shard::{Listed, Shard};
use std::process::ExitCode;
use std::sync::OnceLock;

fn main() -> ExitCode {
    let (mut arguments, shard) = Shard::from_args();
    arguments.test_threads = Some(1); // one GPU, and counters that belong to one test at a time
    let gpu = Gpu::open(0);
    let required = std::env::var("TILEGEMM_REQUIRE_GPU").is_ok_and(|value| value == "1");
    let skip = match &gpu {
        Ok(gpu) => {
            println!("device: {}", gpu.info.name);
            let _ = CAPABILITY.set(gpu.info.capability);
            let others = KERNELS.iter().filter(|kernel| kernel.is_built()).count() - built().count();
            if others > 0 {
                println!("left out: {others} kernels for other architectures");
            }
            false
        }
        Err(error) => {
            println!("skipped: no CUDA device ({error})");
            !required
        }
    };
    let one_device = two_devices::missing().filter(|_| !skip);
    if let Some(why) = &one_device {
        println!("left out: the tests of two devices; {why}");
    }
    let shard = if skip { shard.in_one_process() } else { shard };
    let beside = beside();
    let count = beside.len();
    let part = beside.into_iter().chain(alone()).enumerate().filter(|(place, _)| shard.has(*place, *place >= count));
    let part = part.map(|(place, (name, test))| {
        let is_left_out = skip || (one_device.is_some() && name.starts_with("two_devices"));
        Listed { place, name, test, is_left_out }
    });
    let part: Vec<Listed> = part.collect();
    shard::count(part.len());
    if shard.beside {
        return shard::run_as_told(&arguments, part, &gpu);
    }
    shard.begin_times();
    let passed = shard.run_beside(count);
    let trials = part.into_iter().map(|Listed { place, name, test, is_left_out }| {
        let (gpu, of) = (gpu.clone(), name.clone());
        let run = move || -> Result<(), Failed> { Ok(shard::counted(place, &of, || gpu.and_then(|gpu| test(&gpu)))?) };
        Trial::test(name, run).with_ignored_flag(is_left_out)
    });
    let trials: Vec<Trial> = trials.collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !skip && !arguments.list {
        shard::print_times();
    }
    if !passed {
        println!("a process beside this one failed: its lines are above");
        return ExitCode::from(101);
    }
    conclusion.exit_code()
}

/// The device's compute capability, where there is a device.
static CAPABILITY: OnceLock<u16> = OnceLock::new();

/// The kernels of this build that run on the device; without a device, all.
fn built() -> impl Iterator<Item = &'static KernelDesc> {
    let runs = |kernel: &&KernelDesc| CAPABILITY.get().is_none_or(|capability| kernel.arch.runs_on(*capability));
    KERNELS.iter().filter(|kernel| kernel.is_built()).filter(runs)
}

/// The kernels among these that are `plain`.
fn with_one_b() -> impl Iterator<Item = &'static KernelDesc> {
    built().filter(plain)
}

/// Whether a kernel takes problems with one B for all rows, in the format of A, and no gate; `groups.rs`, `gguf.rs`, `narrow.rs`, `fp8.rs` and `gated.rs` have the
/// others.
fn plain(kernel: &&'static KernelDesc) -> bool {
    let is_dense = !kernel.needs_groups() && !kernel.needs_gates() && kernel.types.a == kernel.types.b;
    is_dense && !fp8::is_of_bytes(kernel)
}

type Test = Box<dyn Fn(&Gpu) -> Result<(), String> + Send>;

/// Tests that measure time or free memory, or take much of the device's memory.
fn alone() -> Vec<(String, Test)> {
    let mut tests = limits::tests();
    tests.extend(memory::tests());
    tests.extend(end_to_end::alone());
    tests.extend(bad_rows::timed());
    tests.extend(learn::tests());
    tests.extend(speed::tests());
    tests
}

/// The others. The longest come first, behind those that have to.
fn beside() -> Vec<(String, Test)> {
    // Kernels that were launched before would prove nothing in these.
    let mut tests = captures::tests();
    tests.extend(launches::tests());
    let others: Vec<(String, Test)> = vec![
        ("library_matches_table".into(), Box::new(oracle::library_matches_table)),
        ("workspaces_in_graphs".into(), Box::new(exactness::workspaces_in_graphs)),
        ("reference_f16_against_f64".into(), Box::new(oracle::reference_against_f64::<half::f16, half::f16>)),
        ("reference_bf16_against_f64".into(), Box::new(oracle::reference_against_f64::<half::bf16, half::bf16>)),
        ("reference_f32_against_f64".into(), Box::new(oracle::reference_against_f64::<f32, f32>)),
        ("reference_f64_against_f64".into(), Box::new(oracle::reference_against_f64::<f64, f64>)),
        ("reference_f16_f32_against_f64".into(), Box::new(oracle::reference_against_f64::<half::f16, f32>)),
        ("reference_bf16_f32_against_f64".into(), Box::new(oracle::reference_against_f64::<half::bf16, f32>)),
        ("reference_f8e4m3_bf16_against_f64".into(), Box::new(oracle::reference_against_f64::<F8E4M3, half::bf16>)),
        ("reference_f8e4m3_f32_against_f64".into(), Box::new(oracle::reference_against_f64::<F8E4M3, f32>)),
        ("outer_is_simt_to_the_bit".into(), Box::new(outer::outer_is_simt_to_the_bit)),
    ];
    tests.extend(others);
    tests.extend(exactness::tests());
    tests.extend(random::tests());
    tests.extend(rounding::tests());
    tests.extend(bad_rows::tests());
    tests.extend(elsewhere::tests());
    tests.extend(batch_invariant::tests());
    tests.extend(folded::tests());
    let kernels = with_one_b().filter(|kernel| kernel.role != Role::LastResort);
    tests.extend(kernels.map(|kernel: &'static KernelDesc| {
        let test: Test = Box::new(move |gpu| cases::kernel_against_reference(gpu, kernel, cases::few_cases()?));
        (kernel.name.to_string(), test)
    }));
    tests.extend(activations::tests());
    tests.extend(chains::tests());
    tests.extend(configurations::tests());
    tests.extend(experts::tests());
    tests.extend(among::tests());
    tests.extend(families::tests());
    tests.extend(fma::tests());
    tests.extend(gated::tests());
    tests.extend(gguf::tests());
    tests.extend(gguf_errors::tests());
    #[cfg(feature = "interpose-kernels")]
    tests.extend(gguf_experts::tests());
    tests.extend(narrow::tests());
    tests.extend(fp8::tests());
    tests.extend(narrow_layers::tests());
    tests.extend(scaled::tests());
    tests.extend(qmatmul::tests());
    tests.extend(groups::tests());
    tests.extend(into::tests());
    #[cfg(feature = "layers")]
    tests.extend(layers::tests());
    tests.extend(odd_addresses::tests());
    tests.extend(packing::tests());
    tests.extend(two_devices::tests());
    tests.extend(end_to_end::tests());
    tests.extend(model_families::tests());
    #[cfg(candle_tests)]
    tests.extend(conformance::tests());
    tests.extend(tf32::tests());
    tests.extend(epilogue::tests());
    tests.extend(vendor::tests());
    tests
}
