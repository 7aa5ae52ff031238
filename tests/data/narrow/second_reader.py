"""The second reader of narrow weights: numpy and ml-dtypes, from the formats' descriptions."""

import ml_dtypes
import numpy as np
import torch


def bits_of(words, bits, count):
    """`count` codes from the lowest bit of each row of words on."""
    as_bits = np.unpackbits(np.ascontiguousarray(words).astype("<i4").view(np.uint8), axis=1, bitorder="little")
    codes = as_bits[:, : count * bits].reshape(len(words), count, bits)
    return (codes << np.arange(bits)).sum(2).astype(np.int64)


def numbers(tensor):
    """A tensor as numpy has it: f8 and bf16 by ml-dtypes."""
    kinds = {torch.bfloat16: (torch.int16, ml_dtypes.bfloat16), torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn)}
    if tensor.dtype in kinds:
        raw, kind = kinds[tensor.dtype]
        return tensor.contiguous().view(raw).numpy().view(kind)
    return tensor.numpy()


def wide(tensor):
    return numbers(tensor).astype(np.float32)


def expanded(scale, n, k):
    """A factor for each weight: of one, one a row, groups along a row or blocks."""
    if scale.size == 1:
        return np.broadcast_to(scale.reshape(1, 1), (n, k))
    if scale.ndim == 1:
        scale = scale[:, None]
    rows, columns = (-(-size // count) for size, count in zip((n, k), scale.shape))
    return scale.repeat(rows, 0)[:n].repeat(columns, 1)[:, :k]


def e2m1(packed, n, k):
    """Pairs of codes, the first in the low bits."""
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(n, k).astype(np.uint8)
    return nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def e8m0(codes):
    return codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)


def read_gptq(of, bits, group, first_version, borrowed=False):
    k, n = len(of["g_idx"]), of["scales"].shape[1]
    codes = bits_of(numbers(of["qweight"]).T, bits, k)
    words = numbers(of["qzeros"])
    if borrowed:
        words = words + np.int32(sum(1 << at for at in range(0, 31, bits)))
    zeros = bits_of(words, bits, n).T
    if first_version and not borrowed:
        zeros = (zeros + 1) % (1 << bits)
    groups = numbers(of["g_idx"])
    return ((codes - zeros[:, groups]).astype(np.float32) * wide(of["scales"]).T[:, groups]).astype(np.float32)


def read_awq(of, group):
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def codes(words):
        nibbles = bits_of(numbers(words).reshape(-1, 1), 4, 8).reshape(len(words), -1, 8)
        out = np.empty_like(nibbles)
        out[:, :, order] = nibbles
        return out.reshape(len(words), -1)

    q, z, s = codes(of["qweight"]), codes(of["qzeros"]), wide(of["scales"])
    return ((q - z.repeat(group, 0)).astype(np.float32) * s.repeat(group, 0)).T


def read_integers(of, bits):
    """pack-quantized, and integers of 8 bits in `weight`."""
    if "weight" in of:
        codes = numbers(of["weight"]).astype(np.int64)
        n, k = codes.shape
    else:
        n, k = (int(size) for size in of["weight_shape"])
        codes = bits_of(numbers(of["weight_packed"]), bits, k) - (1 << (bits - 1))
    scale = wide(of["weight_scale"])
    zeros = np.zeros((1, 1), np.int64)
    if "weight_zero_point" in of:
        stored = numbers(of["weight_zero_point"])
        packed = "weight" not in of and scale.size > 1
        zeros = bits_of(stored.T, bits, n).T - (1 << (bits - 1)) if packed else stored.astype(np.int64)
    if "weight_g_idx" in of:
        groups = numbers(of["weight_g_idx"])
        zeros, scale = (np.broadcast_to(factors, scale.shape)[:, groups] for factors in (zeros, scale))
        return (codes - zeros).astype(np.float32) * scale
    return (codes - expanded(zeros, n, k)).astype(np.float32) * expanded(scale, n, k)


def read_fp8(of, name="weight_scale", block=None, parts=None):
    codes, scale = wide(of["weight"]), wide(of[name])
    n, k = codes.shape
    if parts:
        scale = scale.repeat(parts)
    if block:
        scale = scale.repeat(block[0], 0)[:n].repeat(block[1], 1)[:, :k]
    return codes * (scale if block else expanded(scale, n, k))


def read_nvfp4(of, name, scales, alpha):
    packed = numbers(of[name])
    n, k = packed.shape[0], packed.shape[1] * 2
    return e2m1(packed, n, k) * expanded(wide(of[scales]), n, k) * np.float32(alpha)


def read_mx(of):
    scales = e8m0(numbers(of["weight_scale"]))
    if "weight" in of:
        n, k = of["weight"].shape
        return wide(of["weight"]) * scales.repeat(32, 1)
    n, k = of["weight_packed"].shape[0], of["weight_packed"].shape[1] * 2
    return e2m1(numbers(of["weight_packed"]), n, k) * scales.repeat(32, 1)
