import re,sys,collections
def run(path):
    f=None; funcs={}
    for l in open(path):
        m=re.search(r'Function : (\S+)',l)
        if m: f=m.group(1); funcs[f]=[]; continue
        m=re.match(r'\s+/\*([0-9a-f]{4,})\*/\s+(.*?);',l)
        if m and f: funcs[f].append((int(m.group(1),16),m.group(2)))
    for f,ins in funcs.items():
        if 'sm90_narrow_gemm' not in f or 'anchor' in f: continue
        hg=[i for i,(a,t) in enumerate(ins) if 'HGMMA' in t]
        if not hg: continue
        # innermost loops with HGMMA: backward branches
        loops=[]
        addr={a:i for i,(a,t) in enumerate(ins)}
        for i,(a,t) in enumerate(ins):
            m=re.search(r'BRA(?:\.\S+)?\s+(?:\S+,\s*)?(?:`\(\S+\)|)(0x[0-9a-f]+)',t)
            if m:
                tgt=int(m.group(1),16)
                if tgt<=a and tgt in addr:
                    j=addr[tgt]
                    n=sum(1 for h in hg if j<=h<=i)
                    if n: loops.append((i-j+1,j,i,n))
        loops.sort()
        print(re.sub(r'.*ShapeILNS_6narrow4CodeE','',f)[:70],'total',len(ins),'HGMMA',len(hg),'STL/LDL',sum(1 for a,t in ins if 'STL' in t or 'LDL' in t))
        for L,j,i,n in [l for l in loops if l[3]>=8][:1]:
            c=collections.Counter()
            for a,t in ins[j:i+1]:
                t=re.sub(r'^@!?U?P\d+ ','',t)
                op=t.split()[0]
                c['.'.join(op.split('.')[:2]) if op.startswith(('LDS','HADD2','F2F','HFMA2','IMAD')) else op.split('.')[0]]+=1
            print('  loop',L,'hgmma',n,dict(c.most_common(28)), 'local', c.get('STL',0)+c.get('LDL',0))
for p in sys.argv[1:]: run(p)
