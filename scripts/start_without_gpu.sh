#!/usr/bin/env bash
# On a machine without a driver, checks that CUDA-featured binaries start, say that there is no device, and do what they
# can. On a machine with one there is nothing to check. The binaries are in target/debug.
set -euo pipefail
if nvidia-smi -L &>/dev/null; then
  echo "a device is here: nothing to check"
  exit 0
fi
# `grep -q` would leave at the first match, and a program that still writes would fail.
fail() { echo "start_without_gpu.sh: $*" >&2; exit 1; }
bin=target/debug
gpu_test=$(ls -t $bin/deps/gpu-* | grep -v '\.d$' | head -n 1)

"$gpu_test" | grep "skipped: no CUDA device" >/dev/null || fail "the GPU tests do not say that they were skipped"
listed() { "$gpu_test" --list "$@" | grep -c ': test$'; }
(($(listed) > 0 && $(listed) == $(listed --shard 1/3) + $(listed --shard 2/3) + $(listed --shard=3/3))) || fail "three parts of the GPU tests are not all of them"
! "$gpu_test" --shard 4/3 &>/dev/null || fail "the GPU tests have a fourth part of three"
! TILEGEMM_REQUIRE_GPU=1 "$gpu_test" &>/dev/null || fail "the GPU tests pass without a GPU under TILEGEMM_REQUIRE_GPU=1"
decoders=$(ls -t $bin/deps/decoders-* | grep -v '\.d$' | head -n 1)
"$decoders" | grep "skipped: no decoder on a GPU" >/dev/null || fail "the decoders' tests do not say that they were skipped"
$bin/tilegemm explain 16 4096 4096 | grep "roofline" >/dev/null || fail "tilegemm explain does not work without a GPU"
rc=0; $bin/tilegemm bench --only rope &>/dev/null || rc=$?
((rc == 2)) || fail "tilegemm bench exits with $rc without a device, not 2"
$bin/tilegemm bench --model tiny-bert --prompt 8 --batch 2 2>/dev/null | grep "nothing to compare" >/dev/null ||
  fail "tilegemm bench --model tiny-bert does not run on the CPU"
rc=0; $bin/tilegemm tune --only rope &>/dev/null || rc=$?
((rc == 2)) || fail "tilegemm tune exits with $rc without a device, not 2"
for products in f32 gguf narrow; do
  rc=0; $bin/tilegemm errors $products &>/dev/null || rc=$?
  ((rc == 2)) || fail "tilegemm errors $products exits with $rc without a device, not 2"
done
report=$(mktemp)
trap 'rm -f "$report"' EXIT
! $bin/tilegemm doctor >"$report" || fail "tilegemm doctor finds nothing wrong with a CUDA build that has no device"
grep -qE "missing +device" "$report" || fail "tilegemm doctor does not name the missing device"
$bin/embed --json 2>/dev/null | grep '"device": *"[Cc][Pp][Uu]' >/dev/null || fail "embed does not fall back to the CPU"
notice=$(RUST_BACKTRACE=1 $bin/embed --json 2>&1 >/dev/null)
[ "$(wc -l <<<"$notice")" = 1 ] || fail "embed's notice that it runs on the CPU has more than one line: $notice"
! $bin/embed --device cuda &>/dev/null || fail "embed --device cuda succeeds without a device"
$bin/llama --config tiny --prompt 8 --decode 2 | grep "on CPU" >/dev/null || fail "llama does not run on the CPU"
! message=$($bin/moe 2>&1) || fail "moe runs candle's experts without a device"
grep "without the feature .cuda. this example runs on the CPU" <<<"$message" >/dev/null || fail "moe does not name the missing device: $message"
echo "all of them do"
