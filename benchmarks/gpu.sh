#!/usr/bin/env bash
# Builds, tests and measures mirror_rt on this machine's NVIDIA card; it needs no network.
#
#   bash benchmarks/gpu.sh OUT [--stage N ...] [--parts FOLDER]     (--help shows all options)
#
# PYTHON names the interpreter that has a CUDA build of torch (default python3). Needs an NVIDIA
# driver, nvcc (CUDA 12 or newer), CMake, and what benchmarks/gpu/parts.sh made, in build/gpu-parts.
set -euo pipefail
exec "${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/gpu/run.py" "$@"
