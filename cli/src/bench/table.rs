//! The record on a terminal.

use super::contenders::{baselines, Contest, CANDLE, CUBLASLT, OURS, OWN_BEST};
use super::report::{by_class, geomean, Report, Row};
use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};
use std::collections::BTreeMap;

/// The line of a row, printed as soon as the row is measured.
#[cfg(feature = "bench")]
pub fn print_row(row: &Row) -> crate::Result {
    let mut arms: Vec<_> = row.arms.iter().collect();
    arms.sort_by(|x, y| x.1.us.total_cmp(&y.1.us));
    let arms: Vec<String> = arms.iter().map(|(name, arm)| format!("{name} {:.1}", arm.us)).collect();
    let flags = if row.flags.is_empty() { String::new() } else { format!("  [{}]", row.flags.join(", ")) };
    crate::print(format_args!("{:<28} roof {:>8.1}  {}{flags}", row.id, row.roof_us, arms.join("  ")))
}

/// The summary: a line for each class, and one for all.
pub fn summary(report: &Report) -> String {
    let all: Vec<&Row> = report.sound().collect();
    let (baselines, contest) = (baselines(report), Contest::of(&all));
    // Stock is what the reader asks for first.
    let baselines = if baselines.is_empty() { vec![CANDLE] } else { baselines };
    let mut pairs: Vec<(&str, &str)> = baselines.iter().map(|baseline| (OURS, *baseline)).collect();
    if baselines.contains(&CUBLASLT) {
        pairs.push((OWN_BEST, CUBLASLT));
    }
    let mut table = Table::new();
    let mut header = vec!["class".to_string(), "rows".into()];
    header.extend(pairs.iter().map(|(arm, other)| format!("{arm} / {other}")));
    header.extend(["time / roofline".into(), format!("worst row ({OURS} / {})", baselines[0]), "fastest".into()]);
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for column in table.column_iter_mut().skip(1).take(2 + pairs.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for (class, rows) in by_class(report.sound()).iter().chain([&("all", all)]) {
        table.add_row(summary_line(class, rows, &pairs, &contest));
    }
    format!("{table}\nX / Y: how many times as fast X is, more is better; time / roofline: 1 is the card's limit, less is better")
}

fn summary_line(class: &str, rows: &[&Row], pairs: &[(&str, &str)], contest: &Contest) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
    let speedup = |(arm, other): &(&str, &str)| number(geomean(rows.iter().filter_map(|row| row.speedup(arm, other))));
    let baseline = pairs[0].1;
    let worst = rows.iter().filter_map(|row| Some((row.speedup(OURS, baseline)?, &row.id)));
    let worst = worst.min_by(|x, y| x.0.total_cmp(&y.0)).map_or("-".into(), |(ratio, id)| format!("{ratio:.2} {id}"));
    let wins = contest.wins(rows, 1.0);
    let judged: usize = wins.iter().map(|(_, all, _)| all).sum();
    let share = |(arm, all, _): &(&str, usize, usize)| format!("{arm} {:.0} %", 100.0 * *all as f64 / judged as f64);
    let winners: Vec<String> = wins.iter().map(share).collect();
    let mut line = vec![class.to_string(), rows.len().to_string()];
    line.extend(pairs.iter().map(speedup));
    line.push(number(geomean(rows.iter().filter_map(|row| row.over_roof(OURS)))));
    line.extend([worst, if winners.is_empty() { "-".into() } else { winners.join(", ") }]);
    line
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
            lines.push(format!("WRONG: {arm} in {}{}; its time is worth nothing", row.id, error(row, arm)));
        }
    }
    for row in &report.rows {
        for arm in row.flags.iter().filter_map(|flag| flag.strip_prefix("inexact ")) {
            let error = error(row, arm);
            lines.push(format!("INEXACT: {arm} in {}{error}; it adds partial sums in 16 bits there", row.id));
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

/// The error of an arm, where the record has it.
fn error(row: &Row, arm: &str) -> String {
    let err = row.arms.get(arm).and_then(|arm| arm.err);
    err.map_or(String::new(), |err| format!(": error {err:.2e} of the result's mean"))
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
