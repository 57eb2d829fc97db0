#!/bin/sh
# run.sh FOLDER SECONDS RUNS TARGET…: builds the fuzz targets (make fuzz_built), writes their seeds and runs two targets
# at a time, each for SECONDS or RUNS inputs (-1: no limit). Failing inputs are saved in FOLDER/found. Prints a line per
# target and a total; the exit status is 0 only if nothing was found.
set -u
export folder="$1" seconds="$2" runs="$3"
shift 3
# The targets write input files, in memory if possible.
base=/tmp
[ ! -w /dev/shm ] || base=/dev/shm
TMPDIR=$(mktemp -d "$base/tost_fuzz_XXXXXX") || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
echo 'int LLVMFuzzerTestOneInput(const unsigned char* d, unsigned long n) { return d && n == 1; }' >"$TMPDIR/a.c"
if ! "$FUZZ_CC" -fsanitize=fuzzer,address,undefined "$TMPDIR/a.c" -o "$TMPDIR/a" 2>/dev/null ||
    ! "$TMPDIR/a" -runs=1 2>/dev/null; then
    echo "skipped fuzz: $FUZZ_CC cannot build with libFuzzer"
    echo "fuzz: 0 passed, 0 failed, $# skipped"
    exit 0
fi
"$MAKE" --no-print-directory -s fuzz_built FUZZ="$*" || { echo "fuzz: 0 passed, 1 failed, 0 skipped"; exit 1; }
FOLDER=$(mkdir -p "$folder/seed" "$folder/found" && cd "$folder/seed" && pwd) \
    dev/test/faults/fuzz/seeds.sh ./train_gpt_tost || exit 1

# run_one TARGET: prints its line. New inputs are saved in FOLDER/corpus/TARGET.
cat >"$TMPDIR/run_one" <<'END'
mkdir -p "$folder/corpus/$1"
"$folder/fuzz_$1" -max_total_time="$seconds" -runs="$runs" -max_len=8192 -timeout=20 -rss_limit_mb=1500 \
    -close_fd_mask=1 -print_final_stats=1 -artifact_prefix="$folder/found/$1-" -dict=dev/test/faults/fuzz/fuzz.dict \
    "$folder/corpus/$1" "$folder/seed/$1" >"$folder/$1.log" 2>&1
status=$?
stat() { sed -n "s/$1/\\1/p" "$folder/$target.log" | tail -1; }
target=$1
line=$(printf '%-12s %10s inputs  %6s edges covered  ' "$1" "$(stat 'stat::number_of_executed_units: *\(.*\)')" \
    "$(stat '.* cov: \([0-9]*\) .*')")
[ $status -ne 0 ] || { echo "${line}nothing found"; exit 0; }
why=$(grep -m1 -E 'broken:|ERROR:|runtime error:' "$folder/$1.log")
echo "${line}FAILED: $why; reproduce: $folder/fuzz_$1 $(stat '.*Test unit written to \(.*\)')"
END
printf '%s\n' "$@" | xargs -n 1 -P 2 sh "$TMPDIR/run_one" >"$TMPDIR/lines"
cat "$TMPDIR/lines"
passed=$(grep -c 'nothing found$' "$TMPDIR/lines")
echo "fuzz: $passed passed, $(($# - passed)) failed, 0 skipped"
[ "$passed" -eq $# ]
