//! The common style of all plots: colours for both themes and for colour-blind readers, and the layout around the data.

use plotly::common::{Font, Label, Line, Title};
use plotly::configuration::{DisplayModeBar, ModeBarButtonName};
use plotly::layout::{Axis, HoverMode, Margin, ModeBar};
use plotly::{Configuration, Layout, Plot};

pub const BLUE: &str = "#3b86d1";
pub const LIGHT_BLUE: &str = "#a9cdf0";
pub const ORANGE: &str = "#e08214";
pub const VIOLET: &str = "#8a63c4";
pub const GREEN: &str = "#2e9e73";
pub const GREY: &str = "#8b949e";
/// Visible on black and on white.
pub const FAINT: &str = "rgba(139,148,158,0.28)";
const CLEAR: &str = "rgba(0,0,0,0)";

/// Colours of text and grid come from page.css, which follows the reader's theme.
pub fn layout(height: usize) -> Layout {
    let label = Label::new().background_color("#24292f").border_color("#24292f").align("left");
    Layout::new()
        .height(height)
        .paper_background_color(CLEAR)
        .plot_background_color(CLEAR)
        .font(Font::new().family("system-ui, sans-serif").size(12))
        .hover_mode(HoverMode::Closest)
        .hover_label(label.font(Font::new().family("system-ui, sans-serif").size(12).color("#ffffff")))
        .mode_bar(ModeBar::new().background_color(CLEAR))
        .margin(Margin::new().left(64).right(20).top(36).bottom(52))
}

pub fn axis(title: &str) -> Axis {
    Axis::new().title(Title::from(title)).grid_color(FAINT).zero_line(false).auto_margin(true)
}

pub fn line(color: &'static str, width: f64) -> Line {
    Line::new().color(color).width(width)
}

/// The plot as Plotly's JSON.
pub fn finish(mut plot: Plot, layout: Layout) -> String {
    let unneeded = vec![
        ModeBarButtonName::Select2d,
        ModeBarButtonName::Lasso2d,
        ModeBarButtonName::AutoScale2d,
        ModeBarButtonName::ToggleSpikelines,
        ModeBarButtonName::HoverClosestCartesian,
        ModeBarButtonName::HoverCompareCartesian,
    ];
    plot.set_layout(layout);
    plot.set_configuration(
        Configuration::new()
            .responsive(true)
            .display_logo(false)
            .display_mode_bar(DisplayModeBar::Hover)
            .mode_bar_buttons_to_remove(unneeded),
    );
    plot.to_json()
}
