//! Kernels in turns: the first calls of a product run those that may be the fastest one after the other, and the fastest stays.
//!
//! A **sample** is the mean time of some calls in a row by one kernel, a **round** a sample of each kernel; a call is right whichever kernel runs it. Samples of several
//! calls go from behind one call to behind another, so they contain what the program runs between its calls. That is the same for all kernels of a round, or the
//! samples are not compared, and only differences count. A clock that falls meanwhile favours none: the first of a round is another kernel each time.
//! Two short rounds come first, after which kernels far behind leave.
//!
//! A sample within which the GPU has waited for the host is missed, and taken again. After some in a row there is a pause, as a program's first calls are no measure of
//! the later ones; where that does not help, samples become shorter. If a tie is only one for so short samples, there are long ones again.

mod judge;

/// Rounds after which the fastest is known, and those after which a near tie is one.
const ROUNDS: usize = 5;
const MOST_ROUNDS: usize = 15;
/// Rounds of a quarter of the calls that come first, where samples have so many.
const SHORT_ROUNDS: usize = 2;
/// Rounds whose times may be outstanding.
const MOST_OUTSTANDING: usize = 2;
/// Samples of a round between other launches than the first one's, after which the round begins anew.
const MOST_OTHERS: u32 = 8;
/// Calls of other streams, without one of the stream that is timed, after which they are timed instead.
const MOST_STRANGERS: u32 = 64;
/// Missed samples in a row, after which nothing is timed for some calls, twice as many as the time before; and such pauses in a row, after which samples become shorter.
const MOST_MISSED: u32 = 8;
const MOST_PAUSES: u32 = 2;
const FIRST_PAUSE: u32 = 32;
const LONGEST_PAUSE: u32 = 1 << 16;
/// How often samples become as long as they were.
const MOST_GROWN: u32 = 2;

/// A sample to be taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Turn {
    /// The kernel, by its place.
    pub kernel: usize,
    /// Its calls in a row.
    pub calls: u32,
    round: usize,
    /// Samples of another stream, or of another length, are of another generation.
    generation: u32,
}

/// The result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Verdict {
    /// The winner, by its place.
    pub kernel: usize,
    /// Its samples.
    pub samples: u32,
    /// Its median in microseconds, with what lay between calls.
    pub us: f64,
    /// That of the present choice; of the second best, where the present choice has won.
    pub against_us: f64,
}

#[derive(Debug, Clone)]
struct Round {
    calls: u32,
    /// The launches between the calls, as a hash, and the samples that were among others.
    between: Option<u64>,
    others: u32,
    /// Microseconds of a call by each kernel.
    us: Vec<Option<f64>>,
}

/// The state: pure, without a clock.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Calls of a sample, now and at first.
    calls: u32,
    calls_at_first: u32,
    grown: u32,
    /// What the product takes, estimated.
    estimate_us: f64,
    /// Kernels that may still win; the first is the present choice.
    open: Vec<bool>,
    rounds: Vec<Round>,
    /// Rounds that are complete.
    complete: usize,
    /// Samples to be taken, the next one last: kernels and their rounds.
    queue: Vec<(usize, usize)>,
    /// How many were missed in a row, and the most of their calls before the GPU waited, since the last one that was not.
    missed: u32,
    reached: u32,
    pauses: u32,
    /// What is left of a pause, and how long the next one is.
    pause: u32,
    next_pause: u32,
    stream: Option<usize>,
    strangers: u32,
    generation: u32,
    /// The fastest so far, by its place.
    best: usize,
    verdict: Option<Verdict>,
}

impl Turns {
    /// For so many kernels, the present choice first, with so many calls to a sample, of a product that is estimated to take so long.
    pub fn new(kernels: usize, calls: u32, estimate_us: f64) -> Self {
        Self {
            calls,
            calls_at_first: calls,
            grown: 0,
            estimate_us,
            open: vec![true; kernels],
            rounds: Vec::new(),
            complete: 0,
            queue: Vec::new(),
            missed: 0,
            reached: 0,
            pauses: 0,
            pause: 0,
            next_pause: FIRST_PAUSE,
            stream: None,
            strangers: 0,
            generation: 0,
            best: 0,
            verdict: None,
        }
    }

