//! A contest: plans for one product that its calls run in turns.

use super::turns::{Turn, Turns};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The plans that a product's calls run in turns: the one that is contested, then these rivals.
#[derive(Debug)]
pub(crate) struct Contest<P> {
    rivals: Vec<Arc<P>>,
    /// The best so far, by its place.
    best: AtomicUsize,
    pub state: Mutex<State>,
}

/// The state of a contest, for one thread at a time.
#[derive(Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) struct State {
    pub turns: Turns,
    /// Samples whose times are not known yet.
    pub pending: VecDeque<Sample>,
    /// The sample that is being taken.
    pub open: Option<Open>,
    /// What is behind the last call, where that is the end of a sample.
    pub mark: Option<Mark>,
    /// Whether kernels have run, by their place. A first call may load code.
    pub is_warm: Vec<bool>,
    /// The host's time for the last sample.
    pub host: Duration,
}

/// An event of the driver, by its address. The end of a sample may be the begin of the next one.
#[derive(Debug)]
pub(crate) struct Event(pub usize);

/// The end of a sample, and the sum of the thread's launches until then.
#[derive(Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) struct Mark {
    pub event: Arc<Event>,
    pub launches: u64,
}

/// A sample between two events.
#[derive(Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) struct Sample {
    pub turn: Turn,
    pub events: [Arc<Event>; 2],
    /// A hash of the launches between its calls.
    pub between: u64,
    /// Whether the stream was busy until the whole sample was in it: then the events do not time the host.
    pub is_queued: bool,
}

/// A sample with calls left.
#[derive(Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) struct Open {
    pub turn: Turn,
    pub start: Arc<Event>,
    pub left: u32,
    pub stream: usize,
    /// The sum of the thread's launches at its begin.
    pub launches: u64,
    pub since: Instant,
}

impl<P> Contest<P> {
    /// Of a plan that is estimated to take so long and these rivals, with so many calls to a sample.
    pub fn new(rivals: Vec<Arc<P>>, calls: u32, estimate_us: f64) -> Self {
        let kernels = 1 + rivals.len();
        let state = State {
            turns: Turns::new(kernels, calls, estimate_us),
            pending: VecDeque::new(),
            open: None,
            mark: None,
            is_warm: vec![false; kernels],
            host: Duration::ZERO,
        };
        Self { rivals, best: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    /// The plan at this place; `plan` is the one that is contested.
    pub fn plan<'a>(&'a self, plan: &'a P, place: usize) -> &'a P {
        match place {
            0 => plan,
            _ => &self.rivals[place - 1],
        }
    }

    /// The rival at this place; `None` for the plan that is contested.
    pub fn rival(&self, place: usize) -> Option<Arc<P>> {
        self.rivals.get(place.checked_sub(1)?).cloned()
    }

    /// The best plan so far.
    pub fn best<'a>(&'a self, plan: &'a P) -> &'a P {
        self.plan(plan, self.best.load(Ordering::Relaxed))
    }

    /// What was tried, as a text: each plan, its rounds, and how far behind the winner it was.
    pub fn tried(&self, plan: &P, winner: usize, name: impl Fn(&P) -> String) -> String {
        let Ok(state) = self.state.try_lock() else { return String::new() };
        let tried = (0..=self.rivals.len()).map(|place| {
            let (rounds, behind) = state.turns.behind(place, winner);
            let behind = behind.map_or(String::new(), |us| format!(", {us:+.2} us"));
            format!("{} ({rounds} rounds{behind})", name(self.plan(plan, place)))
        });
        tried.collect::<Vec<_>>().join("; ")
    }

    /// Takes note of the best so far.
    pub fn note(&self, turns: &Turns) {
        self.best.store(turns.best(), Ordering::Relaxed);
    }
}
