"""The rows of the five units, as the build makes them of csrc/narrow_gemv/family.toml: rows.py FOLDER ARCH."""
import sys
out,arch=sys.argv[1:3]
entries=''
for b in ['u4','f8e4m3','f4e2m1','i8','u8']:
    k=256 if b in('u4','f4e2m1') else 128
    text=''
    for a in ['f16','bf16','f32']:
        name=f'narrow_gemv_sm{arch}_{a}_{b}_nt_16x512x{k}_1x1'
        text+=f'namespace tilegemm {{ constexpr Limits {name}_limits() {{ Limits own; own.gates_c = true; own.rows = 16; own.columns = 1073741823; own.most_k = 1073741823; own.matrices = 1; own.aligned = 2; own.tma = 2; own.scales = 2; return own; }} }}\n'
        text+=f'TG_KERNEL({name}, {arch}, TG_{a.upper()}, TG_{b.upper()}, TG_{a.upper()}, TG_NATIVE, TG_NT, 16, 512, {k}, 1, 1, 1, 0, 0, 16, none, )\n'
        entries+=f'TG_ENTRY({name})\n'
    open(f'{out}/{b}.inc','w').write(text)
open(f'{out}/tg_kernels.inc','w').write(entries)
