//! The layer of experts on the CPU.

use candle::quantized::{GgmlDType, QTensor};
use candle::{DType, Device, Tensor};
use candle_tilegemm::nn::moe::{moe_gemm, FusedMoe, MoeCfg, Routing};
use candle_tilegemm::problem::Gate;
use candle_tilegemm::{Activation, GroupedGemm};

fn randn(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::randn(0f32, 1f32, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

#[test]
fn the_layer_is_a_product_of_each_pair_on_the_cpu() {
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::BF16, 0.05), (DType::F16, 0.01)] {
        let (tokens, top_k, count, n, k) = (5, 2, 4, 6, 8);
        let (x, weights) = (randn(&[tokens, k], dtype), randn(&[count, n, k], dtype));
        // Pairs of expert e: those p with (3 p) % 4 = e.
        let mut list: Vec<(u32, u32)> = (0..(tokens * top_k) as u32).map(|p| (3 * p % 4, p)).collect();
        list.sort();
        let column = |of: fn(&(u32, u32)) -> u32| Tensor::from_iter(list.iter().map(of), &Device::Cpu).unwrap();
        let (groups, pairs) = (column(|row| row.0), column(|row| row.1));
        let y = moe_gemm(&x, &weights, &None, &pairs, &groups, top_k, true).unwrap();
        assert_eq!((y.dims(), y.dtype()), (&[tokens * top_k, n][..], dtype));
        let wide = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
        let factors: Vec<f32> = (0..tokens * top_k).map(|p| 0.25 * (p + 1) as f32).collect();
        let scales = Tensor::new(factors.as_slice(), &Device::Cpu).unwrap();
        let narrow = randn(&[tokens * top_k, 2 * k], dtype).narrow(1, k, k).unwrap(); // neither dense nor at the start
        let z = moe_gemm(&narrow, &weights, &Some(scales), &pairs, &groups, top_k, false).unwrap();
        for p in 0..tokens * top_k {
            let w = wide(&weights.get(3 * p % 4).unwrap()).t().unwrap();
            let close = |got: &Tensor, row: Tensor, factor: f64| {
                let expected = (wide(&row).unsqueeze(0).unwrap().matmul(&w).unwrap() * factor).unwrap();
                let difference = (wide(&got.narrow(0, p, 1).unwrap()) - expected).unwrap().abs().unwrap();
                let worst = difference.max_all().unwrap().to_scalar::<f32>().unwrap();
                assert!(worst <= tolerance * factor.max(1.0) as f32 * 4.0, "{dtype:?}, pair {p}: {worst}");
            };
            close(&y, x.get(p / top_k).unwrap(), 1.0);
            close(&z, narrow.get(p).unwrap(), 0.25 * (p + 1) as f64);
        }
    }
}

#[test]
fn the_layer_says_what_does_not_fit() {
    let (x, weights) = (randn(&[3, 8], DType::F32), randn(&[4, 6, 8], DType::F32));
    let list = |count: usize| Tensor::zeros(count, DType::U32, &Device::Cpu).unwrap();
    let error = |x: &Tensor, weights: &Tensor, scales: &Option<Tensor>, pairs: &Tensor, groups: &Tensor| {
        moe_gemm(x, weights, scales, pairs, groups, 2, true).unwrap_err().to_string()
    };
    let cases = [
        (error(&randn(&[3, 7], DType::F32), &weights, &None, &list(6), &list(6)), "rows of 7 numbers"),
        (error(&x, &randn(&[4, 6, 8], DType::F64), &None, &list(6), &list(6)), "f16, bf16 or f32"),
        (
            error(&x, &weights, &None, &list(5), &list(6)),
            "sorted_token_ids (the pairs) has 5 numbers in U32; expected 6",
        ),
        (error(&x, &weights, &None, &list(6), &list(7)), "experts_ids (the group of each row) has 7"),
        (
            error(&x, &weights, &Some(list(3)), &list(3), &list(3)),
            "topk_weights (the scales) has 3 numbers in U32; expected 3 in F32",
        ),
    ];
    for (error, words) in cases {
        assert!(error.contains(words), "{error}");
    }
}

