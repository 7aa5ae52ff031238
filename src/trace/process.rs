//! [`Mode::Trace`]: what goes to the file and to stderr.

use super::{set_mode, Forwarded, Mode};
use crate::dispatch::Plan;
use crate::kernel::Rejection;
use crate::problem::Problem;
use crate::trace::{Recorded, Tracer};
use std::path::PathBuf;
use std::sync::Mutex;

static TRACER: Mutex<Option<Tracer>> = Mutex::new(None);

/// Starts [`Mode::Trace`] with this file, whatever `TILEGEMM_TRACE` says, and forgets what was seen before.
pub fn trace_to(path: impl Into<PathBuf>) {
    *TRACER.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Tracer::new(path));
    set_mode(Mode::Trace);
}

/// Records what `record` says, and prints what there is to say about it.
fn with_tracer(record: impl FnOnce(&mut Tracer) -> Option<Recorded>) -> bool {
    let mut tracer = TRACER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let recorded = record(tracer.get_or_insert_with(Tracer::from_env));
    for note in recorded.iter().flat_map(|recorded| &recorded.notes) {
        eprintln!("tilegemm: {note}");
    }
    recorded.is_some()
}

/// Records a product that comes with a plan, and what is launched for it.
pub(crate) fn traced(problem: &Problem, plan: &Plan, ready: &Plan) {
    // The same product at pointers of another alignment is the same row, but may get another kernel.
    if with_tracer(|tracer| tracer.record(problem)) || ready.calls() == 0 {
        let instead = if std::ptr::eq(plan, ready) {
            String::new()
        } else {
            let lack = Rejection::Workspace { need: plan.workspace.least, have: 0 };
            format!("; {} {lack} on this stream", plan.kernel)
        };
        eprintln!("tilegemm: {problem} -> {} ({:.1} us estimated{instead})", ready.kernel, ready.estimate_us);
    }
}

/// Records a product that no kernel here runs.
pub(super) fn traced_unplanned(problem: &Problem) {
    if with_tracer(|tracer| tracer.record(problem)) {
        eprintln!("tilegemm: {problem} -> cuBLAS: no kernel of this build runs it");
    }
}

/// Records a call outside of the contract, which is no [`Problem`].
pub(super) fn traced_outside([m, n, k]: [i32; 3], batch: i32, reason: Forwarded) {
    let what = format!("{m}x{n}x{k} batch {batch}: forwarded to cuBLAS ({reason:?})");
    with_tracer(|tracer| tracer.leave_out(what.clone()));
}
