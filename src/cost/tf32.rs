//! Tiles of one TF32 product: those of our kernels, and those of cuBLAS where it may round inputs.

use super::memory_us;
use super::pipeline::{l2_us, l2_us_of_one, Activities};
use crate::arch::DeviceInfo;
use crate::kernel::Math;
use crate::problem::Problem;

/// K that the ring of a narrow tile holds.
pub(crate) const RING_K: usize = 256;

/// Blocks of a cluster: along the side of tiles that has 128 rows, which share the other operand; along the other side; parts of K.
pub(crate) type Cluster = [f64; 3];

/// The fitted numbers of a tile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fit {
    /// Of the sustained peak, between two epilogues.
    pub efficiency: f64,
    /// Microseconds that the epilogue takes for each column.
    pub column_us: f64,
    /// Of the time that reading as many bytes would take.
    pub memory: f64,
    /// The share of what L2 gives to all multiprocessors, multicast counted once.
    pub l2: f64,
    /// The share of what L2 gives to one multiprocessor, for a tile 64 wide, and the KiB of a stage for which shared memory takes as long.
    pub narrow: [f64; 2],
    /// Microseconds in which the sums of a split K meet.
    pub meet_us: f64,
    /// The norms by which activities overlap: while a narrow tile is stored, all loads of the next tile fit into the ring where K is short.
    pub norms: [f64; 2],
}

/// How one tile is computed: 128 rows of one operand, `width` of the other.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub width: f64,
    pub cluster: Cluster,
    pub fit: Fit,
}

impl Tile {
    /// The product of `r` by `s` in each matrix of the batch.
    pub fn us(&self, [r, s]: [usize; 2], problem: &Problem, device: &DeviceInfo) -> f64 {
        let Self { width, cluster: [along_r, along_s, split], fit } = *self;
        let count = |extent: usize, size: f64| (extent as f64 / size).ceil();
        let clusters = count(r, 128.0 * along_r) * count(s, width * along_s) * problem.batch_count() as f64;
        let blocks = along_r * along_s * split;
        let reached = device.model.reached(device.sm_count as usize, blocks as usize) as f64;
        let turns = (clusters / (reached / blocks).floor()).ceil();
        let all_stages = count(problem.k, 32.0);
        let stages = (all_stages / split).ceil();

        let peak = super::peak_tflops(problem.a.format, Math::Tf32, device) * 1e6 / f64::from(device.sm_count);
        let stage_flops = 2.0 * 128.0 * width * 32.0;
        let products = stages * stage_flops / (peak * fit.efficiency) + width * fit.column_us;
        let narrow = width < 128.0;
        let [narrow_share, narrow_kib] = fit.narrow;
        let kib = (16.0 / along_s + width / 8.0 / along_r).max(narrow_kib);
        let loads = stages * l2_us_of_one(kib * 1024.0, narrow_share, device);
        let turn = if narrow { products.max(loads) } else { products };
        let products = turns * turn + if split > 1.0 { fit.meet_us } else { 0.0 };
        let bytes = clusters * all_stages * (128.0 * along_r + width * along_s) * 128.0;
        let [long, short] = fit.norms;
        let norm = if narrow && problem.k <= RING_K { short } else { long };
        let memory = fit.memory * memory_us(problem, device);
        Activities { products, ring: 0.0, l2: l2_us(bytes, fit.l2, device), memory }.overlapped(norm)
    }
}
