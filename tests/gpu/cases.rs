//! Problems with edges around a kernel's tile, and the comparison with the reference kernel.

use crate::device::{Element, Gpu, Operands};
use crate::oracle;
use candle_tilegemm::dispatch::Dispatcher;
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::{KernelDesc, Math};
use candle_tilegemm::problem::{power_of_two_in, BiasAxis, Epilogue, Operand};
use candle_tilegemm::{Activation, DType, F32Mode, Layout, Problem};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

/// What to vary beside the sizes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Variant {
    pub batch: [usize; 2],
    pub broadcast_a: bool,
    pub broadcast_b: bool,
    /// One C for the whole batch, with rows further apart than D's.
    pub broadcast_c: bool,
    /// Elements between the end of a row and the start of the next.
    pub padding: usize,
    /// Elements before the first one.
    pub offset: usize,
    pub alpha: f64,
    pub beta: f64,
    pub bias: Option<BiasAxis>,
    pub activation: Activation,
    pub column_major_d: bool,
    /// C is D itself.
    pub in_place: bool,
}

impl Variant {
    pub const PLAIN: Variant = Variant {
        batch: [1, 1],
        broadcast_a: false,
        broadcast_b: false,
        broadcast_c: false,
        padding: 0,
        offset: 0,
        alpha: 1.0,
        beta: 0.0,
        bias: None,
        activation: Activation::Identity,
        column_major_d: false,
        in_place: false,
    };
    pub const FULL: Variant =
        Variant { bias: Some(BiasAxis::N), activation: Activation::Silu, beta: 1.0, ..Variant::PLAIN };

    /// Everything that a kernel may be asked for.
    pub fn all(dtype: DType) -> Vec<Variant> {
        let plain = Variant::PLAIN;
        let whole_16_bytes = 16 / dtype.bytes();
        let mut variants = vec![
            plain,
            Variant { alpha: -0.5, ..plain },
            Variant { batch: [1, 3], ..plain },
            Variant { batch: [1, 3], broadcast_a: true, ..plain },
            Variant { batch: [1, 3], broadcast_b: true, ..plain },
            Variant { batch: [2, 3], padding: whole_16_bytes, ..plain },
            Variant { padding: whole_16_bytes, offset: whole_16_bytes, ..plain },
            Variant { padding: 1, ..plain },
            Variant { offset: 1, ..plain },
            Variant { beta: 1.0, ..plain },
            Variant { beta: -2.0, alpha: 0.5, batch: [1, 2], ..plain },
            Variant { beta: 0.5, batch: [1, 3], broadcast_c: true, ..plain },
            Variant { beta: 1.0, in_place: true, ..plain },
            Variant { beta: -2.0, alpha: 0.5, batch: [1, 3], in_place: true, ..plain },
            Variant { beta: 0.5, padding: 1, in_place: true, ..plain },
            Variant { bias: Some(BiasAxis::N), ..plain },
            Variant { bias: Some(BiasAxis::M), ..plain },
            Variant { column_major_d: true, bias: Some(BiasAxis::N), ..plain },
            Variant::FULL,
        ];
        variants.extend(Activation::ALL.map(|activation| Variant { activation, bias: Some(BiasAxis::N), ..plain }));
        variants
    }
}

/// A problem of this layout and variant.
pub fn problem(m: usize, n: usize, k: usize, layout: Layout, dtype: DType, variant: Variant) -> Problem {
    let count = variant.batch[0] * variant.batch[1];
    let mut problem = Problem::dense(m, n, k, count, layout, dtype);
    let pad = variant.padding as i64;
    let align = power_of_two_in((variant.offset * dtype.bytes()) as u64);
    let place = |operand: &mut Operand, rows: usize, cols: usize, broadcast: bool| {
        let (ld, lines) = if operand.col_stride == 1 {
            operand.row_stride = cols as i64 + pad;
            (operand.row_stride, rows)
        } else {
            operand.col_stride = rows as i64 + pad;
            (operand.col_stride, cols)
        };
        // Two batch dimensions with a gap between the outer ones do not merge into one.
        let inner = ld * lines as i64;
        let outer = (inner + if variant.batch[0] > 1 { 16 } else { 0 }) * variant.batch[1] as i64;
        operand.batch_stride = if broadcast || count == 1 { [0, 0] } else { [outer, inner] };
        operand.pointer_align = align;
    };
    if variant.column_major_d {
        problem.d = Operand::col_major(m, [0, 0]);
    }
    place(&mut problem.a, m, k, variant.broadcast_a);
    place(&mut problem.b, k, n, variant.broadcast_b);
    place(&mut problem.d, m, n, false);
    problem.batch = variant.batch;
    let mut epilogue = Epilogue::new(variant.alpha, variant.beta);
    epilogue.bias = variant.bias;
    epilogue.activation = variant.activation;
    epilogue.c = (variant.beta != 0.0).then_some(problem.d);
    epilogue.in_place = variant.in_place;
    if let Some(c) = epilogue.c.as_mut().filter(|_| variant.broadcast_c) {
        (c.row_stride, c.batch_stride) = (c.row_stride + 16, [0, 0]);
    }
    problem.epilogue = epilogue;
    problem
}

