//! The two products of a layer of experts, by this crate and by candle, with random weights and random routing.
//!
//! ```sh
//! cargo run -p candle-tilegemm-examples --bin experts --features cuda,sm90,experts -- --model qwen3
//! ```
//! Without a GPU the example checks a small layer on the CPU.

use anyhow::{ensure, Result};
use candle::{DType, Device, Tensor};
use candle_tilegemm::nn::moe;
use clap::Parser;
use rand::rngs::StdRng;
use rand::seq::index::sample;
use rand::SeedableRng;
use std::time::Instant;

/// Products of experts, by this crate and by candle.
#[derive(Parser)]
struct Args {
    /// The model whose experts are multiplied.
    #[arg(long, default_value = "tiny", value_parser = ["tiny", "qwen3", "mixtral", "dsv3", "gpt-oss"])]
    model: String,
    /// Numbers of tokens.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64, 512, 2048, 8192])]
    tokens: Vec<usize>,
    /// Leave candle's kernel out.
    #[arg(long)]
    own: bool,
}

/// Experts, experts of a token, hidden size, and the size between the two products.
struct Model {
    experts: usize,
    top_k: usize,
    hidden: usize,
    between: usize,
}

fn model(name: &str) -> Model {
    let (experts, top_k, hidden, between) = match name {
        "qwen3" => (128, 8, 2048, 768),
        "mixtral" => (8, 2, 4096, 14336),
        "dsv3" => (256, 8, 7168, 2048),
        "gpt-oss" => (32, 4, 2880, 2880),
        _ => (8, 2, 64, 32),
    };
    Model { experts, top_k, hidden, between }
}

/// The experts that tokens choose.
struct Routing {
    /// Expert and pair, sorted by expert.
    list: Vec<(u32, u32)>,
    pairs: Tensor,
    experts: Tensor,
}

/// A token has distinct experts.
fn routing(model: &Model, tokens: usize, device: &Device) -> Result<Routing> {
    let mut rng = StdRng::seed_from_u64(tokens as u64);
    let mut list: Vec<(u32, u32)> = Vec::new();
    for token in 0..tokens {
        let experts = sample(&mut rng, model.experts, model.top_k).into_iter().enumerate();
        list.extend(experts.map(|(i, expert)| (expert as u32, (token * model.top_k + i) as u32)));
    }
    list.sort();
    let column = |of: fn(&(u32, u32)) -> u32| Tensor::from_vec(list.iter().map(of).collect(), list.len(), device);
    let (pairs, experts) = (column(|row| row.1)?, column(|row| row.0)?);
    Ok(Routing { list, pairs, experts })
}

type Call<'a> = Box<dyn Fn() -> Result<Tensor> + 'a>;

/// The median time of a call of each arm, in microseconds, over seven runs of many calls. The arms take turns.
fn times(device: &Device, arms: &[Call]) -> Result<Vec<f64>> {
    let run = |arm: &Call, calls: usize| -> Result<f64> {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..calls {
            arm()?;
        }
        device.synchronize()?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / calls as f64)
    };
    let warm: Vec<f64> = arms.iter().map(|arm| run(arm, 2)).collect::<Result<_>>()?;
    let mut times = vec![Vec::new(); arms.len()];
    for _ in 0..7 {
        for ((arm, us), times) in arms.iter().zip(&warm).zip(&mut times) {
            times.push(run(arm, ((20_000.0 / us.max(10.0)).ceil() as usize).clamp(2, 200))?);
        }
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    Ok(times.into_iter().map(|times| times[3]).collect())
}

