//! Copies of operands that kernels cannot read where they lie, or cannot read fast.
//!
//! TMA and loads of 16 bytes need lines that start at multiples of 16 bytes: a bf16 product with an odd K has none. Every kernel then runs
//! on copies in the workspace, whose lines do. A plan with copies consists of an elementwise kernel for each copied operand, the product,
//! and a kernel that copies the result to D and applies the rest of the epilogue. Blocks of GGUF files become bf16 in such a copy, and narrow weights A's 16 bits. The
//! dispatcher takes such a plan where its estimate, copies included, is below the estimate without copies.
//!
//! A kernel that does not fuse the epilogue of a D in 16 bits writes its sums to a copy of D in f32. The kernel that applies the epilogue rounds them, once.

use crate::arch::DeviceInfo;
use crate::cost::{distinct, pipeline};
use crate::kernel::{Fusion, Limits, INT};
use crate::problem::{power_of_two_in, Format, Layout, Operand, Problem, MAX_ALIGN};
use crate::workspace::partition::Footprint;

/// Lines of copies are a multiple of this number of elements apart.
const PITCH: usize = 64;
/// The time of a copy beside its bytes, over the card's time of a launch, and the share of the memory's rate at which copies run, reads and
/// writes counted: from benches/record/h200/2026-11-24-odd.json.
const LAUNCHES: f64 = 0.8;
const RATE: f64 = 1.0;
/// The same where blocks of GGUF files become bf16 (14336 x 4096 in ten formats, H100, 2026-11-26); narrow weights count as such blocks.
const RATE_OF_BLOCKS: f64 = 0.6;
/// The time that unaligned lines of several matrices add to a copy, as a number of bytes a line: where lines of A and B are shorter than `SHORT_LINE`
/// bytes, and in each D (18 random products of attention and one of tests/gpu, H100).
const LINE_BYTES: f64 = 1200.0;
const SHORT_LINE: f64 = 512.0;
/// Of one matrix, the least time of a line of fewer than `SHORTEST_LINE` bytes: a warp copies a line (csrc/elementwise/copy_rows.hpp). Five products of
/// `--class extreme` with 76,000 to 960,000 lines of 8 to 20 bytes take 1.0 to 1.1 ns a line (H100, seeds 51 and 52, 2026-11-28).
const SHORTEST_LINE: f64 = 128.0;
const LINE_US: f64 = 1.03e-3;
/// A plan with copies is taken where its estimate is below this share of the estimate without copies: in 16 bits without a batch, where rows
/// of A are contiguous and there are more than `FEW_ROWS` rows; and elsewhere. In f32 such a plan may be less exact than the SGEMM of cuBLAS, which
/// splits K: 512 x 512 x 2044 nn by `sm90_sgemm`. Of 122 products at odd addresses whose estimate with copies is 0.8 to 0.95 of the
/// estimate without, copies made 51 of the first kind 1.7 times as fast as stock, 2 of them slower; the others gained 8 %, 21 of 58 slower
/// (H100, seeds 20 to 25, 2026-11-25; the rule is from the even seeds, the odd seeds judge).
const LEAD: [f64; 2] = [0.95, 0.8];
const FEW_ROWS: usize = 256;

/// The share of the estimate without copies that the estimate of a plan with copies has to be below.
pub(crate) fn lead(problem: &Problem) -> f64 {
    if converts(problem) {
        return LEAD[0];
    }
    let rows_of_a = matches!(problem.layout(), Layout::NT | Layout::NN) && !problem.is_f32();
    LEAD[usize::from(!(rows_of_a && problem.m > FEW_ROWS && problem.batch == [1, 1]))]
}

/// Whether a copy of B is in another format: of blocks of GGUF files, and of narrow weights.
fn converts(problem: &Problem) -> bool {
    problem.b.format.is_gguf_block() || problem.types().has_narrow_b()
}

