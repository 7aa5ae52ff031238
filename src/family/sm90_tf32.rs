//! `csrc/sm90_tf32`: f32 by one TF32 product, TMA and WGMMA.

use crate::config::Config;
use crate::cost::roofline_us;
use crate::cost::tf32::{Cluster, Tile, LAUNCH_US, MEMORY, RING_K};
use crate::kernel::{Case, Family, KernelDesc};
use crate::partition::Footprint;
use crate::problem::{Layout, Problem};

/// The kernel before the product that transposes an operand: what it reads and writes, GB/s, and its launch.
const TRANSPOSE_GBPS: f64 = 2850.0;
const TRANSPOSE_US: f64 = 0.3;
/// What narrow tiles take of memory: they are stored every other stage, or all loads of the next tile go on meanwhile.
const SHORT_MEMORY: f64 = 1.25;
const RING_MEMORY: f64 = 1.11;
/// Clusters of narrow tiles: blocks along the side of tiles that has 128 rows, along the other side, and parts of K.
const NARROW_CLUSTERS: [[usize; 3]; 5] = [[2, 1, 1], [1, 2, 1], [2, 2, 1], [1, 1, 2], [1, 2, 2]];

pub(crate) struct Sm90Tf32;

/// Whether B is on the side of wgmma that has 128 rows.
fn swaps(kernel: &KernelDesc) -> bool {
    kernel.layout == Layout::NN || kernel.tile[0] != 128
}

/// Whether A and B are transposed into the workspace.
fn transposes(kernel: &KernelDesc) -> [bool; 2] {
    let tn = kernel.layout == Layout::TN;
    [tn && swaps(kernel), tn && !swaps(kernel)]
}

/// The sides of a tile: 128 rows of R, `width` of S.
struct Sides {
    width: usize,
    r: usize,
    s: usize,
}

impl Sides {
    fn of(kernel: &KernelDesc, problem: &Problem) -> Self {
        let [tile_m, tile_n, _] = kernel.tile.map(|side| side as usize);
        match swaps(kernel) {
            true => Self { width: tile_m, r: problem.n, s: problem.m },
            false => Self { width: tile_n, r: problem.m, s: problem.n },
        }
    }
}

/// A cluster as a configuration has it.
fn config(kernel: &KernelDesc, [along_r, along_s, split]: [usize; 3]) -> Config {
    let cluster = if swaps(kernel) { [along_s, along_r] } else { [along_r, along_s] };
    Config { cluster: cluster.map(|blocks| blocks as u32), split: split as u32, ..Config::default() }
}

/// Clusters that run at the same time; clusters of four reach 120 of an H100's 132 multiprocessors.
fn clusters_at_once(cluster: [usize; 3], sms: usize) -> usize {
    let blocks: usize = cluster.iter().product();
    (if blocks > 2 { sms * 10 / 11 } else { sms }) / blocks
}

/// Of K only halves that are long, and of a single tile.
fn is_legal(case: &Case, sides: &Sides, cluster: [usize; 3]) -> bool {
    let [along_r, along_s, split] = cluster;
    let at_once = clusters_at_once(cluster, case.device.sm_count as usize);
    let matrices = case.problem.batch_count();
    let clusters = sides.r.div_ceil(128 * along_r) * sides.s.div_ceil(sides.width * along_s) * matrices;
    at_once > 0 && (split == 1 || (clusters <= at_once && case.problem.k.div_ceil(32) >= 16))
}

/// The time by which the cluster is chosen that should be through first, in the time that 1 KiB takes from L2 to a block: a stage, for
/// which shared memory needs that of 14 KiB; the end of a tile; sums that meet.
fn rank(case: &Case, sides: &Sides, cluster: [usize; 3]) -> usize {
    let [along_r, along_s, split] = cluster;
    let at_once = clusters_at_once(cluster, case.device.sm_count as usize);
    let matrices = case.problem.batch_count();
    let clusters = sides.r.div_ceil(128 * along_r) * sides.s.div_ceil(sides.width * along_s) * matrices;
    let stage = (16 * 1024 / along_s + sides.width * 128 / along_r).max(14 * 1024) / 1024;
    let turn = case.problem.k.div_ceil(32).div_ceil(split) * stage + 54;
    clusters.div_ceil(at_once) * turn + if split > 1 { 120 } else { 0 }
}

impl Family for Sm90Tf32 {
    fn footprint(&self, kernel: &KernelDesc, problem: &Problem) -> Option<Footprint> {
        let bytes = transposes(kernel).map(|transposed| if transposed { 4 } else { 0 });
        let piece = [0, 1].map(|i| (kernel.tile[i] * kernel.cluster[i]) as usize);
        Footprint::new(problem, bytes, [1, 8], piece)
    }

    fn configurations(&self, case: &Case) -> Vec<Config> {
        let kernel = case.kernel;
        let sides = Sides::of(kernel, case.problem);
        let pair = (kernel.cluster[0] * kernel.cluster[1]) as usize;
        let clusters: &[[usize; 3]] = match sides.width {
            64 => &NARROW_CLUSTERS,
            // A single block has no other one to wait for.
            256 if kernel.layout != Layout::NT => &[[2, 1, 1], [1, 1, 1]],
            _ if pair == 2 => &[[2, 1, 1]],
            _ => &[[1, 1, 1]],
        };
        clusters
            .iter()
            .filter(|cluster| is_legal(case, &sides, **cluster))
            .map(|cluster| config(kernel, *cluster))
            .collect()
    }

    fn choose(&self, case: &Case) -> Config {
        let (kernel, sides) = (case.kernel, Sides::of(case.kernel, case.problem));
        if sides.width == 64 {
            let legal = NARROW_CLUSTERS.into_iter().filter(|cluster| is_legal(case, &sides, *cluster));
            let best = legal.min_by_key(|cluster| rank(case, &sides, *cluster));
            return config(kernel, best.unwrap_or(NARROW_CLUSTERS[0]));
        }
        let tiles = sides.r.div_ceil(128) * sides.s.div_ceil(sides.width);
        let pair = (kernel.cluster[0] * kernel.cluster[1]) as usize;
        // Nothing to share, or all tiles at the same time: two blocks that wait for each other are 2 % slower then (2048^3).
        let few = sides.r <= 128 || tiles <= case.device.sm_count as usize / case.problem.batch_count();
        let alone = kernel.layout != Layout::NT && sides.width == 256 && few;
        config(kernel, [if alone { 1 } else { pair }, 1, 1])
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let (kernel, problem, device) = (case.kernel, case.problem, case.device);
        let sides = Sides::of(kernel, problem);
        let [along_m, along_n] = config.cluster.map(f64::from);
        let (along_r, along_s) = if swaps(kernel) { (along_n, along_m) } else { (along_m, along_n) };
        let cluster: Cluster = [along_r, along_s, f64::from(config.split)];
        let memory = match (sides.width, problem.k) {
            (64, ..=64) => SHORT_MEMORY,
            (64, ..=RING_K) => RING_MEMORY,
            _ => MEMORY,
        };
        let tile = Tile::new(sides.width as u32, cluster).with_memory(memory);
        let product = tile.us([sides.r, sides.s], problem, device);
        let transposed = 8.0 * (sides.s * problem.k) as f64 * problem.batch_count() as f64;
        let transpose = match kernel.layout {
            Layout::TN if transposed > 0.0 => TRANSPOSE_US + transposed / (TRANSPOSE_GBPS * 1e3),
            _ => 0.0,
        };
        (LAUNCH_US + transpose + product).max(roofline_us(problem, device))
    }
}
