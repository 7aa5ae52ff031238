//! The roofline: the throughput of each arm, below the limits of memory and arithmetic.

use super::style::{self, BLUE, GREEN, GREY, ORANGE, VIOLET};
use super::text::{escape, number, percent};
use super::view::{us, View, BF16, CANDLE, CUBLASLT, CUBLAS_LOOP, OURS};
use crate::bench::report::{Ceilings, Row};
use plotly::common::{Anchor, ExponentFormat, HoverInfo, Marker, MarkerSymbol, Mode, Orientation, Position};
use plotly::layout::{Axis, AxisType, Legend, TraceOrder};
use plotly::{Plot, Scatter};

/// Labels of ceilings that are closer than this share one line of text.
const CLOSE: f64 = 1.5;

/// Arms with colour, symbol and size. The most important arm is drawn last.
const ARMS: [(&str, &str, MarkerSymbol, usize); 5] = [
    (BF16, GREEN, MarkerSymbol::SquareOpen, 7),
    (CUBLAS_LOOP, VIOLET, MarkerSymbol::TriangleUpOpen, 7),
    (CUBLASLT, GREY, MarkerSymbol::DiamondOpen, 7),
    (CANDLE, ORANGE, MarkerSymbol::CircleOpen, 8),
    (OURS, BLUE, MarkerSymbol::Circle, 8),
];

/// A row's measurement: FLOP per byte, TFLOP/s.
type Point<'a> = (&'a Row, f64, f64);

/// `None` without a point to draw.
pub fn plot(view: &View) -> Option<String> {
    let of = |arm| view.sound.iter().filter_map(|row| point(row, arm, &view.report.ceilings)).collect::<Vec<_>>();
    let points = ARMS.map(|(arm, ..)| of(arm));
    let x = range(points.iter().flatten().map(|(_, x, _)| *x));
    let y = range(points.iter().flatten().map(|(_, _, y)| *y).chain(used(view).map(|(_, tflops)| tflops)));
    let mut plot = Plot::new();
    roofs(&mut plot, view, x, y.0);
    for ((arm, color, symbol, size), points) in ARMS.into_iter().zip(&points).filter(|(_, points)| !points.is_empty()) {
        let trace = Scatter::new(points.iter().map(|at| at.1).collect(), points.iter().map(|at| at.2).collect())
            .name(view.name(arm))
            .mode(Mode::Markers)
            .marker(Marker::new().color(color).symbol(symbol).size(size).opacity(0.85))
            .hover_text_array(points.iter().map(|(row, _, tflops)| hover(view, row, arm, *tflops)).collect())
            .hover_template("%{hovertext}<extra></extra>");
        plot.add_trace(trace);
    }
    let legend = Legend::new().orientation(Orientation::Horizontal).x(0.0).y(1.0).y_anchor(Anchor::Bottom);
    let layout = style::layout(520)
        .legend(legend.trace_order(TraceOrder::Reversed))
        .x_axis(axis("FLOP per byte of memory traffic", x))
        .y_axis(axis("speed (TFLOP/s)", y));
    points.iter().any(|points| !points.is_empty()).then(|| style::finish(plot, layout))
}

/// The range of an axis, with room at both ends.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    (low / 1.8, high * 1.8)
}

fn axis(title: &str, (low, high): (f64, f64)) -> Axis {
    let axis = style::axis(title).type_(AxisType::Log).exponent_format(ExponentFormat::None);
    let axis = if high / low > 30.0 { axis.dtick(1.0) } else { axis }; // decades are labels enough
    axis.range(vec![low.log10(), high.log10()])
}

fn point<'a>(row: &'a Row, arm: &str, ceilings: &Ceilings) -> Option<Point<'a>> {
    let us = us(row, arm)?;
    // A matrix that a whole batch shares moves once. `roof_us` takes the sharing into account; the sizes alone do not.
    let shared = row.flops() / (row.roof_us * ceilings.hbm_gbps * 1e3);
    let intensity = row.intensity().max(if shared.is_finite() { shared } else { 0.0 });
    let tflops = row.flops() / us / 1e6;
    (intensity > 0.0 && tflops > 0.0 && tflops.is_finite()).then_some((row, intensity, tflops))
}

