#!/usr/bin/env bash
# The main job on a fresh machine: sets up .venv, then tunes, exports and embeds real words.
# PYTHON chooses the interpreter (3.11 or newer), VENV the environment; further arguments go to
# `mirror-rt demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
[ -x "$venv/bin/python" ] || "${PYTHON:-$(command -v python3.11 || command -v python3)}" -m venv "$venv"
# Not again where nothing that is compiled or declared has changed since.
if ! "$venv/bin/mirror-rt" demo --help > /dev/null 2>&1 ||
  [ -n "$(find csrc cmake CMakeLists.txt pyproject.toml -newer "$venv/bin/mirror-rt" -print -quit)" ]; then
  echo "installing into $venv (a few minutes the first time)" >&2
  # For the build's own environment too, which --constraint does not reach.
  export PIP_CONSTRAINT=$PWD/constraints.txt PIP_BUILD_CONSTRAINT=$PWD/constraints.txt
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[cpu,train,export,demo]'
fi
exec "$venv/bin/mirror-rt" demo --out demo --overwrite "$@"
