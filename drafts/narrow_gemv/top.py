import csv,sys
rows=list(csv.reader(open(sys.argv[1])))
h=next(i for i,r in enumerate(rows) if 'Source' in r)
head=rows[h]; col={n:i for i,n in enumerate(head)}
samp=[n for n in head if n.startswith('# Samples') or 'Samples' in n]
s=next((n for n in ('# Samples','Warp Stall Sampling (All Samples)','Samples') if n in col), samp[0] if samp else None)
ex=next((n for n in head if n.startswith('# Inst') or 'Instructions Executed' in n),None)
body=[r for r in rows[h+1:] if len(r)==len(head)]
def f(x):
    try: return float(x.replace(',',''))
    except: return 0
tot=sum(f(r[col[s]]) for r in body)
print('columns',s,ex,'total samples',tot,'instr',sum(f(r[col[ex]]) for r in body))
stall=[n for n in head if n.startswith('stall_') and 'not_issued' not in n.lower()]
agg={n:sum(f(r[col[n]]) for r in body) for n in stall}
print(sorted(((round(v),n) for n,v in agg.items()),reverse=True)[:12])
# blocks of 40 instructions
b=int(sys.argv[2]) if len(sys.argv)>2 else 60
for i in range(0,len(body),b):
    blk=body[i:i+b]; t=sum(f(r[col[s]]) for r in blk)
    if t>0.005*tot: print(i,'samples %.1f%%'%(100*t/tot),'exec',int(sum(f(r[col[ex]]) for r in blk)/len(blk)),'top:',' | '.join('%d %s'%(f(r[col[s]]),r[col['Source']][:46]) for r in sorted(blk,key=lambda r:-f(r[col[s]]))[:5]))
