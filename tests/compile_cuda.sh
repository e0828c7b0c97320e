#!/usr/bin/env bash
# Compiles the CUDA extension for every architecture we build for; nothing needs a GPU.
#
#   bash tests/compile_cuda.sh [OUTPUT_FOLDER]
#
# Warnings are errors. Leaves in the folder (default: build/compile_cuda) the module, the logs of ptxas
# and figures.txt: registers and spills of every kernel, of which a spill beyond SPILL_LIMIT bytes
# fails. With cuobjdump and nvdisasm (on the path, or in build/cuda-tools) it then reads the
# disassembly, which has limits of its own: tests/support/compiled/cuda_disassembly.py. What fails is printed.
# PYTHON names the interpreter that has pybind11 (default: python3).
set -euo pipefail

if [[ "${1:-}" == "--help" || "${1:-}" == "-h" ]]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0"
  exit 0
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly out="${1:-build/compile_cuda}"
readonly python="${PYTHON:-python3}"
readonly spill_limit="${SPILL_LIMIT:-32}"
# As in cmake/cuda.cmake.
readonly architectures=(75 80 86 89 90 100 120)
mkdir -p "$out"

targets=()
for architecture in "${architectures[@]}"; do
  targets+=(-gencode "arch=compute_$architecture,code=sm_$architecture")
done
for virtual in 90 "${architectures[-1]}"; do
  targets+=(-gencode "arch=compute_$virtual,code=compute_$virtual")
done

# compile SOURCE TARGETS...: to an object, what ptxas reports to SOURCE.log.
compile() {
  local source="$1"
  shift
  nvcc -std=c++17 -O3 --threads 0 "$@" -Werror all-warnings -Xptxas -v -DMIRROR_TRAIN_TMA \
    -Xcompiler=-fPIC,-Wall,-Wextra,-Werror,-fvisibility=hidden \
    -Icsrc -c "csrc/infonce/gpu/$source.cu" -o "$out/$source.o" 2> "$out/$source.log" || {
    cat "$out/$source.log" >&2
    exit 1
  }
}
compile loss "${targets[@]}"
compile tma -gencode arch=compute_90a,code=sm_90a

# As system headers: their warnings are not ours.
read -r -a includes < <("$python" -m pybind11 --includes | sed 's/-I/-isystem /g')
suffix="$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')"
"${CXX:-c++}" -std=c++17 -O2 -fPIC -fvisibility=hidden -Wall -Wextra -Wpedantic -Werror \
  "${includes[@]}" -Icsrc -c csrc/bindings/cuda.cpp -o "$out/bindings_cuda.o"
"${CXX:-c++}" -std=c++17 -O2 -fPIC -fvisibility=hidden -Wall -Wextra -Wpedantic -Werror \
  -Icsrc -c csrc/infonce/gpu/batch.cpp -o "$out/batch.o"
nvcc -shared -cudart static "$out"/{loss,tma,batch,bindings_cuda}.o \
  -o "$out/_cuda$suffix"

# ptxas names the kernel, then its spills, then its registers, once an architecture.
cat "$out"/{loss,tma}.log | c++filt | awk -v limit="$spill_limit" '
  /Compiling entry function/ {
    split($0, quoted, "\047")
    name = quoted[2]
    sub(/\(.*/, "", name)
    gsub(/void |mirror_train::/, "", name)
    architecture = quoted[4]
  }
  /spill stores/ { stored = $5 }
  /Used [0-9]+ registers/ {
    registers = $0; sub(/.*Used /, "", registers); sub(/ .*/, "", registers)
    line = sprintf("%-8s %-44s %4d registers, %3d bytes spilled", architecture, name, registers, stored)
    print line
    if (stored > limit) { failed = 1; print line ", more than " limit > "/dev/stderr" }
  }
  END { exit failed }
' > "$out/figures.txt"

# ptxas says so in a line of information.
if grep -h "Potential Performance Loss" "$out"/{loss,tma}.log; then exit 1; fi

for folder in "$PWD"/build/cuda-tools/nvidia/*/bin; do PATH="$PATH:$folder"; done
if command -v cuobjdump > /dev/null && command -v nvdisasm > /dev/null; then
  "$python" tests/support/compiled/cuda_disassembly.py "$out"/{loss,tma}.o >> "$out/figures.txt"
  echo "$(wc -l < "$out/figures.txt") lines of figures of the kernels: $out/figures.txt"
else
  echo "the disassembly was not read: cuobjdump and nvdisasm are missing"
fi