/// Where the numbers come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Data {
    /// N(0, 1).
    Normal,
    /// Whole numbers so small that every sum is exact.
    Integers,
    /// N(0, 1) with an infinity in the last column of A and a NaN in its last row: neither may spread, and what pads K must
    /// not meet them.
    NonFinite,
}

/// Operands for a problem: random A, B, C and bias; NaN in D, where that is not C, and around everything.
pub fn operands<T: Element>(problem: &Problem, offset: usize, data: Data, seed: u64) -> Operands<T> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut draw = |_: usize| match data {
        Data::Normal | Data::NonFinite => T::from_f64(StandardNormal.sample(&mut rng)),
        Data::Integers => T::from_f64(f64::from(rng.random_range(-2..=2))),
    };
    let Problem { m, n, k, batch, .. } = *problem;
    let mut fill = |operand: &Operand, rows: usize, cols: usize| {
        let mut values = vec![T::from_f64(f64::NAN); oracle::span(operand, rows, cols, batch) + offset + oracle::GUARD];
        oracle::for_each(operand, rows, cols, batch, |index| values[offset + index] = draw(index));
        values
    };
    let (mut a, b) = (fill(&problem.a, m, k), fill(&problem.b, k, n));
    if data == Data::NonFinite && k > 0 {
        let at = |row: usize, col: usize| row as i64 * problem.a.row_stride + col as i64 * problem.a.col_stride;
        a[offset + at(m / 2, k - 1) as usize] = T::from_f64(f64::INFINITY);
        a[offset + at(m - 1, k / 2) as usize] = T::from_f64(f64::NAN);
    }
    let c = problem.epilogue.c.map_or(vec![T::from_f64(f64::NAN)], |c| fill(&c, m, n));
    let bias = (0..m.max(n)).map(&mut draw).collect();
    let d = match problem.epilogue.in_place {
        true => c.clone(),
        false => vec![T::from_f64(f64::NAN); oracle::span(&problem.d, m, n, batch) + offset + oracle::GUARD],
    };
    Operands { a, b, c, bias, d, offsets: [offset; 4] }
}

/// The mode that a kernel is tried in: the default, where that admits it.
pub fn f32_mode(kernel: &KernelDesc) -> F32Mode {
    if kernel.math == Math::Tf32 {
        F32Mode::Tf32
    } else {
        F32Mode::Accurate
    }
}

/// Runs one kernel over every size and variant that it supports, and compares with the reference kernel.
pub fn kernel_against_reference(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    match kernel.dtype {
        DType::F16 => compare_all::<f16>(gpu, kernel),
        DType::BF16 => compare_all::<bf16>(gpu, kernel),
        DType::F32 => compare_all::<f32>(gpu, kernel),
        DType::F64 => compare_all::<f64>(gpu, kernel),
        other => panic!("no test for {other}"),
    }
}

/// compute-sanitizer takes minutes for a single kernel's cases: TILEGEMM_TEST_CASES is how many small ones it gets of each.
fn few_cases() -> Result<Option<usize>, String> {
    let Ok(value) = std::env::var("TILEGEMM_TEST_CASES") else { return Ok(None) };
    match value.parse() {
        Ok(few) if few > 0 => Ok(Some(few)),
        _ => Err(format!("TILEGEMM_TEST_CASES={value} is not understood; expected a number of cases")),
    }
}

