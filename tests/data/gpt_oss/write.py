#!/usr/bin/env python3
"""Writes the checkpoint of this folder: a tiny gpt-oss with random weights, transformers' logits for it, and transformers' YaRN frequencies.

Run by hand, where the form is new; the files are committed. In a virtual environment with Python 3.11:

    pip install torch==2.15.0 transformers==5.24.0 numpy==2.4.6 safetensors==0.8.0
    python tests/data/gpt_oss/write.py

- `config.json` and `model.safetensors` are named and laid out as OpenAI's, with experts in MXFP4.
- `expected.safetensors` has `tokens`, (positions), and `logits`, (positions, vocabulary), which transformers computes in f32 of the same numbers.
- `yarn.json` has configs, and for each the frequencies and the attention factor by transformers.

The model is made so that every part of it counts: gates and ups reach the limit, sinks have a share of the weights, the window is shorter than the text. Tokens
are chosen so that no router is of two minds: a decoder in bf16 chooses the same experts.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FOLDER = pathlib.Path(__file__).resolve().parent
POSITIONS = 48
# The least distance of the last logit that a router takes and the first that it leaves.
DISTANCE = 0.25

CONFIG = dict(
    model_type="gpt_oss",
    architectures=["GptOssForCausalLM"],
    vocab_size=64,
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    num_local_experts=4,
    num_experts_per_tok=2,
    experts_per_token=2,
    sliding_window=9,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    attention_bias=True,
    attention_dropout=0.0,
    hidden_act="silu",
    swiglu_limit=7.0,
    rms_norm_eps=1e-5,
    rope_theta=150000,
    rope_scaling=dict(rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=1024, truncate=False),
    max_position_embeddings=8192,
    initial_context_length=1024,
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=63,
    pad_token_id=None,
    output_router_logits=False,
    router_aux_loss_coef=0.9,
    use_cache=True,
    quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]),
)


def weights():
    """The tensors of the checkpoint."""
    c, all = CONFIG, {}
    normal = lambda *shape, by, around=0.0: (around + by * torch.randn(shape)).to(torch.bfloat16)
    hidden, head, inner, experts = c["hidden_size"], c["head_dim"], c["intermediate_size"], c["num_local_experts"]
    all["model.embed_tokens.weight"] = normal(c["vocab_size"], hidden, by=1.0)
    all["lm_head.weight"] = normal(c["vocab_size"], hidden, by=hidden**-0.5)
    all["model.norm.weight"] = normal(hidden, by=0.2, around=1.0)
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        all[at + "input_layernorm.weight"] = normal(hidden, by=0.2, around=1.0)
        all[at + "post_attention_layernorm.weight"] = normal(hidden, by=0.2, around=1.0)
        q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
        for name, n, k in [("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)]:
            all[f"{at}self_attn.{name}_proj.weight"] = normal(n, k, by=k**-0.5)
            all[f"{at}self_attn.{name}_proj.bias"] = normal(n, by=0.2)
        all[at + "self_attn.sinks"] = normal(c["num_attention_heads"], by=1.5, around=1.0)
        all[at + "mlp.router.weight"] = normal(experts, hidden, by=2 * hidden**-0.5)
        all[at + "mlp.router.bias"] = normal(experts, by=0.5)
        for name, n, k, least in [("gate_up", 2 * inner, hidden, 122), ("down", hidden, inner, 119)]:
            codes = torch.randint(0, 256, (experts, n, k // 32, 16), dtype=torch.uint8)
            all[f"{at}mlp.experts.{name}_proj_blocks"] = codes
            all[f"{at}mlp.experts.{name}_proj_scales"] = torch.randint(least, least + 4, (experts, n, k // 32), dtype=torch.uint8)
            all[f"{at}mlp.experts.{name}_proj_bias"] = normal(experts, n, by=0.5)
    return all


def model(checkpoint):
    """transformers' model in f32 of the same numbers."""
    config = GptOssConfig(**{name: value for name, value in CONFIG.items() if name != "quantization_config"})
    config._attn_implementation = "eager"
    state = {}
    for name, tensor in checkpoint.items():
        if name.endswith("_blocks"):
            scales = checkpoint[name.replace("_blocks", "_scales")]
            state[name.replace("_blocks", "")] = convert_moe_packed_tensors(tensor, scales, dtype=torch.float32)
        elif not name.endswith("_scales"):
            state[name] = tensor.float()
    of = GptOssForCausalLM(config).float().eval()
    of.load_state_dict(state, strict=True)
    return of


class Watch:
    """What parts of the model do, by hooks."""

    def __init__(self, of):
        self.distances, self.clamped, self.sinks = [], [], []
        for layer in of.model.layers:
            layer.mlp.router.register_forward_hook(self.router)
            experts = layer.mlp.experts
            gate = experts._apply_gate
            experts._apply_gate = lambda x, gate=gate: (self.clamped.append((x.abs() > 7).float().mean().item()), gate(x))[1]
            layer.self_attn.register_forward_hook(self.attention)

    def router(self, module, _, out):
        top = out[0].sort(dim=-1, descending=True).values
        self.distances.append((top[:, 1] - top[:, 2])[-1].item())

    def attention(self, module, _, out):
        self.sinks.append(1 - out[1].sum(-1).mean().item())


def choose(of, watch):
    """Tokens, each as random as its routers allow."""
    tokens = []
    while len(tokens) < POSITIONS:
        watch.distances.clear()
        token = torch.randint(0, CONFIG["vocab_size"], ()).item()
        of(input_ids=torch.tensor([tokens + [token]]))
        if min(watch.distances) >= DISTANCE:
            tokens.append(token)
    return tokens


def checkpoint():
    torch.manual_seed(56)
    tensors = weights()
    of = model(tensors)
    watch = Watch(of)
    with torch.no_grad():
        tokens = choose(of, watch)
        watch.clamped.clear(), watch.sinks.clear()
        logits = of(input_ids=torch.tensor([tokens])).logits[0]
    mean = lambda x: sum(x) / len(x)
    print(f"clamped {mean(watch.clamped):.3f}, of sinks {watch.sinks}, logits up to {logits.abs().max():.2f}")
    assert 0.02 < mean(watch.clamped) < 0.5 and all(0.05 < share < 0.8 for share in watch.sinks)
    save_file(tensors, FOLDER / "model.safetensors", metadata={"format": "pt"})
    save_file({"tokens": torch.tensor(tokens, dtype=torch.uint32), "logits": logits.contiguous()}, FOLDER / "expected.safetensors")
    (FOLDER / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


def yarn():
    gpt_oss = dict(factor=32.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=4096, truncate=False)
    cases = []
    for head, base, scaling in [
        (64, 150000.0, gpt_oss),
        (64, 150000.0, gpt_oss | dict(truncate=True)),
        (128, 1000000.0, dict(factor=4.0, original_max_position_embeddings=32768)),
        (128, 10000.0, dict(factor=40.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=0.707)),
        (96, 10000.0, dict(factor=2.0, original_max_position_embeddings=2048, attention_factor=1.25, beta_fast=16.0, beta_slow=2.0)),
        (64, 10000.0, dict(factor=8.0, original_max_position_embeddings=4)),
    ]:
        config = GptOssConfig(head_dim=head, rope_parameters=dict(rope_type="yarn", rope_theta=base, **scaling))
        inv_freq, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](config, device="cpu")
        cases.append(dict(head_dim=head, rope_theta=base, rope_scaling=dict(rope_type="yarn", **scaling), inv_freq=inv_freq.tolist(), attention_factor=attention_factor))
    (FOLDER / "yarn.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


checkpoint()
yarn()
