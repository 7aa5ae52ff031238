use super::experts::Experts;
use super::mistralrs_is_active;
use super::product::{bytes, Product};
use super::weights::{Factors, Weights};
use crate::arch::DeviceInfo;
use crate::dispatch::{Dispatcher, Policy};
use crate::interpose::kernels::KernelCall;
use crate::interpose::vendor::own;
use crate::kernel::Role;
use crate::problem::{BiasAxis, Bounds, Format, Rows, Scale};
use std::ptr::{null, null_mut};

/// Weights in fp8 with blocks of `block`, whose factors lie one behind the other.
fn fp8(sizes: [i32; 2], block: [i32; 2]) -> Weights {
    let stride = if block[1] > 0 { (sizes[1] + block[1] - 1) / block[1] } else { 0 };
    with_stride(sizes, block, stride)
}

fn with_stride(sizes: [i32; 2], block: [i32; 2], stride: i32) -> Weights {
    Weights { codes: 0x2010 as _, factors: 0x5000 as _, sizes, of: Factors::Blocks { block, stride } }
}

fn mxfp4(sizes: [i32; 2]) -> Weights {
    Weights { codes: 0x2010 as _, factors: 0x5001 as _, sizes, of: Factors::PowersOfTwo }
}

fn dense(rows: i32, weights: Weights) -> Product {
    let (name, format, bias) = ("launch_fp8_matmul_bf16", Format::BF16, null());
    Product { name, x: 0x1008 as _, weights, bias, y: 0x3002 as _, rows, format, stream: null_mut() }
}

fn experts(counts: [i32; 3], weights: Weights, has_rows_of_pairs: bool) -> Experts {
    let (name, format) = ("launch_fp8_indexed_moe_gemm_f16", Format::F16);
    let (x, biases, indices, y) = (0x1000 as _, null(), null(), 0x3002 as _);
    Experts { name, x, weights, biases, indices, y, counts, has_rows_of_pairs, format, stream: null_mut() }
}

#[test]
fn calls_arrive() {
    assert!(mistralrs_is_active());
}

#[test]
fn a_call_is_a_product_with_factors_of_blocks() {
    let problem = dense(5, fp8([576, 7168], [128, 128])).problem().unwrap();
    assert_eq!(problem.to_string(), "5x576x7168 nt bf16 x f8e4m3 128x128 -> bf16");
    assert_eq!([problem.a, problem.b, problem.d].map(|operand| operand.pointer_align), [8, 16, 2]);
    assert_eq!((problem.b.row_stride, problem.b.col_stride), (1, 7168));
    // The factor of row 300 and column 1000 of W: block 2 of rows, block 7 of columns.
    assert_eq!(problem.b.scale.unwrap().index([0, 0], [1000, 300]), 2 * 56 + 7);
    // Factors with another stride; blocks that are no squares; rows that are no multiple of 16 bytes.
    let apart = with_stride([100, 130], [32, 64], 9);
    let problem = dense(3, apart).problem().unwrap();
    assert_eq!((problem.b.col_stride, problem.b.scale), (130, Some(Scale::new(Format::F32, [64, 32], [1, 9]))));
    let pointers = dense(3, apart).product().unwrap().1;
    assert_eq!(pointers.scales, [null(), apart.factors, null()]);
}

#[test]
fn a_call_for_experts_is_a_product_in_groups() {
    let of = |has_rows_of_pairs| experts([64, 8, 128], fp8([768, 2000], [128, 128]), has_rows_of_pairs);
    let problem = of(false).problem().unwrap();
    assert_eq!([problem.m, problem.n, problem.k], [512, 768, 2000]);
    let scale = problem.b.scale.unwrap();
    assert_eq!((problem.b.batch_stride, scale.batch_stride), ([0, 768 * 2000], [0, 6 * 16]));
    let groups = problem.groups.unwrap();
    assert_eq!((groups.count, groups.bounds, groups.scaled), (128, Bounds::FirstRow, false));
    assert_eq!((groups.rows, groups.rows_of_a(512)), (Rows::Listed { pairs_per_row: 8 }, 64));
    let groups = of(true).problem().unwrap().groups.unwrap();
    assert_eq!((groups.rows, groups.rows_of_a(512)), (Rows::Listed { pairs_per_row: 1 }, 512));
}

#[test]
fn mxfp4_is_codes_with_powers_of_two_and_an_x_in_another_order() {
    let problem = dense(5, mxfp4([2880, 4096])).problem().unwrap();
    assert_eq!(problem.to_string(), "5x2880x4096 nt bf16 x f4e2m1 g32 f8e8m0 -> bf16");
    // The copy of x begins where CUDA's allocations do.
    assert_eq!([problem.a, problem.b, problem.d].map(|operand| operand.pointer_align), [16, 16, 2]);
    assert_eq!(problem.b.scale.unwrap().index([0, 0], [64, 3]), 3 * 128 + 2);
    assert!(mxfp4([1, 32]).reorders() && !fp8([1, 32], [1, 1]).reorders());
    let biased = Product { bias: 0x7000 as _, ..dense(5, mxfp4([2880, 4096])) };
    assert_eq!(biased.problem().unwrap().epilogue.bias, Some(BiasAxis::N));
    assert_eq!(biased.product().unwrap().1.bias, 0x7000 as _);
    let problem = experts([4, 4, 32], mxfp4([5760, 2880]), false).problem().unwrap();
    assert_eq!((problem.b.batch_stride, problem.b.scale.unwrap().batch_stride), ([0, 5760 * 2880], [0, 5760 * 90]));
}

