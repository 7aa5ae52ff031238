//! Where SmolLM2's file is, and a llama's weights by Hugging Face's names.

use candle::{bail, Result, Tensor};
use std::path::{Path, PathBuf};

/// Where the file of `third_party/fetch.sh smollm2` is.
pub fn smollm2() -> PathBuf {
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../third_party/dist/smollm2");
    let own = std::env::var_os("TILEGEMM_SMOLLM2_DIR").filter(|dir| !dir.is_empty());
    own.map_or(fetched, PathBuf::from).join("SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// A tensor of a GGUF file under its other name. The rows of q and k go back to where Hugging Face has them: a file has the numbers that turn together side by
/// side.
pub fn of_hugging_face(name: &str, tensor: Tensor, [heads, kv_heads, head]: [usize; 3]) -> Result<(String, Tensor)> {
    let apart = |tensor: Tensor, heads: usize| {
        let hidden = tensor.dim(1)?;
        tensor.reshape((heads, head / 2, 2, hidden))?.transpose(1, 2)?.reshape((heads * head, hidden))
    };
    Ok(match name.split('.').collect::<Vec<_>>()[..] {
        ["token_embd", _] => ("model.embed_tokens.weight".to_string(), tensor),
        ["output_norm", _] => ("model.norm.weight".to_string(), tensor),
        ["blk", layer, part, _] => {
            let (to, tensor) = match part {
                "attn_q" => ("self_attn.q_proj", apart(tensor, heads)?),
                "attn_k" => ("self_attn.k_proj", apart(tensor, kv_heads)?),
                "attn_v" => ("self_attn.v_proj", tensor),
                "attn_output" => ("self_attn.o_proj", tensor),
                "attn_norm" => ("input_layernorm", tensor),
                "ffn_norm" => ("post_attention_layernorm", tensor),
                "ffn_gate" => ("mlp.gate_proj", tensor),
                "ffn_up" => ("mlp.up_proj", tensor),
                "ffn_down" => ("mlp.down_proj", tensor),
                other => bail!("the tensor {other} of a layer has no name in a llama"),
            };
            (format!("model.layers.{layer}.{to}.weight"), tensor)
        }
        _ => bail!("the tensor {name} has no name in a llama"),
    })
}
