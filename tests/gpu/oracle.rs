//! What is right: an f64 product on the CPU for the reference kernel, and the reference kernel for all others.

use crate::cases::{self, Data, Variant};
use crate::device::{by_types, Choice, Element, Gpu, Operands};
use candle_tilegemm::family;
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::problem::{BiasAxis, Operand, Types};
use candle_tilegemm::{Activation, F32Mode, Format, Layout, Problem};
use rayon::prelude::*;

/// Elements after the end of every buffer that no kernel may touch.
pub const GUARD: usize = 64;

pub fn library_matches_table(_: &Gpu) -> Result<(), String> {
    let linked = candle_tilegemm::launch::verify_library().map_err(|e| e.to_string())?;
    if linked > 0 {
        Ok(())
    } else {
        Err("no kernel is linked".into())
    }
}

/// Whether two results are the same: within the tolerance, the same infinity, or both NaN.
pub fn agree(got: f64, expected: f64, tolerance: f64) -> bool {
    got == expected || (got.is_nan() && expected.is_nan()) || (got - expected).abs() <= tolerance
}

/// Elements from the first to one past the last.
pub fn span(operand: &Operand, rows: usize, cols: usize, batch: [usize; 2]) -> usize {
    if [rows, cols, batch[0], batch[1]].contains(&0) {
        return 0;
    }
    let [outer, inner] = operand.batch_stride;
    let steps = [(rows, operand.row_stride), (cols, operand.col_stride), (batch[0], outer), (batch[1], inner)];
    steps.into_iter().map(|(extent, stride)| (extent - 1) * stride as usize).sum::<usize>() + 1
}

/// Calls `f` with every line of neighbouring elements, rows or columns: with single elements, where neither are neighbours.
pub fn for_each_line(
    operand: &Operand,
    rows: usize,
    cols: usize,
    batch: [usize; 2],
    mut f: impl FnMut(std::ops::Range<usize>),
) {
    let (of_rows, of_cols) = ((rows, operand.row_stride), (cols, operand.col_stride));
    let is_column_major = operand.row_stride == 1 && operand.col_stride != 1;
    let [(lines, to_next_line), (along, to_next)] =
        if is_column_major { [of_cols, of_rows] } else { [of_rows, of_cols] };
    if along == 0 {
        return;
    }
    for outer in 0..batch[0] as i64 {
        for inner in 0..batch[1] as i64 {
            let first = outer * operand.batch_stride[0] + inner * operand.batch_stride[1];
            for line in 0..lines as i64 {
                let start = (first + line * to_next_line) as usize;
                match to_next {
                    1 => f(start..start + along),
                    _ => (0..along).map(|at| start + at * to_next as usize).for_each(|at| f(at..at + 1)),
                }
            }
        }
    }
}

/// Calls `f` with the index of every element, batch by batch, row by row.
pub fn for_each(operand: &Operand, rows: usize, cols: usize, batch: [usize; 2], mut f: impl FnMut(usize)) {
    for outer in 0..batch[0] as i64 {
        for inner in 0..batch[1] as i64 {
            let first = outer * operand.batch_stride[0] + inner * operand.batch_stride[1];
            for row in 0..rows as i64 {
                for col in 0..cols as i64 {
                    f((first + row * operand.row_stride + col * operand.col_stride) as usize);
                }
            }
        }
    }
}

/// The reference kernel for this device.
fn reference(gpu: &Gpu, types: Types) -> Result<&'static KernelDesc, String> {
    let is_reference = |k: &&KernelDesc| k.role == Role::LastResort && k.is_built() && k.types == types;
    let kernels = family::KERNELS.iter().filter(is_reference).filter(|k| k.arch.runs_on(gpu.info.capability));
    kernels.max_by_key(|k| k.arch.capability).ok_or_else(|| format!("there is no reference kernel for {types}"))
}

/// The kernel's D against the reference kernel's, and everything around D against what was there before.
pub fn compare<'a, T: Element, Out: Element>(
    gpu: &Gpu,
    choice: impl Into<Choice<'a>>,
    problem: &Problem,
    operands: &Operands<T, Out>,
    data: Data,
) -> Result<(), String> {
    compare_with(gpu, choice, problem, operands, data, &expected(gpu, problem, operands)?)
}

/// The reference kernel's D.
pub fn expected<T: Element, Out: Element>(
    gpu: &Gpu,
    problem: &Problem,
    operands: &Operands<T, Out>,
) -> Result<Vec<Out>, String> {
    let mut beside = *problem;
    beside.epilogue.in_place = false;
    gpu.run(reference(gpu, problem.types())?.name, &beside, operands)
}

