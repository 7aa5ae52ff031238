#!/usr/bin/env python3
"""Writes the checkpoints of this folder: tiny modules in each narrow format, and their dequantised weights as expected values.

Run by hand, where a format changes or is new; the files are committed. In a virtual environment with Python 3.11:

    pip install torch==2.11.0 compressed-tensors==0.20.0 transformers==5.24.0 accelerate==1.15.0 ml-dtypes==0.6.0 numpy==2.4.6 safetensors==0.8.0
    pip install --no-deps autoawq==0.2.9 auto-gptq==0.7.1
    python tests/data/narrow/write.py

Who writes what:

- compressed-tensors 0.20.0 writes its formats, and dequantises them.
- auto-gptq 0.7.1 packs GPTQ's version 1, with act order, too, and dequantises it. Version 2, and zero points of 0, which it mangles in version 1, are written here,
  as gptqmodel 7.7.0 does (convert_gptq_v2_to_v1_format: whole words less 1 in each code).
- autoawq 0.2.9 packs and dequantises AWQ.
- transformers 5.24.0 quantises fp8 in blocks, and dequantises the experts of gpt-oss; their codes are random numbers, as its quantiser needs a GPU.
- ModelOpt's layout, blocks that are cut short, scales for merged parts, and act order of compressed-tensors (which 0.20.0 no longer writes) are written here.

Each file NAME.safetensors has NAME.json beside it, its config.json. For a module PATH the tensor `PATH.expected` has the weights, (out, in), in f32, by
second_reader.py, in numpy and ml-dtypes. The script ends with an error where the format's own library dequantises to other numbers.
"""

import importlib
import json
import pathlib
import sys
import types

import ml_dtypes
import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, QuantizationStatus
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file
from second_reader import e2m1, e8m0, numbers, read_awq, read_fp8, read_gptq, read_integers, read_mx, read_nvfp4, wide

FOLDER = pathlib.Path(__file__).resolve().parent
RANDOM = np.random.default_rng(56)


def module(path):
    """A module of a package, without running what the packages above it import."""
    parts = path.split(".")
    known = sys.modules.get(parts[0])
    root = known.__path__[0] if known else importlib.util.find_spec(parts[0]).submodule_search_locations[0]
    for depth in range(1, len(parts)):
        name = ".".join(parts[:depth])
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [str(pathlib.Path(root, *parts[1:depth]))]
            sys.modules[name] = package
    return importlib.import_module(path)


