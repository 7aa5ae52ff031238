//! The limits of a kernel as numbers (`[limits]` of its family.toml, build/table/limits.rs), and the one piece of code that checks them.
//!
//! The build makes the numbers of C++ of the same lines, and `csrc/limits.cpp` checks them before each launch. Only this file checks
//! `ELEMENTS`. `tests/tables/edges.rs` holds both to edges worked out by hand, `tests/plan/limits.rs` holds families to 32-bit extents, and
//! `tests/gpu/limits.rs` launches the largest problems.

use super::{Fusion, Math, Rejection};
use crate::arch::DeviceInfo;
use crate::problem::{Format, Gate, Operand, Problem, Rows, MAX_ALIGN};

/// The largest signed 32-bit integer.
pub(crate) const INT: usize = i32::MAX as usize;
const ANY: usize = usize::MAX;
/// The most elements of D, for every family: no address space holds more, and 64 bits hold every number of elements and
/// bytes.
const ELEMENTS: usize = 1 << 48;
/// `cuTensorMapEncodeTiled` accepts strides below this number of bytes.
const TMA_STRIDE: u64 = 1 << 40;

/// A limit on the number of tiles of D in a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tiles {
    /// Rows and columns of the smallest tile.
    pub sides: [usize; 2],
    pub most: usize,
    /// Whether the tiles of all matrices count together.
    pub of_batch: bool,
}

/// An extent, or the contiguous extent of an operand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Extent {
    N,
    K,
    LineOfA,
    LineOfB,
}

/// Whether a kernel takes groups of rows with a B each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grouping {
    Never,
    Optional,
    Always,
}

/// Whether a kernel takes gated products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gating {
    Never,
    Optional,
    /// It takes no others, and gates in halves only.
    Halves,
}

/// The limits of a kernel on sizes, and its requirements on operands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limits {
    pub groups: Grouping,
    pub gates: Gating,
    /// Whether the kernel takes products whose gates multiply C.
    pub gates_c: bool,
    /// The most rows.
    pub rows: usize,
    pub columns: usize,
    pub k: usize,
    pub matrices: usize,
    pub tiles: Option<Tiles>,
    /// The range of K.
    pub least_k: usize,
    pub most_k: usize,
    /// Whether the operands may have any strides: the kernel indexes element by element.
    pub any_strides: bool,
    /// Whether the operands may have two batch dimensions.
    pub two_batch_dims: bool,
    /// The operands among A, B, C and D that must have the row's alignment.
    pub aligned: [bool; 4],
    /// The operands among A, B, C and D that go through TMA, whatever the epilogue is. They need lines at multiples of 16 bytes.
    pub tma: [bool; 4],
    /// Extents whose bytes must be a multiple of the row's alignment. TMA loads clip elements past the end of a line,
    /// but TMA stores do not, and cuTile proves TMA only for operands whose lines are multiples.
    pub multiples: &'static [Extent],
    /// Whether the row's cluster is a cluster of thread blocks.
    pub clustered: bool,
    /// Whether a kernel that does not fuse `beta * C` adds to D in place.
    pub adds_to_d: bool,
    /// The operands among A, B and D that may have factors ([`Scale`](crate::problem::Scale)).
    pub scales: [bool; 3],
}

/// What the limits mean of a kernel's row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub math: Math,
    pub cluster: [u32; 2],
    pub align: u32,
    pub fusion: Fusion,
}

impl Limits {
    /// The same limits with tiles of `sides`, at most `most` in all matrices together.
    pub const fn tiles_of_batch(self, sides: [usize; 2], most: usize) -> Self {
        Self { tiles: Some(Tiles { sides, most, of_batch: true }), ..self }
    }

    /// Checks `problem` against the limits of a kernel of this row.
    pub fn check(&self, row: &Row, problem: &Problem, device: &DeviceInfo) -> Result<(), Rejection> {
        if problem.k < self.least_k && self.least_k > 1 {
            return Err(Rejection::ShortSums { math: row.math, have: problem.k, least: self.least_k });
        }
        self.check_counts(problem)?;
        if !self.any_strides {
            check_lines(problem)?;
        }
        if !self.two_batch_dims && problem.batch[0] > 1 {
            return Err(Rejection::Batch);
        }
        self.check_alignment(row, problem)?;
        self.check_strides(problem)?;
        self.check_multiples(row, problem)?;
        self.check_epilogue(row, problem)?;
        if problem.k == 0 && self.least_k > 0 {
            return Err(Rejection::EmptyK);
        }
        if problem.k > self.most_k {
            return Err(Rejection::Sum { have: problem.k });
        }
        let need = row.cluster[0] * row.cluster[1];
        match self.clustered && need > device.sm_count {
            true => Err(Rejection::Multiprocessors { need, have: device.sm_count }),
            false => Ok(()),
        }
    }

