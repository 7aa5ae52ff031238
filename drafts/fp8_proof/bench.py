# Times of every configuration beside torch's products of the same recipe. Usage: bench.py SECONDS FILE
import sys
from common import *
torch.manual_seed(0)
start, limit, out = time.time(), float(sys.argv[1]), open(sys.argv[2], "w")
pool = {}
def weights(n, k, dtype, count):
    if (n, k, dtype) not in pool:
        pool.clear(); torch.cuda.empty_cache(); pool[(n, k, dtype)] = []
    own = pool[(n, k, dtype)]
    while len(own) < count: own.append(fp8(torch.randn(n, k, device=dev, dtype=BF)) if dtype == F8 else torch.randint(-127, 128, (n, k), device=dev, dtype=dtype))
    return own[:count]
def datas(m, n, k, kind, dtype=F8):
    c = max(2, min(24, int(420e6 // (n * k + m * k + 2 * m * n)) + 1)) if m * n * k < 1e12 else 2
    x = lambda: fp8(torch.randn(m, k, device=dev, dtype=BF)) if dtype == F8 else torch.randint(-127, 128, (m, k), device=dev, dtype=dtype)
    return [Data(m, n, k, kind, dtype=dtype, w=w, x=x(), unit=True) for w in weights(n, k, dtype, c)]
def torch_arm(kind, ds, fast):
    import torch.nn.functional as F
    from torch.nn.functional import ScalingType
    def make(d):
        if d.dtype != F8: return lambda: torch._int_mm(d.x, d.w.t())
        if kind == "block": return lambda: F.scaled_mm(d.x, d.w.t(), d.fx[:, :d.m].t(), ScalingType.BlockWise1x128, d.fw.t(), ScalingType.BlockWise128x128, output_dtype=BF)
        sa, sb = (d.fx.view(()), d.fw.view(())) if kind == "tensor" else (d.fx.view(-1, 1), d.fw.view(1, -1))
        return lambda: torch._scaled_mm(d.x, d.w.t(), scale_a=sa, scale_b=sb, out_dtype=BF, use_fast_accum=fast)
    try: return timed([make(d) for d in ds])
    except Exception: return None
print(torch.__version__, torch.cuda.get_device_name())
shapes = [(14336, 4096), (4096, 14336), (7168, 16384), (6144, 4096), (2112, 7168), (1024, 4096)]
order = [(s, m) for s in shapes for m in (1, 16, 64, 128, 256, 1024, 4096, 8, 32)]
def one(m, n, k, kind, fast, dtype=F8):
    ds = datas(m, n, k, kind, dtype); found = []
    for kernel, ways in ((few_kernel, few_ways), (gemm_kernel, gemm_ways)):
        if (m <= 64) != (kernel is few_kernel): continue
        for c in ways(ds[0], fast):
            f = kernel(ds[0], fast)
            args = [d.args(c) for d in ds]
            def call(a, f=f): a.stream = torch.cuda.current_stream().cuda_stream; return f.launch(C.byref(a))
            if call(args[0]): continue
            torch.cuda.synchronize()
            us = timed([(lambda a=a: call(a)) for a in args], 4)
            found.append((us, text(c))); out.write(f"{m},{n},{k},{kind},{sums_of(ds[0], fast)},{name_of(dtype)},{text(c)},{us:.2f}\n")
    found.sort(); peer = torch_arm(kind, ds, fast); out.flush()
    if found: print(f"{m:5d} x {n} x {k} {kind:6s} {sums_of(ds[0], fast):8s} {name_of(dtype)} {found[0][0]:7.2f} {found[0][1]} | " + "  ".join(f"{c} {t:.2f}" for t, c in found[1:5]) + f" | torch {peer:.2f}" if peer else f"{m} x {n} x {k} {kind} {sums_of(ds[0], fast)} {found[0]} torch -", flush=True)
for (n, k), m in order:
    for kind, fast in (("tensor", False), ("tensor", True), ("block", False)):
        if time.time() - start > limit: print("out of time"); sys.exit()
        if (m >= 1024 and (n, k) in ((6144, 4096), (2112, 7168), (1024, 4096)) and m > 1024) or fast and m in (1, 8): continue
        one(m, n, k, kind, fast)
    if (n, k) == (14336, 4096) and m in (32, 128, 1024): one(m, n, k, "row", False, torch.int8)