#[test]
fn a_call_that_is_no_product_has_a_reason() {
    let of = |rows, sizes, block| dense(rows, fp8(sizes, block)).problem();
    for call in [
        of(-1, [8, 8], [1, 1]),
        of(1, [-8, 8], [1, 1]),
        of(1, [8, -8], [1, 1]),
        of(1, [8, 8], [0, 1]),
        of(1, [8, 8], [1, -1]),
        dense(1, with_stride([8, 8], [1, 1], -1)).problem(),
        dense(1, mxfp4([8, 48])).problem(),
    ] {
        assert!(call.unwrap_err().contains("is no product"));
    }
    let plain = || fp8([8, 8], [1, 1]);
    for counts in [[-1, 2, 3], [1, -2, 3], [1, 2, -3], [1, 2, 0]] {
        assert!(experts(counts, plain(), false).problem().unwrap_err().contains("is no product"), "{counts:?}");
    }
    let failed = experts([1, 2, 3], fp8([8, 8], [0, 1]), false).problem();
    assert!(failed.unwrap_err().contains("with 2 of 3 experts of 8 x 8 weights in blocks of 0 x 1"));
}

/// The bytes that become NaN where a call cannot run.
#[test]
fn outputs_have_their_bytes() {
    assert_eq!(dense(5, fp8([7, 3], [1, 1])).output().1, 5 * 7 * 2);
    assert_eq!(dense(5, fp8([-7, 3], [1, 1])).output().1, 0);
    assert_eq!(experts([5, 2, 9], fp8([7, 3], [1, 1]), true).output().1, 5 * 2 * 7 * 2);
    assert_eq!(bytes(&[i32::MAX, i32::MAX, i32::MAX]), usize::MAX);
}

/// Any size, any block and any number of experts, with batch invariance and without a workspace, too.
#[test]
fn each_product_has_a_plan_of_our_own_kernels() {
    let sizes = [[1, 1, 1], [1, 1536, 2048], [16, 576, 7168], [7, 33, 65], [4096, 768, 2048], [24, 2048, 0], [0, 8, 8]];
    let blocks = [[128, 128], [1, 64], [7, 3], [4096, 4096]];
    for device in [DeviceInfo::h100(), DeviceInfo::a100()] {
        let dispatcher = Dispatcher::hypothetical(device);
        for [m, n, k] in sizes {
            for weights in blocks.map(|block| fp8([n, k], block)).into_iter().chain([mxfp4([n, k / 32 * 32])]) {
                let of_experts = [1, 8, 256].map(|count| experts([m, 4, count], weights, count == 8).problem());
                for problem in of_experts.into_iter().chain([dense(m, weights).problem()]).map(Result::unwrap) {
                    for asked in [Policy::default(), Policy::default().with_batch_invariance(true).with_workspace(0)] {
                        let plan =
                            dispatcher.plan(&problem, own(asked)).unwrap_or_else(|error| panic!("{problem}: {error}"));
                        assert!(plan.kernel.role != Role::Vendor, "{problem}: {}", plan.kernel);
                    }
                }
            }
        }
    }
}

/// Layers of Qwen3-8B-FP8 and gpt-oss, from a token to a long prompt.
#[test]
fn layers_have_fast_kernels() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    for weights in [fp8([4096, 12288], [128, 128]), fp8([1024, 4096], [128, 128]), mxfp4([4096, 2880])] {
        for rows in [1, 16, 64, 512, 4096] {
            let problem = dense(rows, weights).problem().unwrap();
            let problem = problem.with(|problem| (problem.a.pointer_align, problem.d.pointer_align) = (16, 16));
            let plan = dispatcher.plan(&problem, own(Policy::default())).unwrap();
            assert!(plan.kernel.role != Role::LastResort, "{problem}: {}", plan.kernel);
        }
    }
}

#[test]
fn experts_run_in_groups() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    for (top_k, count, weights) in [(8, 128, fp8([768, 2048], [128, 128])), (4, 32, mxfp4([5760, 2880]))] {
        for tokens in [1, 64, 4096] {
            let problem = experts([tokens, top_k, count], weights, false).problem().unwrap();
            let plan = dispatcher.plan(&problem, own(Policy::default())).unwrap();
            let is_of = |family: &str| plan.kernel.name.starts_with(family);
            let is_grouped = is_of("narrow_grouped_gemm") || is_of("sm90_narrow_grouped_gemm");
            assert!(is_grouped, "{problem}: {}", plan.kernel);
        }
    }
}
