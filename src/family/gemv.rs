//! `csrc/gemv`: a few rows with K contiguous in both operands. The kernel runs on the CUDA cores. Variants: tensor
//! cores from five rows on in 16 bits ([`Kind::Mma`]); a K that leaves most of a warp idle ([`Kind::Short`]); more than
//! eight rows in f32 ([`Kind::Wide`]).
//!
//! A configuration names the rows of A that an instance is compiled for and the rows of W that a warp multiplies at a
//! time (`tile`), the warps that split K (`split`), and the warps of a block. The tile selects one of the loops that
//! the kernel has for the problem ([`kinds`]).

use crate::config::Config;
use crate::cost::memory_us;
use crate::kernel::{Case, Family, KernelDesc};
use crate::problem::{Format, Problem};

/// Time until all loads are in flight, microseconds. The kernel overlaps the kernel before and meanwhile prefetches
/// weights into L2.
const LAUNCH_US: f64 = 0.5;
const SHORT_US: f64 = 0.75;
/// Tensor cores, microseconds: time on top of the bytes, and time until all loads are in flight and the last have
/// arrived. Fitted to recordings of the kernel's draft with 5 and 8 rows: 12 recordings with W of 34 to 235 MB (at most
/// 2.5 % off), and 4 with 12.6 MB (3 to 5 % too long, which correctly leaves these products to sm90_swap_ab).
const MMA_US: (f64, f64) = (1.05, 2.8);
/// Load rate of a multiprocessor, GB/s: at K = 0, the K that adds 1 GB/s, and the maximum. Five products whose rows of
/// W do not divide evenly.
const MMA_SM_GBPS: (f64, f64, f64) = (22.5, 1200.0, 35.0);
/// Elements of B from which a plan also runs one to four rows in 16 bits on tensor cores. At 28672 x 4096 (235 MB)
/// tensor cores take 77.0 us with five rows, and the CUDA cores take 77.6 to 78.0 us with one to four rows. Tensor
/// cores were measured with five rows only; with four rows and 13 MB the CUDA cores are 4 to 5 % faster.
const MMA_ELEMENTS: usize = 100_000_000;
/// Few rows of W leave multiprocessors idle, and each block goes through all of K: nanoseconds of one step of K with
/// one row of A, and of each further row. Two products on an H100: 1 x 1 x 1000000 in f32 takes 53 us, 16 x 128 x 65536
/// 163.
const K_NS: (f64, f64) = (0.053, 0.16);

/// Warps of a block, unless more share a row of W.
const BLOCK_WARPS: u32 = 8;
const LANES: u32 = 32;

pub(crate) struct Gemv;

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

/// The loops that the kernel has for the problem. A plan takes the first loop. `Warps` and `Short` share tiles, but
/// never for the same problem.
fn kinds(problem: &Problem) -> &'static [Kind] {
    let halves = problem.b.format.bytes(1) == 2;
    match problem.m {
        ..=4 if problem.b.format.bytes(problem.k) <= 512 => &[Kind::Short],
        ..=4 if halves && problem.n.saturating_mul(problem.k) >= MMA_ELEMENTS => &[Kind::Mma, Kind::Warps],
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
    /// Rows of A that a block loads for each tile; 0 where A stays in L1.
    a_rows: u32,
    /// Warps that may share a row and split K, in order of preference, and warps of a block.
    cuts: &'static [(u32, u32)],
    /// Whether idle multiprocessors add to the cost: full memory bandwidth needs loads from all multiprocessors.
    spreads: bool,
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
                Self {
                    m,
                    rows: kernel.tile[1],
                    chunk: kernel.tile[2] * deep,
                    warps_per_sm: 16,
                    a_rows: 0,
                    cuts,
                    spreads: false,
                }
            }
            Kind::Short => {
                let m = if m > 2 { 4 } else { m };
                let loads = problem.k.div_ceil(width as usize);
                let lanes = [8, 16].into_iter().find(|lanes| loads <= *lanes as usize).unwrap_or(LANES);
                Self {
                    m,
                    rows: 2 * LANES / lanes,
                    chunk: lanes * width,
                    warps_per_sm: 24,
                    a_rows: 0,
                    cuts: &[(1, 8)],
                    spreads: false,
                }
            }
            Kind::Mma => {
                Self { m: 8, rows: 16, chunk: 128, warps_per_sm: 16, a_rows: 0, cuts: MMA_CUTS, spreads: true }
            }
            Kind::Wide => {
                let m = if m > 12 { 16 } else { 12 };
                Self {
                    m,
                    rows: 8,
                    chunk: 256,
                    warps_per_sm: BLOCK_WARPS,
                    a_rows: m,
                    cuts: wide_cuts(kernel, m),
                    spreads: false,
                }
            }
        }
    }

    fn tile(&self) -> [u32; 2] {
        [self.m, self.rows]
    }

    fn config(&self, (split, warps): (u32, u32)) -> Config {
        Config { tile: self.tile(), split, warps, ..Config::default() }
    }

    /// The cost has two factors: the chunks that a warp processes one after the other, and the bytes that the busiest
    /// multiprocessor loads.
    fn cost(&self, (split, warps): (u32, u32), n: u64, k: u64, sms: u64) -> f64 {
        let tile_rows = u64::from(warps / split * self.rows);
        let tiles = n.div_ceil(tile_rows);
        let blocks = sms * u64::from(self.warps_per_sm / warps);
        let turns = tiles.div_ceil(blocks) * k.div_ceil(u64::from(self.chunk * split));
        let busiest = tiles.div_ceil(sms) * (tile_rows + u64::from(self.a_rows));
        let idle = if self.spreads { (tiles as f64 / sms as f64).min(1.0).sqrt() } else { 1.0 };
        turns as f64 * busiest as f64 / idle
    }
}

