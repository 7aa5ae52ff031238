//! How long a kernel is expected to take: pure arithmetic over the row, the problem and the device.
//!
//! A first model: output tiles are spread over the multiprocessors in waves; each wave takes as long as its arithmetic or its
//! loads, whichever is longer, and the whole no less than what device memory needs. Estimates rank kernels; they are not
//! promises. The constants say where they come from.

use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::kernel::{Family, KernelDesc, Math};
use crate::problem::{Activation, DType, Layout, Operand, Problem};
use crate::workspace;

mod direct;
mod fma;
pub(crate) mod split_k;
mod tf32;
mod vendor;
mod wave;

/// Launch, scheduling, the first loads and the drain of the last tile, in microseconds. This and the constants below are
/// fitted to benches/record.
const LAUNCH_US: f64 = 3.7;
/// The same where the kernel overlaps the one before it.
const OVERLAPPED_LAUNCH_US: f64 = 1.7;
/// The same of the kernels for few rows, which overlap the kernel before them and have weights brought into L2 meanwhile.
const GEMV_US: f64 = 0.5;
const GEMV_SHORT_US: f64 = 0.75;
const GEVM_US: f64 = 1.2;
const OUTER_US: f64 = 0.8;
const SKINNY_US: f64 = 1.14;
/// gemv on tensor cores (gemv_mma.hpp): beside the bytes, and until all is on its way and back again; fitted to recordings of its draft,
/// 5 and 8 rows: 12 with W of 34 to 235 MB (at most 2.5 % off), 4 with 12.6 MB (3 to 5 % too long, which leaves these to sm90_skinny,
/// as they should be).
const GEMV_MMA_US: (f64, f64) = (1.05, 2.8);
/// What a multiprocessor pulls, GB/s, for how much of K one more, and at most: five products whose rows of W cannot be dealt out evenly.
const GEMV_MMA_SM_GBPS: (f64, f64, f64) = (22.5, 1200.0, 35.0);
/// Elements of B from which gemv.cu has one to four rows in 16 bits on tensor cores, too.
const MMA_ELEMENTS: usize = 100_000_000;
/// What a block of gevm pulls with one row of A, GB/s, and how much less with each further row in 16 bits.
const GEVM_BLOCK_GBPS: f64 = 52.0;
const GEVM_ROW: f64 = 0.3;
/// How much longer outer's stores take number by number.
const OUTER_SINGLE: f64 = 2.0;
/// What a second part of K costs, and more than two: the way through distributed shared memory. Fitted with what follows to 37
/// recordings of 5 to 96 rows (mean error 2 %, at most 6 %).
const SKINNY_SPLIT_US: [f64; 2] = [0.45, 0.55];
/// From the request of a stage to its arrival, microseconds: with few stages on their way that is what limits a block.
const SKINNY_STAGE_US: f64 = 1.22;
/// What a multiprocessor pulls of W, GB/s, with one block, and with two: K is short, and some have two blocks and most have one.
const SKINNY_SM_GBPS: [f64; 2] = [50.0, 38.0];
/// To store a row of a tile, of those that it has room for, microseconds.
const SKINNY_ROW_US: f64 = 0.027;
/// sm90_bf16x6, fitted to recordings of its drafts: launches; what preparing operands reads and writes, GB/s; a k-block and
/// an epilogue of a tile of 128 and of 64 columns.
const BF16X6_US: f64 = 1.2;
const PREPARE_GBPS: f64 = 2900.0;
const BF16X6_TILE_US: [(f64, f64); 2] = [(0.963, 1.3), (0.585, 0.8)];
/// What L2 gives to all multiprocessors together, GB/s; nothing else bounds the small tiles at 4096^3.
const L2_GBPS: f64 = 11_000.0;
/// What one multiprocessor pulls, GB/s, where each has a single tile: with few tiles that is what limits a skinny product.
const SM_LOAD_GBPS: f64 = 110.0;
/// What a tile of ping-pong takes beside its products, the microseconds of a column: with K of 64 and 128 it is what limits (two
/// recordings of 128 x 192, which agree within 10 %).
const PINGPONG_COLUMN_US: f64 = 0.0225;
/// The reference kernel reads both factors of every product through L1, and one thread adds all of K, a product after the other.
const REFERENCE_TFLOPS: f64 = 0.6;
const REFERENCE_PRODUCT_US: f64 = 0.08;

