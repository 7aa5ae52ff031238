# Writes rows_*.inc and tg_kernels.inc, which build.rs would make of the families' tables.
entries = ''
for tile in [(8, 16), (32, 128)]:
    rows = ''
    for dt, out in [('f32', 'f32'), ('bf16', 'f32'), ('f16', 'f32'), ('bf16', 'bf16'), ('f16', 'f16')]:
        for b in ['f8e4m3', 'u4', 'f4e2m1', 'i8', 'u8']:
            name, D = f'ngg_{dt}_{b}{"_own" if out != "f32" else ""}_{tile[0]}', 'TG_' + dt.upper()
            rows += f'namespace tilegemm {{ constexpr Limits {name}_limits() {{ Limits own; own.groups = Grouping::always; own.fusion = Fusion::bias_act; own.rows = 134217727; own.columns = 134217727; own.most_k = 134217727; own.matrices = 1; own.aligned = 3; own.multiples = 2; own.scales = 2; return own; }} }}\n'
            rows += f'TG_KERNEL({name}, 90, {D}, TG_{b.upper()}, TG_{out.upper()}, TG_NATIVE, TG_NT, {tile[0]}, {tile[1]}, 128, 1, 1, 1, 0, 0, 16, none, 0)\n'
            entries += f'TG_ENTRY({name})\n'
    open(f'rows_{tile[0]}.inc', 'w').write(rows)
open('tg_kernels.inc', 'w').write(entries)
# sm90_narrow_grouped_gemm: a file for each tile and format.
for tile, unit, formats in [(32, 256, ['i8']), (192, 256, ['f8e4m3', 'i8']), (32, 128, ['f8e4m3', 'u4', 'u8']),
                            (128, 128, ['f8e4m3', 'u4', 'u8']), (32, 32, ['u4', 'f4e2m1']), (192, 32, ['u4', 'f4e2m1'])]:
    for b in formats:
        rows = ''
        for dt, out in [('f32', 'f32'), ('bf16', 'f32'), ('f16', 'f32'), ('bf16', 'bf16'), ('f16', 'f16')]:
            if b == 'f4e2m1' and dt == 'f16': continue
            name, D = f'sng_{dt}_{b}{"_own" if out != "f32" else ""}_{tile}_{unit}', 'TG_' + dt.upper()
            rows += f'namespace tilegemm {{ constexpr Limits {name}_limits() {{ Limits own; own.groups = Grouping::always; own.fusion = Fusion::bias_act; own.rows = 134217727; own.columns = 134217727; own.most_k = 134217727; own.matrices = 1; own.aligned = 3; own.tma = 2; own.scales = 2; return own; }} }}\n'
            rows += f'TG_KERNEL({name}, 90, {D}, TG_{b.upper()}, TG_{out.upper()}, TG_NATIVE, TG_NT, {tile}, 128, {unit}, 1, 1, 1, 0, 0, 16, none, 0)\n'
            entries += f'TG_ENTRY({name})\n'
        open(f'rows_sng_{tile}_{unit}_{b}.inc', 'w').write(rows)
rows = ''
for name, tile, widths, cluster in [('bf16_32', (32, 128), '8, 16, 24, 32', 1), ('bf16_176', (176, 256), '8, 16, 32, 64, 96, 128, 136, 144, 160, 176', 2)]:
    rows += f'namespace tilegemm {{ constexpr Limits {name}_limits() {{ Limits own; own.groups = Grouping::always; own.fusion = Fusion::none; own.aligned = 11; own.multiples = 3; return own; }} }}\n'
    text = f'TG_KERNEL({name}, 90, TG_BF16, TG_BF16, TG_BF16, TG_NATIVE, TG_NT, {tile[0]}, {tile[1]}, 64, {cluster}, 1, 1, 0, 0, 16, none, {widths})\n'
    open(f'rows_{name}.inc', 'w').write(rows + text)
    rows = ''
    entries += f'TG_ENTRY({name})\n'
open('tg_kernels.inc', 'w').write(entries)
