//! Random narrow weights with factors, and their numbers as the host reads them: an own reading of the formats of csrc/tilegemm.h.

use candle_tilegemm::problem::Scale;
use candle_tilegemm::{Format, Problem};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore};
use rayon::prelude::*;
use std::collections::HashSet;

/// Which codes and factors there are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Finite ones, as a model has them.
    Usual,
    /// Also NaN, infinities, zeros, the largest and the smallest, in some rows.
    Any,
}

/// The memory of weights W of n x k, one matrix behind the other.
pub struct Weights {
    pub codes: Vec<u8>,
    pub factors: Vec<u8>,
    pub zeros: Vec<u8>,
}

/// What a code means, before its zero.
fn value(format: Format, code: u8) -> f64 {
    let magnitude = |bits: u8, mantissa_bits: u32, bias: i32| {
        let (exponent, mantissa) = (i32::from(bits >> mantissa_bits), f64::from(bits & ((1 << mantissa_bits) - 1)));
        let fraction = mantissa / f64::from(1u32 << mantissa_bits);
        if exponent == 0 {
            fraction * 2f64.powi(1 - bias)
        } else {
            (1.0 + fraction) * 2f64.powi(exponent - bias)
        }
    };
    let signed = |is_negative: bool, x: f64| if is_negative { -x } else { x };
    match format {
        Format::F8E4M3 if code & 0x7f == 0x7f => f64::NAN,
        Format::F8E4M3 => signed(code & 0x80 != 0, magnitude(code & 0x7f, 3, 7)),
        Format::F4E2M1 => signed(code & 8 != 0, magnitude(code & 7, 1, 1)),
        Format::F8E8M0 if code == 255 => f64::NAN,
        Format::F8E8M0 => 2f64.powi(i32::from(code) - 127),
        Format::I8 => f64::from(code as i8),
        _ => f64::from(code),
    }
}

/// Code `k` of a row of W.
fn code(format: Format, row: &[u8], k: usize) -> u8 {
    if format.block().elements == 1 {
        return row[k];
    }
    // The order of numbers in a word of 16 bytes: 2 t, 2 t + 8, 2 t + 16, 2 t + 24, then the odd ones.
    let (word, place) = (k % 8 / 2, k % 32 / 8 + 4 * (k % 2));
    let bytes = &row[k / 32 * 16 + 4 * word..][..4];
    (u32::from_le_bytes(bytes.try_into().expect("four bytes")) >> (4 * place) & 15) as u8
}

/// Factor `at` of a list.
fn factor(format: Format, list: &[u8], at: usize) -> f64 {
    let size = format.bytes(1);
    let bytes = &list[at * size..][..size];
    match format {
        Format::F32 => f32::from_le_bytes(bytes.try_into().expect("four bytes")).into(),
        Format::F16 => f16::from_le_bytes(bytes.try_into().expect("two bytes")).into(),
        Format::BF16 => bf16::from_le_bytes(bytes.try_into().expect("two bytes")).into(),
        _ => value(format, bytes[0]),
    }
}

/// A factor as bytes: mostly such as models have, else a special one.
fn draw(format: Format, special: bool, rng: &mut StdRng) -> Vec<u8> {
    let usual = 2f64.powf(rng.random_range(-7.0..1.0));
    let number = match special {
        true => *[0.0, -usual, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-40, 6e-8].choose(rng).unwrap_or(&0.0),
        false => usual,
    };
    match format {
        Format::F32 => (number as f32).to_le_bytes().to_vec(),
        Format::F16 => f16::from_f64(number).to_le_bytes().to_vec(),
        Format::BF16 => bf16::from_f64(number).to_le_bytes().to_vec(),
        Format::F8E8M0 if special => vec![*[0, 1, 254, 255].choose(rng).unwrap_or(&0)],
        Format::F8E8M0 => vec![rng.random_range(120..=128)],
        _ if special => vec![*[0, 0x80, 0x7f, 0xff, 0x7e, 1].choose(rng).unwrap_or(&0)],
        _ => vec![rng.random_range(0x20..=0x40)],
    }
}