    /// Checks whether blocks of B are whole and lie one after the other along K. Of packed codes the last block of a column may have fewer numbers.
    pub fn check_blocks(problem: &Problem) -> Result<(), Rejection> {
        let Problem { k, b, .. } = *problem;
        let block = b.format.block().elements;
        let whole_k = if b.format.is_narrow() { 0 } else { k as i64 };
        let strides = [b.col_stride, b.batch_stride[0], b.batch_stride[1]].map(|stride| ("a stride of B", stride));
        let is_whole = |(_, extent): &(&str, i64)| extent % block as i64 == 0;
        match [("K", whole_k)].into_iter().chain(strides).find(|extent| !is_whole(extent)) {
            _ if block == 1 => Ok(()),
            _ if b.row_stride != 1 => Err(Rejection::Blocks { block, what: "the stride along K", have: b.row_stride }),
            Some((what, have)) => Err(Rejection::Blocks { block, what, have }),
            None => Ok(()),
        }
    }

    /// Checks whether the factors of `problem` make sense.
    pub fn check_factors(problem: &Problem) -> Result<(), Rejection> {
        for (operand, name) in scaled(problem) {
            let Some(scale) = operand.scale else { continue };
            let has_format =
                matches!(scale.format, Format::F32 | Format::F16 | Format::BF16 | Format::F8E8M0 | Format::F8E4M3);
            let what = match () {
                _ if !has_format => "are in a format of no factors; expected f32, f16, bf16, f8e8m0 or f8e4m3",
                _ if scale.granularity.contains(&0) => "are for no rows or no columns; expected 1 or more",
                _ if scale.zeros && !operand.format.has_zero() => "have zeros; expected none, but of u4 and u8",
                _ => continue,
            };
            return Err(Rejection::Factors { operand: name, what });
        }
        Ok(())
    }

    /// Checks whether the kernel takes the factors of `problem`.
    pub fn check_scales(&self, problem: &Problem) -> Result<(), Rejection> {
        let mut refused = scaled(problem).into_iter().zip(self.scales);
        match refused.find(|((operand, _), takes)| operand.scale.is_some() && !takes) {
            Some(((_, operand), _)) => Err(Rejection::Scales { operand }),
            None => Self::check_factors(problem),
        }
    }

    /// Checks whether `problem` has groups where the kernel needs groups, and none where the kernel takes none.
    pub fn check_groups(&self, problem: &Problem) -> Result<(), Rejection> {
        match (self.groups, problem.groups) {
            (Grouping::Never, Some(_)) => Err(Rejection::Groups),
            (Grouping::Always, None) => Err(Rejection::NoGroups),
            (_, None) => Ok(()),
            (_, Some(groups)) => {
                let pairs = match groups.rows {
                    Rows::InOrder => 1,
                    Rows::Listed { pairs_per_row } => pairs_per_row,
                };
                Rejection::check_counts([
                    ("matrices D of groups", problem.batch_count(), 1),
                    ("groups", groups.count, INT / 2),
                    ("pairs of a row", pairs, INT),
                ])
            }
        }
    }

    /// Checks whether `problem` is gated where the kernel takes gated products only.
    pub fn check_gate(&self, problem: &Problem) -> Result<(), Rejection> {
        match (self.gates, problem.epilogue.gate) {
            (Gating::Halves, None | Some(Gate::Interleaved)) => Err(Rejection::NoGate),
            _ => Ok(()),
        }
    }

    fn check_counts(&self, problem: &Problem) -> Result<(), Rejection> {
        let Problem { m, n, k, .. } = *problem;
        let matrices = problem.batch_count();
        let tiles = self.tiles.map_or(0, |Tiles { sides: [rows, columns], of_batch, .. }| {
            let tiles = m.div_ceil(rows).saturating_mul(n.div_ceil(columns));
            if of_batch {
                tiles.saturating_mul(matrices)
            } else {
                tiles
            }
        });
        Rejection::check_counts([
            ("rows", m, self.rows),
            ("columns of B", n, self.columns),
            ("columns of A", k, self.k),
            ("matrices", matrices, self.matrices),
            ("tiles", tiles, self.tiles.map_or(ANY, |tiles| tiles.most)),
            ("elements of D", m.saturating_mul(n).saturating_mul(matrices), ELEMENTS),
        ])
    }

    fn check_alignment(&self, row: &Row, problem: &Problem) -> Result<(), Rejection> {
        let need = [0, 1, 2, 3].map(|i| match (self.aligned[i], self.tma[i]) {
            (true, true) => row.align.max(MAX_ALIGN),
            (true, false) => row.align,
            _ => 1,
        });
        match problem.alignments().into_iter().zip(need).find(|((_, have), need)| have < need) {
            Some(((operand, have), need)) => Err(Rejection::Alignment { operand, need, have }),
            None => Ok(()),
        }
    }

