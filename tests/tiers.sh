# What tests/run.sh and tests/elsewhere.sh share; to be sourced in the root of the repository.

# The tests that are not in the fast tier, by their markers (pyproject.toml).
not_fast="full or slow or interop or gpu"
python=${python:-$PWD/.venv/bin/python}
tests() { HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 "$python" -m pytest "$@"; }
# Twice as many processes as the tests have processors here: half of their time they wait for others.
side_by_side=(-n 4 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder)
