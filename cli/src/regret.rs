//! Regret: the time of a choice over the least time that was measured of the product.

use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};
use std::fmt;

/// A product counts as slower than stock beyond this ratio of times.
pub const SLOWER: f64 = 1.02;

/// A choice, judged by the measurements of its product.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    pub class: String,
    pub id: String,
    /// Time of the choice over the least time.
    pub ratio: f64,
    /// Time of the choice over stock's, where stock was measured.
    pub over_stock: Option<f64>,
}

/// Judged choices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Regret(pub Vec<Judged>);

/// The regret of a class, or of all products.
pub struct Line<'a> {
    /// `None`: all products.
    pub class: Option<&'a str>,
    pub products: usize,
    /// Geometric mean, 95th percentile and largest ratio.
    pub mean: f64,
    pub p95: f64,
    pub worst: &'a Judged,
    /// Products with a time of stock, the products slower than stock, and the slowest of them.
    pub with_stock: usize,
    pub slower: usize,
    pub slowest: Option<&'a Judged>,
}

impl Regret {
    /// A line for each class in the order of the first products, and one for all; none without products.
    pub fn lines(&self) -> Vec<Line<'_>> {
        let mut classes: Vec<&str> = Vec::new();
        for judged in &self.0 {
            if !classes.contains(&judged.class.as_str()) {
                classes.push(&judged.class);
            }
        }
        classes.into_iter().map(Some).chain([None]).filter_map(|class| self.line(class)).collect()
    }

    fn line<'a>(&'a self, class: Option<&'a str>) -> Option<Line<'a>> {
        let mut rows: Vec<&Judged> = self.0.iter().filter(|row| class.is_none_or(|class| row.class == class)).collect();
        rows.sort_by(|x, y| x.ratio.total_cmp(&y.ratio));
        let worst = *rows.last()?;
        let products = rows.len();
        // The least ratio that 95 % of the products do not exceed.
        let p95 = rows[(products * 95).div_ceil(100) - 1].ratio;
        let mean = (rows.iter().map(|row| row.ratio.ln()).sum::<f64>() / products as f64).exp();
        let stock = rows.iter().filter_map(|row| Some((*row, row.over_stock?)));
        let slower = stock.clone().filter(|(_, ratio)| *ratio > SLOWER);
        let slowest = slower.clone().max_by(|x, y| x.1.total_cmp(&y.1)).map(|(row, _)| row);
        Some(Line { class, products, mean, p95, worst, with_stock: stock.count(), slower: slower.count(), slowest })
    }
}

impl Line<'_> {
    /// The head of each cell.
    pub const HEADS: [&'static str; 7] =
        ["class", "products", "mean", "p95", "worst", "worst product", "more than 2 % slower than stock"];

    pub fn cells(&self) -> [String; 7] {
        let percent = |ratio: f64| format!("{:.1} %", 100.0 * (ratio - 1.0));
        let slowest = self.slowest.and_then(|row| Some(format!(", {:.2} {}", 1.0 / row.over_stock?, row.id)));
        [
            self.class.unwrap_or("all").into(),
            self.products.to_string(),
            percent(self.mean),
            percent(self.p95),
            percent(self.worst.ratio),
            if self.worst.ratio > 1.0 { self.worst.id.clone() } else { String::new() },
            match self.with_stock {
                0 => "-".into(),
                of => format!("{} of {of}{}", self.slower, slowest.unwrap_or_default()),
            },
        ]
    }
}

impl fmt::Display for Regret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(Line::HEADS);
        for column in table.column_iter_mut().skip(1).take(4) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for line in self.lines() {
            table.add_row(line.cells());
        }
        table.fmt(f)
    }
}
