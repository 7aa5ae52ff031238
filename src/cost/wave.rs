//! What a launch of `sm90_wave.cu` is expected to take, which chooses among tiles of several widths.
//!
//! The constants are fitted to recordings of 33 to 1536 rows, K from 512 to 14336, on an H100 (2026-11-21): of the 164 forms within
//! 10 % of the best for their shape the mean error was 2.5 %, at most 8 %. What launches, shared loads, further warp groups and idle
//! multiprocessors take was set again by hand, to choose as the record of 2026-11-22 came out (5 to 257 rows).

use super::{memory_us, roofline_us};
use crate::arch::DeviceInfo;
use crate::kernel::KernelDesc;
use crate::problem::Problem;

/// Launch, the first loads and the drain, overlapped with the kernels before and after, microseconds.
const LAUNCH_US: f64 = 1.68;
/// What it takes longer where two blocks share loads: each waits for the other.
const SHARE_US: f64 = 0.9;
/// What each further warp group takes: 64 rows of wgmma's M side.
const GROUP_US: f64 = 0.25;
/// The least K whose loads are shared, as in sm90_wave.cu.
const SHARED_K: u64 = 2048;
/// What a second part of K costs: the way through distributed shared memory, and for each byte of a tile of D.
const SPLIT_US: f64 = 0.1;
const SUM_US: f64 = 4.9e-5;
/// From the request of a stage to its arrival, microseconds: with few stages on their way that is what limits a block.
const STAGE_US: f64 = 1.8;
/// What L2 gives to all, multicast counted once, GB/s.
const L2_GBPS: f64 = 14_200.0;
/// Of the time that memory takes for B, what each further cluster costs that reads the same of it.
const REREAD: f64 = 0.08;
/// The clock of the tensor cores, GHz, in one wave of tiles and in several, which take long enough for power to bind; and what it
/// gains where all multiprocessors are idle: power that others can have.
const GHZ: [f64; 2] = [1.8, 1.6];
const IDLE_GAIN: f64 = 0.3;
/// What memory takes longer where multiprocessors are idle: in one wave of tiles, and in several.
const UNEVEN: [f64; 2] = [0.22, 0.52];
/// Nothing hides the stores of a tile, microseconds for each byte.
const STORE_US: f64 = 3.2e-5;
/// From the end of a tile to the first products of the next, where nothing hides it, microseconds: 384 x 512 x 512 x 64.
const RESTART_US: f64 = 1.5;
/// How well activities overlap: this norm of their times.
const NORM: f64 = 5.0;

/// Never faster than with some rows fewer: where even tiles make it so, by a little, a few rows more would change the kernel to
/// and fro.
pub(super) fn us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    let fewer = (0..8).map(|i| (problem.m / 32).saturating_sub(i) * 32).filter(|&m| m > 0);
    let us = |m| {
        let problem = Problem { m, ..*problem };
        cut_us(&Cut::best(kernel, &problem, device), &problem, device)
    };
    fewer.chain([problem.m]).map(us).fold(0.0, f64::max)
}

/// How a product is cut up, as in sm90_wave.cu.
struct Cut {
    /// Of the sides of wgmma: `p` rows, and a width of the row's.
    p: u64,
    width: u64,
    /// Rows of W, the columns of B, in a tile.
    w_rows: u64,
    /// Of a stage.
    depth: u64,
    /// Tiles of A that share W, and parts of K.
    share: u64,
    parts: u64,
    m_tiles: u64,
    /// In all, and those that run at the same time.
    blocks: u64,
    at_once: u64,
}

