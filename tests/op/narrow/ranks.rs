//! Parts of matrices, of which each rank of a group reads its own.

use super::{assert_same, checkpoint, file_of, tensor, values};
use candle::{DType, Device, Result};
use candle_nn::VarBuilder;
use candle_tilegemm::nn::moe::Routing;
use candle_tilegemm::nn::narrow::{Checkpoint, QuantExperts, QuantWeight};
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm::nn::{linear_quantized_no_bias, QuantizationConfig};
use std::time::Duration;

/// No part of the columns is read: those of a group lie everywhere.
const NEVER: usize = usize::MAX;

/// The modules of tests/data/narrow, and the rows and columns that a rank has a multiple of: groups and blocks, and those of a word.
const MODULES: [(&str, &str, [usize; 2]); 32] = [
    ("gptq-2", "symmetric", [16, 32]),
    ("gptq-2", "zeros", [16, 32]),
    ("gptq-2", "reordered", [16, NEVER]),
    ("gptq-3", "symmetric", [32, 32]),
    ("gptq-3", "reordered", [32, NEVER]),
    ("gptq-4", "symmetric", [8, 32]),
    ("gptq-4", "zeros", [8, 32]),
    ("gptq-4", "reordered", [8, NEVER]),
    ("gptq-8", "zeros", [4, 32]),
    ("gptq-8", "reordered", [4, NEVER]),
    ("gptq-v2", "up", [8, 32]),
    ("gptq-borrowed", "up", [8, 32]),
    ("awq", "up", [8, 32]),
    ("pack-quantized", "up", [1, 32]),
    ("pack-quantized", "down", [8, 32]),
    ("pack-quantized", "channel", [8, 8]),
    ("pack-quantized", "wide", [1, 32]),
    ("pack-quantized", "wide_zeros", [4, 32]),
    ("pack-quantized", "whole", [1, 8]),
    ("pack-quantized", "reordered", [1, NEVER]),
    ("int-quantized", "up", [1, 1]),
    ("int-quantized", "down", [1, 1]),
    ("int-quantized", "whole", [1, 1]),
    ("fp8", "short", [128, 128]),
    ("fp8", "powers", [1, 128]), // all rows are in one block
    ("fp8-blocks", "up", [32, 64]),
    ("float-quantized", "channel", [1, 1]),
    ("float-quantized", "whole", [1, 1]),
    ("float-quantized", "block", [16, 32]),
    ("naive-quantized", "group", [1, 32]),
    ("modelopt-fp8", "up", [1, 1]),
    ("mxfp8-quantized", "up", [1, 32]),
];
const PAIRS: [(&str, &str, [usize; 2]); 3] = [
    ("nvfp4-pack-quantized", "up", [1, 16]),
    ("modelopt-nvfp4", "up", [1, 16]),
    ("mxfp4-pack-quantized", "up", [1, 32]),
];

fn ranks(count: usize) -> Vec<Group> {
    Group::threads(count, Duration::from_secs(1)).unwrap()
}

fn weight(config: &QuantizationConfig, vb: VarBuilder, [n, k]: [usize; 2]) -> Result<QuantWeight> {
    Ok(linear_quantized_no_bias(k, n, config, vb)?.weight().expect("narrow weights").clone())
}

/// Rows or columns of a matrix.
fn part(
    numbers: &[f32],
    [n, k]: [usize; 2],
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) -> Vec<f32> {
    assert_eq!(numbers.len(), n * k);
    rows.flat_map(|row| numbers[row * k..][columns.clone()].to_vec()).collect()
}

