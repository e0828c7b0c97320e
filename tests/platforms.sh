#!/usr/bin/env bash
# Compiles csrc/ for every system that is promised (Windows, macOS, Linux with glibc and musl; x86-64 and
# ARM), warnings as errors, and runs the kernels where this machine can: by itself, by wine and by qemu.
#
#   bash tests/platforms.sh
#
# It begins with what is lacking, and the command that ends each lack.
set -euo pipefail
cd "$(dirname "$0")/.."
bash tests/run.sh tests/test_platforms.py -n 2 -rs "$@"
