//! Decoders on the GPU that is here: steps with graphs and without, families and files against the CPU, captures that fail.
//!
//! Without a device each test is reported as ignored, loudly; with `TILEGEMM_REQUIRE_GPU=1` that is a failure.

#[cfg(feature = "layers")]
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "layers")]
mod families;
#[cfg(feature = "layers")]
mod gpt_oss;
#[cfg(feature = "layers")]
mod graphs;
#[cfg(feature = "layers")]
mod narrow;
#[cfg(all(feature = "layers", feature = "nccl"))]
mod ranks;
// The library's own, which no user sees.
#[cfg(feature = "layers")]
#[path = "../../src/replay.rs"]
mod replay;
#[cfg(feature = "layers")]
#[path = "../common/smollm2.rs"]
mod smollm2;

use libtest_mimic::{Arguments, Trial};

type Test = (String, Box<dyn Fn() -> candle::Result<()> + Send>);

#[cfg(feature = "layers")]
fn tests() -> Result<Vec<Test>, String> {
    let device = candle::Device::new_cuda(0).map_err(|error| error.to_string())?;
    let on = |check: common::steps::Check| {
        let device = device.clone();
        Box::new(move || check(&device)) as Box<dyn Fn() -> candle::Result<()> + Send>
    };
    let all = common::steps::CHECKS.iter().chain(&graphs::CHECKS).chain(&families::CHECKS);
    let all = all.chain(&narrow::CHECKS).chain(&gpt_oss::CHECKS);
    #[cfg(feature = "nccl")]
    let all = all.chain(&ranks::CHECKS);
    Ok(all.map(|(name, check)| (name.to_string(), on(*check))).collect())
}

#[cfg(not(feature = "layers"))]
fn tests() -> Result<Vec<Test>, String> {
    Err("this build has no decoder on a GPU; build with the features full and layers, and with an arch such as sm90"
        .into())
}

/// Whether the tests of ranks can run: a rank that has no device would keep the others waiting.
fn has_ranks() -> bool {
    #[cfg(feature = "nccl")]
    return candle_tilegemm::launch::device_count().is_ok_and(|count| count > 1);
    #[cfg(not(feature = "nccl"))]
    true
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1); // one GPU, and a variable of the environment that tests set
    let required = std::env::var("TILEGEMM_REQUIRE_GPU").is_ok_and(|value| value == "1");
    let tests = tests().unwrap_or_else(|why| {
        println!("skipped: no decoder on a GPU ({why})");
        vec![("a_gpu".into(), Box::new(move || candle::bail!("{why}")))]
    });
    let skip = !required && tests.len() == 1;
    let has_ranks = has_ranks();
    if !skip && !has_ranks {
        println!("left out: the tests of ranks, which need two devices");
    }
    let trial = |(name, test): Test| {
        let is_left_out = skip || (!has_ranks && name.starts_with("ranks_"));
        let run = move || test().map_err(|error| error.to_string().into());
        Trial::test(name, run).with_ignored_flag(is_left_out)
    };
    libtest_mimic::run(&arguments, tests.into_iter().map(trial).collect()).exit();
}
