//! Programs of calls with known times.

use super::{Turns, Verdict, FIRST_PAUSE, LONGEST_PAUSE, MOST_LOST, MOST_STRANGERS};
use std::collections::VecDeque;

/// A program on one stream: kernels that take `us`, by a factor for each call, whose times are known `behind` calls later.
struct Program<'a> {
    us: &'a [f64],
    calls: u32,
    behind: usize,
    factor: &'a dyn Fn(usize, usize) -> f64,
}

/// What came of it: the verdict, the calls until then, and the time that they lost over the best kernel, in its calls.
struct Outcome {
    verdict: Verdict,
    calls: usize,
    lost: f64,
}

impl Program<'_> {
    fn run(&self) -> Outcome {
        let mut turns = Turns::new(self.us.len(), self.calls);
        let mut pending = VecDeque::new();
        let least = self.us.iter().copied().fold(f64::INFINITY, f64::min);
        let mut lost = 0.0;
        for call in 0..10_000 {
            let turn = turns.next(1);
            let kernel = turn.map_or_else(|| turns.best(), |turn| turn.kernel);
            lost += self.us[kernel] / least - 1.0;
            pending.push_back(turn.map(|turn| (turn, self.us[turn.kernel] * (self.factor)(call, turn.kernel))));
            if pending.len() > self.behind {
                if let Some((turn, us)) = pending.pop_front().flatten() {
                    turns.took(turn, us);
                }
            }
            if let Some(verdict) = turns.verdict() {
                assert!(turns.next(1).is_none(), "nothing is timed any more");
                return Outcome { verdict, calls: call + 1, lost };
            }
        }
        panic!("no verdict");
    }
}

fn steady(_: usize, _: usize) -> f64 {
    1.0
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
            let mut us = [100.0, 104.0, 110.0, 130.0];
            us[best] = 90.0;
            let Outcome { verdict, calls, lost } = Program { us: &us, calls: 1, behind, factor: &steady }.run();
            assert_eq!((verdict.kernel, verdict.us), (best, 90.0), "behind {behind}");
            assert_eq!(verdict.against_us, if best == 0 { 104.0 } else { us[0] });
            assert!(
                verdict.samples >= 3 && calls <= 30 + 2 * behind && lost < 6.0 + 0.5 * behind as f64,
                "{calls} {lost}"
            );
        }
    }
}

#[test]
fn a_tie_goes_to_the_present_choice_and_takes_more_rounds() {
    let us = [100.0, 99.5];
    let Outcome { verdict, .. } = Program { us: &us, calls: 1, behind: 0, factor: &steady }.run();
    assert_eq!((verdict.kernel, verdict.samples), (0, 9));
}

#[test]
fn a_kernel_far_behind_leaves_after_two_rounds() {
    let us = [100.0, 210.0];
    let Outcome { verdict, calls, .. } = Program { us: &us, calls: 1, behind: 0, factor: &steady }.run();
    assert_eq!((verdict.kernel, verdict.samples, calls), (0, 2, 6), "a first call and two rounds of each");
}

#[test]
fn a_clock_that_falls_favours_none() {
    // From one call to the next everything takes 1 % longer; the second kernel is 2 % faster, or slower.
    let falls = |call: usize, _: usize| 1.01_f64.powi(call as i32);
    for (us, best) in [([100.0, 98.0], 1), ([98.0, 100.0], 0)] {
        let Outcome { verdict, .. } = Program { us: &us, calls: 1, behind: 0, factor: &falls }.run();
        assert_eq!(verdict.kernel, best, "{us:?}");
    }
}

#[test]
fn of_noisy_times_the_choice_is_near_the_best_and_never_2_percent_worse_than_the_present_one() {
    let (mut regret, mut most) = (0.0, 0.0_f64);
    for seed in 0..2000 {
        let us: Vec<f64> = (0..6).map(|kernel| 100.0 * (1.0 + 0.15 * noise(17 * seed + kernel))).collect();
        // 1.5 % of noise, and one call in twenty takes half as long again.
        let factor = |call: usize, kernel: usize| {
            let at = 1_000_003 * seed + 31 * call + kernel;
            1.0 + 0.03 * (noise(at) - 0.5) + if noise(at + 7) < 0.05 { 0.5 } else { 0.0 }
        };
        let Outcome { verdict, .. } = Program { us: &us, calls: 1, behind: 3, factor: &factor }.run();
        let least = us.iter().copied().fold(f64::INFINITY, f64::min);
        let worse = us[verdict.kernel] / least - 1.0;
        (regret, most) = (regret + worse / 2000.0, most.max(worse));
        assert!(us[verdict.kernel] < 1.02 * us[0], "seed {seed}: {us:?} {verdict:?}");
    }
    assert!(regret < 0.005 && most < 0.05, "{regret} {most}");
}