/// A part has the numbers of the whole, or is refused: there are no others.
#[test]
fn parts_are_those_of_the_whole() {
    for (file, path, whole) in MODULES.into_iter().chain(PAIRS) {
        let (config, vb) = checkpoint(file);
        let expected = vb.pp(path).get_unchecked_dtype("expected", DType::F32).unwrap();
        let (n, k) = expected.dims2().unwrap();
        let expected = values(&expected);
        for (count, dimension) in (2..=20).flat_map(|count| [(count, 0), (count, 1)]) {
            let mut shape = [n, k];
            if !shape[dimension].is_multiple_of(count) {
                continue;
            }
            shape[dimension] /= count;
            let is_read = shape[dimension].is_multiple_of(whole[dimension]);
            let cuts = config.cuts([n, k], shape, &vb.pp(path)).unwrap();
            assert_eq!(cuts, !is_read, "{file}, {path}: {shape:?} of {:?}", [n, k]);
            for (rank, group) in ranks(count).iter().enumerate() {
                let what = format!("{file}, {path}: {shape:?} of {:?} on rank {rank} of {count}", [n, k]);
                let vb = Checkpoint::from(file_of(file)).of_rank(group).var_builder(DType::BF16, &Device::Cpu);
                match weight(&config, vb.pp(path), shape) {
                    Ok(weight) => {
                        assert!(is_read, "{what}: it was read");
                        let [rows, columns] = [0, 1].map(|at| match at == dimension {
                            true => rank * shape[at]..(rank + 1) * shape[at],
                            false => 0..shape[at],
                        });
                        assert_same(&weight.dequantize(), &part(&expected, [n, k], rows, columns), &what);
                    }
                    Err(error) => {
                        assert!(!is_read, "{what}: {error}");
                        assert!(error.to_string().contains(path), "{what}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn refusals_say_what_is_cut() {
    let of = |file: &str, path: &str, count: usize, shape: [usize; 2]| {
        let (config, _) = checkpoint(file);
        let vb = Checkpoint::from(file_of(file)).of_rank(&ranks(count)[1]).var_builder(DType::BF16, &Device::Cpu);
        weight(&config, vb.pp(path), shape).unwrap_err().to_string()
    };
    for (file, path, count, shape, expected) in [
        ("gptq-4", "zeros", 4, [32, 16], "zeros: a rank has 16 columns, and 32 columns are one block"),
        ("gptq-4", "zeros", 8, [4, 64], "zeros: a rank has 4 rows, and 8 rows are one block"),
        ("gptq-4", "reordered", 2, [32, 32], "reordered.g_idx: 64 columns are in act order, and a rank has 32 of them"),
        ("pack-quantized", "reordered", 3, [12, 32], "g_idx: 96 columns are in act order, and a rank has 32 of them"),
        ("awq", "up", 8, [4, 96], "up: AWQ packs 8 rows into a word; expected a multiple, not 4 rows"),
        ("fp8", "short", 2, [65, 132], "short: a rank has 65 rows, and 128 rows are one block"),
        ("fp8-blocks", "up", 4, [64, 32], "up: a rank has 32 columns, and 64 columns are one block"),
        ("mxfp4-pack-quantized", "up", 2, [24, 48], "up: a rank has 48 columns, and 32 columns are one block"),
        ("nvfp4-pack-quantized", "up", 4, [24, 24], "up: a rank has 24 columns, and 16 columns are one block"),
    ] {
        let error = of(file, path, count, shape);
        assert!(error.contains(expected), "{error}");
    }
    let vb = Checkpoint::from(file_of("gpt-oss")).of_rank(&ranks(2)[1]).var_builder(DType::F32, &Device::Cpu);
    let error = QuantExperts::gpt_oss([3, 64, 16], vb.pp("experts")).unwrap_err().to_string();
    assert!(error.contains("down_proj_blocks: blocks have 32 columns; expected a multiple, not 16 columns"), "{error}");
}

/// One bias of an expert's result counts.
#[test]
fn experts_without_the_last_bias() {
    let (_, vb) = checkpoint("gpt-oss");
    let experts = QuantExperts::gpt_oss([3, 64, 32], vb.pp("experts")).unwrap();
    let tokens = crate::randn(&[1, 64], DType::F32).unwrap();
    let routing = Routing::new(3, &tensor(vec![2u32], &[1, 1]), &tensor(vec![0.5f32], &[1, 1])).unwrap();
    let of = |experts: &QuantExperts| experts.forward(&tokens, &routing).unwrap();
    let bias = vb.pp("experts").get_unchecked_dtype("down_proj_bias", DType::F32).unwrap().get(2).unwrap();
    let with = (of(&experts.clone().without_down_bias()) + (bias * 0.5).unwrap().unsqueeze(0).unwrap()).unwrap();
    crate::assert_close(&of(&experts), &with, 1e-5, "the bias").unwrap();
}
