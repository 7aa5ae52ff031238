//! The metadata of a GGUF file.

use super::{Config, ExpertForm, Experts, Quantization};
use candle::quantized::gguf_file::{Content, Value};
use candle::{bail, Result};
use candle_nn::Activation;
use candle_tilegemm::gguf::{GgufFile, Tensors};
use candle_tilegemm::nn::attention::{RopeScaling, RopeStyle};
use std::collections::HashMap;

impl Config {
    /// The description in a GGUF file of the architectures llama (mistral, too), qwen2, qwen3 and qwen3moe.
    ///
    /// Layers with a router are those with experts, whose weights add up to 1 unless the file says otherwise. The scaling of llama 3 lies in such a file as a tensor, `rope_freqs.weight`; [`Decoder::from_gguf`](crate::Decoder::from_gguf) reads it.
    ///
    /// # Errors
    /// Missing entries, and what an entry asks and the decoder does not have: the error names the entry.
    pub fn from_gguf(content: &Content) -> Result<Self> {
        Self::from_parts(&content.metadata, &Tensors::from(content))
    }

    /// The same of a file that may have tensors in formats that candle does not have.
    ///
    /// # Errors
    /// As for [`from_gguf`](Self::from_gguf).
    pub fn from_gguf_file(file: &GgufFile) -> Result<Self> {
        Self::from_parts(&file.content.metadata, &file.tensors)
    }

    fn from_parts(metadata: &HashMap<String, Value>, tensors: &Tensors) -> Result<Self> {
        let Some(Value::String(arch)) = metadata.get("general.architecture") else {
            bail!("GGUF: general.architecture is missing");
        };
        let arch = arch.as_str();
        if !["llama", "qwen2", "qwen3", "qwen3moe"].contains(&arch) {
            bail!("GGUF: general.architecture is {arch}; expected llama, qwen2, qwen3 or qwen3moe");
        }
        let entries = Entries { metadata, tensors, arch };
        let has = |name: &str| tensors.shape(name).is_some();
        let (hidden, layers) = (entries.size("embedding_length")?, entries.size("block_count")?);
        let heads = entries.size("attention.head_count")?;
        let head_size = match entries.maybe("attention.key_length")? {
            Some(size) => size as usize,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => bail!("GGUF: {arch}.attention.key_length is missing, and {heads} heads do not divide {hidden}"),
        };
        entries.expect("attention.value_length", head_size)?;
        entries.expect("rope.dimension_count", head_size)?;
        let experts = match arch {
            "qwen3moe" => Some(entries.experts(layers)?),
            _ => entries.expect("expert_count", 0).map(|()| None)?,
        };
        let window = entries.maybe("attention.sliding_window")?.unwrap_or(0.0) as usize;
        let Some(table) = tensors.shape("token_embd.weight") else {
            bail!("GGUF: the tensor token_embd.weight is missing");
        };
        Self {
            hidden,
            layers,
            heads,
            kv_heads: entries.maybe("attention.head_count_kv")?.map_or(heads, |heads| heads as usize),
            head_size,
            feed_forward: match (&experts, entries.maybe("feed_forward_length")?) {
                (_, Some(size)) => size as usize,
                // No layer without experts asks.
                (Some(experts), None) => experts.feed_forward,
                (None, None) => entries.size("feed_forward_length")?,
            },
            activation: Activation::Silu,
            experts,
            eps: entries.number("attention.layer_norm_rms_epsilon")?,
            rope_base: entries.maybe("rope.freq_base")?.unwrap_or(10_000.0),
            rope_scaling: entries.scaling()?,
            rope_style: if arch == "llama" { RopeStyle::Interleaved } else { RopeStyle::Halves },
            windows: vec![window; layers],
            sinks: false,
            qk_norm: has("blk.0.attn_q_norm.weight"),
            qkv_bias: has("blk.0.attn_q.bias"),
            o_bias: has("blk.0.attn_output.bias"),
            tied: !has("output.weight"),
            max_positions: entries.size("context_length")?,
            vocabulary: table.dims().first().copied().unwrap_or(0),
            first_token: entries.token("bos_token_id")?,
            quantization: Quantization::None,
            end_tokens: ["eos_token_id", "eot_token_id"]
                .into_iter()
                .filter_map(|name| entries.token(name).transpose())
                .collect::<Result<_>>()?,
        }
        .checked()
    }
}

