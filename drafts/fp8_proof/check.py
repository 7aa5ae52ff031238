# Errors of the registered kernels against f64, in units of the bound: 2^-13 of the sum of |x w|, and half a unit of D. Then the quantiser.
import sys
from common import *
torch.manual_seed(1)
start, limit = time.time(), float(sys.argv[1])
LIMIT = {"promoted": 2, "blocks": 2, "whole": 1e9}
worst, failures, runs, refused = {}, 0, 0, 0
def half_unit(ref, out):
    bits, least = {BF: (8, -133), F16: (11, -24), F32: (24, -149)}[out]
    return torch.exp2((torch.floor(torch.log2(ref.abs().clamp_min(1e-300))) - bits).clamp_min(least - 1))
def compare(name, d, status, want, size, limit):
    global failures, runs
    runs += 1
    if status: failures += 1; print("REFUSED", name, status, lib.tg_last_cuda_error()); return
    torch.cuda.synchronize()
    got = d.d.double(); ok = want.isfinite()
    same = torch.equal(got.isnan(), want.isnan())
    if d.out == F16: ok &= want.abs() < 65504
    ratios = ((got - want).abs() / (size * 2.0**-13 + half_unit(want, d.out)))[ok]
    r = float(ratios.max()) if ok.any() else 0.0
    outside = bool((d.full[:, d.n:] != 7).any())
    key = " ".join(name.split(" ")[:2]); w = worst.setdefault(key, [0, 0, ""]); w[1] += 1
    if r > w[0]: w[0], w[2] = r, name
    if not r <= limit or not same or outside:
        failures += 1
        if failures < 25: print(f"WRONG {name} ratio {r:.3g} nan {same} outside {outside}")
def all_ways(d, tag, positive=False, want=None, size=None, **kw):
    if want is None:
        x, w = d.operands64(); want, size = x @ w.t(), x.abs().nan_to_num() @ w.abs().nan_to_num().t()
    for fast in (False, True):
        if fast and (d.dtype != F8 or d.out != BF or d.kind == "block"): continue
        sums = sums_of(d, fast)
        bound = 1e-3 if d.dtype != F8 and d.out == F32 else 1.01 if d.dtype != F8 else LIMIT[sums] * (4 if positive else 1) if d.k > 128 or sums != "whole" else 2
        for kernel, ways in ((few_kernel, few_ways), (gemm_kernel, gemm_ways)):
            for c in ways(d, fast):
                d.full.fill_(7)
                compare(f"{kernel.__name__[:4]}-{sums}-{name_of(d.dtype)} {tag} {d.m}x{d.n}x{d.k} {d.kind}-{d.order} {name_of(d.out)} {text(c)}", d, run(kernel(d, fast), d, c, **kw), want, size, bound)
kinds = [("none", "m"), ("tensor", "m"), ("row", "m"), ("block", "m"), ("block", "k")]
shapes = [(1, 64, 16), (1, 4096, 4096), (3, 72, 400), (8, 129, 1040), (5, 8, 17), (16, 200, 2064), (33, 320, 1536), (64, 1001, 2050), (65, 257, 784), (128, 512, 1024), (200, 600, 656), (300, 2112, 528), (1000, 576, 2880), (129, 1, 272), (2, 20000, 272), (256, 4096, 1000), (1300, 2600, 272)]
for m, n, k in shapes:
    for kind, order in kinds:
        for out in (BF, F16, F32): all_ways(Data(m, n, k, kind, out, order=order, pad=16 * (m % 3), gap=(0, 8, 3)[n % 3]), "random")
        if kind != "block":
            for out in (BF, F16): all_ways(Data(m, n, k, kind, out, dtype=torch.int8, gap=n % 2), "random")
