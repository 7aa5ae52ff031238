//! One block of experts like Mixtral's, by a loop over experts on the host and by our layer, with the same weights.
//!
//! The mixtral and deepseek2 of candle-transformers have such a loop: the host reads which tokens choose which expert, which waits for the
//! GPU in each layer, and launches the products of one expert after the other. `grouped` is the block after its move to `nn::moe::moe_gemm`.

use crate::measure;
use crate::shapes::{self, Experts};
use crate::weights::Seeded;
use crate::Args;
use anyhow::{ensure, Result};
use candle::{DType, Device, Module, Tensor, D};
use candle_nn::{linear_no_bias, ops, Linear, VarBuilder};
use candle_tilegemm::nn::moe::moe_gemm;
use comfy_table::{presets::ASCII_MARKDOWN, Table};
use serde::Serialize;
use std::time::Instant;

struct Block {
    router: Linear,
    /// (experts, 2 * between, hidden): rows of the gate, then of the up projection.
    gate_up: Tensor,
    /// (experts, hidden, between)
    down: Tensor,
    top_k: usize,
}

impl Block {
    fn load(Experts { hidden, between, experts, top_k }: Experts, builder: VarBuilder) -> Result<Self> {
        Ok(Self {
            router: linear_no_bias(hidden, experts, builder.pp("gate"))?,
            gate_up: builder.get((experts, 2 * between, hidden), "gate_up")?,
            down: builder.get((experts, hidden, between), "down")?,
            top_k,
        })
    }

    /// For each token the factors of its experts, in f32, and the experts: (tokens, top_k).
    fn route(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let chances = ops::softmax_last_dim(&self.router.forward(x)?.to_dtype(DType::F32)?)?;
        let chosen = chances.arg_sort_last_dim(false)?.narrow(D::Minus1, 0, self.top_k)?.contiguous()?;
        let factors = chances.gather(&chosen, D::Minus1)?;
        Ok((factors.broadcast_div(&factors.sum_keepdim(D::Minus1)?)?, chosen))
    }

    /// silu(gate) * up
    fn activate(&self, gate_up: &Tensor) -> Result<Tensor> {
        let between = self.down.dim(D::Minus1)?;
        let half = |start| gate_up.narrow(D::Minus1, start, between);
        Ok((half(0)?.silu()? * half(between)?)?)
    }

    /// The loop on the host.
    fn looped(&self, x: &Tensor) -> Result<Tensor> {
        let (factors, chosen) = self.route(x)?;
        let (factors, chosen) = (factors.to_vec2::<f32>()?, chosen.to_vec2::<u32>()?);
        let mut y = x.zeros_like()?;
        for expert in 0..self.gate_up.dim(0)? {
            let (mut tokens, mut of_tokens) = (Vec::new(), Vec::new());
            for (token, (factors, chosen)) in factors.iter().zip(&chosen).enumerate() {
                if let Some(at) = chosen.iter().position(|chosen| *chosen as usize == expert) {
                    tokens.push(token as u32);
                    of_tokens.push(factors[at]);
                }
            }
            if tokens.is_empty() {
                continue;
            }
            let factors = Tensor::from_vec(of_tokens, (tokens.len(), 1), x.device())?.to_dtype(x.dtype())?;
            let tokens = Tensor::new(tokens, x.device())?;
            let gate_up = x.index_select(&tokens, 0)?.matmul(&self.gate_up.get(expert)?.t()?)?;
            let of_expert = self.activate(&gate_up)?.matmul(&self.down.get(expert)?.t()?)?;
            y = y.index_add(&tokens, &of_expert.broadcast_mul(&factors)?, 0)?;
        }
        Ok(y)
    }

    /// Two products of experts. The host waits for nothing.
    fn grouped(&self, x: &Tensor) -> Result<Tensor> {
        let (tokens, hidden) = x.dims2()?;
        let (factors, chosen) = self.route(x)?;
        let (experts, pairs) = chosen.flatten_all()?.sort_last_dim(true)?;
        let is_prefill = tokens > 1;
        let gate_up = moe_gemm(x, &self.gate_up, &None, &pairs, &experts, self.top_k, is_prefill)?;
        let factors = Some(factors.flatten_all()?);
        let between = self.activate(&gate_up)?;
        let y = moe_gemm(&between, &self.down, &factors, &pairs, &experts, self.top_k, is_prefill)?;
        Ok(y.reshape((tokens, self.top_k, hidden))?.sum(1)?)
    }
}

#[derive(Serialize)]
struct Row {
    tokens: usize,
    /// Microseconds of a call in a row of calls.
    loop_us: f64,
    layer_us: f64,
    /// |layer - loop| / |loop|, Euclidean.
    relative: f32,
}

pub fn run(args: &Args, dtype: DType, device: &Device) -> Result<()> {
    // The loop's products go to cuBLAS, as in a program without the interposer.
    #[cfg(feature = "interpose")]
    candle_tilegemm::interpose::set_mode(candle_tilegemm::interpose::Mode::Off);
    let sizes = if args.is_tiny() { shapes::mixtral_tiny() } else { shapes::mixtral_8x7b() };
    let hidden = sizes.hidden;
    let source = Seeded { by_cpu: args.weights_by_cpu, ..Seeded::default() };
    let block = Block::load(sizes, VarBuilder::from_backend(Box::new(source), dtype, device.clone()))?;

    let mut rows = Vec::new();
    for tokens in [args.prompt as usize, 1] {
        let x = Tensor::randn(0f32, 1f32, (tokens, hidden), device)?.to_dtype(dtype)?;
        let difference = measure::compare(&[block.looped(&x)?], &[block.grouped(&x)?])?;
        let most = if dtype == DType::F32 { 1e-5 } else { 0.02 };
        ensure!(difference.relative < most, "the layer is off by {} of the loop's result", difference.relative);
        let [loop_us, layer_us] = times(device, args.runs, [&|| block.looped(&x), &|| block.grouped(&x)])?;
        rows.push(Row { tokens, loop_us, layer_us, relative: difference.relative });
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let (config, dtype, device) = (&args.config, dtype.as_str(), measure::device_name(device));
    println!("a block of Mixtral, {config}, {dtype} on {device}\n");
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "tokens",
        "loop us",
        "layer us",
        "loop / layer",
        "relative difference",
    ]);
    for Row { tokens, loop_us, layer_us, relative } in rows {
        let times = [format!("{loop_us:.1}"), format!("{layer_us:.1}"), format!("{:.2}", loop_us / layer_us)];
        table.add_row([tokens.to_string()].into_iter().chain(times).chain([format!("{relative:.1e}")]));
    }
    println!("{table}");
    Ok(())
}

/// The median microseconds of a call of each arm. The arms take turns of ten calls.
pub fn times(device: &Device, runs: u32, arms: [&dyn Fn() -> Result<Tensor>; 2]) -> Result<[f64; 2]> {
    const CALLS: u32 = 10;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..runs {
        for (arm, times) in arms.iter().zip(&mut times) {
            device.synchronize()?;
            let start = Instant::now();
            for _ in 0..CALLS {
                arm()?;
            }
            device.synchronize()?;
            times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
        }
    }
    Ok(times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }))
}
