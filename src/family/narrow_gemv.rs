//! `csrc/narrow_gemv`: up to 16 rows times narrow weights. The columns of B are called the rows of W.
//!
//! A configuration names the rows of A of an instance and the rows of W that a block multiplies at a time (`tile`), the blocks that share K
//! (`cluster`), all parts of K (`split`), the slots of a warp's ring (`stages`), and the warps of a block.

use super::bytes_of_block;
use super::fitted::fitted;
use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::cost::{memory_us, overlap_by};
use crate::kernel::{Case, Family, KernelDesc, Rejection};
use crate::problem::{Format, Problem, Scale};

/// csrc/narrow_gemv/shape.hpp has the same numbers: bytes of a row of W in a slot and in a step, and the most warps of a block.
const SLOT_BYTES: usize = 128;
const STEP_BYTES: usize = 64;
const MOST_WARPS: u32 = 16;
const CLUSTERS: [u32; 3] = [1, 2, 4];
const STAGES: u32 = 2;
/// Rows of W that a warp multiplies at a time, the better first.
const UNITS: [u32; 2] = [2, 1];

fitted! {
    NarrowGemv {
        /// The launch, beside the card's overlapped launch, the first loads and the last sums.
        launch_us: f64 = "us", -2.0 to 6.0;
        /// 16 rows of W of 128 bytes times up to eight rows of A, by a warp of a busy multiprocessor: a factor for a step of u4, for less than a step, e2m1, 8 bits, 8 bits with a factor for less than a step.
        slot_us: [f64; 5] = "us", 0.001 to 0.2;
        /// The time with more than eight rows of A, over the time with eight.
        sixteen: f64 = "", 1.0 to 3.0;
        /// How much longer a slot takes where a block has no second warp, over the time with 16.
        few_warps: f64 = "", 0.0 to 4.0;
        /// A warp that multiplies 16 rows of W at a time reads A twice as often as one that multiplies 32: the factor on the time.
        one_unit: f64 = "", 1.0 to 2.0;
        /// 1024 numbers of A that a block makes ready.
        numbers_us: f64 = "us", 0.0 to 1.0;
        /// Clusters of two and of four blocks.
        cluster_us: [f64; 2] = "us", 0.0 to 12.0;
        /// The share of the memory's rate.
        memory: f64 = "", 0.3 to 1.2;
        /// The norm by which memory and products overlap.
        norm: f64 = "", 1.0 to 16.0;
    }
}

/// How factors are applied; csrc/narrow_gemv/shape.hpp has the same ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Whole,
    Wide,
    Fine1,
    Fine2,
    GroupsOf16,
}

impl Way {
    /// None: the groups of a factor along K are no multiples of what the kernel multiplies at a time.
    fn of(problem: &Problem) -> Option<Self> {
        let format = problem.b.format;
        let (is_packed, has_whole) = (format.bits() < 8.0, matches!(format, Format::F8E4M3 | Format::I8));
        let step = numbers(format, STEP_BYTES);
        let group = problem.b.scale.map_or(u32::MAX, |scale| scale.granularity[0]) as usize;
        match group {
            _ if group >= problem.k && has_whole => Some(Self::Whole),
            _ if group >= problem.k || group.is_multiple_of(step) => Some(Self::Wide),
            _ if format == Format::F4E2M1 && group == 16 && of_e4m3(problem) => Some(Self::GroupsOf16),
            _ if format != Format::F4E2M1 && group.is_multiple_of(step / 2) => Some(Self::Fine2),
            _ if is_packed && group.is_multiple_of(step / 4) => Some(Self::Fine1),
            _ => None,
        }
    }

    /// Factors of a step.
    fn scales_of_step(self, format: Format) -> usize {
        match self {
            Self::Whole => 0,
            Self::Wide => 1,
            Self::Fine2 => 2,
            Self::Fine1 => 4,
            Self::GroupsOf16 => numbers(format, STEP_BYTES) / 16,
        }
    }
}

fn of_e4m3(problem: &Problem) -> bool {
    problem.b.scale.is_some_and(|scale| scale.format == Format::F8E4M3)
}

/// Numbers in so many bytes of a row of W.
fn numbers(format: Format, bytes: usize) -> usize {
    bytes * 8 / format.bits() as usize
}

/// The most numbers of A, so that some configuration has room for them, however many rows W has.
fn most_numbers(kernel: &KernelDesc) -> usize {
    if bytes_of_block(kernel) > 200 * 1024 {
        160 * 1024
    } else {
        16 * 1024
    }
}

