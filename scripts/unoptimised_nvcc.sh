#!/usr/bin/env bash
# Prints an nvcc for candle's own kernels where they are linked and none of them runs: PTX files are those of STAND_IN, which are empty, and objects have
# unoptimised PTX alone. Usage: scripts/unoptimised_nvcc.sh NVCC STAND_IN
set -euo pipefail
cat <<EOF
#!/usr/bin/env bash
[[ " \$* " != *" --ptx "* ]] || exec $(printf %q "$2") "\$@"
for argument; do
  [[ \$argument != -gencode=*,code=sm_* ]] || argument=\${argument/,code=sm_/,code=compute_}
  set -- "\$@" "\$argument"
  shift
done
exec $(printf %q "$1") -Xcicc -O0 "\$@"
EOF
