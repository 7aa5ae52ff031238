//! The tiny gpt-oss of tests/data/gpt_oss, and its logits by plain loops in f32, as the model is published.

use candle::safetensors::BufferedSafetensors;
use candle::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::nn::narrow::Checkpoint;
use serde_json::Value;
use std::collections::HashMap;

/// The most that bf16 may change of the logits, over the largest: twice what it does on the CPU, and a third more for products that round numbers between
/// the experts' products, too.
pub const BF16: f32 = 0.08;

pub fn path(name: &str) -> String {
    format!("{}/../tests/data/gpt_oss/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// config.json.
pub fn text() -> String {
    std::fs::read_to_string(path("config.json")).unwrap()
}

/// config.json with other values of some fields.
pub fn text_with(changes: &[(&str, Value)]) -> String {
    let mut config: Value = serde_json::from_str(&text()).unwrap();
    for (pointer, value) in changes {
        *config.pointer_mut(pointer).unwrap() = value.clone();
    }
    config.to_string()
}

pub fn builder(dtype: DType, device: &Device) -> Result<VarBuilder<'static>> {
    let file = BufferedSafetensors::new(std::fs::read(path("model.safetensors"))?)?;
    Ok(Checkpoint::from(file).var_builder(dtype, device))
}

/// A text, and transformers' logits behind each of its tokens, (positions, vocabulary).
pub fn expected() -> Result<(Vec<u32>, Tensor)> {
    let tensors = candle::safetensors::load(path("expected.safetensors"), &Device::Cpu)?;
    Ok((tensors["tokens"].to_vec1()?, tensors["logits"].clone()))
}

/// The model of a config.json with the weights of the checkpoint.
pub struct Plain {
    config: Value,
    tensors: HashMap<String, Tensor>,
}

type Rows = Vec<Vec<f32>>;

impl Plain {
    pub fn new(text: &str) -> Result<Self> {
        let tensors = candle::safetensors::load(path("model.safetensors"), &Device::Cpu)?;
        Ok(Self { config: serde_json::from_str(text).unwrap(), tensors })
    }

    fn number(&self, pointer: &str) -> f64 {
        self.config.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer}"))
    }

    fn size(&self, name: &str) -> usize {
        self.number(&format!("/{name}")) as usize
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        self.tensors[name].to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    /// The logits behind each token.
    pub fn logits(&self, tokens: &[u32]) -> Rows {
        let (hidden, table) = (self.size("hidden_size"), self.numbers("model.embed_tokens.weight"));
        let mut x: Rows = tokens.iter().map(|token| table[*token as usize * hidden..][..hidden].to_vec()).collect();
        for layer in 0..self.size("num_hidden_layers") {
            let at = format!("model.layers.{layer}");
            let normed = self.norm(&x, &format!("{at}.input_layernorm"));
            add(&mut x, &self.attention(&normed, layer));
            let normed = self.norm(&x, &format!("{at}.post_attention_layernorm"));
            add(&mut x, &normed.iter().map(|x| self.experts(x, &format!("{at}.mlp"))).collect());
        }
        let head = self.numbers("lm_head.weight");
        self.norm(&x, "model.norm").iter().map(|x| product(&head, x)).collect()
    }

    fn norm(&self, rows: &Rows, name: &str) -> Rows {
        let (weight, eps) = (self.numbers(&format!("{name}.weight")), self.number("/rms_norm_eps") as f32);
        let of = |x: &Vec<f32>| {
            let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
            x.iter().zip(&weight).map(|(x, w)| x / (mean + eps).sqrt() * w).collect()
        };
        rows.iter().map(of).collect()
    }

    fn linear(&self, x: &[f32], name: &str) -> Vec<f32> {
        let y = product(&self.numbers(&format!("{name}.weight")), x);
        y.iter().zip(self.numbers(&format!("{name}.bias"))).map(|(y, bias)| y + bias).collect()
    }

    fn attention(&self, rows: &Rows, layer: usize) -> Rows {
        let at = format!("model.layers.{layer}.self_attn");
        let (head, heads, kv_heads) =
            (self.size("head_dim"), self.size("num_attention_heads"), self.size("num_key_value_heads"));
        let is_sliding = self.config["layer_types"][layer] == "sliding_attention";
        let window = if is_sliding { self.size("sliding_window") } else { usize::MAX };
        let of = |name: &str| -> Rows { rows.iter().map(|x| self.linear(x, &format!("{at}.{name}_proj"))).collect() };
        let (mut q, mut k, v) = (of("q"), of("k"), of("v"));
        for rows in [&mut q, &mut k] {
            for (position, row) in rows.iter_mut().enumerate() {
                row.chunks_mut(head).for_each(|x| self.turn(x, position));
            }
        }
        let sinks = self.numbers(&format!("{at}.sinks"));
        let mut out = vec![vec![]; rows.len()];
        for (position, out) in out.iter_mut().enumerate() {
            for h in 0..heads {
                let part = |row: &[f32]| row[h / (heads / kv_heads) * head..][..head].to_vec();
                let seen: Vec<usize> = (0..=position).filter(|key| position - key < window).collect();
                let score = |key: &usize| {
                    let k = part(&k[*key]);
                    q[position][h * head..][..head].iter().zip(k).map(|(q, k)| q * k).sum::<f32>()
                        / (head as f32).sqrt()
                };
                let scores: Vec<f32> = seen.iter().map(score).collect();
                let top = scores.iter().copied().fold(sinks[h], f32::max);
                let sum: f32 = scores.iter().map(|x| (x - top).exp()).sum::<f32>() + (sinks[h] - top).exp();
                let mut of_head = vec![0f32; head];
                for (key, score) in seen.iter().zip(&scores) {
                    let weight = (score - top).exp() / sum;
                    of_head.iter_mut().zip(part(&v[*key])).for_each(|(out, v)| *out += weight * v);
                }
                out.extend(of_head);
            }
        }
        out.iter().map(|x| self.linear(x, &format!("{at}.o_proj"))).collect()
    }

    /// The rotation of a head by YaRN.
    fn turn(&self, x: &mut [f32], position: usize) {
        let scaling = |name: &str| self.number(&format!("/rope_scaling/{name}"));
        let (base, factor, head) = (self.number("/rope_theta"), scaling("factor"), x.len() as f64);
        let pair = |beta: f64| {
            let turns = scaling("original_max_position_embeddings") / (beta * std::f64::consts::TAU);
            head * turns.ln() / (2.0 * base.ln())
        };
        let (low, high) = (pair(scaling("beta_fast")).max(0.0), pair(scaling("beta_slow")).min(head - 1.0));
        let mscale = 0.1 * factor.ln() + 1.0;
        let half = x.len() / 2;
        for i in 0..half {
            let slow = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let frequency = base.powf(-2.0 * i as f64 / head) * (slow / factor + 1.0 - slow);
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (sin, cos) = ((mscale * sin) as f32, (mscale * cos) as f32);
            (x[i], x[i + half]) = (x[i] * cos - x[i + half] * sin, x[i + half] * cos + x[i] * sin);
        }
    }

    fn experts(&self, x: &[f32], at: &str) -> Vec<f32> {
        let logits = self.linear(x, &format!("{at}.router"));
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|i, j| logits[*j].total_cmp(&logits[*i]));
        order.truncate(self.size("num_experts_per_tok"));
        let sum: f32 = order.iter().map(|expert| (logits[*expert] - logits[order[0]]).exp()).sum();
        let mut out = vec![0f32; x.len()];
        for expert in order.iter().copied() {
            let share = (logits[expert] - logits[order[0]]).exp() / sum;
            let both = self.of_expert(x, &format!("{at}.experts.gate_up_proj"), expert);
            let gate = |pair: &[f32]| {
                let limit = self.number("/swiglu_limit") as f32;
                let (gate, up) = (pair[0].min(limit), pair[1].clamp(-limit, limit));
                (up + 1.0) * gate / (1.0 + (-1.702 * gate).exp())
            };
            let gated: Vec<f32> = both.chunks(2).map(gate).collect();
            let y = self.of_expert(&gated, &format!("{at}.experts.down_proj"), expert);
            out.iter_mut().zip(y).for_each(|(out, y)| *out += share * y);
        }
        out
    }

    /// A product with an expert's weights in MXFP4, and the bias.
    fn of_expert(&self, x: &[f32], name: &str, expert: usize) -> Vec<f32> {
        const NUMBERS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let bytes = |kind: &str| {
            let tensor = self.tensors[&format!("{name}_{kind}")].get(expert).unwrap();
            tensor.flatten_all().unwrap().to_vec1::<u8>().unwrap()
        };
        let (blocks, scales) = (bytes("blocks"), bytes("scales"));
        let number = |at: usize| {
            let code = blocks[at / 2] >> (4 * (at % 2)) & 15;
            let size = NUMBERS[usize::from(code & 7)] * 2f32.powi(i32::from(scales[at / 32]) - 127);
            if code & 8 == 0 {
                size
            } else {
                -size
            }
        };
        let weight: Vec<f32> = (0..2 * blocks.len()).map(number).collect();
        let bias = self.tensors[&format!("{name}_bias")].get(expert).unwrap().to_dtype(DType::F32).unwrap();
        product(&weight, x).iter().zip(bias.to_vec1::<f32>().unwrap()).map(|(y, bias)| y + bias).collect()
    }
}

/// Each row of a matrix times x.
fn product(weight: &[f32], x: &[f32]) -> Vec<f32> {
    weight.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

fn add(x: &mut Rows, y: &Rows) {
    x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
}
