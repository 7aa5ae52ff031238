//! Calls on memory of the host: what mistralrs's functions compute, and what the product of a call says. All sums are exact in f64.

use super::experts::Experts;
use super::product::{order, Product};
use super::weights::{Factors, Weights};
use crate::launch::experts::{blocks_for, Choice};
use crate::problem::{Bounds, Format, Operand, Problem, Rows};
use std::ptr::{null, null_mut};

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }

    /// `count` integers from -8 to 8.
    fn integers(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.below(17) as f64 - 8.0).collect()
    }
}

/// Codes and factors of `experts` matrices of `n` x `k` weights.
struct Stored {
    sizes: [usize; 2],
    codes: Vec<u8>,
    factors: Vec<u8>,
    of: Factors,
}

impl Stored {
    /// In fp8, with `padding` factors behind those of each row of blocks.
    fn fp8(random: &mut Random, experts: usize, sizes @ [n, k]: [usize; 2], block: [usize; 2], padding: usize) -> Self {
        let stride = k.div_ceil(block[1]) + padding;
        let code = |code: u64| if code & 0x7f == 0x7f { 0x7e } else { code as u8 };
        let codes = (0..experts * n * k).map(|_| code(random.below(256))).collect();
        let factors = (0..experts * n.div_ceil(block[0]) * stride).map(|_| 2f32.powi(random.below(9) as i32 - 4));
        let of = Factors::Blocks { block: block.map(|size| size as i32), stride: stride as i32 };
        Self { sizes, codes, factors: factors.flat_map(f32::to_ne_bytes).collect(), of }
    }

    fn mxfp4(random: &mut Random, experts: usize, sizes @ [n, k]: [usize; 2]) -> Self {
        let codes = (0..experts * n * k / 2).map(|_| random.below(256) as u8).collect();
        let factors = (0..experts * n * k / 32).map(|_| 120 + random.below(12) as u8).collect();
        Self { sizes, codes, factors, of: Factors::PowersOfTwo }
    }

    fn weights(&self) -> Weights {
        let [n, k] = self.sizes;
        let (codes, factors) = (self.codes.as_ptr().cast(), self.factors.as_ptr().cast());
        Weights { codes, factors, sizes: [n as i32, k as i32], of: self.of }
    }

    /// The weight of an expert that mistralrs's kernels read.
    fn theirs(&self, [expert, n, k]: [usize; 3]) -> f64 {
        let [of_n, of_k] = self.sizes;
        let row = expert * of_n + n;
        match self.of {
            Factors::Blocks { block, stride } => {
                let [rows, columns] = block.map(|size| size as usize);
                let of_expert = of_n.div_ceil(rows) * stride as usize;
                let factor = expert * of_expert + n / rows * stride as usize + k / columns;
                e4m3(self.codes[row * of_k + k]) * self.factor(Format::F32, factor)
            }
            Factors::PowersOfTwo => {
                let pair = self.codes[row * (of_k / 2) + k / 2];
                let factor = self.factor(Format::F8E8M0, row * (of_k / 32) + k / 32);
                e2m1(if k % 2 == 0 { pair & 15 } else { pair >> 4 }) * factor
            }
        }
    }

    /// Element (k, n) of matrix `group` of the problem's B.
    fn ours(&self, problem: &Problem, [group, n, k]: [usize; 3]) -> f64 {
        let (b, scale) = (problem.b, problem.b.scale.unwrap());
        let [group_stride, k_stride, n_stride] =
            [b.batch_stride[1], b.row_stride, b.col_stride].map(|stride| stride as usize);
        let at = group * group_stride + k * k_stride + n * n_stride;
        let code = match b.format {
            Format::F8E4M3 => e4m3(self.codes[at]),
            Format::F4E2M1 => e2m1(packed(&self.codes, at)),
            other => panic!("{other}"),
        };
        code * self.factor(scale.format, scale.index([0, group], [k, n]) as usize)
    }

    fn factor(&self, format: Format, at: usize) -> f64 {
        match format {
            Format::F32 => f32::from_ne_bytes(self.factors[4 * at..][..4].try_into().unwrap()).into(),
            Format::F8E8M0 => 2f64.powi(i32::from(self.factors[at]) - 127),
            other => panic!("{other}"),
        }
    }

    /// Number `n` of the product of a row of x with an expert.
    fn expected(&self, x: &[f64], expert: usize, n: usize) -> f64 {
        x.iter().enumerate().map(|(k, x)| x * self.theirs([expert, n, k])).sum()
    }