/// [`compare`] with what [`expected`] has given.
pub fn compare_with<'a, T: Element, Out: Element>(
    gpu: &Gpu,
    choice: impl Into<Choice<'a>>,
    problem: &Problem,
    operands: &Operands<T, Out>,
    data: Data,
    expected: &[Out],
) -> Result<(), String> {
    let choice = choice.into();
    let got = gpu.run(choice, problem, operands)?;
    let offset = operands.offsets[3];
    let inside = inside(problem, offset, got.len());
    // Both sum k products of N(0,1) in f32 (f64), in different orders, and round once to T: partial sums reach sqrt(k), and k
    // roundings of those add up to about k units at the worst of a few 100,000 elements.
    let accumulator = if Out::UNIT_ROUNDOFF < 1e-12 { Out::UNIT_ROUNDOFF } else { f32::UNIT_ROUNDOFF };
    let mut units = 4.0 * (problem.k as f64 + 32.0);
    if matches!(problem.a.format, Format::F16 | Format::BF16 | Format::F8E4M3) {
        // Tensor cores add 16 products at a time and cut the sum towards zero, half a unit of it on average.
        units += (problem.k as f64).powf(1.5) / 16.0;
    }
    let scale = problem.epilogue.alpha().abs().max(1.0) * units;
    // Inputs that are rounded to TF32, to nearest, are off by up to 2^-11 each and their product by up to 2^-10, of N(0, 1) by
    // 0.3 * 2^-10 on average, and by no more than 12 * 2^-10 here. With inputs cut off, deep sums would be outside of this.
    let tf32 = problem.a.format == Format::F32 && problem.f32_mode == F32Mode::Tf32;
    // Of products of fp8 the tensor cores keep some 13 bits of the largest of 32.
    let inputs = match problem.a.format {
        _ if tf32 => (12.0 + 2.5 * (problem.k as f64).sqrt()) * 2f64.powi(-10),
        Format::F8E4M3 => (problem.k as f64).sqrt() * 2f64.powi(-10),
        _ => 0.0,
    };
    let inputs = inputs * problem.epilogue.alpha().abs().max(1.0);
    // cuBLAS rounds a product of 16 bits before it adds beta * C: numbers of C are below 6.
    let name = match choice {
        Choice::Named(name) => name.split('@').next().unwrap_or_default(),
        Choice::By(_) => "",
    };
    let is_vendor = family::by_name(name).is_some_and(|kernel| kernel.role == Role::Vendor);
    let (is_half, in_place) = (Out::UNIT_ROUNDOFF > 1e-4, problem.epilogue.in_place);
    let rounds_twice = is_vendor && in_place && is_half;
    // So do plans that copy a D in f32, and plans in place, which may be by cuBLAS: numbers of the product are below 6 sqrt(k).
    let on_copies = matches!(choice, Choice::By(_)) && !problem.epilogue.is_linear() && (!is_half || in_place);
    let product = if on_copies { 6.0 * (problem.k as f64).sqrt() * Out::UNIT_ROUNDOFF } else { 0.0 };
    let rounds_twice = rounds_twice || on_copies;
    let twice = if rounds_twice { Out::UNIT_ROUNDOFF } else { 0.0 };
    let exact = !rounds_twice && data == Data::Integers && problem.epilogue.activation == Activation::Identity;
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        if inside[index] && got == expected {
            continue;
        }
        let (got, expected) = (got.to_f64(), expected.to_f64());
        if !inside[index] {
            if !got.is_nan() {
                return Err(format!("wrote {got} outside of D, at element {index}"));
            }
            continue;
        }
        let tolerance = 2.0 * Out::UNIT_ROUNDOFF * expected.abs() + accumulator * scale + inputs;
        let tolerance = tolerance + 1.2 * product + twice * (expected.abs() + 6.0 * problem.epilogue.beta().abs());
        let tolerance = if exact { 0.0 } else { tolerance };
        if !agree(got, expected, tolerance) {
            return Err(format!("element {index} of D is {got}, expected {expected} within {tolerance:.2e}"));
        }
    }
    Ok(())
}

/// Of so many elements, those that are D's.
fn inside(problem: &Problem, offset: usize, elements: usize) -> Vec<bool> {
    let mut inside = vec![false; elements];
    for_each_line(&problem.d, problem.m, problem.n, problem.batch, |line| {
        inside[offset + line.start..offset + line.end].fill(true);
    });
    inside
}

