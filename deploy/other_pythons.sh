#!/usr/bin/env bash
# Makes a Python for another system than this, to try a wheel of that system (deploy/wheels.sh).
#
#   bash deploy/other_pythons.sh aarch64   Debian's own, which qemu runs
#   bash deploy/other_pythons.sh musl      of Debian's source, by its package musl-tools: what Alpine's is, too
#
# It is made in build/other-pythons by Debian's packages alone, and the last line is what THEIR_PYTHON takes.
# Needs Debian 12, and: apt-get install qemu-user musl-tools
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?aarch64 or musl}
folder=$PWD/build/other-pythons
mkdir -p "$folder"/{lists/partial,cache/archives/partial,parts,$kind,source}
printf 'Types: deb deb-src\nURIs: http://deb.debian.org/debian\nSuites: bookworm trixie\nComponents: main\n%s\n' \
  "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg" > "$folder/parts/debian.sources"
# Lists of its own: those of this machine do not change.
cat > "$folder/apt.conf" << END
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$folder/parts";
Dir::State::lists "$folder/lists";
Dir::Cache "$folder/cache";
APT::Architectures { "amd64"; "arm64"; };
APT::Default-Release "bookworm";
END
export APT_CONFIG=$folder/apt.conf
apt-get update --quiet=2
cd "$folder/source"

if [ "$kind" = aarch64 ]; then
  packages=(python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libstdc++6 zlib1g
    libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libuuid1)
  apt-get download --quiet=2 "${packages[@]/%/:arm64}"
  for package in ./*_arm64.deb; do dpkg -x "$package" "$folder/aarch64"; done
  echo "qemu-aarch64 -L $folder/aarch64 $folder/aarch64/usr/bin/python3.11"
  exit
fi

# Configure asks the compiler for the name of the system, and gcc gives that of glibc.
printf '#!/bin/sh\ncase "$*" in *print-multiarch*) echo x86_64-linux-musl; exit ;; esac\nexec musl-gcc "$@"\n' \
  > "$folder/musl-cc"
chmod +x "$folder/musl-cc"
export CC=$folder/musl-cc CFLAGS="-O1 -fPIC -I$folder/musl/include" LDFLAGS="-L$folder/musl/lib"
# Libraries made on a new Alpine need the loader of musl 1.2.4 or newer, which Debian 13 has.
apt-get download --quiet=2 musl/trixie
dpkg -x musl_*.deb "$folder/musl-1.2.5"
for package in zlib libffi python3.11; do
  apt-get source --download-only --quiet=2 $package
done
for archive in zlib_*.orig.tar.* libffi_*.orig.tar.* python3.11_*.orig.tar.*; do tar xf "$archive"; done
make_here() { { "$@" && make -j "$(nproc)" && make install; } > "$folder/log" 2>&1 || { tail "$folder/log" >&2; exit 1; }; }
(cd zlib-* && make_here ./configure --prefix="$folder/musl" --static)
(cd libffi-* && make_here ./configure --prefix="$folder/musl" --disable-shared --disable-docs --disable-multi-os-directory \
  --disable-exec-static-tramp)  # which needs headers of the kernel
(cd Python-* && make_here ./configure --prefix="$folder/musl" --disable-test-modules --without-ensurepip)
echo "$folder/musl-1.2.5/usr/lib/x86_64-linux-musl/libc.so $folder/musl/bin/python3.11"
