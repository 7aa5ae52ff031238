//! `csrc/sm90_narrow_gemm`: rows times narrow weights with their factors, by WGMMA with weights from registers.

use super::fitted::fitted;
use super::narrow::{fault, BATCH, FOLDED, OF_ROWS};
use crate::config::Config;
use crate::cost::memory_us;
use crate::cost::pipeline::stream_us;
use crate::kernel::{Case, Family, KernelDesc, Rejection};
use crate::problem::{Format, Problem};
use crate::workspace;

/// Tiles of up to so many rows of A have twice the threads, and stages twice as deep: `k_parts` in csrc/narrow/wgmma_shape.hpp.
const MOST_IN_PARTS: u32 = 32;

fitted! {
    /// Lists of five numbers are of the tiles in `TILES`.
    Sm90NarrowGemm {
        /// A batch of 64 numbers of K of a block with codes of 4 bits and factors of 128 numbers.
        batch_us: [f64; 5] = "us", 0.01 to 2.0;
        /// The time by kernel, over this: u4 and u8 and f8e4m3 in groups of 128; f8e4m3 and i8 with a factor for each row; u4 in groups of 32; MXFP4; NVFP4.
        kind: [f64; 8] = "", 0.3 to 3.0;
        /// The first loads and the last stores of a wave of blocks.
        wave_us: [f64; 5] = "us", 0.0 to 20.0;
        /// The kernel that adds parts in the workspace, beside their bytes.
        add_us: f64 = "us", 0.0 to 8.0;
        /// The share of the memory's rate.
        memory: f64 = "", 0.3 to 1.2;
    }
}

/// Rows of A of the tiles.
const TILES: [u32; 5] = [16, 32, 64, 128, 256];

/// The tile's place in lists of fitted numbers.
fn place(kernel: &KernelDesc) -> usize {
    TILES.iter().position(|&rows| rows >= kernel.tile[0]).unwrap_or(TILES.len() - 1)
}

/// The kernel's place in `kind`.
fn kind(kernel: &KernelDesc) -> usize {
    match (kernel.types.b, kernel.tile[2]) {
        (Format::U4, FOLDED) => 5,
        (Format::F4E2M1, FOLDED) => 6,
        (Format::F4E2M1, _) => 7,
        (Format::U4, _) => 0,
        (Format::U8, _) => 1,
        (Format::I8, _) => 4,
        (_, OF_ROWS) => 3,
        _ => 2,
    }
}

/// Batches of K of a stage of codes, of which each part of K has some.
fn batches_of_stage(kernel: &KernelDesc) -> usize {
    let own = if kernel.types.b.bits() < 8.0 { 4 } else { 2 };
    own * if kernel.tile[0] <= MOST_IN_PARTS { 2 } else { 1 }
}

fn tiles(case: &Case) -> usize {
    let [rows, columns, _] = case.kernel.tile.map(|side| side as usize);
    case.problem.m.div_ceil(rows).saturating_mul(case.problem.n.div_ceil(columns))
}

/// Parts of K have whole stages, and each has one at least. More blocks than two waves have no use for parts.
fn configurations(case: &Case) -> Vec<Config> {
    let stages = case.problem.k.div_ceil(BATCH).div_ceil(batches_of_stage(case.kernel));
    let (tiles, room) = (tiles(case), 2 * case.device.sm_count as usize);
    let [tile_m, tile_n, _] = case.kernel.tile;
    let fits = |split: &u32| {
        let parts = *split as usize;
        let has_stages = (parts - 1) * stages.div_ceil(parts) < stages;
        let bytes = workspace::parts_bytes((*split).into(), case.problem);
        parts == 1 || (has_stages && tiles.saturating_mul(parts) <= room && bytes <= case.workspace)
    };
    [1, 2, 3, 4, 6, 8, 12, 16].into_iter().filter(fits).map(|split| Config::tile([tile_m, tile_n], split)).collect()
}

impl Family for Sm90NarrowGemm {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        let fault = problem.b.scale.and_then(|scale| fault(kernel, scale.format, scale.granularity[0]));
        fault.map_or(Ok(()), |what| Err(Rejection::Factors { operand: "B", what }))
    }

    fn scratch_bytes(&self, problem: &Problem, config: &Config) -> u64 {
        match config.split {
            ..=1 => 0,
            parts => workspace::parts_bytes(parts.into(), problem),
        }
    }

    fn configurations(&self, case: &Case) -> Vec<Config> {
        configurations(case)
    }

    fn choose(&self, case: &Case) -> Config {
        super::fastest(self, case, configurations(case))
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let (problem, device, place) = (case.problem, case.device, place(case.kernel));
        let split = config.split.max(1) as usize;
        let (blocks, room) = (tiles(case).saturating_mul(split) as f64, f64::from(device.sm_count));
        // Blocks of many waves do not wait for each other.
        let waves = if blocks > 4.0 * room { blocks / room + 0.5 } else { (blocks / room).ceil() };
        let stage = batches_of_stage(case.kernel);
        let batches = (problem.k.div_ceil(BATCH).div_ceil(stage).div_ceil(split) * stage) as f64;
        let batch = self.batch_us[place] * self.kind[kind(case.kernel)];
        let busy = waves * (batches * batch + self.wave_us[place]);
        let add = match config.split {
            ..=1 => 0.0,
            parts => {
                let bytes = workspace::parts_bytes(parts.into(), problem);
                self.add_us + stream_us(bytes as f64, self.memory, device)
            }
        };
        device.model.launch_us + busy.max(memory_us(problem, device) / self.memory) + add
    }
}
