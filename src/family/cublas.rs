//! The vendor library, cuBLAS, called with candle's conventions.

use super::fitted::fitted;
use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::cost::pipeline::l2_us;
use crate::cost::tf32::{Fit, Tile};
use crate::cost::{arithmetic_us, memory_us, overlap_by, overlapped, roofline_us};
use crate::kernel::{Case, Family, KernelDesc, Math, Rejection};
use crate::problem::{F32Mode, Format, Layout, Operand, Problem};

/// The most rows and columns of D for which cuBLAS splits K over the card.
const FEW: usize = 256;

/// Tiles in 16 bits: rows on wgmma's M side, and the width.
const HALF_TILES: [[u32; 2]; 13] = [
    [64, 8],
    [64, 16],
    [64, 32],
    [64, 64],
    [64, 96],
    [64, 128],
    [64, 192],
    [128, 64],
    [128, 96],
    [128, 128],
    [128, 160],
    [128, 192],
    [128, 256],
];
/// The least K of a part.
const LEAST_PART: f64 = 256.0;

/// A number for 16 bits, f32 and f64; of few outputs also for D of up to 256 elements, both sides up to 64, one side above 64 and the other
/// up to 16, and larger D.
type ByDtype = [f64; 3];
type ByKind = [[f64; 4]; 3];

fitted! {
    Cublas {
        /// The least time of a call, beside the card's launch.
        launch_us: f64 = "us", -3.7 to 3.0;
        /// Few outputs, by dtype and size of D: the launch, beside the card's.
        few_us: ByKind = "us", -3.7 to 3.0;
        /// Few outputs: one step of K, unsplit.
        few_step_ns: ByKind = "ns", 0.1 to 60.0;
        /// Few outputs with K split: the overhead of the parts.
        few_parts_us: ByKind = "us", 0.0 to 20.0;
        /// Few outputs with K split: one step of K.
        few_part_ns: ByKind = "ns", 0.001 to 6.0;
        /// Few outputs: the factor on memory time.
        few_memory: ByKind = "", 1.0 to 6.0;
        /// Few outputs: the factor on arithmetic time.
        few_arithmetic: ByKind = "", 1.0 to 6.0;
        /// A matrix by a vector, by dtype: the launch, beside the card's.
        vector_us: ByDtype = "us", -3.7 to 6.0;
        /// A matrix by a vector: memory time over the time of one pass; in 16 bits some lines are read more than once.
        vector_memory: ByDtype = "", 1.0 to 4.0;
        /// A matrix by a vector: one step of K.
        vector_step_ns: ByDtype = "ns", 0.0 to 0.1;
        /// 16 bits in rows at no multiple of 16 bytes: the launch, beside the card's; of a matrix by a vector.
        unaligned_us: [f64; 2] = "us", -3.7 to 6.0;
        /// The same: the share of the sustained rate of tiles of 128 x 128, in rows at multiples of 2 bytes and of 4 bytes.
        unaligned: [f64; 2] = "", 0.02 to 1.0;
        /// The same: the rate of smaller tiles over the rate of these.
        unaligned_small: f64 = "", 0.1 to 1.0;
        /// The same: the least time of a step of K.
        unaligned_step_ns: [f64; 2] = "ns", 0.0 to 60.0;
        /// The same: an element of D in rows at multiples of 2 bytes, for one multiprocessor.
        unaligned_element_ns: f64 = "ns", 0.0 to 2.0;
        /// A matrix by a vector, the same: memory time over the time of one pass.
        unaligned_vector: f64 = "", 1.0 to 6.0;
        /// f32 in rows at no multiple of 16 bytes: the factor with up to 8 rows, up to 256, and more.
        unaligned_f32: [f64; 3] = "", 1.0 to 4.0;
        /// Many rows in f32 and in f64: the epilogues' time.
        edge_k: [f64; 2] = "steps of K", 0.0 to 300.0;
        /// The same: the most time that tiles add when they do not fill the device.
        edge_us: [f64; 2] = "us", 0.0 to 60.0;
        /// The same: memory time over the time of one pass.
        edge_memory: f64 = "", 1.0 to 2.0;
        /// Factors on the roofline: f32 of 2 to 5 and of 6 to 64 rows; up to 128 rows; other products.
        roofline: [f64; 4] = "", 1.0 to 4.0;
        /// With few rows cuBLAS has few blocks, and each goes through all of K, one step at a time: f32 of 2 to 5 and of 6 to 64 rows.
        step_ns: [f64; 2] = "ns", 0.0 to 20.0;
        /// 16 bits in tiles: the launch, beside the card's.
        half_us: f64 = "us", -3.7 to 3.0;
        /// The same: the least time of a stage of 64 steps of K.
        half_stage_us: f64 = "us", 0.0 to 1.0;
        /// The same: the clock of the tensor cores in short products, over the card's.
        half_clock: f64 = "", 0.4 to 1.2;
        /// The same: a tile's time beside its stages.
        half_tile_us: f64 = "us", -0.5 to 4.0;
        /// The same: an element of a tile, for one multiprocessor.
        half_element_ns: f64 = "ns", 0.0 to 1.0;
        /// The same: the share of L2's rate to all multiprocessors.
        half_l2: f64 = "", 0.2 to 1.5;
        /// The same: K in parts, and each doubling of the parts.
        half_parts_us: [f64; 2] = "us", 0.0 to 6.0;
        /// The same: memory time over the time of one pass.
        half_memory: f64 = "", 0.95 to 1.5;
        /// The same: the least time, over the time of the arithmetic at the sustained rate.
        half_sustained: f64 = "", 1.0 to 1.3;
        /// The same: the factor on the stages of nn, and of tn and tt.
        half_layout: [f64; 2] = "", 1.0 to 2.0;
        /// TF32: the launch, beside the card's.
        tf32_us: f64 = "us", -3.7 to 3.0;
        /// TF32: throughput between two epilogues, relative to the sustained rate: tiles 64, 256 and 128 wide.
        tf32_efficiency: [f64; 3] = "", 0.4 to 1.3;
        /// TF32: the epilogue, for each column of a tile 64 wide and of a wider one.
        tf32_column_us: [f64; 2] = "us", 0.0 to 0.1;
        /// TF32: memory time over the time of reading as many bytes.
        tf32_memory: f64 = "", 1.0 to 2.0;
        /// TF32: the factor of tn, whose operand cuBLAS transposes over and over in shared memory; of nn; of nt and tt.
        tf32_layout: [f64; 3] = "", 0.8 to 3.0;
        /// TF32 of few rows, whose K cuBLAS splits: the launch, beside the card's.
        tf32_few_us: f64 = "us", -3.7 to 6.0;
        /// The same: memory time over the time of one pass.
        tf32_few_memory: f64 = "", 1.0 to 4.0;
        /// The same: one step of K.
        tf32_few_step_ns: f64 = "ns", 0.0 to 10.0;
        /// TF32 with rows at no multiple of 16 bytes: the factor.
        tf32_unaligned: f64 = "", 1.0 to 4.0;
        /// TF32 with a split K: the sums of the parts meet.
        tf32_meet_us: f64 = "us", 0.0 to 8.0;
        /// The share of L2's rate to all multiprocessors, multicast counted once.
        tf32_l2: f64 = "", 0.2 to 1.2;
        /// Tiles 64 wide: the share of L2's rate to one multiprocessor, multicast counted once.
        tf32_narrow: f64 = "", 0.1 to 1.2;
        /// Tiles 64 wide: the part of a stage for which shared memory takes as long.
        tf32_narrow_kib: f64 = "KiB", 1.0 to 32.0;
        /// The norms by which activities overlap, and of narrow tiles with a short K.
        tf32_norms: [f64; 2] = "", 1.5 to 32.0;
    }
}

