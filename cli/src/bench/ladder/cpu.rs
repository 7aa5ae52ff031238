//! The rungs of the CPU: loops over f32 copies of the operands, on one thread.

use super::row::{within_tolerance, Row};
use crate::Result;
use candle::{DType, Tensor};
use std::time::Instant;

/// The most multiply-adds of a loop that computes all of D; beyond this number a loop computes `BAND` rows of D.
const MOST_PRODUCTS: usize = 1 << 30;
const BAND: usize = 32;

/// Both loops over flat n x n operands, checked against `right`, the reference D. B is transposed beforehand, to the
/// usual K x N of these loops.
pub fn rows(a: &Tensor, b: &Tensor, right: &Tensor, n: usize) -> Result<Vec<Row>> {
    let rows = if n * n * n <= MOST_PRODUCTS { n } else { BAND.min(n) };
    let values = |tensor: Tensor| tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    let (a, b) = (values(a.narrow(0, 0, rows * n)?)?, values(b.reshape((n, n))?.t()?.contiguous()?)?);
    let right = values(right.narrow(0, 0, rows * n)?)?;
    let loops: [(&str, &str, CpuLoop); 2] = [
        ("CPU i-j-k", "one thread, one sum after the other: strides through B", ijk),
        ("CPU i-k-j", "the same loops swapped: rows of B and D, which vectorise", ikj),
    ];
    let row = |(name, why, product): (&str, &str, CpuLoop)| {
        let mut d = vec![f32::NAN; rows * n];
        let start = Instant::now();
        product(&a, &b, &mut d, n);
        let us = start.elapsed().as_secs_f64() * 1e6 * (n as f64 / rows as f64);
        let err = error(&d, &right);
        within_tolerance(name, n, err)?;
        Ok(Row {
            size: n,
            rung: name.into(),
            why: why.into(),
            tile: None,
            roof_us: f64::NAN,
            cold_us: None,
            hot_us: us,
            err,
            cpu_rows: Some(rows),
        })
    };
    loops.into_iter().map(row).collect()
}

/// D = A @ B: A and D have as many rows as `d` holds, and B is n x n.
type CpuLoop = fn(a: &[f32], b: &[f32], d: &mut [f32], n: usize);

fn ijk(a: &[f32], b: &[f32], d: &mut [f32], n: usize) {
    for (a_row, d_row) in a.chunks_exact(n).zip(d.chunks_exact_mut(n)) {
        for (j, sum) in d_row.iter_mut().enumerate() {
            *sum = 0.0;
            for (k, x) in a_row.iter().enumerate() {
                *sum += x * b[k * n + j];
            }
        }
    }
}

fn ikj(a: &[f32], b: &[f32], d: &mut [f32], n: usize) {
    for (a_row, d_row) in a.chunks_exact(n).zip(d.chunks_exact_mut(n)) {
        d_row.fill(0.0);
        for (x, b_row) in a_row.iter().zip(b.chunks_exact(n)) {
            for (sum, y) in d_row.iter_mut().zip(b_row) {
                *sum += x * y;
            }
        }
    }
}

/// Largest difference over the root mean square of `right`; NaN where anything is NaN.
fn error(have: &[f32], right: &[f32]) -> f64 {
    let square: f64 = right.iter().map(|&x| f64::from(x).powi(2)).sum();
    let larger = |most: f64, difference: f64| if most >= difference { most } else { difference };
    let differences = have.iter().zip(right).map(|(&have, &right)| (f64::from(have) - f64::from(right)).abs());
    let most = if have.iter().all(|x| x.is_finite()) { differences.fold(0.0, larger) } else { f64::NAN };
    most / (square / right.len() as f64).sqrt()
}
