//! Messages to the user on stderr, and the set of what is already told of.

use rustc_hash::{FxBuildHasher, FxHashSet};
use std::hash::Hash;
use std::sync::Mutex;

pub(super) use crate::stderr::tell;

/// What is already told of. The number is bounded, so that a program that never ends neither reports nor remembers without bound.
pub(super) struct Told<K> {
    told: Mutex<FxHashSet<K>>,
    most: usize,
}

impl<K: Eq + Hash> Told<K> {
    pub const fn new(most: usize) -> Self {
        Self { told: Mutex::new(FxHashSet::with_hasher(FxBuildHasher)), most }
    }

    /// Whether the key is new and the bound is not reached.
    pub fn is_new(&self, key: K) -> bool {
        let mut is_new = false;
        self.once(key, || is_new = true);
        is_new
    }

    /// Calls `tell` for a key that [`is_new`](Self::is_new). No thread returns from here before another one has told of its key.
    pub fn once(&self, key: K, tell: impl FnOnce()) {
        let mut told = self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if told.len() < self.most && told.insert(key) {
            tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Told;
    use crate::interpose::Forwarded;
    use crate::problem::{Format, Layout, Problem};

    #[test]
    fn each_product_is_told_of_once_and_not_without_end() {
        let told = Told::new(1024);
        let is_new = |m, reason| told.is_new((Some(Problem::dense(m, 8, 8, 1, Layout::NT, Format::F32)), reason));
        let first: Vec<bool> = [1, 1, 2, 1].into_iter().map(|m| is_new(m, Forwarded::Failed)).collect();
        assert_eq!(first, [true, false, true, false]);
        assert!(is_new(1, Forwarded::Unsupported), "for another reason");
        assert_eq!((3..10_000).filter(|m| is_new(*m, Forwarded::Failed)).count(), 1024 - 3);
    }
}
