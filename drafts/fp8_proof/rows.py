# Writes a TG_ROWS file for each row of a family, as build/table.rs does. Usage: rows.py FAMILY FOLDER
import sys, tomllib
family, folder = sys.argv[1:]
table = tomllib.load(open(f"csrc/{family}/family.toml", "rb"))
INT = 2**31 - 1
names = []
for at, row in enumerate(table["kernel"]):
    text = ""
    for dtype in row["dtype"]:
        (m, n, k), out, math, widths = row["tile"], row["out"], row.get("math", "native"), row["widths"]
        name = f"{family}_{dtype}_{out}{'' if math == 'native' else '_' + math}_nt_{m}x{n}x{k}_1x1{'_s' + str(row['split']) if 'split' in row else ''}"
        names.append(name)
        rows = m if table["limits"].get("rows_of_tile") else INT // 2
        tiles = f"own.tiles = {INT // 2}; own.tile_rows = {m}; own.tile_columns = {widths[0]};" if "tiles" in table["limits"] else ""
        text += (f"namespace tilegemm {{ constexpr Limits {name}_limits() {{ Limits own; own.rows = {rows}; own.columns = own.most_k = {INT // 2}; own.matrices = 1; "
                 f"{tiles} own.two_batch_dims = false; own.aligned = own.tma = own.scales = 3; return own; }} }}\n"
                 f"TG_KERNEL({name}, 90, TG_{dtype.upper()}, TG_{dtype.upper()}, TG_{out.upper()}, TG_{math.upper()}, TG_NT, {m}, {n}, {k}, 1, 1, {row.get('split', 1)}, 0, 0, {row['align']}, none, {', '.join(map(str, widths))})\n")
    open(f"{folder}/{family}-{at}.rows", "w").write(text)
open(f"{folder}/{family}.names", "w").write("".join(f"TG_ENTRY({n})\n" for n in names))
