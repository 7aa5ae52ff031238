//! The perplexity of SmolLM2 on a text, candle_transformers' llama against ours, in formats made of one file.
//!
//! ```sh
//! third_party/fetch.sh smollm2
//! cargo run -p candle-tilegemm-models --example perplexity                                        # 256 tokens on the CPU
//! cargo run -p candle-tilegemm-models --example perplexity --features cuda,sm90,gguf,layers       # 2,000 on the GPU
//! ```

mod format;
mod model;
mod score;
#[path = "../generate/tokenizer.rs"]
mod tokenizer;
mod weights;

use anyhow::{bail, Context, Result};
use candle::Device;
use clap::Parser;
use format::Format;
use model::File;
use std::path::PathBuf;
use std::process::ExitCode;

/// The perplexity of a llama in a GGUF file on a text: each token of a window is predicted from those before it.
#[derive(Parser)]
struct Args {
    /// The GGUF file
    #[arg(default_value_os_t = weights::smollm2())]
    model: PathBuf,
    /// The text
    #[arg(long, value_name = "FILE", default_value_os_t = score::text())]
    text: PathBuf,
    /// Tokens of the text; else 2000, and 256 on the CPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    tokens: Option<u32>,
    /// Windows that the tokens are parted into; all go through the model together
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    windows: u32,
    /// Formats of the weights: file, as they lie there; dequantised to f32, f16 or bf16; these quantised again to q8_0, q5_1, q5_0, q4_1 or q4_0; or rounded to
    /// fp8, int8, int4 or mxfp4. Else file, bf16, f16, q8_0 and the rounded ones, and on the CPU file and f32
    #[arg(long, value_name = "FORMAT", value_delimiter = ',')]
    formats: Vec<Format>,
    /// Runs on the CPU where there is a GPU, too
    #[arg(long)]
    cpu: bool,
    /// Writes the numbers here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let device = if args.cpu { Device::Cpu } else { Device::cuda_if_available(0)? };
    let count = args.tokens.map_or(if device.is_cpu() { 256 } else { 2000 }, |tokens| tokens as usize);
    let formats = match &args.formats[..] {
        [] if device.is_cpu() => Format::of_cpu(),
        [] => Format::of_gpu(),
        formats => formats.to_vec(),
    };
    let file = File::read(&args.model)?;
    let windows = score::windows(&file, &args.text, count, args.windows as usize)?;
    let (of_window, name) = (windows[0].len(), args.text.file_name().unwrap_or_default().to_string_lossy());
    println!("{} windows of {of_window} tokens of {name}, on {:?}", windows.len(), device.location());
    println!("{:8} {:>10} {:>10} {:>8}", "weights", "stock", "ours", "ours/stock");
    let mut rows = vec![];
    for format in formats {
        let perplexity = |is_ours: bool| -> Result<f64> {
            let mut model = file.model(format, is_ours, windows.len(), &device)?;
            score::perplexity(&mut *model, &windows, &device)
        };
        let of = |who: &str| format!("{who} in {format}");
        let (stock, ours) =
            (perplexity(false).with_context(|| of("stock"))?, perplexity(true).with_context(|| of("ours"))?);
        println!("{:8} {stock:10.4} {ours:10.4} {:8.5}", format.to_string(), ours / stock);
        rows.push(serde_json::json!({ "weights": format.to_string(), "stock": stock, "ours": ours }));
        if !stock.is_finite() || !ours.is_finite() {
            bail!("a perplexity is not finite");
        }
    }
    if let Some(path) = &args.json {
        let record = serde_json::json!({
            "schema": 1, "device": format!("{:?}", device.location()), "model": args.model.file_name().map(|name| name.to_string_lossy()),
            "text": name, "windows": windows.len(), "tokens_of_window": of_window, "rows": rows,
        });
        std::fs::write(path, format!("{record:#}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
