#!/bin/sh
# run.sh FOLDER SECONDS RUNS TARGET…: builds the fuzz targets (make fuzz_built), writes their seeds and runs two targets
# at a time, each for SECONDS or RUNS inputs (-1: no limit). Failing inputs are saved in FOLDER/found. Prints a line per
# target and a total; the exit status is 0 only if nothing was found.
set -u
folder=$1 seconds=$2 runs=$3
shift 3
probe=$(mktemp -d) || exit 1
trap 'rm -rf "$probe"' EXIT
# The targets write input files, in memory if possible.
base=/tmp
[ ! -w /dev/shm ] || base=/dev/shm
TMPDIR=$(mktemp -d "$base/tost_fuzz_XXXXXX") || exit 1
export TMPDIR
trap 'rm -rf "$probe" "$TMPDIR"' EXIT
echo 'int LLVMFuzzerTestOneInput(const unsigned char* d, unsigned long n) { return d && n == 1; }' >"$probe/a.c"
if ! "$FUZZ_CC" -fsanitize=fuzzer,address,undefined "$probe/a.c" -o "$probe/a" 2>"$probe/why" ||
    ! "$probe/a" -runs=1 2>>"$probe/why"; then
    echo "skipped fuzz: $FUZZ_CC cannot build with libFuzzer"
    echo "fuzz: 0 passed, 0 failed, $# skipped"
    exit 0
fi
"$MAKE" --no-print-directory -s fuzz_built FUZZ="$*" || { echo "fuzz: 0 passed, 1 failed, 0 skipped"; exit 1; }
"$folder/seeds" "$folder/seed" || exit 1
mkdir -p "$folder/found"

# run_target TARGET: new inputs are saved in FOLDER/corpus/TARGET; TARGET.dict, if it exists, contains keywords.
run_target() {
    mkdir -p "$folder/corpus/$1"
    dict=dev/test/faults/fuzz/$1.dict
    [ -f "$dict" ] && dict=-dict=$dict || dict=
    "$folder/fuzz_$1" -max_total_time="$seconds" -runs="$runs" -max_len=4096 -timeout=20 -rss_limit_mb=1500 \
        -close_fd_mask=1 -print_final_stats=1 -artifact_prefix="$folder/found/$1-" $dict "$folder/corpus/$1" \
        "$folder/seed/$1" >"$folder/$1.log" 2>&1
    status=$?
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$folder/$1.log")
    rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$folder/$1.log")
    cover=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$folder/$1.log" | tail -1)
    printf '%-12s %10s inputs  %7s inputs/s  %6s edges covered  ' "$1" "${inputs:-?}" "${rate:-?}" "${cover:-?}"
    if [ $status -eq 0 ]; then echo "nothing found"; return 0; fi
    input=$(sed -n 's/.*Test unit written to //p' "$folder/$1.log" | tail -1)
    echo "FAILED: $(grep -m1 -E 'broken:|ERROR:|runtime error:' "$folder/$1.log"); reproduce: $folder/fuzz_$1 $input"
    return 1
}

rm -f "$folder"/*.verdict
for target; do
    { run_target "$target" >"$folder/$target.line" && echo passed || echo failed; } >"$folder/$target.verdict" &
    pending="${pending-} $!"
    # two at a time: wait for the older one
    set -- $pending
    if [ $# -eq 2 ]; then wait "$1"; pending=" $2"; fi
done
wait
for verdict in "$folder"/*.verdict; do cat "${verdict%.verdict}.line"; done
failed=$(cat "$folder"/*.verdict | grep -c failed)
passed=$(cat "$folder"/*.verdict | grep -c passed)
echo "fuzz: $passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