/// Expected time of `kernel` for the canonical `problem`, in microseconds, with a workspace of the default size.
pub fn estimate_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    configure(kernel, problem, device, workspace::DEFAULT_BYTES).1
}

/// The configuration in which `kernel` runs the canonical `problem` with a workspace of so many bytes, and its expected time in
/// microseconds.
pub(crate) fn configure(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo, workspace: u64) -> (Config, f64) {
    if problem.is_empty() {
        return (Config::default(), 0.0);
    }
    let mut config = Config::default();
    let us = match kernel.family {
        Family::Cublas => vendor::us(problem, device),
        Family::Reference => reference_us(problem),
        Family::SplitK => {
            let (chosen, us) = split_k::choose(problem, device, workspace);
            config = chosen;
            us
        }
        Family::SimtGemm | Family::TileGemm => LAUNCH_US + tiled_us(kernel, problem, device),
        Family::Sm90Gemm => OVERLAPPED_LAUNCH_US + tiled_us(kernel, problem, device),
        Family::Gemv => gemv_us(kernel, problem, device),
        Family::Gevm => gevm_us(kernel, problem, device),
        Family::Outer => outer_us(problem, device),
        Family::Sm90Skinny => skinny_us(kernel, problem, device),
        Family::Sm90Wave => wave::us(kernel, problem, device),
        Family::Sm90Bf16x6 => bf16x6_us(kernel, problem, device),
        Family::Sm90Bf16x6Direct => direct::us(kernel, problem, device),
        Family::Sm90Tf32 => tf32::us(kernel, problem, device),
        Family::Sm90Sgemm => fma::sgemm_us(kernel, problem, device),
        Family::Sm90Dgemm => fma::dgemm_us(kernel, problem, device),
    };
    let element_ns = activation_ns(kernel, problem) + residual_ns(kernel, problem) + single_ns(kernel, problem);
    let elements = problem.outputs() / f64::from(device.sm_count);
    (config, us + 1e-3 * elements * element_ns)
}

fn reference_us(problem: &Problem) -> f64 {
    LAUNCH_US + (problem.flops() / (REFERENCE_TFLOPS * 1e6)).max(problem.k as f64 * REFERENCE_PRODUCT_US)
}

/// The least time that arithmetic and device memory allow, in microseconds; for f32 by the fastest arithmetic that its mode admits.
pub fn roofline_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let admitted = [Math::Native, Math::Tf32, Math::Bf16x6].into_iter().filter(|math| problem.f32_mode.admits(*math));
    let times = admitted.map(|math| arithmetic_us(problem, math, device));
    times.fold(f64::INFINITY, f64::min).max(memory_us(problem, device))
}

fn arithmetic_us(problem: &Problem, math: Math, device: &DeviceInfo) -> f64 {
    problem.flops() / (peak_tflops(problem.dtype, math, device) * 1e6)
}

/// Time of `passes` elementwise kernels over D, which is what an epilogue costs that no GEMM kernel fuses.
pub fn elementwise_us(problem: &Problem, passes: usize, device: &DeviceInfo) -> f64 {
    let elements = problem.outputs();
    let bytes = 2.0 * elements * problem.dtype.bytes() as f64;
    passes as f64 * (LAUNCH_US + bytes / (device.rates.hbm_gbps * 1e3))
}

fn memory_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    problem.bytes() / (device.rates.hbm_gbps * 1e3)
}

