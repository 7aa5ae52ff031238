#!/usr/bin/env bash
# stub_libcuda.sh INCLUDE_DIR OUT_DIR: from the cuda.h in INCLUDE_DIR, builds OUT_DIR/libcuda.so.1, which finds no device, and OUT_DIR/link/libcuda.so,
# the same library for the linker alone.
#
# Why: libcuda.so.1 comes with the NVIDIA driver and in no wheel, yet a program that links to it needs it to link and to
# start. With this one a CUDA program builds and starts on a machine without a driver (a laptop, CI), and is told "no
# device" by whatever it calls first. Linking against it is fine anywhere; it must never be loaded in place of a driver.
# A linker looks for libcuda.so and the loader for libcuda.so.1, so the folder for the linker has nothing for the loader:
# on the loader's path by mistake, it hides no driver.
set -euo pipefail

include=$1 out=$2

# Every driver function, by the names that programs link to: cuda.h renames many (cuMemAlloc is cuMemAlloc_v2), some again
# for per-thread streams (cuMemcpyAsync_ptsz), and hides old names. The profiler's header comes in a wheel of its own.
functions() {
  for view in PLAIN CUDA_API_PER_THREAD_DEFAULT_STREAM __CUDA_API_VERSION_INTERNAL; do
    cc -E -P -x c "-D$view" -I "$include" - <<<'#include <cuda.h>' | grep -oE '\bcu[A-Z]\w*\s*\('
  done | tr -d '( \t' | grep -vxE 'cuGetError(Name|String)'
  printf '%s\n' cuProfilerInitialize cuProfilerStart cuProfilerStop
}

mkdir -p "$out/link"
{
  echo 'enum { SUCCESS = 0, NO_DEVICE = 100 };'
  echo 'int cuGetErrorName(int error, const char **name) { return *name = "CUDA_ERROR_NO_DEVICE", SUCCESS; }'
  echo 'int cuGetErrorString(int error, const char **text) { return *text = "stub driver: no CUDA device", SUCCESS; }'
  functions | sort -u | sed 's/.*/int &(void) { return NO_DEVICE; }/'
} | cc -shared -fPIC -Wl,-soname,libcuda.so.1 -x c - -o "$out/libcuda.so.new"
mv "$out/libcuda.so.new" "$out/libcuda.so.1"
ln -sf ../libcuda.so.1 "$out/link/libcuda.so"
rm -f "$out/libcuda.so" # of older versions of this script
