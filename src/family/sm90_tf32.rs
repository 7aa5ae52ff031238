//! `csrc/sm90_tf32`: f32 by one TF32 product, TMA and WGMMA.
//!
//! P is the operand on wgmma's M side, which has 128 rows: A, or B where A and B are swapped. Q is the other operand. A
//! configuration has the blocks of a cluster along M and N, and the parts of K. Rows of the table with narrow tiles are
//! compiled for several clusters. R and S are the dimensions of D along P and along Q.

use super::fitted::fitted;
use crate::arch::ArchModel;
use crate::config::Config;
use crate::cost::pipeline::l2_us;
use crate::cost::roofline_us;
use crate::cost::tf32::{Cluster, Fit, Tile, RING_K};
use crate::kernel::{Case, Family, KernelDesc, SumOrder};
use crate::problem::{Layout, Problem};
use crate::workspace::partition::Footprint;

/// The fewest stages of K that are split in halves.
const LEAST_HALVED: usize = 16;

/// Blocks of a cluster along R, which share Q; blocks along S, which share P; parts of K.
type Blocks = [usize; 3];

const PAIR: Blocks = [2, 1, 1];
const ALONE: Blocks = [1, 1, 1];
/// Clusters of narrow tiles.
const NARROW: [Blocks; 5] = [PAIR, [1, 2, 1], [2, 2, 1], [1, 1, 2], [1, 2, 2]];

fitted! {
    Sm90Tf32 {
        /// The launch, beside the card's overlapped launch.
        launch_us: f64 = "us", -1.7 to 5.0;
        /// Throughput between two epilogues, relative to the sustained rate: tiles 64, 192 and 256 wide.
        efficiency: [f64; 3] = "", 0.4 to 1.3;
        /// The epilogue, for each column of a tile.
        column_us: f64 = "us", 0.0 to 0.1;
        /// Memory time over the time of reading as many bytes: in general, where stores go out in bursts; narrow tiles with K of at most 64, which
        /// are stored every other stage; narrow tiles whose next loads all continue during the stores.
        memory: [f64; 3] = "", 1.0 to 2.0;
        /// The sums of a split K that meet.
        meet_us: f64 = "us", 0.0 to 8.0;
        /// The kernel that transposes an operand before the product: its launch.
        transpose_us: f64 = "us", 0.0 to 8.0;
        /// The same: the share of L2's rate; the copy stays in L2.
        transpose: f64 = "", 0.05 to 1.0;
        /// The share of L2's rate to all multiprocessors, multicast counted once.
        l2: f64 = "", 0.2 to 1.2;
        /// Tiles 64 wide: the share of L2's rate to one multiprocessor, multicast counted once.
        narrow: f64 = "", 0.1 to 1.2;
        /// Tiles 64 wide: the part of a stage for which shared memory takes as long.
        narrow_kib: f64 = "KiB", 1.0 to 32.0;
        /// The norms by which activities overlap, and of narrow tiles with a short K.
        norms: [f64; 2] = "", 1.5 to 32.0;
    }
}

/// Whether P is B.
fn swaps(kernel: &KernelDesc) -> bool {
    kernel.layout == Layout::NN || kernel.tile[0] != 128
}

/// The clusters that the kernel is compiled for; csrc/sm90_tf32/sm90_tf32.cu has the same list.
fn compiled(kernel: &KernelDesc) -> &'static [Blocks] {
    let width = if swaps(kernel) { kernel.tile[0] } else { kernel.tile[1] };
    let p_is_k_major = matches!((kernel.layout, swaps(kernel)), (Layout::NT, _) | (Layout::TT, true));
    match (width, kernel.cluster) {
        (_, [1, 1]) => &[ALONE],
        (64, _) => &NARROW,
        (256, _) if !p_is_k_major => &[PAIR, ALONE],
        _ => &[PAIR],
    }
}

/// Whether A and B are transposed into the workspace.
fn transposes(kernel: &KernelDesc) -> [bool; 2] {
    let tn = kernel.layout == Layout::TN;
    [tn && swaps(kernel), tn && !swaps(kernel)]
}

/// The configuration of a cluster.
fn config(kernel: &KernelDesc, [along_r, along_s, split]: Blocks) -> Config {
    let cluster = if swaps(kernel) { [along_s, along_r] } else { [along_r, along_s] };
    Config { cluster: cluster.map(|blocks| blocks as u32), split: split as u32, ..Config::default() }
}

/// The product, in tiles of 128 rows of R and `width` columns of S.
struct Product<'a> {
    r: usize,
    s: usize,
    width: usize,
    matrices: usize,
    stages: usize,
    sms: usize,
    model: &'a ArchModel,
}

