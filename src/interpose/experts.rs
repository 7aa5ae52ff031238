//! `moe_gemm_wmma`: candle's kernel for experts, defined here in place of candle's own.
//!
//! candle-kernels has the function in a static archive, as an object of its own. A definition in the program keeps that object out of the
//! program. There is no way back to candle's kernel at run time.

use super::count::EXPERTS;
use super::define::{check, define};
use super::kernels::{candles, KernelCall};
use crate::dispatch::Counter;
use crate::kernel::KernelDesc;
use crate::launch::{GroupPointers, Pointers};
use crate::problem::{power_of_two_in, Format, Groups, Operand, Problem, Rows};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

check! {
    /// Whether candle's calls for experts arrive here. The check makes one call through candle's declaration and sees whether the call reaches this definition. A host
    /// that loads this crate in a shared library may have a definition of its own, which the loader prefers: addresses of the function are equal there, too.
    /// The check needs no GPU.
    ///
    /// ```
    /// if !candle_tilegemm::interpose::experts_are_active() {
    ///     eprintln!("this program's experts run on candle's kernels");
    /// }
    /// ```
    fn experts_are_active() by candles::moe_gemm_wmma(
        null(), null(), null(), null(), null(), null_mut(), null_mut(), null_mut(), 0, 1, 0, 0, 0, NO_TYPE, false, 0
    ), anchor "candle_tilegemm_experts"
}

/// The number of no type.
const NO_TYPE: i32 = -1;

/// The arguments of one call.
pub(super) struct Call {
    /// The function, for messages.
    pub name: &'static str,
    pub input: *const c_void,
    pub weights: *const c_void,
    pub pairs: *const i32,
    pub experts: *const i32,
    pub scales: *const f32,
    pub output: *mut c_void,
    /// Experts, experts of a token, M, N and K.
    pub counts: [i32; 5],
    /// The formats of the input, the weights and the output; else the reason why there are none.
    pub types: Result<[Format; 3], String>,
    pub stream: *mut c_void,
}

define! {
    /// Row p of the output is row `p / topk` of the input, or row p where `topk_weights` is given, times the
    /// weights of the expert of p, times `topk_weights[p]`. `sorted_token_ids` lists the p, sorted by expert, and `expert_ids` their experts. The
    /// scratch memory and `is_prefill` are not used. Row p is zeros where the expert does not exist: its number, in u32, is `num_experts` or more. candle's own
    /// kernels count such rows beyond their arrays (this function and `moe_gemm_gguf_prefill`), or leave them as they were (`moe_gemm_gguf`).
    candles: fn moe_gemm_wmma(
        input: *const c_void,
        weights: *const c_void,
        sorted_token_ids: *const i32,
        expert_ids: *const i32,
        topk_weights: *const f32,
        output: *mut c_void,
        _expert_counts: *mut i32,
        _expert_offsets: *mut i32,
        num_experts: i32,
        topk: i32,
        size_m: i32,
        size_n: i32,
        size_k: i32,
        dtype: i32,
        _is_prefill: bool,
        stream: i64,
    ) => Call {
        name: "moe_gemm_wmma",
        input,
        weights,
        pairs: sorted_token_ids,
        experts: expert_ids,
        scales: topk_weights,
        output,
        counts: [num_experts, topk, size_m, size_n, size_k],
        types: half(dtype)
            .map(|format| [format; 3])
            .ok_or_else(|| format!("moe_gemm_wmma has no type {dtype}; f16 is 0, bf16 is 1")),
        stream: stream as *mut c_void,
    }
}

/// candle's number of a type of 16 bits.
pub(super) fn half(number: i32) -> Option<Format> {
    [Format::F16, Format::BF16].get(usize::try_from(number).ok()?).copied()
}

impl Call {
    /// The product that the call asks for.
    pub fn problem(&self) -> Result<Problem, String> {
        let [experts, top_k, m, n, k] = self.counts.map(|count| usize::try_from(count).unwrap_or(0));
        let [a, b, d] = self.types.clone()?;
        // Where each pair has a row of the input, `topk` says nothing about rows.
        let top_k = if self.scales.is_null() { top_k } else { top_k.max(1) };
        if experts == 0 || top_k == 0 || self.counts.iter().any(|count| *count < 0) {
            return Err(format!("{} of {m} x {n} x {k} with {top_k} of {experts} experts is no product", self.name));
        }
        let groups = Groups::routed(experts, m / top_k, top_k).with(|groups| {
            groups.rows = Rows::Listed { pairs_per_row: if self.scales.is_null() { top_k } else { 1 } };
            groups.scaled = !self.scales.is_null();
        });
        let at = |operand: Operand, address: *const c_void| {
            operand.with(|o| o.pointer_align = power_of_two_in(address as u64))
        };
        Ok(Problem::grouped([m, n, k], groups, a).with(|problem| {
            (problem.b.format, problem.d.format) = (b, d);
            problem.a = at(problem.a, self.input);
            problem.b = at(problem.b, self.weights);
            problem.d = at(problem.d, self.output);
        }))
    }
}

impl KernelCall for Call {
    const WHAT: &'static str = "a product of experts";
    const RAN: &'static Counter = &EXPERTS;

    fn product(&self) -> Result<(Problem, Pointers), String> {
        let groups = GroupPointers::new(self.experts.cast()).with_lists(self.pairs.cast(), self.scales.cast());
        let pointers = Pointers::new(self.input, self.weights, self.output).with_groups(groups);
        Ok((self.problem()?, pointers))
    }

    fn takes(kernel: &KernelDesc) -> bool {
        kernel.takes_groups()
    }

