//! Experts with narrow weights.

use super::{assert_same, builder, by_layout, checkpoint, tensor, values};
use crate::{assert_close, randn};
use candle::{DType, Device, Tensor};
use candle_tilegemm::nn::moe::{FusedMoe, Routing};
use candle_tilegemm::nn::narrow::{ExpertGate, Granularity, QuantWeight, Quantizer};
use candle_tilegemm::nn::{GateFunction, QuantExperts, QuantizationConfig};
use candle_tilegemm::problem::Gate;

#[test]
fn gpt_oss_in_mxfp4() {
    let (_, vb) = checkpoint("gpt-oss");
    let experts = QuantExperts::gpt_oss([3, 64, 32], vb.pp("experts")).unwrap();
    for (weight, name) in experts.weights().unwrap().into_iter().zip(["gate_up_proj", "down_proj"]) {
        let expected = vb.pp("experts").pp(name).get_unchecked_dtype("expected", DType::F32).unwrap();
        assert_same(&weight.dequantize(), &values(&expected), name);
        assert_same(&by_layout(weight), &values(&expected), name);
    }
    let error = QuantExperts::gpt_oss([3, 64, 64], vb.pp("experts")).unwrap_err().to_string();
    assert!(
        error.contains("experts.gate_up_proj_blocks: the shape is [3, 64, 2, 16]; expected [3, 128, 2, 16]"),
        "{error}"
    );
}

/// As transformers' gpt_oss computes it, in f64.
#[test]
fn gates_of_gpt_oss_lie_in_turns_and_are_clamped() {
    let [count, hidden, inner] = [4, 64, 32];
    let [gate_up, down] = [[count * 2 * inner, hidden], [count * hidden, inner]]
        .map(|shape| QuantWeight::quantize(&randn(&shape, DType::F32).unwrap(), Quantizer::Mxfp4).unwrap());
    let biases = [randn(&[count, 2 * inner], DType::F32).unwrap(), randn(&[count, hidden], DType::F32).unwrap()];
    let [w1, w2] = [gate_up.dequantize(), down.dequantize()];
    let [b1, b2] = [values(&biases[0]), values(&biases[1])];
    let gate = ExpertGate::Clamped { alpha: 1.702, limit: 7.0 };
    let experts =
        QuantExperts::new([count, hidden, inner], [gate_up, down], biases.map(Some), Gate::Interleaved, gate).unwrap();
    let tokens = randn(&[6, hidden], DType::F32).unwrap();
    let routing = Routing::by_logits(&randn(&[6, count], DType::F32).unwrap(), 2, true).unwrap();
    let (x, chosen, shares) =
        (values(&tokens), routing.experts().to_vec2::<u32>().unwrap(), routing.weights().to_vec2::<f32>().unwrap());
    let dot = |w: &[f32], x: &[f64]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
    let mut expected = vec![0f64; 6 * hidden];
    for token in 0..6 {
        let x: Vec<f64> = x[token * hidden..(token + 1) * hidden].iter().map(|x| f64::from(*x)).collect();
        for (expert, share) in chosen[token].iter().zip(&shares[token]) {
            let expert = *expert as usize;
            let row = |n: usize| {
                let n = expert * 2 * inner + n;
                dot(&w1[n * hidden..(n + 1) * hidden], &x) + f64::from(b1[n])
            };
            let gated: Vec<f64> = (0..inner)
                .map(|j| {
                    let (gate, up) = (row(2 * j).min(7.0), row(2 * j + 1).clamp(-7.0, 7.0));
                    (up + 1.0) * gate / (1.0 + (-1.702 * gate).exp())
                })
                .collect();
            for n in 0..hidden {
                let at = expert * hidden + n;
                let y = dot(&w2[at * inner..(at + 1) * inner], &gated) + f64::from(b2[at]);
                expected[token * hidden + n] += f64::from(*share) * y;
            }
        }
    }
    let expected = tensor(expected, &[6, hidden]).to_dtype(DType::F32).unwrap();
    assert_close(&experts.forward(&tokens, &routing).unwrap(), &expected, 1e-5, "gpt-oss").unwrap();
    let rounded = experts.forward(&tokens.to_dtype(DType::BF16).unwrap(), &routing).unwrap();
    assert_eq!(rounded.dtype(), DType::BF16);
}

