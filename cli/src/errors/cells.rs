//! The parts of a table.

use super::record::ErrorsOf;

/// An error with two significant digits.
pub fn digits(error: f64) -> String {
    if error == 0.0 {
        "0".into()
    } else {
        format!("{error:.1e}")
    }
}

/// The errors of an arm; bold where they are above those of `limit`.
pub fn cell(errors: Option<&ErrorsOf>, limit: Option<&ErrorsOf>) -> String {
    let Some(errors) = errors else { return "-".into() };
    let number = |of: fn(&ErrorsOf) -> f64| match limit {
        Some(limit) if of(errors) > of(limit) => format!("**{}**", digits(of(errors))),
        _ => digits(of(errors)),
    };
    format!("{}/{}", number(|of| of.max), number(|of| of.rms))
}

/// A line of a table.
pub fn line(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().collect();
    format!("| {} |\n", cells.join(" | "))
}

/// The head of a table.
pub fn head<'a>(titles: impl IntoIterator<Item = &'a str>) -> String {
    let titles: Vec<String> = titles.into_iter().map(String::from).collect();
    let rule = "|".to_string() + &"---|".repeat(titles.len()) + "\n";
    line(titles) + &rule
}

/// The different kernels among these, in order of appearance, behind the title of their column; nothing without kernels.
pub fn kernels<'a>(title: &str, all: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    for name in all.map(|name| format!("`{name}`")) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    (!names.is_empty()).then(|| format!("{title}: {}.", names.join(", ")))
}

/// The family of a kernel of ours: each format has a kernel of its own.
pub fn family(kernel: &str) -> &str {
    candle_tilegemm::family::by_name(kernel).map_or(kernel, |kernel| kernel.family)
}