fn peak_tflops(dtype: DType, math: Math, device: &DeviceInfo) -> f64 {
    match (dtype, math) {
        (DType::F16 | DType::BF16, _) => device.rates.half_tflops,
        (DType::F32, Math::Native) => device.rates.f32_tflops,
        // Tensor cores take half as many TF32 products in a cycle, at a clock that power lets be a little higher: 412 TFLOP/s
        // of 8192^3 on an H100.
        (DType::F32, Math::Tf32) => device.rates.half_tflops * 0.515,
        (DType::F32, Math::Bf16x6) => device.rates.half_tflops / 6.0,
        (DType::F64, _) => device.rates.f64_tflops,
    }
}

fn tiled_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    let [tile_m, tile_n, tile_k] = kernel.tile.map(f64::from);
    let [cluster_m, cluster_n] = kernel.cluster.map(f64::from);
    let shares_tile = kernel.family == Family::TileGemm;
    let blocks_per_tile = if shares_tile { cluster_m * cluster_n } else { 1.0 };
    // Whole clusters run, also where some of their tiles lie outside of D.
    let (along_m, along_n) = if shares_tile { (1.0, 1.0) } else { (cluster_m, cluster_n) };
    let count = |extent: usize, tile: f64, cluster: f64| (extent as f64 / (tile * cluster)).ceil() * cluster;
    let batch = problem.batch_count() as f64;
    let tiles = count(problem.m, tile_m, along_m) * count(problem.n, tile_n, along_n) * batch;
    let slots = (f64::from(device.sm_count) / blocks_per_tile).floor();
    let waves = (tiles / slots).ceil();
    let depth = (problem.k as f64 / tile_k).ceil() * tile_k;

    let peak_per_slot = peak_tflops(problem.dtype, kernel.math, device) * 1e6 / slots; // FLOP per microsecond
    let products = 2.0 * tile_m * tile_n * depth / (peak_per_slot * efficiency(kernel, waves));
    let tile_us = match kernel.schedule {
        // Two warp groups take turns with whole tiles.
        "pingpong" => products.max(0.5 * (products + PINGPONG_COLUMN_US * tile_n)),
        _ => products + epilogue_us(kernel),
    };
    // cuTile masks every load of a tile that D cuts off.
    let cut_off = if shares_tile && problem.m as f64 % tile_m != 0.0 { 0.6 } else { 0.0 };
    let arithmetic = (waves + cut_off) * tile_us;
    // The blocks of a cluster share what they have in common of A and B.
    let tile_bytes = (tile_m / along_n + tile_n / along_m) * depth * problem.dtype.bytes() as f64;
    let l2 = tiles * tile_bytes / (L2_GBPS * 1e3);
    let single = tile_bytes / (SM_LOAD_GBPS * 1e3 * blocks_per_tile);
    let load = if waves > 1.0 { l2 } else { l2.max(single) };
    overlapped(&[arithmetic, load, 1.05 * memory_us(problem, device)])
}

/// Memory, of which lanes beyond K take nothing, and a little for each further row's activations and multiplications; more of
/// both from nine rows on, where gemv_wide.hpp takes over (seven recordings, mean error 10 %, 20 % where N is small).
fn gemv_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    gemv_filled_us(kernel, problem, device).max(gemv_few_us(kernel, problem, device))
}

/// Where rows of W are too few for the card, its blocks go through all of K: nanoseconds of a k with one row of A, and of each further
/// row. Two products of an H100: 1 x 1 x 1000000 in f32 takes 53 us, 16 x 128 x 65536 163.
const GEMV_K_NS: (f64, f64) = (0.053, 0.16);

fn gemv_few_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    let blocks = problem.n.div_ceil(kernel.tile[1] as usize).saturating_mul(problem.batch_count());
    if blocks > device.sm_count as usize / 2 {
        return 0.0;
    }
    let (first, further) = GEMV_K_NS;
    GEMV_US + 1e-3 * problem.k as f64 * (first + further * (problem.m as f64 - 1.0))
}

