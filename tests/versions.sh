#!/usr/bin/env bash
# Runs the tests with other versions than those of constraints.txt, in an environment of their own.
#
#   bash tests/versions.sh lowest      with the lowest that pyproject.toml names
#   bash tests/versions.sh newest      with the newest there are
#
# What follows is passed to pytest. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:-}
case $kind in lowest | newest) shift ;; *) sed -n '2,7s/^# \{0,1\}//p' "$0" && exit 2 ;; esac
folder=$PWD/build/$kind
# torch without CUDA; the documentation of uv lists the other values. An empty one takes it from
# the package index, with CUDA, where PyTorch's own index cannot be reached.
export UV_TORCH_BACKEND=${UV_TORCH_BACKEND-cpu}
[ -n "$UV_TORCH_BACKEND" ] || unset UV_TORCH_BACKEND

"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
uv() { "$folder/bin/uv" "$1" "$2" --quiet --python "$folder/bin/python" "${@:3}"; }
extras=()
for extra in cpu train export hub demo tables detect serve client otel completion evaluate study; do
  extras+=(--extra "$extra")
done
: > "$folder/constraints.txt"
if [ "$kind" = lowest ]; then # of what users install; pytest and its like may be new
  uv pip compile --resolution lowest-direct --annotation-style line "${extras[@]}" pyproject.toml |
    grep 'via .*mirror-rt' > "$folder/constraints.txt"
fi
uv pip install --compile-bytecode -c "$folder/constraints.txt" "${extras[@]}" --extra dev -r pyproject.toml \
  cmake ninja scikit-build-core
uv pip install --no-deps --no-build-isolation --editable .
"$folder/bin/uv" pip list --python "$folder/bin/python"
"$folder/bin/python" -c 'from mirror_train.model.model_folder import default_model_folder as f; print(f())'
HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 "$folder/bin/python" -m pytest -m "not slow" -n 4 \
  --dist loadfile --ignore tests/documents "$@"
