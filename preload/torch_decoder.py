#!/usr/bin/env python3
"""What a decoder in PyTorch reaches on a GPU, in the cases of `tilegemm bench --decoder`, for a run on the same card in the same lease.

usage: torch_decoder.py [--model NAME] [--arms plain,compiled] [--prefill 128,...] [--context 128,...] [--sequences 1,...] [--budget S] [--json FILE] [--beside RECORD]

Random weights in bf16; in the layers of `-fp8-dynamic` in fp8 with a factor for each row, beside activations that are rounded to fp8 (`_scaled_mm`), of `-w4a16` in 4 bits
in groups of 128 (`_weight_int4pack_mm`): both need a GPU. `plain` is PyTorch's own kernels, `compiled` the same by torch.compile, layer by layer; steps of both, over a static cache, and prompts are
replayed from a CUDA graph. torch.compile takes minutes for all cases; `--arms plain` leaves it out. --budget: no case starts after so many seconds. --beside: a record of
`tilegemm bench --decoder`, whose arms are printed and written with these.
"""
import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

SCHEMA = 1


@dataclass
class Size:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int
    rope_base: float
    eps: float = 1e-5
    tied: bool = False
    experts: int = 0
    per_token: int = 0
    format: str = "bf16"


LLAMA_8B = [32, 4096, 32, 8, 128, 14336, 128256, 5e5]
SIZES = {
    "llama3-8b": Size(*LLAMA_8B),
    "llama3-8b-fp8-dynamic": Size(*LLAMA_8B, format="fp8"),
    "llama3-8b-w4a16": Size(*LLAMA_8B, format="int4"),
    "llama3-1b": Size(16, 2048, 32, 8, 64, 8192, 128256, 5e5, tied=True),
    "qwen3-30b-a3b": Size(48, 2048, 32, 4, 128, 768, 151936, 1e6, 1e-6, experts=128, per_token=8),
    "smollm2-135m": Size(30, 576, 9, 3, 64, 1536, 49152, 1e5, tied=True),
    "tiny": Size(2, 128, 4, 2, 32, 384, 512, 5e5),
    "tiny-experts": Size(2, 128, 4, 2, 32, 64, 512, 1e6, experts=8, per_token=2),
}
# Positions after a context that a static cache has.
ROOM = 64
# Numbers of a row that share a factor in 4 bits.
GROUP = 128
# Steps of a sample: a program launches one while the one before runs.
STEPS = 8


def parse():
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--model", default="llama3-8b", choices=SIZES)
    parser.add_argument("--arms", default="plain,compiled", type=lambda text: text.split(","))
    parser.add_argument("--prefill", default=[128, 512, 2048, 8192], type=numbers)
    parser.add_argument("--context", default=[128, 2048, 8192], type=numbers)
    parser.add_argument("--sequences", default=[1, 8, 32], type=numbers)
    parser.add_argument("--runs", default=9, type=int)
    parser.add_argument("--budget", default=float("inf"), type=float)
    parser.add_argument("--json")
    parser.add_argument("--beside")
    arguments = parser.parse_args()
    if unknown := set(arguments.arms) - {"plain", "compiled"}:
        parser.error(f"--arms: there is no {', '.join(sorted(unknown))}; plain and compiled are the arms")
    return arguments


