#!/usr/bin/env bash
# Runs the fast tier as other machines would, and keeps a table of it, tests/elsewhere.md.
#
#   bash tests/elsewhere.sh            all rows
#   bash tests/elsewhere.sh ROW...     these rows
#   bash tests/elsewhere.sh --list     the names of all rows
#
# It takes what `bash tests/run.sh` has installed; only the rows of other Pythons install one, which
# must be found as python3.12 and python3.13. Rows that make namespaces, or another user, need root.
# The log of a row is build/elsewhere/ROW.log. ELSEWHERE_TESTS replaces the tests of a row ("tests").
set -euo pipefail
cd "$(dirname "$0")/.."
export python=$PWD/.venv/bin/python
source tests/tiers.sh
logs=$PWD/build/elsewhere table=$PWD/tests/elsewhere.md
mkdir -p "$logs"

isas=$("$python" -c 'from mirror_rt import _core; print(*_core.engine_instruction_sets())')
rows=(torch-default torch-avx2 onednn-sse41 onednn-avx2 $(printf 'engine-%s ' $isas) bf16 fp32
  one-cpu busy server-slow server-fast c-locale turkish kathmandu umask folders read-only user
  order-1 order-2 no-ipv6 no-network python3.12 python3.13)

# The fast tier; what is different is in the environment, or in the command before it.
fast='source tests/tiers.sh; MIRROR_RT_FUZZ=$fast_fuzz tests "${side_by_side[@]}" -p no:cacheprovider -m "not ($not_fast or compiled)" ${ELSEWHERE_TESTS:-tests}'
changed() { PYTHONPATH=$PWD/tests/support/elsewhere bash -c "$fast"; } # by sitecustomize.py

# A clone in $1 of the last commit, which has the compiled part of the wheel, and an environment of its
# own that shares the packages of all others.
clone() {
  git clone --quiet . "$1"
  mkdir "$1/build"
  "$python" -m venv --without-pip "$1/.venv"
  local site; site=$(cd "$1" && .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" -m pip install --quiet --no-deps --target "$1/build/wheel" build/wheel/mirror_rt-*.whl
  cp "$1"/build/wheel/mirror_rt/_core*.so "$1/mirror_rt/"
  cp -r "$1"/build/wheel/mirror_rt-*.dist-info "$site/"
  printf '%s\n' "$1" "$1/train" "$1/export" > "$site/clone.pth"
  "$python" -c 'import sys; print(*filter(None, sys.path[1:]), sep="\n")' > "$site/others.pth"
}
# Calls a function with the folder of such a clone, which goes away afterwards, and a home.
with_clone() {
  local folder; folder=$(mktemp -d)
  clone "$folder/$2"
  mkdir -p "$folder/$3/.cache/mirror_rt"
  cp -r ~/.cache/mirror_rt/models "$folder/$3/.cache/mirror_rt/"
  local code=0
  "$1" "$folder/$2" "$folder/$3" || code=$?
  rm -rf "$folder"
  return $code
}
in_clone() { cd "$1" && HOME=$2 python=$1/.venv/bin/python bash -c "$fast"; }
read_only() {
  unshare --mount bash -c 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && cd "$1" &&
    python=$1/.venv/bin/python bash -c "$2"' - "$1" "$fast"
}
# Where another user cannot reach Python or its packages, a folder is laid over the closed one.
as_user() {
  chown -R 65534:65534 "$(dirname "$1")"
  unshare --mount bash -c '
    for path in "$("$python" -c "import sys; print(sys.base_prefix)")" "$3"; do
      closed= folder=$path
      while [ "$folder" != / ]; do
        setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$folder" || closed=$folder
        folder=$(dirname "$folder")
      done
      [ -n "$closed" ] || continue
      mkdir -p /run/elsewhere && mount --bind "$path" /run/elsewhere && mount -t tmpfs -o mode=755 none "$closed"
      mkdir -p "$path" && mount --move /run/elsewhere "$path"
    done
    cd "$1" && HOME=$2 python=$1/.venv/bin/python setpriv --reuid=65534 --regid=65534 --clear-groups bash -c "$4"
  ' - "$1" "$2" "$PWD" "$fast"
}

turkish() {
  [ -d build/locales/tr_TR.UTF-8 ] || { mkdir -p build/locales && localedef -i tr_TR -f UTF-8 "$PWD/build/locales/tr_TR.UTF-8"; }
  LOCPATH=$PWD/build/locales LC_ALL=tr_TR.UTF-8 bash -c "$fast"
}
busy() {
  local processes=()
  for _ in 1 2 3 4 5 6; do taskset -c 0,1 sh -c 'while :; do :; done' & processes+=($!); done
  local code=0
  taskset -c 0,1 bash -c "$fast" || code=$?
  kill "${processes[@]}"
  return $code
}
engine() {
  local loss=$1
  case $1 in avx_vnni) loss=avx2 ;; avx512_vnni) loss=avx512 ;; esac
  ELSEWHERE_ISA=$1 MIRROR_RT_INSTRUCTION_SET=$loss changed
}

