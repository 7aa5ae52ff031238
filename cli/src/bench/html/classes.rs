//! Bars: the gain of each class of rows over one baseline, and the row with the least gain.

use super::style::{self, BLUE, LIGHT_BLUE, ORANGE};
use super::text::{count, escape, number_or_nothing, shorten, times};
use super::view::{geomean_speedup, rows_with, us, worst, Class, View, OURS, OWN_BEST};
use crate::bench::report::Row;
use plotly::common::{Anchor, DashType, Font, Line, Marker, MarkerSymbol, Mode, Orientation, TextPosition, TickMode};
use plotly::layout::{Axis, AxisType, BarMode, CategoryOrder, Legend, Margin, Shape, ShapeLayer, ShapeLine, ShapeType};
use plotly::{Bar, Plot, Scatter, Trace};
use serde::Serialize;

/// Pixels of a class: two bars with their labels.
const HEIGHT: usize = 52;

/// Numbers of the axis, the roundest first: those in its range are drawn where there is room.
#[rustfmt::skip]
const TICKS: [f64; 27] = [
    10.0, 100.0, 0.1, 0.01, 1000.0, 2.0, 0.5, 5.0, 0.2, 20.0, 50.0, 3.0, 1.5, 30.0, 0.8, 0.3, 1.2, 0.9, 1.1, 0.7, 0.6, 1.3, 7.0, 4.0, 0.4, 200.0, 500.0,
];
/// More numbers would overlap where two plots stand side by side.
const MOST_TICKS: f64 = 9.0;

/// A bar that begins at 1, the baseline's speed. Bars of the plotly crate begin at 0.
#[derive(Clone, Serialize)]
struct FromOne {
    #[serde(flatten)]
    bar: Bar<f64, String>,
    base: f64,
}

impl Trace for FromOne {
    fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The bars of one class.
struct Group<'a> {
    class: Class<'a>,
    label: String,
    ours: Option<f64>,
    own_best: Option<f64>,
    worst: Option<(&'a Row, f64)>,
}

/// `None` if no class has both arms.
pub fn plot(view: &View, baseline: &str) -> Option<String> {
    let groups = groups(view, baseline);
    let (low, high) = range(view);
    let mut plot = Plot::new();
    plot.add_trace(bars(view, &groups, OWN_BEST, baseline, LIGHT_BLUE));
    plot.add_trace(bars(view, &groups, OURS, baseline, BLUE));
    plot.add_trace(diamonds(view, &groups, baseline));
    let even = Shape::new().shape_type(ShapeType::Line).x0(1.0).x1(1.0).y0(0.0).y1(1.0).y_ref("paper");
    let even = even.layer(ShapeLayer::Below).line(ShapeLine::new().color(style::GREY).width(1.5).dash(DashType::Dash));
    let legend = Legend::new().orientation(Orientation::Horizontal).x(0.0).y(1.0).y_anchor(Anchor::Bottom);
    // Plotly counts categories from below.
    let order = groups.iter().rev().map(|group| group.label.clone()).collect::<Vec<_>>();
    let classes = style::axis("").type_(AxisType::Category).show_grid(false).category_order(CategoryOrder::Array);
    let layout = style::layout(90 + HEIGHT * groups.len())
        .margin(Margin::new().left(24).right(12).top(36).bottom(52))
        .bar_mode(BarMode::Group)
        .bar_gap(0.3)
        .bar_group_gap(0.08)
        .legend(legend)
        .shapes(vec![even])
        .x_axis(speed_ups(low, high))
        .y_axis(classes.category_array(order).range(vec![-0.5, groups.len() as f64 - 0.5]));
    (!groups.is_empty()).then(|| style::finish(plot, layout))
}

/// Classes that have both arms for some baseline, so that the plots of all baselines have the same lines.
fn groups<'a>(view: &View<'a>, baseline: &str) -> Vec<Group<'a>> {
    let compared = |class: &Class| view.baselines.iter().any(|baseline| rows_with(&class.rows, OURS, baseline) > 0);
    view.classes().into_iter().filter(compared).map(|class| Group::new(class, baseline)).collect()
}

/// The range of the axis: the same for all baselines.
fn range(view: &View) -> (f64, f64) {
    let groups = view.baselines.iter().flat_map(|baseline| groups(view, baseline));
    let ratios = groups.flat_map(|group| [group.ours, group.own_best, group.worst.map(|(_, ratio)| ratio)]).flatten();
    let (low, high) = ratios.fold((0.95f64, 1.05f64), |(low, high), ratio| (low.min(ratio), high.max(ratio)));
    let labels = (high / low).powf(0.18); // at the bars' ends
    (low / labels, high * labels)
}