/// The blocks that a card runs at the same time, in clusters.
fn teams(n: usize, cluster: u32, device: &DeviceInfo) -> usize {
    let places = if cluster == 4 { device.sm_count * 31 / 33 } else { device.sm_count };
    ((places / cluster) as usize).clamp(1, n)
}

/// How a block goes through its part of the product: csrc/narrow_gemv/shape.hpp, in numbers.
#[derive(Debug, Clone, Copy)]
struct Plan {
    units: u32,
    /// Warps along the rows of W, and along K.
    warps: [u32; 2],
    cluster: u32,
}

/// What follows from a plan for a problem.
struct Shape {
    passes: usize,
    slots_of_part: usize,
    shared_bytes: usize,
}

impl Plan {
    fn config(&self, m: usize) -> Config {
        let Self { units, warps: [along_n, along_k], cluster } = *self;
        let tile = [if m <= 8 { 8 } else { 16 }, 16 * units * along_n];
        let config = Config::tile(tile, cluster * along_k);
        config.with(|c| (c.cluster, c.stages, c.warps) = ([1, cluster], STAGES, along_n * along_k))
    }

    /// The plan that a configuration of this family names.
    fn of(config: &Config) -> Option<Self> {
        let cluster = config.cluster[1];
        let along_k = config.split.checked_div(cluster).filter(|warps| *warps > 0)?;
        let along_n = (config.warps / along_k).max(1);
        Some(Self { units: config.tile[1] / (16 * along_n), warps: [along_n, along_k], cluster })
    }

    fn shape(&self, way: Way, problem: &Problem, device: &DeviceInfo) -> Shape {
        let (m, n, format) = (problem.m, problem.n, problem.b.format);
        let [along_n, along_k] = self.warps.map(|warps| warps as usize);
        let (unit, stages, cluster) = (16 * self.units as usize, STAGES as usize, self.cluster as usize);
        let step = if way == Way::GroupsOf16 { 4 } else { 1 };
        let of_team = n.div_ceil(teams(n, self.cluster, device)).next_multiple_of(step);
        let passes = of_team.div_ceil(along_n * unit);
        let of_pass = of_team.div_ceil(passes).next_multiple_of(4);
        let rows = of_pass.div_ceil(along_n).next_multiple_of(4);
        let slots = (problem.k as f64 * format.bits() / 8.0).ceil() as usize;
        let slots = slots.next_multiple_of(if format.bits() < 8.0 { 16 } else { 1 }).div_ceil(SLOT_BYTES);
        let (parts, warps) = (cluster * along_k, along_n * along_k);
        let slots_of_part = slots.div_ceil(parts);
        let (slot_k, most_m) = (numbers(format, SLOT_BYTES), if m <= 8 { 8 } else { 16 });
        let (ring, least) = (warps * stages * rows.div_ceil(8) * 1024, rows.div_ceil(8) * 1024);
        let of_x = slots_of_part * slot_k * m * 2 + slots_of_part.div_ceil(256 / slot_k) * most_m * 4;
        let scales = 2 * way.scales_of_step(format);
        let has_zeros = format == Format::U8 || (format == Format::U4 && (way != Way::Wide || zeros(problem)));
        let of_zeros = if has_zeros { scales * unit * 4 } else { 0 };
        let beside = scales * unit * if way == Way::GroupsOf16 { 1 } else { 4 } + of_zeros;
        let before = (ring + along_k * of_x + warps * beside).next_multiple_of(16);
        let inbox = along_n.div_ceil(cluster) * parts * m * unit * 4 * if passes > 1 { 2 } else { 1 };
        let bytes = before + inbox + along_k * 64 + 16 + warps * stages * 8;
        Shape { passes, slots_of_part, shared_bytes: bytes.max(ring - least + unit * SLOT_BYTES) }
    }
}

fn zeros(problem: &Problem) -> bool {
    problem.b.scale.is_some_and(|scale| scale.zeros)
}

/// The plans of a kernel with so many blocks in a cluster and so many units.
fn plans(cluster: u32, units: u32) -> impl Iterator<Item = Plan> {
    let along_k = |along_n: u32| (1..=MOST_WARPS / along_n).map(move |along_k| [along_n, along_k]);
    (1..=MOST_WARPS).flat_map(along_k).map(move |warps| Plan { units, warps, cluster })
}

