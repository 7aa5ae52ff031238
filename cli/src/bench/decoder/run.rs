//! `tilegemm bench --decoder` on this machine.

use super::super::args::Args;
use super::measure::{run, Options};
use super::record::{DecoderReport, Limits, CAPTURED, EAGER, STOCK};
use super::table::table;
use crate::{Failure, Result};
use candle::Device;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Why this build has no decoder on a GPU.
const ON_GPU: &str =
    "this build runs tiny decoders on the CPU only; build it with `--features cuda,sm90,full,bench,models`, or read a record with --from";

#[derive(Serialize)]
struct Record<M> {
    schema: u32,
    /// Absent on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<M>,
    decoder: DecoderReport,
}

/// Measures the decoder of this name.
pub fn bench(model: &str, args: &Args) -> Result {
    const ARMS: [&str; 3] = [STOCK, EAGER, CAPTURED];
    if let Some(unknown) = args.arms.iter().find(|arm| !ARMS.contains(&arm.as_str())) {
        return Err(Failure::Usage(format!("--decoder has the arms {}, and no arm '{unknown}'", ARMS.join(", "))));
    }
    let arms = if args.arms.is_empty() { ARMS.map(String::from).to_vec() } else { args.arms.clone() };
    let sizes = |list: &[u32]| list.iter().map(|size| *size as usize).collect::<Vec<_>>();
    let options = |limits: Option<Limits>, stop| Options {
        model,
        arms,
        prefill: sizes(&args.prefill),
        contexts: sizes(&args.context),
        sequences: sizes(&args.sequences),
        cards: args.cards as usize,
        fp8_cache: args.cache.is_some(),
        steps: args.decode.max(1) as usize,
        runs: args.runs as usize,
        budget: args.budget,
        limits,
        stop,
    };
    if model.starts_with("tiny") {
        let report = run(&options(None, &AtomicBool::new(false)), &Device::Cpu, "CPU")?;
        return show::<()>(report, None, args.json.as_deref());
    }
    on_gpu(args, options)
}

#[cfg(feature = "bench")]
fn on_gpu<'a>(args: &Args, options: impl FnOnce(Option<Limits>, &'a AtomicBool) -> Options<'a>) -> Result {
    use super::super::measure::Session;
    use super::super::measured::STOP;
    use super::super::run::stop_at_ctrl_c;
    use candle_tilegemm::{launch, Format};

    if let Err(error) = launch::device_count() {
        return Err(Failure::NoDevice(format!("{error}; --decoder tiny runs on the CPU, and --from reads records")));
    }
    if !cfg!(feature = "layers") {
        return Err(Failure::NoDevice(ON_GPU.into()));
    }
    stop_at_ctrl_c()?;
    let session = Session::open(args.pause, args.f32.mode()?)?;
    let (machine, ceilings) = (session.machine()?, session.ceilings(&[Format::BF16], &[])?);
    drop(session);
    let limits =
        ceilings.tflops.get(&Format::BF16).map(|tflops| Limits { hbm_gbps: ceilings.hbm_gbps, tflops: *tflops });
    let gpu = machine.gpu.clone();
    let report = run(&options(limits, &STOP), &Device::new_cuda(0)?, &gpu)?;
    show(report, Some(machine), args.json.as_deref())
}

#[cfg(not(feature = "bench"))]
fn on_gpu<'a>(_: &Args, _: impl FnOnce(Option<Limits>, &'a AtomicBool) -> Options<'a>) -> Result {
    Err(Failure::NoDevice(ON_GPU.into()))
}

/// Prints and writes a record.
fn show<M: Serialize>(report: DecoderReport, machine: Option<M>, path: Option<&Path>) -> Result {
    crate::print(table(&report))?;
    let is_bad = report.is_bad();
    if let Some(path) = path {
        let record = Record { schema: report.schema, machine, decoder: report };
        let text = serde_json::to_string_pretty(&record)?;
        std::fs::write(path, text + "\n").map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    if is_bad {
        return Err(Failure::Silent);
    }
    Ok(())
}
