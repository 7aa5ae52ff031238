//! The checkpoints that the formats' own libraries wrote, bit by bit.

use super::{assert_same, by_layout, checkpoint, values};
use candle::DType;
use candle_tilegemm::nn::narrow::{linear_quantized_parts, Activations, Codes, QuantWeight, ScaleFormat};

/// The weights of a module, compared with those that the file expects.
fn weight(file: &str, path: &str, parts: &[usize]) -> QuantWeight {
    let (config, vb) = checkpoint(file);
    let expected = vb.pp(path).get_unchecked_dtype("expected", DType::F32).unwrap();
    let (n, k) = expected.dims2().unwrap();
    let parts = if parts.is_empty() { vec![n] } else { parts.to_vec() };
    let layer = linear_quantized_parts(k, &parts, false, &config, vb.pp(path)).unwrap();
    let weight = layer.weight().expect("narrow weights").clone();
    assert_eq!(weight.shape(), [n, k]);
    let what = format!("{file}, {path}");
    assert_same(&weight.dequantize(), &values(&expected), &what);
    assert_same(&by_layout(&weight), &values(&expected), &format!("{what}, by the layout"));
    weight
}

/// Codes, the format of factors, and whether there are zero points and an order of columns.
fn form(weight: &QuantWeight) -> (Codes, ScaleFormat, bool, bool) {
    (weight.codes(), weight.scales().format(), weight.zeros().is_some(), weight.gather().is_some())
}

#[test]
fn gptq_of_all_widths() {
    for bits in [2, 3, 4, 8] {
        let of = |path: &str| form(&weight(&format!("gptq-{bits}"), path, &[]));
        let [narrow, with_zeros] = if bits == 8 { [Codes::I8, Codes::U8] } else { [Codes::U4; 2] };
        assert_eq!(of("symmetric"), (narrow, ScaleFormat::F16, false, false), "{bits} bits");
        assert_eq!(of("zeros"), (with_zeros, ScaleFormat::F16, true, false), "{bits} bits");
        assert_eq!(of("reordered"), (with_zeros, ScaleFormat::F16, true, true), "{bits} bits");
    }
}

/// Zero points of 0 are as they are in version 2, and borrow from their neighbours in gptqmodel's version 1.
#[test]
fn gptq_of_both_versions_has_zero_points_of_0() {
    for file in ["gptq-v2", "gptq-borrowed"] {
        let weight = weight(file, "up", &[]);
        assert!(weight.zeros().is_some_and(|zeros| zeros.contains(&0)), "{file}");
    }
}

#[test]
fn awq_gemm() {
    assert_eq!(form(&weight("awq", "up", &[])), (Codes::U4, ScaleFormat::F16, true, false));
}

/// Factors in bf16 are in f16 where it has them, too.
#[test]
fn compressed_tensors_of_integers() {
    for (path, expected) in [
        ("up", (Codes::U4, ScaleFormat::F16, false, false)),
        ("down", (Codes::U4, ScaleFormat::F16, true, false)),
        ("channel", (Codes::U4, ScaleFormat::F32, true, false)),
        ("wide", (Codes::I8, ScaleFormat::F16, false, false)),
        ("wide_zeros", (Codes::U8, ScaleFormat::F32, true, false)),
        ("whole", (Codes::U4, ScaleFormat::F32, true, false)),
        ("reordered", (Codes::U4, ScaleFormat::F16, false, true)),
    ] {
        assert_eq!(form(&weight("pack-quantized", path, &[])), expected, "{path}");
    }
    for (path, expected) in [
        ("up", (Codes::I8, ScaleFormat::F32, false, false)),
        ("down", (Codes::U8, ScaleFormat::F16, true, false)),
        ("whole", (Codes::I8, ScaleFormat::F32, false, false)),
    ] {
        assert_eq!(form(&weight("int-quantized", path, &[])), expected, "{path}");
    }
}

#[test]
fn floats_of_8_bits() {
    for (file, path, shared, format) in [
        ("fp8", "short", [128, 128], ScaleFormat::BF16),
        ("fp8", "powers", [128, 128], ScaleFormat::BF16),
        ("fp8-blocks", "up", [32, 64], ScaleFormat::F32),
        ("float-quantized", "channel", [1, 50], ScaleFormat::F32),
        ("float-quantized", "whole", [24, 50], ScaleFormat::F32),
        ("float-quantized", "block", [16, 32], ScaleFormat::F32),
        ("naive-quantized", "group", [1, 32], ScaleFormat::F32),
        ("mxfp8-quantized", "up", [1, 32], ScaleFormat::E8M0),
        ("modelopt-fp8", "up", [24, 40], ScaleFormat::F32),
    ] {
        let weight = weight(file, path, &[]);
        assert_eq!((weight.codes(), weight.zeros()), (Codes::F8E4M3, None));
        assert_eq!((weight.scales().shared(), weight.scales().format()), (shared, format), "{file}, {path}");
    }
}

#[test]
fn merged_parts_have_a_factor_each() {
    let weight = weight("fp8", "qkv", &[16, 8, 8]);
    assert_eq!(weight.scales().shared(), [1, 24]);
    let (config, vb) = checkpoint("fp8");
    let error = linear_quantized_parts(24, &[32], false, &config, vb.pp("qkv")).unwrap_err().to_string();
    assert!(error.contains("qkv.weight_scale: the shape is [3]"), "{error}");
}

#[test]
fn floats_of_4_bits() {
    for (file, format) in [
        ("nvfp4-pack-quantized", ScaleFormat::E4M3),
        ("modelopt-nvfp4", ScaleFormat::E4M3),
        ("mxfp4-pack-quantized", ScaleFormat::E8M0),
    ] {
        assert_eq!(form(&weight(file, "up", &[])), (Codes::E2M1, format, false, false), "{file}");
    }
}

#[test]
fn layers_know_what_configs_say_of_activations() {
    for (file, path, expected) in [
        ("fp8", "short", Activations::Dynamic),
        ("float-quantized", "whole", Activations::Static),
        ("int-quantized", "up", Activations::Dynamic),
        ("naive-quantized", "group", Activations::Wide),
        ("gptq-4", "symmetric", Activations::Wide),
    ] {
        let (config, _) = checkpoint(file);
        assert_eq!(config.scheme(path).activations(), expected, "{file}, {path}");
    }
}
