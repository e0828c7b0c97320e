#!/usr/bin/env bash
# Checks the encoder on this machine's NVIDIA card, and measures it against sentence-transformers.
#
#   bash benchmarks/gpu_encode.sh OUTPUT_FOLDER [OPTION ...]
#
#   --device cpu      run every step without a card: a rehearsal of the script itself
#   --model NAME      base model, a folder or a name (default all-MiniLM-L6-v2)
#   --bundle FOLDER   a bundle of it that is exported already, with fp32, fp16 and fp16-cuda
#   --wheels FOLDER   install from these wheels alone, without a network; a large one may be in
#                     parts (NAME.whl.part00, NAME.whl.part01, ...)
#   --python PATH     use this interpreter's environment as it is, and install nothing
#   --rounds N        of the measurement (default 5)
#
# Makes an environment with onnxruntime-gpu, torch and sentence-transformers (in OUTPUT_FOLDER/env),
# then
#   1. mirror-rt doctor,
#   2. exports the bundle (fp32, fp16, and fp16 without padding for CUDA),
#   3. runs the tests that need a card,
#   4. benchmarks/gpu_encode.py: do all vectors agree with the CPU's? Then rates and latencies.
# and writes to the folder report.txt, a log of every step, gpu_encode.json and gpu_encode.md with the
# card's name. Every step runs even if one before it fails, except that without an environment or a
# bundle there is nothing to run; the exit status is 0 if none failed.
set -euo pipefail

usage() { sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
die() {
  echo "gpu_encode: $*" >&2
  exit 2
}

case "${1:-}" in
  --help | -h) usage; exit 0 ;;
  "" | -*) usage >&2; exit 2 ;;
esac
mkdir -p "$1"
out="$(cd "$1" && pwd)"
shift
device=cuda model=all-MiniLM-L6-v2 bundle='' wheels='' python='' rounds=5
while [[ $# -gt 0 ]]; do
  [[ $# -ge 2 ]] || die "$1 needs a value (--help shows the options)"
  case "$1" in
    --device) device="$2" ;;
    --model) model="$2" ;;
    --bundle) bundle="$(cd "$2" && pwd)" ;;
    --wheels) wheels="$(cd "$2" && pwd)" ;;
    --python) python="$2" ;;
    --rounds) rounds="$2" ;;
    *) die "unknown option $1 (--help shows the options)" ;;
  esac
  shift 2
done
[[ "$device" == cuda || "$device" == cpu ]] || die "--device must be cuda or cpu, got $device"
readonly report="$out/report.txt"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ "$device" == cpu ]] || command -v nvidia-smi > /dev/null \
  || die "nvidia-smi not found: is there an NVIDIA driver? (--device cpu rehearses without)"

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
    tail -n 20 "$out/$name.log"
  } >> "$report"
  if [[ $status -ne 0 ]]; then
    echo "   FAILED, see $out/$name.log"
    failed=1
  fi
  return "$status"
}

# Wheels that were cut into parts, whole again beside the others.
join_wheels() {
  local part whole
  mkdir -p "$out/wheels"
  for part in "$wheels"/*.whl; do
    [[ -e "$part" ]] && ln -sf "$part" "$out/wheels/"
  done
  for part in "$wheels"/*.whl.part*; do
    [[ -e "$part" ]] || continue
    whole="$out/wheels/$(basename "${part%.part*}")"
    [[ -e "$whole" ]] || cat "${part%.part*}".part* > "$whole"
  done
}

make_environment() {
  local extra=gpu packages pip
  [[ "$device" == cuda ]] || extra=cpu
  python="$out/env/bin/python"
  [[ -x "$python" ]] || "${PYTHON:-python3}" -m venv "$out/env"
  pip=("$python" -m pip install --disable-pip-version-check)
  packages=(".[$extra,train,export,hub,dev]" "sentence-transformers>=5" matplotlib wordfreq)
  # onnxruntime-gpu brings CUDA's and cuDNN's libraries, where they are not there otherwise.
  [[ "$device" == cpu ]] || packages+=("onnxruntime-gpu[cuda,cudnn]")
  if [[ -n "$wheels" ]]; then
    join_wheels
    pip+=(--no-index --find-links "$out/wheels")
  fi
  step install "${pip[@]}" "${packages[@]}" || die "the installation failed: $out/install.log"
}

describe_machine() {
  echo "date:    $(date -u +%Y-%m-%dT%H:%MZ)"
  echo "commit:  $(git describe --always --dirty 2> /dev/null || echo unknown)"
  if [[ "$device" == cuda ]]; then
    nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader \
      | sed 's/^/card:    /'
  else
    echo "card:    none, a rehearsal on the CPU"
  fi
}

main() {
  describe_machine | tee "$report"
  [[ -n "$python" ]] || make_environment
  [[ "$device" == cuda ]] || export CUDA_VISIBLE_DEVICES=
  step doctor "$python" -m mirror_rt.cli doctor || true
  if [[ -z "$bundle" ]]; then
    bundle="$out/bundle"
    if [[ ! -d "$bundle" ]]; then
      step export "$python" -m mirror_rt.cli export "$model" --out "$bundle" \
        --precision fp32,fp16 --target cpu,cuda || die "the export failed: $out/export.log"
    fi
  fi
  step tests "$python" -m pytest -p no:cacheprovider -m gpu -q -rs \
    tests/inference/test_devices.py tests/inference/test_session.py tests/export/test_variants.py || true
  step benchmark "$python" benchmarks/gpu_encode.py "$bundle" --model "$model" \
    --device "$device" --rounds "$rounds" --out "$out" || true
  [[ ! -f "$out/gpu_encode.md" ]] || cat "$out/gpu_encode.md"
  echo "report: $report"
  return "$failed"
}

main
