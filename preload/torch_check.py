#!/usr/bin/env python3
"""PyTorch with and without libtilegemm_preload.so, on a GPU.

usage: torch_check.py LIBRARY [--speed] [--json FILE]

Each arm is a process of its own with the same seeds. The arm `stock` also computes every case in f64. A case passes where the library's results are no further
from the f64 results than 1.5 times stock's, and one rounding of the result's type. `ours` counts the calls of cuBLAS that ran on our kernels, `cuBLAS` the others.
--speed also times products, in turns: two processes an arm, the faster median counts.
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

GPU = "cuda"


def counters():
    """The calls so far on our kernels and on cuBLAS, and why the latter; None without the library."""
    library = os.environ.get("TORCH_CHECK_LIBRARY")
    if not library:
        return None
    text = ctypes.create_string_buffer(1 << 12)
    ctypes.CDLL(library).tilegemm_stats(text, len(text))
    stats = json.loads(text.value)
    assert stats["refused"] == 0, stats
    return stats["ours"], dict(stats["forwarded"])


class Data:
    """Seeded numbers: rounded to the case's type, then in the type that the case is computed in."""

    def __init__(self, stored, computed):
        self.stored, self.computed = stored, computed
        self.generator = torch.Generator(device=GPU).manual_seed(7)

    def __call__(self, *shape, scale=1.0):
        numbers = torch.randn(*shape, generator=self.generator, device=GPU) * scale
        return numbers.to(self.stored).to(self.computed)

    def module(self, make):
        """A module with seeded parameters of the scale that its own have."""
        module = make().to(GPU)
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.data = self(*parameter.shape, scale=parameter.shape[-1] ** -0.5)
            else:
                parameter.data = self(*parameter.shape, scale=0.5)
        return module


def matmul(x):
    return [x(512, 768) @ x(640, 768).t(), x(512, 768) @ x(768, 640), x(768, 512).t() @ x(768, 640), x(768, 512).t() @ x(640, 768).t()]


def odd(x):
    return [x(257, 129) @ x(129, 511), x(1, 1023) @ x(333, 1023).t(), x(63, 1000).t() @ x(63, 77), x(300, 1) @ x(1, 200)]


def decode(x):
    return [x(1, 4096) @ x(4096, 4096).t(), x(1, 1024) @ x(1024, 2816), x(8, 2048) @ x(2048, 2048).t(), torch.mv(x(3000, 1500), x(1500))]


def nasty(x):
    """Addresses at no multiple of 16 bytes, rows far apart, sizes of 1, long sums, many matrices, one matrix for a batch, and a C of NaN that is not read."""
    shifted, apart = x(300 * 200 + 3)[3:].view(300, 200), x(64, 1792)[:, 100:356]
    return [
        shifted @ x(120, 200).t(), apart @ x(256, 96), x(1, 1) @ x(1, 1), x(1, 16384) @ x(8, 16384).t(), x(20000, 64) @ x(64, 1), x(16, 30000) @ x(24, 30000).t(),
        x(70000, 2, 4) @ x(70000, 4, 3), torch.bmm(x(6, 40, 32), x(1, 32, 24).expand(6, 32, 24)), torch.addmm(x(64, 48) * float("nan"), x(64, 96), x(96, 48), beta=0),
    ]  # fmt: skip


def bmm(x):
    query, key = x(3, 8, 96, 64), x(3, 8, 80, 64)
    return [torch.bmm(x(24, 128, 64), x(24, 64, 80)), query @ key.transpose(2, 3), x(5, 33, 40) @ x(40, 24)]


def added(x):
    matrix = x(256, 320)
    matrix.addmm_(x(256, 192), x(192, 320), beta=0.5, alpha=1.5)
    return [
        torch.addmm(x(256, 320), x(256, 192), x(192, 320), beta=0.7),
        torch.addmm(x(320), x(256, 192), x(192, 320)),
        torch.baddbmm(x(6, 64, 48), x(6, 64, 32), x(6, 32, 48), beta=0.25, alpha=2.0),
        matrix,
    ]


