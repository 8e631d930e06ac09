#!/usr/bin/env bash
# A clean clone, then `make demo` and `make test` N times, without and with ONEDNN_MAX_CPU_ISA=AVX2
# (what a CPU without AVX-512 does): a table of exit codes and seconds.  The exit code is 1 when one
# of them failed.
#
#     bash scripts/again.sh [N]        N is 5 unless given
#     DRY=1 bash scripts/again.sh 2    says what it would run, and fails every other time
#
# What was said is in OUT (a folder in $TMPDIR unless given), one file for each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
times=${1:-5}
out=${OUT:-$(mktemp -d "${TMPDIR:-/tmp}/again.XXXXXX")}
mkdir -p "$out"
clone=$(mktemp -d "${TMPDIR:-/tmp}/clone.XXXXXX")
trap 'rm -rf "$clone"' EXIT
git clone --quiet . "$clone/bipareto"
cd "$clone/bipareto"
commit=$(git log -1 --format=%h)
count=0 failed=0 rows=()

once() { # NAME ISA TARGET
  local log="$out/$1.txt" begin=$SECONDS code=0
  count=$((count + 1))
  if [ -n "${DRY:-}" ]; then
    echo "ONEDNN_MAX_CPU_ISA=$2 make $3" > "$log"
    code=$(((count - 1) % 2))
  elif [ "$2" = DEFAULT ]; then
    make "$3" > "$log" 2>&1 || code=$?
  else
    ONEDNN_MAX_CPU_ISA=$2 make "$3" > "$log" 2>&1 || code=$?
  fi
  [ "$code" -eq 0 ] || failed=$((failed + 1))
  local said
  said=$(grep -E '(passed|failed|error).* in [0-9.]+s' "$log" | tail -1 | tr -d '=' || true)
  rows+=("$(printf '%-3s %-8s %-5s %5s %6s s  %s' "${1%%-*}" "$2" "$3" "$code" $((SECONDS - begin)) "$said")")
  echo "${rows[-1]}"
}

for time in $(seq "$times"); do
  for isa in DEFAULT AVX2; do
    for target in demo test; do
      once "$time-$isa-$target" "$isa" "$target"
    done
  done
done
{
  echo
  echo "commit $commit, $(date -u +%Y-%m-%d), $(nproc) cores, $(grep -m1 -o 'model name.*' /proc/cpuinfo | cut -d: -f2)"
  printf '%-3s %-8s %-5s %5s %8s  %s\n' run isa make code time said
  printf '%s\n' "${rows[@]}"
  echo "$count runs, $failed failed; what they said: $out"
} | tee "$out/table.txt"
[ "$failed" -eq 0 ]
