#!/usr/bin/env bash
# Installs the CUDA compiler into a manylinux_2_28 container (AlmaLinux 8), for cibuildwheel.
set -euo pipefail
version=13-0
case $(uname -m) in
  x86_64) platform=x86_64 ;;
  aarch64) platform=sbsa ;;
esac
dnf install --assumeyes dnf-plugins-core
dnf config-manager --add-repo \
  "https://developer.download.nvidia.com/compute/cuda/repos/rhel8/$platform/cuda-rhel8.repo"
# The compiler, and the run time to link statically: the wheel needs no library of CUDA.
dnf install --assumeyes "cuda-nvcc-$version" "cuda-cudart-devel-$version"
ln --symbolic --force "/usr/local/cuda-${version/-/.}" /usr/local/cuda