/// The sum of the products, and of their magnitudes.
pub fn dot(a: &[f64], b: &[f64]) -> (f64, f64) {
    // Eight sums, which the processor can have under way at once.
    const SUMS: usize = 8;
    let (mut sums, mut sizes) = ([0.0; SUMS], [0.0; SUMS]);
    let mut add = |i: usize, product: f64| {
        sums[i] += product;
        sizes[i] += product.abs();
    };
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<SUMS>(), b.as_chunks::<SUMS>());
    for (a, b) in a.iter().zip(b) {
        (0..SUMS).for_each(|i| add(i, a[i] * b[i]));
    }
    a_rest.iter().zip(b_rest).enumerate().for_each(|(i, (a, b))| add(i, a * b));
    (sums.iter().sum(), sizes.iter().sum())
}

/// The same numbers in f64.
pub fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|number| f64::from(*number)).collect()
}

/// The reference kernel against sums in f64, over strides that no other kernel takes.
pub fn reference_against_f64<T: Element, Out: Element>(gpu: &Gpu) -> Result<(), String> {
    let types = Types::new(T::KERNEL_DTYPE, Out::KERNEL_DTYPE);
    let name = reference(gpu, types)?.name;
    let plain = Variant::PLAIN;
    let variants = [
        plain,
        Variant { batch: [2, 3], padding: 3, offset: 1, ..plain },
        Variant { batch: [1, 3], broadcast_b: true, alpha: 0.5, beta: 2.0, ..plain },
        Variant { column_major_d: true, bias: Some(BiasAxis::M), ..plain },
        Variant { batch: [1, 3], alpha: 0.5, beta: -2.0, in_place: true, ..plain },
    ];
    let activations =
        Activation::ALL.map(|activation| Variant { activation, bias: Some(BiasAxis::N), beta: 1.0, ..plain });
    for variant in variants.into_iter().chain(activations) {
        for layout in [Layout::NN, Layout::NT, Layout::TN, Layout::TT] {
            for (m, n, k) in [(1, 1, 1), (17, 5, 33), (3, 40, 129), (64, 31, 0), (2, 2, 2000)] {
                let mut problem = cases::problem(m, n, k, layout, types, variant);
                let mut operands = cases::operands::<T, Out>(&problem, variant.offset, Data::Normal, 7);
                check_f64(gpu, name, &problem, &operands).map_err(|e| format!("{problem} {variant:?}: {e}"))?;
                if layout == Layout::NN && variant.batch == [1, 1] && variant.offset == 0 {
                    // Neither dimension contiguous: every second column of a wider A.
                    problem.a = problem.a.with(|o| {
                        o.row_stride = 2 * k.max(1) as i64 + 1;
                        o.col_stride = 2;
                    });
                    operands = cases::operands::<T, Out>(&problem, 0, Data::Normal, 8);
                    check_f64(gpu, name, &problem, &operands).map_err(|e| format!("strided {problem}: {e}"))?;
                }
            }
        }
    }
    Ok(())
}

/// The reference kernel of these types over two products, for compute-sanitizer.
pub fn reference_few(gpu: &Gpu, kernel: &'static KernelDesc) -> Result<(), String> {
    fn few<T: Element, Out: Element>(gpu: &Gpu, kernel: &KernelDesc) -> Result<(), String> {
        for (m, n, k, layout) in [(17, 5, 33, Layout::TN), (3, 40, 129, Layout::NT)] {
            let problem = cases::problem(m, n, k, layout, kernel.types, Variant::FULL);
            check_f64(gpu, kernel.name, &problem, &cases::operands::<T, Out>(&problem, 0, Data::Normal, 9))?;
        }
        Ok(())
    }
    by_types!(kernel.types, few(gpu, kernel))
}

/// The named kernel's D against sums in f64.
pub fn check_f64<T: Element, Out: Element>(
    gpu: &Gpu,
    name: &str,
    problem: &Problem,
    operands: &Operands<T, Out>,
) -> Result<(), String> {
    check_sums(problem, operands, &gpu.run(name, problem, operands)?)
}

/// What a product may lose beside the rounding of sums in f32, in f64 for f64.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slack {
    /// The relative error of a product of two inputs: of inputs in TF32.
    pub inputs: f64,
    /// Whether the product is rounded to the type of D before the rest of the epilogue.
    pub rounds_twice: bool,
    /// Whether every sum is a whole number that f32 holds.
    pub exact: bool,
}

