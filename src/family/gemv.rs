//! `csrc/gemv`: a few rows with K contiguous in both operands. The kernel runs on the CUDA cores. Variants: tensor
//! cores from five rows on in 16 bits ([`Kind::Mma`]); a K that leaves most of a warp idle ([`Kind::Short`]); more than
//! eight rows in f32 ([`Kind::Wide`]).
//!
//! A configuration names the rows of A that an instance is compiled for and the rows of W that a warp multiplies at a
//! time (`tile`), the warps that split K (`split`), and the warps of a block. The tile selects one of the loops that
//! the kernel has for the problem ([`kinds`]).

use crate::config::Config;
use crate::cost::fitted::fitted;
use crate::cost::memory_us;
use crate::cost::pipeline::pull_us;
use crate::kernel::{Case, Family, KernelDesc};
use crate::problem::{Format, Problem};

/// Elements of B from which a plan also runs one to four rows in 16 bits on tensor cores. At 28672 x 4096 (235 MB)
/// tensor cores take 77.0 us with five rows, and the CUDA cores take 77.6 to 78.0 us with one to four rows. Tensor
/// cores were measured with five rows only; with four rows and 13 MB the CUDA cores are 4 to 5 % faster.
const MMA_ELEMENTS: usize = 100_000_000;
/// Warps of a block, unless more share a row of W.
const BLOCK_WARPS: u32 = 8;
const LANES: u32 = 32;

fitted! {
    Gemv {
        /// Time until all loads are in flight, beside the card's overlapped launch: in general, with a short K, on tensor cores. The kernel
        /// meanwhile prefetches weights into L2.
        launch_us: [f64; 3] = "us", -1.7 to 3.0;
        /// Tensor cores: time until all loads are in flight and the last have arrived.
        mma_start_us: f64 = "us", 0.0 to 8.0;
        /// Tensor cores: what a multiprocessor loads, over what it pulls: at K = 0, and at most.
        mma_pull: [f64; 2] = "", 0.1 to 2.0;
        /// Tensor cores: the K that adds all of what a multiprocessor pulls.
        mma_pull_k: f64 = "steps of K", 1000.0 to 1000000.0;
        /// Few rows of W: a step of K with one row of A, and of each further row.
        step_ns: [f64; 2] = "ns", 0.0 to 2.0;
        /// More than eight rows: each row from the seventh further one on.
        wide_row_us: f64 = "us", 0.0 to 3.0;
        /// More than eight rows: memory time over that of one pass.
        wide_memory: f64 = "", 1.0 to 2.0;
        /// A short K: each further row.
        short_row_us: f64 = "us", 0.0 to 2.0;
        /// CUDA cores: memory time over that of one pass.
        memory: f64 = "", 1.0 to 2.0;
        /// CUDA cores: each further row, for each byte of an element.
        row_us: f64 = "us", 0.0 to 1.0;
        /// CUDA cores: each further row, as a share of the memory time.
        row: f64 = "", 0.0 to 0.1;
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
        kinds(problem)
            .iter()
            .find(is_meant)
            .map_or(f64::INFINITY, |kind| self.filled_us(case, *kind).max(self.few_us(case)))
    }
}

impl Gemv {
    /// The launch of the CUDA cores' loops, of a short K, and of tensor cores.
    fn launch_us(&self, case: &Case, kind: usize) -> f64 {
        case.device.model.overlapped_launch_us + self.launch_us[kind]
    }

    /// The time where W has too few rows for the card.
    fn few_us(&self, case: &Case) -> f64 {
        let problem = case.problem;
        let blocks = problem.n.div_ceil(case.kernel.tile[1] as usize).saturating_mul(problem.batch_count());
        if blocks > case.device.sm_count as usize / 2 {
            return 0.0;
        }
        let [first, further] = self.step_ns;
        self.launch_us(case, 0) + 1e-3 * problem.k as f64 * (first + further * (problem.m as f64 - 1.0))
    }

    /// The time with enough rows of W for the whole card: memory (lanes beyond K load nothing), and a little for each
    /// further row's activations and multiplications; more of both from nine rows on (seven recordings, mean error 10 %, 20
    /// % where N is small).
    fn filled_us(&self, case: &Case, kind: Kind) -> f64 {
        let problem = case.problem;
        let (further, memory) = (problem.m as f64 - 1.0, memory_us(problem, case.device));
        match kind {
            Kind::Mma => self.mma_us(case),
            Kind::Wide => self.launch_us(case, 0) + self.wide_row_us * (further - 6.0) + self.wide_memory * memory,
            Kind::Short => self.launch_us(case, 1) + self.short_row_us * further + memory,
            Kind::Warps => {
                let (k, chunk) = (problem.k as f64, f64::from(case.kernel.tile[2]));
                let idle = (k / chunk).ceil() * chunk / k;
                let row = self.row_us * problem.b.format.bits() / 8.0 + self.row * memory;
                self.launch_us(case, 0) + self.memory * idle * memory + further * row
            }
        }
    }

    /// Memory time, or the load time of the busiest multiprocessor; W is distributed in units of at least 16 rows.
    fn mma_us(&self, case: &Case) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let tiles = (problem.n as f64 / 16.0).ceil() * problem.batch_count() as f64;
        let rows = 16.0 * (tiles / f64::from(device.sm_count)).ceil();
        let [least, most] = self.mma_pull;
        let share = (least + problem.k as f64 / self.mma_pull_k).min(most);
        let pull = pull_us(rows * problem.b.format.bytes(problem.k) as f64, share, device);
        self.launch_us(case, 2) + memory_us(problem, device).max(pull).hypot(self.mma_start_us)
    }
}
