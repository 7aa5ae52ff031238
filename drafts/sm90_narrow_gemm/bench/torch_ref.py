import torch
torch.manual_seed(0)
def run(n, k, ms):
    copies = max(2, int(480e6 // (n * k * 2)))
    w = torch.randn(copies, n, k, device='cuda', dtype=torch.bfloat16) * 0.02
    out = []
    for m in ms:
        x = torch.randn(m, k, device='cuda', dtype=torch.bfloat16)
        d = torch.empty(m, n, device='cuda', dtype=torch.bfloat16)
        s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            for i in range(2): torch.matmul(x, w[i].t(), out=d)
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        L = 36 if m <= 256 else 20
        with torch.cuda.graph(g, stream=s):
            for i in range(L): torch.matmul(x, w[i % copies].t(), out=d)
        g.replay(); torch.cuda.synchronize()
        ts = []
        for _ in range(7 if m <= 256 else 3):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record(); g.replay(); b.record(); torch.cuda.synchronize()
            ts.append(a.elapsed_time(b) * 1000 / L)
        out.append('%d: %.1f' % (m, sorted(ts)[len(ts) // 2]))
    print('torch bf16 %d x %d us:' % (n, k), '  '.join(out), flush=True)
run(14336, 4096, [16, 32, 64, 128, 256, 1024, 4096])
run(4096, 14336, [16, 32, 64, 128, 256])
run(8192, 8192, [16, 32, 64, 128, 256, 4096])
run(6144, 4096, [16, 32, 64, 128, 256])
run(2880, 2880, [16, 32, 64, 128, 256])
