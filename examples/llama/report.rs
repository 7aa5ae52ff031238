//! The output of the llama example.

use anyhow::{ensure, Result};
use candle::{DType, Device, Tensor};
use candle_tilegemm::interpose::Stats;
use candle_tilegemm::stats::GemmCount;
use comfy_table::{presets::ASCII_MARKDOWN, Table};
use serde::Serialize;

#[derive(Serialize)]
pub struct Report {
    pub config: String,
    pub device: String,
    pub dtype: &'static str,
    pub prompt: u32,
    pub decode: u32,
    pub stock: Measurement,
    pub ours: Measurement,
    pub logits: Difference,
    /// The interposer's counts of the calls of one run.
    pub dispatched: Stats,
    /// Every product of all runs with the interposer on.
    pub gemms: Vec<GemmCount>,
}

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

/// The distance of our logits from stock's, over the prefill and every decode step.
#[derive(Serialize)]
pub struct Difference {
    pub max_abs: f32,
    /// Largest logit, for scale.
    pub max_stock: f32,
    /// |ours - stock| / |stock|, Euclidean, of the worst step.
    pub relative: f32,
    /// Steps whose largest logit is the same token.
    pub same_token: usize,
    pub steps: usize,
}

pub fn compare(stock: &[Tensor], ours: &[Tensor]) -> Result<Difference> {
    ensure!(stock.len() == ours.len(), "the runs have {} and {} steps", stock.len(), ours.len());
    let mut worst = Difference { max_abs: 0.0, max_stock: 0.0, relative: 0.0, same_token: 0, steps: stock.len() };
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
        worst.relative = worst.relative.max((error / size).sqrt() as f32);
        worst.same_token += usize::from(largest(&stock) == largest(&ours));
    }
    Ok(worst)
}

pub fn device_name(device: &Device) -> String {
    match device.location() {
        candle::DeviceLocation::Cuda { gpu_id } => match candle_tilegemm::launch::device_info(gpu_id) {
            Ok(info) => info.name,
            Err(error) => error.to_string(),
        },
        _ => "CPU".into(),
    }
}

impl Report {
    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        println!("llama {} {} on {}, {} + {} tokens\n", self.config, self.dtype, self.device, self.prompt, self.decode);
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(["", "prefill ms", "prefill tokens/s", "decode tokens/s"]);
        for (arm, times) in [("stock", &self.stock), ("candle-tilegemm", &self.ours)] {
            let decode = if self.decode > 0 { format!("{:.1}", times.decode_tokens_per_s) } else { "-".into() };
            let row =
                [arm.into(), format!("{:.2}", times.prefill_ms), format!("{:.0}", times.prefill_tokens_per_s), decode];
            table.add_row(row);
        }
        println!("{table}\n");
        let d = &self.logits;
        println!(
            "logits: largest difference {:.4} of {:.2}, relative {:.2e} in the worst step, same token in {} of {} steps",
            d.max_abs, d.max_stock, d.relative, d.same_token, d.steps
        );
        println!(
            "cuBLAS calls of one run: {} in all, {} on our kernels",
            self.dispatched.calls(),
            self.dispatched.ours
        );
        for (reason, count) in &self.dispatched.forwarded {
            println!("  {count} to cuBLAS: {reason:?}");
        }
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(["m", "n", "k", "batch", "layout", "dtype", "kernel", "calls"]);
        for gemm in self.gemms.iter().take(24) {
            let sizes = [gemm.m, gemm.n, gemm.k, gemm.batch].map(|size| size.to_string());
            let names = [gemm.layout, gemm.dtype, gemm.kernel].map(String::from);
            table.add_row(sizes.into_iter().chain(names).chain([gemm.calls.to_string()]));
        }
        println!("\n{table}");
        if self.gemms.len() > 24 {
            println!("and {} more (--json lists all)", self.gemms.len() - 24);
        }
        Ok(())
    }
}