    /// Number (row of A, n) of the problem's product with matrix `group`, before the epilogue.
    fn product(&self, problem: &Problem, a: &[f64], [row, group, n]: [usize; 3]) -> f64 {
        let [row_stride, k_stride] = [problem.a.row_stride, problem.a.col_stride].map(|stride| stride as usize);
        let x = |k: usize| a[row * row_stride + k * k_stride];
        (0..problem.k).map(|k| x(k) * self.ours(problem, [group, n, k])).sum()
    }

    /// The numbers that A has for this x.
    fn a_of(&self, x: &[f64]) -> Vec<f64> {
        let Some(order) = order(&self.weights(), Format::BF16, x.len()) else { return x.to_vec() };
        let mut a = vec![f64::NAN; x.len()];
        let [columns, matrices] = [order.n, order.batch[1]];
        for at in 0..order.m * columns * matrices {
            let cell = [at / matrices / columns, at / matrices % columns, at % matrices];
            let place = |operand: Operand| -> usize {
                let strides = [operand.row_stride, operand.col_stride, operand.batch_stride[1]];
                strides.into_iter().zip(cell).map(|(stride, at)| stride as usize * at).sum()
            };
            a[place(order.d)] = x[place(order.a)];
        }
        a
    }
}

/// The code of number `at`, in the order of docs/formats.md.
fn packed(codes: &[u8], at: usize) -> u8 {
    let (piece, number) = (at / 32, at % 32);
    let (word, place) = (number % 8 / 2, number % 2 * 4 + number / 8);
    codes[piece * 16 + word * 4 + place / 2] >> (place % 2 * 4) & 15
}

fn e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = if exponent == 0 { mantissa * 2f64.powi(-9) } else { (8.0 + mantissa) * 2f64.powi(exponent - 10) };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

fn e2m1(code: u8) -> f64 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// y of a call with `rows` rows of x, without a bias.
fn dense(stored: &Stored, x: &[f64], rows: usize) -> Vec<f64> {
    let call = Product {
        name: "launch_fp8_matmul_f16",
        x: null(),
        weights: stored.weights(),
        bias: null(),
        y: null_mut(),
        rows: rows as i32,
        format: Format::F16,
        stream: null_mut(),
    };
    let (problem, a) = (call.problem().unwrap(), stored.a_of(x));
    assert_eq!([problem.d.row_stride, problem.d.col_stride], [problem.n as i64, 1]);
    (0..rows * problem.n).map(|at| stored.product(&problem, &a, [at / problem.n, 0, at % problem.n])).collect()
}

#[test]
fn dense_products_are_mistralrs_numbers() {
    let random = &mut Random(1);
    let blocks =
        [([3, 5, 7], [2, 3], 1), ([2, 9, 160], [4, 32], 0), ([4, 33, 96], [128, 128], 2), ([1, 1, 1], [1, 1], 0)];
    let fp8 = blocks.map(|([m, n, k], block, padding)| (m, Stored::fp8(random, 1, [n, k], block, padding)));
    let mxfp4 = [[1, 5, 32], [3, 7, 64], [2, 3, 2880]].map(|[m, n, k]| (m, Stored::mxfp4(random, 1, [n, k])));
    for (rows, stored) in fp8.into_iter().chain(mxfp4) {
        let [n, k] = stored.sizes;
        let x = random.integers(rows * k);
        let expected: Vec<f64> = (0..rows * n).map(|at| stored.expected(&x[at / n * k..][..k], 0, at % n)).collect();
        assert_eq!(dense(&stored, &x, rows), expected, "{rows} rows, {}", stored.weights());
    }
}

/// Lists the pairs as `tg_route` does (csrc/tilegemm.h).
///
/// # Safety
/// The pointers of the choice are memory of the host of the sizes that `tg_routing` states.
unsafe fn route(choice: &Choice) {
    let (count, experts) = (choice.tokens * choice.top_k, choice.experts);
    // SAFETY: the caller's promises.
    let (chosen, first_row, pairs) = unsafe {
        (
            std::slice::from_raw_parts(choice.chosen, count),
            std::slice::from_raw_parts_mut(choice.first_row, experts + 1),
            std::slice::from_raw_parts_mut(choice.pairs, count),
        )
    };
    let mut order: Vec<u32> = (0..count as u32).collect();
    order.sort_by_key(|pair| chosen[*pair as usize].min(experts as u32));
    pairs.copy_from_slice(&order);
    for (expert, first) in first_row.iter_mut().enumerate() {
        *first = chosen.iter().filter(|chosen| **chosen < expert as u32).count() as i32;
    }
}

