//! The heat map: the dispatcher's kernel over M and (N, K), and the gain over the baseline.

use super::style;
use super::text::{count, escape, kernel_lines, number_or_nothing, times};
use super::view::{speedup, us, View, CANDLE, OURS};
use crate::bench::report::{geomean, Row};
use candle_tilegemm::Layout;
use plotly::common::{ColorScale, ColorScaleElement, Font, HoverInfo, Mode};
use plotly::layout::{Axis, AxisType, Margin, TicksPosition};
use plotly::{HeatMap, Plot, Scatter, Trace};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Colours saturate at this ratio, in both directions.
pub const STRONGEST: f64 = 1.5;
/// Slower, even, faster. The colours are translucent, so that the labels' colour suits both themes.
pub const SCALE: [(f64, &str); 5] = [
    (0.0, "rgba(224,130,20,0.95)"),
    (0.35, "rgba(224,130,20,0.45)"),
    (0.5, "rgba(139,148,158,0.12)"),
    (0.65, "rgba(59,134,209,0.45)"),
    (1.0, "rgba(59,134,209,0.95)"),
];
/// Pixels of a cell with one line beside the ratio, and of each further line.
const CELL: (usize, usize) = (76, 32);
const LINE: usize = 12;

/// One map: its label in the selector, its width in pixels, and Plotly's JSON.
pub struct Map {
    pub label: String,
    pub width: usize,
    pub json: String,
}

/// A map for each kind of operands and each baseline: formats have kernels of their own, and so do experts.
pub fn plots(view: &View) -> Vec<Map> {
    let is_drawn = |row: &&Row| row.layout == Layout::NT && row.batch == 1;
    let mut kinds: Vec<String> = view.sound.iter().copied().filter(is_drawn).map(kind).collect();
    let mut seen = BTreeSet::new();
    kinds.retain(|kind| seen.insert(kind.clone()));
    let all = kinds.iter().flat_map(|kind| view.baselines.iter().map(move |baseline| (kind, *baseline)));
    all.filter_map(|(name, baseline)| {
        let is_of_map = |row: &&Row| is_drawn(row) && kind(row) == *name && speedup(row, OURS, baseline).is_some();
        let rows: Vec<&Row> = view.sound.iter().copied().filter(is_of_map).collect();
        let against = if baseline == CANDLE { CANDLE } else { view.name(baseline) };
        map(view, &rows, baseline, format!("{name} against {against}"))
    })
    .collect()
}

/// The operands in words.
fn kind(row: &Row) -> String {
    let experts = if row.groups.is_some() { "experts, " } else { "" };
    format!("{experts}{}", row.formats())
}

/// The weight: columns, length of the sums, and experts.
fn weight(row: &Row) -> (usize, usize, usize) {
    (row.n, row.k, row.groups.map_or(1, |groups| groups.experts.get()))
}

fn map(view: &View, rows: &[&Row], baseline: &str, label: String) -> Option<Map> {
    // The fullest columns are side by side, then columns go by size of the weight.
    let filled = |row: &Row| rows.iter().filter(|other| weight(other) == weight(row)).count();
    let columns: BTreeSet<_> =
        rows.iter().map(|row| (Reverse(filled(row)), row.n.saturating_mul(row.k), weight(row))).collect();
    // Plotly counts rows from below, and small M belongs on top.
    let heights: BTreeSet<_> = rows.iter().map(|row| Reverse(row.m)).collect();
    let name = |(n, k, experts): (usize, usize, usize)| match experts {
        1 => format!("N {n}<br>K {k}"),
        _ => format!("N {n}<br>K {k}<br>{experts} experts"),
    };
    let x: Vec<_> = columns.iter().map(|(_, _, weight)| name(*weight)).collect();
    let y: Vec<_> = heights.iter().map(|m| m.0.to_string()).collect();
    let cells = heights
        .iter()
        .map(|m| columns.iter().map(|(_, _, weight)| Cell::of(view, rows, m.0, *weight, baseline)).collect::<Vec<_>>());
    let cells: Vec<_> = cells.collect();
    let mut plot = Plot::new();
    plot.add_trace(colors(&x, &y, &cells));
    plot.add_trace(labels(&x, &y, &cells));
    // A few columns must not be stretched over the page.
    let few = x.len() < 9;
    let width = 340.max(90 + if few { CELL.0.max(110) } else { CELL.0 } * x.len());
    let lines = cells.iter().flatten().map(|cell| cell.lines).max().unwrap_or(1);
    let height = CELL.1 + LINE * lines.saturating_sub(1);
    let layout = style::layout(126 + height * y.len())
        .margin(Margin::new().left(64).right(12).top(30).bottom(96))
        .x_axis(axis("weight: N columns, sums of length K", x.len()).tick_angle(0.0))
        .y_axis(axis("rows, M", y.len()));
    let layout = if few { layout.width(width) } else { layout };
    (!rows.is_empty()).then(|| Map { label, width, json: style::finish(plot, layout) })
}

