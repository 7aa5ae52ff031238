//! Programs of calls with known times.

use super::{Turns, Verdict, FIRST_PAUSE, LONGEST_PAUSE, MOST_MISSED, MOST_PAUSES, MOST_STRANGERS};
use std::collections::VecDeque;

/// A program on one stream: kernels that take `us`, and what lies between its calls `between_us`, by a factor for each call. An event costs each kernel its own
/// microseconds. Times are known `behind` calls later.
struct Program<'a> {
    us: &'a [f64],
    between_us: f64,
    event_us: &'a dyn Fn(usize) -> f64,
    calls: u32,
    behind: usize,
    factor: &'a dyn Fn(usize, usize) -> f64,
}

const USUAL: Program<'static> =
    Program { us: &[], between_us: 0.0, event_us: &|_| 0.0, calls: 1, behind: 0, factor: &|_, _| 1.0 };

/// What came of it: the verdict, the calls until then, and the time that they lost over the best kernel, in its calls.
struct Outcome {
    verdict: Verdict,
    calls: usize,
    lost: f64,
}

impl Program<'_> {
    fn run(&self) -> Outcome {
        let mut turns = Turns::new(self.us.len(), self.calls, self.us[0]);
        let mut pending = VecDeque::new();
        let least = self.us.iter().copied().fold(f64::INFINITY, f64::min);
        let (mut lost, mut call) = (0.0, 0);
        while call < 10_000 {
            let turn = turns.next(1);
            let (kernel, calls) = turn.map_or_else(|| (turns.best(), 1), |turn| (turn.kernel, turn.calls));
            let each = |call| (self.us[kernel] + self.between_us) * (self.factor)(call, kernel);
            let us: f64 = (call..call + calls as usize).map(each).sum::<f64>() + (self.event_us)(kernel);
            call += calls as usize;
            lost += (self.us[kernel] / least - 1.0) * f64::from(calls);
            pending.push_back((call, turn.map(|turn| (turn, us / f64::from(calls)))));
            while pending.front().is_some_and(|(ends, _)| ends + self.behind <= call) {
                if let Some((turn, us)) = pending.pop_front().and_then(|(_, turn)| turn) {
                    turns.took(turn, us, 7);
                }
            }
            if let Some(verdict) = turns.verdict() {
                assert!(turns.next(1).is_none(), "nothing is timed any more");
                return Outcome { verdict, calls: call, lost };
            }
        }
        panic!("no verdict");
    }
}

/// Numbers from 0 to 1 that look random (splitmix64).
fn noise(seed: usize) -> f64 {
    let mut x = (seed as u64).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ x >> 31) as f64 / u64::MAX as f64
}

#[test]
fn the_fastest_wins_whenever_its_times_come() {
    for behind in [0, 1, 7, 50] {
        for best in 0..4 {
            let mut us = [200.0, 208.0, 220.0, 260.0];
            us[best] = 180.0;
            let Outcome { verdict, calls, lost } = Program { us: &us, behind, ..USUAL }.run();
            assert_eq!((verdict.kernel, verdict.us), (best, 180.0), "behind {behind}");
            let against = if best == 0 { 208.0 } else { us[0] };
            assert!((verdict.against_us - against).abs() < 1e-9);
            assert!(
                verdict.samples >= 3 && calls <= 30 + 2 * behind && lost < 6.0 + 0.5 * behind as f64,
                "{calls} {lost}"
            );
        }
    }
}

#[test]
fn a_tie_goes_to_the_present_choice() {
    let us = [200.0, 199.0];
    let Outcome { verdict, .. } = Program { us: &us, ..USUAL }.run();
    assert_eq!((verdict.kernel, verdict.samples), (0, 5));
}

#[test]
fn a_kernel_far_behind_leaves_after_short_rounds() {
    let Outcome { verdict, calls, .. } = Program { us: &[10.0, 21.0], calls: 16, ..USUAL }.run();
    assert_eq!((verdict.kernel, calls), (0, 2 * 2 * 4));
    let Outcome { verdict, calls, .. } = Program { us: &[21.0, 10.0], calls: 16, ..USUAL }.run();
    assert_eq!((verdict.kernel, calls), (1, 2 * 2 * 4), "also the present choice");
}