/// The format of the copy of an operand. Beside blocks of GGUF files both operands are copied in bf16: a finite number stays finite. Beside narrow weights they are in A's
/// 16 bits, or in bf16.
fn copied_format(problem: &Problem, operand: &Operand) -> Format {
    if converts(problem) {
        problem.a.format.in_products_with(problem.b.format)
    } else {
        operand.format
    }
}

/// Whether the copy of D has an epilogue to go through on its way to D, and D has 16 bits. Then the copy is in f32.
pub(crate) fn rounds_after_copy(problem: &Problem) -> bool {
    matches!(problem.d.format, Format::F16 | Format::BF16) && problem.epilogue.rest(Fusion::None).is_some()
}

/// Whether a product in place may be copied to D. cuBLAS adds the product to D; of blocks and narrow weights none of our fast kernels does.
fn may_copy_d(problem: &Problem) -> bool {
    !problem.epilogue.in_place || converts(problem)
}

/// The format of the copy of D.
fn copied_format_of_d(problem: &Problem) -> Format {
    if rounds_after_copy(problem) {
        Format::F32
    } else {
        problem.d.format
    }
}

/// The operands of a product that are copied.
///
/// ```
/// use candle_tilegemm::arch::DeviceInfo;
/// use candle_tilegemm::dispatch::{Dispatcher, Policy};
/// use candle_tilegemm::{Format, Layout, Problem};
///
/// // With an odd K, lines of A and B do not begin at multiples of 16 bytes.
/// let problem = Problem::dense(1024, 4096, 4095, 1, Layout::NT, Format::BF16);
/// let plan = Dispatcher::hypothetical(DeviceInfo::h100()).plan(&problem, Policy::own())?;
/// assert!(plan.packing.is_some_and(|packing| packing.a && packing.b && !packing.d));
/// # Ok::<(), candle_tilegemm::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct Packing {
    /// Whether the product reads a copy of A.
    pub a: bool,
    /// Whether the product reads a copy of B.
    pub b: bool,
    /// Whether the product writes to the workspace, and D is copied from there.
    pub d: bool,
}

/// Bytes of the copies, in the order in which the copies lie in the workspace.
#[cfg(any(feature = "cuda", test))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copies {
    pub a: u64,
    pub b: u64,
    pub d: u64,
}

impl Packing {
    /// The packings that may be faster than no packing for the canonical `problem`.
    pub(crate) fn each(problem: &Problem) -> impl Iterator<Item = Self> {
        let packings = if is_packable(problem) { Self::candidates(problem) } else { [None; 7] };
        packings.into_iter().flatten()
    }

    /// A copy of D in f32 for a kernel that does not fuse the epilogue, where D has 16 bits.
    pub(crate) fn unfused(problem: &Problem) -> Option<Self> {
        let has_copy = rounds_after_copy(problem) && may_copy_d(problem) && problem.groups.is_none();
        has_copy.then_some(Self { d: true, ..Self::default() })
    }

    fn candidates(problem: &Problem) -> [Option<Self>; 7] {
        if converts(problem) {
            let is_copied = problem.a.format != copied_format(problem, &problem.a);
            let a = is_copied || !is_plain(&problem.a, problem.m, problem.k);
            let with_d = has_odd_d(problem) || rounds_after_copy(problem);
            return [
                Some(Self { a, b: true, d: false }),
                with_d.then_some(Self { a, b: true, d: true }),
                None,
                None,
                None,
                None,
                None,
            ];
        }
        let [a, b] = [!is_plain(&problem.a, problem.m, problem.k), !is_plain(&problem.b, problem.k, problem.n)];
        let (odd_n, odd_d) = (has_odd_n(problem), has_odd_d(problem));
        let none = Self::default();
        let inputs = Self { a, b, d: false };
        let all = Self { a, b: b || odd_n, d: true };
        let may_copy_d = may_copy_d(problem);
        let packings = [inputs, if odd_d && may_copy_d { all } else { none }];
        // Copies of the operands whose two batch dimensions do not merge make one batch dimension, which more kernels take.
        let [x, y, z] = [problem.a, problem.b, problem.d].map(|operand| !operand.merges(problem.batch));
        let merged = |packing: Self| {
            let merged = Self { a: packing.a || x, b: packing.b || y, d: packing.d || z };
            if merged == packing || (merged.d && !may_copy_d) {
                none
            } else {
                merged
            }
        };
        let [inputs, all] = packings;
        let merged_all = if all == none { none } else { merged(all) };
        // Some kernels read a B at any address.
        let only_a = if a && b { Self { b: false, ..inputs } } else { none };
        let only_d = Self::unfused(problem).unwrap_or(none);
        let with_d = if only_d != none && (a || b) { Self { d: true, ..inputs } } else { none };
        let packings = [inputs, all, only_a, merged(inputs), merged_all, only_d, with_d];
        std::array::from_fn(|i| {
            let is_new = packings[i] != none && !packings[..i].contains(&packings[i]);
            is_new.then_some(packings[i])
        })
    }

