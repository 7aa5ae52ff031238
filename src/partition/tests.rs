use super::pieces::Piece;
use super::{Need, Partition};
use crate::arch::DeviceInfo;
use crate::family::{self, KERNELS};
use crate::kernel::{Case, KernelDesc, Math};
use crate::problem::{BiasAxis, Operand};
use crate::{Format, Layout, Problem};
use std::collections::HashSet;

const MIB: u64 = 1 << 20;

fn need(kernel: &KernelDesc, problem: &Problem) -> Need {
    kernel.workspace(problem)
}

fn partition(kernel: &KernelDesc, problem: &Problem, bytes: u64) -> Option<Partition> {
    Partition::new(kernel.footprint(problem), problem, bytes)
}

/// A kernel that splits f32 into bf16 parts; the rest of the row is arbitrary.
fn bf16x6(layout: Layout, tile: [u32; 3], cluster: [u32; 2]) -> KernelDesc {
    let mut kernel = KERNELS.iter().find(|kernel| kernel.family == "sm90_bf16x6").unwrap().clone();
    (kernel.layout, kernel.tile, kernel.cluster) = (layout, tile, cluster);
    kernel
}

/// A kernel that transposes B, or A where the first number is not 128.
fn tf32(tile: [u32; 3], cluster: [u32; 2]) -> KernelDesc {
    let mut kernel = family::by_name("sm90_tf32_f32_tn_128x256x32_2x1").unwrap().clone();
    (kernel.tile, kernel.cluster) = (tile, cluster);
    kernel
}

fn dense(m: usize, n: usize, k: usize, batch: usize, layout: Layout) -> Problem {
    Problem::dense(m, n, k, batch, layout, Format::F32)
}

#[test]
fn planes_of_b_and_where_a_is_transposed_a_copy_of_it_are_counted() {
    let need = |layout, m, n, k, batch| need(&bf16x6(layout, [128, 128, 64], [2, 1]), &dense(m, n, k, batch, layout));
    // K = 70 is rounded up to 128.
    assert_eq!(need(Layout::NT, 512, 1024, 70, 3), Need { least: 6 * 128 * 128, best: 3 * 6 * 1024 * 128 });
    assert_eq!(need(Layout::NN, 512, 1024, 64, 1), Need { least: 6 * 128 * 64, best: 6 * 1024 * 64 });
    let (least, best) = ((6 * 128 + 4 * 256) * 64, (6 * 1024 + 4 * 512) * 64);
    assert_eq!(need(Layout::TN, 512, 1024, 64, 1), Need { least, best });
    assert_eq!(need(Layout::TT, 512, 1024, 64, 2), Need { least, best: 2 * best });
    // A product smaller than a tile needs no more than the product's own size; N is rounded up to 8.
    assert_eq!(need(Layout::NT, 3, 5, 64, 1), Need { least: 6 * 8 * 64, best: 6 * 8 * 64 });
    assert_eq!(need(Layout::NT, 0, 512, 64, 1), Need::default(), "nothing to compute");
    // The need exceeds every memory, without overflow.
    assert_eq!(need(Layout::NT, 1, i32::MAX as usize, i32::MAX as usize, 1 << 20).best, u64::MAX);
    let needs_none = |kernel: &&KernelDesc| match kernel.family {
        "sm90_sgemm" => false,
        "sm90_bf16x6_direct" => true,
        _ => kernel.math == Math::Native,
    };
    for kernel in KERNELS.iter().filter(needs_none) {
        assert_eq!(kernel.workspace(&dense(512, 512, 512, 1, kernel.layout)), Need::default(), "{kernel}");
    }
}