/// An axis of ratios: half as fast is as far from 1 as twice as fast, and one class that is ten times as fast does not flatten the others.
fn speed_ups(low: f64, high: f64) -> Axis {
    let apart = |x: f64, y: f64| (x / y).ln().abs() >= (high / low).ln() / MOST_TICKS;
    let mut ticks = vec![1.0];
    for tick in TICKS.into_iter().filter(|tick| (low..=high).contains(tick)) {
        if ticks.iter().all(|other| apart(tick, *other)) {
            ticks.push(tick);
        }
    }
    let texts = ticks.iter().map(f64::to_string).collect();
    style::axis("speed-up (1: as fast)")
        .type_(AxisType::Log)
        .range(vec![low.log10(), high.log10()])
        .tick_mode(TickMode::Array)
        .tick_values(ticks)
        .tick_text(texts)
}

impl<'a> Group<'a> {
    fn new(class: Class<'a>, baseline: &str) -> Self {
        let rows = rows_with(&class.rows, OURS, baseline);
        let label = format!("{} ({rows})", escape(&shorten(class.name, 24)));
        let of = |arm| geomean_speedup(&class.rows, arm, baseline);
        let (ours, own_best) = (of(OURS), of(OWN_BEST));
        // For a single row the bar already shows the worst row.
        let worst = worst(&class.rows, OURS, baseline).filter(|_| rows > 1);
        Self { class, label, ours, own_best, worst }
    }
}

fn bars(view: &View, groups: &[Group], arm: &str, baseline: &str, color: &'static str) -> Box<FromOne> {
    let ratio = |group: &Group| if arm == OURS { group.ours } else { group.own_best };
    let bars: Vec<_> = groups.iter().filter_map(|group| Some((group, ratio(group)?))).collect();
    let hover = bars.iter().map(|(group, ratio)| {
        let (name, rows) = (escape(group.class.name), count(rows_with(&group.class.rows, arm, baseline), "row"));
        let (ratio, arm, baseline) = (times(Some(*ratio)), view.name(arm), view.name(baseline));
        format!("<b>{name}</b><br>{arm}: {ratio} the speed of {baseline}<br>geometric mean of {rows}")
    });
    let lengths = bars.iter().map(|(_, ratio)| ratio - 1.0).collect();
    let bar = Bar::new(lengths, bars.iter().map(|(group, _)| group.label.clone()).collect())
        .name(view.name(arm))
        .orientation(Orientation::Horizontal)
        .marker(Marker::new().color(color))
        .text_array(bars.iter().map(|(_, ratio)| format!("{ratio:.2}")).collect())
        .text_position(TextPosition::Outside)
        .text_font(Font::new().size(11))
        .hover_text_array(hover.collect())
        .hover_template("%{hovertext}<extra></extra>")
        .show_legend(!bars.is_empty());
    Box::new(FromOne { bar: *bar, base: 1.0 })
}

/// The worst row of each class.
fn diamonds(view: &View, groups: &[Group], baseline: &str) -> Box<dyn Trace> {
    let worst: Vec<_> = groups.iter().filter_map(|group| Some((group.label.clone(), group.worst?))).collect();
    let hover = worst.iter().map(|(_, (row, ratio))| {
        format!(
            "worst row: <b>{}</b><br>M {} \u{b7} N {} \u{b7} K {}<br>{} the speed of {}<br>ours: {} us, {}<br>{}: {} us",
            escape(&row.id),
            row.m,
            row.n,
            row.k,
            times(Some(*ratio)),
            view.name(baseline),
            number_or_nothing(us(row, OURS)),
            escape(&row.arms[OURS].kernel),
            view.name(baseline),
            number_or_nothing(us(row, baseline)),
        )
    });
    let marker = Marker::new().symbol(MarkerSymbol::Diamond).size(9).color(ORANGE);
    Scatter::new(
        worst.iter().map(|(_, (_, ratio))| *ratio).collect(),
        worst.iter().map(|(label, _)| label.clone()).collect(),
    )
    .name("worst row of ours")
    .mode(Mode::Markers)
    .marker(marker.line(Line::new().color("#ffffff").width(1.0)))
    .hover_text_array(hover.collect())
    .hover_template("%{hovertext}<extra></extra>")
    .show_legend(!worst.is_empty())
}
