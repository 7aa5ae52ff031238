//! What the examples of models measure: times, the distance of logits, and the products that ran.

use anyhow::{ensure, Result};
use candle::{DType, Device, Tensor};
use candle_tilegemm::stats::GemmCount;
use comfy_table::{presets::ASCII_MARKDOWN, Table};
use serde::Serialize;
use std::fmt;

/// Medians over the runs of one arm.
#[derive(Serialize)]
pub struct Measurement {
    pub prefill_ms: f64,
    pub prefill_tokens_per_s: f64,
    pub decode_tokens_per_s: f64,
}

impl Measurement {
    pub fn median(times: &[(f64, f64)], prompt: u32, decode: u32) -> Self {
        let middle = |mut seconds: Vec<f64>| {
            seconds.sort_by(f64::total_cmp);
            seconds[seconds.len() / 2]
        };
        let prefill = middle(times.iter().map(|time| time.0).collect());
        let decoding = middle(times.iter().map(|time| time.1).collect());
        Self {
            prefill_ms: prefill * 1e3,
            prefill_tokens_per_s: f64::from(prompt) / prefill,
            decode_tokens_per_s: f64::from(decode) / decoding,
        }
    }
}

/// The distance of one run's logits from stock's or from a reference's, over the prefill and every decode step.
#[derive(Serialize)]
pub struct Difference {
    pub max_abs: f32,
    /// Largest logit of stock or of the reference, for scale.
    pub max_stock: f32,
    /// |ours - stock| / |stock|, Euclidean, of the worst step.
    pub relative: f32,
    /// The same of the median step.
    pub relative_median: f32,
    /// Steps whose largest logit is the same token.
    pub same_token: usize,
    pub steps: usize,
}

pub fn compare(stock: &[Tensor], ours: &[Tensor]) -> Result<Difference> {
    ensure!(stock.len() == ours.len(), "the runs have {} and {} steps", stock.len(), ours.len());
    let (max_abs, max_stock, relative) = (0.0, 0.0, 0.0);
    let mut worst =
        Difference { max_abs, max_stock, relative, relative_median: 0.0, same_token: 0, steps: stock.len() };
    let mut errors = Vec::new();
    for (stock, ours) in stock.iter().zip(ours) {
        let flat = |t: &Tensor| -> candle::Result<Vec<f32>> { t.to_dtype(DType::F32)?.flatten_all()?.to_vec1() };
        let (stock, ours) = (flat(stock)?, flat(ours)?);
        ensure!(ours.iter().all(|x| x.is_finite()), "a logit is not finite");
        let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let error = squares(&mut stock.iter().zip(&ours).map(|(x, y)| x - y));
        let size = squares(&mut stock.iter().copied());
        let largest = |values: &[f32]| values.iter().enumerate().max_by(|x, y| x.1.total_cmp(y.1)).map(|(i, _)| i);
        worst.max_abs = stock.iter().zip(&ours).map(|(x, y)| (x - y).abs()).fold(worst.max_abs, f32::max);
        worst.max_stock = stock.iter().map(|x| x.abs()).fold(worst.max_stock, f32::max);
        errors.push((error / size).sqrt() as f32);
        worst.same_token += usize::from(largest(&stock) == largest(&ours));
    }
    errors.sort_by(f32::total_cmp);
    worst.relative_median = errors.get(errors.len() / 2).copied().unwrap_or_default();
    worst.relative = errors.last().copied().unwrap_or_default();
    Ok(worst)
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { max_abs, max_stock, relative, relative_median, same_token, steps } = self;
        write!(
            f,
            "largest difference {max_abs:.4} of {max_stock:.2}, relative {relative_median:.2e} in the median step"
        )?;
        write!(f, " and {relative:.2e} in the worst, same token in {same_token} of {steps} steps")
    }
}

pub fn device_name(device: &Device) -> String {
    match device.location() {
        #[cfg(feature = "cuda")]
        candle::DeviceLocation::Cuda { gpu_id } => match candle_tilegemm::launch::device_info(gpu_id) {
            Ok(info) => info.name,
            Err(error) => error.to_string(),
        },
        _ => "CPU".into(),
    }
}

/// Prints the products of a list, the first 24 of them.
pub fn print_products(gemms: &[GemmCount]) {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["m", "n", "k", "batch", "layout", "dtype", "kernel", "calls"]);
    for gemm in gemms.iter().take(24) {
        let sizes = [gemm.m, gemm.n, gemm.k, gemm.batch].map(|size| size.to_string());
        let names = [gemm.layout, gemm.dtype, gemm.kernel].map(String::from);
        table.add_row(sizes.into_iter().chain(names).chain([gemm.calls.to_string()]));
    }
    println!("\n{table}");
    if gemms.len() > 24 {
        println!("and {} more (--json lists all)", gemms.len() - 24);
    }
}