    /// No packing and all packings, with which every number of rows can have the same kernels: where the epilogue is not bare, those with a copy of D,
    /// or those without. A product in place has no packing: the number of rows decides whether the copies of the whole product have room.
    pub(crate) fn each_invariant(problem: &Problem, copies_d: bool) -> impl Iterator<Item = Option<Self>> {
        let is_bare = problem.epilogue.keep(Fusion::None).1 == 0;
        let in_place = problem.epilogue.in_place;
        let packings = Self::each(problem).filter(move |_| !in_place).map(Some);
        let all = std::iter::once(None).chain(packings);
        // A product that is copied to D is rounded, to f32 at least, before the rest of the epilogue.
        all.filter(move |packing| is_bare || packing.is_some_and(|packing| packing.d) == copies_d)
    }

    /// The problem that a kernel gets instead of the canonical `problem`.
    pub(crate) fn inner(self, problem: &Problem) -> Problem {
        let mut inner = self.copied(problem);
        inner.merge_batch();
        inner
    }

    /// The same with the batch dimensions of `problem`.
    pub(crate) fn copied(self, problem: &Problem) -> Problem {
        let mut inner = *problem;
        // With zeros behind the end of K, loads of 16 bytes need not stop inside. In f32 the real K decides which kernels are exact enough.
        if self.a && self.b && problem.layout() == Layout::NT && !problem.is_f32() {
            inner.k = problem.k.next_multiple_of(elements_of_16_bytes(copied_format(problem, &problem.a)));
        }
        let [m, n, k] = [problem.m, problem.n, problem.k].map(|extent| extent.next_multiple_of(PITCH) as i64);
        if self.a {
            inner.a = copy_of(&problem.a, copied_format(problem, &problem.a), [m, k], problem.batch);
        }
        if self.b {
            inner.b = copy_of(&problem.b, copied_format(problem, &problem.b), [k, n], problem.batch);
        }
        if self.d {
            // Stores end with whole pieces of 16 bytes, where B has columns for them.
            if self.b {
                inner.n = problem.n.next_multiple_of(elements_of_16_bytes(problem.d.format));
            }
            inner.d = copy_of(&problem.d, copied_format_of_d(problem), [m, n], problem.batch);
            inner.epilogue = problem.epilogue.keep(Fusion::None).0;
        }
        inner
    }

    /// The part of the workspace that the copies take.
    pub(crate) fn footprint(self, problem: &Problem) -> Option<Footprint> {
        let bytes = |is_copied: bool, operand: &Operand| match is_copied {
            true => copied_format(problem, operand).bytes(1) as u64,
            false => 0,
        };
        let footprint =
            Footprint::new(problem, [bytes(self.a, &problem.a), bytes(self.b, &problem.b)], [PITCH; 2], [256, 2048]);
        let empty = Footprint { row: 0, column: 0, element: 0, lines: [PITCH; 2], step: [256, 2048] };
        let element = if self.d { copied_format_of_d(problem).bytes(1) as u64 } else { 0 };
        Some(Footprint { element, ..footprint.unwrap_or(empty) })
    }

