//! `csrc/gemv`: a few rows with K contiguous in both operands. The kernel runs on the CUDA cores. Variants: tensor
//! cores from five rows on in 16 bits ([`Kind::Mma`]); a K that leaves most of a warp idle ([`Kind::Short`]); more than
//! eight rows in f32 ([`Kind::Wide`]).
//!
//! A configuration names the rows of A that an instance is compiled for and the rows of W that a warp multiplies at a
//! time (`tile`), the warps that split K (`split`), and the warps of a block. The tile selects one of the loops that
//! the kernel has for the problem ([`kinds`]).

use super::fitted::fitted;
use crate::config::Config;
use crate::cost::pipeline::room;
use crate::cost::{memory_us, overlap_by};
use crate::kernel::{Case, Family, KernelDesc};
use crate::problem::{Format, Problem};

/// Warps of a block, unless more share a row of W.
const BLOCK_WARPS: u32 = 8;
const LANES: u32 = 32;

/// A number for the CUDA cores in 16 bits and in f32, for tensor cores, and for more than eight rows in f32.
type ByLoops = [f64; 4];

fitted! {
    Gemv {
        /// Time until all loads are in flight, beside the card's overlapped launch. The kernel meanwhile prefetches weights into L2.
        launch_us: ByLoops = "us", -1.7 to 3.0;
        /// The part of that time that a card without work saves, times the share of the multiprocessors that have no block.
        idle_us: ByLoops = "us", -1.0 to 1.0;
        /// The time that a card with one block of several on each multiprocessor adds: such blocks have fewer loads in flight.
        thin_us: ByLoops = "us", -1.0 to 1.0;
        /// Memory time over the time of one pass.
        memory: ByLoops = "", 0.8 to 2.0;
        /// A chunk of K that a warp loads.
        chunk_us: ByLoops = "us", 0.0 to 3.0;
        /// The same, for each further row of A.
        chunk_row_us: ByLoops = "us", 0.0 to 1.0;
        /// The rest of a tile's time: the sums of a warp meet and are stored.
        tile_us: ByLoops = "us", -2.0 to 2.0;
        /// The same, for each doubling of the warps that split K.
        split_us: ByLoops = "us", -0.1 to 1.0;
        /// The same, for each further row of A.
        row_us: ByLoops = "us", 0.0 to 1.0;
        /// The norm by which memory and the tiles of a block overlap.
        norm: ByLoops = "", 1.0 to 16.0;
        /// A short K: the same time until all loads are in flight, and each further row.
        short_us: [f64; 2] = "us", -1.7 to 3.0;
    }
}

/// The kernel's loops.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// `gemv.cu`.
    Warps,
    /// `short.hpp`.
    Short,
    /// `mma.hpp`.
    Mma,
    /// `wide.hpp`.
    Wide,
}

/// The loops that the kernel has for the problem. `Warps` and `Short` share tiles, but never for the same problem.
fn kinds(problem: &Problem) -> &'static [Kind] {
    let halves = problem.b.format.bytes(1) == 2;
    match problem.m {
        ..=4 if problem.b.format.bytes(problem.k) <= 512 => &[Kind::Short],
        ..=4 if halves => &[Kind::Warps, Kind::Mma],
        _ if halves => &[Kind::Mma],
        9.. => &[Kind::Wide],
        _ => &[Kind::Warps],
    }
}

/// How a kernel distributes W.
struct Shape {
    /// Rows of A that the kernel is compiled for.
    m: u32,
    /// Rows of W and K, that a warp multiplies at a time.
    rows: u32,
    chunk: u32,
    /// Warps that run at a time on a multiprocessor.
    warps_per_sm: u32,
    /// Warps that may share a row and split K, in order of preference, and warps of a block.
    cuts: &'static [(u32, u32)],
}

impl Shape {
    fn of(kernel: &KernelDesc, problem: &Problem, kind: Kind) -> Self {
        let width = 16 / problem.b.format.bytes(1) as u32; // numbers of a load
        let m = problem.m as u32;
        match kind {
            Kind::Warps => {
                let m = if problem.m > 4 { m.next_multiple_of(2) } else { m };
                // With few rows in f32, twice as many loads are in flight.
                let deep = if problem.b.format == Format::F32 && m <= 3 { 2 } else { 1 };
                let cuts: &[_] = &[(4, 8), (8, 8), (2, 8), (1, 8), (16, 16)];
                Self { m, rows: kernel.tile[1], chunk: kernel.tile[2] * deep, warps_per_sm: 16, cuts }
            }
            Kind::Short => {
                let m = if m > 2 { 4 } else { m };
                let loads = problem.k.div_ceil(width as usize);
                let lanes = [8, 16].into_iter().find(|lanes| loads <= *lanes as usize).unwrap_or(LANES);
                Self { m, rows: 2 * LANES / lanes, chunk: lanes * width, warps_per_sm: 24, cuts: &[(1, 8)] }
            }
            Kind::Mma => Self { m: 8, rows: 16, chunk: 128, warps_per_sm: 16, cuts: MMA_CUTS },
            Kind::Wide => {
                let m = if m > 12 { 16 } else { 12 };
                Self { m, rows: 8, chunk: 256, warps_per_sm: BLOCK_WARPS, cuts: wide_cuts(kernel, m) }
            }
        }
    }

