//! The record of `tilegemm gguf`, and its table.

use crate::bench::report::Machine;
use crate::errors::{self, digits, head, kernels, line, ErrorsOf};
use candle_tilegemm::Format;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The compared arms of `tilegemm bench`.
pub const ARMS: [&str; 2] = ["candle", "ours"];
/// Rows of activations: candle has kernels for up to 8 rows, and others.
pub const ROWS: [usize; 2] = [8, 256];
/// The bound of our largest error, whatever the data.
const BOUND: f64 = 1.0 / 256.0;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub schema: u32,
    /// Version of this crate.
    pub version: String,
    pub machine: Machine,
    /// N and K of every product.
    pub columns: usize,
    pub k: usize,
    pub errors: Vec<Errors>,
}

/// The errors of one product.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// The format of the weights.
    pub format: Format,
    /// The distribution of the data.
    pub data: String,
    /// Rows of activations.
    pub rows: usize,
    /// Errors by name of the arm.
    pub arms: BTreeMap<String, ErrorsOf>,
    /// Arms that do not run the product, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub absent: BTreeMap<String, String>,
}

impl Errors {
    /// candle's errors and ours.
    fn compared(&self) -> Option<[&ErrorsOf; 2]> {
        let [candle, ours] = ARMS.map(|arm| self.arms.get(arm));
        Some([candle?, ours?])
    }
}

impl errors::Record for Record {
    const COMMAND: &'static str = "gguf";

    fn schema(&self) -> u32 {
        self.schema
    }

    fn flaw(&self) -> Option<&'static str> {
        let missing = self.errors.is_empty() || self.errors.iter().any(|errors| errors.compared().is_none());
        missing.then_some("an arm has no errors")
    }

    fn tables(&self) -> String {
        let Self { machine, version, columns, k, .. } = self;
        let mut text = format!(
            "**Errors** ({}): largest / root mean square of |d - exact| over sum |w x|, exact in f64 of the dequantised weights, K = {k}, {columns} columns. \
             Bold is worse than candle.\n\n",
            errors::machine(machine, version)
        );
        let columns: Vec<(usize, &str)> = ROWS.into_iter().flat_map(|rows| ARMS.map(|arm| (rows, arm))).collect();
        let titles: Vec<String> = columns.iter().map(|(rows, arm)| format!("{arm}, {rows} rows")).collect();
        text += &head(["weights", "data"].into_iter().chain(titles.iter().map(String::as_str)));
        for of_data in self.errors.chunk_by(|x, y| (x.format, &x.data) == (y.format, &y.data)) {
            let of_arm = |(rows, arm): &(usize, &str)| {
                of_data.iter().find(|errors| errors.rows == *rows).map_or("-".into(), |errors| cell(errors, arm))
            };
            let first = [of_data[0].format.to_string(), of_data[0].data.clone()];
            text += &line(first.into_iter().chain(columns.iter().map(of_arm)));
        }
        let compared: Vec<[&ErrorsOf; 2]> = self.errors.iter().filter_map(Errors::compared).collect();
        let worse = |of: fn(&ErrorsOf) -> f64| compared.iter().filter(|[candle, ours]| of(ours) > of(candle)).count();
        let most = compared.iter().map(|[_, ours]| ours.max).fold(0.0, f64::max);
        text += &format!(
            "\nOurs is worse than candle in {} of {} largest errors and {} root mean squares. Our largest error is {}; the bound is 2^-8, {}.\n",
            worse(|errors| errors.max),
            compared.len(),
            worse(|errors| errors.rms),
            digits(most),
            digits(BOUND)
        );
        let of_column = |(title, (rows, arm)): (&String, &(usize, &str))| {
            let of_rows = self.errors.iter().filter(|errors| errors.rows == *rows);
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
}

/// The family of a kernel of ours: each format has a kernel of its own.
fn family(kernel: &str) -> &str {
    candle_tilegemm::family::by_name(kernel).map_or(kernel, |kernel| kernel.family)
}

/// The errors of an arm.
fn cell(errors: &Errors, arm: &str) -> String {
    let Some(of_arm) = errors.arms.get(arm) else { return "-".into() };
    let candle = errors.arms.get("candle").filter(|_| arm == "ours");
    let bold = |value: f64, candle: Option<f64>| match candle {
        Some(candle) if value > candle => format!("**{}**", digits(value)),
        _ => digits(value),
    };
    let [max, rms] =
        [bold(of_arm.max, candle.map(|candle| candle.max)), bold(of_arm.rms, candle.map(|candle| candle.rms))];
    format!("{max} / {rms}")
}