#[test]
fn short_products_have_samples_of_several_calls() {
    // Events resolve half a microsecond: each call is rounded.
    let us = [5.0, 4.7];
    let rounded = |call: usize, kernel: usize| {
        let exact = us[kernel];
        ((exact + 0.5 * noise(call) - 0.25) * 2.0).round() / 2.0 / exact
    };
    let mut right = 0;
    for shift in 0..100 {
        let factor = |call: usize, kernel: usize| rounded(call + 1000 * shift, kernel);
        let Outcome { verdict, .. } = Program { us: &us, calls: 8, behind: 0, factor: &factor }.run();
        right += usize::from(verdict.kernel == 1);
    }
    assert!(right >= 97, "{right} of 100");
}

#[test]
fn streams_do_not_mix_their_samples() {
    let mut turns = Turns::new(2, 1);
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
    turns.took(first, 1.0);
    turns.took(other, 1.0);
    assert!(turns.verdict().is_none());
}

#[test]
fn a_kernel_that_fails_leaves_and_without_the_present_choice_all_do() {
    let mut turns = Turns::new(3, 1);
    turns.failed(2);
    assert!(turns.verdict().is_none());
    turns.failed(1);
    assert_eq!(turns.verdict().map(|verdict| verdict.kernel), Some(0));
    let mut turns = Turns::new(3, 1);
    turns.failed(0);
    assert_eq!(turns.verdict().map(|verdict| verdict.kernel), Some(0));
}

#[test]
fn meanwhile_the_best_so_far_runs() {
    let mut turns = Turns::new(2, 1);
    assert_eq!(turns.best(), 0);
    for _ in 0..3 * 2 {
        let turn = turns.next(1).unwrap();
        turns.took(turn, [100.0, 80.0][turn.kernel]);
    }
    assert_eq!((turns.best(), turns.verdict()), (1, None));
}

#[test]
fn calls_whose_times_are_lost_are_made_again() {
    let us = [100.0, 90.0, 95.0];
    for every in [2, 3, 5] {
        let (mut turns, mut pending) = (Turns::new(3, 2), VecDeque::new());
        let mut calls = 0;
        while turns.verdict().is_none() {
            calls += 1;
            assert!(calls < 200, "one of {every} is lost");
            let turn = turns.next(1);
            pending.extend(turn);
            if turn.is_none() || pending.len() > 4 {
                let turn = pending.pop_front().unwrap();
                match calls % every {
                    0 => turns.lost(turn),
                    _ => turns.took(turn, us[turn.kernel]),
                }
            }
        }
        assert_eq!(turns.verdict().map(|verdict| verdict.kernel), Some(1));
    }
}

#[test]
fn where_all_times_are_lost_there_are_longer_and_longer_pauses() {
    let mut turns = Turns::new(2, 1);
    let lose = |turns: &mut Turns| {
        let mut lost = 0;
        while let Some(turn) = turns.next(1) {
            lost += 1;
            turns.lost(turn);
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
                    turns.lost(turn);
                    return calls;
                }
            }
        }
    };
    assert_eq!(lose(&mut turns), MOST_LOST + 1, "and the first call of a kernel");
    let mut expected = FIRST_PAUSE;
    for _ in 0..12 {
        assert_eq!(pause(&mut turns), expected);
        assert_eq!(lose(&mut turns), MOST_LOST - 1);
        expected = LONGEST_PAUSE.min(2 * expected);
    }
    turns.wake();
    let turn = turns.next(1).unwrap();
    turns.took(turn, 100.0);
    assert_eq!(lose(&mut turns), MOST_LOST + 1, "those of the other kernel");
    assert_eq!(pause(&mut turns), FIRST_PAUSE, "a time that counted");
    assert!(turns.verdict().is_none());
}
