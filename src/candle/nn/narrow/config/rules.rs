//! Which scheme a module gets.

use super::pattern::Pattern;
use crate::candle::nn::narrow::scheme::Scheme;

/// Modules that are left as they are, and schemes with the modules that they are for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Rules {
    pub ignored: Vec<Pattern>,
    pub groups: Vec<(Pattern, Scheme)>,
}

impl Rules {
    /// One scheme for all modules but these.
    pub fn all_but(ignored: Vec<Pattern>, scheme: Scheme) -> Self {
        Self { ignored, groups: vec![(Pattern::Linear, scheme)] }
    }

    pub fn scheme(&self, path: &str) -> Scheme {
        if self.ignored.iter().any(|pattern| pattern.matches(path)) {
            return Scheme::Plain;
        }
        let meant = self.groups.iter().filter(|(pattern, _)| pattern.matches(path));
        meant.min_by_key(|(pattern, _)| pattern.rank()).map_or(Scheme::Plain, |(_, scheme)| *scheme)
    }
}
