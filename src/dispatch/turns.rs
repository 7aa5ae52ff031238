//! Kernels in turns: the first calls of a product run those that may be the fastest one after the other, and the fastest stays.
//!
//! A **round** has a sample of each kernel. A sample is the mean of some calls; a call is right whichever kernel runs it. Times count as shares of the median of
//! their round, so that a clock that falls meanwhile favours none; the first of a round is another kernel each time. A kernel's first call does not count: it
//! may load code. A call whose time is lost is made again, and where all are lost there are pauses without any.

/// Rounds after which the fastest is known, and those after which a near tie is one.
const ROUNDS: usize = 5;
const MOST_ROUNDS: usize = 9;
/// A kernel leaves that has taken so many times as long as the fastest in each of two rounds, or of three. One call in many takes far longer than the others,
/// for reasons of its own.
const HOPELESS: f64 = 2.0;
const BEHIND: f64 = 1.05;
/// The winner's median is below this share of the present choice's, or that stays. Two kernels whose medians are nearer to each other need more rounds.
const LEAD: f64 = 0.99;
/// Calls of other streams, without one of the stream that is timed, after which they are timed instead.
const MOST_STRANGERS: u32 = 64;
/// Lost times in a row after which nothing is timed for some calls, twice as many as the time before.
const MOST_LOST: u32 = 32;
const FIRST_PAUSE: u32 = 128;
const LONGEST_PAUSE: u32 = 1 << 16;

/// A call whose time counts, or a first one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Turn {
    /// The kernel, by its place.
    pub kernel: usize,
    round: usize,
    /// Kernels of another stream's samples are of another generation.
    generation: u32,
    counts: bool,
}

/// The result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Verdict {
    /// The winner, by its place.
    pub kernel: usize,
    /// Its samples.
    pub samples: u32,
    /// Its median in microseconds.
    pub us: f64,
    /// That of the present choice; of the second best, where the present choice has won.
    pub against_us: f64,
}

/// The state: pure, without a clock.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Calls of a sample.
    calls: u32,
    /// Kernels that may still win; the first is the present choice, and stays to the end.
    open: Vec<bool>,
    /// Times of the calls of a round, and their number, for each kernel.
    rounds: Vec<Vec<(f64, u32)>>,
    /// Rounds that are complete.
    complete: usize,
    /// The kernels that the current round has still to run, the next one last, and what is left of its calls.
    queue: Vec<usize>,
    left: u32,
    /// Calls whose times were lost: kernels and their rounds.
    again: Vec<(usize, usize)>,
    /// How many were lost in a row.
    lost: u32,
    /// What is left of a pause, and how long the next one is.
    pause: u32,
    next_pause: u32,
    is_warm: Vec<bool>,
    stream: Option<usize>,
    strangers: u32,
    generation: u32,
    /// The fastest so far, by its place.
    best: usize,
    verdict: Option<Verdict>,
}

impl Turns {
    /// For so many kernels, the present choice first, with so many calls to a sample.
    pub fn new(kernels: usize, calls: u32) -> Self {
        let open = vec![true; kernels];
        let is_warm = vec![false; kernels];
        let (rounds, queue) = (Vec::new(), Vec::new());
        Self {
            calls,
            open,
            rounds,
            complete: 0,
            queue,
            left: 0,
            again: Vec::new(),
            lost: 0,
            pause: 0,
            next_pause: FIRST_PAUSE,
            is_warm,
            stream: None,
            strangers: 0,
            generation: 0,
            best: 0,
            verdict: None,
        }
    }

