//! The errors of estimates, and their tables.

use super::records::Measurement;
use candle_tilegemm::internal::fit::{Parameter, Refit};
use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};

/// A family that was fitted.
pub struct Fitted {
    pub family: &'static str,
    pub parameters: Vec<Parameter>,
    pub values: Vec<f64>,
    pub errors: Errors,
}

/// Errors of estimates: the mean and the largest distance of the ratio from 1, by logarithm.
#[derive(Debug, Clone, Copy)]
pub struct Errors {
    pub count: usize,
    pub mean: f64,
    pub worst: f64,
}

impl Errors {
    pub fn of(refit: &Refit, measurements: &[&Measurement]) -> Self {
        let errors: Vec<f64> = measurements.iter().map(|measurement| measurement.error(refit)).collect();
        let count = errors.len();
        let mean = errors.iter().sum::<f64>() / count.max(1) as f64;
        Self { count, mean, worst: errors.into_iter().fold(0.0, f64::max) }
    }
}

pub fn table(header: [&str; 7]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// An error by logarithm, as per cent.
pub fn percent(error: f64) -> String {
    format!("{:.1} %", 100.0 * error.exp_m1())
}
