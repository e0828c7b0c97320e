#!/usr/bin/env bash
# Runs the fast tier as other machines would, and keeps a table of it, tests/elsewhere.md.
#
#   bash tests/elsewhere.sh              every machine of the list below
#   bash tests/elsewhere.sh MACHINE...   these: names of the list, or conditions joined by "+"
#   bash tests/elsewhere.sh --list       the machines, and what is otherwise on each
#
# A machine is otherwise in several ways at once, which takes a third of the time of one run for each
# way; where one is red, its conditions by themselves ("c-locale") say which it is.
# It takes what `bash tests/run.sh` has installed; only the machines of other Pythons install one, which
# must be found as python3.12 and python3.13. Machines with namespaces, or another user, need root.
# The log of a machine is build/elsewhere/MACHINE.log. ELSEWHERE_TESTS replaces the tests ("tests").
set -euo pipefail
cd "$(dirname "$0")/.."
export python=$PWD/.venv/bin/python
source tests/tiers.sh
logs=$PWD/build/elsewhere table=$PWD/tests/elsewhere.md
mkdir -p "$logs"

# Each condition stands in at least one line; instruction sets that this processor lacks fall away.
declare -A machines=(
  [oldest]=torch-default+onednn-sse41+engine-portable+fp32+c-locale+one-cpu
  [avx2]=torch-avx2+onednn-avx2+engine-avx2+bf16+turkish+kathmandu+server-slow
  [avx512]=engine-avx512+umask+order-1+no-ipv6+server-fast
  [container]=engine-avx512_vnni+no-network+order-2+read-only
  [laptop]=engine-avx_vnni+folders
  [user]=engine-avx512_bf16+user
  [busy]=busy
  [python3.12]=python3.12
  [python3.13]=python3.13
)
names=(oldest avx2 avx512 container laptop user busy python3.12 python3.13)
# The first two processors that this shell may use; in a container they need not be 0 and 1.
cpus=$("$python" -c 'import os; print(*sorted(os.sched_getaffinity(0))[:2], sep=",")')
sets=$("$python" -c 'from mirror_rt import _core; print(*_core.engine_instruction_sets())')

# The fast tier; what is different is in the environment, or in the command before it.
fast='source tests/tiers.sh; MIRROR_RT_FUZZ=$fast_fuzz \
  tests "${side_by_side[@]}" -p no:cacheprovider -m "not ($not_fast or compiled)" ${ELSEWHERE_TESTS:-tests}'

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
  # As code and bytes, since the encoding of the names of files follows from the locale.
  "$python" -c 'import os, sys
folders = [*(sys.argv[1] + part for part in ("", "/train", "/export")), *filter(None, sys.path[1:])]
print(f"import os, sys; sys.path += map(os.fsdecode, {[os.fsencode(one) for one in folders]})")
' "$1" > "$site/clone.pth"
  printf '%s\n' '#!/bin/sh' 'exec "$(dirname "$0")/python" -m mirror_rt.cli "$@"' > "$1/.venv/bin/mirror-rt"
  chmod +x "$1/.venv/bin/mirror-rt"
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
in_clone() { cd "$1" && HOME=$2 python=$1/.venv/bin/python "${before[@]}" bash -c "$fast"; }
read_only() {
  unshare --mount bash -c 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && cd "$1" && shift && "$@"' \
    - "$1" env "python=$1/.venv/bin/python" "${before[@]}" bash -c "$fast"
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
    cd "$1" && shift 3 && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
  ' - "$1" "$2" "$PWD" env "HOME=$2" "python=$1/.venv/bin/python" "${before[@]}" bash -c "$fast"
}

other_python() {
  PYTHON=$1 bash tests/versions.sh tested -m "not ($not_fast or compiled)" ${ELSEWHERE_TESTS:-tests}
}
here() { "${before[@]}" bash -c "$fast"; }