/// The same as dense experts of the dequantised weights.
#[test]
fn experts_that_are_modules_are_stacked() {
    let [count, hidden, inner] = [3, 64, 32];
    let mut tensors = vec![];
    let mut dense = [vec![], vec![]];
    for expert in 0..count {
        for (name, n, k, to) in
            [("gate_proj", inner, hidden, 0), ("up_proj", inner, hidden, 0), ("down_proj", hidden, inner, 1)]
        {
            let to_fp8 = Quantizer::Fp8(Granularity::Block([16, 32]));
            let weight = QuantWeight::quantize(&randn(&[n, k], DType::F32).unwrap(), to_fp8).unwrap();
            let codes = (0..n).flat_map(|row| weight.bytes()[row * weight.row_bytes()..][..k].to_vec());
            let codes: Vec<float8::F8E4M3> = codes.map(float8::F8E4M3::from_bits).collect();
            let path = format!("experts.{expert}.{name}");
            tensors.push((format!("{path}.weight"), tensor(codes, &[n, k])));
            tensors.push((format!("{path}.weight_scale_inv"), tensor(weight.scales().values(), &[n / 16, k / 32])));
            dense[to].extend(weight.dequantize());
        }
    }
    let vb = builder(&tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect::<Vec<_>>());
    let config = QuantizationConfig::from_json(r#"{"quant_method":"fp8","weight_block_size":[16,32]}"#).unwrap();
    let narrow = QuantExperts::load([count, hidden, inner], GateFunction::SwiGlu, &config, vb.pp("experts")).unwrap();
    assert_eq!(narrow.weights().unwrap().map(|weight| weight.scales().shared()), [[16, 32], [1, 32]]);
    let [gate_up, down] = dense;
    for (weight, dense) in narrow.weights().unwrap().into_iter().zip([&gate_up, &down]) {
        assert_same(&weight.dequantize(), dense, "stacked");
        assert_same(&by_layout(weight), dense, "stacked, by the layout");
    }
    let cfg = super::shared::of_experts::two_of([count, hidden, inner]);
    let router = randn(&[count, hidden], DType::F32).unwrap();
    let [gate_up, down] = [tensor(gate_up, &[count, 2 * inner, hidden]), tensor(down, &[count, hidden, inner])];
    let wide = FusedMoe::from_weights(router, gate_up, down, &cfg).unwrap();
    let tokens = randn(&[5, hidden], DType::F32).unwrap();
    let routing = Routing::by_logits(&randn(&[5, count], DType::F32).unwrap(), 2, true).unwrap();
    let (actual, expected) =
        (narrow.forward(&tokens, &routing).unwrap(), wide.forward_routed(&tokens, &routing).unwrap());
    assert_close(&actual, &expected, 1e-5, "fp8").unwrap();
    // An expert that is on another GPU adds nothing.
    let chosen = Tensor::new(&[[0u32, u32::MAX]], tokens.device()).unwrap();
    let shares = Tensor::new(&[[0.5f32, 0.5]], tokens.device()).unwrap();
    let routing = Routing::new(count, &chosen, &shares).unwrap();
    let token = tokens.narrow(0, 0, 1).unwrap();
    let (actual, expected) =
        (narrow.forward(&token, &routing).unwrap(), wide.forward_routed(&token, &routing).unwrap());
    assert_close(&actual, &expected, 1e-5, "one expert").unwrap();
}

#[test]
fn experts_whose_activations_are_in_8_bits() {
    super::shared::experts_in_8_bits(&Device::Cpu, true).unwrap();
}

#[test]
fn experts_in_16_bits_are_refused() {
    let vb = builder(&[("experts.0.gate_proj.weight", randn(&[32, 64], DType::F32).unwrap())]);
    let config = QuantizationConfig::from_json(r#"{"quant_method":"fp8"}"#).unwrap();
    let error =
        QuantExperts::load([1, 64, 32], GateFunction::SwiGlu, &config, vb.pp("experts")).unwrap_err().to_string();
    assert!(error.contains("experts.0.gate_proj: the weights are not narrow"), "{error}");
}

#[test]
fn experts_of_every_format_are_those_of_f32() {
    super::shared::experts(&Device::Cpu).unwrap();
}

#[test]
fn one_expert_has_all_rows() {
    super::shared::all_to_one_expert(&Device::Cpu).unwrap();
}

#[test]
fn clamped_gates_at_and_beyond_the_limit() {
    super::shared::clamped_gates(&Device::Cpu).unwrap();
}

/// As the kernel has it.
#[test]
fn a_limit_below_zero_is_a_limit() {
    let [count, hidden, inner] = [1, 32, 32];
    let of = |n: usize| {
        QuantWeight::quantize(&Tensor::ones((n, 32), DType::F32, &Device::Cpu).unwrap(), Quantizer::Mxfp4).unwrap()
    };
    let gate = ExpertGate::Clamped { alpha: 1.0, limit: -1.0 };
    let experts =
        QuantExperts::new([count, hidden, inner], [of(2 * inner), of(hidden)], [None, None], Gate::Halves, gate);
    let tokens = Tensor::ones((1, hidden), DType::F32, &Device::Cpu).unwrap();
    let routing = Routing::new(
        count,
        &Tensor::zeros((1, 1), DType::U32, &Device::Cpu).unwrap(),
        &Tensor::ones((1, 1), DType::F32, &Device::Cpu).unwrap(),
    );
    let got = values(&experts.unwrap().forward(&tokens, &routing.unwrap()).unwrap());
    // The gate is -1, and what it multiplies 1.
    let expected = -64.0 / (1.0 + 1f32.exp());
    assert!(got.iter().all(|x| (x / expected - 1.0).abs() < 1e-5), "{got:?}, expected {expected}");
}

#[test]
fn a_layer_with_a_router_has_narrow_experts() {
    super::shared::layer_of_experts(&Device::Cpu).unwrap();
}
