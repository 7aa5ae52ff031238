#!/usr/bin/env python3
"""What a decoder in PyTorch reaches on a GPU, with and without libtilegemm_preload.so.

usage: torch_decode.py LIBRARY [--json FILE] [--rounds N]

A llama of 8B (random weights, bf16) by torch.compile: a prompt of 2048, and decode steps over a static cache in a CUDA graph. Each arm is a process of its own,
arms in turns; the median of the rounds counts. `ours` is with the library. A round takes some four minutes, most of them to compile.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F

GPU, DTYPE = "cuda", torch.bfloat16
HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, HEAD, VOCABULARY = 4096, 14336, 32, 32, 8, 128, 128256
QKV = [HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD]
PROMPT, DECODE = 2048, [(1, 128), (1, 2048), (8, 2048), (32, 2048)]


def weight(*shape):
    return torch.empty(*shape, device=GPU, dtype=DTYPE).normal_(0, 0.02)


class Decoder:
    def __init__(self):
        torch.manual_seed(0)
        self.embedding, self.head = weight(VOCABULARY, HIDDEN), weight(VOCABULARY, HIDDEN)
        shapes = {"qkv": (sum(QKV), HIDDEN), "o": (HIDDEN, HIDDEN), "gate_up": (2 * FEED_FORWARD, HIDDEN), "down": (HIDDEN, FEED_FORWARD)}
        self.layers = [{name: weight(*shape) for name, shape in shapes.items()} for _ in range(LAYERS)]
        self.ones = torch.ones(HIDDEN, device=GPU, dtype=DTYPE)
        frequencies = 500000.0 ** -(torch.arange(0, HEAD, 2, device=GPU).float() / HEAD)
        angles = torch.outer(torch.arange(8192, device=GPU).float(), frequencies)
        self.cos, self.sin = angles.cos().to(DTYPE), angles.sin().to(DTYPE)

    def norm(self, x):
        return F.rms_norm(x, (HIDDEN,), self.ones)

    def rotate(self, x, positions):
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        low, high = x.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def layer(self, layer, x, positions, attend):
        """x: (rows, hidden). `attend` gets q, k and v, each (rows, heads, head)."""
        q, k, v = (part.unflatten(-1, (-1, HEAD)) for part in (self.norm(x) @ layer["qkv"].t()).split(QKV, -1))
        attended = attend(self.rotate(q, positions), self.rotate(k, positions), v)
        x = x + attended.flatten(-2) @ layer["o"].t()
        gate, up = (self.norm(x) @ layer["gate_up"].t()).chunk(2, -1)
        return x + (F.silu(gate) * up) @ layer["down"].t()

    def next_token(self, x):
        return (self.norm(x) @ self.head.t()).argmax(-1)

    def prefill(self, tokens):
        def attend(q, k, v):
            q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

        x, positions = self.embedding[tokens], torch.arange(len(tokens), device=GPU)
        for layer in self.layers:
            x = self.layer(layer, x, positions, attend)
        return self.next_token(x[-1:])

    def step(self, tokens, positions, caches, mask):
        x = self.embedding[tokens]
        for layer, (keys, values) in zip(self.layers, caches):

            def attend(q, k, v, keys=keys, values=values):
                keys.index_copy_(2, positions[:1], k[:, :, None])
                values.index_copy_(2, positions[:1], v[:, :, None])
                return F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=mask, enable_gqa=True)[:, :, 0]

            x = self.layer(layer, x, positions, attend)
        return self.next_token(x)


def median_ms(run, samples=9):
    times = []
    for _ in range(samples):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def graph_of(run):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(3):
        graph.replay()
    return graph


def measure():
    """The milliseconds of each case, as a line of JSON."""
    library = os.environ.get("LD_PRELOAD")
    if library:
        with open("/proc/self/maps") as maps:
            assert os.path.realpath(library) in maps.read(), f"{library} was not loaded"
    with torch.no_grad():
        decoder, results = Decoder(), {}
        prefill, step = (torch.compile(run, dynamic=False) for run in (decoder.prefill, decoder.step))
        tokens = torch.randint(0, VOCABULARY, (PROMPT,), device=GPU)
        prefill(tokens), prefill(tokens)
        results[f"prefill {PROMPT}"] = median_ms(lambda: prefill(tokens), 5)
        for sequences, context in DECODE:
            capacity = context + 64
            shape = (sequences, KV_HEADS, capacity, HEAD)
            caches = [tuple(torch.randn(*shape, device=GPU, dtype=DTYPE) for _ in range(2)) for _ in range(LAYERS)]
            mask = torch.zeros(1, 1, 1, capacity, device=GPU, dtype=DTYPE)
            mask[..., context + 1 :] = float("-inf")
            tokens = torch.randint(0, VOCABULARY, (sequences,), device=GPU)
            positions = torch.full((sequences,), context, device=GPU)
            graph = graph_of(lambda: step(tokens, positions, caches, mask))
            results[f"decode, {sequences} at {context}"] = median_ms(graph.replay)
            del graph, caches
            torch.cuda.empty_cache()
    print(json.dumps(results))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("library", nargs="?")
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    if os.environ.get("TORCH_DECODE_ARM"):
        return measure()
    if not arguments.library:
        parser.error("the path of libtilegemm_preload.so is missing; `make preload` builds it")
    rounds = {"stock": {}, "ours": {}}
    for arm in list(rounds) * arguments.rounds:
        preload = {"LD_PRELOAD": os.path.abspath(arguments.library)} if arm == "ours" else {}
        command, environment = [sys.executable, __file__], {**os.environ, **preload, "TORCH_DECODE_ARM": arm}
        printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
        for case, ms in json.loads(printed.splitlines()[-1]).items():
            rounds[arm].setdefault(case, []).append(ms)
    medians = {arm: {case: statistics.median(times) for case, times in cases.items()} for arm, cases in rounds.items()}
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, llama 8B in bf16 by torch.compile")
    for case, stock in medians["stock"].items():
        ours, sequences = medians["ours"][case], int(case.split()[1]) if case.startswith("decode") else 0
        rates = f", tokens/s {sequences * 1e3 / stock:.1f} -> {sequences * 1e3 / ours:.1f}" if sequences else ""
        print(f"{case:18} stock {stock:7.3f} ms, ours {ours:7.3f} ms, {stock / ours:.3f}x{rates}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "ms": rounds}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
