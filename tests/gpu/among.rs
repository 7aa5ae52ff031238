//! Layers that have some of the experts behind the router of all, as ranks of a group have them.

use crate::device::Gpu;
use crate::experts::{config, difference, layer_weights};
use crate::Test;
use candle::{bail, DType, Device, Result, Tensor};
use candle_nn::Activation::Silu;
use candle_tilegemm::nn::moe::{FusedMoe, MoeCfg};
use std::ops::Range;

pub fn tests() -> Vec<(String, Test)> {
    let mut tests: Vec<(String, Test)> =
        vec![("experts_among_others".into(), Box::new(|gpu| dense(gpu).map_err(|e| e.to_string())))];
    #[cfg(feature = "gguf")]
    tests.push(("experts_in_blocks_among_others".into(), Box::new(|gpu| blocks(gpu).map_err(|e| e.to_string()))));
    #[cfg(feature = "narrow")]
    tests.push(("narrow_experts_among_others".into(), Box::new(|gpu| narrow(gpu).map_err(|e| e.to_string()))));
    tests
}

/// The layers of all ranks against the layer that has all experts: `make` makes a layer of a range of experts, with its rows of the router. Then with tokens that all
/// go to the first rank's experts: the layers of others write zeros over what was there.
fn add_up(
    what: &str,
    cfg: &MoeCfg,
    (router, dtype): (&Tensor, DType),
    tolerance: f32,
    make: impl Fn(Range<usize>, Tensor) -> Result<FusedMoe>,
) -> Result<()> {
    let (device, count) = (router.device(), cfg.num_experts);
    let layer = |range: Range<usize>, bias: Option<&Tensor>| -> Result<FusedMoe> {
        let own = router.narrow(0, range.start, range.len())?;
        let layer = make(range.clone(), own)?.among(router.clone(), range.start)?;
        Ok(bias.map_or(Ok(layer.clone()), |bias| layer.with_router_bias(bias))?.detached())
    };
    for tokens in [1, 9, 200] {
        let x = Tensor::randn(0f32, 1f32, (tokens, cfg.hidden_size), device)?.to_dtype(dtype)?;
        let result = |layer: &FusedMoe| -> Result<Tensor> {
            let workspace = layer.workspace(tokens + 3)?;
            let out = Tensor::full(f32::NAN, x.shape(), device)?.to_dtype(dtype)?;
            layer.forward_into(&x, &workspace, &out)?;
            let other = layer.forward(&x.unsqueeze(0)?, true)?.squeeze(0)?;
            let bits = |t: &Tensor| t.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>();
            if bits(&out)? != bits(&other)? {
                bail!("{what}, {tokens} tokens, {dtype:?}: `forward_into` and `forward` differ");
            }
            out.to_dtype(DType::F32)
        };
        let whole = result(&layer(0..count, None)?)?;
        for own in [count / 4, count / 2] {
            let mut sum = whole.zeros_like()?;
            for rank in 0..count / own {
                sum = (sum + result(&layer(rank * own..(rank + 1) * own, None)?)?)?;
            }
            let worst = difference(&sum, &whole)?;
            if worst.is_nan() || worst > tolerance {
                bail!("{what}, {tokens} tokens, {own} of {count} experts each, {dtype:?}: off by {worst}");
            }
            let to_first = |expert: usize| if expert < cfg.num_experts_per_tok { 1e6f32 } else { 0. };
            let bias = Tensor::from_iter((0..count).map(to_first), device)?;
            let first = own.max(cfg.num_experts_per_tok);
            for rank in first.div_ceil(own)..count / own {
                let most = result(&layer(rank * own..(rank + 1) * own, Some(&bias))?)?.abs()?.max_all()?;
                if most.to_scalar::<f32>()? != 0. {
                    bail!("{what}, {tokens} tokens, {dtype:?}: rank {rank} has none of their experts, and a result");
                }
            }
        }
    }
    Ok(())
}

