use super::cut::Cut;
use super::streams::{Memory, Numbers, Stream, Streams, Supply, Workspace};
use super::{need, Lack, Need, DEFAULT_BYTES, MOST_STREAMS};
use crate::kernel::{Family, KernelDesc, Math, KERNELS};
use crate::problem::{BiasAxis, Operand};
use crate::{settings, DType, Layout, Problem};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Barrier;

const MIB: u64 = 1 << 20;

/// A kernel that splits f32 into bf16 parts; the rest of the row is any.
fn bf16x6(layout: Layout, tile: [u32; 3], cluster: [u32; 2]) -> KernelDesc {
    let mut kernel = KERNELS.iter().find(|kernel| kernel.family == Family::SimtGemm).unwrap().clone();
    (kernel.math, kernel.layout, kernel.tile, kernel.cluster) = (Math::Bf16x6, layout, tile, cluster);
    kernel
}

/// A kernel that transposes B, or A where the first number is not 128.
fn tf32(tile: [u32; 3], cluster: [u32; 2]) -> KernelDesc {
    let mut kernel = KernelDesc::by_name("sm90_tf32_f32_tn_128x256x32_2x1").unwrap().clone();
    (kernel.tile, kernel.cluster) = (tile, cluster);
    kernel
}

fn dense(m: usize, n: usize, k: usize, batch: usize, layout: Layout) -> Problem {
    Problem::dense(m, n, k, batch, layout, DType::F32)
}

#[test]
fn the_default_is_the_one_that_the_settings_list() {
    assert_eq!(settings::WORKSPACE.default.parse::<u64>().unwrap() * MIB, DEFAULT_BYTES);
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
    // A product smaller than a tile needs no more than it is; N is rounded up to 8.
    assert_eq!(need(Layout::NT, 3, 5, 64, 1), Need { least: 6 * 8 * 64, best: 6 * 8 * 64 });
    assert_eq!(need(Layout::NT, 0, 512, 64, 1), Need::default(), "nothing to compute");
    // No overflow, only more than there can be.
    assert_eq!(need(Layout::NT, 1, i32::MAX as usize, i32::MAX as usize, 1 << 20).best, u64::MAX);
    let needs_none = |kernel: &&KernelDesc| match kernel.family {
        Family::Sm90Sgemm => false,
        Family::Sm90Bf16x6Direct => true,
        _ => kernel.math == Math::Native,
    };
    for kernel in KERNELS.iter().filter(needs_none) {
        assert_eq!(super::need(kernel, &dense(512, 512, 512, 1, kernel.layout)), Need::default(), "{kernel}");
    }
}

#[test]
fn tf32_transposes_one_operand_where_none_is_k_major() {
    let (b, a) = (tf32([128, 256, 32], [2, 1]), tf32([256, 128, 32], [1, 2]));
    let need = |kernel, m, n, k, batch| need(kernel, &dense(m, n, k, batch, Layout::TN));
    assert_eq!(need(&b, 512, 1024, 70, 3), Need { least: 4 * 256 * 128, best: 3 * 4 * 1024 * 128 });
    assert_eq!(need(&a, 512, 1024, 70, 3), Need { least: 4 * 256 * 128, best: 3 * 4 * 512 * 128 });
    let cut = |kernel| {
        let cut = Cut::new(kernel, &dense(8192, 8192, 8192, 1, Layout::TN), 128 * MIB).unwrap();
        (cut.matrices, cut.rows, cut.columns)
    };
    assert_eq!((cut(&b), cut(&a)), ((1, 8192, 4096), (1, 4096, 8192)));
    let others = KERNELS.iter().filter(|kernel| kernel.math == Math::Tf32 && kernel.layout != Layout::TN);
    for kernel in others {
        assert_eq!(super::need(kernel, &dense(512, 512, 512, 1, kernel.layout)), Need::default(), "{kernel}");
    }
}

#[test]
fn a_product_is_cut_as_little_as_it_takes_and_evenly() {
    let cut = |layout, m, n, k, batch, bytes| {
        let cut = Cut::new(&bf16x6(layout, [128, 128, 64], [1, 1]), &dense(m, n, k, batch, layout), bytes)?;
        Some((cut.matrices, cut.rows, cut.columns))
    };
    // 100.7 MB of planes fit, 402 MB take three or four pieces.
    assert_eq!(cut(Layout::NT, 4096, 4096, 4096, 1, 128 * MIB), Some((1, 4096, 4096)));
    assert_eq!(cut(Layout::NT, 8192, 8192, 8192, 1, 128 * MIB), Some((1, 8192, 2048)));
    // Whole matrices of a batch before parts of one.
    assert_eq!(cut(Layout::NN, 2048, 2048, 128, 32, 128 * MIB), Some((32, 2048, 2048)));
    assert_eq!(cut(Layout::NN, 2048, 2048, 128, 32, 10 * MIB), Some((6, 2048, 2048)));
    // A transposed A takes what the planes of B leave, and half where both want more.
    assert_eq!(cut(Layout::TN, 4096, 1024, 4096, 1, 64 * MIB), Some((1, 2048, 1024)));
    assert_eq!(cut(Layout::TN, 8192, 8192, 8192, 1, 128 * MIB), Some((1, 2048, 1280)));
    // The smallest piece, and nothing.
    let least = 6 * 128 * 8192;
    assert_eq!(cut(Layout::NT, 512, 512, 8192, 1, least), Some((1, 512, 128)));
    assert_eq!(cut(Layout::NT, 512, 512, 8192, 1, least - 1), None);
}