/// y of a call for experts, which was zeros before.
fn of_experts(
    stored: &Stored,
    x: &[f64],
    indices: &[u32],
    biases: &[f64],
    counts: [usize; 3],
    of_pairs: bool,
) -> Vec<f64> {
    let call = Experts {
        name: "launch_fp8_indexed_moe_gemm_bf16",
        x: null(),
        weights: stored.weights(),
        biases: if biases.is_empty() { null() } else { 16 as _ },
        indices: indices.as_ptr(),
        y: null_mut(),
        counts: counts.map(|count| count as i32),
        has_rows_of_pairs: of_pairs,
        format: Format::BF16,
        stream: null_mut(),
    };
    let problem = call.problem().unwrap();
    let mut lists = vec![0; call.lists().iter().sum()];
    let choice = call.choice(lists.as_mut_ptr());
    // The numbers that the kernels of `route` write.
    let ends = [
        (choice.first_row.cast(), choice.experts + 1),
        (choice.pairs, choice.tokens * choice.top_k),
        (choice.counts, blocks_for(choice.tokens) * choice.experts),
    ];
    let mut end = lists.as_mut_ptr();
    for (list, count) in ends {
        assert_eq!(list, end, "the lists follow one another");
        end = list.wrapping_add(count);
    }
    assert_eq!(end, lists.as_mut_ptr_range().end, "the lists have the memory");
    assert_eq!(choice.tokens * choice.top_k, indices.len(), "experts are given for each pair");
    // SAFETY: as just seen.
    unsafe { route(&choice) };
    let groups = problem.groups.unwrap();
    assert_eq!((groups.count + 1, problem.m, groups.bounds), (call.lists()[0], call.lists()[1], Bounds::FirstRow));
    let Rows::Listed { pairs_per_row } = groups.rows else { panic!("{:?}", groups.rows) };
    let (a, mut y) = (stored.a_of(x), vec![0.0; problem.m * problem.n]);
    for group in 0..groups.count {
        for row in lists[group]..lists[group + 1] {
            let pair = lists[groups.count + 1 + row as usize] as usize;
            for n in 0..problem.n {
                let bias = problem.epilogue.bias.map_or(0.0, |_| biases[group * problem.n + n]);
                y[pair * problem.n + n] = stored.product(&problem, &a, [pair / pairs_per_row, group, n]) + bias;
            }
        }
    }
    y
}

#[test]
fn products_of_experts_are_mistralrs_numbers() {
    let random = &mut Random(2);
    for of_pairs in [false, true] {
        for counts @ [tokens, top_k, experts] in [[1, 1, 1], [1, 3, 5], [7, 3, 16], [40, 2, 6], [5, 4, 2]] {
            let fp8 = [([5, 7], [2, 3], 1), ([9, 64], [4, 32], 0)]
                .map(|(sizes, block, padding)| Stored::fp8(random, experts, sizes, block, padding));
            for stored in fp8.into_iter().chain([Stored::mxfp4(random, experts, [6, 96])]) {
                let [n, k] = stored.sizes;
                let x = random.integers(if of_pairs { tokens * top_k } else { tokens } * k);
                let biases = random.integers(if tokens % 2 == 0 { 0 } else { experts * n });
                // One in four is of no expert.
                let absent =
                    |expert: u64| if expert < experts as u64 { expert as u32 } else { u32::MAX - expert as u32 };
                let indices: Vec<u32> =
                    (0..tokens * top_k).map(|_| absent(random.below((experts + experts / 3) as u64))).collect();
                let number = |at: usize| {
                    let (pair, n_at) = (at / n, at % n);
                    let (row, expert) = (if of_pairs { pair } else { pair / top_k }, indices[pair] as usize);
                    if expert >= experts {
                        return 0.0;
                    }
                    stored.expected(&x[row * k..][..k], expert, n_at) + biases.get(expert * n + n_at).unwrap_or(&0.0)
                };
                let expected: Vec<f64> = (0..tokens * top_k * n).map(number).collect();
                assert_eq!(
                    of_experts(&stored, &x, &indices, &biases, counts, of_pairs),
                    expected,
                    "{counts:?}, {}",
                    stored.weights()
                );
            }
        }
    }
}
