//! Kernels beside the products of a layer of experts: the choice of experts, gates after an ungated product, and the sum over a token's experts.

use super::arguments::{activation as activation_of, arguments, format as format_of};
use super::device::check;
use super::dispatchers::overlaps;
use super::modules::{self, Beside};
use super::pointers::Pointers;
use crate::error::Result;
use crate::ffi;
use crate::problem::{Activation, Epilogue, Format, Gate, Layout, Problem};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// Tokens of a thread block with few tokens. One block routes up to twice as many, with one kernel in place of two.
const TOKENS_OF_BLOCK: usize = 8;
/// Every block adds up the counts of all blocks: more blocks read more.
const MOST_BLOCKS: usize = 264;

/// The thread blocks that choose the experts of `tokens` tokens.
pub(crate) fn blocks_for(tokens: usize) -> usize {
    match tokens {
        0..=16 => 1,
        _ => tokens.div_ceil(TOKENS_OF_BLOCK).min(MOST_BLOCKS),
    }
}

/// The choice of the experts of each token, and the lists for products with groups of rows (`tg_routing` of csrc/tilegemm.h, `tg_route_among` of
/// csrc/experts/route.h).
pub(crate) struct Choice {
    pub tokens: usize,
    pub experts: usize,
    pub top_k: usize,
    /// tokens x candidates, dense; null: `chosen` is given.
    pub logits: *const c_void,
    /// The experts that logits choose from.
    pub candidates: usize,
    /// The candidate that is expert 0 here.
    pub first: usize,
    pub format: Format,
    pub normalise: bool,
    pub chosen: *mut u32,
    pub scales: *mut f32,
    pub first_row: *mut i32,
    pub pairs: *mut u32,
    /// [`blocks_for`] x experts numbers.
    pub counts: *mut u32,
}

impl Choice {
    /// Given experts; the lists and the scratch memory are missing.
    pub(crate) const fn new([tokens, experts, top_k]: [usize; 3], chosen: *mut u32) -> Self {
        let (scales, first_row, pairs, counts) = (null_mut(), null_mut(), null_mut(), null_mut());
        let (logits, format, normalise) = (null(), Format::F32, false);
        let (candidates, first) = (0, 0);
        Self {
            tokens,
            experts,
            top_k,
            logits,
            candidates,
            first,
            format,
            normalise,
            chosen,
            scales,
            first_row,
            pairs,
            counts,
        }
    }

    /// Experts by logits, of so many candidates; `first` is expert 0 here.
    pub(crate) const fn by_logits(
        self,
        logits: *const c_void,
        [candidates, first]: [usize; 2],
        format: Format,
        normalise: bool,
        scales: *mut f32,
    ) -> Self {
        Self { logits, candidates, first, format, normalise, scales, ..self }
    }
}

/// Chooses experts and lists the pairs.
///
/// # Safety
/// The pointers of `choice` are memory of the current device of the sizes that `tg_routing` states, and `stream` is a stream of that device. The
/// memory stays allocated until `stream` has passed the launch.
pub(crate) unsafe fn route(choice: &Choice, stream: *mut c_void) -> Result<()> {
    modules::beside(Beside::Experts)?;
    let routing = ffi::tg_routing {
        tokens: choice.tokens as i64,
        experts: choice.experts as i64,
        top_k: choice.top_k as i64,
        logits: choice.logits,
        row_stride: choice.candidates as i64,
        format: format_of(choice.format),
        normalise: choice.normalise.into(),
        chosen: choice.chosen,
        scales: choice.scales,
        first_row: choice.first_row,
        pairs: choice.pairs,
        counts: choice.counts,
        blocks: blocks_for(choice.tokens) as i32,
        overlap: overlaps()?.into(),
        stream,
    };
    if choice.logits.is_null() {
        // SAFETY: the caller's promises.
        return check("tg_route", unsafe { ffi::tg_route(&routing) });
    }
    let [candidates, first] = [choice.candidates, choice.first].map(|number| number as i64);
    // SAFETY: the caller's promises.
    check("tg_route_among", unsafe { ffi::tg_route_among(&routing, candidates, first) })
}