    #[cfg(any(feature = "cuda", test))]
    /// Bytes of the copies for a problem or a piece of the problem.
    pub(crate) fn copies(self, problem: &Problem) -> Copies {
        let [m, n, k] = [problem.m, problem.n, problem.k].map(|extent| extent.next_multiple_of(PITCH));
        let matrices = problem.batch_count();
        let bytes = |is_copied: bool, format: Format, elements: usize| match is_copied {
            true => format.bytes(elements.saturating_mul(matrices)) as u64,
            false => 0,
        };
        let [a, b] = [&problem.a, &problem.b].map(|operand| copied_format(problem, operand));
        let d = copied_format_of_d(problem);
        Copies { a: bytes(self.a, a, m * k), b: bytes(self.b, b, k * n), d: bytes(self.d, d, m * n) }
    }

    /// The expected time of the copies, in microseconds.
    pub(crate) fn us(self, problem: &Problem, device: &DeviceInfo) -> f64 {
        let Problem { m, n, k, .. } = *problem;
        let operands = [
            (self.a, &problem.a, [m, k], SHORT_LINE),
            (self.b, &problem.b, [k, n], SHORT_LINE),
            (self.d, &problem.d, [m, n], f64::INFINITY),
        ];
        let copied = operands.into_iter().filter(|(is_copied, ..)| *is_copied);
        copied
            .map(|(_, operand, [rows, columns], longest)| {
                let bytes = operand.format.bits() / 8.0;
                let copied = match std::ptr::eq(operand, &problem.d) {
                    true => copied_format_of_d(problem),
                    false => copied_format(problem, operand),
                };
                let (lines, elements) = if operand.col_stride == 1 { (rows, columns) } else { (columns, rows) };
                let line = bytes * elements as f64;
                let has_lines = problem.batch_count() > 1 && operand.align() < 16 && line < longest;
                let factor = if has_lines { 1.0 + LINE_BYTES / line } else { 1.0 };
                let is_converted = converts(problem) && std::ptr::eq(operand, &problem.b);
                let rate = if is_converted { RATE_OF_BLOCKS } else { RATE };
                let moved = distinct(problem, operand) * rows as f64 * columns as f64 * (bytes + copied.bits() / 8.0);
                let moved = moved + operand.scale.map_or(0.0, |scale| scale.bytes([rows, columns]));
                let is_one = problem.batch_count() == 1 && copied == operand.format;
                let of_lines = if is_one && line < SHORTEST_LINE { LINE_US * lines as f64 } else { 0.0 };
                let us = (factor * pipeline::stream_us(moved, rate, device)).max(of_lines);
                LAUNCHES * device.model.launch_us + us
            })
            .sum()
    }

    fn operands(self) -> impl Iterator<Item = &'static str> {
        let names = [(self.a, "A"), (self.b, "B"), (self.d, "D")];
        names.into_iter().filter(|(is_copied, _)| *is_copied).map(|(_, name)| name)
    }

    /// The names of the copied operands: `AB`.
    pub fn names(self) -> String {
        self.operands().collect()
    }

    /// The names of the copied operands in a sentence: `A, B`.
    pub(crate) fn list(self) -> String {
        self.operands().collect::<Vec<_>>().join(", ")
    }
}

/// The name of a kernel that gets copies of these operands.
pub(crate) fn name(kernel: &str, packing: Option<Packing>) -> String {
    packing.map_or(kernel.into(), |packing| format!("{kernel}+copies_{}", packing.names()))
}

fn elements_of_16_bytes(format: Format) -> usize {
    16 / format.bytes(1).clamp(1, 16)
}