    /// Without a type, the bytes of the narrowest.
    fn output(&self) -> (*mut c_void, usize) {
        let [_, _, m, n, _] = self.counts.map(|count| usize::try_from(count).unwrap_or(0));
        let of_number = self.types.as_ref().map_or(2, |[_, _, d]| d.bytes(1));
        (self.output, m.saturating_mul(n).saturating_mul(of_number))
    }

    fn stream(&self) -> *mut c_void {
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::super::vendor::own;
    use super::{candles, experts_are_active, half, Call};
    use crate::arch::DeviceInfo;
    use crate::dispatch::{Dispatcher, Policy};
    use crate::family::KERNELS;
    use crate::kernel::Role;
    use crate::problem::{Bounds, Format, Layout, Rows};
    use std::ptr::{null, null_mut};

    /// 64 tokens choose 8 of 128 experts.
    fn call() -> Call {
        Call {
            name: "moe_gemm_wmma",
            input: 0x1000 as _,
            weights: 0x2008 as _,
            pairs: null(),
            experts: null(),
            scales: null(),
            output: 0x3002 as _,
            counts: [128, 8, 512, 1536, 2048],
            types: Ok([Format::BF16; 3]),
            stream: null_mut(),
        }
    }

    fn scaled() -> Call {
        Call { scales: 0x4000 as _, ..call() }
    }

    #[test]
    fn a_call_is_a_product_in_groups() {
        let problem = call().problem().unwrap();
        assert_eq!([problem.m, problem.n, problem.k, problem.batch_count()], [512, 1536, 2048, 1]);
        assert_eq!((problem.layout(), problem.a.format, problem.d.format), (Layout::NT, Format::BF16, Format::BF16));
        assert_eq!([problem.a, problem.b, problem.d].map(|operand| operand.pointer_align), [16, 8, 2]);
        assert_eq!(problem.b.batch_stride, [0, 1536 * 2048]);
        let groups = problem.groups.unwrap();
        assert_eq!((groups.count, groups.bounds, groups.scaled), (128, Bounds::GroupOfRow, false));
        assert_eq!((groups.rows, groups.rows_of_a(problem.m)), (Rows::Listed { pairs_per_row: 8 }, 64));
    }

    #[test]
    fn with_factors_each_pair_has_a_row_of_the_input() {
        let top_k_of_0 = Call { counts: [128, 0, 512, 1536, 2048], ..scaled() };
        for call in [scaled(), top_k_of_0] {
            let groups = call.problem().unwrap().groups.unwrap();
            assert_eq!(
                (groups.rows, groups.scaled, groups.rows_of_a(512)),
                (Rows::Listed { pairs_per_row: 1 }, true, 512)
            );
        }
    }

    #[test]
    fn a_call_that_is_no_product_has_a_reason() {
        let said = |call: Call| call.problem().unwrap_err();
        assert_eq!([-1, 0, 1, 2].map(half), [None, Some(Format::F16), Some(Format::BF16), None]);
        assert!(said(Call { types: Err("no type 2".into()), ..call() }).contains("no type 2"));
        let sizes = [[0, 8, 8, 8, 8], [8, 0, 8, 8, 8], [8, 8, -1, 8, 8], [8, 8, 8, -1, 8], [8, 8, 8, 8, i32::MIN]];
        for counts in sizes {
            assert!(said(Call { counts, ..call() }).contains("is no product"), "{counts:?}");
        }
        assert!(said(Call { counts: [8, -1, 8, 8, 8], ..scaled() }).contains("is no product"));
    }

    /// Without a GPU, too. No other test here makes such calls, so that the counts are this test's.
    #[test]
    fn candles_calls_arrive_and_failures_are_counted() {
        assert!(experts_are_active());
        let failed = || crate::interpose::stats().failed;
        assert_eq!(failed(), 0, "the check is no call");
        let [ids, scratch] = [null_mut(); 2];
        // SAFETY: a call with a type that does not exist, and with no elements, reads and writes no memory.
        unsafe {
            candles::moe_gemm_wmma(
                null(),
                null(),
                ids,
                ids,
                null(),
                null_mut(),
                scratch,
                scratch,
                8,
                2,
                0,
                0,
                8,
                7,
                true,
                0,
            )
        };
        assert_eq!((failed(), crate::interpose::stats().experts), (1, 0));
    }

    /// Any size, alignment and number of experts, with batch invariance and without a workspace, too.
    #[test]
    fn each_product_has_a_plan_of_our_own_kernels() {
        let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
        let sizes = [[1, 1, 1], [8, 1536, 2048], [7, 33, 65], [4096, 768, 2048], [24, 2048, 0], [0, 8, 8]];
        let experts = [1, 8, 128, 100_000];
        for ([m, n, k], experts) in sizes.into_iter().flat_map(|sizes| experts.map(|experts| (sizes, experts))) {
            for call in [call(), scaled()].map(|call| Call { counts: [experts, 8, m, n, k], ..call }) {
                let forced = Policy::force(KERNELS[0].name).unwrap();
                for asked in [Policy::default(), forced.with_batch_invariance(true).with_workspace(0)] {
                    let problem = call.problem().unwrap();
                    let plan =
                        dispatcher.plan(&problem, own(asked)).unwrap_or_else(|error| panic!("{problem}: {error}"));
                    assert!(problem.is_empty() || plan.kernel.takes_groups(), "{problem}: {}", plan.kernel);
                    assert!(
                        plan.kernel.role != Role::Vendor && plan.workspace.least == 0,
                        "{problem}: {}",
                        plan.kernel
                    );
                }
            }
        }
    }
}
