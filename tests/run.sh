#!/usr/bin/env bash
# Checks everything on a fresh machine: sets up .venv and .venv-run, and then runs lint, types, the
# demo and the tests.
#
#   bash tests/run.sh              the fast tier, for every commit: minutes
#   bash tests/run.sh --all        the full tier, for every night and before a tag
#   bash tests/run.sh ARGUMENTS    only sets up, and runs pytest with these arguments
#
# The tests of what csrc/ compiles under sanitizers and emulators (the marker `compiled`) belong to the
# fast tier where csrc/ has changed since they were last green: tests/compiled-green, to be committed
# with the change, has the hash of what they tested.
# PYTHON chooses the interpreter (3.11 or newer).
set -euo pipefail
shopt -s globstar
cd "$(dirname "$0")/.."
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
case ${1:-} in '') tier=fast ;; --all) tier=full && shift ;; *) tier=some ;; esac
export PIP_DISABLE_PIP_VERSION_CHECK=1
# For the build's own environment too, which --constraint does not reach.
export PIP_CONSTRAINT=$PWD/constraints.txt PIP_BUILD_CONSTRAINT=$PWD/constraints.txt
step() { printf '\n== %s (after %s s)\n' "$*" "$SECONDS"; }
# One hash of the names and contents of files and folders.
digest() { find "$@" -type f ! -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum; }

# Byte-compiling each file of torch and transformers takes a minute; imports compile what they need,
# and must be allowed to keep it.
export PYTHONDONTWRITEBYTECODE=
install() { "$1" -m pip install --quiet --no-compile "${@:2}"; }
mkdir -p build
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
[ -x .venv/bin/python ] || "$python" -m venv .venv

fetch() { # into the folder $2, unless its part $3 is there; $1 is all or alone, with or without dependencies
  [ -e "$2/$3" ] && return
  local alone=(--no-deps)
  [ "$1" = all ] && alone=()
  install .venv/bin/python "${alone[@]}" --upgrade --ignore-requires-python --target "$2" "${@:4}"
}
fetches() {
  fetch alone build/tritonclient geventhttpclient tritonclient geventhttpclient gevent greenlet \
    zope.event zope.interface python-rapidjson brotli
  fetch all build/helm kubernetes_validate cffi kubernetes-validate
  fetch alone build/helm helm_sdkpy helm-sdkpy
  fetch alone build/helm kserve cloudcoil cloudcoil-models-keda cloudcoil-models-prometheus-operator \
    kserve six
  fetch alone build/cohere cohere cohere==5.21.1 fastavro langchain-cohere langchain-community
  fetch alone build/zig ziglang ziglang==0.17.1
  fetch alone build/model2vec model2vec model2vec==0.10.0
  fetch alone build/fastembed fastembed fastembed==0.9.1 loguru mmh3 py_rust_stemmers
  fetch alone build/cuda-tools nvidia nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37
}
if [ $tier != fast ]; then
  step "fetch, beside it: Triton's client and schema (it wants older versions of what others need),"
  echo "   Helm as a library (whose Python part runs with 3.11, too) and the schemas of Kubernetes, KEDA,"
  echo "   the Prometheus operator and KServe, model2vec and fastembed, whose vectors are compared (the"
  echo "   latter wants an older huggingface_hub), and CUDA's disassembler"
  fetches > build/fetches.log 2>&1 &
  fetches=$!
fi

# Without isolation, because only then do two builds share what they compile.
build=(--no-build-isolation --config-settings=build-dir=build/cmake
  --config-settings=cmake.define.MIRROR_RT_WERROR=ON)
# Not again where nothing that is compiled, declared or installed has changed since.
installed=$(.venv/bin/python -VV && digest pyproject.toml constraints.txt CMakeLists.txt cmake csrc)
if [ "$installed" != "$(cat build/installed 2> /dev/null)" ] || ! .venv/bin/mirror-rt --version > /dev/null; then
  step "install everything into .venv (compiler warnings are errors)"
  install .venv/bin/python cmake ninja pybind11 scikit-build-core
  install .venv/bin/python "${build[@]}" \
    --editable '.[cpu,train,export,demo,tables,detect,serve,client,otel,docs,completion,dev]'
  echo "$installed" > build/installed
fi

