#!/usr/bin/env bash
# Prints the folders of the candle-core and candle-nn that this crate depends on, with a colon between: tests/gpu runs the tests that their published sources
# hold.
set -euo pipefail
cargo metadata --format-version 1 --all-features --locked | python3 -c '
import json, pathlib, sys
metadata = json.load(sys.stdin)
packages = {p["id"]: p for p in metadata["packages"]}
own = next(n for n in metadata["resolve"]["nodes"] if packages[n["id"]]["name"] == "candle-tilegemm")
found = {packages[d]["name"]: pathlib.Path(packages[d]["manifest_path"]).parent for d in own["dependencies"]}
print(found["candle-core"], found["candle-nn"], sep=":")'