class Decoder:
    """A llama, or a qwen3_moe: norms of q and k, and experts."""

    def __init__(self, torch, size, device, positions):
        self.torch, self.size, self.device = torch, size, device
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        torch.manual_seed(0)
        queries, keys = size.heads * size.head, size.kv_heads * size.head
        self.parts = [queries, keys, keys]
        self.embedding = self.weight(size.vocabulary, size.hidden)
        self.head = self.embedding if size.tied else self.weight(size.vocabulary, size.hidden)
        self.layers = []
        for _ in range(size.layers):
            layer = {"qkv": self.narrow(sum(self.parts), size.hidden), "o": self.narrow(size.hidden, queries)}
            if size.experts:
                layer["router"] = self.weight(size.experts, size.hidden)
                layer["gate_up"] = self.weight(size.experts, 2 * size.inner, size.hidden)
                layer["down"] = self.weight(size.experts, size.hidden, size.inner)
            else:
                layer["gate_up"] = self.narrow(2 * size.inner, size.hidden)
                layer["down"] = self.narrow(size.hidden, size.inner)
            self.layers.append(layer)
        self.ones = torch.ones(size.hidden, device=device, dtype=self.dtype)
        self.ones_of_head = torch.ones(size.head, device=device, dtype=self.dtype)
        frequencies = size.rope_base ** -(torch.arange(0, size.head, 2, device=device).float() / size.head)
        angles = torch.outer(torch.arange(positions, device=device).float(), frequencies)
        self.cos, self.sin = angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def weight(self, *shape):
        return self.torch.empty(*shape, device=self.device, dtype=self.dtype).normal_(0, shape[-1] ** -0.5)

    def narrow(self, rows, columns):
        """A weight of a layer, in the layers' format: codes and factors, or a weight."""
        torch = self.torch
        if self.size.format == "bf16":
            return self.weight(rows, columns)
        if self.size.format == "fp8":
            codes = (4 * self.weight(rows, columns) * columns**0.5).to(torch.float8_e4m3fn)
            return codes, torch.full((1, rows), columns**-0.5 / 4, device=self.device)
        codes = torch.randint(0, 256, (rows, columns // 2), device=self.device, dtype=torch.uint8)
        factors = torch.full((columns // GROUP, rows, 2), columns**-0.5 / 4.6, device=self.device, dtype=self.dtype)
        factors[..., 1] = 0
        return torch._convert_weight_to_int4pack(codes, 8), factors

    def product(self, x, weight):
        """x: (rows, columns)"""
        torch = self.torch
        if self.size.format == "bf16":
            return x @ weight.t()
        codes, factors = weight
        if self.size.format == "int4":
            return torch._weight_int4pack_mm(x, codes, GROUP, factors)
        scale = (x.abs().amax(-1, keepdim=True).float() / 448).clamp(min=1e-12)
        rounded = (x.float() / scale).to(torch.float8_e4m3fn)
        return torch._scaled_mm(rounded, codes.t(), scale, factors, out_dtype=self.dtype, use_fast_accum=True)

    def norm(self, x):
        return self.torch.nn.functional.rms_norm(x, (self.size.hidden,), self.ones, self.size.eps)

    def turned(self, x, cos, sin):
        """x: (rows, heads, head)"""
        if self.size.experts:
            x = self.torch.nn.functional.rms_norm(x, (self.size.head,), self.ones_of_head, self.size.eps)
        low, high = x.chunk(2, -1)
        return self.torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def gated(self, x):
        gate, up = x.chunk(2, -1)
        return self.torch.nn.functional.silu(gate) * up

    def feed_forward(self, layer, x):
        """x: (rows, hidden)"""
        size, torch = self.size, self.torch
        if not size.experts:
            return self.product(self.gated(self.product(x, layer["gate_up"])), layer["down"])
        shares, chosen = (x @ layer["router"].t()).float().softmax(-1).topk(size.per_token, -1)
        shares = (shares / shares.sum(-1, keepdim=True)).to(self.dtype)
        if len(x) == 1:
            # The weights of the chosen experts, gathered: torch.compile reads them in place.
            gate_up, down = layer["gate_up"][chosen], layer["down"][chosen]
            inner = self.gated(torch.einsum("rh,reih->rei", x, gate_up))
            return torch.einsum("rei,rehi,re->rh", inner, down, shares)
        # Rows in the order of their experts, and a product for all experts at once.
        order = chosen.flatten().argsort(stable=True)
        rows = order // size.per_token
        experts = torch.arange(size.experts, device=x.device)
        ends = torch.searchsorted(chosen.flatten()[order], experts, right=True).to(torch.int32)
        inner = self.gated(torch._grouped_mm(x[rows], layer["gate_up"].transpose(1, 2), offs=ends))
        outer = torch._grouped_mm(inner, layer["down"].transpose(1, 2), offs=ends)
        return torch.zeros_like(x).index_add_(0, rows, outer * shares.flatten()[order, None])

    def layer(self, weights, x, more, cos, sin, cache, position, mask):
        """x + more: (rows, hidden) before the layer; the same two after it, so that torch.compile finds the sum and the norm after it in one place. With a cache
        the rows are of sequences, all at `position`, and `mask` hides what lies behind it; else they are one sequence's prompt."""
        attention = self.torch.nn.functional.scaled_dot_product_attention
        x = x + more
        q, k, v = (part.unflatten(-1, (-1, self.size.head)) for part in self.product(self.norm(x), weights["qkv"]).split(self.parts, -1))
        q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
        if cache is None:
            q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
            seen = attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
        else:
            keys, values = cache
            keys.index_copy_(2, position, k[:, :, None])
            values.index_copy_(2, position, v[:, :, None])
            seen = attention(q[:, :, None], keys, values, attn_mask=mask, enable_gqa=True)[:, :, 0]
        x = x + self.product(seen.flatten(-2), weights["o"])
        return x, self.feed_forward(weights, self.norm(x))

    def last(self, x, more):
        """The tokens with the largest logits."""
        return (self.norm(x + more) @ self.head.t()).argmax(-1)


class Arm:
    """A decoder by PyTorch's own kernels, or compiled: a layer, which all layers share, and what comes after them."""

    def __init__(self, torch, decoder, name):
        self.torch, self.decoder = torch, decoder
        self.layer, self.last = decoder.layer, decoder.last
        if name == "compiled":
            # A compilation for each case: beyond the limit PyTorch would go on without a word, and without compiling.
            dynamo = torch._dynamo.config
            setattr(dynamo, "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit", 64)
            self.layer, self.last = (torch.compile(run, dynamic=False) for run in (self.layer, self.last))

    def through(self, tokens, cos, sin, caches, position, mask):
        x = self.decoder.embedding[tokens]
        more = self.torch.zeros_like(x)
        for weights, cache in zip(self.decoder.layers, caches):
            x, more = self.layer(weights, x, more, cos[:, None], sin[:, None], cache, position, mask)
        return x, more

    def prefill(self, tokens):
        """The token after a prompt of one sequence."""
        decoder, count = self.decoder, len(tokens)
        none = [None] * len(decoder.layers)
        x, more = self.through(tokens, decoder.cos[:count], decoder.sin[:count], none, None, None)
        return self.last(x[-1:], more[-1:])

    def step(self, tokens, position, caches, mask):
        """The token after each sequence's, all at one position, (1)."""
        rows = position.expand(len(tokens))
        return self.last(*self.through(tokens, self.decoder.cos[rows], self.decoder.sin[rows], caches, position, mask))


class Bench:
    def __init__(self, torch, arguments):
        self.torch, self.arguments = torch, arguments
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        if self.device == "cpu" and not arguments.model.startswith("tiny"):
            sys.exit(f"no GPU; --model tiny runs on the CPU, {arguments.model} does not")
        self.start = time.monotonic()
        self.size = SIZES[arguments.model]
        self.decoder = Decoder(torch, self.size, self.device, max(arguments.prefill + arguments.context) + ROOM)
        self.synchronize()
        self.starts, self.prefill, self.decode, self.left_out = {}, {}, {}, {}
        self.load_s = time.monotonic() - self.start

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def timed(self, run, tokens, calls):
        """The milliseconds of a call, of samples of so many."""
        times = []
        for _ in range(self.arguments.runs):
            self.synchronize()
            began = time.perf_counter()
            for _ in range(calls):
                run()
            self.synchronize()
            times.append(1e3 * (time.perf_counter() - began) / calls)
        times.sort()
        ms = statistics.median(times)
        return {"ms": ms, "ms_min": times[0], "ms_max": times[-1], "runs": len(times), "tokens_per_s": 1e3 * tokens / ms}

    def case(self, name, run):
        """Runs a case; a lack of time or memory is a reason to leave it out."""
        if time.monotonic() - self.start > self.arguments.budget:
            self.left_out[name] = "no time left in the budget"
            return
        try:
            run()
        except (RuntimeError, NotImplementedError) as error:  # OutOfMemoryError is one
            self.left_out[name] = str(error).splitlines()[0]
        if self.device == "cuda":
            self.torch.cuda.empty_cache()
        print(f"{time.monotonic() - self.start:6.1f} s  {name}", file=sys.stderr, flush=True)

    def arm(self, name):
        arm = Arm(self.torch, self.decoder, name)
        for length in self.arguments.prefill:
            self.case(f"{name}, prefill {length}", lambda: self.prompt(name, arm, length))
        for context in self.arguments.context:
            for sequences in self.arguments.sequences:
                case = f"{name}, context {context}, sequences {sequences}"
                self.case(case, lambda: self.steps(name, arm, context, sequences))

    def prompt(self, name, arm, length):
        tokens = self.torch.randint(0, self.size.vocabulary, (length,), device=self.device)
        began = time.perf_counter()
        arm.prefill(tokens)
        self.synchronize()
        first = 1e3 * (time.perf_counter() - began)
        self.starts.setdefault(name, {"load_s": self.load_s, "first_token_ms": first, "prompt": length})
        run = self.replayed(lambda: arm.prefill(tokens))
        self.prefill.setdefault(length, {})[name] = self.timed(run, length, 1)

    def steps(self, name, arm, context, sequences):
        torch, size, device = self.torch, self.size, self.device
        shape, dtype = (sequences, size.kv_heads, context + ROOM, size.head), self.decoder.dtype
        caches = [tuple(torch.randn(*shape, device=device, dtype=dtype) for _ in range(2)) for _ in range(size.layers)]
        mask = torch.zeros(1, 1, 1, context + ROOM, device=device, dtype=dtype)
        mask[..., context + 1 :] = float("-inf")
        tokens = torch.randint(0, size.vocabulary, (sequences,), device=device)
        position = torch.full((1,), context, device=device)
        run = self.replayed(lambda: arm.step(tokens, position, caches, mask))
        self.decode.setdefault((context, sequences), {})[name] = self.timed(run, sequences, STEPS)

    def replayed(self, run):
        """The same as a CUDA graph, on a GPU."""
        torch = self.torch
        if self.device == "cpu":
            return run
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        graph.replay()
        return graph.replay

    def record(self):
        gpu = self.torch.cuda.get_device_name() if self.device == "cuda" else "CPU"
        decoder = {
            "schema": SCHEMA,
            "gpu": gpu,
            "model": self.arguments.model,
            "weights": f"random weights in {self.size.format if self.device == 'cuda' else 'f32'}",
            "weights_gb": self.gigabytes(),
            "starts": self.starts,
            "prefill": [{"tokens": tokens, "arms": arms} for tokens, arms in self.prefill.items()],
            "decode": [{"context": context, "sequences": sequences, "arms": arms} for (context, sequences), arms in self.decode.items()],
            "left_out": self.left_out,
        }
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        machine = {"gpu": gpu, **driver(self.device), "torch": self.torch.__version__, "cuda": self.torch.version.cuda, "date": now}
        return {"schema": SCHEMA, "torch": machine, "decoder": decoder}

    def gigabytes(self):
        """What a step of one sequence reads of the weights."""
        size, layer = self.size, self.decoder.layers[0]
        share = size.per_token / size.experts if size.experts else 1
        tensors = [tensor for weight in layer.values() for tensor in (weight if isinstance(weight, tuple) else [weight])]
        of_layer = sum(tensor.nbytes * (share if size.experts and tensor.dim() == 3 else 1) for tensor in tensors)
        return (size.layers * of_layer + self.decoder.head.nbytes) / 1e9


def driver(device):
    """Driver and highest clocks, as nvidia-smi has them."""
    if device == "cpu":
        return {}
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,clocks.max.mem", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        version, sm, memory = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split(",")
        return {"driver": version.strip(), "clocks_mhz": {"sm": int(sm), "memory": int(memory)}}
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        return {"driver": f"unknown: {error}"}


def joined(beside, ours):
    """The record of the command with the arms of this one, which are named torch-ARM."""
    renamed = lambda arms: {f"torch-{arm}": timed for arm, timed in arms.items()}
    mine, theirs = ours["decoder"], beside["decoder"]
    if (mine["model"], mine["gpu"]) != (theirs["model"], theirs["gpu"]):
        sys.exit(f"--beside: a record of {theirs['model']} on {theirs['gpu']}; this is {mine['model']} on {mine['gpu']}")
    for kind, keys in [("prefill", ["tokens"]), ("decode", ["context", "sequences"])]:
        place = lambda row: [row[key] for key in keys]
        for row in mine[kind]:
            found = [other for other in theirs[kind] if place(other) == place(row)]
            if found:
                found[0]["arms"].update(renamed(row["arms"]))
            else:
                theirs[kind].append({**row, "arms": renamed(row["arms"])})
        theirs[kind].sort(key=place)
    theirs["starts"].update(renamed(mine["starts"]))
    theirs["left_out"].update({f"torch-{case}": reason for case, reason in mine["left_out"].items()})
    return {**beside, "torch": ours["torch"]}


def show(record):
    """A line for each arm of each case; the best PyTorch over the best of ours where both are."""
    decoder = record["decoder"]
    print(f"{decoder['model']}, {decoder['weights']}, on {decoder['gpu']}, PyTorch {record['torch']['torch']}")
    for arm, start in decoder["starts"].items():
        print(f"{arm:16} load {start['load_s']:.1f} s, first token after {start['first_token_ms']:.0f} ms")
    cases = [(f"prefill {row['tokens']}", row["arms"]) for row in decoder["prefill"]]
    cases += [(f"decode at {row['context']}, {row['sequences']} sequences", row["arms"]) for row in decoder["decode"]]
    for case, arms in cases:
        print(case)
        for arm, timed in arms.items():
            print(f"  {arm:16} {timed['ms']:9.3f} ms ({timed['ms_min']:.3f} - {timed['ms_max']:.3f}), {timed['tokens_per_s']:10.1f} tokens/s")
        best = lambda names: min((timed["ms"] for arm, timed in arms.items() if names(arm)), default=None)
        ours, torch = best(lambda arm: arm in ("ours", "eager", "captured")), best(lambda arm: arm.startswith("torch-"))
        if ours and torch:
            print(f"  ours over PyTorch {torch / ours:.3f}x")
    for case, reason in decoder["left_out"].items():
        print(f"left out: {case}: {reason}")


def main():
    arguments = parse()
    beside = json.load(open(arguments.beside)) if arguments.beside else None
    import torch  # after the arguments: it takes seconds

    with torch.no_grad():
        bench = Bench(torch, arguments)
        for arm in arguments.arms:
            bench.arm(arm)
    record = bench.record()
    if beside:
        record = joined(beside, record)
    show(record)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
