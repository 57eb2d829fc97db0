# lib.sh: shared by the shell tests. Each test_NAME.sh BINARY sources it with `. "$(dirname "$0")/../lib.sh"`. It sets
#   binary, repo, python    absolute paths; PYTHON overrides python3
#   dir                     a new empty working directory, removed at exit
#   shared                  the folder of published data, TOST_SHARED or ../shared; empty if there is none
# Programs have one OpenMP thread unless the test sets OMP_NUM_THREADS.
# shellcheck shell=sh

suite=$(basename "$0" .sh)
suite=${suite#test_}
binary=$(cd "$(dirname "$1")" 2>/dev/null && pwd)/$(basename "$1")
if [ $# -ne 1 ] || [ ! -x "$binary" ]; then
    echo "usage: test_$suite.sh BINARY" >&2
    exit 2
fi
repo=$(cd "$(dirname "$0")/../../.." && pwd)
python=$(command -v "${PYTHON:-python3}" || echo "${PYTHON:-python3}")
case $python in /*) ;; */*) python=$PWD/$python ;; esac
shared=$(cd "$repo" && cd "${TOST_SHARED:-../shared}" 2>/dev/null && pwd)
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR="$dir"

passed=0 failed=0 skipped=0
# check TEXT COMMAND…: a check that passes if the command succeeds.
check() {
    what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $suite: $what"
    fi
}
skip() { skipped=$((skipped + 1)); echo "skipped $suite: $1"; }
# checks_of PROGRAM ARGUMENTS…: runs a Python program, which must succeed, and adds its checks: it prints "ok TEXT",
# "FAILED SUITE: TEXT" or "skipped SUITE: TEXT" for each.
checks_of() {
    "$python" "$@" >report 2>errors
    status=$?
    check "$1 completes: $(tail -n 3 errors)" [ $status -eq 0 ]
    grep '^FAILED\|^skipped' report
    passed=$((passed + $(grep -c '^ok' report)))
    failed=$((failed + $(grep -c '^FAILED' report)))
    skipped=$((skipped + $(grep -c '^skipped' report)))
}
# Prints the closing line and exits with status 0 only if nothing failed and something passed or was skipped.
finish() {
    echo "$suite: $passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
    exit
}

# execute COMMAND…: runs it with its output in the files stdout and stderr of $dir, and sets status.
execute() {
    "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
    status=$?
}
succeeds() {
    execute "$@"
    check "'$*' succeeds: $(head -c 300 "$dir/stderr")" [ $status -eq 0 ]
}
tost() { "$binary" "$@"; }
run() { succeeds tost "$@"; }
# prints "ARGUMENTS…" TEXT…: runs the binary, which must succeed and print each text.
# shellcheck disable=SC2086  # its arguments are split into words
prints() {
    arguments=$1
    shift
    run $arguments
    cat "$dir/stdout" "$dir/stderr" >"$dir/output"
    for text; do check "'$arguments' prints '$text': $(tail -c 300 "$dir/output")" says "$text" "$dir/output"; done
}
# refuses STATUS "COMMAND…" FRAGMENT…: the command exits with this status and prints only one line, on stderr, with all
# fragments.
# shellcheck disable=SC2086
refuses() {
    wanted=$1 command=$2
    shift 2
    execute $command
    check "'$command': exit status $status, expected $wanted" [ $status -eq "$wanted" ]
    check "one line on stderr: $(cat "$dir/stderr")" one_line "$dir/stderr"
    check "nothing on stdout: $(head -c 300 "$dir/stdout")" empty "$dir/stdout"
    for text; do check "the error contains '$text': $(cat "$dir/stderr")" says "$text" "$dir/stderr"; done
}
# until_true COMMAND…: waits until it succeeds, for at most a minute.
until_true() {
    tries=0
    until "$@" 2>/dev/null; do
        [ $((tries += 1)) -le 600 ] || return 1
        sleep 0.1
    done
}
# slow_tests TEXT PACKAGE…: ends the script, with TEXT as skipped, if QUICK=1, or without Python or
# one of the packages.
slow_tests() {
    what=$1
    shift
    if [ -n "${QUICK:-}" ]; then
        skip "$what: only in make test_all"
        finish
    elif ! has "$@"; then
        skip "$what: needs $python${*:+ with $*}"
        finish
    fi
}
# begin ARGUMENTS…: starts the binary, which runs until `end`, with its output in stdout.bg and stderr.bg.
begin() {
    : >stderr.bg
    "$binary" "$@" >stdout.bg 2>stderr.bg &
    process=$!
}
# end STATUS TEXT: waits for that process.
end() {
    wait "$process" 2>/dev/null
    status=$?
    check "$2: exit status $status, expected $1: $(tail -c 300 stderr.bg)" [ $status -eq "$1" ]
}
# has PACKAGE…: true if Python finds all of them, without importing them: torch takes seconds.
has() {
    "$python" -c 'import sys, importlib.util as u
sys.exit(any(u.find_spec(package) is None for package in sys.argv[1:]))' "$@" 2>/dev/null
}
says() { grep -qF -e "$1" "$2"; }
one_line() { [ "$(wc -l <"$1")" -eq 1 ]; }
empty() { [ ! -s "$1" ]; }
# printed NAME: the number that eval prints after NAME
printed() { awk -v name="$1" '$1 == name { print $2; exit }' stdout; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && (a - b) ^ 2 < 1e-10 * (1 + b ^ 2)) }'; }
# The columns of a log that do not contain times.
timeless() { cut -d, -f1-6 "$1"; }
same_log() { [ -s "$1" ] && [ "$(timeless "$1")" = "$(timeless "$2")" ]; }
checksums() (cd "$1" && find . -name '*.safetensors' -exec cksum {} + | sort)
same_weights() { [ "$(checksums "$1")" ] && [ "$(checksums "$1")" = "$(checksums "$2")" ]; }
# same_run RUN RUN: all checkpoints with their optimizers' state are equal, and the log except for its times.
same_run() { same_log "$1/log.csv" "$2/log.csv" && same_weights "$1" "$2"; }

# sums N: N documents of text, for tokenize
sums() {
    awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) { for (j = 0; j < 6; j++) printf "%d and %d make %d. ", i, j, i + j
                   print "\n<|endoftext|>" } }'
}
# little BYTES NUMBER…: numbers as little-endian bytes.
little() {
    width=$1
    shift
    for number in "$@"; do
        for shift in 0 8 16 24 32 40 48 56; do
            [ $shift -lt $((8 * width)) ] || break
            # shellcheck disable=SC2059  # the format is the byte
            printf "\\$(printf %03o $((number >> shift & 255)))"
        done
    done
}
# header MAGIC VERSION TOKENS: the header of a shard, 256 int32.
header() {
    little 4 "$1" "$2" "$3"
    head -c 1012 /dev/zero
}
# shard TOKEN…: a shard in llm.c's uint16 format.
shard() { header 20240520 1 $#; little 2 "$@"; }