/// With rows of W for the whole card.
fn gemv_filled_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    let (k, chunk) = (problem.k as f64, f64::from(kernel.tile[2]));
    let (further, memory) = (problem.m as f64 - 1.0, memory_us(problem, device));
    let (halves, short) = (problem.dtype.bytes() == 2, problem.m <= 4 && problem.k * problem.dtype.bytes() <= 512);
    if halves && (problem.m > 4 || (!short && problem.n * problem.k >= MMA_ELEMENTS)) {
        return gemv_mma_us(problem, device);
    }
    if problem.m > 8 {
        return GEMV_US + 0.5 * (further - 6.0) + 1.09 * memory;
    }
    if short {
        return GEMV_SHORT_US + 0.2 * further + memory;
    }
    let idle = (k / chunk).ceil() * chunk / k;
    GEMV_US + 1.01 * idle * memory + further * (0.05 * problem.dtype.bytes() as f64 + 0.004 * memory)
}

/// Memory, or what the busiest multiprocessor pulls; W is dealt out 16 rows at a time at least.
fn gemv_mma_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let tiles = (problem.n as f64 / 16.0).ceil() * problem.batch_count() as f64;
    let rows = 16.0 * (tiles / f64::from(device.sm_count)).ceil();
    let (least, per_k, most) = GEMV_MMA_SM_GBPS;
    let rate = (least + problem.k as f64 / per_k).min(most);
    let pull = rows * (problem.k * problem.dtype.bytes()) as f64 / (rate * 1e3);
    let (launch, start) = GEMV_MMA_US;
    launch + memory_us(problem, device).max(pull).hypot(start)
}

/// As gevm.cu splits K over a cluster: memory, or what the busiest multiprocessor pulls where blocks are few.
fn gevm_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    let [_, tile_n, tile_k] = kernel.tile.map(f64::from);
    let (sms, k, bytes) = (f64::from(device.sm_count), problem.k as f64, problem.dtype.bytes() as f64);
    let tiles = (problem.n as f64 / tile_n).ceil() * problem.batch_count() as f64;
    let fits = |blocks: f64| tiles * blocks <= if blocks > 2.0 { 0.5 * sms } else { sms };
    let deep = |blocks: f64| k > 4.0 * tile_k * blocks; // 16 warps, each with half a tile of K at least
    let cluster = [2.0, 4.0, 8.0].into_iter().take_while(|&blocks| fits(blocks) && deep(blocks)).last().unwrap_or(1.0);
    let further = problem.m.min(4) as f64 - 1.0;
    let rate = GEVM_BLOCK_GBPS / (1.0 + GEVM_ROW * further * 2.0 / bytes);
    let load = (tiles * cluster / sms).ceil() * k / cluster * tile_n * bytes / (rate * 1e3);
    GEVM_US + overlapped(&[memory_us(problem, device), load])
}

fn outer_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let vectors = problem.d.col_stride == 1 && problem.n.is_multiple_of(4) && problem.d.align(problem.dtype) == 16;
    OUTER_US + memory_us(problem, device) * if vectors { 1.0 } else { OUTER_SINGLE }
}

