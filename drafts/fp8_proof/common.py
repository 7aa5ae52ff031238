# The kernels' descriptors by ctypes: tg_gemm_args, plans as src/family has them, and operands.
import ctypes as C, math, statistics, time, torch
dev = "cuda"
lib = C.CDLL("./libfp8.so")
P, I, L, D, U = C.c_void_p, C.c_int32, C.c_int64, C.c_double, C.c_uint32
class Matrix(C.Structure): _fields_ = [("ptr", P), ("row", L), ("col", L), ("batch", L * 2)]
class Config(C.Structure): _fields_ = [(f, I) for f in ("tile_m", "tile_n", "cluster_m", "cluster_n", "split", "stages", "warps", "swap")]
class Types(C.Structure): _fields_ = [(f, U) for f in "abcd"] + [("acc", U)]
class Scale(C.Structure): _fields_ = [("ptr", P), ("zeros", P), ("format", U), ("rows", U), ("columns", U), ("row", L), ("col", L), ("batch", L * 2)]
class Groups(C.Structure): _fields_ = [("first", P), ("of_row", P), ("pairs", P), ("scales", P), ("per_row", L), ("count", L), ("expected", L)]
class Args(C.Structure):
    _fields_ = [("m", L), ("n", L), ("k", L), ("batch", L * 2), ("a", Matrix), ("b", Matrix), ("c", Matrix), ("d", Matrix), ("bias", Matrix), ("alpha", D), ("beta", D),
                ("activation", U), ("config", Config), ("sm_count", I), ("overlap", I), ("stream", P), ("workspace", P), ("workspace_bytes", C.c_uint64),
                ("types", Types), ("a_scale", Scale), ("b_scale", Scale), ("d_scale", Scale), ("groups", Groups), ("gate", U)]
LAUNCH = C.CFUNCTYPE(U, C.POINTER(Args))
class Kernel(C.Structure):
    _fields_ = [("name", C.c_char_p), ("types", Types), ("math", U), ("layout", U), ("tile", I * 3), ("cluster", I * 2), ("align", I),
                ("launch", LAUNCH), ("can_implement", LAUNCH), ("load", C.CFUNCTYPE(U))]
