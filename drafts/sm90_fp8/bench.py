# Times of the drafts' variants beside torch's products. Usage: bench.py MODE SECONDS; prints the best variants.
import sys
from common import *
import common
torch.manual_seed(0)
SHAPES = [(14336, 4096), (4096, 14336), (7168, 16384), (6144, 4096)]
common.workspace = torch.empty(256 << 20, device=dev, dtype=torch.uint8)
start = time.time()
def copies(nbytes, flops): return max(2, min(24, int(420e6 // nbytes) + 1)) if flops < 2e12 else 2
pool = {}
def weights(n, k, count):
    if (n, k) not in pool:
        pool.clear(); torch.cuda.empty_cache(); pool[(n, k)] = []
    while len(pool[(n, k)]) < count: pool[(n, k)].append(fp8(torch.randn(n, k, device=dev, dtype=BF)))
    return pool[(n, k)][:count]
def datas(m, n, k, kind):
    c = copies(n * k + m * k + 2 * m * n, 2 * m * n * k)
    return [Data(m, n, k, kind, w=w, x=fp8(torch.randn(m, k, device=dev, dtype=BF)), unit=True) for w in weights(n, k, c)]
def torch_arm(kind, ds):
    import torch.nn.functional as F
    from torch.nn.functional import ScalingType
    def make(d):
        if kind == "block":
            sa, sb = d.fx[:, :d.m].t() if d.m % 4 == 0 else None, d.fw
            if sa is None: return None
            return lambda: F.scaled_mm(d.x, d.w.t(), sa, ScalingType.BlockWise1x128, sb.t(), ScalingType.BlockWise128x128, output_dtype=BF)
        base, fast = kind.split("-")[0], kind.endswith("fast")
        sa, sb = (d.fx.view(()), d.fw.view(())) if base == "tensor" else (d.fx.view(-1, 1), d.fw.view(1, -1))
        return lambda: torch._scaled_mm(d.x, d.w.t(), scale_a=sa, scale_b=sb, out_dtype=BF, use_fast_accum=fast)
    calls = [make(d) for d in ds]
    try: return timed(calls) if all(calls) else None
    except Exception as e: return None
def ours(ds, call, samples=5):
    if call(ds[0]): return None
    torch.cuda.synchronize()
    return timed([(lambda d=d: call(d)) for d in ds], samples)
def report(m, n, k, label, found, peers):
    found = sorted((t, v) for v, t in found.items() if t)
    b = n * k + m * k + 2 * m * n
    us = found[0][0]
    print(f"{m:5d} x {n} x {k} {label:9s} {us:7.2f} us {b*1e-6/us:5.2f} TB/s {2e-6*m*n*k/us:6.0f} TF {found[0][1]:26s} | " + "  ".join(f"{v} {t:.2f}" for t, v in found[1:6]) + " | torch " + "  ".join(f"{a} {t:.2f}" if t else f"{a} -" for a, t in peers.items()), flush=True)
