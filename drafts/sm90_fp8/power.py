# Clock and power of long products, run for half a second each.
import subprocess, threading
from bench import *
p = subprocess.Popen(["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", "40"], stdout=subprocess.PIPE, text=True)
lines = []
threading.Thread(target=lambda: [lines.append((time.time(), l.strip())) for l in p.stdout], daemon=True).start()
for m, n, k in [(4096, 7168, 16384), (4096, 14336, 4096), (256, 7168, 16384)]:
    t, b = datas(m, n, k, "tensor"), datas(m, n, k, "block")
    w = 256 if m > 256 else 224; pr = 1 if m > 256 else 2
    arms = {"whole": [(lambda d=d: gemm(d, w, "whole", pr)) for d in t], "promoted": [(lambda d=d: gemm(d, w, "promoted", pr)) for d in t], "blocks": [(lambda d=d: gemm(d, w, "blocks", pr)) for d in b],
            "torch-fast": [(lambda d=d: torch._scaled_mm(d.x, d.w.t(), scale_a=d.fx.view(()), scale_b=d.fw.view(()), out_dtype=BF, use_fast_accum=True)) for d in t],
            "torch": [(lambda d=d: torch._scaled_mm(d.x, d.w.t(), scale_a=d.fx.view(()), scale_b=d.fw.view(()), out_dtype=BF)) for d in t]}
    for name, calls in arms.items():
        torch.cuda.synchronize(); t0 = time.time(); count = 0; a, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        while time.time() - t0 < 0.35:
            for _ in range(8):
                for c in calls: c(); count += 1
            torch.cuda.synchronize()
        e.record(); torch.cuda.synchronize()
        seen = [l.split(", ") for at, l in lines if t0 + 0.12 < at < t0 + 0.35]
        mhz = statistics.median([float(x[0]) for x in seen]) if seen else 0; watt = statistics.median([float(x[1]) for x in seen]) if seen else 0
        us = a.elapsed_time(e) * 1e3 / count
        print(f"{m:5d} x {n} x {k} {name:10s} {us:7.1f} us {2e-6*m*n*k/us:6.0f} TF  {mhz:.0f} MHz {watt:.0f} W  of the clock's peak {2e-6*m*n*k/us/(132*8192*max(mhz,1)*1e-6):.3f}", flush=True)
p.kill()