/// Splits on tensor cores. In 18 products on an H100 (docs/performance.md) the choice takes 1.005 times the best
/// measured time on average and 1.012 times at worst, among all engines, splits, clusters and overlaps.
const MMA_CUTS: &[(u32, u32)] = &[(8, 16), (4, 8), (16, 16), (2, 8), (1, 8)];

/// Where an architecture gives a block enough shared memory, the chunks of A for several parts of K lie there side by
/// side.
fn wide_cuts(kernel: &KernelDesc, m: u32) -> &'static [(u32, u32)] {
    let most = (if kernel.arch.capability >= 120 { 99 } else { 227 }) * 1024;
    let sums = BLOCK_WARPS * (m * 8).next_power_of_two();
    match 4 * (3 * 4 * m * 256 + 2 * sums) <= most {
        true => &[(2, 8), (4, 8), (1, 8)],
        false => &[(1, 8)],
    }
}

impl Family for Gemv {
    fn configurations(&self, case: &Case) -> Vec<Config> {
        let shapes = kinds(case.problem).iter().map(|kind| Shape::of(case.kernel, case.problem, *kind));
        shapes.flat_map(|shape| shape.cuts.iter().map(move |cut| shape.config(*cut))).collect()
    }

    /// The cheapest split; between nearly equal costs, the first.
    fn choose(&self, case: &Case) -> Config {
        let problem = case.problem;
        let shape = Shape::of(case.kernel, problem, kinds(problem)[0]);
        // A batch fills the device by itself, and so do many rows of W.
        let sms = (case.device.sm_count as usize / problem.batch_count()).max(1) as u64;
        let (n, k) = (problem.n as u64, problem.k as u64);
        let mut best = (shape.cuts[0], f64::INFINITY);
        for &cut in shape.cuts {
            let cost = shape.cost(cut, n, k, sms);
            if cost < 0.97 * best.1 {
                best = (cut, cost);
            }
        }
        shape.config(best.0)
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let (kernel, problem) = (case.kernel, case.problem);
        let is_meant = |kind: &&Kind| Shape::of(kernel, problem, **kind).tile() == config.tile;
        kinds(problem).iter().find(is_meant).map_or(f64::INFINITY, |kind| filled_us(case, *kind).max(few_us(case)))
    }
}

/// The time where W has too few rows for the card.
fn few_us(case: &Case) -> f64 {
    let problem = case.problem;
    let blocks = problem.n.div_ceil(case.kernel.tile[1] as usize).saturating_mul(problem.batch_count());
    if blocks > case.device.sm_count as usize / 2 {
        return 0.0;
    }
    let (first, further) = K_NS;
    LAUNCH_US + 1e-3 * problem.k as f64 * (first + further * (problem.m as f64 - 1.0))
}

/// The time with enough rows of W for the whole card: memory (lanes beyond K load nothing), and a little for each
/// further row's activations and multiplications; more of both from nine rows on (seven recordings, mean error 10 %, 20
/// % where N is small).
fn filled_us(case: &Case, kind: Kind) -> f64 {
    let problem = case.problem;
    let (further, memory) = (problem.m as f64 - 1.0, memory_us(problem, case.device));
    match kind {
        Kind::Mma => mma_us(case),
        Kind::Wide => LAUNCH_US + 0.5 * (further - 6.0) + 1.09 * memory,
        Kind::Short => SHORT_US + 0.2 * further + memory,
        Kind::Warps => {
            let (k, chunk) = (problem.k as f64, f64::from(case.kernel.tile[2]));
            let idle = (k / chunk).ceil() * chunk / k;
            LAUNCH_US + 1.01 * idle * memory + further * (0.05 * problem.b.format.bits() / 8.0 + 0.004 * memory)
        }
    }
}

/// Memory time, or the load time of the busiest multiprocessor; W is distributed in units of at least 16 rows.
fn mma_us(case: &Case) -> f64 {
    let (problem, device) = (case.problem, case.device);
    let tiles = (problem.n as f64 / 16.0).ceil() * problem.batch_count() as f64;
    let rows = 16.0 * (tiles / f64::from(device.sm_count)).ceil();
    let (least, per_k, most) = MMA_SM_GBPS;
    let rate = (least + problem.k as f64 / per_k).min(most);
    let pull = rows * problem.b.format.bytes(problem.k) as f64 / (rate * 1e3);
    let (launch, start) = MMA_US;
    launch + memory_us(problem, device).max(pull).hypot(start)
}