#[test]
fn a_clock_that_falls_favours_none() {
    // From one call to the next everything takes 1 % longer; the second kernel is 4 % faster, or slower.
    let factor = |call: usize, _: usize| 1.01_f64.powi(call as i32);
    for (us, best) in [([200.0, 192.0], 1), ([192.0, 200.0], 0)] {
        let Outcome { verdict, .. } = Program { us: &us, factor: &factor, ..USUAL }.run();
        assert_eq!(verdict.kernel, best, "{us:?}");
    }
}

/// Contests of six kernels within 15 % of each other, of products of so many microseconds: the mean and the most that the choice takes longer than the best, and
/// the calls until then.
fn regret(us: f64, calls: u32, between_us: f64, factor: impl Fn(usize, usize) -> f64) -> (f64, f64, usize) {
    const SEEDS: usize = 1000;
    let (mut mean, mut most, mut calls_of_all) = (0.0, 0.0_f64, 0);
    for seed in 0..SEEDS {
        let us: Vec<f64> = (0..6).map(|kernel| us * (1.0 + 0.15 * noise(17 * seed + kernel))).collect();
        let event_us = |kernel: usize| 2.0 + 1.9 * noise(1_000_000_007 * (seed + 1) + kernel);
        let factor = |call: usize, kernel: usize| factor(1_000_003 * seed + 31 * call + kernel, call);
        let program = Program { us: &us, between_us, event_us: &event_us, calls, behind: 3, factor: &factor };
        let Outcome { verdict, calls: needed, .. } = program.run();
        calls_of_all += needed;
        let least = us.iter().copied().fold(f64::INFINITY, f64::min);
        let worse = us[verdict.kernel] / least - 1.0;
        (mean, most) = (mean + worse / SEEDS as f64, most.max(worse));
        assert!(us[verdict.kernel] < 1.03 * us[0], "seed {seed}: {us:?} {verdict:?}");
    }
    (mean, most, calls_of_all / SEEDS)
}

#[test]
fn of_noisy_times_the_choice_is_near_the_best() {
    // 1.5 % of noise, and one call in twenty takes half as long again.
    let alone = |at: usize, _: usize| 1.0 + 0.03 * (noise(at) - 0.5) + if noise(at + 7) < 0.05 { 0.5 } else { 0.0 };
    let (mean, most, needed) = regret(200.0, 1, 0.0, alone);
    assert!(mean < 0.002 && most < 0.04 && needed < 40, "{mean} {most} {needed}");
    // One call after the other, in spite of what events cost.
    let steady = |at: usize, _: usize| 1.0 + 0.02 * (noise(at) - 0.5);
    for (us, calls) in [(4.0, 30), (12.0, 10), (50.0, 2)] {
        let (mean, most, needed) = regret(us, calls, 0.0, steady);
        assert!(mean < 0.003 && most < 0.05 && needed < 30 * calls as usize, "{us}: {mean} {most} {needed}");
    }
}

#[test]
fn what_lies_between_calls_does_not_decide() {
    // A layer's other 150 us, half a percent of noise.
    let layer = |at: usize, _: usize| 1.0 + 0.01 * (noise(at) - 0.5);
    let (mean, most, needed) = regret(10.0, 12, 150.0, layer);
    assert!(mean < 0.003 && most < 0.05 && needed < 500, "{mean} {most} {needed}");
}

#[test]
fn samples_between_other_launches_are_not_compared() {
    // Every other sample lies between launches that take 30 us longer.
    let us = [10.0, 9.0, 9.5];
    let mut turns = Turns::new(3, 4, 10.0);
    for sample in 0..400 {
        let Some(turn) = turns.next(1) else { break };
        let shift = usize::from(sample % 7 > 3);
        turns.took(turn, us[turn.kernel] + 30.0 * shift as f64, shift as u64);
    }
    let verdict = turns.verdict().unwrap();
    assert_eq!(verdict.kernel, 1);
    assert!(verdict.against_us - verdict.us < 1.1, "{verdict:?}");
}

