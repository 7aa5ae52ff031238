#!/bin/bash
# reads lines "name|args"
while IFS='|' read -r n a; do [ -z "$n" ] && continue; echo "== $n: $a"; ./probe.sh "$a" $n | cut -c1-160 | grep -v "0 bytes stack frame, 0 bytes spill stores\|Used 4 reg"; done
