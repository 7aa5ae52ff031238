//! `tilegemm bench` on a machine with a GPU.

use super::args::{Args, Plant};
use super::arms::{self, Arm};
use super::ladder;
use super::measure::Session;
use super::measured::STOP;
use super::models::{self, Model, ModelReport, Options};
use super::report::{Ceilings, Machine, SCHEMA};
use super::show::show;
use crate::lists::{experts, gguf, narrow};
use crate::{Failure, Result};
use candle_tilegemm::internal::suite::Shape;
use candle_tilegemm::{launch, F32Mode, Format};
use clap::ValueEnum;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::Ordering;

impl Args {
    /// The requested arms.
    pub fn arms(&self) -> Vec<Arm> {
        let named = |name: &str| name.parse::<Arm>().expect("checked when the run began");
        let mut arms: Vec<Arm> = match &self.arms[..] {
            [] if self.products.random.is_some() => arms::RANDOM.into_iter().map(named).collect(),
            [] if self.products.is_class(experts::CLASS) => arms::EXPERTS.into_iter().map(named).collect(),
            [] if self.products.is_class(experts::GGUF_CLASS) => arms::GGUF_EXPERTS.into_iter().map(named).collect(),
            [] if self.products.is_class(gguf::CLASS) => arms::GGUF.into_iter().map(named).collect(),
            [] if narrow::DENSE.into_iter().any(|name| self.products.is_class(name)) => {
                arms::NARROW.into_iter().map(named).collect()
            }
            [] if narrow::OF_EXPERTS.into_iter().any(|name| self.products.is_class(name)) => {
                arms::NARROW_EXPERTS.into_iter().map(named).collect()
            }
            [] => arms::DEFAULT.into_iter().map(named).collect(),
            names => names.iter().map(|name| named(name)).collect(),
        };
        if self.aa {
            if !arms.contains(&Arm::Ours) {
                arms.push(Arm::Ours);
            }
            arms.push(Arm::Again);
        }
        if self.plant == Some(Plant::ShortK) {
            arms.push(Arm::Planted);
        }
        arms
    }
}

/// Measures as the arguments say.
pub fn measure(args: &Args, shapes: &[Shape]) -> Result {
    for name in &args.arms {
        name.parse::<Arm>().map_err(Failure::Usage)?;
    }
    let model = args.model.as_ref().map(|name| Model::from_str(name, false).map_err(Failure::Usage)).transpose()?;
    if let Some(model) = model.filter(|model| model.on_cpu()) {
        return model_bench(model, args, None);
    }
    if let Err(error) = launch::device_count() {
        return Err(Failure::NoDevice(format!(
            "{error}; records of other machines can be read with --from and --compare"
        )));
    }
    stop_at_ctrl_c()?;
    if let Some(model) = model {
        let machine = Session::open(args.pause, args.f32.mode()?)?.machine()?;
        return model_bench(model, args, Some(machine));
    }
    let session = Session::open(args.pause, args.f32.mode()?)?;
    if args.ladder {
        return climb(&session, args);
    }
    let report = session.run(shapes, args)?;
    args.save(&report)?;
    show(&report, args)?;
    let wrong = report.rows.iter().any(|row| row.is_wrong());
    let failed = report.left_out.values().any(|reason| reason.starts_with("failed"));
    if wrong || failed {
        return Err(Failure::Silent);
    }
    match STOP.load(Ordering::Relaxed) {
        true => Err(Failure::Interrupted),
        false => Ok(()),
    }
}

/// The first Ctrl-C ends the run after the row in hand; the second ends the run at once.
pub fn stop_at_ctrl_c() -> Result {
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        crate::tell("\nstopping after this row; again to stop at once");
    })?;
    Ok(())
}

/// Sizes of the ladder.
const LADDER: [usize; 2] = [1024, 4096];

#[derive(Serialize)]
struct LadderRecord {
    schema: u32,
    machine: Machine,
    ceilings: Ceilings,
    ladder: ladder::Ladder,
}

fn climb(session: &Session, args: &Args) -> Result {
    let ceilings = session.ceilings(&[Format::F16], &[])?;
    let ladder = ladder::run(&session.timer, &ceilings, &LADDER)?;
    crate::print(ladder::table(&ladder))?;
    let record = LadderRecord { schema: SCHEMA, machine: session.machine()?, ceilings, ladder };
    save(&record, args.json.as_deref())
}

#[derive(Serialize)]
struct ModelRecord {
    schema: u32,
    /// Absent on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<Machine>,
    /// The f32 mode, which also holds for stock.
    f32: F32Mode,
    model: ModelReport,
}

fn model_bench(model: Model, args: &Args, machine: Option<Machine>) -> Result {
    let options = Options {
        model,
        prompts: args.prompt.clone(),
        batches: args.batch.clone(),
        decode: args.decode,
        runs: args.runs,
        dtype: None,
        weights: args.weights.clone(),
        stop: &STOP,
    };
    let report = models::run(&options)?;
    crate::print(models::table(&report))?;
    let worse = !report.worse().is_empty();
    save(&ModelRecord { schema: SCHEMA, machine, f32: args.f32.mode()?, model: report }, args.json.as_deref())?;
    if worse {
        return Err(Failure::Silent);
    }
    Ok(())
}

fn save(record: &impl Serialize, path: Option<&Path>) -> Result {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(record)?;
    Ok(std::fs::write(path, text + "\n").map_err(|e| format!("cannot write {}: {e}", path.display()))?)
}
