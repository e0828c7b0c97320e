# What tests/run.sh and tests/elsewhere.sh share; to be sourced in the root of the repository.

# The tests that are not in the fast tier, by their markers (pyproject.toml).
not_fast="full or slow or interop or gpu"
python=${python:-$PWD/.venv/bin/python}
# Examples of a fuzz in the fast tier; each of these tests has its own number for the full one.
fast_fuzz=${MIRROR_RT_FUZZ:-25}
# Every process of Python warns of a file that is opened without an encoding, which the folder of PYTHONPATH
# makes an error where it is ours; what else is in it does nothing but for tests/elsewhere.sh.
tests() {
  HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONWARNDEFAULTENCODING=1 PYTHONPATH=$PWD/tests/support/elsewhere \
    "$python" -m pytest "$@"
}
# Twice as many processes as the tests have processors here: half of their time they wait for others.
side_by_side=(-n 4 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder)