struct Entries<'a> {
    metadata: &'a HashMap<String, Value>,
    tensors: &'a Tensors,
    arch: &'a str,
}

impl Entries<'_> {
    fn maybe(&self, name: &str) -> Result<Option<f64>> {
        let name = format!("{}.{name}", self.arch);
        self.metadata.get(&name).map(|value| number(&name, value)).transpose()
    }

    fn number(&self, name: &str) -> Result<f64> {
        match self.maybe(name)? {
            Some(number) => Ok(number),
            None => bail!("GGUF: {}.{name} is missing", self.arch),
        }
    }

    fn size(&self, name: &str) -> Result<usize> {
        Ok(self.number(name)? as usize)
    }

    /// Refuses another number than this one. An entry that is missing is right.
    fn expect(&self, name: &str, expected: usize) -> Result<()> {
        match self.maybe(name)?.filter(|asked| *asked != expected as f64) {
            Some(asked) => bail!("GGUF: {}.{name} is {asked}; the decoder takes {expected}", self.arch),
            None => Ok(()),
        }
    }

    fn experts(&self, layers: usize) -> Result<Experts> {
        self.expect("expert_shared_feed_forward_length", 0)?;
        self.expect("expert_gating_func", 1)?; // softmax
        self.expect("expert_weights_scale", 1)?;
        let name = format!("{}.expert_weights_norm", self.arch);
        let normalise = match self.metadata.get(&name) {
            None => true,
            Some(Value::Bool(normalise)) => *normalise,
            Some(other) => bail!("GGUF: {name} is {:?}; expected a bool", other.value_type()),
        };
        let has = |layer: usize| self.tensors.shape(&format!("blk.{layer}.ffn_gate_inp.weight")).is_some();
        Ok(Experts {
            count: self.size("expert_count")?,
            per_token: self.size("expert_used_count")?,
            feed_forward: self.size("expert_feed_forward_length")?,
            normalise,
            layers: (0..layers).map(has).collect(),
            form: ExpertForm::Gated,
        })
    }

    fn token(&self, name: &str) -> Result<Option<u32>> {
        let name = format!("tokenizer.ggml.{name}");
        let number = self.metadata.get(&name).map(|value| number(&name, value)).transpose()?;
        Ok(number.map(|number| number as u32))
    }

    fn scaling(&self) -> Result<Option<RopeScaling>> {
        let name = format!("{}.rope.scaling.type", self.arch);
        match self.metadata.get(&name) {
            None => Ok(None),
            Some(Value::String(kind)) if kind == "none" => Ok(None),
            Some(Value::String(kind)) if kind == "linear" => {
                Ok(Some(RopeScaling::Linear { factor: self.number("rope.scaling.factor")? }))
            }
            Some(other) => bail!("GGUF: {name} is {other:?}; expected none or linear"),
        }
    }
}

fn number(name: &str, value: &Value) -> Result<f64> {
    Ok(match value {
        Value::U8(x) => f64::from(*x),
        Value::I8(x) => f64::from(*x),
        Value::U16(x) => f64::from(*x),
        Value::I16(x) => f64::from(*x),
        Value::U32(x) => f64::from(*x),
        Value::I32(x) => f64::from(*x),
        Value::U64(x) => *x as f64,
        Value::I64(x) => *x as f64,
        Value::F32(x) => f64::from(*x),
        Value::F64(x) => *x,
        other => bail!("GGUF: {name} is {:?}; expected one number for all layers", other.value_type()),
    })
}