/// As sm90_skinny.cu splits K and fills a multiprocessor with blocks.
fn skinny_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    let [_, tile_n, tile_k] = kernel.tile.map(f64::from);
    let (sms, m, k) = (f64::from(device.sm_count), problem.m as f64, problem.k as f64);
    let tiles = (problem.n as f64 / tile_n).ceil() * problem.batch_count() as f64;
    let fits = |split: f64| tiles * split <= if split > 2.0 { 0.9 * sms } else { sms };
    let split = [8.0, 4.0, 2.0].into_iter().find(|&split| fits(split) && k >= 2.0 * split * tile_k).unwrap_or(1.0);
    let rows = [8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 80.0, 96.0].into_iter().find(|&rows| m <= rows).unwrap_or(128.0);
    let inbox = if split > 1.0 { rows * tile_n * 4.0 } else { 0.0 };
    let stage = (rows + tile_n) * tile_k * problem.dtype.bytes() as f64;
    let stages = |residents: f64| ((228.0 * 1024.0 / residents - 1300.0 - inbox) / stage).floor().clamp(1.0, 16.0);
    let blocks = tiles * split;
    let deep = split > 1.0 && (rows >= 64.0 || blocks > 0.9 * sms);
    let residents = if deep || stages(2.0) < 3.0 { 1.0 } else { 2.0 };
    let at_once = residents * sms;
    let turns = (blocks / at_once).ceil();
    let ring = turns * k / (split * tile_k) * SKINNY_STAGE_US / stages(residents);
    let rate = SKINNY_SM_GBPS[usize::from(blocks > sms)];
    let pull = (blocks / sms).ceil() * tile_n * (k / split) * problem.dtype.bytes() as f64 / (rate * 1e3);
    let memory = (1.016 * memory_us(problem, device)).max(pull);
    // How well the two overlap: the 3.4-norm, by the fit.
    let loads = (memory.powf(3.4) + ring.powf(3.4)).powf(1.0 / 3.4);
    let split_us = if split > 2.0 { SKINNY_SPLIT_US[1] } else { SKINNY_SPLIT_US[0] * (split - 1.0) };
    // Loads of the next tile hide all stores but the last.
    SKINNY_US + loads + split_us + residents.min((blocks / sms).ceil()) * rows * SKINNY_ROW_US
}

/// Matrices of an operand that are not the same one.
fn distinct(problem: &Problem, operand: &Operand) -> f64 {
    let along = problem.batch.into_iter().zip(operand.batch_stride);
    along.map(|(count, stride)| if stride == 0 { 1.0 } else { count as f64 }).product()
}

/// As sm90_bf16x6.cu prepares and multiplies: planes of B, a copy of A where its K is not contiguous, tiles in turns.
fn bf16x6_us(kernel: &KernelDesc, problem: &Problem, device: &DeviceInfo) -> f64 {
    let [tile_m, tile_n, tile_k] = kernel.tile.map(|x| x as usize);
    let pair = kernel.cluster[0] as usize;
    let Problem { m, n, k, .. } = *problem;
    let b_elements = distinct(problem, &problem.b) * (n * k) as f64;
    let copied = matches!(kernel.layout, Layout::TN | Layout::TT);
    let a_bytes = if copied { 8.0 * distinct(problem, &problem.a) * (m * k) as f64 } else { 0.0 };
    let prepare = (10.0 * b_elements + a_bytes) / (PREPARE_GBPS * 1e3);

    let clusters = m.div_ceil(tile_m * pair) * n.div_ceil(tile_n) * problem.batch_count();
    let turns = clusters.div_ceil((device.sm_count as usize / pair).max(1)) as f64;
    let (block, epilogue) = BF16X6_TILE_US[usize::from(tile_n == 64)];
    // What the way to add up costs that the kernel takes for this K.
    let sums = match k {
        0..128 => 2.0,
        128..2048 => 1.17,
        2048..8192 => 1.08,
        _ => 1.045,
    };
    let arithmetic = turns * (k.div_ceil(tile_k) as f64 * block * sums + epilogue);
    // Planes are read instead of B.
    let memory = memory_us(problem, device) + 2.0 * b_elements / (device.rates.hbm_gbps * 1e3);
    let us = BF16X6_US + prepare + overlapped(&[arithmetic, memory]);
    us.max(roofline_us(problem, device))
}

/// Time of activities that run side by side: that of the longest, and a little more where another is nearly as long, since
/// overlap is never perfect. The 4-norm: with the plain maximum a padded tile and a fitting one tie wherever device memory
/// decides.
fn overlapped(times: &[f64]) -> f64 {
    times.iter().map(|time| time.powi(4)).sum::<f64>().powf(0.25)
}