#[test]
fn where_launches_between_calls_change_a_round_begins_anew() {
    let mut turns = Turns::new(2, 1, 200.0);
    let mut samples = 0;
    while turns.verdict().is_none() {
        let turn = turns.next(1).unwrap();
        // From the second sample on they are others.
        turns.took(turn, [200.0, 150.0][turn.kernel], u64::from(samples == 0));
        samples += 1;
    }
    assert!(samples < 30 && turns.verdict().unwrap().kernel == 1, "{samples}");
}

#[test]
fn streams_do_not_mix_their_samples() {
    let mut turns = Turns::new(2, 1, 200.0);
    let first = turns.next(1).unwrap();
    for _ in 0..MOST_STRANGERS {
        assert!(turns.next(2).is_none());
    }
    assert!(turns.next(1).is_some(), "the first stream is still there");
    for _ in 0..MOST_STRANGERS {
        assert!(turns.next(2).is_none());
    }
    let other = turns.next(2).unwrap();
    assert!(turns.next(1).is_none(), "now the second stream is timed");
    // A time of before is of no use.
    assert!(!turns.is_open(first) && turns.is_open(other));
    turns.took(first, 1.0, 0);
    turns.took(other, 1.0, 0);
    assert!(turns.verdict().is_none());
}

#[test]
fn a_kernel_that_fails_leaves_and_without_the_present_choice_all_do() {
    let mut turns = Turns::new(3, 1, 200.0);
    turns.failed(2);
    assert!(turns.verdict().is_none());
    turns.failed(1);
    let verdict = turns.verdict().unwrap();
    assert_eq!((verdict.kernel, verdict.samples), (0, 0));
    let mut turns = Turns::new(3, 1, 200.0);
    turns.failed(0);
    assert_eq!(turns.verdict().map(|verdict| verdict.kernel), Some(0));
}

#[test]
fn meanwhile_the_best_so_far_runs() {
    let mut turns = Turns::new(2, 1, 200.0);
    assert_eq!(turns.best(), 0);
    for _ in 0..2 * 2 {
        let turn = turns.next(1).unwrap();
        turns.took(turn, [200.0, 160.0][turn.kernel], 0);
    }
    assert_eq!((turns.best(), turns.verdict()), (1, None));
}

#[test]
fn samples_whose_times_are_lost_are_taken_again() {
    let us = [200.0, 180.0, 190.0];
    for share in [0.5, 0.3, 0.1] {
        let (mut turns, mut pending) = (Turns::new(3, 1, 200.0), VecDeque::new());
        let mut calls = 0;
        while turns.verdict().is_none() {
            calls += 1;
            assert!(calls < 200, "{share} of them are lost");
            let turn = turns.next(1);
            pending.extend(turn);
            if turn.is_none() || pending.len() > 4 {
                let turn = pending.pop_front().unwrap();
                match noise(calls) < share {
                    true => turns.missed(turn, 0),
                    false => turns.took(turn, us[turn.kernel], 0),
                }
            }
        }
        assert_eq!(turns.verdict().map(|verdict| verdict.kernel), Some(1));
    }
}

/// A program that waits for its results after so many calls, and one event of which costs a kernel so much, until the verdict or for so many calls; how many samples
/// of each length counted.
fn with_stalls(
    turns: &mut Turns,
    us: &[f64],
    event_us: &[f64],
    stall: impl Fn(usize) -> usize,
    most: usize,
) -> [usize; 33] {
    let (mut taken, mut call, mut left) = ([0; 33], 0, stall(0));
    while turns.verdict().is_none() && call < most {
        let turn = turns.next(1);
        let calls = turn.map_or(1, |turn| turn.calls as usize);
        let fits = calls < left;
        let made = calls.min(left);
        match turn {
            Some(turn) if fits => {
                taken[calls] += 1;
                turns.took(turn, us[turn.kernel] + event_us[turn.kernel] / calls as f64, 0);
            }
            Some(turn) => turns.missed(turn, made as u32 - 1),
            None => {}
        }
        (call, left) = (call + made, left - made);
        if left == 0 {
            left = stall(call);
        }
    }
    taken
}

