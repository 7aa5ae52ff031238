# Errors against f64, in units of the bound: 2^-13 of the sum of |x w|, and half a unit of D.
import sys, traceback
from common import *
import common
torch.manual_seed(1)
LIMIT = 8
worst, failures, runs = {}, 0, 0
def half_unit(ref, out):
    bits = {BF: 8, torch.float16: 11, torch.float32: 24}[out]
    least = {BF: -133, torch.float16: -24, torch.float32: -149}[out]
    e = torch.floor(torch.log2(ref.abs().clamp_min(1e-300)))
    return torch.exp2((e - bits).clamp_min(least - 1))
def compare(name, d, status, want, size, must=True):
    global failures, runs
    runs += 1
    if status:
        print("refused", name, status); failures += 1; return
    torch.cuda.synchronize()
    got = d.d.double()
    same_nan = torch.equal(got.isnan(), want.isnan())
    ok = ~want.isnan()
    bound = size * 2.0**-13 + half_unit(want, d.out)
    ratios = ((got - want).abs() / bound)[ok]
    ratio = float(ratios.max()) if ok.any() else 0.0
    key = " ".join(name.split(" ")[:2])
    w = worst.setdefault(key, [0, 0, 0, ""])
    if ratio > w[0]: w[0], w[3] = ratio, name
    w[1] += float(ratios.mean()) if ok.any() else 0; w[2] += 1
    if (must and not ratio <= LIMIT) or not same_nan:
        failures += 1
        if failures < 25: print(f"WRONG {name} ratio {ratio:.3g} nan {same_nan}")
def reference(d, positive=False):
    x, w = d.operands64()
    return x @ w.t(), x.abs().nan_to_num() @ w.abs().nan_to_num().t()
common.workspace = torch.empty(64 << 20, device=dev, dtype=torch.uint8)

few_variants = {BF: (8, 16, 32, 64, 128), torch.float16: (16,), torch.float32: (8, 64)}
gemm_variants = {BF: (64, 96, 112, 128, 192, 224, 256), torch.float16: (128,), torch.float32: (256,)}
def run_all(d, tag, whole_must, **kw):
    want, size = reference(d)
    for s in ("whole", "promoted") if d.kind != "block" else ("blocks",):
        if d.int8 and s != "whole": continue
        for w in few_variants[d.out]:
            if d.m > w or d.m * 4 <= w and w > 8 or d.int8 and w not in (8, 64): continue
            for g in (1, 2):
                for split in (1, 2, 4, 8):
                    for boxes in (1,) if w == 128 else (1, 2) if w >= 32 else (2,):
                        if d.k <= 128 * boxes * (split - 1): continue
                        for stages, box in ((3, 64 * g), (6, even(d.n, 7, 64 * g))):
                            d.d.fill_(7)
                            st = few(d, g, w, boxes, s, box, split, stages, **kw)
                            if st == 1 and (stages > 3 or split == 1): continue
                            compare(f"few-{s}{'-i8' if d.int8 else ''} {tag} {d.m}x{d.n}x{d.k} {d.kind}-{d.order} {d.out} g{g} w{w}/{box} b{boxes} split{split} stages{stages}", d, st, want, size, s != "whole" or whole_must)
        if d.m < 16: continue
        for w in gemm_variants[d.out]:
            if d.int8 and w not in (128, 256): continue
            for pair in (0, 1, 2):
                for box in (w, 96 if w > 96 else 48):
                    d.d.fill_(7)
                    st = gemm(d, w, s, pair, box, 256, **kw)
                    if st == 1 and (pair or box != w): continue
                    compare(f"gemm-{s}{'-i8' if d.int8 else ''} {tag} {d.m}x{d.n}x{d.k} {d.kind}-{d.order} {d.out} w{w}/{box} pair{pair}", d, st, want, size, s != "whole" or whole_must)
shapes = [(1, 64, 16), (1, 4096, 4096), (3, 72, 400), (8, 129, 1040), (16, 200, 2064), (33, 320, 1536), (64, 1001, 2048), (65, 257, 784), (128, 512, 1024), (200, 600, 656), (300, 2112, 528), (1000, 576, 2880)]
for m, n, k in shapes:
    for kind in ("tensor", "row", "block"):
        for order in ("m", "k") if kind == "block" else ("m",):
            for out in (BF, torch.float16, torch.float32):
                if out != BF and m in (8, 300): continue
                run_all(Data(m, n, k, kind, out, order=order), "random", k <= 128)
