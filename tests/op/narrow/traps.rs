//! What readers get wrong elsewhere, one by one.

use super::{assert_same, builder, by_layout, checkpoint, tensor, values};
use candle::safetensors::{BufferedSafetensors, SliceSafetensors};
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::nn::narrow::{
    linear_fp8, linear_of_scheme, Activations, Awq, Checkpoint, Codes, Fp8, Gptq, GptqZeros, Granularity, Integers,
    Nvfp4, Scheme,
};
use candle_tilegemm::nn::{linear_quantized_no_bias, QuantLinear, QuantizationConfig};

const GPTQ: Gptq = Gptq { bits: 4, group: Some(32), symmetric: true, zeros: GptqZeros::LessOne };

/// A safetensors file with tensors in these types.
fn file(tensors: &[(&str, &str, &[usize], Vec<u8>)]) -> Vec<u8> {
    let (mut header, mut data) = (vec![], vec![]);
    for (name, dtype, shape, bytes) in tensors {
        let (from, to) = (data.len(), data.len() + bytes.len());
        header.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{from},{to}]}}"#));
        data.extend_from_slice(bytes);
    }
    let mut header = format!("{{{}}}", header.join(","));
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.to_string(),
    }
}

/// Words of `count` columns of codes, packed along K.
fn packed(codes: &[Vec<u32>], bits: usize) -> Tensor {
    let (k, n) = (codes.len(), codes[0].len());
    let rows = (k * bits).div_ceil(32);
    let mut words = vec![0u32; rows * n];
    for (at, row) in codes.iter().enumerate() {
        for (n_at, code) in row.iter().enumerate() {
            for bit in 0..bits {
                let place = at * bits + bit;
                words[place / 32 * n + n_at] |= (code >> bit & 1) << (place % 32);
            }
        }
    }
    tensor(words.into_iter().map(|word| word as i32 as i64).collect(), &[rows, n]).to_dtype(DType::I32).unwrap()
}

/// GPTQ of 4 bits, K = 48 in groups of 32, so that the last group is short.
fn gptq(zeros: [u32; 2], groups: Option<Vec<i64>>, scheme: Gptq) -> Result<QuantLinear> {
    let (n, k) = (8, 48);
    let codes: Vec<Vec<u32>> = (0..k).map(|k| (0..n).map(|n| (k * 5 + n * 3) as u32 % 16).collect()).collect();
    let words: Vec<i64> =
        zeros.iter().map(|zero| i64::from((0..8).map(|i| zero << (4 * i)).sum::<u32>() as i32)).collect();
    let scales = Tensor::new(&[[0.5f32; 8], [0.25; 8]], &Device::Cpu)?.to_dtype(DType::F16)?;
    let mut tensors = vec![
        ("qweight", packed(&codes, 4)),
        ("qzeros", tensor(words, &[2, 1]).to_dtype(DType::I32)?),
        ("scales", scales),
    ];
    if let Some(groups) = groups {
        tensors.push(("g_idx", tensor(groups, &[k]).to_dtype(DType::I32)?));
    }
    linear_of_scheme(k, n, false, Scheme::Gptq(scheme), builder(&tensors))
}

/// What [`gptq`] has, by zero points and the group of each column.
fn expected(zeros: [i64; 2], group: impl Fn(usize) -> usize) -> Vec<f32> {
    let weight = |n: usize, k: usize| {
        let code = (k * 5 + n * 3) as i64 % 16;
        (code - zeros[group(k)]) as f32 * [0.5, 0.25][group(k)]
    };
    (0..8).flat_map(|n| (0..48).map(move |k| (n, k))).map(|(n, k)| weight(n, k)).collect()
}

#[test]
fn zero_points_wrap_in_their_bits() {
    for (zeros, stored, kind) in [
        ([8, 8], [7, 7], GptqZeros::LessOne),
        ([0, 9], [15, 8], GptqZeros::LessOne),
        ([15, 1], [14, 0], GptqZeros::LessOne),
        ([15, 0], [15, 0], GptqZeros::AsTheyAre),
    ] {
        let layer = gptq(stored, None, Gptq { zeros: kind, ..GPTQ }).unwrap();
        let weight = layer.weight().unwrap();
        assert_same(&weight.dequantize(), &expected(zeros, |k| k / 32), &format!("{zeros:?}"));
        assert_same(&by_layout(weight), &weight.dequantize(), "the layout");
        assert_eq!(weight.zeros().is_none(), zeros == [8, 8]);
        assert_eq!(weight.codes(), Codes::U4);
    }
}