def weights(n, k):
    """Numbers with heavy tails, a row of zeros and a column that is large."""
    w = RANDOM.standard_t(4, (n, k)) * 0.02
    w[n // 2] = 0
    w[:, k // 3] *= 8
    return torch.tensor(w, dtype=torch.float32)


def check(path, ours, library, steps=0):
    """Whether the format's library has the same numbers, in its own type; `steps` in the last place are allowed."""
    kind = numbers(library).dtype
    theirs = numbers(library)
    rounded = ours.astype(kind)
    if steps == 0:
        same = (rounded == theirs) | (np.isnan(rounded) & np.isnan(theirs))
    else:
        same = np.abs(ours - theirs) <= steps * np.spacing(np.abs(theirs))
    assert ours.shape == theirs.shape and same.all(), f"{path}: {np.count_nonzero(~same)} numbers differ"


FILES = {}


def add(file, path, tensors, expected, library=None, steps=0):
    if library is not None:
        check(path, expected, library, steps)
    all_tensors, _ = FILES.setdefault(file, ({}, {}))
    for name, tensor in {**tensors, "expected": torch.from_numpy(np.ascontiguousarray(expected, np.float32))}.items():
        all_tensors[f"{path}.{name}"] = tensor.clone().contiguous()


def config(file, quantization):
    FILES.setdefault(file, ({}, {}))[1].update(quantization_config=quantization)


# compressed-tensors


def compressed(file, format, cases, ignore=()):
    groups = {}
    for index, (path, (n, k), args, inputs, dtype) in enumerate(cases):
        args = QuantizationArgs(**args)
        inputs = QuantizationArgs(**inputs) if inputs else None
        scheme = QuantizationScheme(targets=[path], weights=args, input_activations=inputs, format=format)
        # With zero points, numbers lie around another one than 0.
        w = weights(n, k) + (0 if args.symmetric else 0.05)
        state = {"weight": w}
        strategy = str(args.strategy.value if hasattr(args.strategy, "value") else args.strategy)
        size = args.group_size
        if strategy == "tensor":
            low, high = w.amin().reshape(1), w.amax().reshape(1)
        elif strategy == "channel":
            low, high = w.amin(1, True), w.amax(1, True)
        elif strategy == "block":
            rows, columns = args.block_structure
            padded = torch.nn.functional.pad(w, (0, -k % columns, 0, -n % rows))
            tiles = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
            low, high = tiles.amin((1, 3)), tiles.amax((1, 3))
        else:
            low, high = w.reshape(n, k // size, size).amin(2), w.reshape(n, k // size, size).amax(2)
        if strategy == "tensor_group":
            state["weight_global_scale"] = generate_gparam(w.amin().reshape(1), w.amax().reshape(1))
        scale, zero = calculate_qparams(low, high, args, state.get("weight_global_scale"))
        state["weight_scale"] = scale.to(dtype) if dtype else scale
        if not args.symmetric:
            state["weight_zero_point"] = zero
        compressor = BaseCompressor.get_value_from_registry(format)
        stored = compressor.compress(state, scheme)
        library = compressor.decompress(dict(stored), scheme)["weight"].float()
        steps = 0
        if format in ("mxfp4-pack-quantized", "mxfp8-quantized"):
            expected = read_mx(stored)
        elif format == "nvfp4-pack-quantized":
            alpha = np.float32(1) / numbers(stored["weight_global_scale"])[0]
            expected, steps = read_nvfp4(stored, "weight_packed", "weight_scale", alpha), 3
            # Its compressor goes by bf16, its function by what it gets. It divides by the factor of all, and rounds in another order.
            codes = unpack_fp4_from_uint8(stored["weight_packed"], n, k, torch.float32)
            library = dequantize(codes, stored["weight_scale"].float(), args=args, global_scale=stored["weight_global_scale"])
        elif args.type == "float":
            expected = read_fp8(stored, block=args.block_structure)
        else:
            expected = read_integers(stored, args.num_bits)
        if dtype:  # The library multiplies in the type of the factors.
            library = compressor.decompress(dict(stored), scheme)["weight"].to(dtype)
        add(file, path, stored, expected, library, steps)
        groups[f"group_{index}"] = scheme
    written = QuantizationConfig(
        config_groups=groups, format=format, ignore=list(ignore), quantization_status=QuantizationStatus.COMPRESSED
    )
    config(file, json.loads(written.model_dump_json()))


def integers(bits, strategy, symmetric=True, **more):
    return dict(num_bits=bits, type="int", strategy=strategy, symmetric=symmetric, **more)


def floats(bits, strategy, **more):
    return dict(num_bits=bits, type="float", strategy=strategy, symmetric=True, **more)


TOKEN = dict(num_bits=8, type="int", strategy="token", dynamic=True)
TOKEN_FP8 = dict(TOKEN, type="float")
compressed(
    "pack-quantized",
    "pack-quantized",
    [
        ("up", (24, 96), integers(4, "group", group_size=32), None, torch.float16),
        ("down", (20, 96), integers(4, "group", False, group_size=32), None, torch.bfloat16),
        ("channel", (13, 52), integers(4, "channel", False), None, None),
        ("wide", (24, 64), integers(8, "group", group_size=32), None, torch.bfloat16),
        ("wide_zeros", (11, 64), integers(8, "group", False, group_size=32), None, None),
        ("whole", (10, 30), integers(4, "tensor", False), None, None),
    ],
    ignore=["lm_head"],
)
compressed(
    "int-quantized",
    "int-quantized",
    [
        ("up", (24, 50), integers(8, "channel"), TOKEN, None),
        ("down", (20, 50), integers(8, "channel", False), TOKEN, torch.bfloat16),
        ("whole", (10, 30), integers(8, "tensor"), TOKEN, None),
    ],
)
compressed(
    "float-quantized",
    "float-quantized",
    [
        ("channel", (24, 50), floats(8, "channel"), TOKEN_FP8, torch.bfloat16),
        ("whole", (24, 50), floats(8, "tensor"), dict(TOKEN_FP8, strategy="tensor", dynamic=False), None),
        ("block", (40, 70), floats(8, "block", block_structure=[16, 32]), TOKEN_FP8, None),
    ],
)
compressed("naive-quantized", "naive-quantized", [("group", (12, 64), floats(8, "group", group_size=32), None, None)])
compressed("nvfp4-pack-quantized", "nvfp4-pack-quantized", [("up", (24, 96), floats(4, "tensor_group", group_size=16), None, None)])
MX = dict(group_size=32, scale_dtype="torch.uint8", zp_dtype="torch.uint8")
compressed("mxfp4-pack-quantized", "mxfp4-pack-quantized", [("up", (24, 96), floats(4, "group", **MX), None, None)])
compressed("mxfp8-quantized", "mxfp8-quantized", [("up", (24, 96), floats(8, "group", **MX), None, None)])


def reordered():
    """Act order of compressed-tensors before 0.20.0: column k has group `weight_g_idx[k]`."""
    n, k, group = 12, 96, 32
    order = RANDOM.permutation(k)
    groups = np.empty(k, np.int32)
    groups[order] = np.arange(k) // group
    codes = RANDOM.integers(-8, 8, (n, k))
    shifted = (codes + 8).astype(np.int64).reshape(n, k // 8, 8)
    words = (shifted << (4 * np.arange(8))).sum(2).astype(np.uint32).view(np.int32)
    scale = torch.tensor(RANDOM.uniform(0.01, 0.1, (n, k // group)), dtype=torch.float16)
    tensors = {
        "weight_packed": torch.from_numpy(words),
        "weight_scale": scale,
        "weight_shape": torch.tensor([n, k]),
        "weight_g_idx": torch.from_numpy(groups),
    }
    library = torch.from_numpy(codes).half() * scale[:, torch.from_numpy(groups).long()]
    add("pack-quantized", "reordered", tensors, read_integers(tensors, 4), library)
    of_config = FILES["pack-quantized"][1]["quantization_config"]["config_groups"]
    of_config["group_6"] = json.loads(json.dumps(of_config["group_0"]))
    of_config["group_6"]["targets"] = ["re:.*ordered$"]
    of_config["group_6"]["weights"]["actorder"] = "group"


reordered()

# GPTQ


def gptq(path, bits, n, k, group, symmetric, act_order=False, version=1, zeros_of_0=False):
    file = f"gptq-{bits}" if version == 1 and not zeros_of_0 else "gptq-v2" if version == 2 else "gptq-borrowed"
    kind = module("auto_gptq.nn_modules.qlinear." + ("qlinear_cuda" if act_order else "qlinear_cuda_old")).QuantLinear
    w = weights(n, k).half()
    order = RANDOM.permutation(k) if act_order else np.arange(k)
    groups = np.empty(k, np.int32)
    groups[order] = np.arange(k) // group
    most = (1 << bits) - 1
    scales, zeros = np.empty((n, k // group), np.float32), np.empty((n, k // group), np.float32)
    for g in range(k // group):
        part = w[:, torch.from_numpy(groups == g)].float().numpy()
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        scales[:, g] = np.where(high > low, (high - low) / most, 1)
        zeros[:, g] = (most + 1) / 2 if symmetric else np.clip(np.round(-low / scales[:, g]), 0 if zeros_of_0 else 1, most)
    if zeros_of_0:
        zeros[::3] = 0
    scales = torch.from_numpy(scales).half().float()
    linear = torch.nn.Linear(k, n, bias=False)
    # Codes beyond the ends would run into their neighbours.
    of_group = torch.from_numpy(groups).long()
    z = torch.from_numpy(zeros)[:, of_group]
    codes = torch.clamp(torch.round(w.float() / scales[:, of_group]) + z, 0, most)
    linear.weight.data = ((codes - z) * scales[:, of_group]).half()
    layer = kind(bits, group, k, n, bias=False)
    layer.pack(linear, scales.half(), torch.from_numpy(zeros.copy()), torch.from_numpy(groups))
    tensors = {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales.half(), "g_idx": torch.from_numpy(groups)}
    library = None
    if version == 2 or zeros_of_0:
        packed = (zeros.T.astype(np.int64)[:, :, None] >> np.arange(bits) & 1).reshape(k // group, -1).astype(np.uint8)
        words = np.packbits(packed, axis=1, bitorder="little").view(np.int32)
        if version == 1:
            words = words - np.int32(sum(1 << at for at in range(0, 31, bits)))
        tensors["qzeros"] = torch.from_numpy(words.copy())
        library = (codes.int() - z.int()).half() * scales.half()[:, of_group]
    else:
        library = layer.half().forward(torch.eye(k).half()).T.contiguous()
    add(file, path, tensors, read_gptq(tensors, bits, group, version == 1, version == 1 and zeros_of_0), library)
    meta = {"meta": {"quantizer": ["gptqmodel:7.7.0"]}} if zeros_of_0 else {}
    quantization = dict(quant_method="gptq", bits=bits, group_size=group, desc_act=act_order, sym=symmetric, **meta)
    config(file, dict(quantization, checkpoint_format="gptq_v2" if version == 2 else "gptq"))


for bits in (2, 3, 4, 8):
    gptq("symmetric", bits, 32, 64, 32, True)
    gptq("zeros", bits, 32, 64, 32, False)
    gptq("reordered", bits, 32, 64, 32, False, act_order=True)
gptq("up", 4, 32, 64, 32, False, version=2, zeros_of_0=True)
gptq("up", 4, 32, 64, 32, False, zeros_of_0=True)

# AWQ


def awq(path, n, k, group):
    gemm = module("awq.modules.linear.gemm")
    w = weights(n, k)
    parts = w.reshape(n, k // group, group)
    low, high = parts.amin(2), parts.amax(2)
    scales = ((high - low).clamp(min=1e-5) / 15).half().float()
    zeros = (-torch.round(low / scales)).clamp(0, 15)
    each = lambda t: t.repeat_interleave(group, 1)  # noqa: E731
    linear = torch.nn.Linear(k, n, bias=False)
    linear.weight.data = (torch.clamp(torch.round(w / each(scales)) + each(zeros), 0, 15) - each(zeros)) * each(scales)
    layer = gemm.WQLinear_GEMM.from_linear(linear, 4, group, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
    tensors = {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales}
    library = gemm.dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, 4, group).T.contiguous()
    add("awq", path, tensors, read_awq(tensors, group), library)


awq("up", 32, 96, 32)
config("awq", dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm", modules_to_not_convert=None))

# fp8


def fp8():
    finegrained = importlib.import_module("transformers.integrations.finegrained_fp8")
    block = [32, 64]
    settings = types.SimpleNamespace(weight_block_size=block, scale_fmt="float")
    quantiser = finegrained.Fp8Quantize(types.SimpleNamespace(quantization_config=settings))
    stored = quantiser.convert({"up.weight": weights(64, 128)})
    tensors = {name.split(".")[1]: tensor for name, tensor in stored.items()}
    library = finegrained.Fp8Dequantize(None)._dequantize_one(tensors["weight"], tensors["weight_scale_inv"], torch.float32)
    add("fp8-blocks", "up", tensors, read_fp8(tensors, "weight_scale_inv", block), library)
    settings = dict(quant_method="fp8", activation_scheme="dynamic", modules_to_not_convert=["lm_head"])
    config("fp8-blocks", dict(settings, weight_block_size=block))
    # Blocks that are cut short, with factors in bf16 and NaN codes.
    codes = RANDOM.integers(0, 256, (130, 132), dtype=np.uint8)
    scale = torch.tensor(RANDOM.uniform(0.001, 0.01, (2, 2)), dtype=torch.bfloat16)
    tensors = {"weight": torch.from_numpy(codes).view(torch.float8_e4m3fn), "weight_scale_inv": scale}
    add("fp8", "short", tensors, read_fp8(tensors, "weight_scale_inv", [128, 128]))
    # Powers of two, as float8_e8m0fnu.
    exponents = torch.tensor([[0, 120, 254, 255]], dtype=torch.uint8)
    codes = RANDOM.integers(0, 256, (4, 400), dtype=np.uint8)
    tensors = {"weight": torch.from_numpy(codes).view(torch.float8_e4m3fn), "weight_scale_inv": exponents.view(torch.float8_e8m0fnu)}
    of = dict(tensors, weight_scale_inv=torch.from_numpy(e8m0(exponents.numpy())))
    add("fp8", "powers", tensors, read_fp8(of, "weight_scale_inv", [128, 128]))
    # A factor for each of three merged matrices.
    parts = [16, 8, 8]
    w = weights(32, 24)
    scale = torch.stack([part.abs().max() / 448 for part in w.split(parts)])
    codes = (w / scale.repeat_interleave(torch.tensor(parts))[:, None]).to(torch.float8_e4m3fn)
    tensors = {"weight": codes, "weight_scale": scale}
    add("fp8", "qkv", tensors, read_fp8(tensors, parts=parts))
    config("fp8", dict(settings, weight_block_size=[128, 128]))


fp8()

# ModelOpt


def modelopt():
    n, k = 24, 96
    scales = RANDOM.integers(1, 0x7F, (n, k // 16), dtype=np.uint8)
    scales[0, 0], scales[1, 1] = 0x7F, 0
    tensors = {
        "weight": torch.from_numpy(RANDOM.integers(0, 256, (n, k // 2), dtype=np.uint8)),
        "weight_scale": torch.from_numpy(scales).view(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(3.1e-4),
        "input_scale": torch.tensor(0.01),
    }
    add("modelopt-nvfp4", "up", tensors, read_nvfp4(tensors, "weight", "weight_scale", 3.1e-4))
    producer = dict(name="modelopt", version="0.47.0")
    config("modelopt-nvfp4", dict(quant_method="modelopt", quant_algo="NVFP4", producer=producer, ignore=["lm_head"]))
    w = weights(24, 40)
    scale = w.abs().max() / 448
    tensors = {"weight": (w / scale).to(torch.float8_e4m3fn), "weight_scale": scale, "input_scale": torch.tensor(0.01)}
    add("modelopt-fp8", "up", tensors, read_fp8(tensors))
    config("modelopt-fp8", dict(quant_method="modelopt", quant_algo="FP8", producer=producer, ignore=["lm_head"]))


modelopt()

# gpt-oss


def gpt_oss():
    mxfp4 = importlib.import_module("transformers.integrations.mxfp4")
    experts, hidden, inner = 3, 64, 32
    tensors = {}
    for name, n, k in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
        blocks = torch.from_numpy(RANDOM.integers(0, 256, (experts, n, k // 32, 16), dtype=np.uint8))
        exponents = RANDOM.integers(118, 126, (experts, n, k // 32), dtype=np.uint8)
        exponents[0, :3, 0] = 0, 254, 255
        scales = torch.from_numpy(exponents)
        bias = torch.tensor(RANDOM.normal(0, 1, (experts, n)), dtype=torch.bfloat16)
        expected = e2m1(blocks.numpy().reshape(-1, 16), experts * n, k) * e8m0(exponents).reshape(-1, k // 32).repeat(32, 1)
        # The library's numbers are in (experts, k, n), and it has neither NaN nor 2^-127: it takes 2^(e - 127) by ldexp in bf16.
        library = mxfp4.convert_moe_packed_tensors(blocks, scales).transpose(1, 2).reshape(experts * n, k)
        usual = ((exponents > 0) & (exponents < 254)).reshape(-1, k // 32).repeat(32, 1)
        assert (wide(library)[usual] == expected[usual]).all(), name
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales, f"{name}_bias": bias}
        add("gpt-oss", f"experts.{name}", {}, expected)
    for name, tensor in tensors.items():
        FILES["gpt-oss"][0][f"experts.{name}"] = tensor
    config("gpt-oss", dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]))


gpt_oss()

for file, (tensors, of_config) in sorted(FILES.items()):
    save_file(tensors, FOLDER / f"{file}.safetensors")
    (FOLDER / f"{file}.json").write_text(json.dumps(of_config, indent=1) + "\n")
    print(f"{file}: {(FOLDER / f'{file}.safetensors').stat().st_size} bytes")
