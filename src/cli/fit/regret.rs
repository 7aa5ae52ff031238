//! The regret of the estimates alone: the time of their choice over the least measured time.

use super::records::Record;
use crate::cost::Refit;
use crate::dispatch::{Dispatcher, Policy};
use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};
use std::fmt;

/// The regret on a record.
pub struct Regret {
    /// Class, name of the product, regret.
    rows: Vec<(String, String, f64)>,
    /// Products whose choice was not measured.
    unmeasured: Vec<String>,
}

impl Regret {
    pub fn of(record: &Record, refit: Refit) -> Self {
        let dispatcher = Dispatcher::hypothetical(record.device.clone()).with_refit(refit);
        let (mut rows, mut unmeasured) = (Vec::new(), Vec::new());
        for (index, product) in record.products.iter().enumerate() {
            let canonical = product.problem.canonical().problem;
            let of_product = |m: &&super::Measurement| m.product == index && m.problem == canonical;
            let times = || record.measurements.iter().filter(of_product);
            let best = times().map(|m| m.us).fold(f64::INFINITY, f64::min);
            let Ok(plan) = dispatcher.plan(&product.problem, Policy::default()) else { continue };
            let is_choice = |m: &&super::Measurement| {
                m.kernel.name == plan.kernel.name && m.config.is_none_or(|config| config == plan.config)
            };
            match times().filter(is_choice).map(|m| m.us).reduce(f64::min) {
                Some(us) => rows.push((product.class.clone(), product.id.clone(), us / best)),
                None if best.is_finite() => unmeasured.push(format!("{} ({})", product.id, plan.kernel)),
                None => {}
            }
        }
        Self { rows, unmeasured }
    }
}

impl fmt::Display for Regret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(["class", "products", "mean", "p95", "worst", "worst product"]);
        for column in table.column_iter_mut().skip(1).take(4) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut classes: Vec<&str> = Vec::new();
        for (class, ..) in &self.rows {
            if !classes.contains(&class.as_str()) {
                classes.push(class);
            }
        }
        for class in classes.into_iter().map(Some).chain([None]) {
            let of_class = |row: &&(String, String, f64)| class.is_none_or(|class| row.0 == class);
            let mut rows: Vec<_> = self.rows.iter().filter(of_class).collect();
            rows.sort_by(|x, y| x.2.total_cmp(&y.2));
            let Some(worst) = rows.last() else { continue };
            let percent = |ratio: f64| format!("{:.1} %", 100.0 * (ratio - 1.0));
            let mean = rows.iter().map(|row| row.2.ln()).sum::<f64>() / rows.len() as f64;
            let p95 = rows[((rows.len() as f64 * 0.95).ceil() as usize).clamp(1, rows.len()) - 1];
            let name = if worst.2 > 1.0 { worst.1.as_str() } else { "" };
            table.add_row([
                class.unwrap_or("all"),
                &rows.len().to_string(),
                &percent(mean.exp()),
                &percent(p95.2),
                &percent(worst.2),
                name,
            ]);
        }
        write!(f, "{table}")?;
        match &self.unmeasured[..] {
            [] => Ok(()),
            products => write!(f, "\nthe choice was not measured: {}", products.join(", ")),
        }
    }
}
