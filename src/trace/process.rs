//! The trace of this process: an observer of launches, and of calls without a launch.

use super::tracer::{Recorded, Tracer};
use crate::kernel::Rejection;
use crate::launch::observer::{observe, Launch, Observer};
use crate::problem::Problem;
use crate::settings;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, Once};

static TRACER: Mutex<Option<Tracer>> = Mutex::new(None);
/// Set once the program, or else the environment, has decided whether launches are recorded.
static SAID: Once = Once::new();

/// Writes a line to stderr; nothing where the program has closed stderr. A panic would end the program, which has called cuBLAS.
fn tell(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "tilegemm: {text}");
}

/// Starts or stops the recording of launches, whatever `TILEGEMM` says.
pub(crate) fn switch(on: bool) {
    SAID.call_once(|| {});
    observe(on.then_some(launched as Observer));
}

/// Starts the recording of launches where `TILEGEMM=trace` asks for a recording, unless the program has called
/// [`switch`].
pub(crate) fn start_if_asked() {
    SAID.call_once(|| {
        if settings::mode().is_ok_and(|mode| mode.as_deref() == Some("trace")) {
            observe(Some(launched));
        }
    });
}

/// Writes to this file from now on, whatever `TILEGEMM_TRACE` says, and forgets the products seen before.
pub(crate) fn write_to(path: impl Into<PathBuf>) {
    *TRACER.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Tracer::new(path));
}

/// Records with `record`, and prints the notes and the row's name.
fn with_tracer(record: impl FnOnce(&mut Tracer) -> Option<Recorded>) -> bool {
    let mut tracer = TRACER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let recorded = record(tracer.get_or_insert_with(Tracer::from_env));
    for note in recorded.iter().flat_map(|recorded| &recorded.notes) {
        tell(note);
    }
    recorded.is_some()
}

/// Records the product of a launch, and prints the launched kernel.
fn launched(&Launch { plan, ready }: &Launch) {
    let problem = &plan.asked;
    // The same product at pointers of another alignment has the same row, but may get another kernel.
    if with_tracer(|tracer| tracer.record(problem)) || ready.calls() == 0 {
        let instead = if std::ptr::eq(plan, ready) {
            String::new()
        } else {
            let lack = Rejection::Workspace { need: plan.workspace.least, have: 0 };
            format!("; {} {lack} on this stream", plan.kernel)
        };
        tell(format_args!("{problem} -> {} ({:.1} us estimated{instead})", ready.name(), ready.estimate_us));
    }
}

/// Records a product that no kernel of this build runs.
pub(crate) fn unplanned(problem: &Problem) {
    if with_tracer(|tracer| tracer.record(problem)) {
        tell(format_args!("{problem} -> cuBLAS: no kernel of this build runs it"));
    }
}

/// Records, in words, a call that no [`Problem`] expresses.
pub(crate) fn outside(call: String) {
    with_tracer(|tracer| tracer.leave_out(call));
}
