//! The contents of the workspace, by family.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::{by_name, KERNELS};
use candle_tilegemm::internal::piece;
use candle_tilegemm::kernel::{KernelDesc, Math};
use candle_tilegemm::problem::{Groups, Rows};
use candle_tilegemm::{Format, Layout, Problem};

/// A kernel that splits f32 into bf16 parts; the rest of the row is arbitrary.
fn bf16x6(layout: Layout) -> KernelDesc {
    let mut kernel = KERNELS.iter().find(|kernel| kernel.family == "sm90_bf16x6").unwrap().clone();
    (kernel.layout, kernel.tile, kernel.cluster) = (layout, [128, 128, 64], [2, 1]);
    kernel
}

/// A kernel that transposes B, or A where the first number is not 128.
fn tf32(tile: [u32; 3], cluster: [u32; 2]) -> KernelDesc {
    let mut kernel = by_name("sm90_tf32_f32_tn_128x256x32_2x1").unwrap().clone();
    (kernel.tile, kernel.cluster) = (tile, cluster);
    kernel
}

fn dense(m: usize, n: usize, k: usize, batch: usize, layout: Layout) -> Problem {
    Problem::dense(m, n, k, batch, layout, Format::F32)
}

/// The least and the best workspace.
fn bytes(kernel: &KernelDesc, problem: &Problem) -> [u64; 2] {
    let need = kernel.workspace(problem);
    [need.least, need.best]
}

#[test]
fn planes_of_b_and_where_a_is_transposed_a_copy_of_it_are_counted() {
    let need = |layout, m, n, k, batch| bytes(&bf16x6(layout), &dense(m, n, k, batch, layout));
    // K = 70 is rounded up to 128.
    assert_eq!(need(Layout::NT, 512, 1024, 70, 3), [6 * 128 * 128, 3 * 6 * 1024 * 128]);
    assert_eq!(need(Layout::NN, 512, 1024, 64, 1), [6 * 128 * 64, 6 * 1024 * 64]);
    let (least, best) = ((6 * 128 + 4 * 256) * 64, (6 * 1024 + 4 * 512) * 64);
    assert_eq!(need(Layout::TN, 512, 1024, 64, 1), [least, best]);
    assert_eq!(need(Layout::TT, 512, 1024, 64, 2), [least, 2 * best]);
    // A product smaller than a tile needs no more than the product's own size; N is rounded up to 8.
    assert_eq!(need(Layout::NT, 3, 5, 64, 1), [6 * 8 * 64, 6 * 8 * 64]);
    assert_eq!(need(Layout::NT, 0, 512, 64, 1), [0; 2], "nothing to compute");
    // The need exceeds every memory, without overflow.
    assert_eq!(need(Layout::NT, 1, i32::MAX as usize, i32::MAX as usize, 1 << 20)[1], u64::MAX);
}

#[test]
fn the_other_families_keep_no_operands_in_the_workspace() {
    let copies = ["sm90_bf16x6", "sm90_tf32", "sm90_sgemm", "sm90_gguf_gemm", "sm90_gguf_grouped_gemm"];
    for kernel in KERNELS.iter().filter(|kernel| !copies.contains(&kernel.family)) {
        assert_eq!(bytes(kernel, &dense(512, 512, 512, 1, kernel.layout)), [0; 2], "{kernel}");
    }
}

#[test]
fn activations_beside_blocks_of_gguf_lie_in_the_workspace() {
    let mut kernels = KERNELS.iter().filter(|kernel| kernel.family == "sm90_gguf_gemm");
    let kernel = kernels.find(|kernel| kernel.types.a == Format::F32).unwrap();
    let problem = Problem::dense(300, 4096, 512, 1, Layout::NT, Format::F32).with(|p| p.b.format = kernel.types.b);
    // Of whole tiles.
    assert_eq!(bytes(kernel, &problem)[1], (2 * 512 + 4) * 300_u64.next_multiple_of(kernel.tile[0].into()));
}

#[test]
fn activations_in_f32_beside_experts_of_narrow_weights_lie_in_the_workspace_once_each() {
    let mut kernels = KERNELS.iter().filter(|kernel| kernel.family == "sm90_narrow_grouped_gemm");
    let kernel = kernels.find(|kernel| kernel.types.a == Format::F32).unwrap();
    let groups = Groups::new(8).with(|groups| groups.rows = Rows::Listed { pairs_per_row: 4 });
    let problem = Problem::grouped([400, 256, 1004], groups, Format::F32).with_weights(kernel.types.b, None);
    assert_eq!(bytes(kernel, &problem), [100 * 1008 * 2; 2]);
    let half = problem.with(|p| p.a.format = Format::BF16);
    assert_eq!(bytes(kernel, &half), [0; 2]);
}

#[test]
fn tf32_transposes_one_operand_where_none_is_k_major() {
    let (b, a) = (tf32([128, 256, 32], [2, 1]), tf32([256, 128, 32], [1, 2]));
    let need = |kernel: &KernelDesc, m, n, k, batch| bytes(kernel, &dense(m, n, k, batch, Layout::TN));
    assert_eq!(need(&b, 512, 1024, 70, 3), [4 * 256 * 128, 3 * 4 * 1024 * 128]);
    assert_eq!(need(&a, 512, 1024, 70, 3), [4 * 256 * 128, 3 * 4 * 512 * 128]);
    let cut = |kernel: &KernelDesc| {
        let problem = dense(8192, 8192, 8192, 1, Layout::TN);
        piece(kernel, &problem, 128 << 20).unwrap()
    };
    assert_eq!((cut(&b), cut(&a)), ([1, 8192, 4096], [1, 4096, 8192]));
    let others = KERNELS.iter().filter(|kernel| kernel.math == Math::Tf32 && kernel.layout != Layout::TN);
    for kernel in others {
        assert_eq!(bytes(kernel, &dense(512, 512, 512, 1, kernel.layout)), [0; 2], "{kernel}");
    }
}

/// Without a workspace, another kernel runs a product whose sums of parts need one.
#[test]
fn a_k_of_many_blocks_needs_a_workspace() {
    let mut kernels = KERNELS.iter().filter(|kernel| kernel.family == "gguf_gemv");
    let kernel = kernels.find(|kernel| kernel.tile[2] == 4096 && kernel.types.a == Format::F32).unwrap();
    let need = |m, n, k| {
        let problem = Problem::dense(m, n, k, 1, Layout::NT, Format::F32).with(|p| p.b.format = kernel.types.b);
        bytes(kernel, &problem)
    };
    assert_eq!(need(8, 4096, 4096), [0; 2]);
    assert_eq!(need(8, 4096, 14336), [8 * 16 * 4 * 4, 8 * 4096 * 4 * 4]);
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    let long = Problem::dense(8, 4096, 14336, 1, Layout::NT, Format::F32).with(|p| p.b.format = Format::Q4K);
    let plan = dispatcher.plan(&long, Policy::own()).unwrap();
    assert_eq!((plan.kernel.family, plan.config.split), ("gguf_gemv", 4));
    let without = plan.without_workspace().expect("another kernel runs without a workspace");
    assert_eq!((without.kernel.family, [without.workspace.least, without.workspace.best]), ("reference", [0; 2]));
}