fn compare_all<T: Element>(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    if !kernel.arch.runs_on(gpu.info.capability) {
        return Err(format!("built for {}, which this device does not run", kernel.arch));
    }
    let dispatcher = Dispatcher::new(gpu.info.clone());
    let mut cases = Vec::new();
    for (index, (m, n, k)) in sizes(kernel).into_iter().enumerate() {
        // Every variant on a few sizes, and every size plain. sm90_swap_ab.cu and sm90_bf16x6_direct.cu have a kernel for each width
        // of tiles and sm90_gemm.cu one for C: all that an epilogue can be on all of their sizes, and every variant on
        // theirs that are not large.
        let is_wave = kernel.family == "sm90_swap_ab" && kernel.split <= 2;
        let has_many = is_wave || kernel.family == "sm90_bf16x6_direct";
        let variants = match index % 5 == 0 && !(has_many && m * n + n * k > 2_500_000) {
            true => Variant::all(kernel.dtype),
            false if has_many || kernel.family == "sm90_gemm" => {
                vec![Variant::PLAIN, Variant { in_place: true, ..Variant::FULL }]
            }
            false => vec![Variant::PLAIN],
        };
        for variant in variants {
            let problem = problem(m, n, k, kernel.layout, kernel.dtype, variant);
            let f32_mode = f32_mode(kernel);
            let problem = Problem { f32_mode, ..problem };
            if kernel.supports(&problem.canonical().problem, dispatcher.device()).is_ok() {
                cases.extend(
                    [Data::Normal, Data::Integers, Data::NonFinite].map(|data| (index, problem, variant, data)),
                );
            }
        }
    }
    // A kernel that supports nothing of all this would pass without having run.
    if cases.len() < 40 {
        return Err(format!("only {} comparisons to make", cases.len()));
    }
    if let Some(few) = few_cases()? {
        let every = cases.len().div_ceil(few);
        cases = cases.into_iter().filter(|(_, problem, ..)| problem.flops() < 1e9).step_by(every).collect();
    }
    let compare = |&(index, problem, variant, data): &(usize, Problem, Variant, Data)| {
        let operands = operands::<T>(&problem, variant.offset, data, index as u64);
        oracle::compare(gpu, kernel.name, &problem, &operands, data)
            .map_err(|e| format!("{problem} {variant:?} {data:?}: {e}"))
    };
    // Numbers are drawn and compared by all cores at once. A cuBLAS handle belongs to one thread at a time.
    if kernel.family == "cublas" {
        cases.iter().try_for_each(compare)
    } else {
        cases.par_iter().try_for_each(compare)
    }
}

