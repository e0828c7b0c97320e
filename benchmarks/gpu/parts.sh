#!/usr/bin/env bash
# Makes, on a machine with a network, the two boxes that benchmarks/gpu.sh takes on one without.
#
#   bash benchmarks/gpu/parts.sh [FOLDER]        (default build/gpu-parts)
#
#   FOLDER/1   the wheel of this clone, with the kernels for ARCHITECTURE (default 90: H100, H200)
#   FOLDER/2   onnxruntime-gpu with device code for ARCHITECTURE alone; its CUDA libraries are those
#              of torch on the other machine
#
# Both are for Python TARGET (default 3.12) on x86-64 Linux; each must be below 62 MiB. It needs that
# Python, nvcc 12 or newer and CMake.
set -euo pipefail

case "${1:-}" in
  --help | -h) sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
out="$(realpath -m "${1:-build/gpu-parts}")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly out target="${TARGET:-3.12}" architecture="${ARCHITECTURE:-90}" ort=onnxruntime-gpu==1.31.1

# interpreter VERSION: prints a Python of this version. That it is on the path says little: it may be
# a shim of pyenv that runs nothing.
interpreter() {
  local found candidates=("python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python python3)
  for found in "${candidates[@]}"; do
    if [[ "$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null)" == "$1" ]]; then
      echo "$found"
      return
    fi
  done
  return 1
}

python="$(interpreter "$target")" || { echo "parts.sh: Python $target does not run here" >&2; exit 1; }
readonly python
making="$(mktemp -d)"
trap 'rm -rf "$making"' EXIT
mkdir -p "$making/1" "$making/2" "$making/wheel"

echo "== 1: the wheel of this clone for sm_$architecture"
CUDAARCHS="$architecture" "$python" -m pip wheel --quiet --no-deps --wheel-dir "$making/1" \
  --config-settings=cmake.define.MIRROR_RT_CUDA=ON .
"$python" benchmarks/gpu/install.py about "$architecture" > "$making/1/about.json"

echo "== 2: $ort for sm_$architecture"
"$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$making/wheel" "$ort"
"$python" benchmarks/gpu/pack.py "$making"/wheel/*.whl "$architecture" "$making/2/onnxruntime-gpu.tar.xz"

mkdir -p "$out"
for box in 1 2; do
  bytes="$(du --apparent-size --bytes --summarize "$making/$box" | cut -f1)"
  echo "box $box: $bytes bytes"
  if ((bytes >= 62 << 20)); then
    echo "parts.sh: box $box has $bytes bytes, and 62 MiB are the most that one call carries" >&2
    exit 1
  fi
  rm -rf "${out:?}/$box"
  mv "$making/$box" "$out/$box"
done