fn colors(x: &[String], y: &[String], cells: &[Vec<Cell>]) -> Box<dyn Trace> {
    let scale = SCALE.iter().map(|(at, color)| ColorScaleElement(*at, (*color).into())).collect();
    // Logarithms: twice as fast is as far from even as half as fast.
    let log = |cell: &Cell| cell.ratio.map(f64::ln);
    let z: Vec<Vec<_>> = cells.iter().map(|row| row.iter().map(log).collect()).collect();
    let hover = cells.iter().map(|row| row.iter().map(|cell| cell.hover.clone()).collect()).collect();
    HeatMap::new(x.to_vec(), y.to_vec(), z)
        .zmin(-STRONGEST.ln())
        .zmax(STRONGEST.ln())
        .color_scale(ColorScale::Vector(scale))
        .show_scale(false)
        .x_gap(2.0)
        .y_gap(2.0)
        .hover_on_gaps(false)
        .hover_text_matrix(hover)
        .hover_template("%{hovertext}<extra></extra>")
}

/// The labels of the cells. The plotly crate's heat map has no labels of its own.
fn labels(x: &[String], y: &[String], cells: &[Vec<Cell>]) -> Box<dyn Trace> {
    let (mut x_of, mut y_of, mut text) = (Vec::new(), Vec::new(), Vec::new());
    for (row, y) in cells.iter().zip(y) {
        for (cell, x) in row.iter().zip(x).filter(|(cell, _)| cell.ratio.is_some()) {
            x_of.push(x.clone());
            y_of.push(y.clone());
            text.push(cell.label.clone());
        }
    }
    let labels = Scatter::new(x_of, y_of).mode(Mode::Text).text_array(text).text_font(Font::new().size(9));
    labels.hover_info(HoverInfo::Skip).show_legend(false)
}

fn axis(title: &str, cells: usize) -> Axis {
    style::axis(title)
        .type_(AxisType::Category)
        .range(vec![-0.5, cells as f64 - 0.5])
        .tick_font(Font::new().size(10))
        .tick_length(0)
        .ticks_on(TicksPosition::Boundaries)
        .fixed_range(true)
}

/// The rows of one size: rows with other routings, epilogues or results share a cell.
struct Cell {
    ratio: Option<f64>,
    label: String,
    /// Lines of the label below the ratio.
    lines: usize,
    hover: String,
}

impl Cell {
    fn of(view: &View, rows: &[&Row], m: usize, of: (usize, usize, usize), baseline: &str) -> Self {
        let rows: Vec<_> = rows.iter().copied().filter(|row| row.m == m && weight(row) == of).collect();
        let ratio = geomean(rows.iter().filter_map(|row| speedup(row, OURS, baseline)));
        let mut kernels: Vec<&str> = rows.iter().map(|row| row.arms[OURS].kernel.as_str()).collect();
        kernels.sort_unstable();
        kernels.dedup();
        let lines = match kernels[..] {
            [] => Vec::new(),
            [kernel] => kernel_lines(kernel),
            _ => vec![count(kernels.len(), "kernel")],
        };
        let text: String = lines.iter().map(|line| format!("<br>{}", escape(line))).collect();
        let label = ratio.map_or(String::new(), |ratio| format!("<b>{ratio:.2}</b>{text}"));
        let hover = rows.iter().map(|row| hover(view, row, baseline)).collect::<Vec<_>>().join("<br><br>");
        Self { ratio, label, lines: lines.len(), hover }
    }
}

fn hover(view: &View, row: &Row, baseline: &str) -> String {
    format!(
        "<b>{}</b><br>M {} \u{b7} N {} \u{b7} K {} \u{b7} {}<br>{} the speed of {}<br>ours: {} us, {}<br>{}: {} us, {}",
        escape(&row.id),
        row.m,
        row.n,
        row.k,
        row.formats(),
        times(speedup(row, OURS, baseline)),
        view.name(baseline),
        number_or_nothing(us(row, OURS)),
        escape(&row.arms[OURS].kernel),
        view.name(baseline),
        number_or_nothing(us(row, baseline)),
        escape(&row.arms[baseline].kernel),
    )
}
