//! What the command prints and draws of a record.

use super::args::Args;
use super::report::Report;
use super::{html, regret, table};
use crate::Result;

/// What is printed of a record.
pub fn text(report: &Report) -> String {
    let text = format!("\n{}\n\n{}", table::summary(report), table::remarks(report));
    match regret::of_report(report).to_string() {
        regret if regret.is_empty() => text,
        regret => format!("{text}\n\n{}", regret.trim_end()),
    }
}

/// Prints a record, and draws the record where `--html` asks for a page.
pub fn show(report: &Report, args: &Args) -> Result {
    crate::print(text(report))?;
    if let Some(path) = &args.html {
        html::write(report, path)?;
        crate::print(format_args!("page: {}", path.display()))?;
    }
    Ok(())
}