impl Cut {
    /// What leaves the busiest multiprocessor least to do: `cut_up` in sm90_wave.cu.
    fn best(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> Cut {
        let exchanged = kernel.schedule == "exchanged";
        let [tile_m, tile_n, tile_k] = kernel.tile.map(u64::from);
        let [m, n, k] = [problem.m, problem.n, problem.k].map(|extent| extent as u64);
        let (pair, halves) = (u64::from(kernel.cluster[0]), u64::from(kernel.split));
        let (batches, sms) = (problem.batch_count() as u64, u64::from(device.sm_count));
        let cuts = kernel.widths.iter().flat_map(|&width| {
            let width = u64::from(width);
            let (p, a_rows, w_rows) = if exchanged { (tile_n, width, tile_n) } else { (tile_m, tile_m, width) };
            let depth = if stages(p, width, tile_k, halves) >= 5 { tile_k } else { 64 };
            let pair = if k < SHARED_K { 1 } else { pair };
            (1..=pair).rev().filter(move |share| exchanged || m.div_ceil(a_rows) % share == 0).flat_map(move |share| {
                (1..=halves).map(move |parts| {
                    let m_tiles = m.div_ceil(a_rows).next_multiple_of(share);
                    let blocks = m_tiles * n.div_ceil(w_rows) * batches * parts;
                    let at_once = if share * parts > 2 { sms * 9 / 10 } else { sms }.max(1);
                    Cut { p, width, w_rows, depth, share, parts, m_tiles, blocks, at_once }
                })
            })
        });
        let long = |cut: &Cut| k >= if pair > 1 { 8192 } else { 4 * cut.depth };
        let allowed = cuts.filter(|cut| cut.parts == 1 || (cut.blocks <= cut.at_once && long(cut)));
        allowed.min_by_key(|cut| cut.turns() * (cut.width + 32) * 2 / cut.parts).expect("a row has widths")
    }

    /// Tiles that a multiprocessor gets, one after another.
    fn turns(&self) -> u64 {
        self.blocks.div_ceil(self.at_once)
    }
}

/// Stages of this depth that shared memory holds beside what comes from the other part of K.
fn stages(p: u64, width: u64, depth: u64, parts: u64) -> u64 {
    let inbox = if parts > 1 { p / 16 * (width / 8).div_ceil(2) * 512 } else { 0 };
    let room = 227 * 1024 - 264 - if inbox > 20_000 { 0 } else { inbox };
    (room / ((p + width) * depth * 2)).min(16)
}

fn cut_us(cut: &Cut, problem: &Problem, device: &DeviceInfo) -> f64 {
    let bytes = problem.dtype.bytes() as f64;
    let (turns, blocks, share, parts) = (cut.turns() as f64, cut.blocks as f64, cut.share as f64, cut.parts as f64);
    let (w_rows, depth, width) = (cut.w_rows as f64, cut.depth as f64, cut.width as f64);
    let height = problem.m.div_ceil(cut.m_tiles as usize) as f64;
    let k = problem.k as f64 / parts;
    let several = usize::from(cut.turns() > 1);
    let idle = 1.0 - blocks / (turns * cut.at_once as f64);
    let ring = turns * k / depth * STAGE_US / stages(cut.p, cut.width, cut.depth, cut.parts) as f64;
    let l2 = blocks * (height + w_rows / share) * k * bytes / (L2_GBPS * 1e3);
    // wgmma's cycles for 16 of K: its arithmetic, or what it reads of shared memory.
    let cycles = cut.p as f64 / 64.0 * (width / 2.0).max(16.0 + width / 4.0);
    let products = turns * cycles * k / 16.0 / (GHZ[several] * 1e3) * (1.0 - IDLE_GAIN * idle);
    let w_us = (problem.n * problem.k * problem.batch_count()) as f64 * bytes / (device.rates.hbm_gbps * 1e3);
    let uneven = UNEVEN[several];
    let reread = REREAD * w_us * (cut.m_tiles as f64 / share - 1.0);
    let memory = memory_us(problem, device) * (1.0 + uneven * idle) + reread;
    let together = [memory, ring, l2, products].map(|time| time.powf(NORM)).iter().sum::<f64>().powf(1.0 / NORM);
    let tile = height * w_rows * bytes;
    let split = if parts > 1.0 { SPLIT_US + tile * SUM_US } else { 0.0 };
    // Only bare products of one matrix and an unsplit K march over their tiles, the loads of the next under the stores of the last.
    let marches = parts == 1.0 && problem.batch_count() == 1 && problem.epilogue.is_linear();
    let restarts = if marches { 0.0 } else { (turns - 1.0) * RESTART_US };
    let share_us = if share > 1.0 { SHARE_US } else { 0.0 };
    let group_us = GROUP_US * (cut.p as f64 / 64.0 - 1.0);
    // At 6 % above the roofline there is nothing left to overlap: 512 rows of 28672.
    LAUNCH_US
        + share_us
        + group_us
        + (together + split + restarts + turns * tile * STORE_US).max(1.06 * roofline_us(problem, device))
}