/// D, `rows` x `columns`, is the sums of `of_row` rows of A each, in the order of the rows, and C behind them, in f32. A is dense; rows of C and D are as far apart
/// as `strides` say. A null C adds nothing; C may be D. A is in D's type, or in f32 beside a D in 16 bits.
///
/// # Safety
/// A, C and D are memory of the current device, and `stream` is a stream of that device. The memory stays allocated until `stream` has passed the
/// launch.
pub(crate) unsafe fn sum_rows(
    [of_a, of]: [Format; 2],
    [rows, columns, of_row]: [usize; 3],
    a: *const c_void,
    (c, d): (*const c_void, *mut c_void),
    strides: [usize; 2],
    stream: *mut c_void,
) -> Result<()> {
    modules::beside(Beside::Experts)?;
    let mut problem = Problem::dense(rows, columns, of_row, 1, Layout::NN, of);
    let [of_c, of_d] = strides.map(|stride| problem.d.with(|operand| operand.row_stride = stride as i64));
    (problem.a.format, problem.d) = (of_a, of_d);
    if !c.is_null() {
        problem.epilogue = Epilogue::new(1.0, 1.0);
        problem.epilogue.c = Some(of_c);
    }
    let args = arguments(&problem, Pointers::new(a, null(), d).with_c(c));
    let args = ffi::tg_gemm_args { stream, overlap: overlaps()?.into(), ..args };
    // SAFETY: the caller's promises.
    check("tg_sum_rows", unsafe { ffi::tg_sum_rows(format_of(of), &args) })
}

/// D, `rows` x `columns / 2`, is the gated A, `rows` x `columns`. A and D are dense.
///
/// # Safety
/// As for [`sum_rows`].
pub(crate) unsafe fn gate_rows(
    of: Format,
    [rows, columns]: [usize; 2],
    (gate, activation): (Gate, Activation),
    a: *const c_void,
    d: *mut c_void,
    stream: *mut c_void,
) -> Result<()> {
    modules::beside(Beside::Experts)?;
    let mut problem = Problem::dense(rows, columns, 0, 1, Layout::NN, of);
    problem.epilogue.gate = Some(gate);
    let args = arguments(&problem, Pointers::new(a, null(), d));
    let args = ffi::tg_gemm_args { activation: activation_of(activation), stream, overlap: overlaps()?.into(), ..args };
    // SAFETY: the caller's promises.
    check("tg_gate_rows", unsafe { ffi::tg_gate_rows(format_of(of), &args) })
}

/// Results of pairs of a token and one of its experts, dense in f32, and the biases of experts.
pub(crate) struct OfPairs {
    /// Of each pair, in u32; may be null without biases.
    pub experts: *const c_void,
    /// experts x the numbers of a result, in f32; null: none.
    pub bias: *const c_void,
    /// What multiplies the bias of each pair, in f32; null: 1.
    pub scales: *const c_void,
    /// Experts that exist: a pair of another one has no bias.
    pub count: usize,
    pub pairs: usize,
}

impl OfPairs {
    fn args(&self, x: *const c_void, d: *mut c_void, columns: usize, stream: *mut c_void) -> Result<ffi::tg_pairs> {
        modules::beside(Beside::Experts)?;
        Ok(ffi::tg_pairs {
            x: x.cast(),
            d: d.cast(),
            experts: self.experts.cast(),
            bias: self.bias.cast(),
            scales: self.scales.cast(),
            pairs: self.pairs as i64,
            columns: columns as i64,
            count: self.count as i32,
            interleaved: 0,
            alpha: 0.0,
            limit: 0.0,
            overlap: overlaps()?.into(),
            stream,
        })
    }

    /// Adds the biases to results of `columns` numbers.
    ///
    /// # Safety
    /// As for [`sum_rows`].
    pub(crate) unsafe fn add_bias(&self, x: *mut c_void, columns: usize, stream: *mut c_void) -> Result<()> {
        let args = self.args(x, x, columns, stream)?;
        // SAFETY: the caller's promises.
        check("tg_bias_pairs", unsafe { ffi::tg_bias_pairs(&args) })
    }

    /// D, `pairs` x `columns`, is the clamped gates of A, `pairs` x 2 `columns`, behind their biases, with `alpha` and `limit` as gpt-oss has them.
    ///
    /// # Safety
    /// As for [`sum_rows`].
    pub(crate) unsafe fn clamp(
        &self,
        (gate, [alpha, limit]): (Gate, [f32; 2]),
        a: *const c_void,
        (d, columns): (*mut c_void, usize),
        stream: *mut c_void,
    ) -> Result<()> {
        let interleaved = (gate == Gate::Interleaved).into();
        let args = ffi::tg_pairs { interleaved, alpha, limit, ..self.args(a, d, columns, stream)? };
        // SAFETY: the caller's promises.
        check("tg_clamp_pairs", unsafe { ffi::tg_clamp_pairs(&args) })
    }
}
