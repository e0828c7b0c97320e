#!/usr/bin/env bash
# Checks the CUDA kernels on this machine's NVIDIA card, and measures them.
#
#   bash benchmarks/gpu_check.sh OUTPUT_FOLDER
#
# Builds mirror_rt with its CUDA extension for the card into the current Python environment (an
# editable install; PYTHON names the interpreter, default python3), then
#   1. runs the tests that need a card,
#   2. runs the small ones under compute-sanitizer (memcheck, racecheck) where that is found,
#   3. runs benchmarks/infonce.py --device cuda,
# and writes to the folder report.txt, a log of every step, and the benchmark's results. Every step
# runs even if one before it fails; the exit status is 0 if none failed. Running it again
# overwrites the report. Needs an NVIDIA driver, nvcc (CUDA 12 or newer) and a CUDA build of torch.
set -euo pipefail

if [[ $# -ne 1 || "$1" == "--help" || "$1" == "-h" ]]; then
  sed -n '2,/^set -euo/{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  [[ "${1:-}" == "--help" || "${1:-}" == "-h" ]]
  exit
fi

mkdir -p "$1"
out="$(cd "$1" && pwd)"
readonly out
readonly report="$out/report.txt"
readonly python="${PYTHON:-python3}"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  echo "gpu_check: $*" >&2
  exit 1
}

check_tools() {
  command -v nvidia-smi > /dev/null || die "nvidia-smi not found: is there an NVIDIA driver?"
  command -v nvcc > /dev/null || die "nvcc not found: put the CUDA toolkit's bin folder on PATH"
  "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
    || die "torch in $python is absent or finds no CUDA device"
}

describe_machine() {
  echo "date:    $(date -u +%Y-%m-%dT%H:%MZ)"
  echo "commit:  $(git describe --always --dirty 2> /dev/null || echo unknown)"
  echo "card:    $(nvidia-smi --query-gpu=name,memory.total,compute_cap --format=csv,noheader)"
  echo "driver:  $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)"
  echo "nvcc:    $(nvcc --version | sed -n 's/.*release //p')"
  "$python" -c 'import torch; print("torch:  ", torch.__version__, "CUDA", torch.version.cuda)'
}

failed=0
# step NAME COMMAND...: runs it, keeps its output in NAME.log and its last lines in the report.
step() {
  local name="$1" status=0
  shift
  echo "== $name: $*"
  "$@" > "$out/$name.log" 2>&1 || status=$?
  {
    echo
    echo "== $name ($([[ $status -eq 0 ]] && echo passed || echo "FAILED, status $status")): $*"
    tail -n 15 "$out/$name.log"
  } >> "$report"
  if [[ $status -ne 0 ]]; then
    echo "   FAILED, see $out/$name.log"
    failed=1
  fi
}

skip() {
  echo "== $1: skipped, $2"
  printf '\n== %s: skipped, %s\n' "$1" "$2" >> "$report"
}

build() {
  local capability
  capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)"
  step build "$python" -m pip install \
    --config-settings=cmake.define.MIRROR_RT_CUDA=ON \
    --config-settings=cmake.define.CMAKE_CUDA_ARCHITECTURES="${capability//./}" \
    --editable '.[train,dev]'
  [[ $failed -eq 0 ]] || die "the build failed: $out/build.log"
}

sanitize() {
  if ! command -v compute-sanitizer > /dev/null; then
    skip sanitizer "compute-sanitizer not found"
    return
  fi
  local tool
  for tool in memcheck racecheck; do
    # Without torch's cache every tensor is an allocation of its own, and its ends are watched.
    step "$tool" env PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
      compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$python" -m pytest tests/train/loss/test_cuda_device.py -q -k "parity and not 1025"
  done
}

main() {
  check_tools
  describe_machine | tee "$report"
  build
  step tests "$python" -m pytest -m gpu -q -rs --durations=10 tests
  sanitize
  if [[ -f benchmarks/infonce.py ]]; then
    mkdir -p "$out/benchmark"
    step benchmark "$python" benchmarks/infonce.py --device cuda --out "$out/benchmark"
  else
    skip benchmark "there is no benchmarks/infonce.py"
  fi
  echo "report: $report"
  return "$failed"
}

main
