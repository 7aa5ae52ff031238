//! A contest: plans for one product that its calls run in turns.

use super::turns::{Turn, Turns};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

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
pub(crate) struct State {
    pub turns: Turns,
    /// Calls whose times are not known yet.
    pub pending: VecDeque<Call>,
}

/// A call between two events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub turn: Turn,
    pub events: [usize; 2],
    /// Whether the stream was busy until the whole call was in it: then the events do not time the host.
    pub is_queued: bool,
}

impl<P> Contest<P> {
    /// Of a plan and these rivals, with so many calls to a sample.
    pub fn new(rivals: Vec<Arc<P>>, calls: u32) -> Self {
        let turns = Turns::new(1 + rivals.len(), calls);
        Self { rivals, best: AtomicUsize::new(0), state: Mutex::new(State { turns, pending: VecDeque::new() }) }
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

    /// Takes note of the best so far.
    pub fn note(&self, turns: &Turns) {
        self.best.store(turns.best(), Ordering::Relaxed);
    }
}
