//! Problems with edges around a kernel's tile, and the comparison with the reference kernel.

use crate::device::{by_types, Element, Gpu, Operands};
use crate::numbers::{Kind, Numbers};
use crate::oracle;
use crate::shard::side_by_side;
use candle_tilegemm::dispatch::Dispatcher;
use candle_tilegemm::kernel::{KernelDesc, Math, Rejection};
use candle_tilegemm::problem::{power_of_two_in, BiasAxis, Epilogue, Operand, Types};
use candle_tilegemm::{Activation, F32Mode, Format, Layout, Problem};
use rand::rngs::StdRng;
use rand::SeedableRng;

/// What the families' files ask for.
pub mod family {
    #![allow(dead_code)] // tests/tables/contract.rs uses the rest
    include!(concat!(env!("OUT_DIR"), "/cases.rs"));
}

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
    pub fn all(dtype: Format) -> Vec<Variant> {
        let plain = Variant::PLAIN;
        let whole_16_bytes = 16 / dtype.bytes(1);
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

/// A problem of this type, layout and variant.
pub fn problem(m: usize, n: usize, k: usize, layout: Layout, types: impl Into<Types>, variant: Variant) -> Problem {
    let count = variant.batch[0] * variant.batch[1];
    let Types { a: dtype, d: out, .. } = types.into();
    let mut problem = Problem::dense(m, n, k, count, layout, dtype).with(|p| p.d.format = out);
    let pad = variant.padding as i64;
    let align = power_of_two_in((variant.offset * dtype.bytes(1)) as u64);
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
        problem.d = Operand::col_major(problem.d.format, m, [0, 0]);
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
pub fn operands<T: Element, Out: Element>(problem: &Problem, offset: usize, data: Data, seed: u64) -> Operands<T, Out> {
    let mut rng = StdRng::seed_from_u64(seed);
    let kind = if data == Data::Integers { Kind::Integers } else { Kind::Normal };
    let (mut of_inputs, mut of_d) = (Numbers::<T>::new(kind, &mut rng), Numbers::<Out>::new(kind, &mut rng));
    let Problem { m, n, k, batch, .. } = *problem;
    fn fill<T: Element>(
        operand: &Operand,
        [rows, cols]: [usize; 2],
        batch: [usize; 2],
        offset: usize,
        numbers: &mut Numbers<T>,
    ) -> Vec<T> {
        let mut values = vec![T::from_f64(f64::NAN); oracle::span(operand, rows, cols, batch) + offset + oracle::GUARD];
        oracle::for_each_line(operand, rows, cols, batch, |line| {
            numbers.fill(&mut values[offset + line.start..offset + line.end]);
        });
        values
    }
    let mut a: Vec<T> = fill(&problem.a, [m, k], batch, offset, &mut of_inputs);
    let b = fill(&problem.b, [k, n], batch, offset, &mut of_inputs);
    if data == Data::NonFinite && k > 0 {
        let at = |row: usize, col: usize| row as i64 * problem.a.row_stride + col as i64 * problem.a.col_stride;
        a[offset + at(m / 2, k - 1) as usize] = T::from_f64(f64::INFINITY);
        a[offset + at(m - 1, k / 2) as usize] = T::from_f64(f64::NAN);
    }
    let c = problem.epilogue.c.map_or(vec![Out::from_f64(f64::NAN)], |c| fill(&c, [m, n], batch, offset, &mut of_d));
    let bias = of_d.take(m.max(n));
    let d = match problem.epilogue.in_place {
        true => c.clone(),
        false => vec![Out::from_f64(f64::NAN); oracle::span(&problem.d, m, n, batch) + offset + oracle::GUARD],
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

/// Runs one kernel over every size and variant that it supports, or over so many small cases, and compares with the reference kernel.
pub fn kernel_against_reference(gpu: &Gpu, kernel: &'static KernelDesc, few: Option<usize>) -> Result<(), String> {
    by_types!(kernel.types, compare_all(gpu, kernel, few))
}

/// compute-sanitizer takes minutes for a single kernel's cases: TILEGEMM_TEST_CASES is how many small ones it gets of each.
pub fn few_cases() -> Result<Option<usize>, String> {
    let Ok(value) = std::env::var("TILEGEMM_TEST_CASES") else { return Ok(None) };
    match value.parse() {
        Ok(few) if few > 0 => Ok(Some(few)),
        _ => Err(format!("TILEGEMM_TEST_CASES={value} is not understood; expected a number of cases")),
    }
}

fn compare_all<T: Element, Out: Element>(
    gpu: &Gpu,
    kernel: &'static KernelDesc,
    few: Option<usize>,
) -> Result<(), String> {
    if !kernel.arch.runs_on(gpu.info.capability) {
        return Err(format!("built for {}, which this device does not run", kernel.arch));
    }
    let dispatcher = Dispatcher::new(gpu.info.clone());
    let mut cases: Vec<(usize, Problem, Variant, Data)> = Vec::new();
    for (index, (m, n, k)) in sizes(kernel).into_iter().enumerate() {
        // Every variant on every fifth size, and a bare product and a full epilogue on every size. Where a kernel has many widths of
        // tiles, and so many large sizes, not every variant on these.
        let is_large = !kernel.widths.is_empty() && m * n + n * k > 2_500_000;
        let mut variants = vec![Variant::PLAIN, Variant { in_place: true, ..Variant::FULL }];
        if index % 5 == 0 && !is_large {
            variants.extend(Variant::all(kernel.types.a));
        }
        for variant in variants {
            let problem = problem(m, n, k, kernel.layout, kernel.types, variant);
            let f32_mode = f32_mode(kernel);
            let problem = problem.with(|p| p.f32_mode = f32_mode);
            if kernel.supports(&problem.canonical().problem, dispatcher.device()).is_ok() {
                let all = [Data::Normal, Data::Integers, Data::NonFinite].map(|data| (index, problem, variant, data));
                // The bare product and the full epilogue of a large size have one kind of data each.
                let kinds = if is_large { &all[(index + usize::from(variant.in_place)) % 3..][..1] } else { &all[..] };
                cases.extend(kinds);
            }
        }
    }
    // A kernel that supports nothing of all this would pass without having run.
    if cases.len() < 40 {
        return Err(format!("only {} comparisons to make", cases.len()));
    }
    if let Some(few) = few {
        // Larger products take racecheck minutes.
        cases.retain(|(_, problem, ..)| problem.flops() < 1e8);
        if cases.is_empty() {
            return Err("no small comparisons to make".into());
        }
        let every = cases.len().div_ceil(few);
        cases = cases.into_iter().step_by(every).collect();
    }
    let compare = |&(index, problem, variant, data): &(usize, Problem, Variant, Data)| {
        let operands = operands::<T, Out>(&problem, variant.offset, data, index as u64);
        oracle::compare(gpu, kernel.name, &problem, &operands, data)
            .map_err(|e| format!("{problem} {variant:?} {data:?}: {e}"))
    };
    // Numbers are drawn and compared by all cores at once.
    side_by_side(&cases, compare).map(drop)
}

/// Sizes around the edges of the tile, in steps that the kernel's alignment allows and in some that it may not.
fn sizes(kernel: &KernelDesc) -> Vec<(usize, usize, usize)> {
    let [tile_m, tile_n, tile_k] = match kernel.tile {
        [0, 0, 0] => [128, 128, 32],
        tile => tile.map(|x| x as usize),
    };
    let step = (kernel.align as usize / kernel.types.a.bytes(1)).max(1);
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
    let own = family::SIZES.iter().filter(|(family, _)| *family == kernel.family).flat_map(|(_, sizes)| *sizes);
    sizes.extend(own.map(|&[m, n, k]| (m, n, k)));
    sizes.extend(sizes_of_widths(kernel));
    sizes
}

/// For each width of the kernel's tiles: one and two tiles along the other side, with K whole, and in halves where K is long enough. A plan
/// chooses the width for the number of tiles and an H100's 132 multiprocessors.
fn sizes_of_widths(kernel: &KernelDesc) -> Vec<(usize, usize, usize)> {
    let mut sizes = Vec::new();
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

/// Sizes as near to these as the kernel takes: fewer rows, a K of 1, or the least K.
pub fn sizes_near(gpu: &Gpu, kernel: &KernelDesc, [m, n, k]: [usize; 3]) -> [usize; 3] {
    let dense = Problem::dense(m, n, k, 1, kernel.layout, kernel.types.a).with(|p| p.d.format = kernel.types.d);
    let problem = dense.with(|p| p.f32_mode = f32_mode(kernel));
    match kernel.supports(&problem.canonical().problem, &gpu.info) {
        Err(Rejection::TooMany { what: "rows", most, .. }) => sizes_near(gpu, kernel, [most, n, k]),
        Err(Rejection::Sum { .. }) => [m, n, 1],
        Err(Rejection::ShortSums { least, .. }) => [m, n, least],
        _ => [m, n, k],
    }
}
