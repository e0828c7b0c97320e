#!/usr/bin/env bash
# Runs the tests in an environment of their own, with other versions or another Python.
#
#   bash tests/versions.sh lowest      with the lowest versions that pyproject.toml names
#   bash tests/versions.sh newest      with the newest there are
#   bash tests/versions.sh tested      with those of constraints.txt
#
# What follows is passed to pytest. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:-}
case $kind in lowest | newest | tested) shift ;; *) sed -n '2,8s/^# \{0,1\}//p' "$0" && exit 2 ;; esac
python=${PYTHON:-python3}
folder=$PWD/build/$kind-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# torch without CUDA; the documentation of uv lists the other values. An empty one takes it from
# the package index, with CUDA, where PyTorch's own index cannot be reached.
export UV_TORCH_BACKEND=${UV_TORCH_BACKEND-cpu}
[ -n "$UV_TORCH_BACKEND" ] || unset UV_TORCH_BACKEND

"$python" -m venv "$folder"
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
elif [ "$kind" = tested ]; then
  cp constraints.txt "$folder/constraints.txt"
fi
uv pip install --compile-bytecode -c "$folder/constraints.txt" "${extras[@]}" --extra dev -r pyproject.toml \
  cmake ninja scikit-build-core
uv pip install --no-deps --no-build-isolation --editable .
"$folder/bin/uv" pip list --python "$folder/bin/python"
"$folder/bin/python" -c 'from mirror_train.model.model_folder import resolve_model; print(resolve_model("all-MiniLM-L6-v2")[0])'
python=$folder/bin/python
source tests/tiers.sh
tests -m "not slow" "${side_by_side[@]}" --ignore tests/documents "$@"