#[test]
fn an_order_of_columns_that_is_none_needs_no_gather() {
    let layer = gptq([7, 7], Some((0..48).map(|k| k / 32).collect()), GPTQ).unwrap();
    assert_eq!(layer.weight().unwrap().gather(), None);
}

#[test]
fn columns_are_sorted_by_group() {
    // The short group's 16 columns are every third.
    let group = |k: usize| usize::from(k % 3 == 1);
    let layer = gptq([7, 3], Some((0..48).map(|k| group(k) as i64).collect()), GPTQ).unwrap();
    let weight = layer.weight().unwrap();
    assert_same(&weight.dequantize(), &expected([8, 4], group), "act order");
    assert_same(&by_layout(weight), &weight.dequantize(), "the layout");
    // x in the order of the codes gives the same product.
    let gather = Tensor::new(weight.gather().unwrap(), &Device::Cpu).unwrap();
    let x = Tensor::arange(0f32, 48., &Device::Cpu).unwrap().reshape((1, 48)).unwrap();
    let sorted = tensor(weight.dequantize(), &[8, 48]).index_select(&gather, 1).unwrap();
    let y = x.index_select(&gather, 1).unwrap().matmul(&sorted.t().unwrap()).unwrap();
    assert_eq!(values(&layer.forward(&x).unwrap()), values(&y));
}

#[test]
fn groups_of_other_sizes_are_refused() {
    for groups in [vec![0; 48], (0..48).map(|k| i64::from(k >= 20)).collect(), (0..48).map(|k| k / 32 - 1).collect()] {
        let error = message(gptq([7, 7], Some(groups), GPTQ));
        assert!(error.contains("g_idx: column") && error.contains("expected group"), "{error}");
    }
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let words = |shape: &[usize]| Tensor::zeros(shape, DType::I64, &Device::Cpu).unwrap().to_dtype(DType::I32).unwrap();
    let scales = Tensor::ones((1, 8), DType::F32, &Device::Cpu).unwrap();
    let of =
        |tensors: &[(&str, Tensor)], scheme| message(linear_of_scheme(32, 8, false, scheme, builder(tensors).pp("up")));
    let qweight = ("up.qweight", words(&[4, 8]));
    let error = of(&[qweight.clone(), ("up.scales", scales.clone())], Scheme::Gptq(Gptq { symmetric: false, ..GPTQ }));
    assert!(error.contains("up.qzeros: no such tensor"), "{error}");
    let error = of(std::slice::from_ref(&qweight), Scheme::Gptq(GPTQ));
    assert!(error.contains("up.scales: no such tensor"), "{error}");
    let error = of(&[qweight, ("up.scales", scales.clone())], Scheme::Gptq(Gptq { bits: 3, ..GPTQ }));
    assert!(error.contains("up.qweight: the shape is [4, 8]; expected [3, 8]"), "{error}");
    let error = of(&[], Scheme::Awq(Awq { group: None, zeros: true }));
    assert!(error.contains("up.qweight: no such tensor, nor weight"), "{error}");
    let error = of(&[("up.weight_packed", words(&[8, 4]))], Scheme::Gptq(GPTQ));
    assert!(error.contains("have qweight") && error.contains("weight_packed"), "{error}");
    let error = of(&[("up.weight_scale", scales)], Scheme::Plain);
    assert!(error.contains("the config leaves this module as it is, and the checkpoint has weight_scale"), "{error}");
}

/// Of schemes that no config made.
#[test]
fn other_bits_and_groups_of_nothing_are_refused() {
    let integers = |bits, granularity| Integers { bits, granularity, symmetric: true, activations: Activations::Wide };
    let fp8 = |granularity| Scheme::Fp8(Fp8 { granularity: Some(granularity), activations: Activations::Wide });
    for (scheme, expected) in [
        (Scheme::Gptq(Gptq { bits: 5, ..GPTQ }), "[2, 3, 4, 8] bits"),
        (Scheme::Gptq(Gptq { bits: 0, ..GPTQ }), "[2, 3, 4, 8] bits"),
        (Scheme::Packed(integers(16, Granularity::Channel)), "[4, 8] bits"),
        (Scheme::Packed(integers(4, Granularity::Group(0))), "at least one number"),
        (Scheme::Int8(integers(4, Granularity::Channel)), "[8] bits"),
        (Scheme::Int8(integers(8, Granularity::Block([0, 8]))), "at least one number"),
        (fp8(Granularity::Block([0, 8])), "at least one number"),
        (fp8(Granularity::Group(0)), "at least one number"),
    ] {
        let names = ["qweight", "scales", "qzeros", "weight", "weight_packed", "weight_scale"];
        let tensors = names.map(|name| (format!("up.{name}"), Tensor::ones((4, 4), DType::F32, &Device::Cpu).unwrap()));
        let vb = builder(&tensors.each_ref().map(|(name, tensor)| (name.as_str(), tensor.clone())));
        let error = message(linear_of_scheme(4, 4, false, scheme, vb.pp("up")));
        assert!(error.contains("up: ") && error.contains(expected), "{scheme:?}: {error}");
    }
}