impl Family for Cublas {
    /// cuBLAS's interface has extents and leading dimensions of 32 bits.
    fn supports(&self, _: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        let leading = |o: &Operand| if o.col_stride == 1 { o.row_stride } else { o.col_stride };
        let mut operands =
            [("A", problem.a), ("B", problem.b), ("D", problem.d)].map(|(name, o)| (name, leading(&o))).into_iter();
        match operands.find(|(_, have)| i32::try_from(*have).is_err()) {
            Some((operand, have)) => Err(Rejection::LeadingDimension { operand, have }),
            None => Ok(()),
        }
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let has_odd_rows = problem.alignments().iter().any(|(_, align)| *align < 16);
        match () {
            _ if is_few(problem, device) => self.few(problem, device),
            _ if has_odd_rows && problem.a.format.bytes(1) == 2 => self.unaligned(problem, device),
            _ if problem.a.format == Format::F32 && problem.f32_mode == F32Mode::Tf32 => self.tf32(problem, device),
            _ if problem.a.format.bytes(1) == 2 => self.half(problem, device),
            _ if has_odd_rows && problem.a.format == Format::F32 => {
                let [few, some, many] = self.unaligned_f32;
                let factor = match problem.m.min(problem.n) {
                    ..=8 => few,
                    9..=256 => some,
                    _ => many,
                };
                factor * self.us(problem, device)
            }
            _ => self.us(problem, device),
        }
    }
}

/// Whether D has so few elements that cuBLAS splits K.
fn is_few(problem: &Problem, device: &DeviceInfo) -> bool {
    let tiles = problem.m.div_ceil(64).saturating_mul(problem.n.div_ceil(64));
    let few = problem.m <= FEW && problem.n <= FEW && tiles <= device.sm_count as usize / 4;
    few && problem.batch_count() == 1 && problem.k >= 256
}

