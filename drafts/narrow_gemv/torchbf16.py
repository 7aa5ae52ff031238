import torch, statistics
def t(m,n,k,count=40):
    copies=max(2,int(300e6/(2*n*k)))
    ws=[torch.randn(n,k,device='cuda',dtype=torch.bfloat16) for _ in range(copies)]
    x=torch.randn(m,k,device='cuda',dtype=torch.bfloat16); out=torch.empty(m,n,device='cuda',dtype=torch.bfloat16)
    for w in ws: torch.matmul(x,w.t(),out=out)
    g=torch.cuda.CUDAGraph(); torch.cuda.synchronize()
    with torch.cuda.graph(g):
        for i in range(count): torch.matmul(x,ws[i%copies].t(),out=out)
    r=[]
    for i in range(11):
        a=torch.cuda.Event(enable_timing=True); b=torch.cuda.Event(enable_timing=True)
        a.record(); g.replay(); b.record(); b.synchronize()
        if i>1: r.append(a.elapsed_time(b)*1000/count)
    return statistics.median(r)
for n,k in ((14336,4096),(4096,14336),(4096,4096),(1024,4096)):
    print('torch bf16',n,k,' '.join(f'm{m} {t(m,n,k):.2f}' for m in (1,4,8,16)))