    /// The next sample, which begins with a call on this stream; `None`: the call runs the best so far.
    pub fn next(&mut self, stream: usize) -> Option<Turn> {
        if self.verdict.is_some() || !self.is_of(stream) {
            return None;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        loop {
            let Some((kernel, round)) = self.queue.pop() else {
                self.begin_round()?;
                continue;
            };
            let Round { calls, us, .. } = &self.rounds[round];
            if self.open[kernel] && us[kernel].is_none() {
                return Some(Turn { kernel, calls: *calls, round, generation: self.generation });
            }
        }
    }

    /// Whether the samples are of this stream. Those of two streams at once would be of each other's load.
    fn is_of(&mut self, stream: usize) -> bool {
        if *self.stream.get_or_insert(stream) == stream {
            self.strangers = 0;
            return true;
        }
        self.strangers += 1;
        if self.strangers <= MOST_STRANGERS {
            return false;
        }
        self.strangers = 0;
        self.stream = Some(stream);
        self.begin_anew(self.calls);
        true
    }

    /// Forgets all samples, with so many calls to each from now on.
    fn begin_anew(&mut self, calls: u32) {
        self.calls = calls;
        self.rounds.clear();
        self.queue.clear();
        (self.complete, self.generation) = (0, self.generation + 1);
        (self.missed, self.reached, self.pauses, self.next_pause) = (0, 0, 0, FIRST_PAUSE);
    }

    fn short_rounds(&self) -> usize {
        if self.calls >= 4 {
            SHORT_ROUNDS
        } else {
            0
        }
    }

    /// Begins a round, unless the last one may be the last.
    fn begin_round(&mut self) -> Option<()> {
        let (round, short) = (self.rounds.len(), self.short_rounds());
        // Those far behind have no long samples.
        let is_early = round >= self.complete + MOST_OUTSTANDING || (round >= short && self.complete < short);
        if is_early || round == short + MOST_ROUNDS {
            return None;
        }
        let kernels = self.open.len();
        self.queue = (0..kernels).rev().map(|place| ((place + round) % kernels, round)).collect();
        let calls = if round < short { self.calls / 4 } else { self.calls };
        self.rounds.push(Round { calls, between: None, others: 0, us: vec![None; kernels] });
        Some(())
    }

    /// Microseconds of a sample's calls, each, and a hash of the launches between them.
    pub fn took(&mut self, turn: Turn, us: f64, between: u64) {
        if turn.generation != self.generation || self.verdict.is_some() {
            return;
        }
        (self.missed, self.reached, self.pauses, self.next_pause) = (0, 0, 0, FIRST_PAUSE);
        let round = &mut self.rounds[turn.round];
        if *round.between.get_or_insert(between) != between {
            round.others += 1;
            self.queue.push((turn.kernel, turn.round));
            if round.others > MOST_OTHERS {
                (round.between, round.others) = (None, 0);
                round.us.fill(None);
                self.queue.extend((0..self.open.len()).map(|kernel| (kernel, turn.round)));
            }
            return;
        }
        round.us[turn.kernel] = Some(us);
        while self.is_complete() {
            self.complete += 1;
            self.judge();
        }
    }

    /// The GPU has waited for the host after so many calls of a sample: it is taken again.
    pub fn missed(&mut self, turn: Turn, reached: u32) {
        if !self.takes_again(turn) {
            return;
        }
        self.missed += 1;
        self.reached = self.reached.max(reached);
        if self.missed == MOST_MISSED {
            (self.missed, self.pause, self.pauses) = (0, self.next_pause, self.pauses + 1);
            self.next_pause = LONGEST_PAUSE.min(2 * self.next_pause);
            if self.calls > 1 && self.pauses > MOST_PAUSES {
                self.begin_anew(self.reached.clamp(1, self.calls / 2));
            }
        }
    }

    /// Begins anew with the samples of the begin, if they have become shorter.
    fn grow(&mut self) -> bool {
        let grows = self.calls < self.calls_at_first && self.grown < MOST_GROWN;
        if grows {
            self.grown += 1;
            self.begin_anew(self.calls_at_first);
        }
        grows
    }

    fn takes_again(&mut self, turn: Turn) -> bool {
        let is_of_use = turn.generation == self.generation && self.verdict.is_none();
        if is_of_use {
            self.queue.push((turn.kernel, turn.round));
        }
        is_of_use
    }

    /// A sample that was not begun is taken later.
    pub fn put_back(&mut self, turn: Turn) {
        self.takes_again(turn);
    }

    /// Whether a sample is still of use.
    pub fn is_open(&self, turn: Turn) -> bool {
        turn.generation == self.generation && self.verdict.is_none() && self.open[turn.kernel]
    }

    /// Ends a pause.
    pub fn wake(&mut self) {
        self.pause = 0;
    }

    /// A kernel that cannot run this product here. Without the present choice there is nothing to compare with.
    pub fn failed(&mut self, kernel: usize) {
        match kernel {
            0 => self.open[1..].fill(false),
            _ => self.open[kernel] = false,
        }
        self.judge();
        while self.is_complete() {
            self.complete += 1;
            self.judge();
        }
    }

    fn is_complete(&self) -> bool {
        let Some(round) = self.rounds.get(self.complete) else { return false };
        self.verdict.is_none() && self.kernels().all(|kernel| round.us[kernel].is_some())
    }

    fn kernels(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.open.len()).filter(|&kernel| self.open[kernel])
    }

    /// How many rounds the kernel at this place was in, and by how many microseconds a call is behind one by `winner`.
    pub fn behind(&self, kernel: usize, winner: usize) -> (usize, Option<f64>) {
        let rounds = self.rounds.iter().filter(|round| round.us[kernel].is_some()).count();
        (rounds, self.gap(kernel, winner))
    }

    /// The fastest so far, by its place.
    pub fn best(&self) -> usize {
        self.best
    }

    /// The result, once there is one.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }
}

#[cfg(test)]
mod tests;
