//! The tables of a record.

use super::record::{DecoderReport, Timed, STOCK};
use comfy_table::{presets::ASCII_MARKDOWN, CellAlignment, Table};
use std::collections::BTreeMap;

/// The record as text.
pub fn table(report: &DecoderReport) -> String {
    let DecoderReport { model, weights, weights_gb, gpu, limits, .. } = report;
    let cards = match report.cards {
        1 => String::new(),
        cards => format!("{cards} x "),
    };
    let mut lines = vec![format!(
        "{model}, {weights}, on {cards}{gpu}: a step of one sequence reads {weights_gb:.3} GB of weights"
    )];
    if let Some(limits) = limits {
        lines.push(format!("roofline: {:.0} GB/s and {:.0} TFLOP/s in bf16, measured", limits.hbm_gbps, limits.tflops));
    }
    if !report.starts.is_empty() {
        lines.push(format!("\n{}", starts(report)));
    }
    if !report.prefill.is_empty() {
        lines.push(format!("\n{}", prefill(report)));
    }
    if !report.decode.is_empty() {
        lines.push(format!("\n{}", decode(report)));
    }
    lines.push("\nMedians and extremes of runs; tokens/s of all sequences; vs stock: how much faster.".into());
    if let Some(agreement) = &report.agreement {
        let token = if agreement.same_token { "the same" } else { "another" };
        lines.push(format!(
            "Logits after {} tokens: {:.1e} from stock's (relative L2), {token} largest.",
            agreement.prompt, agreement.relative_l2
        ));
    }
    lines.extend(report.wrong.iter().map(|what| format!("\nWRONG: {what}")));
    if !report.left_out.is_empty() {
        lines.push("\nLeft out:".into());
        lines.extend(report.left_out.iter().map(|(name, reason)| format!("  {name}: {reason}")));
    }
    lines.join("\n")
}

fn new_table(header: &[&str], text_column: usize) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    for (_, column) in table.column_iter_mut().enumerate().filter(|(index, _)| *index != text_column) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn starts(report: &DecoderReport) -> Table {
    let mut table = new_table(&["arm", "load s", "prompt", "first token ms"], 0);
    for (name, start) in &report.starts {
        let numbers =
            [format!("{:.1}", start.load_s), start.prompt.to_string(), format!("{:.1}", start.first_token_ms)];
        table.add_row([name.clone()].into_iter().chain(numbers));
    }
    table
}

fn prefill(report: &DecoderReport) -> Table {
    let mut table = new_table(&["prefill", "arm", "ms", "min - max", "tokens/s", "vs stock"], 1);
    for row in &report.prefill {
        let size = row.tokens.to_string();
        rows(&mut table, &[size], &row.arms, row.roof_ms, row.tokens);
    }
    table
}

fn decode(report: &DecoderReport) -> Table {
    let header = ["context", "sequences", "arm", "ms a step", "min - max", "tokens/s", "vs stock"];
    let mut table = new_table(&header, 2);
    for row in &report.decode {
        let sizes = [row.context.to_string(), row.sequences.to_string()];
        rows(&mut table, &sizes, &row.arms, row.roof_ms, row.sequences);
    }
    table
}

/// The arms of a row, stock first and the roofline last.
fn rows(table: &mut Table, sizes: &[String], arms: &BTreeMap<String, Timed>, roof_ms: Option<f64>, tokens: usize) {
    let stock = arms.get(STOCK);
    let others = arms.iter().filter(|(name, _)| *name != STOCK);
    let faster = |ms: f64| stock.map_or("-".into(), |stock| format!("{:.2}", stock.ms / ms));
    let mut add = |cells: [String; 5]| {
        table.add_row(sizes.iter().cloned().chain(cells));
    };
    for (name, timed) in arms.iter().filter(|(name, _)| *name == STOCK).chain(others) {
        let Timed { ms, ms_min, ms_max, tokens_per_s, .. } = timed;
        let extremes = format!("{ms_min:.3} - {ms_max:.3}");
        add([name.clone(), format!("{ms:.3}"), extremes, format!("{tokens_per_s:.1}"), faster(*ms)]);
    }
    if let Some(ms) = roof_ms {
        let rate = format!("{:.1}", tokens as f64 * 1e3 / ms);
        add(["roofline".into(), format!("{ms:.3}"), "-".into(), rate, faster(ms)]);
    }
}
