#!/usr/bin/env bash
# A model by its name, without torch and without a model hub: builds the data wheel of
# all-MiniLM-L6-v2 and the wheel of mirror-rt, makes their folder an index of pip's, and embeds in
# an environment that has mirror-rt alone.
#
#   bash examples/default_model.sh [FOLDER]      (default: build/default-model)
#
# PYTHON chooses the interpreter (3.11 or newer). The model is exported in the clone's .venv, which
# is made where it has no torch (a few minutes).
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-build/default-model}")
mkdir -p "$folder/index"
export PIP_DISABLE_PIP_VERSION_CHECK=1
step() { echo "== $*" >&2; }

# Runs a command, and says every 15 seconds that it runs: pip is quiet, and may compile for minutes.
telling() {
  local every=${MIRROR_RT_SECONDS_BETWEEN_LINES:-15}
  while sleep "$every"; do echo "   still at it, $SECONDS s since the start" >&2; done &
  local teller=$! status=0
  "$@" || status=$?
  kill "$teller"
  return "$status"
}
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT

[ -x .venv/bin/python ] || "${PYTHON:-$(command -v python3.11 || command -v python3)}" -m venv .venv
if ! .venv/bin/python -c 'import onnxruntime, onnxscript, transformers, mirror_export' 2> /dev/null; then
  step "installing what exports a model into .venv"
  PIP_CONSTRAINT=$PWD/constraints.txt PIP_BUILD_CONSTRAINT=$PWD/constraints.txt \
    telling .venv/bin/python -m pip install --quiet --editable '.[cpu,train,export]'
fi
step "the package of the model: its weights are fetched and exported"
[ -n "$(find "$folder/index" -name 'mirror_rt_default-*.whl')" ] ||
  telling .venv/bin/python deploy/default_model.py --out "$folder/index"
step "the package of mirror-rt, whose C++ is compiled"
telling .venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir "$folder/index" .

step "installing it as a user would, into $folder/venv"
# From here on pip's own settings say where the packages are.
export PIP_FIND_LINKS=$folder/index MIRROR_RT_CACHE=$folder/cache
.venv/bin/python -m venv --clear "$folder/venv"
cd "$folder"
telling venv/bin/python -m pip install --quiet mirror-rt
venv/bin/python -c '
from mirror_rt import Encoder
encoder = Encoder.load("all-MiniLM-L6-v2")
print(encoder.similarity(encoder.encode(["a river"]), encoder.encode(["a stream", "an invoice"])))
'
printf 'a river\na stream\n' > texts.txt
venv/bin/mirror-rt encode all-MiniLM-L6-v2 --variant int8 --offline \
  --input texts.txt --output vectors.npy --overwrite
step "to use them anywhere: export PIP_FIND_LINKS=$folder/index"
