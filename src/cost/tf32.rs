//! TF32: `sm90_tf32.cu`, and cuBLAS where it may round inputs.
//!
//! Fitted to recordings of a draft of the kernel and of cuBLAS 13.1 on an H100 (docs/f32.md): 50 of ours, mean error 4 %, and 17
//! of cuBLAS, 6 %.

use super::memory_us;
use crate::arch::DeviceInfo;
use crate::kernel::{KernelDesc, Math};
use crate::problem::{Layout, Problem};

/// A launch that overlaps the kernel before.
const LAUNCH_US: f64 = 1.8;
/// Stores go out in bursts, and take 1/6 more of memory than reads do.
const MEMORY: f64 = 1.17;
/// What L2 gives to all multiprocessors, multicast counted once, GB/s.
const L2_GBPS: f64 = 16_500.0;
/// The kernel before the product that transposes an operand: what it reads and writes, GB/s, and its launch.
const TRANSPOSE_GBPS: f64 = 2850.0;
const TRANSPOSE_US: f64 = 0.3;
/// Of a tile 64 wide the loads of a stage, microseconds: shared memory is busy for twice as long as tensor cores are.
const NARROW_STAGE_US: f64 = 0.34;

/// How one tile is computed: 128 rows of one operand, `width` of the other; `pair` of them share loads.
#[derive(Clone, Copy)]
struct Tile {
    width: f64,
    pair: f64,
    /// Of the sustained peak, between two epilogues.
    efficiency: f64,
    /// Microseconds that the epilogue takes for each column.
    column_us: f64,
}

impl Tile {
    fn new(width: u32, pair: u32) -> Self {
        let efficiency = match width {
            64 => 0.84,
            192 => 1.08,
            _ => 1.12,
        };
        Self { width: width.into(), pair: pair.into(), efficiency, column_us: 0.0142 }
    }

    /// The product of `r` by `s` tiles in `batch` matrices.
    fn us(&self, [r, s]: [usize; 2], problem: &Problem, device: &DeviceInfo) -> f64 {
        let count = |extent: usize, size: f64| (extent as f64 / size).ceil();
        let clusters = count(r, 128.0 * self.pair) * count(s, self.width) * problem.batch_count() as f64;
        let turns = (clusters / (f64::from(device.sm_count) / self.pair).floor()).ceil();
        let stages = count(problem.k, 32.0);

        let peak = super::peak_tflops(problem.dtype, Math::Tf32, device) * 1e6 / f64::from(device.sm_count);
        let stage_flops = 2.0 * 128.0 * self.width * 32.0;
        let products = stages * stage_flops / (peak * self.efficiency) + self.width * self.column_us;
        let narrow = self.width < 128.0;
        let arithmetic = turns * if narrow { products.max(stages * NARROW_STAGE_US) } else { products };
        let l2 = clusters * stages * (128.0 * self.pair + self.width) * 128.0 / (L2_GBPS * 1e3);
        let memory = MEMORY * memory_us(problem, device);
        // Narrow tiles overlap better: while one is stored, the next one's loads fit into the ring.
        let norm = if narrow { 4.5 } else { 3.0 };
        let sum: f64 = [arithmetic, l2, memory].map(|us| us.powf(norm)).iter().sum();
        sum.powf(1.0 / norm)
    }
}

/// As sm90_tf32.cu chooses between pairs and single blocks.
pub(super) fn us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    let [tile_m, tile_n, _] = kernel.tile;
    let [pair_m, pair_n] = kernel.cluster;
    let Problem { m, n, k, .. } = *problem;
    let exchanged = kernel.exchanges_operands();
    let (width, pair, r, s) = if exchanged { (tile_m, pair_n, n, m) } else { (tile_n, pair_m, m, n) };
    let tiles = r.div_ceil(128) * s.div_ceil(width as usize) * problem.batch_count();
    let alone = kernel.layout != Layout::NT && width == 256 && (r <= 128 || tiles <= device.sm_count as usize);
    let product = Tile::new(width, if alone { 1 } else { pair }).us([r, s], problem, device);
    let transposed = if kernel.layout == Layout::TN { 8.0 * (s * k * problem.batch_count()) as f64 } else { 0.0 };
    let transpose = if transposed > 0.0 { TRANSPOSE_US + transposed / (TRANSPOSE_GBPS * 1e3) } else { 0.0 };
    (LAUNCH_US + transpose + product).max(super::roofline_us(problem, device))
}

/// cuBLAS has tiles like ours but for the one 192 wide, and hides more of its epilogue. Of tn it transposes an operand over and
/// over, in shared memory.
pub(super) fn vendor_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let Problem { m, n, .. } = *problem;
    if m.min(n) <= 64 && problem.batch_count() == 1 && problem.layout() == Layout::NT {
        // It splits K of few rows: 26.9 us at 16 x 4096 x 4096.
        return 3.0 + 1.1 * super::memory_us(problem, device);
    }
    let layout = match problem.layout() {
        Layout::TN => 1.55,
        Layout::NN => 1.03,
        _ => 1.015,
    };
    let wide = Tile { column_us: 0.0103, ..Tile::new(256, 2) };
    let tiles = [(wide, [m, n]), (wide, [n, m]), (Tile::new(64, 2), [m, n]), (Tile::new(64, 2), [n, m])];
    let product = tiles.map(|(tile, sides)| tile.us(sides, problem, device)).into_iter().fold(f64::INFINITY, f64::min);
    (LAUNCH_US + 0.4 + product * layout).max(super::roofline_us(problem, device) * 1.001)
}
