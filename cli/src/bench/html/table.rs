//! The table of all rows, including wrong rows.

use super::text::{count, error, escape, number, number_or_nothing, NOTHING};
use super::view::{over_roof, speedup, us, View, OURS};
use crate::bench::regret::best;
use crate::bench::report::{Arm, Row};
use std::fmt::Write;

/// A cell: its text, its sort key, and its hover text.
#[derive(Default)]
struct Cell {
    text: String,
    value: Option<f64>,
    title: String,
    class: &'static str,
}

struct Column {
    head: String,
    title: String,
    text: bool,
}

/// `<thead>` and `<tbody>`.
pub fn table(view: &View) -> String {
    let mut html = String::from("<thead><tr>");
    for column in columns(view) {
        let class = if column.text { " class=\"text\"" } else { "" };
        let (title, head) = (escape(&column.title), escape(&column.head));
        let _ = write!(html, "<th{class} scope=\"col\"><button type=\"button\" title=\"{title}\">{head}</button></th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &view.report.rows {
        html.push_str(if row.is_wrong() { "<tr class=\"wrong\">" } else { "<tr>" });
        for (at, cell) in cells(view, row).iter().enumerate() {
            let tag = if at == 0 { "th scope=\"row\"" } else { "td" };
            let _ = write!(html, "<{tag}");
            if !cell.class.is_empty() {
                let _ = write!(html, " class=\"{}\"", cell.class);
            }
            if let Some(value) = cell.value {
                let _ = write!(html, " data-v=\"{value}\"");
            }
            if !cell.title.is_empty() {
                let _ = write!(html, " title=\"{}\"", escape(&cell.title));
            }
            let _ = write!(html, ">{}</{}>", cell.text, &tag[..2]);
        }
        html.push_str("</tr>\n");
    }
    html + "</tbody>"
}

fn columns(view: &View) -> Vec<Column> {
    let column = |head: &str, title: &str, text| Column { head: head.into(), title: title.into(), text };
    let number = |head: &str, title: &str| column(head, title, false);
    let mut columns = vec![
        column("id", "name of the row in the suite", true),
        column("class", "rows are summed up by class", true),
        number("M", "rows of the result"),
        number("N", "columns of the result"),
        number("K", "length of the sums"),
        number("batch", "matrices in the batch"),
        column("layout", "nt: a[M,K] @ b[N,K]^T; nn: a[M,K] @ b[K,N]", true),
        column("dtype", "element type of operands and result", true),
        number("roof us", "the least time that the ceilings allow"),
    ];
    let time = |arm: &&str| Column {
        head: format!("{arm} us"),
        title: format!("{}: median, microseconds; point at a value for p10 to p90", view.name(arm)),
        text: false,
    };
    columns.extend(main_arms(view).map(time));
    columns.extend(view.baselines.iter().map(|baseline| Column {
        head: format!("vs {baseline}"),
        title: format!("speed of ours over {}: more is better, above 1 ours is faster", view.name(baseline)),
        text: false,
    }));
    columns.push(number("over roof", "time of ours over the roofline: less is better, 1 is the limit"));
    columns.push(number(
        "over best",
        "time of ours over the best of our kernels and the vendor's call: less is better, 1 is the best",
    ));
    columns.push(column("kernel of ours", "what the dispatcher chose", true));
    columns.extend(other_arms(view).map(time));
    columns.push(number("err", "largest difference of ours to the reference, over the reference's root mean square"));
    columns.push(column("flags", "what to know before trusting the row", true));
    columns
}

fn is_main(view: &View, arm: &str) -> bool {
    arm == OURS || view.baselines.contains(&arm)
}

/// Arms that the speed-ups beside them compare.
fn main_arms<'a>(view: &'a View) -> impl Iterator<Item = &'a &'a str> {
    view.arms.iter().filter(|arm| is_main(view, arm))
}

fn other_arms<'a>(view: &'a View) -> impl Iterator<Item = &'a &'a str> {
    view.arms.iter().filter(|arm| !is_main(view, arm))
}

fn cells(view: &View, row: &Row) -> Vec<Cell> {
    let text = |text: &str| Cell { text: escape(text), class: "text", ..Cell::default() };
    let size =
        |size: usize| Cell { text: size.to_string(), value: Some(size as f64), class: "size", ..Cell::default() };
    let mut id = text(&row.id);
    id.title = groups(row);
    if row.is_wrong() {
        id.text.insert_str(0, "<span class=\"badge bad\">wrong</span> ");
    }
    let roof = (row.roof_us > 0.0).then_some(row.roof_us);
    let mut cells = vec![id, text(&row.class), size(row.m), size(row.n), size(row.k), size(row.batch)];
    cells.extend([
        text(row.layout.name()),
        text(&row.formats()),
        Cell { text: number_or_nothing(roof), value: roof, ..Cell::default() },
    ]);
    cells.extend(main_arms(view).map(|arm| time(row, arm)));
    cells.extend(view.baselines.iter().map(|baseline| ratio(speedup(row, OURS, baseline))));
    let over = over_roof(row, OURS);
    cells.push(Cell { text: number_or_nothing(over), value: over, ..Cell::default() });
    cells.push(over_best(row));
    let ours = row.arms.get(OURS);
    cells.push(Cell { class: "text kernel", ..text(ours.map_or(NOTHING, |arm| &arm.kernel)) });
    cells.extend(other_arms(view).map(|arm| time(row, arm)));
    let every = row.arms.iter().map(|(name, arm)| format!("{name}: {}", error(arm.err)));
    let err = ours.and_then(|arm| arm.err);
    cells.push(Cell { text: error(err), value: err, title: every.collect::<Vec<_>>().join("\n"), ..Cell::default() });
    cells.push(Cell { text: flags(row), class: "text", ..Cell::default() });
    cells
}

