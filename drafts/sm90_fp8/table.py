# The table: the best of a few choices beside torch's products of the same recipe. Usage: table.py SECONDS
import sys
from bench import *
limit = float(sys.argv[1])
def few_choices(m, n, k):
    width = next(w for w in (8, 16, 32, 64) if w >= m)
    for split, per_sm in ((1, 1), (1, 2), (2, 1), (2, 2)):
        box = even(n, 132 * per_sm // split, 64)
        tiles = cdiv(n, box) * split
        if box < 32 or tiles < 100 or tiles > 132 * per_sm or per_sm == 2 and tiles <= 132: continue
        stage = 2 * 128 * (64 + width)
        stages = min(16, int((113 if per_sm == 2 else 226) * 1024 - (256 * width if split > 1 and width < 64 else 0) - 1500) // (stage + 2 * (width + 2) * 4 + 32))
        if stages < 3: continue
        yield f"few split {split} {box} rows x {per_sm}", lambda d, s, b=(box, split, stages): few(d, 1, width, 2, s, *b)
def gemm_choices(m, n, k, kind):
    tm = cdiv(m, 128)
    for w in (64, 96, 112, 128, 192, 224, 256):
        for pair in (0, 1, 2):
            if pair == 1 and (m <= 128 or w < 96): continue
            if m > 256 and (w < 192 or pair == 2): continue
            if m <= 256:
                unit = w if w > 128 else 16
                box = min(w, cdiv(even(n, 132 // (tm * (2 if pair == 2 else 1)), w), unit) * unit)
                if kind == "block" and w == 128: box = 128
                tiles = tm * cdiv(n, box) * (2 if pair == 2 else 1)
                if tiles < 88 or tiles > 132 or box < w * .8: continue
            else: box = w
            yield f"{w}/{box} {('', 'W shared', 'K in two')[pair]}", lambda d, s, w=w, box=box, pair=pair: gemm(d, w, s, pair, box)
print(torch.__version__, torch.cuda.get_device_name(), "floor", round(timed([lambda: common.workspace[:4].add_(1)] * 200, rounds=1), 2))
for n, k in SHAPES:
    for m in (1, 8, 16, 32, 64, 128, 256, 1024, 4096):
        if (n, k) == (6144, 4096) and m > 1024: continue
        for kind, sums, peers in (("tensor", "whole", ("tensor-fast",)), ("tensor", "promoted", ("tensor",)), ("block", "blocks", ("block",))):
            if time.time() - start > limit: print("out of time"); sys.exit()
            if sums == "promoted" and m in (8, 16): continue
            ds = datas(m, n, k, kind)
            found = {name: ours(ds, lambda d: call(d, sums), 4) for name, call in (few_choices(m, n, k) if m <= 64 else gemm_choices(m, n, k, kind))}
            report(m, n, k, sums, found, {a: torch_arm(a, ds) for a in peers})
            del ds