impl Weights {
    /// For the B of `problem`, of so many matrices along the inner batch dimension.
    pub fn random(problem: &Problem, matrices: usize, kind: Kind, rng: &mut StdRng) -> Self {
        let Problem { n, k, b, .. } = *problem;
        let [row, matrix] = [b.col_stride, b.batch_stride[1]].map(|stride| b.format.offset(stride) as usize);
        let mut codes = vec![0; (matrices - 1) * matrix + n * row];
        rng.fill_bytes(&mut codes);
        let some = |count: usize, rng: &mut StdRng| -> HashSet<usize> {
            let chosen = if kind == Kind::Any { (matrices * n).div_ceil(3) } else { 0 };
            (0..chosen).map(|_| rng.random_range(0..count)).collect()
        };
        if b.format == Format::F8E4M3 {
            // Behind K there may be anything.
            let in_k = |at: usize| matrix == 0 && at % row < k || matrix > 0 && at % matrix % row < k;
            let is_nan = |code: u8| code & 0x7f == 0x7f;
            (0..codes.len())
                .filter(|at| in_k(*at))
                .for_each(|at| codes[at] &= if is_nan(codes[at]) { 0xbf } else { 0xff });
            let count = codes.len();
            some(count, rng).into_iter().for_each(|at| codes[at] = 0x7f);
        }
        let Some(scale) = b.scale else { return Self { codes, factors: Vec::new(), zeros: Vec::new() } };
        let count = scale.index([0, matrices - 1], [k - 1, n - 1]) as usize + 1;
        let specials = some(count, rng);
        let factors = (0..count).flat_map(|at| draw(scale.format, specials.contains(&at), rng)).collect();
        let mut zeros = vec![0; if scale.zeros { count } else { 0 }];
        let most = if b.format == Format::U4 { 15 } else { 255 };
        zeros.fill_with(|| rng.random_range(0..=most));
        // A row without a number that counts.
        if kind == Kind::Any && n > 2 && !scale.zeros {
            let nothing = match b.format {
                Format::U4 => 0x88,
                Format::U8 => 0x80,
                _ => 0,
            };
            codes[row..2 * row].fill(nothing);
        }
        Self { codes, factors, zeros }
    }

    /// Number `k` of row `j` of W: the code less its zero, and the factor.
    fn parts(&self, problem: &Problem, inner: usize, j: usize, k: usize) -> [f64; 2] {
        let b = problem.b;
        let first = b.format.offset(inner as i64 * b.batch_stride[1] + j as i64 * b.col_stride) as usize;
        let code = value(b.format, code(b.format, &self.codes[first..], k));
        let zero = match b.format {
            Format::U4 => 8.0,
            Format::U8 => 128.0,
            _ => 0.0,
        };
        let Some(scale @ Scale { format, .. }) = b.scale else { return [code - zero, 1.0] };
        let at = scale.index([0, inner], [k, j]) as usize;
        let zero = if scale.zeros { f64::from(self.zeros[at]) } else { zero };
        [code - zero, factor(format, &self.factors, at)]
    }

    /// The numbers of a matrix, row by row, rounded to f32.
    pub fn numbers(&self, problem: &Problem, inner: usize) -> Vec<f32> {
        let of_row = |j: usize| (0..problem.k).map(move |k| self.parts(problem, inner, j, k));
        let rows = (0..problem.n).into_par_iter().flat_map_iter(of_row);
        rows.map(|[code, factor]| code as f32 * factor as f32).collect()
    }

    /// The numbers of row `j` of a matrix without a rounding.
    pub fn exact_row(&self, problem: &Problem, inner: usize, j: usize) -> Vec<f64> {
        (0..problem.k).map(|k| self.parts(problem, inner, j, k)).map(|[code, factor]| code * factor).collect()
    }
}

/// Factors of every kind for weights of `n` x `k`.
pub fn scales(format: Format, [n, k]: [usize; 2]) -> Vec<Option<Scale>> {
    use Format::{BF16, F16, F32, F8E4M3, F8E8M0};
    let mut scales = vec![
        None,
        Some(Scale::of_groups(F16, 128, n)),
        Some(Scale::of_groups(F8E8M0, 32, n)),
        Some(Scale::of_blocks(F32, [128, 128], k)),
        Some(Scale::of_rows(F32)),
        Some(Scale::of_groups(BF16, 64, n)),
        Some(Scale::of_groups(F8E4M3, 16, n)),
        Some(Scale::of_tensor(F32)),
        Some(Scale::of_blocks(BF16, [64, 96], k)),
        Some(Scale::of_rows(BF16)),
        // Groups that no step of a kernel is a multiple of, with K contiguous; and a gap between factors.
        Some(Scale::new(F16, [20, 3], [1, k.div_ceil(20) as i64])),
        Some(Scale::of_groups(F32, 256, n + 5)),
    ];
    if format.has_zero() {
        let zeros = |scale: &Scale| Some(scale.with_zeros());
        scales = scales.iter().flatten().map(zeros).chain([scales[0], scales[1], scales[4]]).collect();
    }
    scales
}