lib.tg_kernels.restype = C.POINTER(C.POINTER(Kernel)); lib.tg_last_cuda_error.restype = C.c_char_p
count = C.c_size_t()
KERNELS = {k.contents.name.decode(): k.contents for k in lib.tg_kernels(C.byref(count))[:count.value]}
F8, BF, F16, F32 = torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32
FORMAT = {F16: 0, BF: 1, F32: 2, F8: 4, torch.int8: 17}
ALL = 2**32 - 1
def cdiv(a, b): return -(-a // b)
def fp8(t): return t.clamp(-448, 448).to(F8)
def ptr(t): return t.data_ptr() if t is not None else None

class Data:
    """Operands and factors. kind: none, tensor, row, block; order: whose stride of X's factors is 1."""
    def __init__(s, m, n, k, kind, out=BF, dtype=F8, order="m", positive=False, x=None, w=None, pad=0, gap=0, unit=False):
        s.m, s.n, s.k, s.kind, s.out, s.dtype, s.order = m, n, k, kind, out, dtype, order
        s.ld = cdiv(k, 16) * 16 + pad
        def make(rows):
            t = torch.full((rows, s.ld), 0x7f if dtype == F8 else 99, device=dev, dtype=torch.uint8).view(dtype)
            if dtype == torch.int8: t[:, :k] = torch.randint(-128, 128, (rows, k), device=dev, dtype=torch.int8)
            else:
                v = torch.randn(rows, k, device=dev)
                t[:, :k] = fp8(v.abs() if positive else v)
            return t
        s.x, s.w = make(m) if x is None else x, make(n) if w is None else w
        s.full = torch.full((m, n + gap), 7.0, device=dev, dtype=out); s.d = s.full[:, :n]
        f = (lambda *a: torch.exp2(torch.rand(*a, device=dev) * 4 - 3)) if not unit else (lambda *a: torch.rand(*a, device=dev))
        kb, nb = cdiv(k, 128), cdiv(n, 128)
        s.fx = s.fw = None
        if kind == "tensor": s.fx, s.fw, s.sx, s.sw = f(1), f(1), (ALL, ALL, 0, 0), (ALL, ALL, 0, 0)
        elif kind == "row": s.fx, s.fw, s.sx, s.sw = f(m), f(n), (1, ALL, 1, 0), (ALL, 1, 0, 1)
        elif kind == "block":
            up = cdiv(m, 4) * 4
            s.fw, s.sw = f(nb, kb), (128, 128, 1, kb)
            s.fx, s.sx = (f(kb, up), (1, 128, 1, up)) if order == "m" else (f(m, kb), (1, 128, kb, 1))
    def operands64(s):
        x, w = s.x[:, :s.k].double(), s.w[:, :s.k].double()
        if s.kind == "tensor": x, w = x * s.fx.double(), w * s.fw.double()
        elif s.kind == "row": x, w = x * s.fx.double().view(-1, 1), w * s.fw.double().view(-1, 1)
        elif s.kind == "block":
            fx = s.fx.double()[:, :s.m].t() if s.order == "m" else s.fx.double()
            fw = s.fw.double().repeat_interleave(128, 0)[:s.n]
            x, w = x * fx.repeat_interleave(128, 1)[:, :s.k], w * fw.repeat_interleave(128, 1)[:, :s.k]
        return x, w
    def args(s, config, bias=None, c=None, alpha=1.0, beta=0.0, activation=0, overlap=1):
        a = Args()
        a.m, a.n, a.k, a.batch[0], a.batch[1] = s.m, s.n, s.k, 1, 1
        a.a = Matrix(ptr(s.x), s.ld, 1); a.b = Matrix(ptr(s.w), 1, s.ld); a.d = Matrix(ptr(s.full), s.full.stride(0), 1)
        if c is not None: a.c = Matrix(ptr(c), c.stride(0), 1)
        if bias is not None: a.bias = Matrix(ptr(bias), 0, 1)
        a.alpha, a.beta, a.activation, a.config, a.sm_count, a.overlap = alpha, beta, activation, config, 132, overlap
        a.stream = torch.cuda.current_stream().cuda_stream
        a.types = Types(FORMAT[s.dtype], FORMAT[s.dtype], FORMAT[s.out], FORMAT[s.out], 2)
        for field, f, st in (("a_scale", s.fx, getattr(s, "sx", (ALL, ALL, 0, 0))), ("b_scale", s.fw, getattr(s, "sw", (ALL, ALL, 0, 0)))):
            setattr(a, field, Scale(ptr(f), None, 2, st[0], st[1], st[2], st[3]))
        a.groups.per_row = 1
        return a

# Configurations, as src/family/sm90_fp8_*.rs has them.
FEW_W = {("f8e4m3", "bf16"): (8, 16, 32, 64)}
def name_of(dtype): return {F8: "f8e4m3", torch.int8: "i8", BF: "bf16", F16: "f16", F32: "f32"}[dtype]
def few_kernel(d, fast=False): return KERNELS[f"sm90_fp8_few_rows_{name_of(d.dtype)}_{name_of(d.out)}{'_fast_accum' if fast else ''}_nt_64x64x256_1x1_s8"]
def gemm_kernel(d, fast=False): return KERNELS[f"sm90_fp8_gemm_{name_of(d.dtype)}_{name_of(d.out)}{'_fast_accum' if fast else ''}_nt_128x256x128_1x1{'' if fast else '_s2'}"]
def sums_of(d, fast): return "blocks" if d.kind == "block" and (d.k > 128 or d.n > 128) else "whole" if fast or d.dtype != F8 else "promoted"
def even(n, tiles):
    tiles = max(tiles, 1)
    while True:
        c = cdiv(cdiv(n, tiles), 8) * 8
        if c <= 64: return c
        tiles *= 2
def few_ways(d, fast=False, residents=(1, 2), splits=(1, 2, 4, 8)):
    widths = (64,) if fast else (8, 16, 32, 64) if (d.dtype, d.out) == (F8, BF) else (16, 64)
    if d.m > 64: return
    w = next(w for w in widths if w >= d.m); blocks = sums_of(d, fast) == "blocks"; seen = set()
    for split in splits:
        if split > cdiv(d.k, 256): continue
        for r in residents:
            reach = {1: 132, 2: 132, 4: 120, 8: 112}[split]
            col = even(d.n, reach * r // split)
            frag = 4 * (w // 8); inbox = split * cdiv(frag, split) * 512 if split > 1 else 0
            room = 228 * 1024 // r - 1024 - (0 if blocks else 4 * (w + 64)) - inbox - 8
            st = min(16, room // ((64 + w) * 256 + (cdiv(2 * (w + 2) * 4, 16) * 16 if blocks else 0) + 16))
            if st >= 3 and (col, split, st) not in seen:
                seen.add((col, split, st))
                yield Config(w, col, 1, 1, split, st, 0, 1)
def gemm_widths(d, fast=False):
    return (224, 256) if fast else (64, 128, 224, 256) if (d.dtype, d.out) == (F8, BF) else (128, 224, 256) if (d.dtype, d.out) == (torch.int8, BF) else (128, 256)
def gemm_ways(d, fast=False):
    ws = gemm_widths(d, fast); sums = sums_of(d, fast); mt = cdiv(d.m, 128); seen = set()
    for w in ws:
        unit = 8 if sums != "blocks" else 128 if w in (128, 256) else 32 if w > 128 else 16
        for split in (1,) if fast else (1, 2):
            per = 132 // (mt * split)
            for col in (w, cdiv(cdiv(d.n, per), unit) * unit if per else None):
                if col is None or col > w or next(x for x in ws if col <= x) != w or (col, split) in seen: continue
                if split == 2 and not (w <= 128 and d.k > 128 and mt * cdiv(d.n, col) * 2 <= 132): continue
                patches = 8 * ((6144 if w == 224 else 4096) if d.out != F32 else 512)
                per_stage, per_tile = (cdiv(4 * (128 + (w + 126) // 128 + 1), 16) * 16, 0) if sums == "blocks" else (0, 8 * (64 + w))
                st = min(8, (227 * 1024 - patches - per_tile - 8) // ((128 + w) * 128 + per_stage + 16))
                seen.add((col, split)); yield Config(128, col, 1, 1, split, st, 0, 0)
def text(c): return f"{c.tile_m}x{c.tile_n}_k{c.split}_s{c.stages}"
def run(kernel, d, config, **kw):
    a = d.args(config, **kw)
    if kernel.can_implement(C.byref(a)): return 1
    return kernel.launch(C.byref(a))

def timed(calls, samples=7, rounds=3):
    s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for c in calls[:2]: c()
    torch.cuda.synchronize(); g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(rounds):
            for c in calls: c()
    g.replay(); torch.cuda.synchronize(); t = []
    for _ in range(samples):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        g.replay(); a.record(); g.replay(); b.record(); torch.cuda.synchronize(); e = a.elapsed_time(b)
        t.append(e * 1e3 / len(calls) / rounds); time.sleep(min(0.02, 2e-3 * e))
    return statistics.median(t)
