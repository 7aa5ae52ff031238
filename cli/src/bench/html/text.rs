//! Numbers and names in the page's format. All text of a record passes through `escape`.

use candle_tilegemm::family::KERNELS;

/// The text for a missing value.
pub const NOTHING: &str = "\u{2013}";

/// Escapes for HTML, its attributes, and the labels of Plotly, which interpret tags and entities too.
pub fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, character| {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
        out
    })
}

/// Escapes for the inside of a `<script>` that holds JSON: no `<` ends the script early.
pub fn in_script(json: &str) -> String {
    json.replace('<', "\\u003c")
}

/// Three digits or more; the unit stands elsewhere.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => NOTHING.into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub fn number_or_nothing(value: Option<f64>) -> String {
    value.map_or(NOTHING.into(), number)
}

/// A ratio of times.
pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or(NOTHING.into(), |ratio| format!("{ratio:.2}\u{d7}"))
}

pub fn percent(share: f64) -> String {
    format!("{:.0}\u{a0}%", share * 100.0)
}

/// At most `most` characters, with dots for the missing rest.
pub fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}\u{2026}", &text[..end]),
        None => text.into(),
    }
}

/// `1 row`, `2 rows`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

pub fn duration(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}

/// Largest difference to the reference. A record has 1e300 for NaN and Inf.
pub fn error(err: Option<f64>) -> String {
    match err {
        None => NOTHING.into(),
        Some(err) if err.is_finite() && err < 1e300 => format!("{err:.1e}"),
        Some(_) => "not a number".into(),
    }
}

/// The lines of a label for a kernel: its family, broken at `_`, and the tile in its name. `sm90_gguf_gemm_f32_q4k_nt_64x32x256_1x1` gives `sm90_gguf_`,
/// `gemm` and `64x32x256`.
pub fn kernel_lines(name: &str) -> Vec<String> {
    const MOST: usize = 13;
    let is_tile = |part: &&str| part.split('x').count() == 3 && part.split('x').all(|size| size.parse::<u32>().is_ok());
    let mut lines = vec![String::new()];
    for word in family(name).split_inclusive('_') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() <= MOST || line.is_empty() => line.push_str(word),
            _ => lines.push(word.into()),
        }
    }
    for line in &mut lines {
        *line = shorten(line, MOST);
    }
    lines.extend(name.split(['_', '+', '@']).find(is_tile).filter(|tile| tile.len() <= MOST).map(String::from));
    if name.contains("+copies") {
        lines.push("on copies".into());
    }
    lines
}

/// The family of a kernel by the kernel's name; of a kernel that the table does not have, what stands before the arch and the type.
fn family(name: &str) -> &str {
    let of = |family: &&str| name.strip_prefix(*family).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    let known = KERNELS.iter().map(|kernel| kernel.family).filter(of).max_by_key(|family| family.len());
    let types = ["_f16", "_bf16", "_f32", "_f64", "_sm"];
    let end = types.iter().filter_map(|part| name.find(part)).filter(|end| *end > 0).min();
    known.unwrap_or_else(|| end.map_or(name, |end| &name[..end]))
}