/// Every element of D within the bound of sums in f32, in f64 for f64.
pub fn check_sums<T: Element, Out: Element>(
    problem: &Problem,
    operands: &Operands<T, Out>,
    got: &[Out],
) -> Result<(), String> {
    check_within(problem, operands, got, Slack::default())
}

/// The same with more slack, and everything around D as it was before.
pub fn check_within<T: Element, Out: Element>(
    problem: &Problem,
    operands: &Operands<T, Out>,
    got: &[Out],
    slack: Slack,
) -> Result<(), String> {
    let Problem { m, n, k, batch, a, b, d, epilogue, .. } = *problem;
    let offset = operands.offsets[0];
    let indices = |operand: &Operand, rows, cols| {
        let mut indices = Vec::new();
        for_each(operand, rows, cols, batch, |index| indices.push(offset + index));
        indices
    };
    // Rows of A and columns of B, both K by K.
    let numbers = |values: &[T], operand: &Operand, lines| -> Vec<f64> {
        indices(operand, lines, k).into_iter().map(|at| values[at].number()).collect()
    };
    let columns_of_b = b.with(|o| (o.row_stride, o.col_stride) = (b.col_stride, b.row_stride));
    let (a, b) = (numbers(&operands.a, &a, m), numbers(&operands.b, &columns_of_b, n));
    let d_at = indices(&d, m, n);
    let c_at = epilogue.c.map(|c| indices(&c, m, n));
    let accumulator = if Out::UNIT_ROUNDOFF < 1e-12 { Out::UNIT_ROUNDOFF } else { f32::UNIT_ROUNDOFF };
    let alpha = epilogue.alpha();
    let check = |(element, &place): (usize, &usize)| {
        let (matrix, i, j) = (element / (m * n), element / n % m, element % n);
        let (sum, size) = dot(&a[(matrix * m + i) * k..][..k], &b[(matrix * n + j) * k..][..k]);
        // A and B are not read where alpha is 0.
        let scaled = if alpha == 0.0 { 0.0 } else { alpha * sum };
        let bias = epilogue.bias.map_or(0.0, |axis| operands.bias[if axis == BiasAxis::M { i } else { j }].to_f64());
        let c = c_at.as_ref().map_or(0.0, |c_at| epilogue.beta() * operands.c[c_at[element]].to_f64());
        let expected = epilogue.activation.apply(scaled + bias) + c;
        // Rounding of D, and the bound of a sum in order (Higham, Accuracy and Stability, 4.2) with room for the epilogue. No activation is
        // steeper than 1.13.
        let of_sum = accumulator * (k as f64 + 8.0) * size.max(1.0) + slack.inputs * size;
        // Nothing is lost of a sum that is infinite or NaN, or that counts as 0.
        let is_exact = slack.exact || !size.is_finite() || alpha == 0.0;
        let of_sum = if is_exact { 0.0 } else { 1.13 * alpha.abs().max(1.0) * of_sum };
        let numbers = [scaled, scaled + bias, c].into_iter().filter(|x| x.is_finite()).map(f64::abs).sum::<f64>();
        let before = 1.2 * (Out::UNIT_ROUNDOFF * numbers + 6e-8);
        let of_rest = accumulator * 8.0 * (bias.abs() + c.abs()) + if slack.rounds_twice { before } else { 0.0 };
        let tolerance = Out::UNIT_ROUNDOFF * expected.abs() * 1.01 + of_sum + of_rest;
        let tolerance = if expected.is_finite() { tolerance } else { 0.0 };
        let got = got[place].to_f64();
        // A number beyond the largest of the type is an infinity.
        let bounds = [expected - tolerance, expected + tolerance].map(|bound| Out::from_f64(bound).to_f64());
        if !agree(got, expected, tolerance) && !bounds.contains(&got) {
            return Err(format!("D[{matrix},{i},{j}] is {got}, expected {expected} within {tolerance:.2e}"));
        }
        Ok(())
    };
    d_at.par_iter().enumerate().try_for_each(check)?;
    match got
        .iter()
        .zip(inside(problem, offset, got.len()))
        .position(|(x, is_inside)| !is_inside && !x.to_f64().is_nan())
    {
        Some(index) => Err(format!("wrote {} outside of D, at element {index}", got[index].to_f64())),
        None => Ok(()),
    }
}
