#!/usr/bin/env bash
# Proves and measures mirror_rt on this machine's NVIDIA card; it needs no network.
#
#   bash benchmarks/gpu.sh OUT [--stage N] [--seconds S] [--parts FOLDER]     (--help shows all)
#
# PYTHON names the interpreter that has a CUDA build of torch (default python3). Needs an NVIDIA
# driver, and either nvcc (CUDA 12 or newer) and CMake or what benchmarks/gpu/parts.sh made, in
# build/gpu-parts; the encoder needs its second box. The last line is the verdict.
set -euo pipefail
exec "${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/gpu/run.py" "$@"