/// A kernel that transposes operands: both where they lie along K, or the smaller one.
fn sgemm(layout: Layout, tile: [u32; 3]) -> KernelDesc {
    let mut kernel = KERNELS.iter().find(|kernel| kernel.family == Family::Sm90Sgemm).unwrap().clone();
    (kernel.layout, kernel.tile) = (layout, tile);
    kernel
}

/// Every problem, layout and size of a workspace that is at least what is needed: the pieces are within it, and each element
/// of D is in one of them, computed from where its operands lie.
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
            assert_eq!(Cut::new(kernel, &problem, best).unwrap().pieces(&problem).count(), 1);
            assert_eq!(Cut::new(kernel, &problem, least - 1), None);
        }
    }
}

fn check(kernel: &KernelDesc, problem: &Problem, bytes: u64) {
    let what = format!("{problem} {:?} in {bytes} bytes", problem.batch);
    let mut seen = HashSet::new();
    for piece in Cut::new(kernel, problem, bytes).expect(&what).pieces(problem) {
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

/// `Streams` with an allocator that counts, or fails.
struct Allocations {
    streams: Streams,
    supply: Counted,
}

struct Counted {
    made: usize,
    works: bool,
    /// Addresses that were taken over.
    taken: Vec<usize>,
}

impl Supply for Counted {
    fn allocate(&mut self) -> Result<Memory, String> {
        if !self.works {
            return Err("cudaErrorMemoryAllocation".into());
        }
        self.made += 1;
        Ok(Memory { address: self.made, event: 1000 + self.made })
    }

    fn take_over(&mut self, memory: Memory) -> Result<(), String> {
        assert_eq!(memory.event, 1000 + memory.address);
        self.taken.push(memory.address);
        Ok(())
    }
}

impl Allocations {
    fn of(&mut self, stream: Stream, capturing: bool) -> Result<usize, Lack> {
        self.ask(stream, 64 * MIB, false, capturing, true)
    }

    fn ask(&mut self, stream: Stream, bytes: u64, again: bool, capturing: bool, works: bool) -> Result<usize, Lack> {
        self.supply.works = works;
        let workspace = self.streams.workspace(stream, bytes, again, capturing, &mut self.supply)?;
        assert_eq!(workspace.bytes, 64 * MIB);
        Ok(workspace.memory.address)
    }

    /// Those of the first `count` streams of device 0.
    fn first(&mut self, count: u64) -> Vec<&'static Workspace> {
        let mut of = |number| self.streams.workspace((0, number), 64 * MIB, false, false, &mut self.supply).unwrap();
        (0..count).map(&mut of).collect()
    }
}

fn none() -> Allocations {
    Allocations { streams: Streams::default(), supply: Counted { made: 0, works: true, taken: Vec::new() } }
}

#[test]
fn each_stream_of_each_device_has_one_and_keeps_it() {
    let mut all = none();
    assert_eq!((all.of((0, 7), false), all.of((0, 8), false), all.of((1, 7), false)), (Ok(1), Ok(2), Ok(3)));
    for capturing in [false, true] {
        assert_eq!((all.of((0, 7), capturing), all.of((1, 7), capturing)), (Ok(1), Ok(3)));
    }
    assert_eq!(all.supply.made, 3);
}

#[test]
fn a_stream_that_is_being_captured_gets_none_until_it_is_not() {
    let mut all = none();
    assert_eq!(all.of((0, 7), true), Err(Lack::Capturing));
    assert_eq!(all.of((0, 7), false), Ok(1));
}

#[test]
fn the_number_of_a_stream_is_known_while_it_is_captured() {
    let numbers = Numbers::default();
    assert_eq!(numbers.set(0, 1000, 7), None);
    numbers.set(0, 2, 8); // the per-thread default stream: another one on each thread
    let others = std::thread::scope(|scope| scope.spawn(|| [numbers.get(0, 1000), numbers.get(0, 2)]).join().unwrap());
    assert_eq!((numbers.get(0, 2), others), (Some(8), [Some(7), None]));
    assert_eq!((numbers.get(1, 1000), numbers.get(0, 1001)), (None, None));
    assert_eq!((numbers.set(0, 1000, 9), numbers.set(0, 1000, 9)), (Some(7), None), "7 is gone");
    assert_eq!(numbers.get(0, 1000), Some(9), "its handle is another stream's now");
    // CUDA's own handles mean another stream in each context.
    assert_eq!([0, 1, 2].map(|handle| (numbers.set(0, handle, 3), numbers.set(0, handle, 4)).1), [None; 3]);
    numbers.forget_per_thread(0);
    assert_eq!(numbers.get(0, 2), None);
}

#[test]
fn memory_that_ran_out_is_asked_for_again_only_where_that_is_wanted() {
    let mut all = none();
    let failed = Err(Lack::Failed("cudaErrorMemoryAllocation".into()));
    assert_eq!(all.ask((0, 7), 64 * MIB, false, false, false), failed);
    assert_eq!(all.of((0, 7), false), failed, "tried for each product");
    assert_eq!(all.ask((0, 7), 64 * MIB, true, false, true), Ok(1));
    assert_eq!(all.of((0, 7), true), Ok(1));
}

#[test]
fn streams_without_end_share_one_more() {
    let mut all = none();
    for stream in 0..MOST_STREAMS {
        assert_eq!(all.of((0, stream as u64), false), Ok(stream + 1));
    }
    assert_eq!(all.of((0, 100), true), Err(Lack::Capturing));
    for stream in 100..200 {
        assert_eq!(all.of((0, stream), false), Ok(MOST_STREAMS + 1));
    }
    assert_eq!((all.of((0, 3), false), all.of((1, 100), false)), (Ok(4), Ok(MOST_STREAMS + 2)));
    assert_eq!(none().ask((0, 200), 0, false, false, true), Err(Lack::Off));
}

#[test]
fn streams_beyond_the_most_share_a_workspace() {
    let first = none().first(10);
    let shared: Vec<bool> = first.iter().map(|workspace| workspace.is_shared()).collect();
    assert_eq!(shared, [[false; 8].as_slice(), &[true; 2]].concat());
    assert!(std::ptr::eq(first[8], first[9]));
}

#[test]
fn streams_that_come_and_go_hand_their_workspace_on() {
    let mut all = none();
    all.first(7);
    for stream in 100..1000 {
        assert_eq!(all.of((0, stream), false), Ok(8), "stream {stream}");
        all.streams.retire((0, stream));
    }
    assert_eq!((all.supply.made, all.supply.taken.len()), (8, 899), "each waits for the last work of the one before");
    assert_eq!(all.of((0, 2000), true), Err(Lack::Capturing), "a capture cannot wait for what is outside of it");
    assert_eq!(all.of((1, 2000), false), Ok(9), "another device's");
    assert_eq!((all.of((0, 2000), false), all.of((0, 2000), true)), (Ok(8), Ok(8)));
    all.streams.retire((0, 5000)); // never seen
    assert_eq!(all.of((0, 2001), false), Ok(10), "all eight are in use");
}

#[test]
fn what_a_graph_has_or_nothing_waits_for_is_not_handed_on() {
    let mut all = none();
    let first = all.first(8);
    first[0].set_captured();
    first[1].set_recorded(false);
    (0..3).for_each(|stream| all.streams.retire((0, stream)));
    assert_eq!(all.of((0, 100), false), Ok(3));
    assert_eq!(all.of((0, 101), false), Ok(9), "shared");
    assert_eq!(all.supply.taken, [3]);
    // Its stream's number is no other's, so asking again finds it.
    assert_eq!((all.of((0, 0), true), all.of((0, 1), false)), (Ok(1), Ok(2)));
}

#[test]
fn uses_are_recorded_from_half_of_the_most_on() {
    let mut all = none();
    all.first(MOST_STREAMS as u64 / 2 - 1);
    assert!(!all.streams.is_tight());
    all.first(MOST_STREAMS as u64 / 2);
    assert!(all.streams.is_tight());
}

#[test]
fn a_stream_that_is_gone_leaves_no_failure_behind() {
    let mut all = none();
    assert!(all.ask((0, 7), 64 * MIB, false, false, false).is_err());
    all.streams.retire((0, 7));
    assert_eq!(all.of((0, 7), false), Ok(1), "the failure was forgotten");
}

#[test]
fn threads_that_share_a_stream_launch_one_product_after_the_other() {
    let streams = Streams::default();
    let (inside, start) = (AtomicUsize::new(0), Barrier::new(4));
    let launch = || {
        start.wait();
        for _ in 0..1000 {
            let mut supply = none().supply;
            let workspace = streams.workspace((0, 7), MIB, false, false, &mut supply).unwrap();
            let _launching = workspace.launching();
            assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two at a time");
            inside.fetch_sub(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(launch))));
}
