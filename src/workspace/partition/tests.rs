use super::pieces::Piece;
use super::{Footprint, Need, Partition};
use crate::arch::DeviceInfo;
use crate::family::KERNELS;
use crate::kernel::Case;
use crate::problem::{BiasAxis, Operand, Scale};
use crate::{Format, Layout, Problem};
use std::collections::HashSet;

const MIB: u64 = 1 << 20;

fn dense(m: usize, n: usize, k: usize, batch: usize, layout: Layout) -> Problem {
    Problem::dense(m, n, k, batch, layout, Format::F32)
}

#[test]
fn a_product_is_cut_as_little_as_it_takes_and_evenly() {
    // Six bytes for an element of B, and four for an element of A where A is contiguous along M.
    let cut = |layout, m, n, k, batch, bytes| {
        let problem = dense(m, n, k, batch, layout);
        let footprint = Footprint::new(&problem, [if layout == Layout::TN { 4 } else { 0 }, 6], [1, 8], [128, 128]);
        let cut = Partition::new(footprint, &problem, bytes)?;
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
    // Nothing takes no memory.
    let nothing = dense(0, 512, 64, 3, Layout::NT);
    let of_d = Footprint { row: 4, column: 0, element: 4, lines: [1, 1], step: [16, 16] };
    assert_eq!(Partition::new(Some(of_d), &nothing, 0).map(|cut| (cut.rows, cut.columns)), Some((0, 512)));
}

/// For every problem, footprint and sufficient workspace, the pieces fit into the workspace, and each element of D is in
/// one piece that reads the right operands.
#[test]
fn the_pieces_fit_and_make_up_the_product() {
    let layouts = [Layout::NN, Layout::NT, Layout::TN, Layout::TT];
    // Bytes for A and B, multiples of lines, and the smallest piece.
    let footprints = [
        ([0, 6], [1, 8], [32, 8]),
        ([4, 6], [1, 8], [32, 8]),
        ([0, 4], [1, 8], [128, 8]),
        ([4, 0], [1, 8], [16, 256]),
        ([0, 4], [32, 32], [16, 256]),
        ([4, 0], [32, 32], [16, 8]),
        ([4, 4], [32, 32], [16, 256]),
        ([4, 4], [32, 32], [16, 8]),
    ];
    // Factors of 12 columns, which no step is a multiple of, and of none.
    let shared = Scale::new(Format::F16, [5, 12], [1000, 3]).with(|scale| scale.batch_stride = [70_000, 9000]);
    let cases = footprints.into_iter().flat_map(|f| layouts.map(|layout| (f, layout)));
    for ((bytes, lines, piece), layout, scale) in cases.flat_map(|(f, l)| [None, Some(shared)].map(|s| (f, l, s))) {
        let footprint = |problem: &Problem| Footprint::new(problem, bytes, lines, piece).unwrap();
        for (m, n, k, batch) in [(1, 1, 1, [1, 1]), (33, 20, 70, [1, 5]), (100, 9, 64, [2, 3]), (64, 64, 100, [1, 1])] {
            let mut problem = dense(m, n, k, batch[0] * batch[1], layout);
            problem.batch = batch;
            for operand in [&mut problem.a, &mut problem.b, &mut problem.d] {
                let matrix = operand.batch_stride[1];
                operand.batch_stride = [matrix * batch[1] as i64, matrix];
            }
            problem.epilogue.bias = Some(BiasAxis::N);
            problem.epilogue.c = Some(Operand { row_stride: 1000, ..problem.d });
            problem.b.scale = scale;
            let Need { least, best } = footprint(&problem).need(&problem);
            for bytes in (least..best + best / 3).step_by((best as usize / 7).max(1)).chain([least, best]) {
                check(&footprint, &problem, bytes);
            }
            let partition = |bytes| Partition::new(Some(footprint(&problem)), &problem, bytes);
            assert_eq!(partition(best).unwrap().pieces(&problem).count(), 1);
            assert_eq!(partition(least - 1), None);
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
            let supported = kernel.family().limits(kernel, &whole).check(&kernel.row(), &whole, &device).is_ok();
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

fn check(footprint: &dyn Fn(&Problem) -> Footprint, problem: &Problem, bytes: u64) {
    let what = format!("{problem} {:?} in {bytes} bytes", problem.batch);
    let mut seen = HashSet::new();
    let partition = Partition::new(Some(footprint(problem)), problem, bytes).expect(&what);
    for piece in partition.pieces(problem) {
        let part = piece.problem;
        assert!(footprint(&part).need(&part).best <= bytes, "{what}: {part} needs more");
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
                if let Some(scale) = problem.b.scale {
                    let [here, there] = [([outer, inner], j), ([first_outer, first_inner], column)]
                        .map(|(batch, column)| scale.index(batch, [problem.k - 1, column]));
                    assert_eq!(offsets.scales[1] + here, there, "{what}: factors of B");
                }
            }
        }
    }
    assert_eq!(seen.len(), problem.m * problem.n * problem.batch_count(), "{what}: D is not complete");
}
