//! The Cargo features that build kernels, beside those of archs.

use super::one_of;

const KNOWN: [&str; 5] = ["cuda", "cutile", "experts", "gguf", "narrow"];

/// Whether the features of a family or a row are known: no build would have the kernels of a misspelt one.
pub(super) fn check(features: &[String]) -> Result<(), String> {
    match features {
        [] => Ok(()),
        features => one_of("features", features, &KNOWN),
    }
}

/// The features, each with whether it is on, as a table of Rust.
pub fn features() -> String {
    let switches = KNOWN.map(|feature| format!("({feature:?}, cfg!(feature = {feature:?}))"));
    format!(
        "/// The Cargo features that build kernels, beside those of archs, and whether each is on.\n\
         pub static FEATURES: &[(&str, bool)] = &[{}];\n",
        switches.join(", ")
    )
}