    fn tile(&self) -> [u32; 2] {
        [self.m, self.rows]
    }

    fn config(&self, (split, warps): (u32, u32)) -> Config {
        Config { tile: self.tile(), split, warps, ..Config::default() }
    }
}

/// Splits on tensor cores, and warps of a block.
const MMA_CUTS: &[(u32, u32)] = &[(8, 16), (4, 8), (16, 16), (2, 8), (1, 8)];

/// Where an architecture gives a block enough shared memory, the chunks of A for several parts of K lie there side by
/// side.
fn wide_cuts(kernel: &KernelDesc, m: u32) -> &'static [(u32, u32)] {
    let sums = BLOCK_WARPS * (m * 8).next_power_of_two();
    match 4 * (3 * 4 * m * 256 + 2 * sums) as usize <= super::bytes_of_block(kernel) {
        true => &[(2, 8), (4, 8), (1, 8)],
        false => &[(1, 8)],
    }
}

impl Family for Gemv {
    fn configurations(&self, case: &Case) -> Vec<Config> {
        let shapes = kinds(case.problem).iter().map(|kind| Shape::of(case.kernel, case.problem, *kind));
        shapes.flat_map(|shape| shape.cuts.iter().map(move |cut| shape.config(*cut))).collect()
    }

    fn choose(&self, case: &Case) -> Config {
        self.chosen(case).0
    }

    /// The least estimate; between equal ones, the first.
    fn chosen(&self, case: &Case) -> (Config, f64) {
        let kinds = kinds(case.problem).iter().map(|kind| (*kind, Shape::of(case.kernel, case.problem, *kind)));
        let timed = kinds.flat_map(|(kind, shape)| {
            shape.cuts.iter().map(move |cut| {
                let config = shape.config(*cut);
                (config, self.us(case, &config, &shape, kind))
            })
        });
        timed.min_by(|x, y| x.1.total_cmp(&y.1)).unwrap_or((Config::default(), f64::INFINITY))
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let shapes = kinds(case.problem).iter().map(|kind| (*kind, Shape::of(case.kernel, case.problem, *kind)));
        let mut meant = shapes.filter(|(_, shape)| shape.tile() == config.tile);
        meant.next().map_or(f64::INFINITY, |(kind, shape)| self.us(case, config, &shape, kind))
    }
}

impl Gemv {
    /// The tiles that a block processes one after the other, each in chunks of K, and the memory time, side by side.
    fn us(&self, case: &Case, config: &Config, shape: &Shape, kind: Kind) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let loops = match kind {
            Kind::Short => return self.short(case),
            Kind::Mma => 2,
            Kind::Wide => 3,
            Kind::Warps if problem.b.format.bytes(1) == 2 => 0,
            Kind::Warps => 1,
        };
        let [split, warps] = [config.split, config.warps].map(|count| count.max(1));
        let tiles =
            problem.n.div_ceil((warps / split * shape.rows).max(1) as usize).saturating_mul(problem.batch_count());
        let blocks = device.sm_count * (shape.warps_per_sm / warps).max(1);
        let turns = tiles.div_ceil(blocks.max(1) as usize) as f64;
        let idle = (1.0 - tiles as f64 / f64::from(device.sm_count)).max(0.0);
        let chunks = problem.k.div_ceil((shape.chunk * split) as usize) as f64;
        let rows = problem.m as f64 - 1.0;
        let chunk = self.chunk_us[loops] + self.chunk_row_us[loops] * rows;
        let sums = self.tile_us[loops] + self.split_us[loops] * f64::from(split.ilog2()) + self.row_us[loops] * rows;
        let memory = self.memory[loops] * memory_us(problem, device);
        let thin = self.thin_us[loops] * room(tiles as f64, f64::from(blocks));
        device.model.overlapped_launch_us + self.launch_us[loops] + thin - self.idle_us[loops] * idle
            + overlap_by(self.norm[loops], &[memory, turns * (chunks * chunk + sums)])
    }

    fn short(&self, case: &Case) -> f64 {
        let [launch, row] = self.short_us;
        let further = case.problem.m as f64 - 1.0;
        case.device.model.overlapped_launch_us + launch + row * further + memory_us(case.problem, case.device)
    }
}
