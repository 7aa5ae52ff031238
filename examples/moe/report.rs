//! The output of the examples moe and quantized.

use crate::measure::{self, Difference, Measurement};
use anyhow::Result;
#[cfg(feature = "interpose")]
use candle_tilegemm::interpose::Stats;
use candle_tilegemm::stats::GemmCount;
use comfy_table::{presets::ASCII_MARKDOWN, Table};
use serde::Serialize;

#[derive(Serialize)]
pub struct Report {
    pub about: String,
    pub device: String,
    pub dtype: &'static str,
    /// The feature of this build that decides what runs on our kernels.
    pub feature: &'static str,
    pub arms: Vec<Arm>,
    /// Every product of all runs on our kernels.
    pub gemms: Vec<GemmCount>,
}

#[derive(Serialize)]
pub struct Arm {
    pub name: &'static str,
    pub times: Measurement,
    /// The distance of the logits from the first arm's.
    pub to_first: Option<Difference>,
    /// The distance of the logits from those of the file.
    pub to_file: Option<Difference>,
    /// The interposer's counts of the calls of one run.
    #[cfg(feature = "interpose")]
    pub dispatched: Stats,
}

impl Report {
    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        println!("{}, {} on {}, built with the feature {}\n", self.about, self.dtype, self.device, self.feature);
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(["", "prefill ms", "prefill tokens/s", "decode tokens/s"]);
        for Arm { name, times, .. } in &self.arms {
            // Without decode steps there is no rate.
            let rate = times.decode_tokens_per_s;
            let decode = if rate > 0.0 { format!("{rate:.1}") } else { "-".into() };
            let prefill = [format!("{:.2}", times.prefill_ms), format!("{:.0}", times.prefill_tokens_per_s)];
            table.add_row([name.to_string()].into_iter().chain(prefill).chain([decode]));
        }
        println!("{table}\n");
        for arm in &self.arms {
            if let Some(difference) = &arm.to_first {
                println!("logits, {} against {}: {difference}", arm.name, self.arms[0].name);
            }
            if let Some(difference) = &arm.to_file {
                println!("logits, {} against the file: {difference}", arm.name);
            }
        }
        #[cfg(feature = "interpose")]
        for Arm { name, dispatched, .. } in &self.arms {
            let (calls, experts) = (dispatched.calls(), dispatched.experts);
            println!("{name}, one run: {calls} calls of cuBLAS, {} on our kernels; {experts} products of experts and {} of quantised weights on ours, {} failed", dispatched.ours, dispatched.gguf, dispatched.failed);
            for (reason, count) in &dispatched.forwarded {
                println!("  {count} to cuBLAS: {reason:?}");
            }
        }
        if !self.gemms.is_empty() {
            measure::print_products(&self.gemms);
        }
        Ok(())
    }
}
