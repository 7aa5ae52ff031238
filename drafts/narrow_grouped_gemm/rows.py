# Writes rows.inc and tg_kernels.inc, which build.rs would make of family.toml, into the working folder.
rows = entries = ''
for dt, b in [('bf16', 'f8e4m3'), ('bf16', 'f4e2m1'), ('f16', 'f8e4m3')]:
    for t in [(8, 16, 64), (64, 128, 64)]:
        name, D = f'ngg_{dt}_{b}_{t[0]}x{t[1]}', 'TG_' + dt.upper()
        B = 'TG_F8E4M3' if b == 'f8e4m3' else 'TG_F4E2M1'
        rows += f'namespace tilegemm {{ constexpr Limits {name}_limits() {{ Limits own; own.groups = Grouping::always; own.fusion = Fusion::bias_act; own.rows = 134217727; own.columns = 134217727; own.most_k = 134217727; own.matrices = 1; own.aligned = 3; own.multiples = 2; own.scales = 2; return own; }} }}\n'
        rows += f'TG_KERNEL({name}, 90, {D}, {B}, {D}, TG_NATIVE, TG_NT, {t[0]}, {t[1]}, {t[2]}, 1, 1, 1, 0, 0, 16, none, 8)\n'
        entries += f'TG_ENTRY({name})\n'
open('rows.inc', 'w').write(rows)
open('tg_kernels.inc', 'w').write(entries)