impl Cublas {
    fn unaligned(&self, problem: &Problem, device: &DeviceInfo) -> f64 {
        let Problem { m, n, k, .. } = *problem;
        let memory = memory_us(problem, device);
        let [launch, vector] = self.unaligned_us.map(|us| device.model.launch_us + us);
        if m.min(n) == 1 {
            return vector + self.unaligned_vector * memory;
        }
        let is_even = problem.alignments().iter().all(|(_, align)| *align >= 4);
        let kind = usize::from(is_even);
        let (rate, step_us) = (self.unaligned[kind], 1e-3 * self.unaligned_step_ns[kind] * k as f64);
        let sms = f64::from(device.sm_count);
        let tiles = [[128, 128], [64, 64], [32, 128], [128, 32]].map(|[rows, columns]| {
            let tiles = (m.div_ceil(rows) * n.div_ceil(columns)) as f64 * problem.batch_count() as f64;
            let rate = if rows * columns == 128 * 128 { rate } else { rate * self.unaligned_small };
            let tile = 2.0 * (rows * columns * k) as f64 / (rate * device.model.half_tflops * 1e6 / sms);
            (tiles / sms).ceil() * tile.max(step_us)
        });
        let products = tiles.into_iter().fold(f64::INFINITY, f64::min);
        let is_odd_d = problem.d.align() < 4 || n % 2 == 1;
        let stores = if is_odd_d { 1e-3 * self.unaligned_element_ns * problem.outputs() / sms } else { 0.0 };
        launch + overlap_by(3.0, &[products + stores, memory])
    }

    /// The shorter of a pass through all of K, and a split of K with an addition of the parts.
    fn few(&self, problem: &Problem, device: &DeviceInfo) -> f64 {
        let k = problem.k as f64;
        let memory = memory_us(problem, device);
        let dtype = match problem.a.format {
            Format::F32 => 1,
            Format::F64 => 2,
            _ => 0,
        };
        let (short, long) = (problem.m.min(problem.n), problem.m.max(problem.n));
        if short == 1 {
            return self.vector(dtype, problem, device);
        }
        let kind = match (short, long) {
            _ if short * long <= 256 => 0,
            (_, ..=64) => 1,
            (..=16, _) => 2,
            _ => 3,
        };
        let of = |numbers: &ByKind| numbers[dtype][kind];
        let whole = 1e-3 * of(&self.few_step_ns) * k;
        let sums = whole.min(of(&self.few_parts_us) + 1e-3 * of(&self.few_part_ns) * k);
        let arithmetic = of(&self.few_arithmetic) * arithmetic_us(problem, Math::Native, device);
        let launch = device.model.launch_us + of(&self.few_us);
        launch + overlap_by(3.0, &[sums, of(&self.few_memory) * memory, arithmetic])
    }

    fn vector(&self, dtype: usize, problem: &Problem, device: &DeviceInfo) -> f64 {
        let steps = 1e-3 * self.vector_step_ns[dtype] * problem.k as f64;
        device.model.launch_us + self.vector_us[dtype] + self.vector_memory[dtype] * memory_us(problem, device) + steps
    }

    /// cuBLAS has tiles like ours but for the one 192 wide, and hides more of its epilogue.
    fn tf32(&self, problem: &Problem, device: &DeviceInfo) -> f64 {
        let Problem { m, n, .. } = *problem;
        let is_unaligned = problem.alignments().iter().any(|(_, align)| *align < 16);
        let unaligned = if is_unaligned { self.tf32_unaligned } else { 1.0 };
        let short = m.min(n);
        if short == 1 {
            return self.vector(1, problem, device);
        }
        if short <= 64 && problem.batch_count() == 1 && problem.layout() == Layout::NT {
            let memory = self.tf32_few_memory * memory_us(problem, device);
            let steps = 1e-3 * self.tf32_few_step_ns * problem.k as f64;
            return device.model.launch_us + self.tf32_few_us + unaligned * overlapped(&[memory, steps]);
        }
        let [tn, nn, others] = self.tf32_layout;
        let layout = match problem.layout() {
            Layout::TN => tn,
            Layout::NN => nn,
            _ => others,
        };
        let tile = |width, kind: usize, cluster| Tile {
            width,
            cluster,
            fit: Fit {
                efficiency: self.tf32_efficiency[kind],
                column_us: self.tf32_column_us[kind.min(1)],
                memory: self.tf32_memory,
                l2: self.tf32_l2,
                narrow: [self.tf32_narrow, self.tf32_narrow_kib],
                meet_us: self.tf32_meet_us,
                norms: self.tf32_norms,
            },
        };
        let pair = [2.0, 1.0, 1.0];
        let clusters = [[1.0, 1.0, 1.0], [1.0, 1.0, 2.0], [1.0, 1.0, 4.0]];
        let tiles = [(256.0, 1), (128.0, 2), (64.0, 0)].map(|(width, kind)| {
            let split = clusters.map(|cluster| tile(width, kind, cluster));
            [tile(width, kind, pair), split[0], split[1], split[2]]
        });
        let times =
            tiles.iter().flatten().flat_map(|tile| [[m, n], [n, m]].map(|sides| tile.us(sides, problem, device)));
        let product = times.fold(f64::INFINITY, f64::min);
        let launch = device.model.launch_us + self.tf32_us;
        (launch + product * layout * unaligned).max(roofline_us(problem, device) * 1.001)
    }

