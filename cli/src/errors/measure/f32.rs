//! Errors and times on the GPU of this machine.

use super::{exact, interrupted, lines, of_arm, session};
use crate::bench;
use crate::bench::arms::Arm;
use crate::bench::measure::{progress, Session};
use crate::bench::operands::Operands;
use crate::errors::data::{Kind, SIZE};
use crate::errors::f32::ARMS;
use crate::errors::record::{Errors, Record, Subject};
use crate::{products, Result};
use candle::{Device, Tensor};
use candle_tilegemm::dispatch::{Candidate, Policy};
use candle_tilegemm::internal::suite::Shape;
use candle_tilegemm::kernel::Math;
use candle_tilegemm::{workspace, F32Mode, Format, Layout, Problem};
use std::collections::BTreeMap;

/// Lengths of the sums for the errors.
const DEPTHS: [usize; 10] = [64, 96, 128, 256, 512, 768, 1024, 2048, 4096, 14336];

/// All errors, then all times.
pub fn run(layouts: &[Layout], samples: u16, pause: f64) -> Result<Record> {
    let session = session(pause)?;
    let errors = all_errors(&session, layouts)?;
    let (arms, samples) = (ARMS.join(","), samples.to_string());
    let bench = session.run(&shapes()?, &bench::Args::of(&["--arms", &arms, "--samples", &samples]))?;
    Ok(Record::new(Subject::F32, bench.machine.clone(), errors, Some(bench)))
}

/// The products to time.
fn shapes() -> Result<Vec<Shape>> {
    let mut shapes = products::of_the_suite()?;
    shapes.retain(|shape| shape.dtype == Format::F32 && ["f32", "attention"].contains(&shape.class.as_str()));
    Ok(shapes)
}

fn all_errors(session: &Session, layouts: &[Layout]) -> Result<Vec<Errors>> {
    // Whole numbers with exact sums show no errors.
    let kinds: Vec<Kind> = Kind::OF_F32.into_iter().filter(|kind| *kind != Kind::Integers).collect();
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
    let [rows, columns] = [0, 1].map(|side| lines(kind, side, k, SIZE, &device));
    let (rows, columns) = (rows?, columns?);
    let exact = exact(session, &rows, &columns)?;
    let of_layout = |&layout: &Layout| {
        let problem = Problem::dense(SIZE, SIZE, k, 1, layout, Format::F32);
        // The lines are stored with K contiguous, as for A and B of nt, or transposed.
        let lie = |lines: &Tensor, as_they_are: bool| -> Result<Tensor> {
            Ok(if as_they_are { lines.clone() } else { lines.t()?.contiguous()? })
        };
        let (a, b) = (lie(&rows, problem.a.col_stride == 1)?, lie(&columns, problem.b.row_stride == 1)?);
        let operands = Operands::of(&problem, &a, &b)?;
        let (m, n, data) = (SIZE, SIZE, kind.to_string());
        let (arms, absent) = (BTreeMap::new(), BTreeMap::new());
        let mut errors = Errors { a: None, b: Format::F32, formats: None, layout, m, n, k, data, arms, absent };
        for name in ARMS {
            let arm: Arm = name.parse()?;
            let problem = arm.problem(&problem);
            let arm = in_its_arithmetic(session, arm, &problem)?;
            match of_arm(session, &problem, &operands, &arm, (kind, &exact))? {
                Ok(of_arm) => drop(errors.arms.insert(name.into(), of_arm)),
                Err(reason) => drop(errors.absent.insert(name.into(), reason)),
            }
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