fn dense(gpu: &Gpu) -> Result<()> {
    let device = Device::Cuda(gpu.device.clone());
    // Parts of sums are rounded once more.
    for (dtype, tolerance) in [(DType::BF16, 1e-2), (DType::F16, 2e-3), (DType::F32, 1e-5)] {
        for sizes in [[128, 8, 256, 96], [8, 2, 264, 136], [16, 4, 60, 30]] {
            let cfg = config(sizes, Silu);
            let weights = layer_weights(&cfg, dtype)?;
            let [router, gate_up, down] = weights.each_ref().map(|weights| weights.to_device(&device));
            let (router, gate_up, down) = (router?, gate_up?, down?);
            add_up(&format!("{sizes:?}"), &cfg, (&router, dtype), tolerance, |range, own| {
                let of = MoeCfg { num_experts: range.len(), ..cfg.clone() };
                let part = |weights: &Tensor| weights.narrow(0, range.start, range.len());
                FusedMoe::from_weights(own, part(&gate_up)?, part(&down)?, &of)
            })?;
        }
    }
    Ok(())
}

#[cfg(feature = "gguf")]
fn blocks(gpu: &Gpu) -> Result<()> {
    use candle::quantized::{GgmlDType, QTensor};
    let device = Device::Cuda(gpu.device.clone());
    let cfg = config([16, 4, 256, 256], Silu);
    let inner = cfg.moe_intermediate_size;
    let [router, gate_up, down] = layer_weights(&cfg, DType::F32)?;
    for (dtype, tolerance) in [(DType::BF16, 1.2e-2), (DType::F32, 1e-2)] {
        let router = router.to_device(&device)?.to_dtype(dtype)?;
        add_up("blocks", &cfg, (&router, dtype), tolerance, |range, own| {
            let of = MoeCfg { num_experts: range.len(), ..cfg.clone() };
            let part = |weights: &Tensor, format| {
                // candle quantises a storage from its first number on, wherever the tensor begins.
                QTensor::quantize(&weights.narrow(0, range.start, range.len())?.force_contiguous()?, format)
            };
            let gate = part(&gate_up.narrow(1, 0, inner)?, GgmlDType::Q4K)?;
            let up = part(&gate_up.narrow(1, inner, inner)?, GgmlDType::Q6K)?;
            FusedMoe::from_blocks(own, [&gate, &up, &part(&down, GgmlDType::Q4K)?], &of)
        })?;
    }
    Ok(())
}

/// With biases of all products, as gpt-oss has them.
#[cfg(feature = "narrow")]
fn narrow(gpu: &Gpu) -> Result<()> {
    use candle_tilegemm::nn::narrow::{ExpertGate, QuantExperts, QuantWeight, Quantizer};
    use candle_tilegemm::problem::Gate;
    let device = Device::Cuda(gpu.device.clone());
    let cfg = config([8, 2, 256, 96], Silu);
    let (hidden, inner) = (cfg.hidden_size, cfg.moe_intermediate_size);
    let [router, gate_up, down] = layer_weights(&cfg, DType::F32)?;
    let bias = |columns: usize| Tensor::randn(0f32, 1f32, (cfg.num_experts, columns), &Device::Cpu);
    let biases = [bias(2 * inner)?, bias(hidden)?];
    for (dtype, tolerance) in [(DType::BF16, 1.2e-2), (DType::F32, 1e-2)] {
        let router = router.to_device(&device)?.to_dtype(dtype)?;
        add_up("MXFP4", &cfg, (&router, dtype), tolerance, |range, own| {
            let of = MoeCfg { num_experts: range.len(), ..cfg.clone() };
            let part = |weights: &Tensor| weights.narrow(0, range.start, range.len())?.contiguous();
            let rounded = |weights: &Tensor| QuantWeight::quantize(&part(weights)?.flatten(0, 1)?, Quantizer::Mxfp4);
            let weights = [rounded(&gate_up)?, rounded(&down)?];
            let biases = [Some(part(&biases[0])?), Some(part(&biases[1])?)];
            let gate = ExpertGate::Clamped { alpha: 1.702, limit: 7.0 };
            let experts = QuantExperts::new([range.len(), hidden, inner], weights, biases, Gate::Interleaved, gate)?;
            FusedMoe::from_narrow(own, &experts, &of)
        })?;
    }
    Ok(())
}
