//! A record as the table of docs/log/2026-11-gguf-errors.md.

use super::cells::{cell, digits, family, head, kernels, line};
use super::record::{Errors, ErrorsOf, Record};

/// The compared arms of `tilegemm bench`.
pub const ARMS: [&str; 2] = ["candle", "ours"];
/// Rows of activations: candle has kernels for up to 8 rows, and others.
pub const ROWS: [usize; 2] = [8, 256];
/// The bound of our largest error, whatever the data.
const BOUND: f64 = 1.0 / 256.0;

/// candle's errors and ours.
fn compared(errors: &Errors) -> Option<[&ErrorsOf; 2]> {
    let [candle, ours] = ARMS.map(|arm| errors.arms.get(arm));
    Some([candle?, ours?])
}

/// The flaw that forbids publishing the record, if there is one.
pub fn flaw(record: &Record) -> Option<&'static str> {
    let missing = record.errors.is_empty() || record.errors.iter().any(|errors| compared(errors).is_none());
    missing.then_some("an arm has no errors")
}

/// The table.
pub fn tables(record: &Record) -> String {
    let [columns, k] = record.errors.first().map_or([0; 2], |errors| [errors.n, errors.k]);
    let mut text = format!(
        "**Errors** ({}): largest / root mean square of |d - exact| over sum |w x|, exact in f64 of the dequantised weights, K = {k}, {columns} columns. \
         Bold is worse than candle.\n\n",
        record.place()
    );
    let columns: Vec<(usize, &str)> = ROWS.into_iter().flat_map(|rows| ARMS.map(|arm| (rows, arm))).collect();
    let titles: Vec<String> = columns.iter().map(|(rows, arm)| format!("{arm}, {rows} rows")).collect();
    text += &head(["weights", "data"].into_iter().chain(titles.iter().map(String::as_str)));
    for of_data in record.errors.chunk_by(|x, y| (x.b, &x.data) == (y.b, &y.data)) {
        let of_arm = |(rows, arm): &(usize, &str)| {
            let arms = of_data.iter().find(|errors| errors.m == *rows).map(|errors| &errors.arms);
            let of = |arm: &str| arms.and_then(|arms| arms.get(arm));
            cell(of(arm), of("candle").filter(|_| *arm == "ours"))
        };
        let first = [of_data[0].b.to_string(), of_data[0].data.clone()];
        text += &line(first.into_iter().chain(columns.iter().map(of_arm)));
    }
    let pairs: Vec<[&ErrorsOf; 2]> = record.errors.iter().filter_map(compared).collect();
    let worse = |of: fn(&ErrorsOf) -> f64| pairs.iter().filter(|[candle, ours]| of(ours) > of(candle)).count();
    let most = pairs.iter().map(|[_, ours]| ours.max).fold(0.0, f64::max);
    text += &format!(
        "\nOurs is worse than candle in {} of {} largest errors and {} root mean squares. Our largest error is {}; the bound is 2^-8, {}.\n",
        worse(|errors| errors.max),
        pairs.len(),
        worse(|errors| errors.rms),
        digits(most),
        digits(BOUND)
    );
    let of_column = |(title, (rows, arm)): (&String, &(usize, &str))| {
        let of_rows = record.errors.iter().filter(|errors| errors.m == *rows);
        let names = of_rows.filter_map(|errors| Some(family(&errors.arms.get(*arm)?.kernel)));
        if *arm == "ours" {
            kernels(title, names)
        } else {
            None
        }
    };
    let columns: Vec<String> = titles.iter().zip(&columns).filter_map(of_column).collect();
    text + &columns.join(" ") + "\n"
}
