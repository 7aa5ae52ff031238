//! What a program that learns does in another thread: contests are made, and the file is written.

use crate::dispatch::{Dispatcher, Planned, Policy};
use crate::launch::device::current_device;
use crate::launch::dispatchers::{dispatcher, dispatchers};
use crate::problem::Problem;
use crate::stderr::tell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::OnceLock;
use std::time::Duration;

/// The file is written when nothing was learned for so long.
const PAUSE: Duration = Duration::from_secs(2);

enum Task {
    /// The contest of this device's plan.
    Prepare(usize, Box<Problem>, Policy),
    Write,
}

/// Has the contest of a plan made soon, once.
pub fn prepare(plan: &Planned) {
    if !plan.is_first_question() {
        return;
    }
    if let Ok(device) = current_device() {
        send(Task::Prepare(device, Box::new(plan.asked), plan.policy()));
    }
}

/// Writes what was learned when nothing more comes for a while, and when the process ends.
pub fn write_soon() {
    send(Task::Write);
}

fn send(task: Task) {
    static WORKER: OnceLock<Option<Sender<Task>>> = OnceLock::new();
    let worker = WORKER.get_or_init(|| {
        // SAFETY: a function without arguments, as C's `atexit` asks for.
        unsafe { atexit(at_exit) };
        let (sender, receiver) = mpsc::channel();
        let work = move || work(&receiver);
        std::thread::Builder::new().name("tilegemm-learn".into()).spawn(work).ok().map(|_| sender)
    });
    if let Some(worker) = worker {
        let _ = worker.send(task);
    }
}

fn work(tasks: &Receiver<Task>) {
    let mut is_written = true;
    loop {
        let task = match is_written {
            true => tasks.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => tasks.recv_timeout(PAUSE),
        };
        match task {
            Ok(Task::Prepare(device, problem, policy)) => {
                let Ok(dispatcher) = dispatcher(device) else { continue };
                // The plan that the program has, or one that it will have.
                let _ = dispatcher.with_plan(&problem, policy, |plan| plan.set_contest(dispatcher.contest(plan)));
            }
            Ok(Task::Write) => is_written = false,
            Err(RecvTimeoutError::Timeout) => {
                save_all();
                is_written = true;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

extern "C" {
    fn atexit(function: extern "C" fn()) -> std::ffi::c_int;
}

extern "C" fn at_exit() {
    save_all();
}

fn save_all() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    for (_, dispatcher) in dispatchers() {
        if let Err(error) = dispatcher.save_learned() {
            if !TOLD.swap(true, Ordering::Relaxed) {
                tell(&format!("what this program learns is not written: {error}"));
            }
        }
    }
}

/// Writes what this process has learned so far to the files of its GPU models. It is written now and then, and when the process ends, in any case.
///
/// # Errors
/// Those of the file system. What was learned is kept, and written later.
pub fn save_learned() -> std::io::Result<()> {
    dispatchers().try_for_each(|(_, dispatcher): (usize, &Dispatcher)| dispatcher.save_learned())
}
