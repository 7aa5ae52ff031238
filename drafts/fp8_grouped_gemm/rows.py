# Writes rows_*.inc and tg_kernels.inc, which build.rs would make of the families' tables.
LIMITS = 'own.rows = own.columns = own.most_k = 134217727; own.matrices = 1; own.aligned = 3; own.tma = 2; own.scales = 3;'
entries = ''
def row(name, limits, formats, tile, cluster, widths):
    global entries
    entries += f'TG_ENTRY({name})\n'
    of = ', '.join('TG_' + f.upper() for f in formats)
    return (f'namespace tilegemm {{ constexpr Limits {name}_limits() {{ Limits own; own.groups = Grouping::always; {limits} return own; }} }}\n'
            f'TG_KERNEL({name}, 90, {of}, TG_NATIVE, TG_NT, {tile[0]}, {tile[1]}, {tile[2]}, {cluster}, 1, 1, 0, 0, 16, none, {widths})\n')
for tile, widths in [(32, '16, 32'), (144, '32, 64, 96, 128, 144')]:
    limits = 'own.fusion = Fusion::bias_act; ' + LIMITS
    text = ''.join(row(f'sfg_{out}_{tile}', limits, ['f8e4m3', 'f8e4m3', out], (tile, 128, 128), 1, widths) for out in ['f32', 'bf16', 'f16'])
    open(f'rows_sfg_{tile}.inc', 'w').write(text)
for tile, rows_of_w, widths, cluster in [(32, 128, '8, 16, 24, 32', 1), (176, 256, '8, 16, 32, 64, 96, 128, 136, 144, 160, 176', 2)]:
    limits = 'own.fusion = Fusion::none; own.aligned = 11; own.multiples = 3;'
    open(f'rows_bf16_{tile}.inc', 'w').write(row(f'bf16_{tile}', limits, ['bf16'] * 3, (tile, rows_of_w, 64), cluster, widths))
open('tg_kernels.inc', 'w').write(entries)
