//! The record on a terminal.

use super::report::{by_class, geomean, Report, Row};
use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};
use std::collections::BTreeMap;

/// The line of a row, printed as soon as the row is measured.
#[cfg(feature = "bench")]
pub fn print_row(row: &Row) -> crate::cli::Result {
    let mut arms: Vec<_> = row.arms.iter().collect();
    arms.sort_by(|x, y| x.1.us.total_cmp(&y.1.us));
    let arms: Vec<String> = arms.iter().map(|(name, arm)| format!("{name} {:.1}", arm.us)).collect();
    let flags = if row.flags.is_empty() { String::new() } else { format!("  [{}]", row.flags.join(", ")) };
    crate::cli::print(format_args!("{:<28} roof {:>8.1}  {}{flags}", row.id, row.roof_us, arms.join("  ")))
}

/// The summary: a line for each class, and one for all.
pub fn summary(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "class",
        "rows",
        "ours / candle",
        "ours / cublaslt",
        "own-best / cublaslt",
        "time / roofline",
        "worst row (ours / candle)",
        "won by own, candle, cublaslt",
    ]);
    for column in table.column_iter_mut().skip(1).take(5) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let all: Vec<&Row> = report.sound().collect();
    for (class, rows) in by_class(report.sound()).iter().chain([&("all", all)]) {
        table.add_row(summary_line(class, rows));
    }
    format!("{table}")
}

fn summary_line(class: &str, rows: &[&Row]) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
    let speedup = |arm: &str, other: &str| number(geomean(rows.iter().filter_map(|row| row.speedup(arm, other))));
    let worst = rows.iter().filter_map(|row| Some((row.speedup("ours", "candle")?, &row.id)));
    let worst = worst.min_by(|x, y| x.0.total_cmp(&y.0)).map_or("-".into(), |(ratio, id)| format!("{ratio:.2} {id}"));
    let mut wins: BTreeMap<&str, usize> = BTreeMap::new();
    for winner in rows.iter().filter_map(|row| winner(row)) {
        *wins.entry(winner).or_default() += 1;
    }
    let judged = wins.values().sum::<usize>();
    let share = |arm: &str| format!("{:.0} %", 100.0 * *wins.get(arm).unwrap_or(&0) as f64 / judged as f64);
    let winners = ["own-best", "candle", "cublaslt"].map(share).join(", ");
    vec![
        class.into(),
        rows.len().to_string(),
        speedup("ours", "candle"),
        speedup("ours", "cublaslt"),
        speedup("own-best", "cublaslt"),
        number(geomean(rows.iter().filter_map(|row| row.over_roof("ours")))),
        worst,
        if judged == 0 { "-".into() } else { winners },
    ]
}

/// The fastest of our best row, stock candle and the best of cuBLASLt, where all three were measured.
fn winner(row: &Row) -> Option<&'static str> {
    let times = ["own-best", "candle", "cublaslt"].map(|arm| row.arms.get(arm).map(|measured| (arm, measured.us)));
    let [Some(own), Some(candle), Some(lt)] = times else { return None };
    [own, candle, lt].into_iter().min_by(|x, y| x.1.total_cmp(&y.1)).map(|(arm, _)| arm)
}

/// Warnings about the numbers.
pub fn remarks(report: &Report) -> String {
    let mut lines = Vec::new();
    let ceilings = &report.ceilings;
    let tflops: Vec<String> = ceilings.tflops.iter().map(|(dtype, tflops)| format!("{dtype} {tflops:.0}")).collect();
    let mode = report.settings.f32.map_or(String::new(), |mode| format!("; f32 products: {mode}"));
    lines.push(format!("ceilings: {:.0} GB/s; TFLOP/s at 8192^3: {}{mode}", ceilings.hbm_gbps, tflops.join(", ")));
    for row in &report.rows {
        for flag in row.flags.iter().filter(|flag| flag.starts_with("wrong ")) {
            let arm = flag.trim_start_matches("wrong ");
            let err = row.arms.get(arm).and_then(|arm| arm.err).unwrap_or(f64::NAN);
            lines.push(format!(
                "WRONG: {arm} in {}: error {err:.2e} of the result's mean; its time is worth nothing",
                row.id
            ));
        }
    }
    for row in &report.rows {
        for arm in row.flags.iter().filter_map(|flag| flag.strip_prefix("inexact ")) {
            let err = row.arms.get(arm).and_then(|arm| arm.err).unwrap_or(f64::NAN);
            lines.push(format!(
                "INEXACT: {arm} in {}: error {err:.2e} of the result's mean; it adds partial sums in 16 bits there",
                row.id
            ));
        }
    }
    let flagged = report.rows.iter().filter(|row| !row.flags.is_empty()).count();
    lines.push(format!("{} of {} rows are flagged; {:.0} s", flagged, report.rows.len(), report.settings.seconds));
    if let Some((agree, of)) = again(report) {
        lines.push(format!("the same kernel as two arms: {agree} of {of} rows agree within 1 %"));
    }
    lines.extend(left_out(&report.left_out));
    lines.join("\n")
}

/// A line for each reason, from reasons by id.
pub fn left_out(rows: &BTreeMap<String, String>) -> Vec<String> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (id, reason) in rows {
        reasons.entry(reason).or_default().push(id);
    }
    reasons.into_iter().map(|(reason, ids)| format!("left out ({reason}): {}", ids.join(", "))).collect()
}

/// Rows in which the identical arms `ours` and `again` agree within 1 %.
fn again(report: &Report) -> Option<(usize, usize)> {
    let ratios: Vec<f64> = report.rows.iter().filter_map(|row| row.speedup("again", "ours")).collect();
    (!ratios.is_empty()).then(|| (ratios.iter().filter(|ratio| (*ratio - 1.0).abs() <= 0.01).count(), ratios.len()))
}
