//! What the dispatcher chooses for long lists of random products.

mod batch_invariant;
mod no_cliff;
