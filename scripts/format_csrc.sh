#!/usr/bin/env bash
# Runs the pinned clang-format on the sources in csrc. Usage: scripts/format_csrc.sh OPTION..., such as -i to format them, or --dry-run --Werror to check.
set -euo pipefail
cd "$(dirname "$0")/.."
eval "$(third_party/fetch.sh --env)"
git ls-files -z 'csrc/*.cu' 'csrc/*.hpp' 'csrc/*.h' 'csrc/*.cpp' | xargs -0 "$CLANG_FORMAT_DIR/clang-format" --style=file "$@"
