//! The page's view of a record: the valid rows, and their averages.

use super::text::is_vendor;
use crate::cli::bench::regret;
use crate::cli::bench::report::{by_class, geomean, Report, Row};

pub const CANDLE: &str = "candle";
pub const CUBLASLT: &str = "cublaslt";
pub const OURS: &str = "ours";
pub const OWN_BEST: &str = "own-best";

/// The baselines of `ours`.
const BASELINES: [&str; 2] = [CANDLE, CUBLASLT];
/// A smaller difference may be noise.
const MARGIN: f64 = 1.02;

/// A record, with the valid rows apart.
pub struct View<'a> {
    pub report: &'a Report,
    /// Rows without a wrong result: the rows of all geomeans and plots.
    pub sound: Vec<&'a Row>,
    /// Arms of the record that are no single kernels, the best-known arms first.
    pub arms: Vec<&'a str>,
    /// Baselines that the record has.
    pub baselines: Vec<&'static str>,
}

/// Rows that an arm won.
pub struct Wins {
    pub arm: &'static str,
    pub rows: usize,
    /// The wins by more than the margin.
    pub clear: usize,
}

/// Rows of one class.
pub struct Class<'a> {
    pub name: &'a str,
    pub rows: Vec<&'a Row>,
}

impl<'a> View<'a> {
    pub fn new(report: &'a Report) -> Self {
        let sound: Vec<&Row> = report.sound().collect();
        let of_row = |row: &'a Row| row.arms.keys().map(String::as_str).filter(|arm| !regret::is_kernel(row, arm));
        let mut arms: Vec<&str> = report.rows.iter().flat_map(of_row).collect();
        let known = [CANDLE, CUBLASLT, OURS, OWN_BEST];
        arms.sort_by_key(|arm| (known.iter().position(|name| name == arm).unwrap_or(known.len()), *arm));
        arms.dedup();
        let baselines = BASELINES.into_iter().filter(|baseline| arms.contains(baseline)).collect();
        Self { report, sound, arms, baselines }
    }

    pub fn wrong(&self) -> impl Iterator<Item = &'a Row> {
        self.report.rows.iter().filter(|row| row.is_wrong())
    }

    /// In the order of the suite.
    pub fn classes(&self) -> Vec<Class<'a>> {
        let classes = by_class(self.sound.iter().copied());
        classes.into_iter().map(|(name, rows)| Class { name, rows }).collect()
    }

    /// The fastest contenders, over the sound rows that have all contenders: the best kernel of this crate, and the
    /// baselines.
    pub fn winners(&self) -> Vec<Wins> {
        let own = if self.arms.contains(&OWN_BEST) { OWN_BEST } else { OURS };
        let contenders: Vec<_> = [own, CANDLE, CUBLASLT].into_iter().filter(|arm| self.arms.contains(arm)).collect();
        let mut wins: Vec<_> = contenders.iter().map(|arm| Wins { arm, rows: 0, clear: 0 }).collect();
        for row in &self.sound {
            let times: Option<Vec<_>> = contenders.iter().map(|arm| us(row, arm)).collect();
            let Some(times) = times.filter(|times| times.len() > 1) else { continue };
            let best = (0..times.len()).min_by(|a, b| times[*a].total_cmp(&times[*b])).unwrap_or(0);
            let clear = times.iter().enumerate().all(|(at, time)| at == best || *time > times[best] * MARGIN);
            wins[best].rows += 1;
            wins[best].clear += usize::from(clear);
        }
        wins.retain(|win| win.rows > 0);
        wins
    }

    /// Share of the sound rows in which `ours` ran a kernel of this crate.
    pub fn own_share(&self) -> Option<f64> {
        let ran: Vec<_> = self.sound.iter().filter_map(|row| row.arms.get(OURS)).collect();
        let own = ran.iter().filter(|arm| !is_vendor(&arm.kernel)).count();
        (!ran.is_empty()).then(|| own as f64 / ran.len() as f64)
    }
}

/// The value, where a value can be drawn and averaged.
fn usable(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then_some(value)
}

pub fn us(row: &Row, arm: &str) -> Option<f64> {
    usable(row.arms.get(arm)?.us)
}

pub fn speedup(row: &Row, arm: &str, other: &str) -> Option<f64> {
    row.speedup(arm, other).and_then(usable)
}

pub fn over_roof(row: &Row, arm: &str) -> Option<f64> {
    usable(row.roof_us)?;
    row.over_roof(arm).and_then(usable)
}

/// The geometric mean over the rows that have both arms.
pub fn geomean_speedup(rows: &[&Row], arm: &str, other: &str) -> Option<f64> {
    geomean(rows.iter().filter_map(|row| speedup(row, arm, other)))
}

/// The number of rows that have both arms.
pub fn rows_with(rows: &[&Row], arm: &str, other: &str) -> usize {
    rows.iter().filter(|row| speedup(row, arm, other).is_some()).count()
}

/// The row in which `arm` does worst.
pub fn worst<'a>(rows: &[&'a Row], arm: &str, other: &str) -> Option<(&'a Row, f64)> {
    let all = rows.iter().filter_map(|row| Some((*row, speedup(row, arm, other)?)));
    all.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// The readable name of an arm.
pub fn arm_name(arm: &str) -> &str {
    match arm {
        CANDLE => "candle (cuBLAS)",
        CUBLASLT => "cuBLASLt",
        OURS => "ours",
        OWN_BEST => "best own kernel",
        "ours-untuned" => "ours without measured tables",
        "ours-invariant" => "ours, batch-invariant",
        "own" => "ours without the vendor's library",
        "bf16" => "dense product in bf16",
        "cublaslt-any" => "cuBLASLt, partial sums of any type",
        "cublaslt-top1" => "cuBLASLt's first choice",
        "again" => "ours, a second time",
        other => other,
    }
}