#[test]
fn tf32_transposes_one_operand_where_none_is_k_major() {
    let (b, a) = (tf32([128, 256, 32], [2, 1]), tf32([256, 128, 32], [1, 2]));
    let need = |kernel, m, n, k, batch| need(kernel, &dense(m, n, k, batch, Layout::TN));
    assert_eq!(need(&b, 512, 1024, 70, 3), Need { least: 4 * 256 * 128, best: 3 * 4 * 1024 * 128 });
    assert_eq!(need(&a, 512, 1024, 70, 3), Need { least: 4 * 256 * 128, best: 3 * 4 * 512 * 128 });
    let cut = |kernel| {
        let cut = partition(kernel, &dense(8192, 8192, 8192, 1, Layout::TN), 128 * MIB).unwrap();
        (cut.matrices, cut.rows, cut.columns)
    };
    assert_eq!((cut(&b), cut(&a)), ((1, 8192, 4096), (1, 4096, 8192)));
    let others = KERNELS.iter().filter(|kernel| kernel.math == Math::Tf32 && kernel.layout != Layout::TN);
    for kernel in others {
        assert_eq!(kernel.workspace(&dense(512, 512, 512, 1, kernel.layout)), Need::default(), "{kernel}");
    }
}

#[test]
fn a_product_is_cut_as_little_as_it_takes_and_evenly() {
    let cut = |layout, m, n, k, batch, bytes| {
        let cut = partition(&bf16x6(layout, [128, 128, 64], [1, 1]), &dense(m, n, k, batch, layout), bytes)?;
        Some((cut.matrices, cut.rows, cut.columns))
    };
    // 100.7 MB of planes fit, 402 MB take three or four pieces.
    assert_eq!(cut(Layout::NT, 4096, 4096, 4096, 1, 128 * MIB), Some((1, 4096, 4096)));
    assert_eq!(cut(Layout::NT, 8192, 8192, 8192, 1, 128 * MIB), Some((1, 8192, 2048)));
    // Whole matrices of a batch come before parts of a matrix.
    assert_eq!(cut(Layout::NN, 2048, 2048, 128, 32, 128 * MIB), Some((32, 2048, 2048)));
    assert_eq!(cut(Layout::NN, 2048, 2048, 128, 32, 10 * MIB), Some((6, 2048, 2048)));
    // A transposed A gets the memory that the planes of B leave, and half where both need more.
    assert_eq!(cut(Layout::TN, 4096, 1024, 4096, 1, 64 * MIB), Some((1, 2048, 1024)));
    assert_eq!(cut(Layout::TN, 8192, 8192, 8192, 1, 128 * MIB), Some((1, 2048, 1280)));
    // The smallest piece, and no memory.
    let least = 6 * 128 * 8192;
    assert_eq!(cut(Layout::NT, 512, 512, 8192, 1, least), Some((1, 512, 128)));
    assert_eq!(cut(Layout::NT, 512, 512, 8192, 1, least - 1), None);
}

/// A kernel that transposes operands: both operands where both are contiguous along K, or the smaller operand.
fn sgemm(layout: Layout, tile: [u32; 3]) -> KernelDesc {
    let mut kernel = KERNELS.iter().find(|kernel| kernel.family == "sm90_sgemm").unwrap().clone();
    (kernel.layout, kernel.tile) = (layout, tile);
    kernel
}

/// For every problem, layout and sufficient workspace, the pieces fit into the workspace, and each element of D is in
/// one piece that reads the right operands.
#[test]
fn the_pieces_fit_and_make_up_the_product() {
    let layouts = [Layout::NN, Layout::NT, Layout::TN, Layout::TT];
    let mut kernels = layouts.map(|layout| bf16x6(layout, [16, 8, 64], [2, 1])).to_vec();
    kernels.extend([tf32([128, 8, 32], [1, 1]), tf32([16, 128, 32], [1, 2])]);
    kernels.extend([Layout::NN, Layout::NT, Layout::TT].map(|layout| sgemm(layout, [16, 256, 16])));
    kernels.push(sgemm(Layout::NT, [16, 8, 16]));
    for kernel in &kernels {
        for (m, n, k, batch) in [(1, 1, 1, [1, 1]), (33, 20, 70, [1, 5]), (100, 9, 64, [2, 3]), (64, 64, 100, [1, 1])] {
            let mut problem = dense(m, n, k, batch[0] * batch[1], kernel.layout);
            problem.batch = batch;
            for operand in [&mut problem.a, &mut problem.b, &mut problem.d] {
                let matrix = operand.batch_stride[1];
                operand.batch_stride = [matrix * batch[1] as i64, matrix];
            }
            problem.epilogue.bias = Some(BiasAxis::N);
            problem.epilogue.c = Some(Operand { row_stride: 1000, ..problem.d });
            let Need { least, best } = need(kernel, &problem);
            for bytes in (least..best + best / 3).step_by((best as usize / 7).max(1)).chain([least, best]) {
                check(kernel, &problem, bytes);
            }
            assert_eq!(partition(kernel, &problem, best).unwrap().pieces(&problem).count(), 1);
            assert_eq!(partition(kernel, &problem, least - 1), None);
        }
    }
}

