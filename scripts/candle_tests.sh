#!/usr/bin/env bash
# Prints the path of candle-core's own matmul tests, which its published sources hold; tests/gpu runs them on our kernels.
set -euo pipefail
cargo metadata --format-version 1 --all-features --locked | python3 -c '
import json, pathlib, sys
packages = json.load(sys.stdin)["packages"]
core = next(p for p in packages if p["name"] == "candle-core")
print(pathlib.Path(core["manifest_path"]).parent / "tests" / "matmul_tests.rs")'
