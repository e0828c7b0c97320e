#!/usr/bin/env bash
# Collects, on a machine with a network, what benchmarks/gpu.sh needs on one without.
#
#   bash benchmarks/gpu/parts.sh [FOLDER]        (default build/gpu-parts)
#
# Leaves FOLDER/1, FOLDER/2, ...: six boxes of at most MEGABYTES (58) to carry over, the most needed
# first. In them, for Python TARGET (3.12) on x86-64 Linux:
#   product  the wheel of this clone, should it not compile there (where a Python TARGET and nvcc
#            run here; CUDAARCHS, such as 90, builds it for some cards alone)
#   tools    what builds and tests it, and public kernels of the same loss to compare it with
#   gpu      onnxruntime-gpu, packed anew without its TensorRT provider, which makes it half as
#            large; its CUDA libraries are those of torch there
#   models   all-MiniLM-L6-v2, its weights rounded to float16, which take half the room, and a model
#            of base size as optimum's O4 graph
#   rival    what runs those: sentence-transformers with optimum, in versions of their own
# It works in build/gpu-collect, which needs 4 GB, and goes on there if it was interrupted. PYTHON
# (default: the clone's .venv, else python3) has this project with `train` installed.
set -euo pipefail

case "${1:-}" in
  --help | -h) sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly parts="${1:-build/gpu-parts}" target="${TARGET:-3.12}" work=build/gpu-collect
readonly source="$work/files" made="$work/models" rival="$work/rival"
python="${PYTHON:-.venv/bin/python}"
[[ -x "$python" ]] || python="$(command -v "$python" || command -v python3)"
readonly python
mkdir -p "$source" "$made"

# fetch GROUP WHEEL...: for the other machine, without what they depend on.
fetch() {
  local group="$1" platforms=()
  shift
  for version in 2_17 2_24 2_26 2_27 2_28 2_31 2_34; do
    platforms+=(--platform "manylinux_${version}_x86_64")
  done
  echo "== wheels: $group"
  rm -rf "${source:?}/$group"
  "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version "$target" \
    --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 \
    --dest "$source/$group" "$@"
}

# pack FOLDER [EXCLUDED]: as models/FOLDER.tar.xz
pack() {
  mkdir -p "$source/models"
  [[ -f "$source/models/$1.tar.xz" ]] || {
    echo "== packing $1"
    # The layers of the model of base size are there twice, some 14 MB apart.
    XZ_OPT='--lzma2=preset=6,dict=64MiB' tar --create --xz --exclude "${2:-nothing}" --directory "$made" \
      --file "$source/models/$1.tar.xz.making" "$1"
    mv "$source/models/$1.tar.xz.making" "$source/models/$1.tar.xz"
  }
}

# interpreter VERSION: prints a Python of this version. That it is on the path says little: it may be
# a shim of pyenv that runs nothing.
interpreter() {
  local found candidates=("python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python "$python" python3)
  for found in "${candidates[@]}"; do
    if [[ "$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null)" == "$1" ]]; then
      echo "$found"
      return
    fi
  done
  return 1
}

fetch tools scikit-build-core pybind11 pathspec packaging pytest iniconfig pluggy pygments \
  liger-kernel cut-cross-entropy inf-cl
readonly ort=onnxruntime-gpu==1.31.1
if [[ ! -f "$source/gpu/$ort.tar.xz" ]]; then
  fetch unpacked "$ort"
  mv "$source/unpacked" "$work/"
  "$python" -m zipfile -e "$work"/unpacked/*.whl "$work/unpacked/site"
  mkdir -p "$source/gpu"
  echo "== packing $ort"
  XZ_OPT='--x86 --lzma2=preset=6,dict=384MiB' tar --create --xz --sort=name --exclude 'libonnxruntime_providers_tensorrt.so' \
    --directory "$work/unpacked/site" --file "$work/unpacked/making" .
  mv "$work/unpacked/making" "$source/gpu/$ort.tar.xz"
  rm -rf "$work/unpacked"
fi
# The last versions with which sentence-transformers' ONNX backend can be installed.
readonly versions=(sentence-transformers==5.7.0 transformers==4.57.6 tokenizers==0.22.2
  huggingface_hub==0.36.2 optimum==2.1.0 optimum-onnx==0.1.0)
fetch rival "${versions[@]}" requests urllib3 charset-normalizer idna certifi

if [[ ! -f "$rival/ready" ]]; then
  echo "== the environment of optimum"
  rm -rf "$rival"
  "$python" -m venv "$rival"
  "$rival/bin/python" -m pip install --quiet "${versions[@]}" torch==2.13.0 onnx onnxruntime
  touch "$rival/ready"
fi
if [[ ! -d "$made/minilm" ]]; then
  folder="$("$python" -c 'from mirror_train.model.model_folder import default_model_folder as f; print(f())')"
  cp -r "$folder" "$made/minilm.making"
  PYTHONPATH=benchmarks "$python" -c '
import sys; from pathlib import Path; from gpu.model import round_weights
round_weights(Path(sys.argv[1]))' "$made/minilm.making"
  mv "$made/minilm.making" "$made/minilm"
fi
[[ -d "$made/base" ]] || PYTHONPATH=benchmarks "$rival/bin/python" -c '
import sys; from pathlib import Path; from gpu.model import make_base
make_base(Path(sys.argv[1], "minilm"), Path(sys.argv[1], "base"))' "$made"
if [[ ! -d "$made/base-o4" ]]; then
  echo "== the O4 graph"
  HF_HUB_OFFLINE=1 "$rival/bin/python" -W ignore -c '
import sys; from sentence_transformers import SentenceTransformer, export_optimized_onnx_model
source, target = sys.argv[1:]
model = SentenceTransformer(source, device="cpu", backend="onnx",
                            model_kwargs={"provider": "CPUExecutionProvider"})
model.save_pretrained(target)
export_optimized_onnx_model(model, "O4", target)' "$made/base" "$made/base-o4.making"
  mv "$made/base-o4.making" "$made/base-o4"
fi
pack minilm
pack base-o4 model.onnx

if ! builder="$(interpreter "$target")" || ! command -v nvcc > /dev/null; then
  echo "== no wheel of this clone: Python $target or nvcc does not run here"
else
  sources="$(PYTHONPATH=benchmarks "$python" -c 'from encode.setup import fingerprint; print(fingerprint())')"
  if [[ ! -d "$source/product/$sources" ]]; then
    echo "== the wheel of this clone"
    rm -rf "$source/product"
    if "$builder" -m pip wheel --quiet --no-deps \
      --config-settings=cmake.define.MIRROR_RT_CUDA=ON --wheel-dir "$source/product/making" .; then
      mv "$source/product/making" "$source/product/$sources"
    else
      rm -rf "$source/product"
      echo "== NO WHEEL OF THIS CLONE: the build failed. It must compile on the other machine." >&2
    fi
  fi
fi

rm -rf "$parts"
"$python" benchmarks/gpu/parts.py cut "$source" "$parts" --megabytes "${MEGABYTES:-58}"
du -sh "$parts"/*