/// Sizes around the edges of the tile, in steps that the kernel's alignment allows and in some that it may not.
fn sizes(kernel: &KernelDesc) -> Vec<(usize, usize, usize)> {
    let [tile_m, tile_n, tile_k] = match kernel.family {
        "cublas" => [128, 128, 32],
        _ => kernel.tile.map(|x| x as usize),
    };
    let step = (kernel.align as usize / kernel.dtype.bytes()).max(1);
    let around =
        |tile: usize, step: usize| [step, tile.saturating_sub(step).max(step), tile, tile + step, 2 * tile + step];
    let (ns, ks) = (around(tile_n, step), around(tile_k, step));
    let mut sizes = Vec::new();
    for (i, m) in [1, 2, 7, tile_m - 1, tile_m, tile_m + 1, 2 * tile_m + 3].into_iter().enumerate() {
        for j in 0..5 {
            sizes.push((m, ns[j], ks[(i + j) % 5]));
        }
    }
    // More tiles than multiprocessors, deep K, and whatever a model has.
    sizes.extend([(777, 1032, 72), (16, 384, 1536), (512, 520, 1000), (40, 24, 4096), (1, 1000, 4096), (1500, 8, 64)]);
    if kernel.family == "sm90_swap_ab" && kernel.split <= 2 {
        sizes.extend(wave_sizes(kernel));
    }
    if kernel.family == "sm90_gemm" {
        // More tiles than run at a time, so that parts of C and D go round in shared memory; and strips either way, the last one narrow.
        sizes.extend([(2100, 4104, 136), (2600, 8200, 72)]);
    }
    if kernel.family == "sm90_bf16x6" {
        // All ways to add up, one and many tiles, edges of the planes; K and N of any length where the layout allows them.
        sizes.extend([(1, 1, 64), (130, 68, 64), (257, 129, 96), (129, 70, 100), (300, 264, 160), (128, 128, 256)]);
        sizes.extend([
            (64, 1000, 260),
            (333, 333, 333),
            (1000, 36, 516),
            (513, 65, 2080),
            (2048, 2112, 96),
            (1, 4096, 1024),
        ]);
        sizes.extend([(259, 131, 132), (77, 40, 65), (200, 515, 67), (4, 3, 95), (640, 388, 256), (500, 130, 8200)]);
    }
    if kernel.family == "sm90_bf16x6_direct" {
        sizes.extend(direct_sizes());
    }
    if kernel.family == "sm90_tf32" {
        // M in steps of four, where rows of A are columns; more tiles than run at a time, of pairs of blocks, too. Then every kind
        // of cluster that narrow tiles have on an H100. The last of both with every variant.
        sizes.extend([(124, 260, 100), (260, 516, 1000), (2100, 4100, 68), (516, 132, 2052), (1300, 3204, 100)]);
        sizes.extend([(9000, 60, 100), (60, 9004, 100), (100, 3968, 1156), (332, 260, 516), (332, 260, 1092)]);
    }
    if kernel.family == "sm90_sgemm" {
        // All tiles of a row, the longer side either one, more tiles than multiprocessors, K in parts over clusters.
        sizes.extend([(1, 1, 1), (131, 133, 52), (2049, 64, 36), (64, 2052, 44), (5000, 1028, 20), (1030, 5001, 33)]);
        sizes.extend([(256, 384, 64), (100, 92, 2052), (130, 500, 1000), (64, 128, 4100), (512, 512, 516), (3, 7, 9)]);
    }
    if kernel.family == "sm90_dgemm" {
        // N of any length, more tiles than multiprocessors, a ring that goes round many times.
        sizes.extend([
            (1, 1, 2),
            (131, 133, 52),
            (2049, 64, 36),
            (1500, 1501, 18),
            (64, 1030, 34),
            (130, 257, 3000),
            (3, 7, 10),
        ]);
    }
    if kernel.family == "gemv" || (kernel.family == "sm90_swap_ab" && kernel.split > 2) {
        // N that is no multiple of anything, K split many ways, more columns than run at a time.
        sizes.extend([(3, 515, 512), (40, 1021, 136), (9, 64, 8192), (2, 77, 5000), (20, 20_000, 264), (4, 9000, 264)]);
    }
    if kernel.family == "gemv" {
        // Every way to share a warp among short rows; all numbers of rows; parts of K and of W that are left over.
        sizes.extend([(1, 4099, 64), (4, 1001, 128), (2, 333, 256), (3, 70_001, 8), (4, 77, 96), (1, 20_003, 128)]);
        sizes.extend([(3, 300, 776), (5, 131, 1000), (6, 64, 640), (8, 1023, 4104), (12, 1021, 520), (11, 9001, 136)]);
        sizes.extend([(9, 7, 8192), (13, 4096, 1032), (16, 515, 3080), (10, 1024, 24), (16, 9001, 768), (14, 2, 4096)]);
    }
    if kernel.family == "gemv" && kernel.dtype.bytes() == 2 {
        // Every cut of gemv/mma.hpp, with rows left over and tiles in turns; weights so large that it takes few rows, too.
        sizes.extend([
            (7, 9001, 328),
            (5, 4099, 4096),
            (8, 2050, 8200),
            (7, 20_003, 200),
            (6, 40_001, 72),
            (8, 2100, 1000),
        ]);
        sizes.push((3, 50_011, 2008));
    }
    if kernel.family == "gevm" {
        // Any K, also one that splits A's rows off their alignment; few columns, so that clusters split K; many.
        sizes.extend([(1, 128, 1001), (4, 64, 2600), (3, 8, 515), (2, 136, 4096), (4, 1000, 77), (1, 64, 8191)]);
        sizes.extend([(2, 9000, 300), (4, 128, 12_000), (3, 264, 33), (1, 16, 1), (4, 4096, 640), (2, 512, 1026)]);
    }
    if kernel.family == "split_k" {
        // Each tile, with K whole and in parts: few outputs, one side long, both, a K that fills the card with parts.
        sizes.extend([(1, 1, 50_001), (1, 9, 5000), (9, 1, 5000), (3, 3, 20_011), (4, 130, 3000), (130, 4, 3000)]);
        sizes.extend([(16, 200, 4001), (200, 16, 4001), (150, 150, 2049), (700, 900, 65), (33, 35, 3001), (5, 3, 1)]);
    }
    if kernel.family == "outer" {
        sizes.extend([
            (4096, 64, 1),
            (3001, 37, 1),
            (100, 260, 1),
            (5, 1026, 1),
            (70, 1, 1),
            (1, 300, 1),
            (129, 16, 1),
        ]);
    }
    sizes
}