/// Whether K ends with whole pieces of 16 bytes, and in 16 bits M, where columns of A are contiguous. cuBLAS takes kernels for unaligned operands
/// elsewhere, wherever lines start: 1473 x 3583 x 4096 tt on copies took 572 us, 377 without.
pub(crate) fn is_whole(inner: &Problem) -> bool {
    let whole = |size: usize| size.is_multiple_of(elements_of_16_bytes(inner.a.format));
    let is_half = inner.a.format.bytes(1) == 2;
    whole(inner.k) && (!is_half || inner.a.col_stride == 1 || whole(inner.m))
}

/// Whether rows of D end inside of 16 bytes.
fn has_odd_n(problem: &Problem) -> bool {
    !problem.n.is_multiple_of(elements_of_16_bytes(problem.d.format))
}

/// The same, or D or its rows start inside.
pub(crate) fn has_odd_d(problem: &Problem) -> bool {
    has_odd_n(problem) || problem.d.align() < MAX_ALIGN
}

/// Whether `tg_copy` converts B, and kernels with results in D's format take the copies.
fn has_weights_to_convert(problem: &Problem) -> bool {
    let Problem { n, k, a, b, d, .. } = problem;
    let is_one = problem.batch == [1, 1] && problem.layout() == Layout::NT && d.col_stride == 1;
    if !is_one || Limits::check_blocks(problem).is_err() {
        return false;
    }
    if !b.format.is_gguf_block() {
        let wide = a.format == d.format || d.format == Format::F32;
        return wide && *n.max(k) < INT - PITCH && Limits::check_factors(problem).is_ok();
    }
    // Words of blocks whose size is a multiple of 4 bytes are read at once; blocks of an odd size lie at any byte.
    let word = power_of_two_in(b.format.block().bytes as u64).min(4);
    b.pointer_align >= word && [Format::F32, Format::BF16].contains(&a.format) && a.format == d.format
}

/// Whether the product has operands that copies may help.
fn is_packable(problem: &Problem) -> bool {
    let is_plain = |operand: &Operand| {
        matches!(operand.format, Format::F16 | Format::BF16 | Format::F32) && operand.scale.is_none()
    };
    let reads_b = if converts(problem) { has_weights_to_convert(problem) } else { is_plain(&problem.b) };
    problem.groups.is_none()
        && problem.epilogue.gate.is_none()
        && problem.k > 0
        && reads_b
        && [&problem.a, &problem.d].into_iter().all(is_plain)
        && [&problem.a, &problem.b, &problem.d]
            .iter()
            .all(|o| [o.row_stride, o.col_stride].into_iter().chain(o.batch_stride).all(|stride| stride >= 0))
}

/// Whether kernels can read the operand without a copy: contiguous lines that do not overlap and start at multiples of 16 bytes.
fn is_plain(operand: &Operand, rows: usize, columns: usize) -> bool {
    let along_rows = operand.col_stride == 1 && (operand.row_stride >= columns as i64 || rows == 1);
    let along_columns = operand.row_stride == 1 && (operand.col_stride >= rows as i64 || columns == 1);
    (along_rows || along_columns) && operand.align() >= MAX_ALIGN
}

/// The copy of an operand, in the same order of lines, or in rows where no dimension is contiguous. A dimension of the batch that repeats
/// one matrix is copied once.
fn copy_of(operand: &Operand, format: Format, [rows, columns]: [i64; 2], batch: [usize; 2]) -> Operand {
    let in_columns = operand.row_stride == 1 && operand.col_stride != 1;
    let strides = if in_columns { [1, rows] } else { [columns, 1] };
    let repeats = [0, 1].map(|dim| operand.batch_stride[dim] == 0 || batch[dim] == 1);
    // Of products that no memory holds the distances do not matter.
    let matrix = rows.saturating_mul(columns);
    let inner = if repeats[1] { 0 } else { matrix };
    let outer = match repeats {
        [true, _] => 0,
        [_, true] => matrix,
        _ => matrix.saturating_mul(batch[1] as i64),
    };
    Operand::new(format, strides, [outer, inner])
}

#[cfg(test)]
mod tests;
