//! Messages to the user on stderr, and the set of products already reported.

use super::count::Forwarded;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::io::Write;
use std::sync::Mutex;

/// Writes a line to stderr. Unlike `eprintln`, this function does not panic when stderr is closed.
pub(super) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "candle-tilegemm: {text}");
}

/// A product by operations, sizes and batch, and element types of A, B and C, with the reason for forwarding.
pub(super) type Product = ([c_int; 2], [c_int; 4], [c_int; 3], Forwarded);

/// The products already reported. The number is bounded, so that a program that never ends neither reports nor
/// remembers without bound.
pub(super) struct Told(Mutex<BTreeSet<Product>>);

impl Told {
    const MOST: usize = 1024;

    pub const fn new() -> Self {
        Self(Mutex::new(BTreeSet::new()))
    }

    /// Whether the product is new and the bound is not reached.
    pub fn is_new(&self, product: Product) -> bool {
        let mut told = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        told.len() < Self::MOST && told.insert(product)
    }
}

#[cfg(test)]
mod tests {
    use super::{Forwarded, Told};

    #[test]
    fn each_product_is_told_of_once_and_not_without_end() {
        let told = Told::new();
        let is_new = |m, reason| told.is_new(([0, 1], [m, 8, 8, 1], [0; 3], reason));
        let first: Vec<bool> = [1, 1, 2, 1].into_iter().map(|m| is_new(m, Forwarded::Failed)).collect();
        assert_eq!(first, [true, false, true, false]);
        assert!(is_new(1, Forwarded::Unsupported), "for another reason");
        assert_eq!((3..10_000).filter(|m| is_new(*m, Forwarded::Failed)).count(), Told::MOST - 3);
    }
}