fn numbers(t: &Tensor) -> Vec<f32> {
    t.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(got: &Tensor, expected: &Tensor, tolerance: f32) {
    assert_eq!(got.dims(), expected.dims());
    for (got, expected) in numbers(got).into_iter().zip(numbers(expected)) {
        assert!((got - expected).abs() <= tolerance * expected.abs().max(1.0), "{got}, expected {expected}");
    }
}

#[test]
fn a_gated_product_is_the_product_and_then_the_gate() {
    let (x, weights) = (randn(&[7, 8], DType::F32), randn(&[3, 12, 8], DType::F32));
    let first_row = Tensor::new(&[1u32, 1, 4, 7], &Device::Cpu).unwrap(); // row 0 is of no group, group 0 is empty
    let product = GroupedGemm::by_first_row(&first_row);
    let y = product.forward(&x, &weights).unwrap();
    assert_eq!(numbers(&y.get(0).unwrap()), [0.0; 12]);
    let column = |j: usize| y.narrow(1, j, 1).unwrap();
    for (gate, places) in [(Gate::Halves, [0, 6, 1]), (Gate::Interleaved, [0, 1, 2])] {
        let got = product.clone().gate(gate, Activation::Silu).forward(&x, &weights).unwrap();
        let columns: Vec<Tensor> = (0..6)
            .map(|j| (column(places[0] + places[2] * j).silu().unwrap() * column(places[1] + places[2] * j)).unwrap())
            .collect();
        assert_close(&got, &Tensor::cat(&columns, 1).unwrap(), 1e-6);
    }
    let odd = randn(&[3, 11, 8], DType::F32);
    let error = product.gate(Gate::Halves, Activation::Silu).forward(&x, &odd).unwrap_err().to_string();
    assert!(error.contains("expected an even number"), "{error}");
}

#[test]
fn tokens_choose_the_experts_of_the_largest_logits() {
    let logits = Tensor::new(&[[0f32, 1., 1., -1.], [f32::NAN, 5., 0., 9.], [2., 2., 2., 2.]], &Device::Cpu).unwrap();
    let routing = Routing::by_logits(&logits, 2, false).unwrap();
    assert_eq!(routing.experts().to_vec2::<u32>().unwrap(), [[1, 2], [0, 3], [0, 1]]);
    assert_eq!(routing.first_row().to_vec1::<u32>().unwrap(), [0, 2, 4, 5, 6]);
    assert_eq!(routing.pairs().to_vec1::<u32>().unwrap(), [2, 4, 0, 5, 1, 3]);
    let weights = routing.weights().to_vec2::<f32>().unwrap();
    assert!(weights[1].iter().all(|weight| weight.is_nan()) && weights[2] == [0.25, 0.25], "{weights:?}");
    let sum = |row: &[f32]| row.iter().sum::<f32>();
    assert!(sum(&weights[0]) < 0.9);
    let normalised = Routing::by_logits(&logits, 2, true).unwrap().weights().to_vec2::<f32>().unwrap();
    assert!((sum(&normalised[0]) - 1.0).abs() < 1e-6);
    for (top_k, words) in [(0, "cannot choose 0 of 4"), (5, "cannot choose 5 of 4")] {
        let error = Routing::by_logits(&logits, top_k, true).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Every expert's product with every token, and the weights of the experts that were not chosen are 0.
#[test]
fn the_fused_layer_is_the_weighted_sum_of_experts() {
    let cfg = MoeCfg {
        hidden_size: 16,
        num_experts: 5,
        num_experts_per_tok: 2,
        moe_intermediate_size: 12,
        norm_topk_prob: true,
        act: candle_nn::Activation::Silu,
        decoder_sparse_step: None,
    };
    let (router, gate_up, down) =
        (randn(&[5, 16], DType::F32), randn(&[5, 24, 16], DType::F32), randn(&[5, 16, 12], DType::F32));
    let names = std::collections::HashMap::from_iter(
        (0..5)
            .flat_map(|i| {
                let of = |name: &str, t: Tensor| (format!("experts.{i}.{name}.weight"), t);
                let (both, down) = (gate_up.get(i).unwrap(), down.get(i).unwrap());
                let half = |at: usize| both.narrow(0, at, 12).unwrap();
                [of("gate_proj", half(0)), of("up_proj", half(12)), of("down_proj", down)]
            })
            .chain([("gate.weight".to_string(), router.clone())]),
    );
    let vb = candle_nn::VarBuilder::from_tensors(names, DType::F32, &Device::Cpu);
    let layer = FusedMoe::new(&cfg, vb, DType::F32).unwrap();
    let x = randn(&[2, 4, 16], DType::F32);
    let tokens = x.reshape((8, 16)).unwrap();
    let logits = tokens.matmul(&router.t().unwrap()).unwrap();
    let routing = Routing::by_logits(&logits, 2, true).unwrap();
    let (chosen, weights) = (routing.experts().to_vec2::<u32>().unwrap(), routing.weights().to_vec2::<f32>().unwrap());
    let rows: Vec<Tensor> = (0..8)
        .map(|token| {
            let expert = |j: usize| {
                let (i, x) = (chosen[token][j] as usize, tokens.narrow(0, token, 1).unwrap());
                let both = x.matmul(&gate_up.get(i).unwrap().t().unwrap()).unwrap();
                let half = |at: usize| both.narrow(1, at, 12).unwrap();
                let inner = (half(0).silu().unwrap() * half(12)).unwrap();
                (inner.matmul(&down.get(i).unwrap().t().unwrap()).unwrap() * f64::from(weights[token][j])).unwrap()
            };
            (expert(0) + expert(1)).unwrap()
        })
        .collect();
    let expected = Tensor::cat(&rows, 0).unwrap().reshape((2, 4, 16)).unwrap();
    assert_close(&layer.forward(&x, true).unwrap(), &expected, 1e-4);
    let wrong = FusedMoe::from_weights(router.clone(), down.clone(), down.clone(), &cfg).unwrap_err().to_string();
    assert!(wrong.contains("gate_up have the shape [5, 16, 12]; expected [5, 24, 16]"), "{wrong}");
    let mish = MoeCfg { act: candle_nn::Activation::Mish, ..cfg };
    let wrong = FusedMoe::from_weights(router, gate_up, down, &mish).unwrap_err().to_string();
    assert!(wrong.contains("no gate has the activation Mish"), "{wrong}");
}

/// Two layers with parts of the experts, as two GPUs have them. Less the first of the own experts, an expert's number is beyond the own experts or, below 0,
/// near `u32::MAX`.
#[test]
fn layers_with_parts_of_the_experts_add_up_to_the_layer() {
    let (count, top_k, tokens, hidden, inner) = (6, 3, 7, 16, 12);
    let cfg = |num_experts: usize| MoeCfg {
        hidden_size: hidden,
        num_experts,
        num_experts_per_tok: top_k,
        moe_intermediate_size: inner,
        norm_topk_prob: true,
        act: candle_nn::Activation::Silu,
        decoder_sparse_step: None,
    };
    let (router, x) = (randn(&[count, hidden], DType::F32), randn(&[tokens, hidden], DType::F32));
    let (gate_up, down) = (randn(&[count, 2 * inner, hidden], DType::F32), randn(&[count, hidden, inner], DType::F32));
    let layer = |first: usize, own: usize| {
        let part = |t: &Tensor| t.narrow(0, first, own).unwrap();
        FusedMoe::from_weights(part(&router), part(&gate_up), part(&down), &cfg(own)).unwrap()
    };
    let routing = Routing::by_logits(&x.matmul(&router.t().unwrap()).unwrap(), top_k, true).unwrap();
    let expected = layer(0, count).forward_routed(&x, &routing).unwrap();
    let weights = routing.weights().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let of = |first: usize, own: usize| {
        let chosen = routing.experts().flatten_all().unwrap().to_vec1::<u32>().unwrap();
        let chosen: Vec<u32> = chosen.into_iter().map(|expert| expert.wrapping_sub(first as u32)).collect();
        let is_own = |expert: &u32| *expert < own as u32;
        // The weights of others do not count.
        let weights: Vec<f32> = chosen
            .iter()
            .zip(&weights)
            .map(|(expert, weight)| if is_own(expert) { *weight } else { f32::NAN })
            .collect();
        let chosen = Tensor::from_vec(chosen, (tokens, top_k), &Device::Cpu).unwrap();
        let weights = Tensor::from_vec(weights, (tokens, top_k), &Device::Cpu).unwrap();
        let routing = Routing::new(own, &chosen, &weights).unwrap();
        layer(first, own).forward_routed(&x, &routing).unwrap()
    };
    assert_close(&(of(0, 2) + of(2, 4)).unwrap(), &expected, 1e-5);
}

/// The numbers of a layer's three forms: `forward`, and the functions that write into tensors full of NaN.
fn results(layer: &FusedMoe, x: &Tensor) -> Vec<Tensor> {
    let (tokens, hidden) = x.dims2().unwrap();
    let (layer, workspace) = (layer.detached(), layer.workspace(tokens).unwrap());
    let zeros = x.zeros_like().unwrap();
    let nan = || Tensor::full(f32::NAN, x.shape(), &Device::Cpu).unwrap().to_dtype(x.dtype()).unwrap();
    let (out, beside) = (nan(), nan());
    layer.forward_into(x, &workspace, &out).unwrap();
    layer.forward_residual_into(x, &zeros, &workspace, &beside).unwrap();
    let batch = x.reshape((1, tokens, hidden)).unwrap();
    vec![layer.forward(&batch, true).unwrap().squeeze(0).unwrap(), out, beside]
}

/// Layers that have some of the experts behind the router of all: parts of sums in 16 bits are rounded once each.
#[test]
fn layers_among_others_add_up_to_the_layer() {
    let (count, tokens, hidden, inner) = (8, 9, 16, 12);
    let cfg = |num_experts: usize, norm_topk_prob: bool| MoeCfg {
        hidden_size: hidden,
        num_experts,
        num_experts_per_tok: 3,
        moe_intermediate_size: inner,
        norm_topk_prob,
        act: candle_nn::Activation::Silu,
        decoder_sparse_step: None,
    };
    for (dtype, rounding) in [(DType::F32, 2e-6), (DType::BF16, 1.0 / 256.0), (DType::F16, 1.0 / 1024.0)] {
        let (router, x) = (randn(&[count, hidden], dtype), randn(&[tokens, hidden], dtype));
        let (gate_up, down) = (randn(&[count, 2 * inner, hidden], dtype), randn(&[count, hidden, inner], dtype));
        let bias = randn(&[count], DType::F32);
        for normalise in [true, false] {
            let layer = |first: usize, own: usize| {
                let part = |t: &Tensor| t.narrow(0, first, own).unwrap();
                let of = cfg(own, normalise);
                let layer = FusedMoe::from_weights(part(&router), part(&gate_up), part(&down), &of).unwrap();
                layer.among(router.clone(), first).unwrap().with_router_bias(&bias).unwrap()
            };
            let wide = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
            let whole = wide(&results(&layer(0, count), &x)[0]);
            for own in [1, 2, 4] {
                let parts: Vec<_> = (0..count / own).map(|rank| results(&layer(rank * own, own), &x)).collect();
                for form in 0..3 {
                    let sum = |of: &dyn Fn(&Tensor) -> Tensor| {
                        parts.iter().map(|part| of(&wide(&part[form]))).reduce(|x, y| (x + y).unwrap()).unwrap()
                    };
                    // The roundings of all parts and of the whole.
                    let most = (sum(&|part| part.abs().unwrap()) + whole.abs().unwrap()).unwrap();
                    let apart = (sum(&|part| part.clone()) - &whole).unwrap().abs().unwrap();
                    let over = (apart - (most * rounding).unwrap()).unwrap().max_all().unwrap();
                    let over = over.to_scalar::<f32>().unwrap();
                    assert!(over <= 1e-6, "{dtype:?}, {own} experts each, form {form}: {over:e} too far");
                }
            }
        }
    }
}

/// A bias of the router sends all tokens to two experts: the layers of others add zeros.
#[test]
fn a_layer_whose_experts_no_token_chooses_is_zeros() {
    let (hidden, inner) = (16, 12);
    let cfg = MoeCfg {
        hidden_size: hidden,
        num_experts: 2,
        num_experts_per_tok: 2,
        moe_intermediate_size: inner,
        norm_topk_prob: true,
        act: candle_nn::Activation::Silu,
        decoder_sparse_step: None,
    };
    let (router, x) = (randn(&[6, hidden], DType::F32), randn(&[5, hidden], DType::F32));
    let bias = Tensor::new(&[0f32, 0., 1e4, 1e4, 0., 0.], &Device::Cpu).unwrap();
    let layer = |first: usize| {
        let own = router.narrow(0, first, 2).unwrap();
        let (gate_up, down) = (randn(&[2, 2 * inner, hidden], DType::F32), randn(&[2, hidden, inner], DType::F32));
        FusedMoe::from_weights(own, gate_up, down, &cfg).unwrap()
    };
    for first in [0, 2, 4] {
        let layer = layer(first).among(router.clone(), first).unwrap().with_router_bias(&bias).unwrap();
        for y in results(&layer, &x) {
            assert_eq!(numbers(&y).iter().all(|x| *x == 0.0), first != 2, "experts from {first} on: {y}");
        }
    }
    let beyond = layer(4).among(router.clone(), 5).unwrap_err().to_string();
    assert!(beyond.contains("[6, 16], and the layer has 2 of them, from 5 on; expected [7, 16] and more"), "{beyond}");
    let late = layer(0).with_router_bias(&bias.narrow(0, 0, 2).unwrap()).unwrap().among(router, 0).unwrap_err();
    assert!(late.to_string().contains("expected `with_router_bias` after `among`"), "{late}");
}

#[test]
fn experts_that_are_here_are_among_all() {
    let logits = randn(&[3, 4], DType::F32);
    for (range, expected) in [(2..5, "experts 2..5 of 4 are here"), (1..1, "experts 1..1 of 4 are here")] {
        let error = Routing::by_logits_among(&logits, range, 2, true).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("within 0..4"), "{error}");
    }
}

/// Entries of experts that do not exist, with a NaN as activation and as weight, are zeros in the result.
#[test]
fn entries_of_experts_that_do_not_exist_are_zeros() {
    let (count, n, k) = (3, 6, 8);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let weights = randn(&[count, n, k], dtype);
        let experts = [2, u32::MAX, 3, 0, 4, 0, 1 << 31, 1];
        let mut list: Vec<(u32, u32)> = experts.into_iter().zip(0..).collect();
        list.sort();
        let column = |of: fn(&(u32, u32)) -> u32| Tensor::from_iter(list.iter().map(of), &Device::Cpu).unwrap();
        let (groups, pairs) = (column(|row| row.0), column(|row| row.1));
        let factor: Vec<f32> = experts.iter().map(|e| if *e < 3 { 0.5 } else { f32::NAN }).collect();
        let factor = Tensor::from_vec(factor, 8, &Device::Cpu).unwrap();
        let odd = (factor.unsqueeze(1).unwrap() * 0.0).unwrap();
        let x = randn(&[8, k], DType::F32).broadcast_add(&odd).unwrap().to_dtype(dtype).unwrap();
        let y = moe_gemm(&x, &weights, &Some(factor.clone()), &pairs, &groups, 1, true).unwrap();
        let routing = Routing::new(
            count,
            &Tensor::new(&experts, &Device::Cpu).unwrap().reshape((4, 2)).unwrap(),
            &factor.reshape((4, 2)).unwrap(),
        )
        .unwrap();
        assert_eq!(routing.first_row().to_vec1::<u32>().unwrap(), [0, 2, 3, 4]);
        assert_eq!(routing.pairs().to_vec1::<u32>().unwrap(), [3, 5, 7, 0, 1, 2, 4, 6]);
        let gated = routing.by_pairs().gate(Gate::Halves, Activation::Silu).forward(&x, &weights).unwrap();
        for (pair, expert) in experts.into_iter().enumerate() {
            for (what, y) in [("plain", &y), ("gated", &gated)] {
                let row = numbers(&y.get(pair).unwrap());
                let is_zero = row.iter().all(|x| *x == 0.0);
                assert!(is_zero == (expert >= 3) && !row.iter().any(|x| x.is_nan()), "{what}, pair {pair}: {row:?}");
            }
        }
    }
}

/// Experts in blocks against the same numbers dense, where each token goes to all experts: candle rounds activations to 8 bits, which moves tokens between
/// experts otherwise. 32 numbers whose largest is some 2 deviations round to steps of 1 / 127 of it: an error of 0.5 % of a number, and two products in a row add up.
#[test]
fn experts_in_blocks_are_their_numbers() {
    let cfg = MoeCfg {
        hidden_size: 64,
        num_experts: 3,
        num_experts_per_tok: 3,
        moe_intermediate_size: 32,
        norm_topk_prob: false,
        act: candle_nn::Activation::Silu,
        decoder_sparse_step: None,
    };
    let blocks = |shape: &[usize], format| QTensor::quantize(&randn(shape, DType::F32), format).unwrap();
    let (gate, down) = (blocks(&[3, 32, 64], GgmlDType::Q8_0), blocks(&[3, 64, 32], GgmlDType::Q5_1));
    let router = randn(&[3, 64], DType::F32);
    let back = |tensor: &QTensor| tensor.dequantize(&Device::Cpu).unwrap();
    for format in [GgmlDType::Q8_0, GgmlDType::Q4_0] {
        let up = blocks(&[3, 32, 64], format);
        let dense = Tensor::cat(&[back(&gate), back(&up)], 1).unwrap();
        let dense = FusedMoe::from_weights(router.clone(), dense, back(&down), &cfg).unwrap();
        let layer = FusedMoe::from_blocks(router.clone(), [&gate, &up, &down], &cfg).unwrap();
        for dtype in [DType::F32, DType::BF16] {
            let (x, residual) = (randn(&[1, 5, 64], dtype), randn(&[1, 5, 64], dtype));
            let router = router.to_dtype(dtype).unwrap();
            let layer = match dtype {
                DType::F32 => layer.clone(),
                _ => FusedMoe::from_blocks(router, [&gate, &up, &down], &cfg).unwrap(),
            };
            let wide = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
            let expected = dense.forward_residual(&wide(&x), &wide(&residual)).unwrap();
            let got = layer.forward_residual(&x, &residual).unwrap();
            assert_eq!((got.dims(), got.dtype()), (x.dims(), dtype));
            let most = |t: &Tensor| numbers(t).into_iter().fold(0f32, |most, x| most.max(x.abs()));
            let apart = most(&(wide(&got) - &expected).unwrap()) / most(&expected);
            assert!(apart < 0.04, "{format:?}, {dtype:?}: {apart}");
            let (rows, layer) = (x.squeeze(0).unwrap(), layer.detached());
            let (workspace, out) = (layer.workspace(5).unwrap(), rows.zeros_like().unwrap());
            layer.forward_residual_into(&rows, &residual.squeeze(0).unwrap(), &workspace, &out).unwrap();
            assert_eq!(numbers(&out), numbers(&got));
        }
    }
    let wrong = FusedMoe::from_blocks(router, [&gate, &down, &down], &cfg).unwrap_err().to_string();
    assert!(wrong.contains("up have the shape [3, 64, 32]; expected [3, 32, 64]"), "{wrong}");
}
