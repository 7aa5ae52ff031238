//! The functions for experts. A linker takes all functions of an object or none, so they are defined beside those of dense products. Their calls cannot run.

use super::product::{bytes, WHAT};
use super::weights::Weights;
use crate::dispatch::Counter;
use crate::interpose::count::MISTRALRS;
use crate::interpose::kernels::KernelCall;
use crate::kernel::KernelDesc;
use crate::launch::Pointers;
use crate::problem::Problem;
use std::ffi::c_void;

/// The arguments of one call that make its failure.
pub(super) struct Experts {
    /// The function, for messages.
    pub name: &'static str,
    pub weights: Weights,
    pub y: *mut c_void,
    /// Tokens, experts of a token, and experts.
    pub counts: [i32; 3],
    pub stream: *mut c_void,
}

impl KernelCall for Experts {
    const WHAT: &'static str = WHAT;
    const RAN: &'static Counter = &MISTRALRS;

    fn product(&self) -> Result<(Problem, Pointers), String> {
        let ([tokens, top_k, experts], weights) = (self.counts, self.weights);
        Err(format!(
            "{} of {tokens} tokens with {top_k} of {experts} experts of {weights}: interpose-mistralrs has no experts; build without the feature",
            self.name
        ))
    }

    fn takes(_: &KernelDesc) -> bool {
        false
    }

    fn output(&self) -> (*mut c_void, usize) {
        let [tokens, top_k, _] = self.counts;
        (self.y, bytes(&[tokens, top_k, self.weights.sizes[0]]))
    }

    fn stream(&self) -> *mut c_void {
        self.stream
    }
}
