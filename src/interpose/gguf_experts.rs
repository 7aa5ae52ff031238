//! `moe_gemm_gguf` and `moe_gemm_gguf_prefill`: candle's kernels for experts with the weights of a GGUF file (`candle_nn::moe::moe_gemm_gguf`),
//! defined here in place of candle's own, as `experts.rs` does. Each is an object of its own in the archive of candle-kernels.

use super::define::{check, define};
use super::experts::{half, Call};
use super::kernels::candles;
use crate::candle::blocks::OF_EXPERTS;
use crate::problem::Format;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

check! {
    /// Whether candle's calls for experts with quantised weights arrive here. The check makes one call of `moe_gemm_gguf` through candle's declaration, as
    /// [`experts_are_active`](super::experts_are_active) does.
    fn gguf_experts_are_active() by candles::moe_gemm_gguf(
        null(), null(), null(), null(), null(), null_mut(), 0, 1, 0, 0, 0, NO_FORMAT, 0
    ), anchor "candle_tilegemm_gguf_experts"
}

/// The number of no format.
const NO_FORMAT: i32 = -1;

/// The formats of activations, weights and result.
fn types(name: &str, a: Option<Format>, number: i32) -> Result<[Format; 3], String> {
    let b = usize::try_from(number).ok().and_then(|number| OF_EXPERTS.get(number)).copied();
    match (a, b) {
        (None, _) => Err(format!("{name} has no such type of activations; f16 is 0, bf16 is 1")),
        (_, None) => {
            let known: Vec<String> =
                OF_EXPERTS.iter().enumerate().map(|(at, format)| format!("{format} is {at}")).collect();
            Err(format!("{name} has no format {number}; {}", known.join(", ")))
        }
        (Some(a), Some(b)) => Ok([a, b, Format::F32]),
    }
}

define! {
    /// The product of [`moe_gemm_wmma`](super::experts::moe_gemm_wmma) with activations and a result in f32 and the weights of a GGUF file.
    candles: fn moe_gemm_gguf(
        input: *const f32,
        weights: *const c_void,
        sorted_token_ids: *const i32,
        expert_ids: *const i32,
        topk_weights: *const f32,
        output: *mut c_void,
        num_experts: i32,
        topk: i32,
        size_m: i32,
        size_n: i32,
        size_k: i32,
        gguf_dtype: i32,
        stream: i64,
    ) => Call {
        name: "moe_gemm_gguf",
        input: input.cast(),
        weights,
        pairs: sorted_token_ids,
        experts: expert_ids,
        scales: topk_weights,
        output,
        counts: [num_experts, topk, size_m, size_n, size_k],
        types: types("moe_gemm_gguf", Some(Format::F32), gguf_dtype),
        stream: stream as *mut c_void,
    }
}

define! {
    /// [`moe_gemm_gguf`] with activations in f16 or bf16.
    candles: fn moe_gemm_gguf_prefill(
        input: *const c_void,
        weights: *const u8,
        sorted_token_ids: *const i32,
        expert_ids: *const i32,
        topk_weights: *const f32,
        output: *mut c_void,
        num_experts: i32,
        topk: i32,
        size_m: i32,
        size_n: i32,
        size_k: i32,
        input_dtype: i32,
        gguf_dtype: i32,
        stream: i64,
    ) => Call {
        name: "moe_gemm_gguf_prefill",
        input,
        weights: weights.cast(),
        pairs: sorted_token_ids,
        experts: expert_ids,
        scales: topk_weights,
        output,
        counts: [num_experts, topk, size_m, size_n, size_k],
        types: types("moe_gemm_gguf_prefill", half(input_dtype), gguf_dtype),
        stream: stream as *mut c_void,
    }
}

#[cfg(test)]
mod tests {
    use super::super::vendor::own;
    use super::*;
    use crate::arch::DeviceInfo;
    use crate::dispatch::{Dispatcher, Policy};
    use crate::kernel::Role;

    /// 64 tokens choose 8 of 128 experts.
    fn call(a: Format, number: i32, scaled: bool) -> Call {
        Call {
            name: "moe_gemm_gguf",
            input: 0x1000 as _,
            weights: 0x2004 as _,
            pairs: null(),
            experts: null(),
            scales: if scaled { 0x4000 as _ } else { null() },
            output: 0x3004 as _,
            counts: [128, 8, 512, 768, 2048],
            types: types("moe_gemm_gguf", Some(a), number),
            stream: null_mut(),
        }
    }

    #[test]
    fn calls_arrive() {
        assert!(gguf_experts_are_active());
    }

    #[test]
    fn a_call_is_a_product_in_groups_with_blocks() {
        let problem = call(Format::BF16, 1, false).problem().unwrap();
        let formats = [problem.a, problem.b, problem.d].map(|operand| operand.format);
        assert_eq!(formats, [Format::BF16, Format::Q4K, Format::F32]);
        assert_eq!([problem.m, problem.n, problem.k], [512, 768, 2048]);
        assert_eq!((problem.b.batch_stride, problem.d.row_stride), ([0, 768 * 2048], 768));
        assert_eq!([problem.a, problem.b, problem.d].map(|operand| operand.pointer_align), [16, 4, 4]);
        let [plain, scaled] =
            [false, true].map(|scaled| call(Format::F32, 0, scaled).problem().unwrap().groups.unwrap());
        assert_eq!((plain.rows_of_a(512), plain.scaled), (64, false));
        assert_eq!((scaled.rows_of_a(512), scaled.scaled), (512, true));
    }

    #[test]
    fn numbers_of_no_type_and_no_format_have_a_reason() {
        let said = |types: Result<[Format; 3], String>| types.unwrap_err();
        assert!(said(types("f", half(2), 0)).contains("bf16 is 1"));
        for number in [-1, 6] {
            assert!(said(types("f", half(0), number))
                .contains("q8_0 is 0, q4k is 1, q2k is 2, q3k is 3, q5k is 4, q6k is 5"));
        }
    }

    /// Any size, format and number of experts, with batch invariance and without a workspace, too, on every card.
    #[test]
    fn each_product_has_a_plan_of_our_own_kernels() {
        let sizes = [[1, 1, 256], [8, 1536, 2048], [512, 768, 2048], [4096, 33, 768], [65_536, 2048, 768], [0, 8, 256]];
        for device in ["a100", "rtx4090", "h100", "b200", "rtx5090"] {
            let dispatcher = Dispatcher::hypothetical(DeviceInfo::by_name(device).unwrap());
            for ([m, n, k], number) in sizes.into_iter().flat_map(|sizes| (0..6).map(move |number| (sizes, number))) {
                for (a, experts) in [(Format::F32, 8), (Format::BF16, 128), (Format::F16, 100_000)] {
                    let asked = Call { counts: [experts, 8, m, n, k], ..call(a, number, experts == 8) };
                    for policy in [Policy::default(), Policy::default().with_batch_invariance(true).with_workspace(0)] {
                        let problem = asked.problem().unwrap();
                        let plan =
                            dispatcher.plan(&problem, own(policy)).unwrap_or_else(|error| panic!("{problem}: {error}"));
                        let is_fast = plan.kernel.role == Role::Kernel || experts == 100_000 || problem.is_empty();
                        assert!(is_fast && plan.kernel.role != Role::Vendor, "{device}, {problem}: {}", plan.kernel);
                    }
                }
            }
        }
    }
}
