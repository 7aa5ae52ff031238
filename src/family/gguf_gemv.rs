//! `csrc/gguf_gemv`: few rows times the weights of a GGUF file, 16 at a time.

use super::fitted::fitted;
use super::gguf;
use crate::config::Config;
use crate::cost::memory_us;
use crate::kernel::{Case, Family, KernelDesc, Rejection};
use crate::problem::{Format, Problem};
use crate::workspace;
use crate::workspace::partition::Footprint;

/// Rows of A and rows of W that a block computes at a time.
const TILE: [u32; 2] = [16, 16];

/// Without tensor cores: rows of W that a group of warps adds at a time, numbers of K of a warp, and the most warps.
const VECTORS: usize = 8;
const K_OF_WARP: usize = 1024;
const MOST_WARPS: usize = 16;

/// The most rows of A that the kernel multiplies without tensor cores, too.
fn most_rows_of_vectors(kernel: &KernelDesc) -> usize {
    match (kernel.types.a, kernel.types.b) {
        _ if kernel.arch.capability < 90 || (kernel.tile[2] as usize) < MOST_WARPS * gguf::SPAN => 0,
        (Format::F32, Format::Q8_0) => 2,
        (Format::F32, Format::Q4_0) => 1,
        _ => 0,
    }
}

/// The most rows of A that the kernel multiplies as digits, too: bytes of codes by bytes of activations.
fn most_rows_of_digits(kernel: &KernelDesc) -> usize {
    match (kernel.types.a, kernel.types.b) {
        _ if kernel.arch.capability != 90 => 0,
        (Format::F32 | Format::BF16, Format::Q4_0 | Format::Q8_0 | Format::Q4K) => 2,
        (Format::F32 | Format::BF16, b) if has_table(b) => 2,
        _ => 0,
    }
}

/// Whether codes are places in a table of bytes: as digits they become no floats. Those of mxfp4 are as fast either way.
fn has_table(format: Format) -> bool {
    matches!(format, Format::IQ4_NL | Format::IQ4_XS)
}

/// Whether digits are the fastest way: not where the other kernel has 16 rows of W for each block and no more, nor where the sums of parts of K are of few rows. By
/// the unseen shapes of docs/log/2026-11-gguf-few-rows.md.
fn is_for_digits(case: &Case) -> bool {
    const FEW: usize = 4096;
    let (n, k, b) = (case.problem.n, case.problem.k, case.problem.b.format);
    let is_q8 = b == Format::Q8_0;
    let is_faster = match fewest_parts(case.kernel, case.problem) {
        1 => is_q8 || k <= 8 * gguf::SPAN || n > TILE[1] as usize * case.device.sm_count as usize,
        2 => n >= FEW,
        _ => n >= FEW || !is_q8,
    };
    case.problem.m <= most_rows_of_digits(case.kernel) && (is_faster || has_table(b))
}

fitted! {
    GgufGemv {
        /// 16 rows of W times up to eight rows of A, by a block with all warps, by format: q4_0, q4_1, q5_0, q5_1, q8_0, q2k, q3k, q4k, q5k, q6k, mxfp4, iq4_nl, iq4_xs.
        unit_us: [f64; 13] = "us", 0.1 to 10.0;
        /// The share of this time that does not depend on the number of warps.
        latency: f64 = "", 0.0 to 1.0;
        /// The time with more than eight rows of A, over the time with eight.
        sixteen: f64 = "", 1.0 to 2.0;
        /// A further wave of blocks, of further 16 rows of A.
        wave_us: f64 = "us", 0.0 to 20.0;
        /// The kernel that adds parts.
        add_us: f64 = "us", 0.0 to 8.0;
        /// Without tensor cores: what a product takes beside the launch and its rows, with one row of A and with two.
        vector_us: [f64; 2] = "us", 0.0 to 8.0;
        /// 1024 numbers of a row of W, by a multiprocessor that is busy: q4_0, q8_0.
        vector_row_us: [f64; 2] = "us", 0.005 to 0.2;
        /// How much longer that takes for each warp that shares a row of W.
        vector_warp: f64 = "", 0.0 to 0.1;
        /// By digits: what a product takes beside the launch and its units, and 16 rows of W times one row of A or two, by a block with all warps: of codes, and of
        /// places in a table.
        digits_us: [f64; 3] = "us", 0.0 to 8.0;
        /// The share of the memory's rate.
        memory: f64 = "", 0.3 to 1.2;
    }
}

/// The fewest parts of K: a warp holds a span, and the kernel's tile has the K of a block's warps. In place there are two and more: results that are not finite are
/// computed once more after the product, and C would be gone by then; sums of parts lie in the workspace, where they are mended before C is read.
fn fewest_parts(kernel: &KernelDesc, problem: &Problem) -> usize {
    let least = if problem.epilogue.in_place { 2 } else { 1 };
    problem.k.div_ceil(kernel.tile[2] as usize).max(least)
}

