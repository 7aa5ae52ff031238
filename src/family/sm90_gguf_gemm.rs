//! `csrc/sm90_gguf_gemm`: rows times the weights of a GGUF file, by WGMMA with weights from registers.

use super::fitted::fitted;
use super::gguf::{self, SPAN};
use crate::config::Config;
use crate::cost::memory_us;
use crate::cost::pipeline::stream_us;
use crate::kernel::{Case, Family, KernelDesc, Rejection};
use crate::problem::Problem;
use crate::workspace;
use crate::workspace::partition::Footprint;

/// So many parts of K are the blocks of a cluster, and need no workspace: csrc/sm90_gguf_gemm/device.hpp has the same number.
const MOST_IN_CLUSTER: u32 = 2;
/// Bytes of an activation in the workspace, and the multiple of bytes from which the activations lie there.
const PREPARED: u64 = 2;
/// Bytes of the factor of a row of activations in f16, behind the activations.
const FACTOR: u64 = 4;
const PLACE: u64 = 128;

fitted! {
    /// Lists of eight numbers are of the tiles in `TILES`.
    Sm90GgufGemm {
        /// Blocks that share a multiprocessor.
        residents: [f64; 8] = "", 1.0 to 4.0;
        /// A span of all blocks of a multiprocessor.
        span_us: [f64; 8] = "us", 0.1 to 20.0;
        /// Its time by format, over this: q4_0, q4_1, q5_0, q5_1, q8_0, q2k, q3k, q4k, q5k, q6k, mxfp4, iq4_nl, iq4_xs.
        format: [f64; 13] = "", 0.5 to 2.0;
        /// The time of a block that has the card for itself, over the time of blocks that fill the card: of the tiles of 16, 32 and 64 rows.
        alone: [f64; 3] = "", 0.2 to 1.0;
        /// The first loads and the last stores of a wave of blocks.
        wave_us: [f64; 8] = "us", 0.0 to 20.0;
        /// The kernel that prepares the activations, beside their bytes.
        prepare_us: f64 = "us", 0.0 to 8.0;
        /// The sums of parts that meet in a cluster, of a wave of blocks.
        cluster_us: f64 = "us", 0.0 to 8.0;
        /// The same, of each 256 rows of a tile.
        cluster_256_us: f64 = "us", 0.0 to 20.0;
        /// The kernel that adds parts in the workspace, beside their bytes.
        add_us: f64 = "us", 0.0 to 8.0;
        /// The share of the memory's rate.
        memory: f64 = "", 0.3 to 1.2;
    }
}

/// Rows of A of the tiles.
const TILES: [u32; 8] = [16, 32, 64, 80, 128, 160, 192, 256];

/// The tile's place in lists of fitted numbers.
fn place(kernel: &KernelDesc) -> usize {
    TILES.iter().position(|&rows| rows >= kernel.tile[0]).unwrap_or(TILES.len() - 1)
}

/// The sums of parts, and the activations behind them, of whole tiles of `tile_m` rows.
fn bytes(problem: &Problem, tile_m: usize, split: u32) -> u64 {
    let parts = if split > MOST_IN_CLUSTER { workspace::parts_bytes(split.into(), problem) } else { 0 };
    let rows = (problem.m.next_multiple_of(tile_m) as u64).saturating_mul(problem.k.next_multiple_of(64) as u64);
    parts.saturating_add(PLACE).saturating_add(PREPARED.saturating_mul(rows)).saturating_add(FACTOR * problem.m as u64)
}

/// The configurations to consider: parts of K with a span or more each. Parts lie in the workspace beside the activations of the whole product.
fn configurations(case: &Case) -> Vec<Config> {
    let spans = case.problem.k.div_ceil(SPAN).max(1);
    let [tile_m, tile_n, _] = case.kernel.tile;
    let has_room =
        |split: u32| split <= MOST_IN_CLUSTER || bytes(case.problem, tile_m as usize, split) <= case.workspace;
    let fits = |split: &u32| *split as usize <= spans && has_room(*split);
    [1, 2, 3, 4, 6, 8, 12, 16].into_iter().filter(fits).map(|split| Config::tile([tile_m, tile_n], split)).collect()
}

impl Family for Sm90GgufGemm {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        // Tiles of columns are a dimension of the grid.
        Rejection::check_counts([("columns of B", problem.n, 65_535 * kernel.tile[1] as usize)])?;
        gguf::supports(problem)
    }

    fn footprint(&self, kernel: &KernelDesc, problem: &Problem) -> Option<Footprint> {
        let [tile_m, tile_n, _] = kernel.tile.map(|side| side as usize);
        let activations = Footprint::new(problem, [PREPARED, 0], [tile_m, 1], [tile_m, tile_n])?;
        Some(Footprint { row: activations.row.saturating_add(FACTOR), ..activations })
    }

    fn scratch_bytes(&self, problem: &Problem, config: &Config) -> u64 {
        if config.split > MOST_IN_CLUSTER {
            bytes(problem, config.tile[0] as usize, config.split)
        } else {
            0
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
        let [rows, columns, _] = case.kernel.tile.map(|side| side as usize);
        let tiles = problem.m.div_ceil(rows).saturating_mul(problem.n.div_ceil(columns));
        let (blocks, residents) = (tiles.saturating_mul(split) as f64, self.residents[place]);
        let room = residents * f64::from(device.sm_count);
        // Blocks of many waves do not wait for each other.
        let waves = if blocks > 4.0 * room { blocks / room + 0.5 } else { (blocks / room).ceil() };
        // Blocks take the less time the fewer share the card.
        let sharing = match self.alone.get(place) {
            Some(alone) if residents > 1.0 => alone + (1.0 - alone) * (blocks / room).min(1.0),
            _ => 1.0,
        };
        let spans = problem.k.div_ceil(SPAN).div_ceil(split) as f64;
        let span = self.span_us[place] * self.format[gguf::place(problem.b.format)];
        let is_clustered = config.split > 1 && config.split <= MOST_IN_CLUSTER;
        let meet = if is_clustered { self.cluster_us + self.cluster_256_us * rows as f64 / 256.0 } else { 0.0 };
        let busy = waves * (sharing * spans * span + self.wave_us[place] + meet);
        let moved = |bytes: u64| stream_us(bytes as f64, self.memory, device);
        let prepare = self.prepare_us + moved(problem.m as u64 * problem.k as u64 * 6);
        let add = match config.split {
            ..=MOST_IN_CLUSTER => 0.0,
            parts => self.add_us + moved(workspace::parts_bytes(parts.into(), problem)),
        };
        device.model.launch_us + prepare + busy.max(memory_us(problem, device) / self.memory) + add
    }
}
