#!/usr/bin/env bash
# A slice of the tables on a machine with a GPU: code and data go there, results come back.
#
#   benchmarks/gpu_slice.sh HOST BUDGET TABLE...        from here; HOST is reached by ssh
#   benchmarks/gpu_slice.sh --here OUT BUDGET TABLE...  on the machine with the GPU
#
# Images come from the exported subsets in DRAWS (by default draws/*.zip; one at ratio 10 serves
# every higher ratio): protail data export cifar100-lt --imbalance 10 -o draws/cifar100-lt-10.zip
# The GPU machine needs Python with torch, torchvision and what protail itself needs, no install.
# On the GPU machine results are packed into OUT/cells.tar every few seconds; from here they come
# back when the slice ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
shopt -s nullglob
subsets=(${DRAWS:-draws/*.zip})
set -f  # from here on a word like ["flip"] is no pattern
PYTHON=${PYTHON:-python3}

pack() {
  [ -d "$1/results/cells" ] || return 0
  # Only what was run here. Names that begin with a dot are files that are still being written.
  (cd "$1/results/cells" && find . -newer ../../began -name '*.json' ! -name '.*' | tar -cf - -T -) \
    >"$1/cells.tar.new"
  mv "$1/cells.tar.new" "$1/cells.tar"
}

here() {
  local out=$1 budget=$2
  shift 2
  mkdir -p "$out/results"
  # What has a result already is not run again, and tells how long the others take. What a slice
  # that was killed has left in OUT is gone on with.
  if [ ! -e "$out/began" ]; then
    if [ -d results ]; then cp -r results/. "$out/results"; fi
    touch "$out/began"
  fi
  if [ -z "${PROTAIL_COMMIT:-}" ] && ! git rev-parse HEAD >/dev/null 2>&1; then
    echo "Set PROTAIL_COMMIT to the commit of this code: results say what made them." >&2
    return 2
  fi
  PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" -m protail_paper bench "$@" \
    --results "$out/results" --budget "$budget" ${subsets[@]/#/--subset=} ${BENCH_OPTIONS:-} &
  running=$!
  trap 'kill "$running" 2>/dev/null || true' EXIT
  while kill -0 "$running" 2>/dev/null; do
    pack "$out" || echo "results could not be packed; the next time is in a few seconds" >&2
    sleep 5
  done
  local code=0
  wait "$running" || code=$?
  pack "$out"
  rm -rf "$out/results" "$out/began"
  return "$code"
}

there() {
  local host=$1 budget=$2 code=0
  shift 2
  back=$(mktemp -d)
  trap 'rm -rf "$back"' EXIT
  # What runs on the other machine is made of words that hold no spaces or quotes.
  local commit
  commit=$(git describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null || echo unknown)
  tar -cf - src benchmarks pyproject.toml "${subsets[@]}" $(ls -d results 2>/dev/null) |
    ${SSH:-ssh} "$host" "set -e; d=\$(mktemp -d); cd \$d; tar -xf -; mkdir out
      PROTAIL_COMMIT=$commit \
      DRAWS='${subsets[*]}' BENCH_OPTIONS='${BENCH_OPTIONS:-}' PYTHON=$PYTHON \
      bash benchmarks/gpu_slice.sh --here out $budget $* >&2 || echo 'The slice ended early.' >&2
      tar -cf - -C out \$(ls out | grep -x cells.tar || echo --files-from=/dev/null); rm -rf \$d" | tar -xf - -C "$back" || code=$?
  if [ ! -f "$back/cells.tar" ]; then
    echo "No result came back from $host; what it said stands above." >&2
    return 1
  fi
  mkdir "$back/cells"
  tar -xf "$back/cells.tar" -C "$back/cells"
  PYTHONPATH=src "$PYTHON" -m protail_paper bench take "$back/cells"
  return "$code"
}

if [ $# -lt 3 ]; then
  sed -n '2,12p' "$0"
  exit 2
elif [ "$1" = --here ]; then
  shift
  here "$@"
else
  there "$@"
fi
