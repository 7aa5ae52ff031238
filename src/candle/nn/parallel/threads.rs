//! Ranks that are threads of one process, with tensors on the CPU.

use ::candle::{bail, Result};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A rank.
#[derive(Debug)]
pub(super) struct Member {
    pub rank: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    size: usize,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The exchanges that are over.
    rounds: u64,
    /// What each rank brings to the one that runs.
    parts: Vec<Option<Part>>,
    /// What all ranks brought to the last one. The next is over once all have read it: each brings its part after that.
    last: Arc<Vec<Vec<f32>>>,
    /// Why there are no more, and what the last ones gave does not count.
    failure: Option<String>,
    /// A rank that has ended: there are no more, but what the last one gave counts.
    end: Option<String>,
}

#[derive(Debug)]
struct Part {
    call: String,
    numbers: Vec<f32>,
}

/// The ranks of a group whose calls wait for the others for so long.
pub(super) fn members(size: usize, timeout: Duration) -> Vec<Member> {
    let state = State { parts: (0..size).map(|_| None).collect(), ..State::default() };
    let shared = Arc::new(Shared { size, timeout, state: Mutex::new(state), changed: Condvar::new() });
    (0..size).map(|rank| Member { rank, shared: shared.clone() }).collect()
}

impl Member {
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// The numbers that each rank brings to the same call.
    pub fn exchange(&self, call: String, numbers: Vec<f32>) -> Result<Arc<Vec<Vec<f32>>>> {
        let (mut state, began) = (self.shared.lock(), Instant::now());
        if let Some(why) = state.no_more() {
            bail!("rank {}: {why}", self.rank);
        }
        if state.parts[self.rank].is_some() {
            bail!("rank {}: {call} while another call of this rank runs; expected one at a time", self.rank);
        }
        let round = state.rounds;
        state.parts[self.rank] = Some(Part { call, numbers });
        if state.parts.iter().all(Option::is_some) {
            state.finish();
            self.shared.changed.notify_all();
        }
        while state.rounds == round {
            let left = self.shared.timeout.saturating_sub(began.elapsed());
            if left.is_zero() && state.no_more().is_none() {
                state.failure = Some(state.missing(self.shared.timeout));
                self.shared.changed.notify_all();
            }
            if let Some(why) = state.no_more() {
                bail!("rank {}: {why}", self.rank);
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state.last.clone())
    }
}

impl Member {
    /// The failure after which nothing counts. The end of a rank is none: it may have made its last call while this one still reads what that gave.
    pub fn check(&self) -> Result<()> {
        match &self.shared.lock().failure {
            Some(failure) => bail!("rank {}: {failure}", self.rank),
            None => Ok(()),
        }
    }

    /// Makes calls that wait, and all later ones, errors.
    pub fn abort(&self) {
        self.shared.fail(format!("rank {} has aborted the group", self.rank));
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.lock().end.get_or_insert(format!("rank {} has ended", self.rank));
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// The first failure stays.
    fn fail(&self, why: String) {
        self.lock().failure.get_or_insert(why);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Why there are no more exchanges.
    fn no_more(&self) -> Option<&String> {
        self.failure.as_ref().or(self.end.as_ref())
    }

    /// Ends the exchange that all ranks have come to.
    fn finish(&mut self) {
        let parts: Vec<Part> = self.parts.iter_mut().filter_map(Option::take).collect();
        match parts.iter().position(|part| part.call != parts[0].call) {
            Some(rank) => {
                self.failure = Some(format!(
                    "rank {rank} calls {}, and rank 0 {}; expected the same calls in the same order on all ranks",
                    parts[rank].call, parts[0].call
                ));
            }
            None => {
                self.last = Arc::new(parts.into_iter().map(|part| part.numbers).collect());
                self.rounds += 1;
            }
        }
    }

    /// Names the ranks that have not come.
    fn missing(&self, timeout: Duration) -> String {
        let missing: Vec<String> =
            (0..self.parts.len()).filter(|rank| self.parts[*rank].is_none()).map(|rank| rank.to_string()).collect();
        let call = self.parts.iter().flatten().next().map_or("", |part| &part.call);
        format!("rank {} has not come to {call} within {timeout:?}", missing.join(", "))
    }
}