#[test]
fn modules_without_narrow_tensors_are_plain() {
    let weight = tensor(vec![1f32, 2., 3., 4., 5., 6.], &[2, 3]);
    let vb = builder(&[("lm_head.weight", weight.clone()), ("lm_head.bias", tensor(vec![1f32, -1.], &[2]))]);
    let config =
        QuantizationConfig::from_json(r#"{"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false}"#).unwrap();
    let layer = linear_quantized_no_bias(3, 2, &config, vb.pp("lm_head")).unwrap();
    assert!(layer.weight().is_none() && layer.bias().is_none());
    assert_eq!(values(layer.plain_weight().unwrap()), values(&weight));
    let layer = candle_tilegemm::nn::linear_quantized(3, 2, &config, vb.pp("lm_head")).unwrap();
    assert_eq!(values(&layer.forward(&tensor(vec![1f32, 0., 1.], &[1, 3])).unwrap()), [5., 9.]);
}

#[test]
fn a_nan_code_stays_in_its_row() {
    let (config, vb) = checkpoint("fp8");
    let layer = linear_quantized_no_bias(132, 130, &config, vb.pp("short")).unwrap();
    let weights = layer.weight().unwrap().dequantize();
    let y = values(&layer.forward(&Tensor::ones((1, 132), DType::BF16, &Device::Cpu).unwrap()).unwrap());
    let has_nan = |n: usize| weights[n * 132..(n + 1) * 132].iter().any(|x| x.is_nan());
    assert!((0..130).any(has_nan) && !(0..130).all(has_nan));
    assert!((0..130).all(|n| y[n].is_nan() == has_nan(n)));
}

#[test]
fn infinite_factors_and_zeros_give_nan() {
    let weight = tensor(vec![0f32, 1., -2., 0.5], &[2, 2]).to_dtype(DType::F8E4M3).unwrap();
    let scale = tensor(vec![f32::INFINITY, f32::NAN], &[2]);
    let layer = QuantLinear::fp8(&weight, &scale, None).unwrap();
    let weights = layer.weight().unwrap().dequantize();
    assert!(weights[0].is_nan() && weights[1] == f32::INFINITY && weights[2].is_nan() && weights[3].is_nan());
}

#[test]
fn codes_of_other_floats_are_refused() {
    let fp8 = |dtype: &str| {
        file(&[("up.weight", dtype, &[2, 2], vec![0; 4]), ("up.weight_scale", "F32", &[], floats(&[1.]))])
    };
    let bytes = fp8("F8_E4M3FNUZ");
    let plain = VarBuilder::from_slice_safetensors(&bytes, DType::F32, &Device::Cpu).unwrap();
    let of_checkpoint = |bytes: &[u8]| {
        Checkpoint::from(BufferedSafetensors::new(bytes.to_vec()).unwrap()).var_builder(DType::F32, &Device::Cpu)
    };
    for vb in [plain, of_checkpoint(&bytes)] {
        let error = message(linear_fp8(2, 2, vb.pp("up")));
        assert!(error.contains("up.weight") && error.contains("F8_E4M3FNUZ") && error.contains("convert"), "{error}");
    }
    for dtype in ["F8_E5M2", "I8", "BF16", "U8"] {
        let size = if dtype == "BF16" { 2 } else { 1 };
        let bytes =
            file(&[("up.weight", dtype, &[2, 2], vec![0; 4 * size]), ("up.weight_scale", "F32", &[], floats(&[1.]))]);
        let error = message(linear_fp8(2, 2, of_checkpoint(&bytes).pp("up")));
        assert!(error.contains("up.weight") && error.contains(dtype) && error.contains("F8E4M3"), "{error}");
    }
}

#[test]
fn words_that_are_floats_are_refused() {
    let bytes =
        file(&[("up.qweight", "F32", &[4, 1], floats(&[1.0; 4])), ("up.scales", "F32", &[1, 1], floats(&[0.5]))]);
    let vb = Checkpoint::from(BufferedSafetensors::new(bytes).unwrap()).var_builder(DType::F32, &Device::Cpu);
    let error = message(linear_of_scheme(32, 1, false, Scheme::Gptq(GPTQ), vb.pp("up")));
    assert!(error.contains("up.qweight") && error.contains("F32") && error.contains("I32"), "{error}");
}

#[test]
fn integers_that_candle_does_not_load_are_explained() {
    let bytes =
        file(&[("up.weight", "I8", &[1, 2], vec![255, 2]), ("up.weight_scale", "F32", &[1, 1], floats(&[0.5]))]);
    let scheme = {
        let config = QuantizationConfig::from_json(
            r#"{"quant_method":"compressed-tensors","format":"int-quantized","config_groups":{"group_0":{"targets":["Linear"],
                "weights":{"num_bits":8,"type":"int","symmetric":true,"strategy":"channel"}}}}"#,
        );
        config.unwrap().scheme("up")
    };
    let plain = VarBuilder::from_slice_safetensors(&bytes, DType::F32, &Device::Cpu).unwrap();
    let error = message(linear_of_scheme(2, 1, false, scheme, plain.pp("up")));
    assert!(error.contains("up.weight") && error.contains("I8") && error.contains("Checkpoint"), "{error}");
    assert!(SliceSafetensors::new(&bytes).is_ok());
    let vb = Checkpoint::from(BufferedSafetensors::new(bytes.clone()).unwrap()).var_builder(DType::F32, &Device::Cpu);
    let layer = linear_of_scheme(2, 1, false, scheme, vb.pp("up")).unwrap();
    assert_eq!(layer.weight().unwrap().dequantize(), [-0.5, 1.0]);
}

