//! A checkpoint with narrow weights that lies nowhere, as compressed-tensors or gpt-oss writes it: random codes, and factors that give weights the deviation of `Pool`'s.

use super::super::weights::{deviation, seed, words};
use super::pool::Pool;
use super::size::{Narrow, Size, GROUP};
use candle::{bail, DType, Device, Error, Result, Shape, Tensor};
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
    /// What gpt-oss has beside its matrices in 16 bits: sinks, and experts, whose gates and ups are one matrix.
    fn of_gpt_oss(&self, name: &str, dtype: DType, device: &Device) -> Result<Option<Tensor>> {
        let Size { heads, hidden, inner, experts, .. } = self.size;
        let (Some(experts), Some((module, tensor))) = (experts, name.rsplit_once('.')) else { return Ok(None) };
        let random = |shape: Shape| self.pool.get(shape, name, Init::Const(0.0), dtype, device).map(Some);
        if module.ends_with(".self_attn") && tensor == "sinks" {
            return random(heads.into());
        }
        let Some((matrix, part)) = tensor.rsplit_once('_').filter(|_| module.ends_with(".mlp.experts")) else {
            return Ok(None);
        };
        let (n, k) = match matrix {
            "gate_up_proj" => (2 * inner, hidden),
            "down_proj" => (hidden, inner),
            _ => return Ok(None),
        };
        let (count, groups) = (experts.count, k / MX_GROUP);
        match part {
            "blocks" => {
                let bytes = repeated(&self.pairs, seed(name), count * n * groups * MX_BYTES);
                Tensor::from_vec(bytes, (count, n, groups, MX_BYTES), device).map(Some)
            }
            "scales" => {
                // The nearest power of two.
                let power = (deviation(&Shape::from((n, k))) / OF_MXFP4).log2().round();
                Tensor::full((127.0 + power) as u8, (count, n, groups), device).map(Some)
            }
            "bias" => random((count, n).into()),
            _ => Ok(None),
        }
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
        self.pool.get(shape, name, hint, dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        if self.size.is_gpt_oss() {
            let tensor = self.of_gpt_oss(name, dtype, device)?;
            return tensor.ok_or_else(|| Error::msg(format!("{name}: there is no such tensor")));
        }
        let narrow = name.rsplit_once('.').and_then(|(module, tensor)| Some((self.shape(module)?, tensor)));
        let Some(([n, k], tensor)) = narrow else { bail!("{name}: there is no such tensor") };
        let (seed, of_row) = (seed(name), deviation(&Shape::from((n, k))));
        match (self.format, tensor) {
            (Narrow::Fp8 { .. }, "weight") => {
                Tensor::from_raw_buffer(&repeated(&self.fp8, seed, n * k), DType::F8E4M3, &[n, k], device)
            }
            (Narrow::Fp8 { .. }, "weight_scale") => Tensor::full(of_row / OF_FP8, (n, 1), device)?.to_dtype(dtype),
            (Narrow::Int4, "weight_packed") => {
                let width = k.div_ceil(IN_WORD);
                Tensor::from_vec(repeated(&self.words, seed, n * width), (n, width), device)
            }
            (Narrow::Int4, "weight_scale") => {
                Tensor::full(of_row / OF_4_BITS, (n, k.div_ceil(GROUP)), device)?.to_dtype(dtype)
            }
            _ => bail!("{name}: there is no such tensor"),
        }
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