/// With a single product for each element there is nothing to round but that: K = 1 has one right answer.
pub fn outer_is_simt_to_the_bit(gpu: &Gpu) -> Result<(), String> {
    let built = |family| {
        let reads = |layout| matches!(layout, Layout::TN | Layout::Any);
        let mut kernels = KERNELS.iter().filter(|k| k.is_built() && k.arch.runs_on(gpu.info.capability));
        let kernel = kernels.find(|k| k.family == family && reads(k.layout) && k.align == 4);
        kernel.ok_or(format!("no kernel of {family:?} is built"))
    };
    let (outer, simt) = (built("outer")?, built("simt_gemm")?);
    for (m, n) in [(4096, 64), (3001, 37)] {
        for alpha in [1.0, -0.3] {
            let problem = problem(m, n, 1, Layout::TN, DType::F32, Variant { alpha, ..Variant::PLAIN });
            let mut operands = operands::<f32>(&problem, 0, Data::NonFinite, 1);
            (operands.a[0], operands.a[1], operands.b[0]) = (-0.0, 1e-40, 3e38);
            let bits = |kernel: &KernelDesc| -> Result<Vec<u32>, String> {
                let d = gpu.run(kernel.name, &problem, &operands)?;
                Ok(d.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect())
            };
            if bits(outer)? != bits(simt)? {
                return Err(format!("{problem}: {outer} and {simt} differ"));
            }
        }
    }
    Ok(())
}

/// What a launch of the waves of sm90_swap_ab.cu can be. Plans choose for the number of tiles and an H100's 132 multiprocessors.
fn wave_sizes(kernel: &KernelDesc) -> Vec<(usize, usize, usize)> {
    // K in parts of uneven length, tiles moved back, N and D's rows of any length, a second tile of A that is all but empty.
    let mut sizes = vec![(65, 1021, 1096), (77, 515, 136), (129, 1000, 4104), (300, 203, 1032), (256, 200, 8200)];
    // Clusters that march over the tiles.
    sizes.extend([(70, 200, 8200), (512, 20_000, 136), (128, 28_680, 136), (257, 14_336, 72), (777, 6147, 72)]);
    // Each width: one and two tiles of A, with K whole, and in halves where it is long enough for that.
    let (swap_ab, long) =
        (kernel.widths.last() == Some(&kernel.tile[0]), if kernel.cluster[0] > 1 { 8200 } else { 520 });
    for &width in kernel.widths {
        let (width, tile_n) = (width as usize, kernel.tile[1] as usize);
        let (rows, columns) = if swap_ab { (width, tile_n) } else { (kernel.tile[0] as usize, width) };
        sizes.extend([(rows - 3, 130 * columns - 5, 136), (2 * rows - 3, 66 * columns - 5, 136)]);
        if kernel.split > 1 {
            let [one, two] = if swap_ab { [46, 23] } else { [66, 29] };
            sizes.extend([(rows - 3, one * columns - 5, long), (2 * rows - 3, two * columns - 5, long)]);
        }
    }
    sizes
}

/// What a launch of sm90_bf16x6_direct.cu can be. It chooses for an H100's 132 multiprocessors; for nn and a K below 256 tall tiles.
fn direct_sizes() -> Vec<(usize, usize, usize)> {
    let mut sizes = Vec::new();
    // Few rows: swap AB, K in up to eight parts, even and not.
    for (i, rows) in [1, 9, 16, 17, 32, 33, 64].into_iter().enumerate() {
        let ks = [64, 100, 256, 260, 516, 1028, 2052];
        sizes.extend([(rows, 333 + i, ks[i]), (rows, 1032, ks[(i + 2) % 7]), (rows, 68, ks[(i + 4) % 7])]);
    }
    // Each width of tiles and number of parts, with swap AB and without.
    sizes.extend([(3001, 30, 260), (1500, 36, 260), (1500, 9, 256), (513, 9, 260), (257, 9, 516), (1500, 129, 256)]);
    sizes.extend([(3001, 36, 256), (3001, 30, 256), (1000, 30, 516), (513, 30, 2052), (65, 129, 2052)]);
    sizes.extend([(100, 257, 516), (65, 3001, 256), (3001, 36, 516), (1500, 36, 1028), (100, 257, 4100)]);
    // Tall tiles: with D by TMA and without, taken in turns, large and small products apart and not.
    sizes.extend([
        (129, 3004, 128),
        (129, 3001, 128),
        (257, 129, 100),
        (300, 264, 252),
        (2100, 2052, 260),
        (2048, 2112, 96),
    ]);
    sizes
}
