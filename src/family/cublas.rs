//! The vendor library, cuBLAS, called with candle's conventions.

use crate::arch::DeviceInfo;
use crate::config::Config;
use crate::cost::{arithmetic_us, memory_us, overlap_by, overlapped, tf32};
use crate::kernel::{Case, Family, KernelDesc, Math, Rejection, INT};
use crate::problem::{F32Mode, Format, Layout, Operand, Problem};

pub(crate) struct Cublas;

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
        us(case.problem, case.device)
    }
}

/// The least time of a call, microseconds.
const VENDOR_US: f64 = 3.0;

/// The most rows and columns of D for which cuBLAS splits K over the card.
const FEW: usize = 256;

/// cuBLAS's time for few outputs: the shorter of a pass through all of K, and a split of K with an addition of the
/// parts. Fitted to 1,100 calls on an H100 (2026-11-23): 17 outputs from 1 x 1 to 200 x 200, K from 33 to 1,000,001,
/// four layouts. Nine of ten calls are within a factor of 1.7 of this time.
struct FewOutputs {
    launch_us: f64,
    /// Nanoseconds of one step of K, unsplit.
    whole_ns: f64,
    /// With K split: microseconds of the parts' overhead, and nanoseconds of one step of K.
    split: (f64, f64),
    /// Factors on the least times of memory and arithmetic.
    memory: f64,
    arithmetic: f64,
}

const fn few(launch_us: f64, whole_ns: f64, split: (f64, f64), memory: f64, arithmetic: f64) -> FewOutputs {
    FewOutputs { launch_us, whole_ns, split, memory, arithmetic }
}

/// D of up to 256 elements; both sides up to 64; one side above 64 and the other up to 16; larger D.
const FEW_HALF: [FewOutputs; 4] = [
    few(2.57, 5.88, (5.81, 0.077), 1.24, 1.0),
    few(3.89, 1.39, (2.99, 0.157), 1.0, 1.0),
    few(3.58, 4.46, (5.10, 0.138), 2.38, 1.0),
    few(3.92, 2.91, (5.45, 0.427), 1.0, 1.0),
];
const FEW_F32: [FewOutputs; 4] = [
    few(2.84, 3.77, (5.57, 0.188), 3.0, 1.0),
    few(4.30, 3.45, (3.78, 0.284), 1.0, 1.68),
    few(2.52, 20.0, (7.02, 0.272), 2.25, 1.0),
    few(3.57, 6.56, (8.32, 1.70), 1.0, 1.68),
];
const FEW_F64: [FewOutputs; 4] = [
    few(2.94, 2.55, (4.81, 0.089), 1.28, 1.0),
    few(3.50, 2.50, (4.80, 0.331), 1.0, 2.45),
    few(3.52, 2.79, (7.07, 0.010), 1.43, 1.0),
    few(3.61, 5.80, (4.73, 1.08), 2.94, 1.89),
];

/// cuBLAS with 16-bit operands whose rows do not lie at multiples of 16 bytes: its kernels use tiles of 128 x 128 at
/// 120 TFLOP/s on an H100, for every shape. Seven products in four layouts took 30 % less to 45 % more time than this
/// estimate (2026-11-23).
const UNALIGNED_US: f64 = 4.0;
const UNALIGNED_OF_PEAK: f64 = 0.15;

fn is_unaligned(problem: &Problem) -> bool {
    problem.a.format.bytes(1) == 2 && problem.alignments().iter().any(|(_, align)| *align < 16)
}

fn unaligned_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let [m, n] = [problem.m, problem.n].map(|x| x.div_ceil(128) as f64 * 128.0);
    let flops = 2.0 * m * n * problem.k as f64 * problem.batch_count() as f64;
    UNALIGNED_US
        + overlapped(&[flops / (UNALIGNED_OF_PEAK * device.rates.half_tflops * 1e6), memory_us(problem, device)])
}

/// Whether D has so few elements that cuBLAS splits K.
fn is_few(problem: &Problem, device: &DeviceInfo) -> bool {
    let tiles = problem.m.div_ceil(64).saturating_mul(problem.n.div_ceil(64));
    let few = problem.m <= FEW && problem.n <= FEW && tiles <= device.sm_count as usize / 4;
    few && problem.batch_count() == 1 && problem.k >= 256
}