# Sets what a condition changes: the environment, the command before the tests, or the place of the run.
set_condition() {
  case $1 in
    torch-*) export ATEN_CPU_CAPABILITY=${1#torch-} ;;
    onednn-*)
      # OpenVINO obeys it, too, but plans by the processor itself, for which it then has no kernels.
      export ONEDNN_MAX_CPU_ISA=${1#onednn-} ELSEWHERE_WITHOUT=openvino ;;
    engine-*)
      export ELSEWHERE_ISA=${1#engine-} MIRROR_RT_INSTRUCTION_SET=${1#engine-}
      case $1 in
        *avx_vnni) MIRROR_RT_INSTRUCTION_SET=avx2 ;;
        *avx512_vnni) MIRROR_RT_INSTRUCTION_SET=avx512 ;;
        *avx512_bf16) unset MIRROR_RT_INSTRUCTION_SET ;; # by itself, the loss takes it for 16-bit input alone
      esac ;;
    bf16) export ELSEWHERE_BF16=1 ;;
    fp32) export ELSEWHERE_BF16=0 ;;
    server-slow) export ELSEWHERE_SLOWER=10 ;;
    server-fast) export ELSEWHERE_FASTER=10 ;;
    c-locale) export LC_ALL=C ;;
    turkish)
      folder=$PWD/build/locales/tr_TR.UTF-8
      [ -d "$folder" ] || { mkdir -p build/locales && localedef -i tr_TR -f UTF-8 "$folder"; } || return
      export LOCPATH=$PWD/build/locales LC_ALL=tr_TR.UTF-8 ;;
    kathmandu) export TZ=Asia/Kathmandu ;;
    umask) umask 077 ;;
    order-*) export MIRROR_RT_TEST_ORDER=${1#order-} PYTHONHASHSEED=${1#order-} ;;
    one-cpu) before+=(taskset -c "${cpus%,*}") ;;
    busy)
      before+=(taskset -c "$cpus")
      for _ in 1 2 3 4 5 6; do taskset -c "$cpus" sh -c 'while :; do :; done' & done ;;
    no-ipv6) before+=(unshare --net bash -c 'ip link set lo up; sysctl -qw net.ipv6.conf.all.disable_ipv6=1; exec "$@"' -) ;;
    no-network) before+=(unshare --net bash -c 'ip link set lo up; exec "$@"' -) ;;
    folders) place=(with_clone in_clone 'mirror rt – клон' 'ein Heim, größer') ;;
    read-only) place=(with_clone read_only clone home) ;;
    user) place=(with_clone as_user clone home) ;;
    python*) place=(other_python "$1") ;;
    *) echo "there is no condition $1: see --list" && return 2 ;;
  esac
}
run() { # the conditions of a machine, in a shell of its own
  trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
  local before=(env) place=(here)
  for condition; do set_condition "$condition" || return; done
  "${place[@]}"
}
conditions() { # of the machine $1, one a line, without the instruction sets that are not here
  for condition in ${machines[$1]:-$1}; do tr + '\n' <<< "$condition"; done |
    while read -r condition; do
      case $condition in engine-*) [[ " $sets " = *" ${condition#engine-} "* ]] || continue ;; esac
      echo "$condition"
    done
}

machine="$(nproc) x $(sed -n '/^model name/{s/.*: //p;q}' /proc/cpuinfo)"
[ -e "$table" ] || printf '%s\n' "# The fast tier as other machines run it" "" \
  "Written by \`bash tests/elsewhere.sh\`, which says what each condition is." "" \
  "| machine | otherwise | passed | failed | skipped | seconds | on | commit | date |" "|---|---|---|---|---|---|---|---|---|" > "$table"
note() { # the machine $1, which took $2 seconds and ended with $3; replaces its line of the same processor
  local counted; counted=$(tail -n 1 "$logs/$1.log")
  count() { local found; found=$(grep -oP "\d+(?= $1)" <<< "$counted") && echo $((${found//$'\n'/+})) || true; }
  local failed; failed=$(count '(failed|error)')
  [ "$3" = 0 ] || failed=${failed:-all}
  grep -vF "| $1 | " "$table" > "$table.new" || true
  grep -F "| $1 | " "$table" | grep -vF " | $machine | " >> "$table.new" || true
  echo "| $1 | $(conditions "$1" | paste -sd,) | $(count passed) | ${failed:-0} | $(count skipped) | $2 | $machine |" \
    "$(git rev-parse --short HEAD) | $(date -u +%F) |" >> "$table.new"
  mv "$table.new" "$table"
}

if [ "${1:-}" = --list ]; then
  for name in "${names[@]}"; do echo "$name: ${machines[$name]}"; done
  exit
fi
[ $# -gt 0 ] || set -- "${names[@]}"
red=()
for name; do
  began=$SECONDS
  code=0
  (run $(conditions "$name")) > "$logs/$name.log" 2>&1 || code=$?
  [ $code = 0 ] || red+=("$name")
  note "$name" $((SECONDS - began)) $code
  grep -F "| $name | " "$table" | grep -F " | $machine | "
done
[ ${#red[@]} -eq 0 ] || { echo "red: ${red[*]} (build/elsewhere/MACHINE.log)" && exit 1; }