    /// What a call on this stream runs and times; `None`: the best so far, not timed.
    pub fn next(&mut self, stream: usize) -> Option<Turn> {
        if self.verdict.is_some() || !self.is_of(stream) {
            return None;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        while let Some((kernel, round)) = self.again.pop() {
            if self.open[kernel] {
                return Some(Turn { kernel, round, generation: self.generation, counts: true });
            }
        }
        while self.left == 0 {
            self.queue.pop();
            if self.queue.is_empty() {
                self.begin_round()?;
            }
            let is_open = self.queue.last().is_some_and(|&kernel| self.open[kernel]);
            self.left = if is_open { self.calls } else { 0 };
        }
        let kernel = *self.queue.last()?;
        let counts = std::mem::replace(&mut self.is_warm[kernel], true);
        self.left -= u32::from(counts);
        Some(Turn { kernel, round: self.rounds.len() - 1, generation: self.generation, counts })
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
        let generation = self.generation + 1;
        *self = Self { stream: Some(stream), generation, ..Self::new(self.open.len(), self.calls) };
        true
    }

    /// Begins a round, unless the last one may be the last.
    fn begin_round(&mut self) -> Option<()> {
        if self.rounds.len() == MOST_ROUNDS {
            return None;
        }
        let kernels = self.open.len();
        let first = self.rounds.len();
        // From the last to the first; the current one is on top, and is popped before the next one begins.
        self.queue = (0..kernels).rev().map(|place| (place + first) % kernels).collect();
        self.rounds.push(vec![(0.0, 0); kernels]);
        Some(())
    }

    /// The time of a call, in the order of the calls.
    pub fn took(&mut self, turn: Turn, us: f64) {
        if turn.generation != self.generation || !turn.counts || self.verdict.is_some() {
            return;
        }
        (self.lost, self.next_pause) = (0, FIRST_PAUSE);
        let (sum, count) = &mut self.rounds[turn.round][turn.kernel];
        (*sum, *count) = (*sum + us, *count + 1);
        while self.is_complete() {
            self.complete += 1;
            self.judge();
        }
    }

    /// The time of a call says nothing: the kernel is called again.
    pub fn lost(&mut self, turn: Turn) {
        if turn.generation != self.generation || !turn.counts || self.verdict.is_some() {
            return;
        }
        self.again.push((turn.kernel, turn.round));
        self.lost += 1;
        if self.lost == MOST_LOST {
            (self.lost, self.pause) = (0, self.next_pause);
            self.next_pause = LONGEST_PAUSE.min(2 * self.next_pause);
        }
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
    }

    fn is_complete(&self) -> bool {
        let Some(round) = self.rounds.get(self.complete) else { return false };
        self.verdict.is_none() && self.kernels().all(|kernel| round[kernel].1 >= self.calls)
    }

    fn kernels(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.open.len()).filter(|&kernel| self.open[kernel])
    }

    /// The mean of a kernel's calls in each complete round, until it left.
    fn times(&self, kernel: usize) -> Vec<f64> {
        let rounds = self.rounds[..self.complete].iter().map(|round| round[kernel]);
        rounds.take_while(|(_, count)| *count >= self.calls).map(|(sum, count)| sum / f64::from(count)).collect()
    }

    /// The same over the median, or the least, of each round.
    fn shares(&self, kernel: usize, of: fn(&[f64]) -> f64) -> Vec<f64> {
        let all: Vec<Vec<f64>> = (0..self.open.len()).map(|kernel| self.times(kernel)).collect();
        let usual = |round: usize| of(&all.iter().filter_map(|times| times.get(round).copied()).collect::<Vec<f64>>());
        all[kernel].iter().enumerate().map(|(round, us)| us / usual(round)).collect()
    }

    fn share(&self, kernel: usize) -> f64 {
        median(&self.shares(kernel, median))
    }

    /// Whether a kernel leads by its median share, and by its median and its least time, too.
    fn is_ahead(&self, kernel: usize) -> bool {
        let [own, usual] = [kernel, 0].map(|kernel| self.times(kernel));
        let leads = |by: fn(&[f64]) -> f64| by(&own) < by(&usual);
        self.share(kernel) < LEAD * self.share(0) && leads(median) && leads(least)
    }

    fn judge(&mut self) {
        for kernel in 1..self.open.len() {
            let shares = self.shares(kernel, least);
            let are_above = |rounds, bound| shares.len() >= rounds && shares.iter().all(|share| *share > bound);
            self.open[kernel] &= !(are_above(2, HOPELESS) || are_above(3, BEHIND));
        }
        let mut order: Vec<(usize, f64)> = self.kernels().map(|kernel| (kernel, self.share(kernel))).collect();
        order.sort_by(|x, y| x.1.total_cmp(&y.1));
        let leader = order.iter().map(|(kernel, _)| *kernel).find(|kernel| self.is_ahead(*kernel));
        self.best = leader.filter(|_| self.complete >= 2).unwrap_or(0);
        let is_alone = order.len() == 1;
        let best = order[0].0;
        let is_near = !is_alone && (order[0].1 > LEAD * order[1].1 || (best > 0 && !self.is_ahead(best)));
        let most = if is_near { MOST_ROUNDS } else { ROUNDS };
        if !is_alone && self.complete < most {
            return;
        }
        let kernel = if self.is_ahead(best) { best } else { 0 };
        let second = || (1..self.open.len()).min_by(|x, y| self.share(*x).total_cmp(&self.share(*y)));
        let against = if kernel == 0 { second().unwrap_or(0) } else { 0 };
        let [us, against_us] = [kernel, against].map(|kernel| median(&self.times(kernel)));
        self.best = kernel;
        self.verdict = Some(Verdict { kernel, samples: self.complete as u32, us, against_us });
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

/// Of no numbers: 1, a share that is none.
fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 1.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

fn least(numbers: &[f64]) -> f64 {
    numbers.iter().copied().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests;