/// The same by another norm.
fn overlap_by(norm: f64, times: &[f64]) -> f64 {
    times.iter().map(|time| time.powf(norm)).sum::<f64>().powf(1.0 / norm)
}

/// What a multiprocessor does of its share of the sustained peak between two epilogues: tensor cores at the clock that power
/// allows do more than what a whole 8192^3 shows, ping-pong's do less, with its epilogues in the time.
fn efficiency(kernel: &KernelDesc, waves: f64) -> f64 {
    match (kernel.family, kernel.schedule) {
        (Family::SimtGemm, _) => 0.90,
        (_, "pingpong") => 0.95,
        (Family::TileGemm, _) => 1.055,
        // In long products power sets the clock, and the smaller a tile, the more bytes it moves for each product: 128 x 256 took
        // 1 to 2 % longer than 256 x 256 from three waves on. With this, 16 recordings come out 1 % too short to 3 % too long.
        _ if waves >= 3.0 && kernel.tile[0] * kernel.tile[1] < 40_000 => 1.05,
        _ => 1.075,
    }
}

/// What a tile's epilogue takes where nothing hides it: 3500 cycles in recordings, and of simt_gemm what fits nine products
/// with K from 64 to 4096 within 8 %.
fn epilogue_us(kernel: &KernelDesc) -> f64 {
    match (kernel.family, kernel.schedule) {
        (Family::SimtGemm, _) => 5.0,
        _ => 2.2,
    }
}

/// What an activation adds to each element that a multiprocessor stores, nanoseconds: the instructions of csrc/activation.hpp times what each takes, in 16384 x 3072 x 768 of f16
/// (144 us by ping-pong, 155 by 256 x 192) and 2048 x 1536 x 384 of f32, where most is the way to the bias. cuTile's is predicted.
fn activation_ns(kernel: &KernelDesc, problem: &Problem) -> f64 {
    let instructions = match (problem.epilogue.activation, problem.dtype.bytes()) {
        (Activation::Identity | Activation::Relu, _) => return 0.0,
        (Activation::GeluErf, 2) => 11.0,
        (Activation::GeluErf, _) => 14.0,
        (Activation::GeluTanh, _) => 8.0,
        (Activation::Silu, 2) => 6.0,
        (Activation::Silu, _) => 14.0,
    };
    let (bias_ns, instruction_ns) = match kernel.family {
        Family::TileGemm => (0.0, 0.02),
        Family::Sm90Gemm => (0.0, 0.009),
        _ => (0.35, 0.009),
    };
    instruction_ns * instructions + if problem.epilogue.bias.is_some() { bias_ns } else { 0.0 }
}

/// What each element of D takes longer where rows of D do not lie at multiples of 16 bytes, so that elements are stored one by one:
/// 44 us for 24 x 209 x 209 in bf16 by sm90_wave where 4 were estimated, 80 for 128 x 249 x 249 in f32 by sm90_bf16x6_direct, where 29
/// were.
fn single_ns(kernel: &KernelDesc, problem: &Problem) -> f64 {
    match kernel.family {
        _ if problem.d.align(problem.dtype) >= 16 => 0.0,
        Family::Sm90Wave => 3.7,
        Family::Sm90Skinny | Family::Sm90Bf16x6 | Family::Sm90Bf16x6Direct | Family::Sm90Sgemm | Family::Sm90Dgemm => {
            0.84
        }
        _ => 0.0,
    }
}

/// What `beta * C` adds to each, beside its bytes: 13 us to 2048 x 4096 x 4096 in bf16 by cuTile, 3 by CUTLASS, some 50 by kernels that read C
/// number by number.
fn residual_ns(kernel: &KernelDesc, problem: &Problem) -> f64 {
    match kernel.family {
        _ if !problem.epilogue.reads_c() => 0.0,
        Family::TileGemm => 0.2,
        Family::Sm90Gemm => 0.05,
        Family::Sm90Wave | Family::Sm90Skinny => 0.8,
        _ => 0.0,
    }
}
