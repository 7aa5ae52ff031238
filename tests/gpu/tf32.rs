//! TF32 next to the largest number: an input that rounds to infinity counts as infinity, as docs/f32.md says.

use crate::cases::{self, Variant};
use crate::device::{Gpu, Operands};
use crate::Test;
use candle_tilegemm::kernel::{KernelDesc, Math};
use candle_tilegemm::{F32Mode, Format};

pub fn tests() -> Vec<(String, Test)> {
    let kernels = crate::built().filter(|kernel| kernel.math == Math::Tf32);
    kernels
        .map(|kernel: &'static KernelDesc| -> (String, Test) {
            (format!("{kernel}_near_the_largest_number"), Box::new(move |gpu| near_the_largest_number(gpu, kernel)))
        })
        .collect()
}

/// To 10 bits of mantissa, to nearest even; from 0x7f7f_f000 on that is infinity.
fn rounded(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0xfff + (bits >> 13 & 1)) & !0x1fff)
}

/// Rows of A with a single number, near the largest one, times columns with a single number each.
fn near_the_largest_number(gpu: &Gpu, kernel: &KernelDesc) -> Result<(), String> {
    const ROWS: [u32; 6] = [0x7f7f_ffff, 0xff7f_ffff, 0x7f7f_f001, 0x7f7f_efff, 0x7f7f_e000, 0x7f00_0000];
    const COLUMNS: [f32; 6] = [0.0, 0.5, -0.5, 1.0, 4.0, 1e-38];
    let (m, n, k) = (256, 256, 256);
    let problem = cases::problem(m, n, k, kernel.layout, Format::F32, Variant::PLAIN);
    let problem = problem.with(|p| p.f32_mode = F32Mode::Tf32);
    let left = |row: usize| f32::from_bits(ROWS[row % ROWS.len()]);
    let right = |column: usize| COLUMNS[column % COLUMNS.len()];
    // Every row of A and column of B has its number at the same k, and zeros elsewhere.
    let (mut a, mut b) = (vec![0f32; m * k], vec![0f32; n * k]);
    let at = |index: i64, p: i64, line_stride: i64, k_stride: i64| (index * line_stride + p * k_stride) as usize;
    const P: i64 = 37;
    (0..m).for_each(|row| a[at(row as i64, P, problem.a.row_stride, problem.a.col_stride)] = left(row));
    (0..n).for_each(|column| b[at(column as i64, P, problem.b.col_stride, problem.b.row_stride)] = right(column));
    let operands =
        Operands { a, b, c: vec![f32::NAN], bias: vec![f32::NAN], d: vec![f32::NAN; m * n], offsets: [0; 4] };
    let d = gpu.run(kernel.name, &problem, &operands)?;
    for (index, &got) in d.iter().enumerate() {
        let (x, y) = (left(index / n), right(index % n));
        let expected = rounded(x) * rounded(y);
        let is_right = match () {
            _ if expected.is_nan() => got.is_nan(),
            _ if expected.is_infinite() => got == expected,
            _ => (got - expected).abs() <= 1e-6 * expected.abs(),
        };
        if !is_right {
            return Err(format!("{x:e} * {y:e} is {got:e}, expected {expected:e}"));
        }
    }
    Ok(())
}
