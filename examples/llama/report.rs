//! The output of the llama example.

use crate::measure::{self, Difference, Measurement};
use anyhow::Result;
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
        println!("logits: {}", self.logits);
        println!(
            "cuBLAS calls of one run: {} in all, {} on our kernels",
            self.dispatched.calls(),
            self.dispatched.ours
        );
        for (reason, count) in &self.dispatched.forwarded {
            println!("  {count} to cuBLAS: {reason:?}");
        }
        measure::print_products(&self.gemms);
        Ok(())
    }
}