# NaN codes: a NaN in x makes a row of D, a NaN in w a column.
for m, n, k in [(7, 200, 1040), (64, 256, 1024), (150, 520, 1168)]:
    for kind in ("row", "block"):
        d = Data(m, n, k, kind)
        d.x.view(torch.uint8)[m // 2, k - 3] = 0x7f; d.w.view(torch.uint8)[n // 3, 5] = 0xff
        run_all(d, "nan", False)
# Sums of one sign.
for m, n, k in [(1, 512, 16384), (32, 512, 16384), (256, 512, 16384)]:
    for kind in ("tensor", "block"):
        d = Data(m, n, k, kind, torch.float32, positive=True)
        run_all(d, "positive", False)
        if m % 16 == 0 and kind == "tensor":
            want, size = reference(d)
            for fast in (False, True):
                d.d = torch._scaled_mm(d.x, d.w.t(), scale_a=d.fx.view(()), scale_b=d.fw.view(()), out_dtype=torch.float32, use_fast_accum=fast)
                compare(f"torch-{'fast' if fast else 'promoted'} positive {m}x{n}x{k}", d, 0, want, size, False)
for m, n, k in [(5, 200, 1040), (64, 500, 4096), (128, 256, 512), (333, 777, 1296)]: run_all(Data(m, n, k, "row", int8=True), "random", True)
# Epilogues: bias, alpha, C.
for m, n, k in [(9, 200, 528), (60, 333, 1024), (140, 520, 400)]:
    for kind in ("row", "block"):
        d = Data(m, n, k, kind)
        bias, c = torch.randn(n, device=dev).to(BF), torch.randn(m, n, device=dev).to(BF)
        want, size = reference(d)
        want, size = torch.relu(0.5 * want + bias.double()) + 2 * c.double(), size + bias.double().abs() + 2 * c.double().abs()
        kw = dict(bias=bias, c=c, alpha=0.5, beta=2.0, activation=1)
        s = "blocks" if kind == "block" else "promoted"
        for g in (1, 2):
            for split in (1, 2):
                w = 64 if m > 16 else 16
                if m <= 64: d.d.fill_(7); compare(f"few-epilogue x {m}x{n}x{k} {kind} g{g} split{split}", d, few(d, g, w, 2, s, 64 * g, split, 3, **kw), want, size)
        for w, pair in ((112, 0), (128, 0), (224, 1), (256, 2)): d.d.fill_(7); compare(f"gemm-epilogue x {m}x{n}x{k} {kind} w{w} pair{pair}", d, gemm(d, w, s, pair, **kw), want, size)

# The quantiser, against the same rule in torch.
def expect(x, kind, given=None):
    v = x.float(); rows, cols = v.shape
    def code(v, f):
        q = v / (f if torch.is_tensor(f) else torch.tensor(f, device=dev))
        return torch.where(q.isnan(), q, q.clamp(-448, 448)).to(F8)
    if kind == "tensor": return code(torch.where(v.isinf(), torch.nan, v), given), None
    pad = 0 if kind == "row" else cdiv(cols, 128) * 128 - cols
    b = torch.nn.functional.pad(v, (0, pad)).view(rows, 1 if kind == "row" else -1, cols if kind == "row" else 128)
    most = b.abs().nan_to_num(0, torch.inf).amax(2)
    f = torch.where(most == 0, 1.0, (most / torch.tensor(448.0, device=dev)).clamp_min(torch.finfo(torch.float32).tiny))
    f = torch.where(most.isinf(), torch.nan, f)
    return code(b, f[..., None]).reshape(rows, -1)[:, :cols].contiguous(), f
bad = 0
for dt in (BF, torch.float16, torch.float32):
    for rows, cols in [(1, 128), (3, 4096), (64, 14336), (5, 1000), (7, 77), (2, 40000), (300, 640), (65, 16384)]:
        x = torch.randn(rows, cols, device=dev, dtype=torch.float32) * torch.exp2(torch.randint(-30, 12, (rows, cols // 50 + 1), device=dev).repeat_interleave(50, 1)[:, :cols].float())
        if dt == torch.float16: x = x.clamp(-6e4, 6e4)
        x = x.to(dt)
        x[0] = 0
        if rows > 2: x[1, cols // 2] = torch.nan; x[2, cols - 1] = -torch.inf
        if rows > 4: x[3] = 1e-41 if dt != torch.float16 else 6e-8; x[4, :] = torch.nan
        for kind in ("tensor", "row", "block"):
            kb = cdiv(cols, 128); pad = cdiv(rows, 4) * 4
            codes = torch.zeros(rows, cols, device=dev, dtype=torch.uint8)
            f = torch.full((1,), 0.37, device=dev) if kind == "tensor" else torch.zeros(kb, pad, device=dev) if kind == "block" else torch.zeros(rows, device=dev)
            st = quantise(kind, x, codes, f, 1 if kind != "tensor" else 0, pad if kind == "block" else 0)
            torch.cuda.synchronize()
            want, wf = expect(x, kind, 0.37)
            got_f = f[:, :rows].t() if kind == "block" else f.view(-1, 1)
            nan = want.float().isnan()
            got = codes.view(F8)
            same = torch.equal(got.float().isnan(), nan) and torch.equal(got.float()[~nan], want.float()[~nan])
            same_f = wf is None or torch.equal(got_f.nan_to_num(-1), wf.nan_to_num(-1))
            runs += 1
            if st or not same or not same_f:
                bad += 1; diff = (codes != want.view(torch.uint8)) & ~nan
                print("QUANTISE", dt, rows, cols, kind, st, same, same_f, int(diff.sum()))
print("runs", runs, "failures", failures, "quantise", bad)
for k, v in sorted(worst.items()): print(f"  {k:28s} worst {v[0]:8.3f} mean {v[1] / v[2]:8.4f} of the bound, {v[2]} runs; {v[3]}")
