//! Errors and times on the GPU of this machine.

use super::data::{Kind, SIZE};
use super::record::{Errors, ErrorsOf, Record, ARMS};
use super::Args;
use crate::cli::bench;
use crate::cli::bench::arms::Arm;
use crate::cli::bench::check::product_in_f64;
use crate::cli::bench::measure::{progress, Session};
use crate::cli::bench::measured::STOP;
use crate::cli::bench::operands::Operands;
use crate::cli::bench::report::digits;
use crate::cli::bench::run::stop_at_ctrl_c;
use crate::cli::{Failure, Result};
use crate::dispatch::{Candidate, Policy};
use crate::kernel::Math;
use crate::suite::Shape;
use crate::{launch, workspace, F32Mode, Format, Layout, Problem};
use candle::{Device, Tensor};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Lengths of the sums for the errors.
const DEPTHS: [usize; 10] = [64, 96, 128, 256, 512, 768, 1024, 2048, 4096, 14336];

/// All errors, then all times.
pub fn run(args: &Args, shapes: &[Shape]) -> Result<Record> {
    if let Err(error) = launch::device_count() {
        return Err(Failure::NoDevice(format!("{error}; a record of another machine can be read with --from")));
    }
    stop_at_ctrl_c()?;
    let session = Session::open(args.pause, F32Mode::Accurate)?;
    let errors = all_errors(&session, &args.layout)?;
    let (arms, samples) = (ARMS.join(","), args.samples.to_string());
    let bench = session.run(shapes, &bench::Args::of(&["--arms", &arms, "--samples", &samples]))?;
    Ok(Record { version: env!("CARGO_PKG_VERSION").into(), errors, bench })
}

/// Whether Ctrl-C ended the measurement, so that products are missing.
pub fn interrupted() -> bool {
    STOP.load(Ordering::Relaxed)
}

fn all_errors(session: &Session, layouts: &[Layout]) -> Result<Vec<Errors>> {
    // Whole numbers with exact sums show no errors.
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Integers).collect();
    let progress = progress(DEPTHS.len() * kinds.len());
    let mut all = Vec::new();
    for k in DEPTHS {
        for &kind in &kinds {
            if interrupted() {
                break;
            }
            progress.set_message(format!("errors: K {k}, {kind}"));
            all.extend(errors(session, kind, k, layouts)?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    // Tables are by layout; the stable sort keeps the remaining order.
    all.sort_by_key(|errors| layouts.iter().position(|layout| *layout == errors.layout));
    Ok(all)
}

/// The errors of all arms on the same numbers, in each of the layouts.
fn errors(session: &Session, kind: Kind, k: usize, layouts: &[Layout]) -> Result<Vec<Errors>> {
    let device = Device::Cuda(session.timer.device().clone());
    let side = |side: u64| -> Result<Tensor> {
        let values: Vec<f32> = (0..SIZE).into_par_iter().flat_map_iter(|index| kind.vector(side, k, index)).collect();
        Ok(Tensor::from_vec(values, (SIZE, k), &device)?)
    };
    let (rows, columns) = (side(0)?, side(1)?);
    let exact = products(session, &rows, &columns)?;
    let sizes = products(session, &rows.abs()?, &columns.abs()?)?;
    let of_layout = |&layout: &Layout| {
        let problem = Problem::dense(SIZE, SIZE, k, 1, layout, Format::F32);
        // The lines are stored with K contiguous, as for A and B of nt, or transposed.
        let lie = |lines: &Tensor, as_they_are: bool| -> Result<Tensor> {
            Ok(if as_they_are { lines.clone() } else { lines.t()?.contiguous()? })
        };
        let (a, b) = (lie(&rows, problem.a.col_stride == 1)?, lie(&columns, problem.b.row_stride == 1)?);
        let operands = Operands::of(&problem, &a, &b)?;
        let mut errors = Errors { layout, k, data: kind.to_string(), arms: BTreeMap::new(), absent: BTreeMap::new() };
        for name in ARMS {
            let arm: Arm = name.parse()?;
            let problem = arm.problem(&problem);
            let runner =
                match session.resolver(&problem, &operands).resolve(&in_its_arithmetic(session, arm, &problem)?) {
                    Ok(runner) => runner,
                    Err(error) => {
                        errors.absent.insert(name.into(), error.to_string());
                        continue;
                    }
                };
            operands.poison(&session.timer)?;
            runner.run(&session.timer, &operands)?;
            let d = operands.first()[2].to_vec1::<f32>()?;
            let [max, rms] = kind.errors(&d, exact.iter().copied().zip(sizes.iter().copied())).map(digits);
            errors.arms.insert(name.into(), ErrorsOf { max, rms, kernel: runner.kernel() });
        }
        Ok(errors)
    };
    layouts.iter().map(of_layout).collect()
}

/// For our arms in accurate and TF32: the kernel with the arithmetic that only this mode allows, by the least estimate.
/// Products as small as these may be faster by fused multiply-adds, whose errors are the errors of strict. Without such
/// a kernel, the arm itself.
fn in_its_arithmetic(session: &Session, arm: Arm, problem: &Problem) -> Result<Arm> {
    let math = match arm {
        Arm::OwnIn(F32Mode::Accurate) => Math::Bf16x6,
        Arm::OwnIn(F32Mode::Tf32) => Math::Tf32,
        _ => return Ok(arm),
    };
    let explanation = session.dispatcher.explain(problem, Policy::own().with_workspace(workspace::bytes()?));
    let able = |candidate: &Candidate| Some((candidate.kernel, *candidate.verdict.as_ref().ok()?));
    let able = explanation.candidates.iter().filter(|candidate| candidate.kernel.math == math).filter_map(able);
    Ok(able.min_by(|x, y| x.1.total_cmp(&y.1)).map_or(arm, |(kernel, _)| Arm::Kernel(kernel, None)))
}

/// Rows times columns in f64.
fn products(session: &Session, rows: &Tensor, columns: &Tensor) -> Result<Vec<f64>> {
    let problem = Problem::dense(SIZE, SIZE, rows.dim(1)?, 1, Layout::NT, Format::F32);
    let operands = Operands::of(&problem, rows, columns)?;
    Ok(product_in_f64(&session.timer, &session.dispatcher, &problem, &operands)?.to_vec1()?)
}
