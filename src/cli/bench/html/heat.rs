//! The heat map: the dispatcher's kernel over M and (N, K), and the gain over the baseline.

use super::style;
use super::text::{escape, number_or_nothing, short_kernel, times};
use super::view::{arm_name, speedup, us, View, CANDLE, OURS};
use crate::cli::bench::report::{geomean, Row};
use crate::{Format, Layout};
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
/// Pixels that hold a kernel's name.
const CELL: (usize, usize) = (62, 44);
/// Whether a row belongs to a map.
type Belongs = fn(&Row) -> bool;
/// The maps, each with the rows that belong to it.
const MAPS: [(&str, Belongs); 3] = [
    ("bf16, f16", |row| matches!(row.dtype, Format::BF16 | Format::F16) && row.b.is_none()),
    ("f32", |row| row.dtype == Format::F32 && row.b.is_none()),
    ("quantised weights", |row| row.b.is_some()),
];

/// One map: its label in the selector, its width in pixels, and Plotly's JSON.
pub struct Map {
    pub label: String,
    pub width: usize,
    pub json: String,
}

pub fn plots(view: &View) -> Vec<Map> {
    let all = MAPS.iter().flat_map(|of_name| view.baselines.iter().map(move |baseline| (of_name, *baseline)));
    all.filter_map(|((name, belongs), baseline)| {
        let rows = view.sound.iter().copied().filter(|row| {
            row.layout == Layout::NT
                && row.batch == 1
                && row.groups.is_none()
                && belongs(row)
                && speedup(row, OURS, baseline).is_some()
        });
        let against = if baseline == CANDLE { CANDLE } else { arm_name(baseline) };
        map(&rows.collect::<Vec<_>>(), baseline, format!("{name} against {against}"))
    })
    .collect()
}

fn map(rows: &[&Row], baseline: &str, label: String) -> Option<Map> {
    // The fullest columns are side by side, then columns go by size of the weight.
    let filled = |row: &Row| rows.iter().filter(|other| (other.n, other.k) == (row.n, row.k)).count();
    let columns: BTreeSet<_> =
        rows.iter().map(|row| (Reverse(filled(row)), row.n.saturating_mul(row.k), (row.n, row.k))).collect();
    // Plotly counts rows from below, and small M belongs on top.
    let heights: BTreeSet<_> = rows.iter().map(|row| Reverse(row.m)).collect();
    let x: Vec<_> = columns.iter().map(|(_, _, (n, k))| format!("N {n}<br>K {k}")).collect();
    let y: Vec<_> = heights.iter().map(|m| m.0.to_string()).collect();
    let cells = heights
        .iter()
        .map(|m| columns.iter().map(|(_, _, (n, k))| Cell::of(rows, (m.0, *n, *k), baseline)).collect::<Vec<_>>());
    let cells: Vec<_> = cells.collect();
    let mut plot = Plot::new();
    plot.add_trace(colors(&x, &y, &cells));
    plot.add_trace(labels(&x, &y, &cells));
    // A few columns must not be stretched over the page.
    let few = x.len() < 9;
    let width = 340.max(90 + if few { CELL.0.max(110) } else { CELL.0 } * x.len());
    let layout = style::layout(114 + CELL.1 * y.len())
        .margin(Margin::new().left(64).right(12).top(30).bottom(84))
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

/// The rows of one size; rows of several formats share a cell.
struct Cell {
    ratio: Option<f64>,
    label: String,
    hover: String,
}

impl Cell {
    fn of(rows: &[&Row], size: (usize, usize, usize), baseline: &str) -> Self {
        let rows: Vec<_> = rows.iter().filter(|row| (row.m, row.n, row.k) == size).collect();
        let ratio = geomean(rows.iter().filter_map(|row| speedup(row, OURS, baseline)));
        let (family, tile) = rows.first().map_or(("", None), |row| short_kernel(&row.arms[OURS].kernel));
        let tile = tile.map_or(String::new(), |tile| format!("<br>{tile}"));
        let label = ratio.map_or(String::new(), |ratio| format!("<b>{ratio:.2}</b><br>{}{tile}", escape(family)));
        let hover = rows.iter().map(|row| hover(row, baseline)).collect::<Vec<_>>().join("<br><br>");
        Self { ratio, label, hover }
    }
}

fn hover(row: &Row, baseline: &str) -> String {
    format!(
        "<b>{}</b><br>M {} \u{b7} N {} \u{b7} K {} \u{b7} {}<br>{} the speed of {}<br>ours: {} us, {}<br>{}: {} us, {}",
        escape(&row.id),
        row.m,
        row.n,
        row.k,
        row.formats(),
        times(speedup(row, OURS, baseline)),
        arm_name(baseline),
        number_or_nothing(us(row, OURS)),
        escape(&row.arms[OURS].kernel),
        arm_name(baseline),
        number_or_nothing(us(row, baseline)),
        escape(&row.arms[baseline].kernel),
    )
}
