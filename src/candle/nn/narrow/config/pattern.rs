//! Names of modules in lists of a config.

use ::candle::{Error, Result};
use fancy_regex::Regex;

/// What says that a module is meant.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    /// Every linear module.
    Linear,
    /// A class of modules that are not linear.
    Class,
    /// The whole path.
    Path(String),
    /// A path that begins so.
    Regex(Regex),
    /// The whole path, where `*` stands for any text.
    Glob(String),
    /// Parts of the path, one after another anywhere; `*` stands for any text of a part.
    Within(Vec<String>),
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Linear, Self::Linear) | (Self::Class, Self::Class) => true,
            (Self::Path(x), Self::Path(y)) | (Self::Glob(x), Self::Glob(y)) => x == y,
            (Self::Regex(x), Self::Regex(y)) => x.as_str() == y.as_str(),
            (Self::Within(x), Self::Within(y)) => x == y,
            _ => false,
        }
    }
}

impl Pattern {
    /// An entry of compressed-tensors: a class, a path, or `re:` and a regular expression for a path's beginning.
    pub fn of_compressed(entry: &str) -> Result<Self> {
        if let Some(expression) = entry.strip_prefix("re:") {
            return Self::regex(expression);
        }
        let is_class = entry.starts_with(|c: char| c.is_ascii_uppercase()) && !entry.contains('.');
        Ok(match entry {
            "Linear" => Self::Linear,
            _ if is_class => Self::Class,
            path => Self::Path(path.into()),
        })
    }

    /// A regular expression for a path's beginning, in Python's language.
    pub fn regex(expression: &str) -> Result<Self> {
        let regex = Regex::new(&format!("^(?:{expression})"));
        regex.map(Self::Regex).map_err(|error| Error::msg(format!("quantization_config: {expression}: {error}")))
    }

    /// An entry of `modules_to_not_convert`.
    pub fn within(entry: &str) -> Self {
        Self::Within(entry.split('.').map(String::from).collect())
    }

    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Linear => true,
            Self::Class => false,
            Self::Path(entry) => entry == path,
            Self::Regex(regex) => regex.is_match(path).unwrap_or(false),
            Self::Glob(entry) => glob(entry, path),
            Self::Within(parts) => {
                let names: Vec<&str> = path.split('.').collect();
                let is_here = |names: &[&str]| parts.iter().zip(names).all(|(part, name)| glob(part, name));
                names.windows(parts.len()).any(is_here)
            }
        }
    }

    /// How exactly it says what is meant: a path before an expression, and this before a class.
    pub fn rank(&self) -> usize {
        match self {
            Self::Path(_) => 0,
            Self::Regex(_) | Self::Glob(_) | Self::Within(_) => 1,
            Self::Linear | Self::Class => 2,
        }
    }
}

/// Whether a text is an entry in which `*` stands for any text.
fn glob(entry: &str, text: &str) -> bool {
    match entry.split_once('*') {
        None => entry == text,
        Some((first, rest)) => match text.strip_prefix(first) {
            None => false,
            Some(text) => (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| glob(rest, &text[at..])),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_match_whole_parts_of_paths() {
        let path = "model.layers.11.mlp.gate_proj";
        for (entry, is_match) in [
            ("mlp.gate", false),
            ("mlp.gate_proj", true),
            ("gate_proj", true),
            ("model.layers.1", false),
            ("model.layers.*.mlp", true),
            ("model.layers.11", true),
            ("lm_head", false),
        ] {
            assert_eq!(Pattern::within(entry).matches(path), is_match, "{entry}");
        }
        for (entry, is_match) in [
            ("Linear", true),
            ("Embedding", false),
            ("re:.*gate.*", true),
            ("re:model.layers.1", true),
            ("re:gate", false),
            (r"re:^(?!.*self_attn).*_proj$", true),
            (r"re:.*\.(q|k)_proj", false),
            (path, true),
            ("model.layers.11.mlp", false),
        ] {
            assert_eq!(Pattern::of_compressed(entry).unwrap().matches(path), is_match, "{entry}");
        }
        for (entry, is_match) in [("*gate_proj", true), ("model.layers.11*", true), ("model*up*", false), ("*", true)] {
            assert_eq!(Pattern::Glob(entry.into()).matches(path), is_match, "{entry}");
        }
        assert!(Pattern::of_compressed("re:(").is_err());
    }
}