/// A plan has one configuration, and each piece is launched with that configuration.
#[test]
fn the_configuration_of_the_whole_is_legal_for_every_piece() {
    let device = DeviceInfo::h100();
    let sides = [36, 200, 1000, 2500, 9000];
    let extents =
        || sides.into_iter().flat_map(|m| sides.into_iter().flat_map(move |n| [64, 600, 4096].map(|k| (m, n, k))));
    let mut seen = 0;
    for kernel in KERNELS.iter().filter(|kernel| kernel.types.a == Format::F32 && kernel.layout != Layout::Any) {
        for ((m, n, k), batch) in extents().flat_map(|extents| [(extents, 1), (extents, 20)]) {
            let whole = dense(m, n, k, batch, kernel.layout);
            let supported = kernel.family().limits(kernel, &whole).check(kernel, &whole, &device).is_ok();
            let Some(footprint) = kernel.footprint(&whole).filter(|_| supported) else { continue };
            let Some(partition) = Partition::new(Some(footprint), &whole, 2 * MIB) else { continue };
            let case = Case { kernel, problem: &whole, device: &device, workspace: 2 * MIB };
            let config = kernel.family().choose(&case);
            for Piece { problem, .. } in partition.pieces(&whole) {
                let legal = kernel.family().configurations(&Case { problem: &problem, ..case });
                assert!(legal.contains(&config), "{kernel}@{config}: {whole} in pieces of {problem}");
                seen += 1;
            }
        }
    }
    assert!(seen > 1000, "{seen} pieces");
}

fn check(kernel: &KernelDesc, problem: &Problem, bytes: u64) {
    let what = format!("{problem} {:?} in {bytes} bytes", problem.batch);
    let mut seen = HashSet::new();
    for piece in partition(kernel, problem, bytes).expect(&what).pieces(problem) {
        let part = piece.problem;
        assert!(need(kernel, &part).best <= bytes, "{what}: {part} needs more");
        let offsets = piece.offsets();
        for matrix in 0..part.batch_count() {
            let (outer, inner) = (matrix / part.batch[1], matrix % part.batch[1]);
            let (first_outer, first_inner) = (piece.first[0] + outer, piece.first[1] + inner);
            for (i, j) in (0..part.m).flat_map(|i| (0..part.n).map(move |j| (i, j))) {
                let (row, column) = (piece.first[2] + i, piece.first[3] + j);
                assert!(seen.insert((first_outer, first_inner, row, column)), "{what}: computed twice");
                let at = |o: &Operand, [outer, inner, row, column]: [usize; 4]| {
                    let index = |index: usize, stride: i64| index as i64 * stride;
                    let batch = index(outer, o.batch_stride[0]) + index(inner, o.batch_stride[1]);
                    batch + index(row, o.row_stride) + index(column, o.col_stride)
                };
                let (here, there) = ([outer, inner, i, j], [first_outer, first_inner, row, column]);
                let row_of = |[o, i, row, _]: [usize; 4]| [o, i, row, 0];
                let column_of = |[o, i, _, column]: [usize; 4]| [o, i, 0, column];
                let c = problem.epilogue.c.unwrap();
                assert_eq!(offsets.a + at(&part.a, row_of(here)), at(&problem.a, row_of(there)), "{what}: A");
                assert_eq!(offsets.b + at(&part.b, column_of(here)), at(&problem.b, column_of(there)), "{what}: B");
                assert_eq!(offsets.c + at(&c, here), at(&c, there), "{what}: C");
                assert_eq!(offsets.d + at(&part.d, here), at(&problem.d, there), "{what}: D");
                assert_eq!(offsets.bias + j as i64, column as i64, "{what}: bias");
            }
        }
    }
    assert_eq!(seen.len(), problem.m * problem.n * problem.batch_count(), "{what}: D is not complete");
}
