from bench import *
print("quantiser: us, GB/s of reads and writes")
HOT = [(1, 4096), (8, 14336), (64, 4096), (64, 14336), (64, 16384), (256, 4096)]
for hot, m, k in [(1, *a) for a in HOT] + [(0, *a) for a in [(64, 4096), (64, 16384), (1024, 4096), (4096, 4096), (4096, 14336), (8192, 16384)]]:
    line = []
    for kind in ("row", "block", "tensor"):
        nbytes = 3 * m * k; c = max(2, min(24, int(420e6 // nbytes) + 1)) if not hot else 4
        calls = []
        for _ in range(c):
            x = torch.randn(m, k, device=dev, dtype=BF); codes = torch.empty(m, k, device=dev, dtype=torch.uint8)
            f = torch.ones(cdiv(k, 128), cdiv(m, 4) * 4, device=dev) if kind == "block" else torch.ones(m, device=dev)
            calls.append(lambda x=x, codes=codes, f=f: quantise(kind, x, codes, f, 1, cdiv(m, 4) * 4 if kind == "block" else 0))
        us = timed(calls, 5, 3 if not hot else 20)
        line.append(f"{kind} {us:7.2f} us {nbytes*1e-6/us:5.2f} TB/s")
        calls = None
    print(f"{'hot' if hot else '':4s}{m:5d} x {k:5d}  " + "   ".join(line), flush=True)
