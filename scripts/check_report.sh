#!/usr/bin/env bash
# Opens a page of `tilegemm bench --html` in headless Chromium, without a network: it must write nothing to the console,
# draw every plot and fill the table. Usage: scripts/check_report.sh FILE.html [SCREENSHOT.png [WIDTH,HEIGHT]]
# Needs nothing but Chromium: $CHROMIUM, or one on PATH. DARK=1 takes the screenshot in dark colours.
set -euo pipefail
fail() { echo "check_report.sh: $*" >&2; exit 1; }
page=$(realpath -e "${1:?which page? usage: check_report.sh FILE.html [SCREENSHOT.png [WIDTH,HEIGHT]]}")
browser=${CHROMIUM:-$(for name in chromium chromium-browser google-chrome chrome; do command -v $name && break; done || true)}
if [[ -z $browser ]]; then
  echo "check_report.sh: no Chromium; install one (Debian: apt-get install chromium) or name it: CHROMIUM=path" >&2
  exit 3
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

sandbox=()
((EUID)) || sandbox=(--no-sandbox) # Chromium has none for root, who containers run as

# Names resolve to nothing: there is no network.
open() {
  timeout 120 "$browser" --headless "${sandbox[@]}" --disable-gpu --no-first-run --user-data-dir="$scratch/profile" --hide-scrollbars \
    --host-resolver-rules="MAP * ~NOTFOUND" --enable-logging=stderr --virtual-time-budget=20000 "$@" "file://$page"
}
open --window-size=1280,1200 --dump-dom >"$scratch/dom" 2>"$scratch/log" || fail "$browser failed: $(tail -n 3 "$scratch/log")"

# The page's own policy makes every request to elsewhere an error on the console, beside those of scripts.
grep -q "Content-Security-Policy\" content=\"default-src 'none'" "$page" || fail "the page has no policy that forbids requests"
if grep -E 'CONSOLE' "$scratch/log" >"$scratch/console"; then
  cat "$scratch/console" >&2
  fail "the page writes to the console"
fi

awk '/<script/ { skip = 1 } !skip; /<\/script>/ { skip = 0 }' "$scratch/dom" >"$scratch/body"
count() { { grep -oE "$1" "$scratch/body" || true; } | wc -l; }
plots=$(count 'class="plot[" ]')
drawn=$(count 'class="plot js-plotly-plot"')
canvases=$(count 'class="main-svg"')
rows=$(awk '/<tbody>/ { body = 1 } /<\/tbody>/ { body = 0 } body' "$scratch/body" | grep -c '<tr' || true)
((plots > 0)) || fail "the page has no plots"
((drawn == plots && canvases >= plots)) || fail "$drawn of $plots plots are drawn, with $canvases drawings"
((rows > 0)) || fail "the table has no rows"
echo "$plots plots are drawn, the table has $rows rows, the console is empty"

if [[ -n ${2:-} ]]; then
  dark=${DARK:+--blink-settings=preferredColorScheme=0}
  open --window-size="${3:-1280,4000}" $dark --screenshot="$(realpath "$2")" &>"$scratch/log" || fail "no screenshot: $(tail -n 3 "$scratch/log")"
  echo "screenshot: $2"
fi
