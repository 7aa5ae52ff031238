//! The matrices B of groups of rows: dense, in blocks, and narrow with factors and zeros.

use crate::codes::{Kind, Weights};
use crate::device::Element;
use crate::gguf;
use crate::numbers::normal;
use candle_tilegemm::problem::{Scale, Types};
use candle_tilegemm::{Format, Problem};
use rand::rngs::StdRng;

/// The matrices as the device has them, with the factors and zeros of narrow weights, and their numbers.
pub struct Matrices {
    pub bytes: Vec<u8>,
    pub factors: Vec<u8>,
    pub zeros: Vec<u8>,
    pub numbers: Vec<f64>,
    /// The numbers of narrow weights without a rounding, where some may be beyond f32.
    pub exact: Option<Vec<f64>>,
}

/// No format has more kinds of factors below.
pub const TURNS: usize = 5;

/// Factors that checkpoints have for such weights of `n` x `k`, others by `turn`, with a gap behind each matrix.
pub fn scale(types: Types, turn: usize, [n, k]: [usize; 2]) -> Option<Scale> {
    use Format::{BF16, F16, F32, F4E2M1, F8E4M3, F8E8M0, U4, U8};
    let all: &[Scale] = match types.b {
        _ if !types.has_narrow_b() => return None,
        F4E2M1 => &[Scale::of_groups(F8E8M0, 32, n)],
        F8E4M3 => &[
            Scale::of_blocks(F32, [128, 128], k),
            Scale::of_rows(F32),
            Scale::of_blocks(BF16, [5, 64], k),
            Scale::of_tensor(F32),
            Scale::of_groups(F8E8M0, 32, n),
        ],
        U4 => &[
            Scale::of_groups(F16, 64, n),
            Scale::of_groups(F16, 128, n).with_zeros(),
            Scale::of_groups(BF16, 32, n).with_zeros(),
            Scale::of_rows(F16),
            Scale::of_groups(F32, 96, n),
        ],
        U8 => &[Scale::of_groups(F16, 128, n).with_zeros(), Scale::of_groups(BF16, 32, n), Scale::of_tensor(F32)],
        _ => &[Scale::of_rows(F32), Scale::of_groups(F16, 64, n)],
    };
    let scale = all[turn % all.len()];
    let [along_k, along_n] = scale.counts([k, n]);
    Some(scale.with(|scale| scale.batch_stride = [0, (along_k * along_n + 3) as i64]))
}

impl Matrices {
    pub fn random<T: Element>(problem: &Problem, codes: Kind, rng: &mut StdRng) -> Result<Self, String> {
        let count = problem.groups.map_or(1, |groups| groups.count);
        let all = count * problem.b.batch_stride[1].max(problem.b.col_stride * problem.n as i64) as usize;
        let [factors, zeros] = [Vec::new(), Vec::new()];
        let format = problem.b.format;
        if format.is_gguf_block() {
            let bytes = gguf::blocks(format, all / format.block().elements, gguf::Weights::Bounded, rng)?;
            let numbers = gguf::numbers(format, &bytes, 1)?.into_iter().map(f64::from).collect();
            return Ok(Self { bytes, factors, zeros, numbers, exact: None });
        }
        if problem.types().has_narrow_b() {
            let weights = Weights::random(problem, count, codes, rng);
            let (matrix, row) = (problem.b.batch_stride[1] as usize, problem.b.col_stride as usize);
            let place = |of_matrix: &(dyn Fn(usize) -> Vec<f64> + Sync)| {
                let mut numbers = vec![f64::NAN; all];
                for group in 0..count {
                    let rows = numbers[group * matrix..].chunks_mut(row);
                    for (to, from) in rows.zip(of_matrix(group).chunks_exact(problem.k)) {
                        to[..problem.k].copy_from_slice(from);
                    }
                }
                numbers
            };
            let numbers = place(&|group| weights.numbers(problem, group).into_iter().map(f64::from).collect());
            let exact = (codes == Kind::Any)
                .then(|| place(&|group| (0..problem.n).flat_map(|j| weights.exact_row(problem, group, j)).collect()));
            return Ok(Self { bytes: weights.codes, factors: weights.factors, zeros: weights.zeros, numbers, exact });
        }
        let values: Vec<T> = normal(all, rng);
        // SAFETY: numbers have no padding, and any bytes are bytes.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(&values[..])) };
        let numbers = values.iter().map(|x| x.number()).collect();
        Ok(Self { bytes: bytes.to_vec(), factors, zeros, numbers, exact: None })
    }
}
