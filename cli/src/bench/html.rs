//! The record as one self-contained page: `tilegemm bench --html FILE`.
//!
//! html/page.html is the skeleton. All placeholders are filled in one pass, so that no text of a record is read as a
//! placeholder.

mod classes;
mod heat;
mod regret;
mod roofline;
mod style;
mod summary;
mod table;
mod text;
mod view;

use super::report::Report;
use crate::Result;
use plotly::Plot;
use std::path::Path;
use text::{count, escape, in_script};
use view::View;

const PAGE: &str = include_str!("html/page.html");

pub fn write(report: &Report, path: &Path) -> Result {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    }
    Ok(std::fs::write(path, page(report)?).map_err(|e| format!("cannot write {}: {e}", path.display()))?)
}

/// The page's text.
pub fn page(report: &Report) -> Result<String> {
    let view = View::new(report);
    let mut page = String::new();
    for (at, part) in PAGE.split("{{").enumerate() {
        let text = match part.split_once("}}") {
            Some((name, text)) if at > 0 => {
                page.push_str(
                    &fill(name, &view)
                        .ok_or_else(|| format!("page.html asks for {name}, which html.rs does not have"))?,
                );
                text
            }
            _ => part,
        };
        page.push_str(text);
    }
    Ok(page)
}

/// The text of a placeholder of the page.
fn fill(name: &str, view: &View) -> Option<String> {
    Some(match name {
        "css" => include_str!("html/page.css").into(),
        "js" => include_str!("html/page.js").into(),
        "plotly" => plotly_js(),
        "gpu" => escape(&view.report.machine.gpu),
        "version" => candle_tilegemm::internal::VERSION.into(),
        "baselines" => baselines(view),
        "machine" => summary::machine(view),
        // A card for each baseline, stock first, the roofline's and the worst row's.
        "columns" => (view.baselines.len().max(1) + 2).to_string(),
        "cards" => summary::cards(view),
        "wrong" => table::wrong_banner(view),
        "roofline" => figure(
            "roofline",
            &roofline::plot(view).into_iter().map(|json| (String::new(), json)).collect::<Vec<_>>(),
            0,
        ),
        "heat" => heat(view),
        "classes" => classes(view),
        "regret" => regret::tables(view),
        "rows" => count(view.report.rows.len(), "row"),
        "table" => table::table(view),
        "left_out" => table::left_out(view),
        "flags" => table::flag_list(view),
        _ => return None,
    })
}

/// Plotly itself. The second script of the package typesets formulas, and the page has no formulas.
fn plotly_js() -> String {
    let scripts = Plot::offline_js_sources();
    let end = "</script>";
    scripts.split_once(end).map_or(scripts.clone(), |(first, _)| format!("{first}\n{end}"))
}

/// A place for a plot, its data, and a selector for several plots: (label, Plotly's JSON) each.
fn figure(id: &str, plots: &[(String, String)], width: usize) -> String {
    if plots.is_empty() {
        return "<p class=\"empty\">This record has no rows for this plot.</p>".into();
    }
    let choice = plots.iter().enumerate().map(|(at, (label, _))| {
        let checked = if at == 0 { " checked" } else { "" };
        let label = escape(label);
        format!("<label><input type=\"radio\" name=\"{id}\" value=\"{at}\"{checked}><span>{label}</span></label>")
    });
    let choice = if plots.len() > 1 { choice.collect() } else { String::new() };
    let json: Vec<_> = plots.iter().map(|(_, json)| in_script(json)).collect();
    let (class, style) =
        if width > 0 { (" class=\"scroll\"", format!(" style=\"min-width:{width}px\"")) } else { ("", String::new()) };
    format!(
        "<div class=\"choice\">{choice}</div>\n<div{class}><div class=\"plot\" id=\"plot-{id}\"{style}></div></div>\n\
         <script type=\"application/json\" id=\"plot-{id}-data\">\n[{}]\n</script>",
        json.join(",\n")
    )
}

/// The baselines of the record in words.
fn baselines(view: &View) -> String {
    let names: Vec<&str> = view.baselines.iter().map(|arm| view.name(arm)).collect();
    match names.split_last() {
        Some((last, [])) => escape(last),
        Some((last, others)) => escape(&format!("{} and {last}", others.join(", "))),
        None => "no other arm".into(),
    }
}

fn heat(view: &View) -> String {
    let maps = heat::plots(view);
    if maps.is_empty() {
        return figure("heat", &[], 0);
    }
    let width = maps.iter().map(|map| map.width).max().unwrap_or(0);
    let figure = figure("heat", &maps.into_iter().map(|map| (map.label, map.json)).collect::<Vec<_>>(), width);
    let stops: Vec<_> = heat::SCALE.iter().map(|(at, color)| format!("{color} {:.0}%", at * 100.0)).collect();
    let (least, most) = (1.0 / heat::STRONGEST, heat::STRONGEST);
    format!(
        "{figure}\n<div class=\"key\"><span>slower, {least:.2}\u{d7} or less</span>\
         <i style=\"background:linear-gradient(90deg,{})\"></i><span>{most:.2}\u{d7} or more, faster</span></div>",
        stops.join(",")
    )
}

fn classes(view: &View) -> String {
    let plots = view.baselines.iter().filter_map(|baseline| {
        let plot = classes::plot(view, baseline)?;
        Some(format!(
            "<div><h3>over {}</h3>{}</div>",
            escape(view.name(baseline)),
            figure(&format!("classes-{baseline}"), &[(String::new(), plot)], 0)
        ))
    });
    let plots: String = plots.collect();
    if plots.is_empty() {
        figure("classes", &[], 0)
    } else {
        plots
    }
}
