//! A checkpoint with narrow weights that lies nowhere, as compressed-tensors or gpt-oss writes it: random codes, and factors that give weights the deviation of `Pool`'s.

use super::super::weights::{deviation, seed, words};
use super::pool::Pool;
use super::size::{Narrow, Size, GROUP};
use candle::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::{var_builder::SimpleBackend, Init};

/// Codes before they repeat. A prime: rows of a matrix start at other codes, whatever their length is.
const CODES: usize = 65_521;
/// The deviation of codes: of fp8 with magnitudes of 0.25 to 3.75, each code as often, of integers of 4 bits, and of MXFP4.
const OF_FP8: f32 = 1.69;
const OF_4_BITS: f32 = 4.6;
const OF_MXFP4: f32 = 2.93;
/// Codes of MXFP4 that share a power of two, in so many bytes.
const MX_GROUP: usize = 32;
const MX_BYTES: usize = 16;
/// Codes of 4 bits in a word.
const IN_WORD: usize = 8;

pub struct Checkpoint {
    /// The tensors that are not narrow.
    pool: Pool,
    size: Size,
    format: Narrow,
    fp8: Vec<u8>,
    words: Vec<i32>,
    /// Pairs of codes of 4 bits.
    pairs: Vec<u8>,
}

impl Checkpoint {
    pub fn new(size: &Size, format: Narrow, pool: Pool) -> Self {
        let fp8 = words(2).map(|word| (word & 0x80) as u8 | (0x28 + (word & 0x1f) as u8)).take(CODES).collect();
        let pairs = words(4).map(|word| word as u8).take(CODES).collect();
        let words = words(3).map(|word| word as i32).take(CODES).collect();
        Self { pool, size: size.clone(), format, fp8, words, pairs }
    }

    /// Rows and columns of a narrow module. Those of gpt-oss are no matrices.
    fn shape(&self, module: &str) -> Option<[usize; 2]> {
        if self.size.is_gpt_oss() {
            return None;
        }
        let (path, name) = module.rsplit_once('.')?;
        let name = match name {
            "q_proj" => "attn_q",
            "k_proj" => "attn_k",
            "v_proj" => "attn_v",
            "o_proj" => "attn_output",
            "gate_proj" => "ffn_gate",
            "up_proj" => "ffn_up",
            "down_proj" => "ffn_down",
            _ => return None,
        };
        let matrices = path.starts_with("model.layers.").then(|| self.size.matrices(0))?;
        matrices.iter().find(|matrix| matrix.name == name).map(|matrix| [matrix.rows, matrix.columns])
    }
}

impl Checkpoint {
    /// The shape of a tensor that gpt-oss has beside its matrices in 16 bits: sinks, and experts, whose gates and ups are one matrix.
    fn shape_of_gpt_oss(&self, module: &str, tensor: &str) -> Option<Vec<usize>> {
        let Size { heads, hidden, inner, experts, .. } = self.size;
        if module.ends_with(".self_attn") && tensor == "sinks" {
            return Some(vec![heads]);
        }
        let (matrix, part) = tensor.rsplit_once('_').filter(|_| module.ends_with(".mlp.experts"))?;
        let (n, k) = match matrix {
            "gate_up_proj" => (2 * inner, hidden),
            "down_proj" => (hidden, inner),
            _ => return None,
        };
        let (count, groups) = (experts?.count, k / MX_GROUP);
        match part {
            "blocks" => Some(vec![count, n, groups, MX_BYTES]),
            "scales" => Some(vec![count, n, groups]),
            "bias" => Some(vec![count, n]),
            _ => None,
        }
    }

