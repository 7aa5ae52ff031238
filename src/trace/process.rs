//! The trace of this process: an observer of launches, and of calls that no launch comes of.

use super::tracer::{Recorded, Tracer};
use crate::kernel::Rejection;
use crate::launch::observer::{observe, Launch, Observer};
use crate::problem::Problem;
use crate::settings;
use std::path::PathBuf;
use std::sync::{Mutex, Once};

static TRACER: Mutex<Option<Tracer>> = Mutex::new(None);
/// Whether launches are recorded has been said: by the program, or else by the environment.
static SAID: Once = Once::new();

/// Records launches from now on, or no longer, whatever `TILEGEMM` says.
pub(crate) fn switch(on: bool) {
    SAID.call_once(|| {});
    observe(on.then_some(launched as Observer));
}

/// Records launches from now on where `TILEGEMM=trace` asks for that, unless the program has said what it wants.
pub(crate) fn start_if_asked() {
    SAID.call_once(|| {
        if settings::mode().is_ok_and(|mode| mode.as_deref() == Some("trace")) {
            observe(Some(launched));
        }
    });
}

/// Writes to this file from now on, whatever `TILEGEMM_TRACE` says, and forgets what was seen before.
pub(crate) fn write_to(path: impl Into<PathBuf>) {
    *TRACER.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Tracer::new(path));
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

/// Records the product of a launch, and prints what is launched for it.
fn launched(&Launch { plan, ready }: &Launch) {
    let problem = &plan.asked;
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
pub(crate) fn unplanned(problem: &Problem) {
    if with_tracer(|tracer| tracer.record(problem)) {
        eprintln!("tilegemm: {problem} -> cuBLAS: no kernel of this build runs it");
    }
}

/// Records a call that is no [`Problem`], in words.
pub(crate) fn outside(call: String) {
    with_tracer(|tracer| tracer.leave_out(call));
}