/// The groups of a product of experts.
fn groups(row: &Row) -> String {
    let Some(groups) = row.groups else { return String::new() };
    let [hit, largest] =
        [row.experts_hit, row.largest_group].map(|count| count.map_or(NOTHING.into(), |n| n.to_string()));
    let (top_k, experts) = (groups.top_k.get(), groups.experts.get());
    let routing = groups.routing.name();
    format!("{top_k} of {experts} experts, {routing} routing: {hit} experts have rows, the largest group has {largest}")
}

fn time(row: &Row, arm: &str) -> Cell {
    match row.arms.get(arm) {
        Some(Arm { us_p10, us_p90, kernel, .. }) => {
            let us = us(row, arm);
            let title = format!("p10 {} us, p90 {} us\n{kernel}", number(*us_p10), number(*us_p90));
            Cell { text: number_or_nothing(us), value: us, title, ..Cell::default() }
        }
        None => {
            let why = row.absent.get(arm).cloned().unwrap_or_else(|| "not measured".into());
            Cell { text: NOTHING.into(), title: why, class: "absent", ..Cell::default() }
        }
    }
}

/// The time of ours over the time of the best arm that could have been chosen.
fn over_best(row: &Row) -> Cell {
    match best(row, OURS).zip(row.arms.get(OURS)) {
        Some(((name, best), ours)) => {
            let (value, title) = (ours.us / best.us, format!("{name}: {} us\n{}", number(best.us), best.kernel));
            Cell { text: number(value), value: Some(value), title, ..Cell::default() }
        }
        None => Cell { text: NOTHING.into(), ..Cell::default() },
    }
}

/// A ratio, tinted where the ratio exceeds a measurement's noise.
fn ratio(ratio: Option<f64>) -> Cell {
    let class = match ratio {
        Some(ratio) if ratio >= 1.2 => "much-faster",
        Some(ratio) if ratio > 1.02 => "faster",
        Some(ratio) if ratio <= 1.0 / 1.2 => "much-slower",
        Some(ratio) if ratio < 1.0 / 1.02 => "slower",
        _ => "",
    };
    Cell { text: number_or_nothing(ratio), value: ratio, class, ..Cell::default() }
}

fn flags(row: &Row) -> String {
    let badge = |flag: &String| {
        let class = if flag.starts_with("wrong") { "badge bad" } else { "badge" };
        format!("<span class=\"{class}\">{}</span>", escape(flag))
    };
    row.flags.iter().map(badge).collect::<Vec<_>>().join(" ")
}

/// Rows of the suite that were not measured, by reason.
pub fn left_out(view: &View) -> String {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for (id, reason) in &view.report.left_out {
        match reasons.iter_mut().find(|(known, _)| known == reason) {
            Some((_, ids)) => ids.push(id),
            None => reasons.push((reason, vec![id])),
        }
    }
    if reasons.is_empty() {
        return "<p>Every row that was asked for was measured.</p>".into();
    }
    let items = reasons.iter().map(|(reason, ids)| {
        let names: Vec<_> = ids.iter().map(|id| format!("<code>{}</code>", escape(id))).collect();
        format!("<dt>{} <small>({})</small></dt><dd>{}</dd>", escape(reason), count(ids.len(), "row"), names.join(" "))
    });
    format!("<dl>{}</dl>", items.collect::<String>())
}

/// The meaning of flags; the flags of this record with their number of rows.
pub fn flag_list(view: &View) -> String {
    const KNOWN: [(&str, &str); 6] = [
        ("wrong ARM", "The result of the arm is further from the reference than rounding explains. The row counts in no average and no plot."),
        ("inexact ARM", "The arm adds partial sums in 16 bits: its result is further from the reference than sums in f32 explain. The row counts."),
        ("spread ARM", "The samples of the arm lie further apart than 5 %, p10 to p90: point at its time to see them."),
        ("eager ARM", "The arm waits for the GPU within a call: its time is of calls in a row, host included, in place of a graph."),
        ("clocks", "The card's clock fell while the row was measured."),
        ("hot", "The operands stayed in the L2 cache where they fit: the row can be faster than memory allows."),
    ];
    let rows_with = |kind: &str| {
        let has = |row: &&Row| row.flags.iter().any(|flag| flag.split_whitespace().next() == Some(kind));
        view.report.rows.iter().filter(has).count()
    };
    let items = KNOWN.iter().map(|(flag, meaning)| {
        let rows = rows_with(flag.split_whitespace().next().unwrap_or(flag));
        let class = if flag.starts_with("wrong") { "badge bad" } else { "badge" };
        let rows = if rows == 0 { "no row".into() } else { count(rows, "row") };
        format!("<dt><span class=\"{class}\">{flag}</span> <small>{rows}</small></dt><dd>{meaning}</dd>")
    });
    format!("<dl>{}</dl>", items.collect::<String>())
}

/// A banner at the top of the page where results are wrong.
pub fn wrong_banner(view: &View) -> String {
    let rows: Vec<_> = view.wrong().map(|row| format!("<code>{}</code>", escape(&row.id))).collect();
    if rows.is_empty() {
        return String::new();
    }
    let (number, verb) = (count(rows.len(), "row"), if rows.len() == 1 { "has" } else { "have" });
    format!(
        "<p class=\"banner\" role=\"alert\"><strong>{number} {verb} a wrong result</strong> and {} in no average and no plot: {}</p>",
        if rows.len() == 1 { "counts" } else { "count" },
        rows.join(" "),
    )
}