    /// The shape of a tensor of a narrow module, or beside the matrices of gpt-oss.
    fn shape_of(&self, name: &str) -> Option<Vec<usize>> {
        let (module, tensor) = name.rsplit_once('.')?;
        if self.size.is_gpt_oss() {
            return self.shape_of_gpt_oss(module, tensor);
        }
        let [n, k] = self.shape(module)?;
        Some(match (self.format, tensor) {
            (Narrow::Fp8 { .. }, "weight") => vec![n, k],
            (Narrow::Fp8 { .. }, "weight_scale") => vec![n, 1],
            (Narrow::Int4, "weight_packed") => vec![n, k.div_ceil(IN_WORD)],
            (Narrow::Int4, "weight_scale") => vec![n, k.div_ceil(GROUP)],
            _ => return None,
        })
    }

    /// A tensor, or a rank's part of it, in this shape; none of one that is not narrow.
    fn narrow(&self, shape: &[usize], name: &str, dtype: DType, device: &Device) -> Result<Option<Tensor>> {
        let Some(tensor) = self.shape_of(name).and_then(|_| name.rsplit_once('.')).map(|(_, tensor)| tensor) else {
            return Ok(None);
        };
        let (seed, count) = (seed(name), shape.iter().product());
        // Of the whole matrix: the sums of ranks are added up.
        let of_row = |columns: usize| deviation(&Shape::from((1, columns)));
        let columns = || name.rsplit_once('.').and_then(|(module, _)| self.shape(module)).map_or(1, |[_, k]| k);
        match (self.format, tensor) {
            (Narrow::Fp8 { .. }, "weight") => {
                Tensor::from_raw_buffer(&repeated(&self.fp8, seed, count), DType::F8E4M3, shape, device)
            }
            (Narrow::Fp8 { .. }, "weight_scale") => {
                Tensor::full(of_row(columns()) / OF_FP8, shape, device)?.to_dtype(dtype)
            }
            (Narrow::Int4, "weight_packed") => Tensor::from_vec(repeated(&self.words, seed, count), shape, device),
            (Narrow::Int4, "weight_scale") => {
                Tensor::full(of_row(columns()) / OF_4_BITS, shape, device)?.to_dtype(dtype)
            }
            (_, blocks) if blocks.ends_with("_blocks") => {
                Tensor::from_vec(repeated(&self.pairs, seed, count), shape, device)
            }
            (_, scales) if scales.ends_with("_scales") => {
                let Size { hidden, inner, .. } = self.size;
                let columns = if scales.starts_with("down") { inner } else { hidden };
                // The nearest power of two.
                let power = (of_row(columns) / OF_MXFP4).log2().round();
                Tensor::full((127.0 + power) as u8, shape, device)
            }
            _ => self.pool.get(shape.into(), name, Init::Const(0.0), dtype, device),
        }
        .map(Some)
    }
}

/// So many of a list's items, from a place that the seed says, in turns.
fn repeated<T: Copy>(of: &[T], seed: u64, count: usize) -> Vec<T> {
    let from = seed as usize % of.len();
    let mut all = Vec::with_capacity(count + of.len());
    all.extend_from_slice(&of[from..]);
    while all.len() < count {
        all.extend_from_slice(of);
    }
    all.truncate(count);
    all
}

impl SimpleBackend for Checkpoint {
    fn get(&self, shape: Shape, name: &str, hint: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        match self.narrow(shape.dims(), name, dtype, device)? {
            Some(tensor) => Ok(tensor),
            None => self.pool.get(shape, name, hint, dtype, device),
        }
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let tensor = self.shape_of(name).map(|shape| self.narrow(&shape, name, dtype, device)).transpose()?.flatten();
        tensor.ok_or_else(|| Error::msg(format!("{name}: there is no such tensor")))
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let Some((module, tensor)) = name.rsplit_once('.') else { return false };
        match (self.shape(module), self.format) {
            (None, _) => tensor == "weight",
            (Some(_), Narrow::Fp8 { .. }) => matches!(tensor, "weight" | "weight_scale"),
            (Some(_), Narrow::Int4) => matches!(tensor, "weight_packed" | "weight_scale"),
            (Some(_), Narrow::Mxfp4) => false,
        }
    }
}
