//! The most of everything that each family takes, as numbers: the one statement of them.
//!
//! A launch function in `csrc` refuses what lies beyond the numbers of its family; its comment names this file. `ELEMENTS` is
//! checked here alone.
//! `tests/limits.rs` checks the numbers on any machine, `tests/gpu/limits.rs` checks the launch functions against them.

use super::{Family, KernelDesc, Rejection};
use crate::arch::DeviceInfo;
use crate::problem::{Layout, Operand, Problem};

const INT: usize = i32::MAX as usize;
/// Extents that 32-bit indices reach, with room for one step of a persistent loop beyond the end.
const HALF: usize = INT / 2;
/// Extents that are rounded up to tiles.
const ROUNDED: usize = INT - 1024;
/// The y extent of a grid.
const GRID_Y: usize = 65_535;
const ANY: usize = usize::MAX;
/// Elements of D, for every family: no address space holds more, and 64 bits hold every number of elements and bytes.
const ELEMENTS: usize = 1 << 48;
/// `cuTensorMapEncodeTiled` takes strides below this number of bytes.
const TMA_STRIDE: u64 = 1 << 40;

/// What the launch functions of a family take at most.
struct Limits {
    rows: usize,
    columns: usize,
    k: usize,
    matrices: usize,
    tiles: Tiles,
}

/// The number of tiles of D that a launch counts.
struct Tiles {
    /// Rows and columns of the smallest tile.
    sides: [usize; 2],
    most: usize,
    /// Whether the tiles of all matrices count together.
    of_batch: bool,
}

impl Limits {
    fn of(kernel: &KernelDesc, problem: &Problem) -> Self {
        let tile = kernel.tile.map(|side| side as usize);
        let cluster = [0, 1].map(|i| tile[i] * kernel.cluster[i] as usize);
        let few_rows = |columns| Self {
            rows: tile[0],
            matrices: GRID_Y,
            ..Self::cube(HALF, Tiles { sides: [1, columns], most: ANY, of_batch: false })
        };
        let in_batch = |sides, most| Tiles { sides, most, of_batch: true };
        let in_matrix = |sides, most| Tiles { sides, most, of_batch: false };
        match kernel.family {
            Family::Cublas | Family::Reference => Self::cube(ANY, in_matrix([1, 1], ANY)),
            Family::SplitK => Self::cube(ANY, in_batch([tile[0], tile[1]], INT)),
            // What is added to its own result takes one launch: a later one may fail.
            Family::SimtGemm if problem.epilogue.in_place => {
                Self { k: INT, ..Self::cube(ANY, in_batch([tile[0], tile[1]], INT)) }
            }
            Family::SimtGemm => Self { k: INT, ..Self::cube(ANY, in_matrix([tile[0], tile[1]], INT)) },
            Family::Gemv | Family::Gevm | Family::Sm90Skinny => few_rows(tile[1]),
            Family::Outer => Self { matrices: GRID_Y, ..Self::cube(HALF, in_matrix([16, 64], INT)) },
            Family::Sm90Wave => {
                let width = kernel.widths.iter().min().map_or(tile[1], |width| *width as usize);
                let sides = if kernel.schedule == "exchanged" { [width, tile[1]] } else { [tile[0], width] };
                Self { matrices: GRID_Y, ..Self::cube(HALF, in_matrix(sides, INT / 16)) }
            }
            Family::Sm90Gemm => Self::cube(ROUNDED, in_batch(cluster, INT / 256)),
            Family::Sm90Bf16x6 => Self { matrices: INT / 12, ..Self::cube(INT / 4, in_batch(cluster, INT / 4)) },
            Family::Sm90Bf16x6Direct => Self::cube(ROUNDED, in_batch([64, 64], INT / 64)),
            Family::Sm90Tf32 => Self::cube(HALF, in_batch([tile[0], tile[1]], INT / 16)),
            Family::Sm90Sgemm => Self::cube(INT / 4, in_batch(smallest_fma_tile(tile), INT / 4)),
            Family::Sm90Dgemm => Self::cube(INT / 4, in_batch([tile[0], tile[1]], INT / 4)),
            Family::TileGemm => Self::cube(HALF, in_batch([tile[0], tile[1]], HALF)),
        }
    }