impl NarrowGemv {
    /// The time of a plan; infinite where a block has no room for it.
    fn us(&self, case: &Case, way: Way, plan: &Plan) -> f64 {
        let (problem, device) = (case.problem, case.device);
        let shape = plan.shape(way, problem, device);
        if shape.shared_bytes > bytes_of_block(case.kernel) {
            return f64::INFINITY;
        }
        let [along_n, along_k] = plan.warps;
        let warps = f64::from(along_n * along_k);
        let kind = match (problem.b.format, way) {
            (Format::U4, Way::Wide) => 0,
            (Format::U4, _) => 1,
            (Format::F4E2M1, _) => 2,
            (_, Way::Fine2) => 4,
            _ => 3,
        };
        let rows = if problem.m > 8 { self.sixteen } else { 1.0 };
        let unit = if plan.units == 1 { self.one_unit } else { f64::from(plan.units) };
        // A part with more slots than the others makes the others wait.
        let slots = (shape.passes * shape.slots_of_part) as f64 * warps;
        let waits = 1.0 + self.few_warps * (f64::from(MOST_WARPS) / warps - 1.0) / f64::from(MOST_WARPS - 1);
        let products = slots * unit * rows * self.slot_us[kind] * waits;
        let of_block = shape.slots_of_part * along_k as usize * numbers(problem.b.format, SLOT_BYTES) * problem.m;
        let cluster = match plan.cluster {
            1 => 0.0,
            2 => self.cluster_us[0],
            _ => self.cluster_us[1],
        };
        let memory = memory_us(problem, device) / self.memory;
        let first = device.model.overlapped_launch_us + self.launch_us + self.numbers_us * of_block as f64 / 1024.0;
        first + cluster + overlap_by(self.norm, &[memory, products])
    }

    /// The best plan for each size of a cluster and number of units, with its time.
    fn ways(&self, case: &Case) -> Vec<(Config, f64)> {
        let Some(way) = Way::of(case.problem) else { return Vec::new() };
        let clusters = CLUSTERS
            .into_iter()
            .filter(|cluster| *cluster == 1 || (case.kernel.arch.capability >= 90 && *cluster <= case.device.sm_count));
        let kinds = clusters.flat_map(|cluster| UNITS.map(move |units| (cluster, units)));
        let best = |(cluster, units)| {
            let timed = plans(cluster, units).map(|plan| (plan.config(case.problem.m), self.us(case, way, &plan)));
            timed.filter(|(_, us)| us.is_finite()).min_by(|x, y| x.1.total_cmp(&y.1))
        };
        kinds.filter_map(best).collect()
    }
}

impl Family for NarrowGemv {
    fn supports(&self, kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
        Rejection::check_counts([("numbers of A", problem.m.saturating_mul(problem.k), most_numbers(kernel))])?;
        if Way::of(problem).is_none() {
            let what = "are of groups that are no multiples of 32 along K, nor of 16 in f8e4m3 beside f4e2m1";
            return Err(Rejection::Factors { operand: "B", what });
        }
        // Offsets of groups are counted in 32 bits.
        let far = |scale: &Scale| scale.row_stride.saturating_mul(scale.format.bytes(1) as i64) >= 1 << 32;
        match problem.b.scale {
            Some(scale) if scale.row_stride < 0 || far(&scale) => {
                Err(Rejection::Factors { operand: "B", what: "lie 2^32 bytes apart along K, or backwards" })
            }
            _ => Ok(()),
        }
    }

    fn configurations(&self, case: &Case) -> Vec<Config> {
        self.ways(case).into_iter().map(|(config, _)| config).collect()
    }

    fn choose(&self, case: &Case) -> Config {
        self.chosen(case).0
    }

    fn chosen(&self, case: &Case) -> (Config, f64) {
        let least = self.ways(case).into_iter().min_by(|x, y| x.1.total_cmp(&y.1));
        least.unwrap_or((Config::default(), f64::INFINITY))
    }

    fn rivals(&self, case: &Case, chosen: &Config, most_us: f64) -> Vec<(Config, f64)> {
        self.ways(case).into_iter().filter(|(config, us)| config != chosen && *us < most_us).collect()
    }

    fn estimate(&self, case: &Case, config: &Config) -> f64 {
        match (Way::of(case.problem), Plan::of(config)) {
            (Some(way), Some(plan)) => self.us(case, way, &plan),
            _ => f64::INFINITY,
        }
    }
}