lint() {
  .venv/bin/ruff format --check .
  .venv/bin/ruff check .
  .venv/bin/ruff check --preview --select PLW1514 --exclude tests . # opens that name no encoding
  .venv/bin/clang-format --dry-run --Werror csrc/**/*.{cpp,h,cu,cuh} \
    tests/support/**/*.{cpp,h}
  .venv/bin/mypy
  for system in darwin win32; do # each keeps what it has read, else every run would read all
    .venv/bin/mypy --platform $system --cache-dir build/mypy-$system
  done
  .venv/bin/lint-imports --no-logo
  (cd tests && ../.venv/bin/python -m mypy.stubtest mirror_rt._core --allowlist stubtest_allowlist.txt)
}
if [ $tier != some ]; then
  step "start lint and types, beside what follows"
  (set -e; lint) > build/lint.log 2>&1 &
  lint=$!
fi
if [ $tier = full ] && command -v nvcc > /dev/null; then
  step "compile the CUDA kernels for every architecture (warnings are errors), beside what follows"
  PYTHON=.venv/bin/python bash tests/compile_cuda.sh > build/compile_cuda.log 2>&1 &
  cuda=$!
fi

# As above; the wheel has the modules, too.
installed=$installed$(digest mirror_rt train export)
if [ "$installed" != "$(cat build/installed-run 2> /dev/null)" ] || [ ! -x .venv-run/bin/python ]; then
  step "build the wheel; install it alone into .venv-run"
  rm -rf .venv-run build/wheel
  "$python" -m venv .venv-run
  .venv/bin/python -m pip wheel --quiet --no-deps "${build[@]}" --wheel-dir build/wheel .
  install .venv-run/bin/python build/wheel/mirror_rt-*.whl
  echo "$installed" > build/installed-run
fi
export MIRROR_RT_CLEAN_PYTHON=$PWD/.venv-run/bin/python
[ -z "${fetches:-}" ] || wait "$fetches" || { cat build/fetches.log; exit 1; }

python=$PWD/.venv/bin/python
source tests/tiers.sh
if [ $tier = full ]; then
  step "what the full tier lacks here, and the command that ends each lack"
  PYTHONPATH=tests/support:tests/support/servers:tests/support/documents .venv/bin/python -m needs
  # Beside what follows.
  step "start to soak the encoder and the server, 30 seconds each, side by side"
  MIRROR_RT_SOAK_SECONDS=30 MIRROR_RT_CHAOS_SECONDS=30 tests -p no:cacheprovider -n 2 \
    tests/encoding/test_soak.py tests/server/test_chaos.py > build/soak.log 2>&1 &
  soak=$!
fi

step "fetch the default model (the tests themselves are offline)"
.venv/bin/python -c 'from mirror_train.model.model_folder import resolve_model; print(resolve_model("all-MiniLM-L6-v2")[0])'

if [ $tier = some ]; then
  step "tests: $*"
  tests "$@"
  exit
fi

demo=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null || true; rm -rf "$demo"' EXIT
step "start the demo, on fewer words, and the tests of the $tier tier"
bash examples/demo.sh --out "$demo/demo" --top 500 --quiet > build/demo.log 2>&1 &
shown=$!
checked=$(digest csrc cmake CMakeLists.txt tests/support/compiled | cut -d ' ' -f 1)
chosen="not ($not_fast or compiled)"
[ "$checked" = "$(cat tests/compiled-green)" ] || chosen="compiled or not ($not_fast)"
if [ $tier = fast ]; then export MIRROR_RT_FUZZ=$fast_fuzz; else chosen=""; fi
MIRROR_RT_SOAK_SECONDS=0 MIRROR_RT_CHAOS_SECONDS=0 tests "${side_by_side[@]}" --durations=40 -m "$chosen"
[[ $chosen = not* ]] || echo "$checked" > tests/compiled-green

step "the demo"
wait "$shown" || { cat build/demo.log; exit 1; }
tail -n 5 build/demo.log

step "lint and types"
wait "$lint" || { cat build/lint.log; exit 1; }
tail -n 3 build/lint.log

if [ -n "${cuda:-}" ]; then
  step "registers, spills and code of the CUDA kernels"
  wait "$cuda" || { cat build/compile_cuda.log; exit 1; }
  cat build/compile_cuda.log
fi

if [ $tier = full ]; then
  step "is memory flat?"
  wait "$soak" || { cat build/soak.log; exit 1; }
  tail -n 1 build/soak.log
fi
step "the $tier tier is green"