/// The configurations to consider: the fewest parts of K, twice and four times that number, and one or two rows without tensor cores.
fn configurations(case: &Case) -> Vec<Config> {
    let spans = case.problem.k.div_ceil(gguf::SPAN).max(1);
    let least = fewest_parts(case.kernel, case.problem);
    if is_for_digits(case) {
        return vec![Config::tile([case.problem.m as u32, TILE[1]], least as u32)];
    }
    let splits = [least, 2 * least, 4 * least].into_iter().filter(|split| *split == least || *split <= spans);
    let fits = |config: &Config| {
        config.split as usize == least || workspace::parts_bytes(config.split.into(), case.problem) <= case.workspace
    };
    let (m, k) = (case.problem.m, case.problem.k);
    let is_vector =
        m <= most_rows_of_vectors(case.kernel) && k <= MOST_WARPS * K_OF_WARP && !case.problem.epilogue.in_place;
    let vectors = is_vector.then(|| Config::tile([m as u32, VECTORS as u32], 1));
    splits.map(|split| Config::tile(TILE, split as u32)).filter(fits).chain(vectors).collect()
}

impl GgufGemv {
    /// The time without tensor cores.
    fn vectors(&self, case: &Case) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let place = usize::from(problem.b.format == Format::Q8_0);
        let rows = problem.n as f64 / f64::from(device.sm_count);
        let warps = problem.k.div_ceil(K_OF_WARP) as f64;
        let of_rows = rows * warps * self.vector_row_us[place] * (1.0 + self.vector_warp * warps);
        let memory = memory_us(problem, device) / self.memory;
        device.model.launch_us + self.vector_us[problem.m.clamp(1, 2) - 1] + of_rows.max(memory)
    }

    /// The time by digits.
    fn digits(&self, case: &Case, split: u32) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let blocks = (device.sm_count / split).max(1) as usize;
        let units = problem.n.div_ceil(blocks).div_ceil(TILE[1] as usize) as f64;
        let [start, of_codes, of_places] = self.digits_us;
        let unit = if has_table(problem.b.format) { of_places } else { of_codes };
        let add = if split > 1 { self.add_us } else { 0.0 };
        device.model.launch_us + start + (units * unit).max(memory_us(problem, device) / self.memory) + add
    }
}

impl Family for GgufGemv {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        // Groups of rows are a dimension of the grid.
        Rejection::check_counts([("rows", problem.m, 65_535 * kernel.tile[0] as usize)])?;
        if problem.epilogue.in_place && problem.k <= gguf::SPAN {
            return Err(Rejection::Epilogue { what: "C in place with a K of one part" });
        }
        gguf::supports(problem)
    }

    /// The sums of the parts, where one block's warps do not hold K.
    fn footprint(&self, kernel: &KernelDesc, problem: &Problem) -> Option<Footprint> {
        let parts = fewest_parts(kernel, problem) as u64;
        let sums =
            Footprint { row: 0, column: 0, element: 4 * parts, lines: [1, 1], step: TILE.map(|side| side as usize) };
        (parts > 1).then_some(sums)
    }

    fn scratch_bytes(&self, problem: &Problem, config: &Config) -> u64 {
        match config.split {
            0 | 1 => 0,
            split => workspace::parts_bytes(split.into(), problem),
        }
    }

    fn configurations(&self, case: &Case) -> Vec<Config> {
        configurations(case)
    }

    /// With more rows of A the kernel has no registers left for it; the one without tensor cores waits at its start.
    #[cfg(any(test, all(feature = "candle", feature = "cuda")))]
    fn runs_beside(&self, kernel: &KernelDesc, problem: &Problem, config: &Config) -> bool {
        let has_tensor_cores = config.tile[1] as usize != VECTORS;
        kernel.arch.capability >= 90 && config.split <= 1 && problem.m <= 8 && has_tensor_cores
    }

    fn choose(&self, case: &Case) -> Config {
        super::fastest(self, case, configurations(case))
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        let (kernel, problem, device) = (case.kernel, case.problem, case.device);
        if config.tile[1] as usize == VECTORS {
            return self.vectors(case);
        }
        let split = config.split.max(1);
        if config.tile[0] < TILE[0] {
            return self.digits(case, split);
        }
        let blocks = (device.sm_count / split).max(1) as usize;
        let all_units = problem.n.div_ceil(TILE[1] as usize);
        let units = all_units.div_ceil(blocks) as f64;
        let most_warps = kernel.tile[2] as usize / gguf::SPAN;
        let warps = problem.k.div_ceil(gguf::SPAN).div_ceil(split as usize).min(most_warps);
        let rows = if problem.m > 8 { self.sixteen } else { 1.0 };
        let unit = self.unit_us[gguf::place(problem.b.format)];
        let of_warps = warps as f64 / most_warps as f64;
        // Blocks of further groups of rows share multiprocessors with blocks of the first, or wait for them.
        let filled = (all_units.min(blocks) * split as usize) as f64 / f64::from(device.sm_count);
        let at_once = (filled * problem.m.div_ceil(TILE[0] as usize) as f64).max(1.0);
        let waves = (at_once / (most_warps / warps.max(1)) as f64).ceil();
        let of_units = units * rows * unit * (self.latency + (1.0 - self.latency) * of_warps);
        let busy = at_once * of_units + (waves - 1.0) * self.wave_us;
        let add = if split > 1 { self.add_us } else { 0.0 };
        device.model.launch_us + busy.max(memory_us(problem, device) / self.memory) + add
    }
}
