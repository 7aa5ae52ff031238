//! The regret of the choices of a run: their times over the best of the arms that a dispatcher could have chosen.

use super::report::{Arm, Report, Row};
use crate::regret::{Judged, Regret};
use std::fmt;

/// A time of an arm.
type Us = fn(&Arm) -> Option<f64>;

/// The arms that are choices, each with its description and the times that judge it.
const CHOICES: [(&str, &str, Us); 5] = [
    ("ours", "the dispatcher's choice, with its measured tables", |arm| Some(arm.us)),
    ("learned", "the choice of a program that has learned the products", |arm| Some(arm.us)),
    ("ours", "the dispatcher's choice, in a program", |arm| arm.us_in_program),
    ("learned", "the choice of a program that has learned the products, in that program", |arm| arm.us_in_program),
    ("ours-untuned", "the dispatcher's choice without measured tables", |arm| Some(arm.us)),
];
const STOCK: &str = "candle";

/// The regret of each choice that the record has.
pub struct OfReport {
    pub choices: Vec<(&'static str, Regret)>,
    /// Calls that learning has cost, of each product that was learned, the least first.
    lost_calls: Vec<f64>,
}

/// The regret of a record's choices, over its sound rows.
pub fn of_report(report: &Report) -> OfReport {
    let of = |arm: &str, us: Us| Regret(report.sound().filter_map(|row| judge(row, arm, us)).collect());
    let all = CHOICES.into_iter().map(|(arm, what, us)| (what, of(arm, us)));
    let mut lost_calls: Vec<f64> = report.sound().filter_map(|row| row.lost_calls).collect();
    lost_calls.sort_by(f64::total_cmp);
    OfReport { choices: all.filter(|(_, regret)| !regret.0.is_empty()).collect(), lost_calls }
}

/// `None` where the arm was not measured, or no other arm was.
fn judge(row: &Row, choice: &str, us: Us) -> Option<Judged> {
    let others = row.arms.iter().filter(|(name, _)| *name != choice && is_candidate(row, name));
    let best = others.filter_map(|(_, arm)| us(arm)).min_by(f64::total_cmp)?;
    let us_of = |name: &str| row.arms.get(name).and_then(us);
    let us = us_of(choice)?;
    let (best, over_stock) = (best.min(us), us_of(STOCK).map(|stock| us / stock));
    Some(Judged { class: row.class.clone(), id: row.id.clone(), ratio: us / best, over_stock })
}

/// The fastest arm that a dispatcher could have chosen in place of `choice`, or `choice` itself, with its name. `None` where no other arm
/// was measured.
pub fn best<'a>(row: &'a Row, choice: &str) -> Option<(&'a str, &'a Arm)> {
    let own = row.arms.get_key_value(choice)?;
    let others = row.arms.iter().filter(|(name, _)| *name != choice && is_candidate(row, name));
    let other = others.min_by(|x, y| x.1.us.total_cmp(&y.1.us))?;
    let (name, arm) = if other.1.us < own.1.us { other } else { own };
    Some((name, arm))
}

/// Whether a dispatcher could have chosen the arm: one of our kernels, or the vendor's call with sums in f32. cuBLASLt's other algorithms,
/// other f32 modes, and candle's kernels for experts and quantised weights are no choices.
fn is_candidate(row: &Row, arm: &str) -> bool {
    match arm {
        "ours" | "ours-untuned" | "learned" | "own" | "own-best" => true,
        STOCK => row.groups.is_none() && row.b.is_none() && !row.flags.iter().any(|flag| flag == "inexact candle"),
        name => row.is_kernel(name),
    }
}

impl fmt::Display for OfReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, regret) in &self.choices {
            writeln!(f, "regret of {what}: time over the best of our kernels and the vendor's call\n{regret}")?;
        }
        let lost = &self.lost_calls;
        let Some(most) = lost.last() else { return Ok(()) };
        let mean = lost.iter().sum::<f64>() / lost.len() as f64;
        let p95 = lost[(lost.len() * 95).div_ceil(100) - 1];
        writeln!(f, "learning cost the time of {mean:.0} calls of what was learned (p95 {p95:.0}, at most {most:.0})")
    }
}