    /// The same for all extents.
    fn cube(extent: usize, tiles: Tiles) -> Self {
        Self { rows: extent, columns: extent, k: extent, matrices: extent, tiles }
    }
}

/// The smallest sides of the tiles that sm90_sgemm.cu chooses from for a row; rows and columns may be exchanged.
fn smallest_fma_tile(tile: [usize; 3]) -> [usize; 2] {
    match tile {
        [_, 256, _] => [128, 256],
        [256, ..] => [64, 64],
        _ => [96, 96],
    }
}

/// Whether every number of `problem` is within the limits of the family of `kernel`.
pub(super) fn check(kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
    let limits = Limits::of(kernel, problem);
    let Problem { m, n, k, .. } = *problem;
    let matrices = problem.batch_count();
    let Tiles { sides: [rows, columns], most, of_batch } = limits.tiles;
    let tiles = m.div_ceil(rows).saturating_mul(n.div_ceil(columns));
    let tiles = if of_batch { tiles.saturating_mul(matrices) } else { tiles };
    let counts = [
        ("rows", m, limits.rows),
        ("columns of B", n, limits.columns),
        ("columns of A", k, limits.k),
        ("matrices", matrices, limits.matrices),
        ("tiles", tiles, most),
        ("elements of D", m.saturating_mul(n).saturating_mul(matrices), ELEMENTS),
    ];
    match counts.into_iter().find(|(_, have, most)| have > most) {
        Some((what, have, most)) => Err(Rejection::TooMany { what, have, most }),
        None => Ok(()),
    }
}

/// Whether the device has as many multiprocessors as a cluster of the kernel has blocks.
pub(super) fn check_cluster(kernel: &KernelDesc, device: &DeviceInfo) -> Result<(), Rejection> {
    let need = kernel.cluster[0] * kernel.cluster[1];
    let asks = matches!(kernel.family, Family::Sm90Gemm | Family::Sm90Bf16x6 | Family::Sm90Tf32);
    match asks && need > device.sm_count {
        true => Err(Rejection::Multiprocessors { need, have: device.sm_count }),
        false => Ok(()),
    }
}

/// Whether TMA addresses the operands that the kernel reads or writes by TMA.
pub(super) fn check_strides(kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
    let [a, b, c, d] = by_tma(kernel, problem);
    let operands = [
        ("A", a.then_some(problem.a)),
        ("B", b.then_some(problem.b)),
        ("C", problem.epilogue.c.filter(|_| c && problem.epilogue.reads_c())),
        ("D", d.then_some(problem.d)),
    ];
    let most = TMA_STRIDE / problem.dtype.bytes() as u64 - 1;
    let strides = |o: &Operand| [o.row_stride, o.col_stride, o.batch_stride[0], o.batch_stride[1]];
    for (operand, layout) in operands {
        let beyond =
            layout.and_then(|o| strides(&o).into_iter().find(|x| u64::try_from(*x).map_or(true, |x| x > most)));
        if let Some(have) = beyond {
            return Err(Rejection::Stride { operand, have, most });
        }
    }
    Ok(())
}

/// Which of A, B, C and D go through TMA, whatever the epilogue is.
fn by_tma(kernel: &KernelDesc, problem: &Problem) -> [bool; 4] {
    match kernel.family {
        Family::Sm90Skinny | Family::Sm90Wave | Family::Sm90Bf16x6Direct | Family::Sm90Dgemm => {
            [true, true, false, false]
        }
        Family::Sm90Gemm | Family::TileGemm => [true; 4],
        Family::Sm90Bf16x6 => [matches!(kernel.layout, Layout::NN | Layout::NT), false, false, false],
        Family::Sm90Tf32 => [true, true, false, true],
        Family::Sm90Sgemm => {
            let [a, b] = kernel.transposes(problem);
            [!a, !b, false, false]
        }
        Family::Cublas | Family::Reference | Family::SimtGemm | Family::SplitK => [false; 4],
        Family::Gemv | Family::Gevm | Family::Outer => [false; 4],
    }
}