fn hover(view: &View, row: &Row, arm: &str, tflops: f64) -> String {
    let arm_of_row = &row.arms[arm];
    let batch = if row.batch > 1 { format!(" \u{b7} batch {}", row.batch) } else { String::new() };
    let share = row.roof_us / arm_of_row.us;
    let share = if share > 0.0 { format!("<br>{} of the roof", percent(share)) } else { String::new() };
    format!(
        "<b>{}</b><br>M {} \u{b7} N {} \u{b7} K {}{batch} \u{b7} {} {}<br>{}: {}<br>{} us \u{b7} {} TFLOP/s{share}",
        escape(&row.id),
        row.m,
        row.n,
        row.k,
        row.layout,
        row.formats(),
        view.name(arm),
        escape(&arm_of_row.kernel),
        number(arm_of_row.us),
        number(tflops),
    )
}

/// Ceilings of the formats that have rows, highest first.
fn used<'a>(view: &'a View) -> impl Iterator<Item = (&'static str, f64)> + 'a {
    let mut used: Vec<_> = view.report.ceilings.tflops.iter().map(|(dtype, tflops)| (*dtype, *tflops)).collect();
    used.retain(|(dtype, tflops)| *tflops > 0.0 && view.sound.iter().any(|row| row.in_products() == *dtype));
    used.sort_by(|a, b| b.1.total_cmp(&a.1));
    used.into_iter().map(|(dtype, tflops)| (dtype.name(), tflops))
}

fn roofs(plot: &mut Plot, view: &View, x: (f64, f64), y_low: f64) {
    let tflops_per_intensity = view.report.ceilings.hbm_gbps / 1e3;
    let roofs: Vec<_> = used(view).collect();
    if tflops_per_intensity <= 0.0 {
        for (_, tflops) in &roofs {
            plot.add_trace(roof(vec![x.0, x.1], vec![*tflops; 2]));
        }
    } else {
        // Memory: up to the highest ceiling, or to the edge.
        let low = x.0.max(y_low / tflops_per_intensity);
        let high = roofs.first().map_or(x.1, |(_, tflops)| (tflops / tflops_per_intensity).min(x.1));
        plot.add_trace(roof(vec![low, high], vec![low * tflops_per_intensity, high * tflops_per_intensity]));
        let middle = (low * high).sqrt();
        let text = format!("{} TB/s ", number(tflops_per_intensity));
        plot.add_trace(label(middle, middle * tflops_per_intensity, text));
        for (_, tflops) in &roofs {
            let ridge = tflops / tflops_per_intensity;
            if ridge < x.1 {
                plot.add_trace(roof(vec![ridge.max(x.0), x.1], vec![*tflops; 2]));
            }
        }
    }
    for group in roofs.chunk_by(|a, b| a.1 / b.1 < CLOSE) {
        let names: Vec<_> = group.iter().map(|(dtype, tflops)| format!("{dtype} {}", number(*tflops))).collect();
        plot.add_trace(label(x.1, group[0].1, names.join(", ") + " "));
    }
}

fn roof(x: Vec<f64>, y: Vec<f64>) -> Box<Scatter<f64, f64>> {
    let roof = Scatter::new(x, y).mode(Mode::Lines).line(style::line(GREY, 1.5));
    roof.hover_info(HoverInfo::Skip).show_legend(false)
}

fn label(x: f64, y: f64, text: String) -> Box<Scatter<f64, f64>> {
    let label = Scatter::new(vec![x], vec![y]).mode(Mode::Text).text_array(vec![text]);
    label.text_position(Position::TopLeft).hover_info(HoverInfo::Skip).show_legend(false)
}
