//! The vendor library, cuBLAS, called with candle's conventions.

use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::cost::fitted::fitted;
use crate::cost::pipeline::l2_us;
use crate::cost::tf32::{Fit, Tile};
use crate::cost::{arithmetic_us, memory_us, overlap_by, overlapped, roofline_us};
use crate::kernel::{Case, Family, KernelDesc, Math, Rejection, INT};
use crate::problem::{F32Mode, Format, Layout, Operand, Problem};

/// The most rows and columns of D for which cuBLAS splits K over the card.
const FEW: usize = 256;

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
        /// A matrix by a vector: memory time over that of one pass; in 16 bits some lines are read more than once.
        vector_memory: ByDtype = "", 1.0 to 4.0;
        /// A matrix by a vector: one step of K.
        vector_step_ns: ByDtype = "ns", 0.0 to 0.1;
        /// 16 bits in rows at no multiple of 16 bytes, tiles of 128 x 128: the launch, beside the card's.
        unaligned_us: f64 = "us", -3.7 to 6.0;
        /// The same: the share of the sustained rate.
        unaligned: f64 = "", 0.02 to 1.0;
        /// Many rows in f32 and in f64: the epilogues' time.
        edge_k: [f64; 2] = "steps of K", 0.0 to 300.0;
        /// The same: the most time that tiles add when they do not fill the device.
        edge_us: [f64; 2] = "us", 0.0 to 60.0;
        /// The same: memory time over that of one pass.
        edge_memory: f64 = "", 1.0 to 2.0;
        /// The epilogues' time of 16 bits with more than 256 rows, where tiles come in several waves.
        edge_k_16: f64 = "steps of K", 0.0 to 300.0;
        /// Factors on the roofline: f32 of 2 to 5 and of 6 to 64 rows; up to 128 rows; 16 bits of up to 192 rows, up to 256 (up to 8192
        /// columns, and more), up to 512, and more rows; other products.
        roofline: [f64; 9] = "", 1.0 to 4.0;
        /// With few rows cuBLAS has few blocks, and each goes through all of K, one step at a time: f32 of 2 to 5 and of 6 to 64 rows; 16 bits
        /// of up to 4 rows of nn, up to 64, up to 128, 161 to 192 and up to 256 rows; 321 to 384 with K below 8192, 257 to 384, more rows.
        step_ns: [f64; 10] = "ns", 0.0 to 20.0;
        /// TF32: the launch, beside the card's.
        tf32_us: f64 = "us", -3.7 to 3.0;
        /// TF32: throughput between two epilogues, relative to the sustained rate: tiles 64, 256 and 128 wide.
        tf32_efficiency: [f64; 3] = "", 0.4 to 1.3;
        /// TF32: the epilogue, for each column of a tile 64 wide and of a wider one.
        tf32_column_us: [f64; 2] = "us", 0.0 to 0.1;
        /// TF32: memory time over that of reading as many bytes.
        tf32_memory: f64 = "", 1.0 to 2.0;
        /// TF32: the factor of tn, whose operand cuBLAS transposes over and over in shared memory; of nn; of nt and tt.
        tf32_layout: [f64; 3] = "", 0.8 to 3.0;
        /// TF32 of few rows, whose K cuBLAS splits: the launch, beside the card's.
        tf32_few_us: f64 = "us", -3.7 to 6.0;
        /// The same: memory time over that of one pass.
        tf32_few_memory: f64 = "", 1.0 to 4.0;
        /// The same: one step of K.
        tf32_few_step_ns: f64 = "ns", 0.0 to 10.0;
        /// TF32 with rows at no multiple of 16 bytes: the factor.
        tf32_unaligned: f64 = "", 1.0 to 4.0;
        /// TF32 with a split K: the sums of the parts meet.
        tf32_meet_us: f64 = "us", 0.0 to 8.0;
        /// The share of what L2 gives to all multiprocessors, multicast counted once.
        tf32_l2: f64 = "", 0.2 to 1.2;
        /// Tiles 64 wide: the share of what L2 gives to one multiprocessor, multicast counted once.
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
        if let Some((operand, have)) = operands.find(|(_, have)| i32::try_from(*have).is_err()) {
            return Err(Rejection::LeadingDimension { operand, have });
        }
        let largest = [problem.m, problem.n, problem.k, problem.batch_count()].into_iter().max().unwrap_or(0);
        match largest > INT {
            true => Err(Rejection::Extent { extent: i64::try_from(largest).unwrap_or(i64::MAX) }),
            false => Ok(()),
        }
    }

    fn estimate(&self, case: &Case, _: &Config) -> f64 {
        let (problem, device) = (case.problem, case.device);
        match () {
            _ if is_few(problem, device) => self.few(problem, device),
            _ if is_unaligned(problem) => self.unaligned(problem, device),
            _ if problem.a.format == Format::F32 && problem.f32_mode == F32Mode::Tf32 => self.tf32(problem, device),
            _ => self.us(problem, device),
        }
    }
}

