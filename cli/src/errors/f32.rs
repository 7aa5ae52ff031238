//! A record as the tables of docs/log/2026-11-f32-errors.md.

use super::cells::{self, cell, head, line};
use super::record::{Errors, Record};
use crate::bench::report::{geomean, Report, Row};
use crate::bench::table::left_out;
use candle_tilegemm::Layout;
use std::fmt::Write;

/// The compared arms of `tilegemm bench`: cuBLAS with candle's conventions, and ours.
pub const ARMS: [&str; 5] = ["candle-strict", "own-strict", "own-accurate", "candle-tf32", "own-tf32"];
/// Headings of [`ARMS`].
const HEADINGS: [&str; 5] = ["cuBLAS SGEMM", "ours, strict", "ours, accurate", "cuBLAS TF32", "ours, TF32"];
/// The arms of ours and the arms of their comparison, by index.
const COMPARED: [(usize, usize); 3] = [(1, 0), (2, 0), (4, 3)];
/// The arm whose error must be at most SGEMM's.
const ACCURATE: usize = 2;
/// The depths that a page shows: with every depth its table is longer than the rest of the page.
const SHOWN: [usize; 4] = [64, 512, 4096, 14336];

/// All tables.
pub fn tables(record: &Record) -> String {
    let machine = record.place();
    // A record has one layout after the other.
    let by_layout = record.errors.chunk_by(|x, y| x.layout == y.layout);
    let mut parts: Vec<String> = by_layout.map(|rows| error_table(rows, &machine)).collect();
    parts.extend(record.bench.as_ref().map(|bench| time_table(bench, &machine)));
    parts.join("\n")
}

/// The flaw that forbids publishing the record, if there is one.
pub fn flaw(record: &Record) -> Option<&'static str> {
    let Some(bench) = &record.bench else { return Some("it has no times") };
    let left_out = |start: &str| bench.left_out.values().any(|reason| reason.starts_with(start));
    if bench.rows.iter().any(|row| row.is_wrong()) {
        Some("a result is wrong")
    } else if left_out("failed") {
        Some("a product failed")
    } else if left_out("interrupted") {
        Some("it was interrupted")
    } else {
        None
    }
}

fn error_table(rows: &[Errors], machine: &str) -> String {
    let layout = rows.first().map_or(Layout::Any, |row| row.layout);
    let mut text = format!(
        "**Errors, {layout}** ({machine}): largest / root mean square of |d - exact| over sum |a| |b|, exact in f64, 512 x 512 \
         results. Bold is worse than SGEMM. The record has other depths; rows with a bold number are here.\n\n"
    );
    text += &head(["K", "data"].into_iter().chain(HEADINGS));
    let mut worse = [0; 2];
    for row in rows {
        let of = |place: usize| row.arms.get(ARMS[place]);
        let cell = |place: usize| cell(of(place), of(0).filter(|_| place == ACCURATE));
        let is_worse = match [of(ACCURATE), of(0)] {
            [Some(accurate), Some(sgemm)] => [accurate.max > sgemm.max, accurate.rms > sgemm.rms],
            _ => [false; 2],
        };
        worse = [0, 1].map(|i| worse[i] + usize::from(is_worse[i]));
        if SHOWN.contains(&row.k) || is_worse.contains(&true) {
            text += &line([row.k.to_string(), row.data.clone()].into_iter().chain((0..ARMS.len()).map(cell)));
        }
    }
    let [max, rms] = worse;
    let of = rows.len();
    let _ = writeln!(
        text,
        "\nAccurate is worse than SGEMM in {max} of {of} largest errors and {rms} of {of} root mean squares."
    );
    text + &kernels(|arm| rows.iter().filter_map(|row| Some(row.arms.get(arm)?.kernel.as_str())).collect())
}

/// The kernels of our columns, in order of appearance.
fn kernels<'a>(of: impl Fn(&str) -> Vec<&'a str>) -> String {
    let column = |&(ours, _): &(usize, usize)| cells::kernels(HEADINGS[ours], of(ARMS[ours]).into_iter());
    let columns: Vec<String> = COMPARED.iter().filter_map(column).collect();
    columns.join(" ") + "\n"
}

fn time_table(report: &Report, machine: &str) -> String {
    let samples = report.settings.samples;
    let mut text = format!(
        "**Times** ({machine}): microseconds of a product of N(0, 1) numbers, all preparing included, cold operands, CUDA-graph \
         replay, arms in turns with pauses, median of {samples}; in brackets how many times as fast as cuBLAS, SGEMM or TF32.\n\n"
    );
    text += &head(["product", "batch x M x N x K, layout"].into_iter().chain(HEADINGS));
    for row in &report.rows {
        text += &line([row.id.clone(), sizes(row)].into_iter().chain((0..ARMS.len()).map(|place| time(row, place))));
    }
    let mean = |place: usize| {
        let other = COMPARED.iter().find(|(ours, _)| *ours == place)?.1;
        let gain = geomean(report.sound().filter_map(|row| row.speedup(ARMS[place], ARMS[other])))?;
        Some(format!("{gain:.2}x"))
    };
    let means = (0..ARMS.len()).map(|place| mean(place).unwrap_or_default());
    text += &line(["geometric mean".into(), String::new()].into_iter().chain(means));
    text += "\n";
    let doubtful = |row: &Row| (!row.flags.is_empty()).then(|| format!("{} ({})", row.id, row.flags.join(", ")));
    let doubtful: Vec<String> = report.rows.iter().filter_map(doubtful).collect();
    if !doubtful.is_empty() {
        let _ = writeln!(text, "To be read with care: {}.", doubtful.join("; "));
    }
    for line in left_out(&report.left_out) {
        let _ = writeln!(text, "{line}.");
    }
    text + &kernels(|arm| report.rows.iter().filter_map(|row| Some(row.arms.get(arm)?.kernel.as_str())).collect())
}

fn sizes(row: &Row) -> String {
    let Row { batch, m, n, k, layout, .. } = row;
    let batch = if *batch > 1 { format!("{batch} x ") } else { String::new() };
    format!("{batch}{m} x {n} x {k} {layout}")
}

/// A time, for our arms with the gain over cuBLAS. A wrong result has no time.
fn time(row: &Row, place: usize) -> String {
    let Some(arm) = row.arms.get(ARMS[place]) else { return "-".into() };
    if row.flags.iter().any(|flag| flag.strip_prefix("wrong ") == Some(ARMS[place])) {
        return "wrong".into();
    }
    let us = if arm.us < 100.0 { format!("{:.1}", arm.us) } else { format!("{:.0}", arm.us) };
    let compared = COMPARED.iter().find(|(ours, _)| *ours == place);
    match compared.and_then(|(_, other)| row.speedup(ARMS[place], ARMS[*other])) {
        Some(gain) => format!("{us} ({gain:.2}x)"),
        None => us,
    }
}