#[test]
fn where_no_long_sample_fits_they_become_shorter() {
    let mut turns = Turns::new(2, 32, 4.0);
    let taken = with_stalls(&mut turns, &[4.0, 3.7], &[2.0, 2.0], |_| 10, 3000);
    assert!(turns.verdict().is_some_and(|verdict| verdict.kernel == 1), "{turns:?}");
    assert!(taken[9] >= 6, "as long as fits: {taken:?}");
}

#[test]
fn a_slow_begin_does_not_decide() {
    // For some calls the GPU waits at each, as while a program loads its kernels; then after each step of 200.
    for begin in [1, 50, 300, 1000, 3000] {
        for us in [[4.0, 3.7, 3.9], [4.0, 3.9, 4.3], [3.8, 4.0, 4.3]] {
            let mut turns = Turns::new(3, 32, 4.0);
            let stall = |call: usize| if call < begin { 1 } else { 200 };
            // The slower one's events cost less.
            let taken = with_stalls(&mut turns, &us, &[2.0, 3.5, 2.5], stall, 20_000);
            let least = us.iter().copied().fold(f64::INFINITY, f64::min);
            let verdict = turns.verdict().expect("a verdict");
            assert!(us[verdict.kernel] < 1.03 * least, "{begin} {us:?}: {verdict:?} {taken:?}");
        }
    }
}

#[test]
fn a_gpu_that_waits_for_a_while_does_not_shorten_samples() {
    // As while kernels are loaded: the stream is empty until the program's next step.
    let mut turns = Turns::new(2, 32, 4.0);
    for _ in 0..100 {
        if let Some(turn) = turns.next(1) {
            turns.missed(turn, 0);
        }
    }
    turns.wake();
    assert_eq!(turns.next(1).map(|turn| turn.calls), Some(8), "the first are of a quarter of the calls");
    // Where it always waits, they become single calls, also of a program that prepares.
    let mut samples = 0;
    while turns.next(1).map(|turn| turns.missed(turn, 0)).is_none() || turns.calls > 1 {
        turns.wake();
        samples += 1;
    }
    assert!(samples < 2 * (MOST_PAUSES + 1) * MOST_MISSED, "{samples}");
}

#[test]
fn where_all_times_are_lost_there_are_longer_and_longer_pauses() {
    let mut turns = Turns::new(2, 1, 200.0);
    let lose = |turns: &mut Turns| {
        let mut lost = 0;
        while let Some(turn) = turns.next(1) {
            lost += 1;
            turns.missed(turn, 0);
        }
        lost
    };
    let pause = |turns: &mut Turns| {
        // The first call of the pause is made.
        let mut calls = 1;
        loop {
            match turns.next(1) {
                None => calls += 1,
                Some(turn) => {
                    turns.missed(turn, 0);
                    return calls;
                }
            }
        }
    };
    assert_eq!(lose(&mut turns), MOST_MISSED);
    let mut expected = FIRST_PAUSE;
    for _ in 0..12 {
        assert_eq!(pause(&mut turns), expected);
        assert_eq!(lose(&mut turns), MOST_MISSED - 1);
        expected = LONGEST_PAUSE.min(2 * expected);
    }
    turns.wake();
    let turn = turns.next(1).unwrap();
    turns.took(turn, 100.0, 0);
    assert_eq!(lose(&mut turns), MOST_MISSED, "those of the other kernel");
    assert_eq!(pause(&mut turns), FIRST_PAUSE, "a time that counted");
    assert!(turns.verdict().is_none());
}
