//! A record as the tables of docs/log/2026-11-narrow-errors.md.

use super::cells::{cell, digits, family, head, kernels, line};
use super::record::{Errors, ErrorsOf, Record};

/// The compared arms of `tilegemm bench`: of products with wide activations, and of 8 bits by 8 bits. Ours is the second.
pub const WEIGHTS: [&str; 2] = ["bf16", "ours"];
pub const BYTES: [&str; 2] = ["cublaslt", "ours"];
/// Rows of activations: there are kernels for few rows, and for many.
pub const ROWS: [usize; 2] = [8, 256];
/// The bound of our errors over those of weights in bf16.
const FACTOR: f64 = 1.05;
/// The bound of our errors of 8 bits by 8 bits, beyond half a unit of the result.
const UNIT: f64 = 1.0 / 8192.0;

/// Whether both operands have 8 bits.
fn is_of_bytes(errors: &Errors) -> bool {
    errors.a.is_some_and(|format| format.is_narrow())
}

/// The errors of weights in bf16 that ours are held to, and ours.
fn compared(errors: &Errors) -> Option<[&ErrorsOf; 2]> {
    let [bf16, ours] = WEIGHTS.map(|arm| errors.arms.get(arm));
    Some([bf16?, ours?])
}

/// The flaw that forbids publishing the record, if there is one. cuBLASLt has not every product.
pub fn flaw(record: &Record) -> Option<&'static str> {
    let is_whole = |errors: &Errors| match is_of_bytes(errors) {
        true => errors.arms.contains_key("ours"),
        false => compared(errors).is_some(),
    };
    (record.errors.is_empty() || !record.errors.iter().all(is_whole)).then_some("an arm has no errors")
}

/// Both tables.
pub fn tables(record: &Record) -> String {
    let (bytes, weights): (Vec<&Errors>, Vec<&Errors>) = record.errors.iter().partition(|errors| is_of_bytes(errors));
    let machine = record.place();
    let parts = [of_weights(&weights, &machine), of_bytes(&bytes, &machine)];
    parts.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

fn of_weights(all: &[&Errors], machine: &str) -> Option<String> {
    let Errors { n, k, .. } = all.first()?;
    let mut text = format!(
        "**Errors of products with narrow weights** ({machine}): largest / root mean square of |d - exact| over sum |w x|, exact in f64 of the dequantised weights, \
         K = {k}, {n} columns; bf16 is the product of the weights in bf16. Bold is more than {FACTOR} times bf16's.\n\n"
    );
    let of_arm = |arms: &Errors, arm: &str| {
        let limit = |bf16: &ErrorsOf| ErrorsOf { max: FACTOR * bf16.max, rms: FACTOR * bf16.rms, ..bf16.clone() };
        let limit = arms.arms.get("bf16").filter(|_| arm == "ours").map(limit);
        cell(arms.arms.get(arm), limit.as_ref())
    };
    text += &table(all, WEIGHTS, of_arm);
    let pairs: Vec<[&ErrorsOf; 2]> = all.iter().filter_map(|errors| compared(errors)).collect();
    let worse = |of: fn(&ErrorsOf) -> f64| pairs.iter().filter(|[bf16, ours]| of(ours) > FACTOR * of(bf16)).count();
    text += &format!(
        "\nOurs is beyond {FACTOR} times bf16 in {} of {} largest errors and {} root mean squares.\n",
        worse(|errors| errors.max),
        pairs.len(),
        worse(|errors| errors.rms)
    );
    Some(text + &kernels_of(all))
}

fn of_bytes(all: &[&Errors], machine: &str) -> Option<String> {
    let Errors { n, k, .. } = all.first()?;
    let mut text = format!(
        "**Errors of 8 bits by 8 bits** ({machine}): largest / root mean square of |d - exact| less half a unit of d, over sum |a b|, in units of 2^-13, exact in \
         f64 of the quantised operands, K = {k}, {n} columns. Bold is above 1.\n\n"
    );
    let of_arm = |arms: &Errors, arm: &str| match arms.arms.get(arm) {
        None => "-".into(),
        Some(errors) => {
            let [max, rms] = [errors.max, errors.rms].map(|error| digits(error / UNIT));
            let bold = if errors.max > UNIT { "**" } else { "" };
            format!("{bold}{max}{bold}/{rms}")
        }
    };
    text += &table(all, BYTES, of_arm);
    let ours: Vec<f64> = all.iter().filter_map(|errors| Some(errors.arms.get("ours")?.max)).collect();
    let beyond = ours.iter().filter(|error| **error > UNIT).count();
    let most = ours.iter().copied().fold(0.0, f64::max);
    text += &format!(
        "\nOurs is beyond 2^-13 in {beyond} of {} largest errors; the largest is {} of these units.\n",
        ours.len(),
        digits(most / UNIT)
    );
    Some(text + &kernels_of(all))
}

/// A line for each product and kind of data, a cell for each number of rows and arm.
fn table(all: &[&Errors], arms: [&str; 2], of_arm: impl Fn(&Errors, &str) -> String) -> String {
    let columns: Vec<(usize, &str)> = ROWS.into_iter().flat_map(|rows| arms.map(|arm| (rows, arm))).collect();
    let titles: Vec<String> = columns.iter().map(|(rows, arm)| format!("{arm}, {rows} rows")).collect();
    let mut text = head(["product", "data"].into_iter().chain(titles.iter().map(String::as_str)));
    for of_data in all.chunk_by(|x, y| (&x.formats, &x.data) == (&y.formats, &y.data)) {
        let cell = |(rows, arm): &(usize, &str)| {
            of_data.iter().find(|errors| errors.m == *rows).map_or("-".into(), |errors| of_arm(errors, arm))
        };
        let first = of_data[0];
        let formats = first.formats.clone().unwrap_or_else(|| first.b.to_string());
        text += &line([formats, first.data.clone()].into_iter().chain(columns.iter().map(cell)));
    }
    text
}

/// The families of our kernels by number of rows.
fn kernels_of(all: &[&Errors]) -> String {
    let of_rows = |rows: usize| {
        let of_rows = all.iter().filter(|errors| errors.m == rows);
        let names = of_rows.filter_map(|errors| Some(family(&errors.arms.get("ours")?.kernel)));
        kernels(&format!("ours, {rows} rows"), names)
    };
    ROWS.into_iter().filter_map(of_rows).collect::<Vec<_>>().join(" ") + "\n"
}
