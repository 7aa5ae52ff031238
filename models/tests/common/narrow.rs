//! Checkpoints with random narrow weights, as the formats store them, and the numbers that these weights stand for.

use super::steps::config;
use super::weights;
use candle::safetensors::BufferedSafetensors;
use candle::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::nn::narrow::{Checkpoint, Codes, Granularity, QuantWeight, Quantizer, ScaleFormat};
use candle_tilegemm::nn::parallel::Group;
use candle_tilegemm_models::Config;
use std::collections::HashMap;

/// A format, and how its weights are rounded here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stored {
    Fp8Blocks,
    Fp8Tensor,
    Gptq { act_order: bool },
    Awq,
    Packed,
    Int8,
    Mxfp4,
}

pub const ALL: [Stored; 8] = [
    Stored::Fp8Blocks,
    Stored::Fp8Tensor,
    Stored::Gptq { act_order: false },
    Stored::Gptq { act_order: true },
    Stored::Awq,
    Stored::Packed,
    Stored::Int8,
    Stored::Mxfp4,
];

/// Numbers of a row with a factor.
const GROUP: usize = 32;

impl Stored {
    fn quantizer(self) -> Quantizer {
        match self {
            Self::Fp8Blocks => Quantizer::Fp8(Granularity::Block([32, 64])),
            Self::Fp8Tensor => Quantizer::Fp8(Granularity::Tensor),
            Self::Gptq { .. } | Self::Awq => Quantizer::Int4 { group: Some(GROUP), zeros: true },
            Self::Packed => Quantizer::Int4 { group: Some(GROUP), zeros: false },
            Self::Int8 => Quantizer::Int8 { group: None },
            Self::Mxfp4 => Quantizer::Mxfp4,
        }
    }