fn few_us(problem: &Problem, device: &DeviceInfo) -> f64 {
    let k = problem.k as f64;
    let memory = memory_us(problem, device);
    let (short, long) = (problem.m.min(problem.n), problem.m.max(problem.n));
    if short == 1 {
        // Matrix by vector: memory speed. In 16 bits some lines are read more than once.
        let (launch, factor, k_ns) = match problem.a.format {
            Format::F32 => (3.69, 1.30, 2.4e-3),
            Format::F64 => (4.56, 1.07, 2.9e-3),
            _ => (3.57, 1.77, 3.5e-3),
        };
        return launch + factor * memory + 1e-3 * k_ns * k;
    }
    let kinds = match problem.a.format {
        Format::F32 => &FEW_F32,
        Format::F64 => &FEW_F64,
        _ => &FEW_HALF,
    };
    let kind = &kinds[match (short, long) {
        _ if short * long <= 256 => 0,
        (_, ..=64) => 1,
        (..=16, _) => 2,
        _ => 3,
    }];
    let (parts_us, part_ns) = kind.split;
    let sums = (1e-3 * kind.whole_ns * k).min(parts_us + 1e-3 * part_ns * k);
    let arithmetic = kind.arithmetic * arithmetic_us(problem, Math::Native, device);
    kind.launch_us + overlap_by(3.0, &[sums, kind.memory * memory, arithmetic])
}

/// cuBLAS's time: the roofline times a factor from benches/record, plus the launch.
fn us(problem: &Problem, device: &DeviceInfo) -> f64 {
    if is_few(problem, device) {
        return few_us(problem, device);
    }
    if is_unaligned(problem) {
        return unaligned_us(problem, device);
    }
    if problem.a.format == Format::F32 && problem.f32_mode == F32Mode::Tf32 {
        return tf32::vendor_us(problem, device);
    }
    let rows = problem.m.min(problem.n);
    // The epilogues' time in steps of K, and the most time that tiles add when they do not fill the device. Fitted to
    // 14 products in f32 from 512^3 to 4096^3, K from 64 on, and to seven products in f64.
    let fitted = match problem.a.format {
        Format::F32 if rows > 64 && problem.k >= 32 => Some((30.0, 12.0)),
        Format::F64 if rows > 128 => Some((50.0, 0.0)),
        _ => None,
    };
    if let Some((edge_k, most)) = fitted {
        let sums = arithmetic_us(problem, Math::Native, device) * (1.0 + edge_k / problem.k as f64);
        return VENDOR_US + overlapped(&[sums, 1.1 * memory_us(problem, device)]) + sums.min(most);
    }
    let factor = match (problem.a.format, rows) {
        (Format::F32, 2..=5) if problem.k > 1 => 1.35,
        (Format::F32, 6..=64) if problem.k > 1 => 2.0,
        (_, 0..=128) => 1.06,
        (Format::F16 | Format::BF16, 129..=192) => 1.03,
        (Format::F16 | Format::BF16, 193..=256) if problem.m.max(problem.n) <= 8192 => 1.1,
        (Format::F16 | Format::BF16, 193..=256) => 1.2,
        (Format::F16 | Format::BF16, 257..=512) => 1.02,
        (Format::F16 | Format::BF16, _) => 1.015,
        _ => 1.1,
    };
    // With few rows cuBLAS has few blocks, and each block goes through all of K: nanoseconds of one step of K. For a
    // long K cuBLAS seems to choose kernels other than the best.
    let long = problem.k >= 8192;
    let serial_ns = match (problem.a.format, rows) {
        (Format::F32, 2..=5) => 4.0,
        (Format::F32, 6..=64) => 5.0,
        (Format::F16 | Format::BF16, 1..=4) if problem.layout() == Layout::NN => 1.3,
        (Format::F16 | Format::BF16, 1..=64) => 1.1,
        (Format::F16 | Format::BF16, 65..=128) => 1.25,
        (Format::F16 | Format::BF16, 161..=192) if !long => 2.0,
        (Format::F16 | Format::BF16, 129..=256) => 2.8,
        (Format::F16 | Format::BF16, 321..=384) if !long => 2.8,
        (Format::F16 | Format::BF16, 257..=384) => 4.5,
        (Format::F16 | Format::BF16, 385..) => 2.6,
        _ => 0.0,
    };
    // With few columns cuBLAS splits a longer K: 384 x 768 x 27648 takes 34 us, 1027 x 192 x 28672 31.
    let k = if problem.n < 1024 { problem.k.min(8192) } else { problem.k };
    let roofline = arithmetic_us(problem, Math::Native, device).max(memory_us(problem, device));
    VENDOR_US + overlapped(&[roofline * factor, 1e-3 * serial_ns * k as f64])
}
