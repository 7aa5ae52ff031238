//! The page's view of a record: the valid rows, and their averages.

use crate::bench::contenders::{self, is_vendor, Contest};
use crate::bench::report::{by_class, geomean, Report, Row};

pub use crate::bench::contenders::{BF16, CANDLE, CUBLASLT, CUBLAS_LOOP, OURS, OWN_BEST};

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
    /// What the arm `candle` ran.
    stock: Stock,
}

/// What stock candle runs: the vendor's call for dense products, kernels of its own for experts and for quantised weights.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stock {
    Vendor,
    Own,
    Both,
}

impl Stock {
    fn of(report: &Report) -> Self {
        let rows = || report.rows.iter().filter(|row| row.arms.contains_key(CANDLE));
        let is_dense = |row: &Row| row.groups.is_none() && row.b.is_none();
        match (rows().any(is_dense), rows().any(|row| !is_dense(row))) {
            (true, true) => Stock::Both,
            (false, true) => Stock::Own,
            _ => Stock::Vendor,
        }
    }
}

/// Rows of one class.
pub struct Class<'a> {
    pub name: &'a str,
    pub rows: Vec<&'a Row>,
}

impl<'a> View<'a> {
    pub fn new(report: &'a Report) -> Self {
        let sound: Vec<&Row> = report.sound().collect();
        let of_row = |row: &'a Row| row.arms.keys().map(String::as_str).filter(|arm| !row.is_kernel(arm));
        let mut arms: Vec<&str> = report.rows.iter().flat_map(of_row).collect();
        let known = [CANDLE, CUBLASLT, CUBLAS_LOOP, BF16, OURS, OWN_BEST];
        arms.sort_by_key(|arm| (known.iter().position(|name| name == arm).unwrap_or(known.len()), *arm));
        arms.dedup();
        Self { report, sound, arms, baselines: contenders::baselines(report), stock: Stock::of(report) }
    }

    pub fn wrong(&self) -> impl Iterator<Item = &'a Row> {
        self.report.rows.iter().filter(|row| row.is_wrong())
    }

    /// In the order of the suite.
    pub fn classes(&self) -> Vec<Class<'a>> {
        let classes = by_class(self.sound.iter().copied());
        classes.into_iter().map(|(name, rows)| Class { name, rows }).collect()
    }

    /// The arms that are the fastest of some sound row, each with the number of its rows, and of those by more than the margin.
    pub fn wins(&self) -> Vec<(&'static str, usize, usize)> {
        Contest::of(&self.sound).wins(&self.sound, MARGIN)
    }

    /// The readable name of an arm of this record.
    pub fn name<'b>(&self, arm: &'b str) -> &'b str {
        match (arm, self.stock) {
            (CANDLE, Stock::Vendor) => "candle (cuBLAS)",
            (CANDLE, Stock::Own) => "candle (its own kernels)",
            (CANDLE, Stock::Both) => "candle (cuBLAS and its own kernels)",
            _ => arm_name(arm),
        }
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

/// The readable name of an arm that is the same in every record.
fn arm_name(arm: &str) -> &str {
    match arm {
        CUBLASLT => "cuBLASLt",
        CUBLAS_LOOP => "cuBLAS, expert by expert",
        OURS => "ours",
        OWN_BEST => "best own kernel",
        BF16 => "dense product in bf16",
        "ours-untuned" => "ours without measured tables",
        "ours-invariant" => "ours, batch-invariant",
        "own" => "ours without the vendor's library",
        "cublaslt-any" => "cuBLASLt, partial sums of any type",
        "cublaslt-top1" => "cuBLASLt's first choice",
        "again" => "ours, a second time",
        other => other,
    }
}