    /// `quantization_config`
    fn config(self) -> String {
        let compressed = |format: &str, weights: &str| {
            format!(
                r#"{{"quant_method": "compressed-tensors", "format": "{format}", "ignore": ["lm_head", "re:.*mlp.gate$"],
                "config_groups": {{"group_0": {{"targets": ["Linear"], "weights": {{{weights}, "dynamic": false}}}}}}}}"#
            )
        };
        match self {
            Self::Fp8Blocks => {
                r#"{"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 64],
                "modules_to_not_convert": ["lm_head"]}"#
                    .into()
            }
            Self::Fp8Tensor => r#"{"quant_method": "fp8", "activation_scheme": "dynamic"}"#.into(),
            Self::Gptq { act_order } => format!(
                r#"{{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": {act_order}, "sym": false,
                "checkpoint_format": "gptq_v2"}}"#
            ),
            Self::Awq => {
                r#"{"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm"}"#.into()
            }
            Self::Packed => compressed(
                "pack-quantized",
                r#""num_bits": 4, "type": "int", "symmetric": true, "group_size": 32, "strategy": "group""#,
            ),
            Self::Int8 => compressed(
                "int-quantized",
                r#""num_bits": 8, "type": "int", "symmetric": true, "group_size": null, "strategy": "channel""#,
            ),
            Self::Mxfp4 => compressed(
                "mxfp4-pack-quantized",
                r#""num_bits": 4, "type": "float", "symmetric": true, "group_size": 32, "strategy": "group", "scale_dtype": "torch.uint8""#,
            ),
        }
    }

    /// The tensors of a weight below its module's path, and the numbers that it stands for.
    fn store(self, weight: &Tensor) -> Result<(Vec<Entry>, Tensor)> {
        let (n, k) = weight.dims2()?;
        // Column j of the codes is column order[j] of the weights.
        let order: Vec<u32> = match self {
            Self::Gptq { act_order: true } => (0..k).map(|j| ((j * 7 + 3) % k) as u32).collect(),
            _ => (0..k as u32).collect(),
        };
        let sorted = weight.index_select(&Tensor::new(&order[..], &Device::Cpu)?, 1)?;
        let narrow = QuantWeight::quantize(&sorted, self.quantizer())?;
        let codes = natural(&narrow);
        let (scales, groups) = (narrow.scales(), k.div_ceil(GROUP));
        let mut numbers = vec![0f32; n * k];
        for (i, x) in narrow.dequantize().into_iter().enumerate() {
            numbers[i / k * k + order[i % k] as usize] = x;
        }
        let numbers = Tensor::from_vec(numbers, (n, k), &Device::Cpu)?;
        let code = |row: usize, column: usize| u32::from(codes[row * k + column]);
        let index = |row: usize, column: usize| {
            let ([rows, columns], [by_row, by_column]) = (scales.shared(), scales.strides());
            row / rows * by_row + column / columns * by_column
        };
        let scale = |row: usize, column: usize| scales.value(index(row, column));
        let zero = |row: usize, group: usize| u32::from(narrow.zeros().unwrap()[index(row, group * GROUP)]);
        let f16 = |x: f32| half::f16::from_f32(x).to_le_bytes();
        let groups_by_rows = || (0..groups * n).flat_map(|i| f16(scale(i % n, i / n * GROUP))).collect::<Vec<u8>>();
        let words = |count: usize, code: &dyn Fn(usize, usize) -> u32| -> Vec<u8> {
            let word = |i: usize| (0..8).fold(0u32, |word, nibble| word | code(i, nibble) << (4 * nibble));
            (0..count).flat_map(|i| word(i).to_le_bytes()).collect()
        };
        let tensors = match self {
            Self::Fp8Blocks => {
                let blocks = [n.div_ceil(32), k.div_ceil(64)];
                let factors = (0..blocks[0] * blocks[1])
                    .flat_map(|i| scale(i / blocks[1] * 32, i % blocks[1] * 64).to_le_bytes());
                vec![
                    entry("weight", "F8_E4M3", &[n, k], codes.clone()),
                    entry("weight_scale_inv", "F32", &blocks, factors.collect()),
                ]
            }
            Self::Fp8Tensor => vec![
                entry("weight", "F8_E4M3", &[n, k], codes.clone()),
                entry("weight_scale", "F32", &[], scale(0, 0).to_le_bytes().to_vec()),
            ],
            Self::Gptq { act_order } => {
                // Row k of the words has eight rows of the weights; those of the file are in the weights' order.
                let mut place = vec![0; k];
                order.iter().enumerate().for_each(|(j, column)| place[*column as usize] = j);
                let group_of = place.iter().flat_map(|j| (*j as i32 / GROUP as i32).to_le_bytes()).collect();
                let mut tensors = vec![
                    entry(
                        "qweight",
                        "I32",
                        &[k / 8, n],
                        words(k / 8 * n, &|i, nibble| code(i % n, place[i / n * 8 + nibble])),
                    ),
                    entry(
                        "qzeros",
                        "I32",
                        &[groups, n / 8],
                        words(groups * n / 8, &|i, nibble| zero(i % (n / 8) * 8 + nibble, i / (n / 8))),
                    ),
                    entry("scales", "F16", &[groups, n], groups_by_rows()),
                ];
                if act_order {
                    tensors.push(entry("g_idx", "I32", &[k], group_of));
                }
                tensors
            }
            Self::Awq => {
                const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
                vec![
                    entry(
                        "qweight",
                        "I32",
                        &[k, n / 8],
                        words(k * n / 8, &|i, nibble| code(i % (n / 8) * 8 + ORDER[nibble], i / (n / 8))),
                    ),
                    entry(
                        "qzeros",
                        "I32",
                        &[groups, n / 8],
                        words(groups * n / 8, &|i, nibble| zero(i % (n / 8) * 8 + ORDER[nibble], i / (n / 8))),
                    ),
                    entry("scales", "F16", &[groups, n], groups_by_rows()),
                ]
            }
            Self::Packed => {
                let factors = (0..n * groups).flat_map(|i| f16(scale(i / groups, i % groups * GROUP))).collect();
                vec![
                    entry(
                        "weight_packed",
                        "I32",
                        &[n, k / 8],
                        words(n * k / 8, &|i, nibble| code(i / (k / 8), i % (k / 8) * 8 + nibble)),
                    ),
                    entry("weight_scale", "F16", &[n, groups], factors),
                    entry(
                        "weight_shape",
                        "I64",
                        &[2],
                        [n as i64, k as i64].into_iter().flat_map(i64::to_le_bytes).collect(),
                    ),
                ]
            }
            Self::Int8 => {
                let factors = (0..n).flat_map(|row| scale(row, 0).to_le_bytes()).collect();
                vec![entry("weight", "I8", &[n, k], codes.clone()), entry("weight_scale", "F32", &[n, 1], factors)]
            }
            Self::Mxfp4 => {
                assert_eq!(scales.format(), ScaleFormat::E8M0);
                let pairs = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
                let factors = (0..n * groups).map(|i| scales.bytes()[index(i / groups, i % groups * GROUP)]).collect();
                vec![
                    entry("weight_packed", "U8", &[n, k / 2], pairs),
                    entry("weight_scale", "U8", &[n, groups], factors),
                ]
            }
        };
        Ok((tensors, numbers))
    }
}

