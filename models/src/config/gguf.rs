//! The metadata of a GGUF file.

use super::Config;
use candle::quantized::gguf_file::{Content, Value};
use candle::{bail, Result};
use candle_nn::Activation;
use candle_tilegemm::nn::attention::{RopeScaling, RopeStyle};

impl Config {
    /// The description in a GGUF file of the architectures llama (mistral, too), qwen2 and qwen3.
    ///
    /// The scaling of llama 3 lies in such a file as a tensor, `rope_freqs.weight`; [`Decoder::from_gguf`](crate::Decoder::from_gguf) reads it.
    ///
    /// # Errors
    /// Missing entries, and what an entry asks and the decoder does not have: the error names the entry.
    pub fn from_gguf(content: &Content) -> Result<Self> {
        let Some(Value::String(arch)) = content.metadata.get("general.architecture") else {
            bail!("GGUF: general.architecture is missing");
        };
        let arch = arch.as_str();
        if !["llama", "qwen2", "qwen3"].contains(&arch) {
            bail!("GGUF: general.architecture is {arch}; expected llama, qwen2 or qwen3");
        }
        let entries = Entries { content, arch };
        let has = |name: &str| content.tensor_infos.contains_key(name);
        let (hidden, layers) = (entries.size("embedding_length")?, entries.size("block_count")?);
        let heads = entries.size("attention.head_count")?;
        let head_size = match entries.maybe("attention.key_length")? {
            Some(size) => size as usize,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => bail!("GGUF: {arch}.attention.key_length is missing, and {heads} heads do not divide {hidden}"),
        };
        for (name, expected) in
            [("attention.value_length", head_size), ("rope.dimension_count", head_size), ("expert_count", 0)]
        {
            if let Some(asked) = entries.maybe(name)?.filter(|asked| *asked != expected as f64) {
                bail!("GGUF: {arch}.{name} is {asked}; the decoder takes {expected}");
            }
        }
        let window = entries.maybe("attention.sliding_window")?.unwrap_or(0.0) as usize;
        let Some(table) = content.tensor_infos.get("token_embd.weight") else {
            bail!("GGUF: the tensor token_embd.weight is missing");
        };
        Self {
            hidden,
            layers,
            heads,
            kv_heads: entries.maybe("attention.head_count_kv")?.map_or(heads, |heads| heads as usize),
            head_size,
            feed_forward: entries.size("feed_forward_length")?,
            activation: Activation::Silu,
            experts: None,
            eps: entries.number("attention.layer_norm_rms_epsilon")?,
            rope_base: entries.maybe("rope.freq_base")?.unwrap_or(10_000.0),
            rope_scaling: entries.scaling()?,
            rope_style: if arch == "llama" { RopeStyle::Interleaved } else { RopeStyle::Halves },
            windows: vec![window; layers],
            qk_norm: has("blk.0.attn_q_norm.weight"),
            qkv_bias: has("blk.0.attn_q.bias"),
            o_bias: has("blk.0.attn_output.bias"),
            tied: !has("output.weight"),
            max_positions: entries.size("context_length")?,
            vocabulary: table.shape.dims().first().copied().unwrap_or(0),
            first_token: entries.token("bos_token_id")?,
            end_tokens: ["eos_token_id", "eot_token_id"]
                .into_iter()
                .filter_map(|name| entries.token(name).transpose())
                .collect::<Result<_>>()?,
        }
        .checked()
    }
}

struct Entries<'a> {
    content: &'a Content,
    arch: &'a str,
}

impl Entries<'_> {
    fn maybe(&self, name: &str) -> Result<Option<f64>> {
        let name = format!("{}.{name}", self.arch);
        self.content.metadata.get(&name).map(|value| number(&name, value)).transpose()
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

    fn token(&self, name: &str) -> Result<Option<u32>> {
        let name = format!("tokenizer.ggml.{name}");
        let number = self.content.metadata.get(&name).map(|value| number(&name, value)).transpose()?;
        Ok(number.map(|number| number as u32))
    }

    fn scaling(&self) -> Result<Option<RopeScaling>> {
        let name = format!("{}.rope.scaling.type", self.arch);
        match self.content.metadata.get(&name) {
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
