//! Products of the rows of some tokens, each with the weights of experts of its own.

use super::product::{bytes, describe, reordered, WHAT};
use super::weights::Weights;
use crate::dispatch::Counter;
use crate::error::Result;
use crate::interpose::count::MISTRALRS;
use crate::interpose::kernels::{launch, KernelCall};
use crate::kernel::KernelDesc;
use crate::launch::experts::{blocks_for, route, Choice};
use crate::launch::{GroupPointers, Pointers, Scratch};
use crate::problem::{Bounds, Format, Groups, Problem, Rows};
use std::ffi::c_void;
use std::ptr::null;

/// The arguments of one call.
pub(super) struct Experts {
    /// The function, for messages.
    pub name: &'static str,
    pub x: *const c_void,
    pub weights: Weights,
    /// A vector for each expert; null for none.
    pub biases: *const c_void,
    pub indices: *const u32,
    pub y: *mut c_void,
    /// Tokens, experts of a token, and experts.
    pub counts: [i32; 3],
    /// Whether x has a row for each pair of a token and one of its experts, and not one for each token.
    pub has_rows_of_pairs: bool,
    /// The format of x, the biases and y.
    pub format: Format,
    pub stream: *mut c_void,
}

impl Experts {
    pub fn problem(&self) -> std::result::Result<Problem, String> {
        let none = || {
            let ([tokens, top_k, experts], weights) = (self.counts, self.weights);
            format!("{} of {tokens} tokens with {top_k} of {experts} experts of {weights} is no product", self.name)
        };
        let [n, k] = self.weights.sizes().ok_or_else(none)?;
        let [tokens, top_k, experts] = self.sizes();
        if experts == 0 || self.counts.iter().any(|count| *count < 0) {
            return Err(none());
        }
        let groups = Groups::routed(experts, tokens, top_k).with(|groups| {
            groups.bounds = Bounds::FirstRow;
            groups.rows = Rows::Listed { pairs_per_row: if self.has_rows_of_pairs { 1 } else { top_k.max(1) } };
        });
        let problem = Problem::grouped([tokens * top_k, n, k], groups, self.format);
        Ok(problem.with(|p| describe(p, &self.weights, [self.x, self.biases, self.y.cast_const()])))
    }

    /// The words of the lists of pairs by expert: the first row of each expert, the pairs, and numbers between kernels.
    pub fn lists(&self) -> [usize; 3] {
        let [tokens, top_k, experts] = self.sizes();
        [experts + 1, tokens * top_k, blocks_for(tokens) * experts]
    }

    /// The experts that are given, with the lists from here on.
    pub fn choice(&self, lists: *mut u32) -> Choice {
        let ([tokens, top_k, experts], [of_first_row, of_pairs, _]) = (self.sizes(), self.lists());
        let pairs = lists.wrapping_add(of_first_row);
        let given = Choice::new([tokens, experts, top_k], self.indices.cast_mut());
        Choice { first_row: lists.cast(), pairs, counts: pairs.wrapping_add(of_pairs), ..given }
    }

    /// The counts as sizes.
    fn sizes(&self) -> [usize; 3] {
        self.counts.map(|count| usize::try_from(count).unwrap_or(0))
    }
}

impl KernelCall for Experts {
    const WHAT: &'static str = WHAT;
    const RAN: &'static Counter = &MISTRALRS;

    /// The groups have their bounds when the pairs are listed.
    fn product(&self) -> std::result::Result<(Problem, Pointers), String> {
        let pointers = Pointers::new(self.x, self.weights.codes, self.y).with_bias(self.biases);
        Ok((self.problem()?, pointers.with_scale_of_b(self.weights.factors, null())))
    }

    fn takes(kernel: &KernelDesc) -> bool {
        kernel.types.has_narrow_b() && kernel.takes_groups()
    }

    /// Lists the pairs by expert, and multiplies.
    unsafe fn launch(&self, problem: &Problem, pointers: Pointers) -> Result<()> {
        if problem.is_empty() {
            // SAFETY: the caller's promises; nothing is read.
            return unsafe { launch(problem, Self::takes, pointers, self.stream) };
        }
        // SAFETY: the caller's stream. The memory is free when the stream has passed what is launched here.
        let scratch = unsafe { Scratch::new(self.stream, self.lists().iter().sum::<usize>() * size_of::<u32>())? };
        let choice = self.choice(scratch.address().cast());
        // SAFETY: the scratch memory has room for the lists, and the choice is the caller's, which is not written.
        unsafe { route(&choice, self.stream)? };
        let rows = problem.groups.map_or(0, |groups| groups.rows_of_a(problem.m));
        // SAFETY: the caller's promises.
        let x = unsafe { reordered(&self.weights, self.x, [rows, problem.k], self.format, self.stream)? };
        let groups = GroupPointers::new(choice.first_row.cast()).with_lists(choice.pairs.cast(), null());
        let a = x.as_ref().map_or(pointers.a, |x| x.address().cast_const());
        // SAFETY: the caller's promises, and the lists that the stream makes before.
        unsafe { launch(problem, Self::takes, Pointers { a, groups, ..pointers }, self.stream) }
    }

    fn output(&self) -> (*mut c_void, usize) {
        let [tokens, top_k, _] = self.counts;
        (self.y, bytes(&[tokens, top_k, self.weights.sizes[0]]))
    }

    fn stream(&self) -> *mut c_void {
        self.stream
    }
}