/// The codes of all rows, one a byte, by the description of the layout in docs/formats.md.
fn natural(weight: &QuantWeight) -> Vec<u8> {
    let ([n, k], bytes) = (weight.shape(), weight.row_bytes());
    let of = |row: usize, column: usize| {
        let row = &weight.bytes()[row * bytes..];
        if matches!(weight.codes(), Codes::F8E4M3 | Codes::I8 | Codes::U8) {
            return row[column];
        }
        let (span, place) = (column / 32, column % 32);
        let (word, nibble) = (place % 8 / 2, place / 8 + place % 2 * 4);
        row[span * 16 + word * 4 + nibble / 2] >> (nibble % 2 * 4) & 15
    };
    (0..n * k).map(|i| of(i / k, i % k)).collect()
}

/// A tensor of a file: name, type, shape, bytes.
type Entry = (String, &'static str, Vec<usize>, Vec<u8>);

fn entry(name: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) -> Entry {
    (name.into(), dtype, shape.to_vec(), bytes)
}

/// A safetensors file of tensors in f32.
pub fn file_of(tensors: &HashMap<String, Tensor>) -> Result<Vec<u8>> {
    let entry = |(name, tensor): (&String, &Tensor)| -> Result<Entry> {
        let bytes = tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes).collect();
        Ok((name.clone(), "F32", tensor.dims().to_vec(), bytes))
    };
    Ok(file(&tensors.iter().map(entry).collect::<Result<Vec<_>>>()?))
}

/// A safetensors file.
fn file(tensors: &[Entry]) -> Vec<u8> {
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

/// A checkpoint, and the same model with its numbers in f32.
pub struct Model {
    pub config: Config,
    bytes: Vec<u8>,
    /// Without `quantization_config`.
    pub plain: Config,
    pub numbers: HashMap<String, Tensor>,
}

impl Model {
    /// Random weights of a family; `more` as for [`config`].
    pub fn new(family: &str, more: &str, stored: Stored, seed: u64) -> Result<Self> {
        let plain = config(family, more)?;
        let config = config(family, &format!(r#"{more}, "quantization_config": {}"#, stored.config()))?;
        let (mut tensors, mut numbers) = (vec![], HashMap::new());
        for (name, weight) in weights(&plain, seed)? {
            if let Some(path) = name.strip_suffix("_proj.weight") {
                let (entries, of_weight) = stored.store(&weight)?;
                let under = |(name, dtype, shape, bytes): Entry| (format!("{path}_proj.{name}"), dtype, shape, bytes);
                tensors.extend(entries.into_iter().map(under));
                numbers.insert(name, of_weight);
            } else {
                let bytes = weight.flatten_all()?.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes).collect();
                tensors.push((name.clone(), "F32", weight.dims().to_vec(), bytes));
                numbers.insert(name, weight);
            }
        }
        Ok(Self { config, bytes: file(&tensors), plain, numbers })
    }

    /// The checkpoint's tensors.
    pub fn builder(&self, dtype: DType, device: &Device) -> Result<VarBuilder<'static>> {
        Ok(Checkpoint::from(BufferedSafetensors::new(self.bytes.clone())?).var_builder(dtype, device))
    }

    /// A rank's part of them, in f32.
    pub fn of_rank(&self, group: &Group) -> Result<VarBuilder<'static>> {
        super::ranks::builder(&self.bytes, group)
    }
}
