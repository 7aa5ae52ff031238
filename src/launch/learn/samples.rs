//! What a call of a contested product runs, and the events around it.

use super::{between, events};
use crate::dispatch::{Event, Mark, Open, Sample, State, Turn};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Samples whose times are not known yet; further calls run the best so far.
const MOST_PENDING: usize = 16;
/// From here on a call's time counts even where the stream was idle: the host's part of it, a few microseconds, is below 1 %.
const LONG_US: f64 = 400.0;
/// How long the host needs for a call, until that is known, and how long a stream is kept busy at most.
const HOST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(20);

/// A call of a contest.
pub enum Call {
    /// A kernel's first, by its place: it may load code.
    First(usize),
    /// A sample of its own.
    Alone(Turn),
    /// The one before a sample.
    Before(Turn),
    /// One of a sample.
    Within(Open),
}

impl Call {
    /// The kernel, by its place.
    pub fn kernel(&self) -> usize {
        match self {
            Self::First(kernel) => *kernel,
            Self::Alone(turn) | Self::Before(turn) | Self::Within(Open { turn, .. }) => turn.kernel,
        }
    }
}

/// Reads the times that are known.
pub fn read(state: &mut State) {
    while let Some(us) = state.pending.front().and_then(|sample| events::elapsed(&sample.events)) {
        let Some(Sample { turn, events, between, is_queued }) = state.pending.pop_front() else { return };
        events.into_iter().for_each(events::give_back);
        match is_queued || (turn.calls == 1 && us > LONG_US) {
            true => state.turns.took(turn, us / f64::from(turn.calls), between),
            false => state.turns.missed(turn, turn.calls - 1),
        }
    }
}

/// Gives all events back.
pub fn end(state: &mut State) {
    state.pending.drain(..).flat_map(|sample| sample.events).for_each(events::give_back);
    state.open.take().into_iter().for_each(|open| events::give_back(open.start));
    state.mark.take().into_iter().for_each(|mark| events::give_back(mark.event));
}

/// What the next call of a contest, by its address, is on this stream; `None`: one that nothing times.
pub fn next(state: &mut State, contest: usize, stream: *mut c_void, is_preparing: bool) -> Option<Call> {
    // All load their code before the first sample, for which the GPU would wait.
    if let Some(kernel) = state.is_warm.iter().position(|is_warm| !is_warm) {
        return Some(Call::First(kernel));
    }
    let is_claimed = state.open.is_none() || between::claim(contest);
    if let Some(open) = state.open.take() {
        if open.stream != stream as usize || !is_claimed || !state.turns.is_open(open.turn) {
            state.turns.put_back(open.turn);
        } else if events::has_happened(&open.start) {
            state.turns.missed(open.turn, open.turn.calls - open.left);
        } else {
            return Some(Call::Within(open));
        }
        events::give_back(open.start);
    }
    let turn = if state.pending.len() < MOST_PENDING { state.turns.next(stream as usize) } else { None };
    let mark = state.mark.take();
    let Some(turn) = turn else {
        mark.into_iter().for_each(|mark| events::give_back(mark.event));
        between::release(contest);
        return None;
    };
    let is_alone = turn.calls == 1;
    let can_go_on = |event: &Event| !is_alone && !is_preparing && !events::has_happened(event);
    if !is_alone && !between::claim(contest) {
        mark.into_iter().for_each(|mark| events::give_back(mark.event));
        state.turns.put_back(turn);
        return None;
    }
    match mark {
        Some(Mark { event: start, launches }) if can_go_on(&start) => Some(Call::Within(Open {
            left: turn.calls,
            turn,
            start,
            stream: stream as usize,
            launches,
            since: Instant::now(),
        })),
        mark => {
            mark.into_iter().for_each(|mark| events::give_back(mark.event));
            Some(if is_alone { Call::Alone(turn) } else { Call::Before(turn) })
        }
    }
}

/// Launches a call; whether it was timed as it should be, and the launch's own result.
///
/// # Safety
/// `stream` is a stream of the current device that is not being captured.
pub unsafe fn launch<T, E>(
    state: &mut State,
    call: Call,
    stream: *mut c_void,
    is_preparing: bool,
    launch: impl FnOnce() -> Result<T, E>,
) -> (bool, Result<T, E>) {
    let kernel = call.kernel();
    if let (true, Call::Alone(turn) | Call::Before(turn)) = (is_preparing, &call) {
        let time = (3 * state.host / 2).max(HOST * (turn.calls + 1)).min(LONGEST);
        // SAFETY: the caller's stream.
        unsafe { events::occupy(stream, time) };
    }
    let start = match call {
        Call::Alone(_) => events::record(stream),
        _ => None,
    };
    state.is_warm[kernel] = true;
    let launched = launch();
    if launched.is_err() {
        return (false, launched);
    }
    let is_timed = match call {
        Call::First(_) => true,
        Call::Alone(turn) => take(state, turn, start, 0, stream).map(drop).is_some(),
        Call::Before(turn) => match events::record(stream) {
            Some(start) => {
                let (stream, launches) = (stream as usize, between::launches());
                state.open = Some(Open { left: turn.calls, turn, start, stream, launches, since: Instant::now() });
                true
            }
            None => false,
        },
        Call::Within(open) if open.left > 1 => {
            state.open = Some(Open { left: open.left - 1, ..open });
            true
        }
        Call::Within(open) => {
            state.host = open.since.elapsed();
            let launches = between::launches();
            let event = take(state, open.turn, Some(open.start), launches.wrapping_sub(open.launches), stream);
            state.mark = event.map(|event| Mark { event, launches });
            state.mark.is_some()
        }
    };
    (is_timed, launched)
}

/// Ends a sample with an event.
fn take(
    state: &mut State,
    turn: Turn,
    start: Option<Arc<Event>>,
    between: u64,
    stream: *mut c_void,
) -> Option<Arc<Event>> {
    let (start, end) = (start?, events::record(stream)?);
    let is_queued = !events::has_happened(&start);
    state.pending.push_back(Sample { turn, events: [start, end.clone()], between, is_queued });
    Some(end)
}
