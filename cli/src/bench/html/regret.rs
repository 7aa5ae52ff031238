//! The regret of the choices, by class.

use super::text::escape;
use super::view::View;
use crate::bench::regret::of_report;
use crate::regret::{Line, Regret};

/// A table for each choice of the record.
pub fn tables(view: &View) -> String {
    let choices = of_report(view.report).choices;
    if choices.is_empty() {
        return "<p class=\"empty\">This record has no arms beside the choice.</p>".into();
    }
    choices.iter().map(|(what, regret)| format!("<h3>{what}</h3>{}", table(regret))).collect()
}

fn table(regret: &Regret) -> String {
    // The classes and the names of products are text, the other cells numbers.
    let class = |at: usize| if [0, 5, 6].contains(&at) { " class=\"text\"" } else { "" };
    let heads = Line::HEADS.iter().enumerate().map(|(at, head)| format!("<th{} scope=\"col\">{head}</th>", class(at)));
    let rows = regret.lines().into_iter().map(|line| {
        let cells = line.cells();
        let cells = cells.iter().enumerate().map(|(at, cell)| format!("<td{}>{}</td>", class(at), escape(cell)));
        format!("<tr>{}</tr>", cells.collect::<String>())
    });
    let (heads, rows) = (heads.collect::<String>(), rows.collect::<String>());
    format!("<div class=\"scroll\"><table class=\"regret\"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>")
}
