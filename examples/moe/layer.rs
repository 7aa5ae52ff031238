//! One layer of experts with the weights of a layer of Qwen3-30B-A3B: candle_transformers' `FusedMoe` against `nn::moe::FusedMoe`.

use crate::mixtral::times;
use crate::weights::Seeded;
use crate::{measure, shapes, Args};
use anyhow::{ensure, Result};
use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::nn::moe;
use candle_transformers::fused_moe;
use comfy_table::{presets::ASCII_MARKDOWN, Table};

/// Above this number of tokens, candle's sort does not fit into a multiprocessor.
const CANDLES_MOST: usize = 1024;

pub fn run(args: &Args, dtype: DType, device: &Device) -> Result<()> {
    ensure!(device.is_cuda(), "candle's layer of experts needs a GPU; --model mixtral runs on the CPU");
    // The products with the routers and candle's other kernels are the same in both arms, but for our product with the router.
    #[cfg(feature = "interpose")]
    candle_tilegemm::interpose::set_mode(candle_tilegemm::interpose::Mode::Off);
    let of = if args.is_tiny() { shapes::qwen3_tiny() } else { shapes::qwen3_30b_a3b() };
    let weights = || VarBuilder::from_backend(Box::new(Seeded::default()), dtype, device.clone());
    let (hidden, experts, top_k) = (of.hidden_size, of.num_experts, of.num_experts_per_tok);
    let theirs = fused_moe::MoeCfg {
        hidden_size: hidden,
        num_experts: experts,
        num_experts_per_tok: top_k,
        moe_intermediate_size: of.moe_intermediate_size,
        norm_topk_prob: of.norm_topk_prob,
        act: of.hidden_act,
        decoder_sparse_step: None,
    };
    let cfg = moe::MoeCfg {
        hidden_size: hidden,
        num_experts: experts,
        num_experts_per_tok: top_k,
        moe_intermediate_size: of.moe_intermediate_size,
        norm_topk_prob: of.norm_topk_prob,
        act: of.hidden_act,
        decoder_sparse_step: None,
    };
    let candles = fused_moe::FusedMoe::new(&theirs, weights(), dtype)?;
    let ours = moe::FusedMoe::new(&cfg, weights(), dtype)?;

    let kernel =
        if cfg!(feature = "interpose-kernels") { "our kernel for experts" } else { "candle's kernel for experts" };
    println!(
        "a layer of Qwen3's experts, {}, {} on {}; candle's layer on {kernel}\n",
        args.config,
        dtype.as_str(),
        measure::device_name(device)
    );
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "tokens",
        "candle's layer us",
        "nn::moe::FusedMoe us",
        "candle / ours",
        "choice us",
        "relative difference",
    ]);
    for tokens in [1, 8, 64, 512, CANDLES_MOST, 8192] {
        let x = Tensor::randn(0f32, 1f32, (1, tokens, hidden), device)?.to_dtype(dtype)?;
        let logits = Tensor::randn(0f32, 1f32, (tokens, experts), device)?;
        let choose = || Ok(moe::Routing::by_logits(&logits, top_k, true)?.pairs().clone());
        let our = || Ok(ours.forward(&x, tokens > 8)?);
        let number = |us: f64| format!("{us:.1}");
        if tokens > CANDLES_MOST {
            let [us, choice] = times(device, args.runs, [&our, &choose])?;
            table.add_row([tokens.to_string(), "-".into(), number(us), "-".into(), number(choice), "-".into()]);
            continue;
        }
        let their = || Ok(candles.forward(&x, tokens > 8)?);
        // Tokens with nearly tied experts may get others: candle rounds the scores of experts.
        let difference = measure::compare(&[their()?], &[our()?])?;
        ensure!(difference.relative < 0.2, "our layer is off by {} of candle's result", difference.relative);
        let [their_us, our_us] = times(device, args.runs, [&their, &our])?;
        let [choice, _] = times(device, args.runs, [&choose, &choose])?;
        let ratio = format!("{:.2}", their_us / our_us);
        let row = [
            tokens.to_string(),
            number(their_us),
            number(our_us),
            ratio,
            number(choice),
            format!("{:.1e}", difference.relative),
        ];
        table.add_row(row);
    }
    println!("{table}");
    Ok(())
}
