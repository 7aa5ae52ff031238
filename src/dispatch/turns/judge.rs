//! Which kernel is faster, by samples with noise.

use super::{Round, Turns, Verdict, MOST_ROUNDS, ROUNDS, SHORT_ROUNDS};

/// A kernel leads by this share of the product's time, or it is a tie, which goes to the present choice.
const LEAD: f64 = 0.01;
/// An event costs one kernel up to so many microseconds more than another: it ends the overlap with the launch before it.
const EVENT_US: f64 = 2.0;
/// Short rounds close a kernel that is behind by this share of the product's time in each.
const FAR_BEHIND: f64 = 0.15;
/// Rounds after which a kernel that is behind leaves.
const FEW_ROUNDS: usize = 3;
/// Standard errors that a difference is beyond, to be one.
const ERRORS: f64 = 2.0;

impl Turns {
    /// Takes note of the kernels that are out, the best so far, and the verdict, once there is one.
    pub(super) fn judge(&mut self) {
        if self.kernels().count() == 1 {
            let last = self.kernels().next().unwrap_or(0);
            return self.decide(last);
        }
        let short = self.short_rounds();
        if self.complete <= short {
            if short > 0 && self.complete == short {
                self.close_far_behind();
            }
            return;
        }
        let rounds = self.complete - short;
        let noise = self.noise();
        let leader = self.leader();
        let is_ahead = !self.open[0] || (rounds >= 2 && self.leads(leader, 0, noise));
        self.best = if is_ahead { leader } else { 0 };
        if rounds >= FEW_ROUNDS {
            for kernel in 0..self.open.len() {
                self.open[kernel] &= kernel == leader || !self.leads(leader, kernel, noise);
            }
        }
        let is_alone = self.kernels().count() == 1;
        let is_known = self.kernels().all(|kernel| kernel == leader || self.is_known(leader, kernel, noise));
        if is_alone || (is_known && rounds >= ROUNDS) || rounds >= MOST_ROUNDS {
            let is_tie = self.kernels().any(|kernel| kernel != leader && !self.leads(leader, kernel, noise));
            if is_tie && self.least_gap() > LEAD * self.estimate_us && self.grow() {
                return;
            }
            self.decide(if self.open[0] { 0 } else { leader });
        }
    }

    fn decide(&mut self, kernel: usize) {
        let others = (0..self.open.len()).filter(|other| *other != kernel);
        let gap = |other: usize| self.gap(other, kernel).unwrap_or(f64::INFINITY);
        let second = || others.min_by(|x, y| gap(*x).total_cmp(&gap(*y)));
        let against = if kernel == 0 { second() } else { Some(0) };
        let us = self.median_us(kernel);
        let against_us = against.and_then(|against| self.gap(against, kernel)).map_or(us, |gap| us + gap);
        self.best = kernel;
        self.verdict = Some(Verdict { kernel, samples: self.counted().len() as u32, us, against_us });
    }

    /// Rounds that count: those with all calls, or what there is.
    fn counted(&self) -> &[Round] {
        let complete = &self.rounds[..self.complete];
        complete.get(self.short_rounds()..).filter(|long| !long.is_empty()).unwrap_or(complete)
    }

    fn median_us(&self, kernel: usize) -> f64 {
        median(self.counted().iter().filter_map(|round| round.us[kernel]).collect()).unwrap_or(self.estimate_us)
    }

    /// How much longer a call takes by one kernel than by another, in each round that has both.
    fn gaps(&self, kernel: usize, by: usize) -> Vec<f64> {
        self.counted().iter().filter_map(|round| Some(round.us[kernel]? - round.us[by]?)).collect()
    }

    /// The median of [`gaps`](Self::gaps).
    pub(super) fn gap(&self, kernel: usize, by: usize) -> Option<f64> {
        median(self.gaps(kernel, by))
    }

    /// The kernel that is fastest beside the others.
    fn leader(&self) -> usize {
        let behind = |kernel: usize| self.kernels().filter_map(|by| self.gap(kernel, by)).sum::<f64>();
        self.kernels().min_by(|x, y| behind(*x).total_cmp(&behind(*y))).unwrap_or(0)
    }

    /// The standard deviation of gaps: from the distances to the median of each, which one call that takes far longer does not change.
    fn noise(&self) -> f64 {
        let mut residuals = Vec::new();
        let kernels: Vec<usize> = self.kernels().collect();
        for pair in kernels.windows(2) {
            let gaps = self.gaps(pair[1], pair[0]);
            let Some(middle) = median(gaps.clone()) else { continue };
            let mut far: Vec<f64> = gaps.iter().map(|gap| (gap - middle).abs()).collect();
            far.sort_by(f64::total_cmp);
            residuals.extend(far.into_iter().skip(1)); // the median is none
        }
        1.4826 * median(residuals).unwrap_or(0.0)
    }

    /// Standard errors of a median gap, so many times as a difference needs.
    fn error(&self, gaps: usize, noise: f64) -> f64 {
        ERRORS * 1.2533 * noise / (gaps.max(1) as f64).sqrt()
    }

    /// The least gap that matters, and that events can tell.
    fn least_gap(&self) -> f64 {
        (LEAD * self.estimate_us).max(EVENT_US / f64::from(self.calls))
    }

    /// Whether a kernel is faster than another beyond doubt, by the least times, too: a few calls may take far longer for reasons of their own.
    fn leads(&self, kernel: usize, other: usize, noise: f64) -> bool {
        let gaps = self.gaps(other, kernel);
        let error = self.error(gaps.len(), noise);
        let bound = self.least_gap().max(error);
        let [own, others] = [kernel, other].map(|kernel| {
            let times = self.counted().iter().filter_map(|round| round.us[kernel]);
            times.fold(f64::INFINITY, f64::min)
        });
        median(gaps).is_some_and(|gap| gap > bound) && own < others
    }

    /// Whether more rounds would not make another kernel than the leader win: the present choice is known to be too near to leave it, or any other is not ahead of the
    /// leader by what matters.
    fn is_known(&self, leader: usize, kernel: usize, noise: f64) -> bool {
        let gaps = self.gaps(kernel, leader);
        let least = self.least_gap();
        let error = self.error(gaps.len(), noise);
        median(gaps).is_some_and(|gap| if kernel == 0 { gap < least && error < least } else { error < least + gap })
    }

    /// After the short rounds: closes kernels that are far behind the fastest in each of them.
    fn close_far_behind(&mut self) {
        let rounds = &self.rounds[..SHORT_ROUNDS];
        let bound = |round: &Round| FAR_BEHIND * self.estimate_us + EVENT_US / f64::from(round.calls);
        let fastest = |round: &Round| round.us.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let is_behind =
            |round: &Round, kernel: usize| round.us[kernel].is_some_and(|us| us > fastest(round) + bound(round));
        let closed: Vec<usize> =
            self.kernels().filter(|kernel| rounds.iter().all(|round| is_behind(round, *kernel))).collect();
        closed.into_iter().for_each(|kernel| self.open[kernel] = false);
        if self.kernels().count() == 1 {
            // The one that is left has no time to be told apart by: it is right.
            self.judge();
        }
    }
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    match numbers.len() {
        0 => None,
        n if n % 2 == 1 => Some(numbers[n / 2]),
        n => Some((numbers[n / 2 - 1] + numbers[n / 2]) / 2.0),
    }
}