    fn check_strides(&self, problem: &Problem) -> Result<(), Rejection> {
        let c = problem.epilogue.c.filter(|_| problem.epilogue.reads_c());
        let operands = [("A", Some(problem.a)), ("B", Some(problem.b)), ("C", c), ("D", Some(problem.d))];
        for ((operand, layout), _) in operands.into_iter().zip(self.tma).filter(|(_, by_tma)| *by_tma) {
            let Some(o) = layout else { continue };
            let block = o.format.block();
            let most = TMA_STRIDE * block.elements as u64 / block.bytes as u64 - 1;
            let beyond = |stride: &i64| u64::try_from(*stride).map_or(true, |stride| stride > most);
            let strides = [o.row_stride, o.col_stride, o.batch_stride[0], o.batch_stride[1]];
            if let Some(have) = strides.into_iter().find(beyond) {
                return Err(Rejection::Stride { operand, have, most });
            }
        }
        Ok(())
    }

    fn check_multiples(&self, row: &Row, problem: &Problem) -> Result<(), Rejection> {
        let extent = |extent: &Extent| match extent {
            Extent::LineOfA if problem.a.col_stride != 1 => ("M", problem.m, problem.a),
            // The halves of a gated product are multiples.
            Extent::N if problem.epilogue.gate.is_some() => ("N / 2", problem.columns_of_d(), problem.d),
            Extent::N => ("N", problem.n, problem.d),
            Extent::LineOfB if problem.b.row_stride != 1 => ("N", problem.n, problem.b),
            Extent::LineOfB => ("K", problem.k, problem.b),
            Extent::K | Extent::LineOfA => ("K", problem.k, problem.a),
        };
        for (dimension, have, operand) in self.multiples.iter().map(extent) {
            let block = operand.format.block();
            let multiple = (row.align * block.elements as u32 / block.bytes as u32).max(1);
            if have % multiple as usize != 0 {
                return Err(Rejection::RowLength { dimension, have, multiple });
            }
        }
        Ok(())
    }

    fn check_epilogue(&self, row: &Row, problem: &Problem) -> Result<(), Rejection> {
        let epilogue = &problem.epilogue;
        if problem.groups.is_some() && epilogue.reads_c() {
            return Err(Rejection::Epilogue { what: "beta * C of groups of rows" });
        }
        if epilogue.gate.is_some() {
            match () {
                _ if self.gates == Gating::Never => return Err(Rejection::Epilogue { what: "a gate" }),
                _ if epilogue.reads_c() => return Err(Rejection::Epilogue { what: "beta * C of a gated product" }),
                _ if !problem.n.is_multiple_of(2) => {
                    return Err(Rejection::RowLength { dimension: "N", have: problem.n, multiple: 2 });
                }
                _ => {}
            }
        }
        if row.fusion < Fusion::BiasAct && epilogue.bias.is_some() {
            return Err(Rejection::Epilogue { what: "a bias" });
        }
        let activates = epilogue.activation != Default::default() && epilogue.gate.is_none();
        if row.fusion < Fusion::BiasAct && activates {
            return Err(Rejection::Epilogue { what: "an activation" });
        }
        if epilogue.gates_c && !self.gates_c {
            return Err(Rejection::Epilogue { what: "gates of C" });
        }
        let adds = self.adds_to_d && epilogue.in_place && epilogue.c == Some(problem.d);
        if row.fusion < Fusion::Full && epilogue.reads_c() && !adds {
            return Err(Rejection::Epilogue { what: "beta * C" });
        }
        Ok(())
    }
}

/// The operands that may have factors.
fn scaled(problem: &Problem) -> [(&Operand, &'static str); 3] {
    [(&problem.a, "A"), (&problem.b, "B"), (&problem.d, "D")]
}

/// Whether D and C have contiguous rows, and A and B one contiguous dimension whose lines do not overlap.
fn check_lines(problem: &Problem) -> Result<(), Rejection> {
    let Problem { m, n, k, a, b, .. } = *problem;
    if problem.d.col_stride != 1 {
        return Err(Rejection::NotRowMajor { operand: "D" });
    }
    if problem.epilogue.c.is_some_and(|c| c.col_stride != 1) {
        return Err(Rejection::NotRowMajor { operand: "C" });
    }
    let apart = |o: &Operand, rows: usize, columns: usize| {
        (o.col_stride == 1 && (o.row_stride >= columns as i64 || rows == 1))
            || (o.row_stride == 1 && (o.col_stride >= rows as i64 || columns == 1))
    };
    match () {
        _ if !apart(&a, m, k) => Err(Rejection::Overlap { operand: "A" }),
        _ if !apart(&b, k, n) => Err(Rejection::Overlap { operand: "B" }),
        _ => Ok(()),
    }
}