for m, n, k in [(7, 200, 1040), (64, 256, 1024), (150, 520, 1168)]:
    for kind in ("row", "block"):
        d = Data(m, n, k, kind)
        d.x.view(torch.uint8)[m // 2, k - 3] = 0x7f; d.w.view(torch.uint8)[n // 3, 5] = 0xff
        all_ways(d, "nan")
for m, n, k in [(8, 200, 16384), (64, 512, 16384), (200, 640, 16384)]:
    for kind in ("tensor", "block"): all_ways(Data(m, n, k, kind, F32 if kind == "tensor" and m == 64 else BF, positive=True), "positive", positive=True)
for m, n, k in [(9, 200, 400), (64, 250, 1040), (150, 520, 656)]:
    for out in (BF, F16, F32):
        for kind, alpha, beta, act in (("row", 0.5, -2.0, 0), ("block", 1.0, 1.0, 1), ("none", 1.0, 0.0, 4)):
            d = Data(m, n, k, kind, out, gap=1); bias, c = torch.randn(n, device=dev).to(out), torch.randn(m, n, device=dev).to(out)
            x, w = d.operands64(); v = alpha * (x @ w.t()) + bias.double()
            v = v if act == 0 else v.relu() if act == 1 else v * torch.sigmoid(v)
            all_ways(d, "epilogue", want=v + beta * c.double(), size=1.2 * (abs(alpha) * (x.abs() @ w.abs().t()) + bias.abs().double() + abs(beta) * c.abs().double()), bias=bias, c=c, alpha=alpha, beta=beta, activation=act)
# What must be refused.
d = Data(64, 512, 1024, "row"); k = few_kernel(d); good = next(few_ways(d))
def refuses(what, change, kernel=k, config=good, d=d):
    global failures
    a = d.args(config); change(a)
    if kernel.can_implement(C.byref(a)) != 1 or kernel.launch(C.byref(a)) != 1: failures += 1; print("TAKEN", what)
refuses("f16 factors", lambda a: setattr(a.a_scale, "format", 0)); refuses("1x64", lambda a: setattr(a.a_scale, "columns", 64))
refuses("rows of 2", lambda a: setattr(a.a_scale, "rows", 2)); refuses("blocks by rows", lambda a: setattr(a.b_scale, "rows", 128))
refuses("D's factors", lambda a: setattr(a.d_scale, "ptr", a.a_scale.ptr)); refuses("batch", lambda a: a.batch.__setitem__(1, 2))
refuses("stages", lambda a: setattr(a.config, "stages", 17)); refuses("columns", lambda a: setattr(a.config, "tile_n", 60)); refuses("A off 8", lambda a: setattr(a.a, "ptr", a.a.ptr + 8))
b = Data(64, 512, 1024, "block"); refuses("fast blocks", lambda a: None, few_kernel(b, True), next(few_ways(b)), b)
print("runs", runs, "failures", failures, f"{time.time() - start:.1f} s", flush=True)
for key, v in sorted(worst.items()): print(f"  {key:28s} worst {v[0]:9.3f} {v[1]:5d} runs; {v[2]}")

# The quantiser.
class Quantise(C.Structure): _fields_ = [("x", P), ("codes", P), ("factors", P), ("x_stride", L), ("codes_stride", L), ("row_step", L), ("block_step", L), ("rows", I), ("columns", I), ("kind", U), ("format", U), ("code_format", U)]
class Launch(C.Structure): _fields_ = [("stream", P), ("overlap", I), ("sms", I)]
def expect(x, kind, given, most):
    v = x.float(); rows, cols = v.shape
    if kind == 0: return fp8q(torch.where(v.isinf(), torch.nan, v) / given), None
    pad = 0 if kind == 1 else cdiv(cols, 128) * 128 - cols
    b = torch.nn.functional.pad(v, (0, pad)).view(rows, 1 if kind == 1 else -1, cols if kind == 1 else 128)
    spoilt = b.isinf() | (b.isnan() if most == 127 else False)
    top = torch.where(spoilt, torch.inf, b.abs().nan_to_num(0, torch.inf)).amax(2)
    f = torch.where(top == 0, 1.0, (top / torch.tensor(float(most), device=dev)).clamp_min(torch.finfo(torch.float32).tiny))
    f = torch.where(top.isinf(), torch.nan, f)
    q = (b / f[..., None])
    q = fp8q(q).reshape(rows, -1) if most == 448 else torch.round(q).clamp(-127, 127).nan_to_num(0).to(torch.int8).reshape(rows, -1)
    return q[:, :cols].contiguous(), f
def fp8q(q): return torch.where(q.isnan(), q, q.clamp(-448, 448)).to(F8)
bad = tried = 0
for dt in (BF, F16, F32):
    for rows, cols in [(1, 128), (3, 4096), (64, 14336), (5, 1000), (7, 77), (2, 40000), (300, 640), (65, 16384), (4, 1)]:
        x = torch.randn(rows, cols, device=dev) * torch.exp2(torch.randint(-30, 12, (rows, cols // 50 + 1), device=dev).repeat_interleave(50, 1)[:, :cols].float())
        if dt == F16: x = x.clamp(-6e4, 6e4)
        x = x.to(dt); x[0] = 0
        if rows > 2: x[1, cols // 2] = torch.nan; x[2, cols - 1] = -torch.inf
        if rows > 4: x[3] = 1e-41 if dt != F16 else 6e-8; x[4, :] = torch.nan
        for kind, fmt in ((0, F8), (1, F8), (2, F8), (1, torch.int8)):
            kb, up = cdiv(cols, 128), cdiv(rows, 4) * 4
            codes = torch.zeros(rows, cols, device=dev, dtype=torch.uint8)
            f = torch.full((1,), 0.37, device=dev) if kind == 0 else torch.zeros(kb, up, device=dev) if kind == 2 else torch.zeros(rows, device=dev)
            q = Quantise(ptr(x), ptr(codes), ptr(f), cols, cols, int(kind > 0), up if kind == 2 else 0, rows, cols, kind, FORMAT[dt], FORMAT[fmt])
            st = lib.tg_quantise_launch(C.byref(q), C.byref(Launch(torch.cuda.current_stream().cuda_stream, 1, 132)))
            torch.cuda.synchronize(); tried += 1
            want, wf = expect(x, kind, 0.37, 448 if fmt == F8 else 127)
            got_f = f[:, :rows].t() if kind == 2 else f.view(-1, 1)
            got, w = codes.view(fmt).float(), want.float(); nan = w.isnan()
            if fmt != F8: nan = wf.isnan().expand_as(w); same = torch.equal(got[~nan], w[~nan])
            else: same = torch.equal(got.isnan(), nan) and torch.equal(got[~nan], w[~nan])
            same_f = wf is None or torch.equal(got_f.nan_to_num(-1), wf.nan_to_num(-1))
            if st or not same or not same_f: bad += 1; print("QUANTISE", dt, rows, cols, kind, fmt, st, same, same_f)
print("quantise", tried, "bad", bad)