fn is_unaligned(problem: &Problem) -> bool {
    problem.a.format.bytes(1) == 2 && problem.alignments().iter().any(|(_, align)| *align < 16)
}

/// Whether D has so few elements that cuBLAS splits K.
fn is_few(problem: &Problem, device: &DeviceInfo) -> bool {
    let tiles = problem.m.div_ceil(64).saturating_mul(problem.n.div_ceil(64));
    let few = problem.m <= FEW && problem.n <= FEW && tiles <= device.sm_count as usize / 4;
    few && problem.batch_count() == 1 && problem.k >= 256
}

impl Cublas {
    fn unaligned(&self, problem: &Problem, device: &DeviceInfo) -> f64 {
        let [m, n] = [problem.m, problem.n].map(|x| x.div_ceil(128) as f64 * 128.0);
        let flops = 2.0 * m * n * problem.k as f64 * problem.batch_count() as f64;
        let products = flops / (self.unaligned * device.model.half_tflops * 1e6);
        device.model.launch_us + self.unaligned_us + overlapped(&[products, memory_us(problem, device)])
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
            (Format::F16 | Format::BF16, 129..=192) => 3,
            (Format::F16 | Format::BF16, 193..=256) if problem.m.max(problem.n) <= 8192 => 4,
            (Format::F16 | Format::BF16, 193..=256) => 5,
            (Format::F16 | Format::BF16, 257..=512) => 6,
            (Format::F16 | Format::BF16, _) => 7,
            _ => 8,
        };
        // For a long K cuBLAS seems to choose kernels other than the best.
        let long = problem.k >= 8192;
        let step = match (problem.a.format, rows) {
            (Format::F32, 2..=5) => Some(0),
            (Format::F32, 6..=64) => Some(1),
            (Format::F16 | Format::BF16, 1..=4) if problem.layout() == Layout::NN => Some(2),
            (Format::F16 | Format::BF16, 1..=64) => Some(3),
            (Format::F16 | Format::BF16, 65..=128) => Some(4),
            (Format::F16 | Format::BF16, 161..=192) if !long => Some(5),
            (Format::F16 | Format::BF16, 129..=256) => Some(6),
            (Format::F16 | Format::BF16, 321..=384) if !long => Some(7),
            (Format::F16 | Format::BF16, 257..=384) => Some(8),
            (Format::F16 | Format::BF16, 385..) => Some(9),
            _ => None,
        };
        // With few columns cuBLAS splits a longer K: 384 x 768 x 27648 takes 34 us, 1027 x 192 x 28672 31.
        let k = if problem.n < 1024 { problem.k.min(8192) } else { problem.k };
        let steps = step.map_or(0.0, |step| 1e-3 * self.step_ns[step] * k as f64);
        let (arithmetic, memory) = (arithmetic_us(problem, Math::Native, device), memory_us(problem, device));
        let tiles = problem.m.div_ceil(128) * problem.n.div_ceil(256) * problem.batch_count();
        let has_waves = matches!(factor, 6 | 7) && tiles > device.sm_count as usize;
        // The fitted numbers have D in the format of A and B.
        let wider = problem.outputs() * (problem.d.format.bits() - problem.a.format.bits()) / 8.0;
        let activities = match has_waves {
            true => [arithmetic * (1.0 + self.edge_k_16 / problem.k as f64), memory, steps],
            false => [arithmetic.max(memory) * self.roofline[factor], steps, 0.0],
        };
        launch + overlapped(&activities) + l2_us(wider, 1.0, device)
    }
}