/// Some rows of the result against candle's product of the row and the expert's matrix.
fn check(
    y: &Tensor,
    x: &Tensor,
    w: &Tensor,
    scales: Option<&Tensor>,
    list: &[(u32, u32)],
    per_row: usize,
) -> Result<()> {
    for (expert, pair) in list.iter().step_by(list.len().div_ceil(9)) {
        let row = x.get(*pair as usize / per_row)?.unsqueeze(0)?.to_dtype(DType::F32)?;
        let mut expected = row.matmul(&w.get(*expert as usize)?.to_dtype(DType::F32)?.t()?)?;
        if let Some(scales) = scales {
            expected = expected.broadcast_mul(&scales.get(*pair as usize)?)?;
        }
        let got = y.get(*pair as usize)?.unsqueeze(0)?.to_dtype(DType::F32)?;
        let norm = |t: Tensor| -> Result<f32> { Ok(t.sqr()?.sum_all()?.to_scalar::<f32>()?.sqrt()) };
        let (error, size) = (norm((got - &expected)?)?, norm(expected)?);
        ensure!(error <= 0.01 * size, "row {pair} of expert {expert} is off by {error}, its norm is {size}");
    }
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = Device::cuda_if_available(0)?;
    let of = model(if device.is_cuda() { &args.model } else { "tiny" });
    let dtype = if device.is_cuda() { DType::BF16 } else { DType::F32 };
    let Model { experts, top_k, hidden, between } = of;
    println!(
        "{experts} experts, {top_k} for each token, {dtype:?}, microseconds; the time of a call in a row of calls"
    );
    println!("| product | tokens | ours | TFLOP/s | candle | candle / ours |\n|---|---|---|---|---|---|");
    for (name, n, k) in [("gate and up", 2 * between, hidden), ("down", hidden, between)] {
        let w = (Tensor::randn(0f32, 1f32, (n, k), &device)?.to_dtype(dtype)? * 0.05)?;
        // Distinct matrices, without an f32 copy of all of them.
        let w = Tensor::stack(&(0..experts).map(|e| w.roll(e as i32, 0)).collect::<Result<Vec<_>, _>>()?, 0)?;
        for &tokens in args.tokens.iter().filter(|tokens| device.is_cuda() || **tokens <= 64) {
            let Routing { list, pairs, experts } = routing(&of, tokens, &device)?;
            let is_down = name == "down";
            let per_row = if is_down { 1 } else { top_k };
            let x = Tensor::randn(0f32, 1f32, (tokens * top_k / per_row, k), &device)?.to_dtype(dtype)?;
            let scales = if is_down { Some(Tensor::rand(0f32, 1f32, tokens * top_k, &device)?) } else { None };
            let ours = || Ok(moe::moe_gemm(&x, &w, &scales, &pairs, &experts, top_k, tokens > 8)?);
            check(&ours()?, &x, &w, scales.as_ref(), &list, per_row)?;
            let mut arms: Vec<Call> = vec![Box::new(ours)];
            if !args.own {
                arms.extend(candles([&x, &w], &scales, [&pairs, &experts], top_k, tokens));
            }
            let us = times(&device, &arms)?;
            let tflops = 2.0 * (tokens * top_k * n * k) as f64 / us[0] * 1e-6;
            let row = format!("| {name} | {tokens} | {:.1} | {tflops:.1} |", us[0]);
            match us[1..] {
                [candle] => println!("{row} {candle:.1} | {:.2} |", candle / us[0]),
                _ => println!("{row} | |"),
            }
        }
    }
    Ok(())
}

/// candle's own layer, which needs CUDA. With the feature `interpose-kernels` candle's layer runs on our kernels.
#[cfg(feature = "cuda")]
fn candles<'a>(
    [x, w]: [&'a Tensor; 2],
    scales: &'a Option<Tensor>,
    [pairs, experts]: [&'a Tensor; 2],
    top_k: usize,
    tokens: usize,
) -> Option<Call<'a>> {
    let is_on_gpu = x.device().is_cuda();
    let call = move || Ok(candle_nn::moe::moe_gemm(x, w, scales, pairs, experts, top_k, tokens > 8)?);
    is_on_gpu.then(|| Box::new(call) as Call)
}

#[cfg(not(feature = "cuda"))]
fn candles<'a>(_: [&'a Tensor; 2], _: &'a Option<Tensor>, _: [&'a Tensor; 2], _: usize, _: usize) -> Option<Call<'a>> {
    None
}