#[test]
fn factors_of_rows_lie_in_a_column_a_row_or_a_list() {
    let config = QuantizationConfig::from_json(
        r#"{"quant_method":"compressed-tensors","format":"int-quantized","config_groups":{"group_0":{"targets":["Linear"],
            "weights":{"num_bits":8,"type":"int","symmetric":true,"strategy":"channel"}}}}"#,
    );
    let scheme = config.unwrap().scheme("up");
    for shape in [&[2, 1][..], &[1, 2], &[2]] {
        let scale = floats(&[0.5, 2.]);
        let bytes = file(&[("up.weight", "I8", &[2, 2], vec![255, 2, 1, 3]), ("up.weight_scale", "F32", shape, scale)]);
        let vb = Checkpoint::from(BufferedSafetensors::new(bytes).unwrap()).var_builder(DType::F32, &Device::Cpu);
        let layer = linear_of_scheme(2, 2, false, scheme, vb.pp("up")).unwrap();
        assert_eq!(layer.weight().unwrap().dequantize(), [-0.5, 1.0, 2.0, 6.0], "{shape:?}");
    }
}

#[test]
fn nvfp4_of_both_makers_is_scaled_once() {
    let packed = tensor(vec![0x2fu8; 8], &[1, 8]);
    let scale = tensor(vec![2f32], &[1, 1]).to_dtype(DType::F8E4M3).unwrap();
    let factor = |x: f32| tensor(vec![x], &[1]);
    for (kind, name, of_all, x) in [
        (Nvfp4::CompressedTensors, "weight_packed", "weight_global_scale", 4.0),
        (Nvfp4::ModelOpt, "weight", "weight_scale_2", 0.25),
    ] {
        let vb = builder(&[(name, packed.clone()), ("weight_scale", scale.clone()), (of_all, factor(x))]);
        let layer = linear_of_scheme(16, 1, false, Scheme::Nvfp4(kind), vb).unwrap();
        // The first code is in the low bits: -6, then 1.
        assert_eq!(layer.weight().unwrap().dequantize()[..4], [-3.0, 0.5, -3.0, 0.5], "{kind:?}");
    }
}

#[test]
fn blocks_may_be_cut_short_on_both_sides() {
    for (n, k) in [(1usize, 1usize), (129, 64), (64, 300), (128, 128), (257, 129)] {
        let dims = [n.div_ceil(128), k.div_ceil(128)];
        let scales: Vec<f32> = (0..dims[0] * dims[1]).map(|i| 1.0 + i as f32).collect();
        let weight = Tensor::ones((n, k), DType::F32, &Device::Cpu).unwrap().to_dtype(DType::F8E4M3).unwrap();
        let vb = builder(&[("weight", weight), ("weight_scale_inv", tensor(scales.clone(), &dims))]);
        let layer = linear_fp8(k, n, vb).unwrap();
        let expected: Vec<f32> = (0..n * k).map(|at| scales[at / k / 128 * dims[1] + at % k / 128]).collect();
        assert_same(&layer.weight().unwrap().dequantize(), &expected, &format!("{n} x {k}"));
        assert_same(&by_layout(layer.weight().unwrap()), &expected, &format!("{n} x {k} by the layout"));
    }
}