    /// The roofline times a factor, plus the launch.
    fn us(&self, problem: &Problem, device: &DeviceInfo) -> f64 {
        let launch = device.model.launch_us + self.launch_us;
        let rows = problem.m.min(problem.n);
        let edge = match problem.a.format {
            Format::F32 if rows > 64 && problem.k >= 32 => Some(0),
            Format::F64 if rows > 128 => Some(1),
            _ => None,
        };
        if let Some(kind) = edge {
            let sums = arithmetic_us(problem, Math::Native, device) * (1.0 + self.edge_k[kind] / problem.k as f64);
            let memory = self.edge_memory * memory_us(problem, device);
            return launch + overlapped(&[sums, memory]) + sums.min(self.edge_us[kind]);
        }
        let factor = match (problem.a.format, rows) {
            (Format::F32, 2..=5) if problem.k > 1 => 0,
            (Format::F32, 6..=64) if problem.k > 1 => 1,
            (_, 0..=128) => 2,
            _ => 3,
        };
        let step = match (problem.a.format, rows) {
            (Format::F32, 2..=5) => Some(0),
            (Format::F32, 6..=64) => Some(1),
            _ => None,
        };
        let steps = step.map_or(0.0, |step| 1e-3 * self.step_ns[step] * problem.k as f64);
        let (arithmetic, memory) = (arithmetic_us(problem, Math::Native, device), memory_us(problem, device));
        launch + overlapped(&[arithmetic.max(memory) * self.roofline[factor], steps])
    }

    /// 16 bits: the fastest of the tiles that cuBLAS's kernels for Hopper are taken to have, with K whole or in parts.
    fn half(&self, problem: &Problem, device: &DeviceInfo) -> f64 {
        let Problem { m, n, k, .. } = *problem;
        let layout = match problem.layout() {
            Layout::NT => 1.0,
            Layout::NN => self.half_layout[0],
            _ => self.half_layout[1],
        };
        let clocks_per_us = device.model.clock_ghz * 1e3;
        let memory = self.half_memory * memory_us(problem, device);
        let matrices = problem.batch_count() as f64;
        let sms = f64::from(device.sm_count);
        let mut least = f64::INFINITY;
        let mut time = |[r, s]: [usize; 2], [p, width]: [u32; 2], parts: usize| {
            let [p, width] = [p, width].map(f64::from);
            let part = k.div_ceil(parts) as f64;
            let tiles = (r as f64 / p).ceil() * (s as f64 / width).ceil() * matrices * parts as f64;
            if parts > 1 && (part < LEAST_PART || tiles > sms) {
                return;
            }
            let cycles = 4.0 * p / 64.0 * (width / 2.0).max(16.0 + width / 4.0);
            let stage = layout * (cycles / (self.half_clock * clocks_per_us)).max(self.half_stage_us);
            let tile = (part / 64.0).ceil() * stage + self.half_tile_us + self.half_element_ns * 1e-3 * p * width;
            let products = (tiles / sms).ceil() * tile;
            let l2 = l2_us(2.0 * tiles * (p + width) * part, self.half_l2, device);
            let [meet, doubling] = self.half_parts_us;
            let meet = if parts > 1 { meet + doubling * f64::from(parts.ilog2()) } else { 0.0 };
            // The norm takes longer than the other arithmetic, and is no less than the longest of the times.
            if products.max(l2).max(memory) + meet < least {
                least = least.min(overlap_by(3.0, &[products, l2, memory]) + meet);
            }
        };
        for tile in HALF_TILES {
            for sides in [[m, n], [n, m]] {
                [1, 2, 4, 8].into_iter().for_each(|parts| time(sides, tile, parts));
            }
        }
        let arithmetic = self.half_sustained * arithmetic_us(problem, Math::Native, device);
        // The fitted numbers have D in the format of A and B.
        let wider = problem.outputs() * (problem.d.format.bits() - problem.a.format.bits()) / 8.0;
        let launch = device.model.launch_us + self.half_us;
        launch + least.max(arithmetic) + l2_us(wider, 1.0, device)
    }
}