run_row() {
  case $1 in
    torch-*) ATEN_CPU_CAPABILITY=${1#torch-} bash -c "$fast" ;;
    onednn-*) ONEDNN_MAX_CPU_ISA=${1#onednn-} bash -c "$fast" ;;
    engine-*) engine "${1#engine-}" ;;
    bf16) ELSEWHERE_BF16=1 changed ;;
    fp32) ELSEWHERE_BF16=0 changed ;;
    one-cpu) taskset -c 0 bash -c "$fast" ;;
    busy) busy ;;
    server-slow) ELSEWHERE_SLOWER=10 changed ;;
    server-fast) ELSEWHERE_FASTER=10 changed ;;
    c-locale) LC_ALL=C bash -c "$fast" ;;
    turkish) turkish ;;
    kathmandu) TZ=Asia/Kathmandu bash -c "$fast" ;;
    umask) (umask 077 && bash -c "$fast") ;;
    folders) with_clone in_clone 'mirror rt – клон' 'ein Heim, größer' ;;
    read-only) with_clone read_only clone home ;;
    user) with_clone as_user clone home ;;
    order-*) MIRROR_RT_TEST_ORDER=${1#order-} PYTHONHASHSEED=${1#order-} bash -c "$fast" ;;
    no-ipv6) unshare --net bash -c "ip link set lo up; sysctl -qw net.ipv6.conf.all.disable_ipv6=1; $fast" ;;
    no-network) unshare --net bash -c "ip link set lo up; $fast" ;;
    python*) PYTHON=$1 bash tests/versions.sh tested -m "not ($not_fast or compiled)" ${ELSEWHERE_TESTS:-tests} ;;
    *) echo "there is no row $1: see --list" && return 2 ;;
  esac
}

machine="$(nproc) x $(sed -n '/^model name/{s/.*: //p;q}' /proc/cpuinfo)"
[ -e "$table" ] || printf '%s\n' "# The fast tier as other machines run it" "" \
  "Written by \`bash tests/elsewhere.sh\`, which says what each row is." "" \
  "| row | passed | failed | skipped | seconds | machine | commit | date |" "|---|---|---|---|---|---|---|---|" > "$table"
note() { # the row $1 took $2 seconds and ended with $3; replaces its line of the same machine
  local counted; counted=$(tail -n 1 "$logs/$1.log")
  count() { grep -oP "\d+(?= $1)" <<< "$counted" | paste -sd+ | bc || true; }
  local failed; failed=$(count '(failed|error)')
  [ "$3" = 0 ] || failed=${failed:-all}
  grep -vF "| $1 | " "$table" > "$table.new" || true
  grep -F "| $1 | " "$table" | grep -vF " | $machine | " >> "$table.new" || true
  echo "| $1 | $(count passed) | ${failed:-0} | $(count skipped) | $2 | $machine | $(git rev-parse --short HEAD) | $(date -u +%F) |" >> "$table.new"
  mv "$table.new" "$table"
}

[ "${1:-}" != --list ] || { printf '%s\n' "${rows[@]}" && exit; }
[ $# -gt 0 ] || set -- "${rows[@]}"
red=()
for row; do
  began=$SECONDS
  code=0
  (run_row "$row") > "$logs/$row.log" 2>&1 || code=$?
  [ $code = 0 ] || red+=("$row")
  note "$row" $((SECONDS - began)) $code
  grep -F "| $row | " "$table" | grep -F " | $machine | "
done
[ ${#red[@]} -eq 0 ] || { echo "red: ${red[*]} (build/elsewhere/ROW.log)" && exit 1; }