def linear(x):
    results = []
    for rows in (1, 2, 16, 100, 512):
        results.append(F.linear(x(rows, 1024), x(1536, 1024, scale=1 / 32), x(1536)))
    return results + [F.linear(x(4, 30, 512), x(256, 512), None), F.linear(x(3, 5, 70), x(33, 70), x(33))]


def activated(x):
    """cuBLASLt's epilogues: bias with ReLU, and bias with the tanh approximation of GELU."""
    out = []
    for gelu in (False, True):
        for rows in (1, 64, 300):
            bias, a, b = x(768), x(rows, 512), x(768, 512, scale=512**-0.5)
            if x.computed == torch.float64:
                sum_ = torch.addmm(bias, a, b.t())
                out.append(F.gelu(sum_, approximate="tanh") if gelu else F.relu(sum_))
            else:
                out.append(torch._addmm_activation(bias, a, b.t(), use_gelu=gelu))
    return out


def scaled(x):
    """fp8 by fp8 with one factor, one for each row, and 1 x 128 by 128 x 128; both kinds of sums."""

    def rounded(rows, columns, shared):
        """Codes, factors, and the numbers that they stand for; shared: rows and columns with a factor."""
        numbers = x(rows, columns).float().view(rows // shared[0], shared[0], columns // shared[1], shared[1])
        factors = numbers.abs().amax((1, 3), keepdim=True) / 448
        codes = (numbers / factors).to(torch.float8_e4m3fn)
        return codes.view(rows, columns), factors[:, 0, :, 0], (codes.double() * factors.double()).view(rows, columns)

    is_hopper = torch.cuda.get_device_capability() == (9, 0)
    results = []
    for m, n, k in ((1, 512, 1024), (16, 1024, 512), (100, 384, 1536), (300, 256, 2048), (1024, 512, 512)):
        kinds = {"one": ((m, k), (n, k)), "rows": ((1, k), (1, k)), "blocks": ((1, 128), (128, 128))}
        for kind, (of_a, of_b) in kinds.items():
            # Stock PyTorch has blocks on Hopper alone, and not with one row.
            if kind == "blocks" and (not is_hopper or m == 1):
                continue
            (a, scale_a, exact_a), (b, scale_b, exact_b) = rounded(m, k, of_a), rounded(n, k, of_b)
            for fast in (False,) if kind == "blocks" else (False, True):
                if x.computed == torch.float64:
                    results.append(exact_a @ exact_b.t())
                else:
                    by_columns = scale_a.t().contiguous().t()
                    scales = [scale_a.view(()), scale_b.view(())] if kind == "one" else [by_columns, scale_b.t()]
                    results.append(torch._scaled_mm(a, b.t(), *scales, out_dtype=x.stored, use_fast_accum=fast))
    return results


def conv2d(x):
    return [
        F.conv2d(x(4, 32, 28, 28), x(64, 32, 3, 3, scale=0.06), x(64), padding=1),
        F.conv2d(x(4, 64, 14, 14), x(128, 64, 1, 1, scale=0.1), x(128)),
        F.unfold(x(2, 16, 20, 20), 3).transpose(1, 2) @ x(144, 24),
    ]


class Block(torch.nn.Module):
    def __init__(self, width=256, heads=4):
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = (query @ key.transpose(2, 3)) * (width // self.heads) ** -0.5
        mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


def transformer(x):
    model = x.module(lambda: torch.nn.Sequential(Block(), Block()))
    with torch.no_grad():
        return [model(x(3, 50, 256)), model(x(1, 1, 256))]


def training(x):
    """One step of SGD: the loss, and the parameters after the step."""
    model = x.module(lambda: torch.nn.Sequential(Block(128, 2), torch.nn.Linear(128, 40)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    tokens, targets = x(4, 32, 128), (torch.arange(128, device=GPU) * 7 % 40)
    loss = F.cross_entropy(model(tokens).reshape(128, 40).to(x.computed), targets)
    loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    optimizer.step()
    return [loss.detach()] + gradients


def captured(warm_up, stream=None):
    """A biased linear layer and a product in a CUDA graph, replayed with other numbers."""

    def case(x):
        rows, weight, bias = x(16, 1024), x(768, 1024, scale=1 / 32), x(768)
        others = [x(16, 1024) for _ in range(3)]
        run = lambda: F.linear(rows, weight, bias) @ weight
        if x.computed == torch.float64:
            return [F.linear(other, weight, bias) @ weight for other in others]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        if warm_up:
            with torch.cuda.stream(side):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side if stream == "same" else None):
            result = run()
        results = []
        for other in others:
            rows.copy_(other)
            graph.replay()
            results.append(result.clone())
        return results

    return case


def captured_training(x):
    """Forward and backward in a CUDA graph: PyTorch launches the backward products from a thread of its own while the first thread captures in global mode."""
    model = x.module(lambda: torch.nn.Sequential(torch.nn.Linear(192, 320), torch.nn.GELU(), torch.nn.Linear(320, 64)))
    data, other = x(48, 192), x(48, 192)

    def step():
        for parameter in model.parameters():
            parameter.grad = None
        loss = model(data).square().mean()
        loss.backward()
        return loss

    if x.computed == torch.float64:
        data = other
        loss = step()
        return [loss.detach()] + [parameter.grad for parameter in model.parameters()]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    data.copy_(other)
    graph.replay()
    return [loss.detach()] + [parameter.grad for parameter in model.parameters()]


CASES = {
    "graph, no warm-up": captured(False),
    "graph": captured(True),
    "graph, warm-up on its stream": captured(True, "same"),
    "graph of a training step": captured_training,
    "matmul": matmul,
    "odd sizes": odd,
    "decode": decode,
    "nasty": nasty,
    "bmm": bmm,
    "addmm, baddbmm": added,
    "linear": linear,
    "linear + ReLU, GELU": activated,
    "scaled_mm": scaled,
    "conv2d": conv2d,
    "transformer": transformer,
    "training step": training,
}
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "tf32": torch.float32, "f64": torch.float64}
# One rounding of the result's type, relative to the largest result; TF32 rounds operands of f32.
ROUNDING = {"bf16": 2**-8, "f16": 2**-11, "f32": 1e-6, "tf32": 2**-11, "f64": 1e-14}


def selected(only):
    for kind, stored in TYPES.items():
        for name, case in CASES.items():
            if kind == "f64" and name not in ("matmul", "odd sizes", "nasty", "bmm", "addmm, baddbmm"):
                continue
            if name == "scaled_mm" and (kind != "bf16" or torch.cuda.get_device_capability() < (8, 9)):
                continue
            if not only or f"{kind} {name}" in only:
                yield kind, stored, name, case


def results(only, with_reference):
    """The results of every case, and the f64 results."""
    cases = {}
    for kind, stored, name, case in selected(only):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"
        before = counters()
        found = [result.double().cpu() for result in case(Data(stored, stored))]
        torch.cuda.synchronize()
        after = counters()
        exact = [result.cpu() for result in case(Data(stored, torch.float64))] if with_reference else None
        cases[f"{kind} {name}"] = {"found": found, "exact": exact, "calls": (before, after)}
    return cases


# Rows, columns, K, bias, type.
SPEEDS = [
    (1, 4096, 4096, True, "bf16"), (1, 4096, 4096, False, "bf16"), (1, 14336, 4096, False, "bf16"), (1, 4096, 14336, True, "f16"), (4, 4096, 4096, True, "bf16"),
    (16, 4096, 4096, True, "bf16"), (64, 4096, 4096, False, "bf16"), (128, 1536, 4096, True, "bf16"), (257, 4096, 4096, False, "bf16"), (512, 4095, 4095, False, "bf16"),
    (2048, 4096, 4096, True, "bf16"), (4096, 4096, 4096, False, "bf16"), (1, 4096, 4096, True, "f32"), (512, 1024, 1024, True, "f32"), (2048, 2048, 2048, False, "f32"),
    (2048, 2048, 2048, False, "tf32"), (1024, 1024, 1024, False, "f64"),
]  # fmt: skip


def speed():
    """Microseconds of F.linear: each call with another of the weights that together exceed the L2 cache; in a CUDA graph, and called one by one. Everything is on
    one stream, as a program has few: from the ninth stream on, streams share one workspace."""
    times = {}
    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    for m, n, k, with_bias, kind in SPEEDS:
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        stored = TYPES[kind]
        x = Data(stored, stored)
        count = max(2, min(16, (160 << 20) // (n * k * stored.itemsize)))
        weights = [x(n, k, scale=k**-0.5) for _ in range(count)]
        rows, bias = x(m, k), x(n) if with_bias else None
        run = lambda: [F.linear(rows, weight, bias) for weight in weights]
        before = counters()
        run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            run()
        after = counters()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

        def median(call):
            samples = []
            for _ in range(30):
                torch.cuda.synchronize()
                begin.record()
                for _ in range(4):
                    call()
                end.record()
                end.synchronize()
                samples.append(begin.elapsed_time(end) * 1e3 / count / 4)
                time.sleep(0.004)
            return statistics.median(samples[5:])

        name = f"{m}x{n}x{k} {kind}" + (" + bias" if with_bias else "")
        times[name] = {"graph": median(graph.replay), "eager": median(run), "calls": (before, after)}
    return times


def host():
    """Microseconds of the host for a call of F.linear, without bias (cublasGemmEx) and with bias (cublasLtMatmul)."""
    rows, weight, bias = [torch.ones(*shape, device=GPU, dtype=torch.bfloat16) for shape in ((4, 64), (64, 64), (64,))]
    times = []
    for arguments in ((rows, weight), (rows, weight, bias)):
        samples = []
        for _ in range(30):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(200):
                F.linear(*arguments)
            samples.append((time.perf_counter() - began) * 1e6 / 200)
        times.append(statistics.median(samples[5:]))
    return times


def first_call():
    """Seconds of the first product of the process, and the device memory that the product takes beside the operands, in MiB."""
    rows = torch.ones(16, 1024, device=GPU, dtype=torch.bfloat16)
    torch.cuda.synchronize()
    free, began = torch.cuda.mem_get_info()[0], time.perf_counter()
    rows @ rows.t()
    torch.cuda.synchronize()
    return time.perf_counter() - began, (free - torch.cuda.mem_get_info()[0]) >> 20


def child(args):
    began = first_call()
    found = speed() if args.speed else results(args.only, with_reference=not os.environ.get("TORCH_CHECK_LIBRARY"))
    torch.save({"first": began, "found": found, "stats": counters(), "host": host() if args.speed else None}, args.out)


def arm(library, *arguments):
    """What a child process with the library, or without, has found."""
    out = tempfile.mktemp(suffix=".pt")
    environment = dict(os.environ, TILEGEMM_STATS="on")
    if library:
        environment.update(LD_PRELOAD=library, TORCH_CHECK_LIBRARY=library)
    child = subprocess.run([sys.executable, __file__, "--out", out, *arguments], env=environment, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(child.stderr)
    assert child.returncode == 0, f"a child ended with {child.returncode}"
    if library:
        assert '"ours":' in child.stderr, "the library did not report its counters when the program ended"
    found = torch.load(out)
    os.unlink(out)
    return found


def calls(before_after):
    (ours_before, before), (ours, after) = before_after
    forwarded = {reason: count - before.get(reason, 0) for reason, count in after.items()}
    return ours - ours_before, {reason: count for reason, count in forwarded.items() if count}


def error(found, exact):
    """The largest deviation over the results of a case, each relative to the root mean square of its exact result."""
    worst = 0.0
    for result, right in zip(found, exact, strict=True):
        if not torch.isfinite(result).all():
            return float("inf")
        worst = max(worst, ((result - right).abs().max() / right.square().mean().sqrt().clamp_min(1e-30)).item())
    return worst


def compare(library, only):
    arguments = ["--only", *only] if only else []
    stock, ours = arm(None, *arguments), arm(library, *arguments)
    print(f"first product: {stock['first'][0]:.2f} s and {stock['first'][1]} MiB stock, {ours['first'][0]:.2f} s and {ours['first'][1]} MiB with the library")
    print(f"{'case':<36}{'error stock':>13}{'with ours':>13}{'ours':>6}{'cuBLAS':>8}")
    failed, rows = [], []
    for name, case in stock["found"].items():
        mine = ours["found"][name]
        errors = [error(found, case["exact"]) for found in (case["found"], mine["found"])]
        ran, forwarded = calls(mine["calls"])
        peak = max((right.abs().max() / right.square().mean().sqrt().clamp_min(1e-30)).item() for right in case["exact"])
        passed = errors[1] <= 1.5 * errors[0] + ROUNDING[name.split()[0]] * peak
        reasons = ", ".join(f"{reason} {count}" for reason, count in forwarded.items())
        print(f"{name:<36}{errors[0]:>13.2e}{errors[1]:>13.2e}{ran:>6}{sum(forwarded.values()):>8}  {reasons}{'' if passed else '  WRONG'}")
        rows.append({"case": name, "error": errors, "ours": ran, "forwarded": forwarded, "passed": passed})
        if not passed:
            failed.append(name)
    total = ours["stats"]
    print(f"calls of cuBLAS: {total[0]} on our kernels, forwarded: {total[1]}")
    if total[0] == 0:
        failed.append("no call ran on our kernels")
    return rows, failed


def compare_speed(library):
    runs = [arm(which, "--speed") for which in (None, library, None, library)]
    arms = [run["found"] for run in runs]
    hosts = [[min(runs[first]["host"][kind], runs[first + 2]["host"][kind]) for first in (0, 1)] for kind in (0, 1)]
    (plain, plain_ours), (biased, biased_ours) = hosts
    print(f"the host's time of a call: {plain:.1f} us stock, {plain_ours:.1f} with the library; with a bias {biased:.1f} and {biased_ours:.1f}")
    rows = []
    print(f"{'F.linear':<30}{'graph: stock':>14}{'ours us':>10}{'ratio':>7}{'eager: stock':>14}{'ours us':>10}{'ratio':>7}  kernels")
    for name, times in arms[1].items():
        best = {mode: [min(arms[first][name][mode], arms[first + 2][name][mode]) for first in (0, 1)] for mode in ("graph", "eager")}
        ran, forwarded = calls(times["calls"])
        (stock, ours), (stock_eager, ours_eager) = best["graph"], best["eager"]
        whose = "ours" if not forwarded else "cuBLAS" if not ran else "both"
        print(f"{name:<30}{stock:>14.1f}{ours:>10.1f}{stock / ours:>7.2f}{stock_eager:>14.1f}{ours_eager:>10.1f}{stock_eager / ours_eager:>7.2f}  {whose}")
        rows.append({"linear": name, **best, "ours": ran, "forwarded": forwarded})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--only", nargs="*", help="cases by name, such as 'bf16 linear'")
    parser.add_argument("--json")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.out:
        return child(args)
    assert args.library, "name libtilegemm_preload.so"
    library = os.path.abspath(args.library)
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}")
    rows, failed = compare(library, args.only)
    times = compare_speed(library) if args.speed else []
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "cases": rows, "speed": times}, file, indent=1)
    if failed:
        sys.exit("failed: " + ", ".join(failed))
    print(f"{len(rows)} cases passed")


if __name__ == "__main__":
    main()
