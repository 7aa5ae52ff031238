//! Tiles of one TF32 product: those of our kernels, and those of cuBLAS where it may round inputs.
//!
//! Fitted to recordings of a draft of the kernel and of cuBLAS 13.1 on an H100 (docs/f32.md): 50 of ours, mean error 4 %, and 17
//! of cuBLAS, 6 %. Of narrow tiles, other clusters than pairs that share B come from the times of clusters of four at 1024^3, 2048^3,
//! 4096^3 and 2048 x 1536 x 384 only; K in halves from `sm90_swap_ab`.

use super::memory_us;
use crate::arch::DeviceInfo;
use crate::kernel::Math;
use crate::problem::{Layout, Problem};

/// A launch that overlaps the kernel before.
pub(crate) const LAUNCH_US: f64 = 1.8;
/// Stores go out in bursts, and take 1/6 more of memory than reads do; and cuBLAS's.
pub(crate) const MEMORY: f64 = 1.17;
const VENDOR_MEMORY: f64 = 1.13;
/// K that the ring of a narrow tile holds.
pub(crate) const RING_K: usize = 256;
/// What L2 gives to all multiprocessors, multicast counted once, GB/s.
const L2_GBPS: f64 = 16_500.0;
/// Of a tile 64 wide each KiB of a stage's loads that comes from L2, multicast counted once, microseconds; and for how much of it
/// shared memory takes as long.
const NARROW_KIB_US: f64 = 0.017;
const NARROW_KIB: f64 = 14.0;
/// Sums that meet.
const MEET_US: f64 = 2.0;

/// Blocks of a cluster: along the side of tiles that has 128 rows, which share the other operand; along the other side; parts of K.
pub(crate) type Cluster = [f64; 3];

/// How one tile is computed: 128 rows of one operand, `width` of the other.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    width: f64,
    cluster: Cluster,
    /// Of the sustained peak, between two epilogues.
    efficiency: f64,
    /// Microseconds that the epilogue takes for each column.
    column_us: f64,
    /// Of the time that reading as many bytes would take.
    memory: f64,
}

impl Tile {
    pub fn new(width: u32, cluster: Cluster) -> Self {
        let efficiency = match width {
            64 => 0.84,
            192 => 1.08,
            _ => 1.12,
        };
        Self { width: width.into(), cluster, efficiency, column_us: 0.0142, memory: MEMORY }
    }

    /// With another share of the time that reading as many bytes would take.
    pub fn with_memory(self, memory: f64) -> Self {
        Self { memory, ..self }
    }

    /// The product of `r` by `s` in each matrix of the batch.
    pub fn us(&self, [r, s]: [usize; 2], problem: &Problem, device: &DeviceInfo) -> f64 {
        let count = |extent: usize, size: f64| (extent as f64 / size).ceil();
        let [along_r, along_s, split] = self.cluster;
        let clusters = count(r, 128.0 * along_r) * count(s, self.width * along_s) * problem.batch_count() as f64;
        let blocks = along_r * along_s * split;
        // Clusters of four reach 120 of 132 multiprocessors.
        let reached = f64::from(device.sm_count) * if blocks > 2.0 { 10.0 / 11.0 } else { 1.0 };
        let turns = (clusters / (reached / blocks).floor()).ceil();
        let all_stages = count(problem.k, 32.0);
        let stages = (all_stages / split).ceil();

        let peak = super::peak_tflops(problem.a.format, Math::Tf32, device) * 1e6 / f64::from(device.sm_count);
        let stage_flops = 2.0 * 128.0 * self.width * 32.0;
        let products = stages * stage_flops / (peak * self.efficiency) + self.width * self.column_us;
        let narrow = self.width < 128.0;
        let kib = (16.0 / along_s + self.width / 8.0 / along_r).max(NARROW_KIB);
        let turn = if narrow { products.max(stages * kib * NARROW_KIB_US) } else { products };
        let arithmetic = turns * turn + if split > 1.0 { MEET_US } else { 0.0 };
        let l2 = clusters * all_stages * (128.0 * along_r + self.width * along_s) * 128.0 / (L2_GBPS * 1e3);
        let memory = self.memory * memory_us(problem, device);
        // While a narrow tile is stored, all loads of the next one fit into the ring, where K is short.
        let norm = if narrow && problem.k <= RING_K { 16.0 } else { 4.5 };
        let sum: f64 = [arithmetic, l2, memory].map(|us| us.powf(norm)).iter().sum();
        sum.powf(1.0 / norm)
    }
}

/// cuBLAS has tiles like ours but for the one 192 wide, and hides more of its epilogue. Of tn it transposes an operand over and
/// over, in shared memory.
pub(crate) fn vendor_us(problem: &Problem, device: &DeviceInfo) -> f64 {
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
    let pair = [2.0, 1.0, 1.0];
    let tile = |width| Tile::new(width, pair).with_memory(VENDOR_MEMORY);
    let (wide, narrow) = (Tile { column_us: 0.0103, ..tile(256) }, tile(64));
    let tiles = [(wide, [m, n]), (wide, [n, m]), (narrow, [m, n]), (narrow, [n, m])];
    let product = tiles.map(|(tile, sides)| tile.us(sides, problem, device)).into_iter().fold(f64::INFINITY, f64::min);
    (LAUNCH_US + 0.4 + product * layout).max(super::roofline_us(problem, device) * 1.001)
}