impl<'a> Product<'a> {
    fn of(case: &Case<'a>) -> Self {
        let Problem { m, n, k, .. } = *case.problem;
        let [tile_m, tile_n, _] = case.kernel.tile.map(|side| side as usize);
        let (r, s, width) = if swaps(case.kernel) { (n, m, tile_m) } else { (m, n, tile_n) };
        let sms = case.device.sm_count as usize;
        let (matrices, model) = (case.problem.batch_count(), &case.device.model);
        Self { r, s, width, matrices, stages: k.div_ceil(32), sms, model }
    }

    fn clusters(&self, [along_r, along_s, _]: Blocks) -> usize {
        self.r.div_ceil(128 * along_r) * self.s.div_ceil(self.width * along_s) * self.matrices
    }

    /// Clusters that run at the same time; clusters of four do not reach all multiprocessors.
    fn at_once(&self, cluster: Blocks) -> usize {
        let blocks: usize = cluster.iter().product();
        self.model.reached(self.sms, blocks) / blocks
    }

    /// K is split in halves where K is long and no cluster has two tiles.
    fn admits(&self, cluster: Blocks) -> bool {
        let at_once = self.at_once(cluster);
        let halves = self.clusters(cluster) <= at_once && self.stages >= LEAST_HALVED;
        at_once > 0 && (cluster[2] == 1 || halves)
    }

    /// Predicted time of narrow tiles in a cluster, in units of the time that 1 KiB takes from L2 to a block. The parts
    /// are the stages (shared memory limits a stage to the time of 14 KiB at least), the end of a tile, and the
    /// reduction of a split K.
    fn narrow_time(&self, cluster: Blocks) -> usize {
        let [along_r, along_s, split] = cluster;
        let stage = (16 * 1024 / along_s + self.width * 128 / along_r).max(14 * 1024) / 1024;
        let turn = self.stages.div_ceil(split) * stage + 54;
        self.clusters(cluster).div_ceil(self.at_once(cluster)) * turn + if split > 1 { 120 } else { 0 }
    }

    /// Whether blocks have no operand to share, or all tiles run at the same time. In the second case a pair of blocks
    /// that wait for each other is 2 % slower (2048^3).
    fn is_small(&self) -> bool {
        let tiles = self.r.div_ceil(128) * self.s.div_ceil(self.width);
        self.r <= 128 || tiles <= self.sms / self.matrices
    }
}

impl Family for Sm90Tf32 {
    fn footprint(&self, kernel: &KernelDesc, problem: &Problem) -> Option<Footprint> {
        let bytes = transposes(kernel).map(|transposed| if transposed { 4 } else { 0 });
        let piece = [0, 1].map(|i| (kernel.tile[i] * kernel.cluster[i]) as usize);
        Footprint::new(problem, bytes, [1, 8], piece)
    }

    fn configurations(&self, case: &Case) -> Vec<Config> {
        let product = Product::of(case);
        let admitted = compiled(case.kernel).iter().filter(|cluster| product.admits(**cluster));
        admitted.map(|cluster| config(case.kernel, *cluster)).collect()
    }

    fn choose(&self, case: &Case) -> Config {
        let product = Product::of(case);
        let best = match compiled(case.kernel) {
            [only] => *only,
            [PAIR, ALONE] => {
                if product.is_small() {
                    ALONE
                } else {
                    PAIR
                }
            }
            narrow => {
                let admitted = narrow.iter().copied().filter(|cluster| product.admits(*cluster));
                admitted.min_by_key(|cluster| product.narrow_time(*cluster)).unwrap_or(PAIR)
            }
        };
        config(case.kernel, best)
    }

    /// K has halves only where tiles are few.
    fn sums(&self, _: &KernelDesc, config: &Config) -> Option<SumOrder> {
        (config.split == 1).then_some(SumOrder::WgmmaTf32)
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let (kernel, problem, device) = (case.kernel, case.problem, case.device);
        let Product { r, s, width, .. } = Product::of(case);
        let [along_m, along_n] = config.cluster.map(f64::from);
        let (along_r, along_s) = if swaps(kernel) { (along_n, along_m) } else { (along_m, along_n) };
        let cluster: Cluster = [along_r, along_s, f64::from(config.split)];
        let memory = match (width, problem.k) {
            (64, ..=64) => self.memory[1],
            (64, ..=RING_K) => self.memory[2],
            _ => self.memory[0],
        };
        let efficiency = match width {
            64 => self.efficiency[0],
            192 => self.efficiency[1],
            _ => self.efficiency[2],
        };
        let Self { column_us, l2, meet_us, norms, .. } = *self;
        let fit = Fit { efficiency, column_us, memory, l2, narrow: [self.narrow, self.narrow_kib], meet_us, norms };
        let product = Tile { width: width as f64, cluster, fit }.us([r, s], problem, device);
        let transposed = 8.0 * (s * problem.k) as f64 * problem.batch_count() as f64;
        let transpose = match kernel.layout {
            Layout::TN if transposed > 0.0 => self.transpose_us + l2_us(transposed, self.transpose, device),
            _ => 0.0,
        };
        (device.model.overlapped_launch_us + self.launch_us + transpose + product).max(roofline_us(problem, device))
    }
}
