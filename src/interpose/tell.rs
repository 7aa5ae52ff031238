//! Messages to the user on stderr, and the set of products already reported.

use super::count::Forwarded;
use crate::problem::Problem;
use rustc_hash::{FxBuildHasher, FxHashSet};
use std::sync::Mutex;

pub(super) use crate::stderr::tell;

/// The products already reported, with the reason for forwarding. The number is bounded, so that a program that never ends
/// neither reports nor remembers without bound.
pub(super) struct Told(Mutex<FxHashSet<(Option<Problem>, Forwarded)>>);

impl Told {
    const MOST: usize = 1024;

    pub const fn new() -> Self {
        Self(Mutex::new(FxHashSet::with_hasher(FxBuildHasher)))
    }

    /// Whether the product is new and the bound is not reached.
    pub fn is_new(&self, product: (Option<Problem>, Forwarded)) -> bool {
        let mut told = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        told.len() < Self::MOST && told.insert(product)
    }
}

#[cfg(test)]
mod tests {
    use super::{Forwarded, Told};
    use crate::problem::{Format, Layout, Problem};

    #[test]
    fn each_product_is_told_of_once_and_not_without_end() {
        let told = Told::new();
        let is_new = |m, reason| told.is_new((Some(Problem::dense(m, 8, 8, 1, Layout::NT, Format::F32)), reason));
        let first: Vec<bool> = [1, 1, 2, 1].into_iter().map(|m| is_new(m, Forwarded::Failed)).collect();
        assert_eq!(first, [true, false, true, false]);
        assert!(is_new(1, Forwarded::Unsupported), "for another reason");
        assert_eq!((3..10_000).filter(|m| is_new(*m, Forwarded::Failed)).count(), Told::MOST - 3);
    }
}
