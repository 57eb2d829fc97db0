# lib.sh: shared by the shell tests. Each test_NAME.sh BINARY sources it with `. "$(dirname "$0")/../lib.sh"`. It sets
#   binary, repo, python    absolute paths; PYTHON overrides python3
#   dir                     a new empty working directory, removed at exit
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
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1

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
# counted FILE: adds the checks that a Python program printed, a line "ok TEXT" or "FAILED SUITE: TEXT" for each.
counted() {
    grep '^FAILED' "$1"
    passed=$((passed + $(grep -c '^ok' "$1")))
    failed=$((failed + $(grep -c '^FAILED' "$1")))
}
# Prints the closing line and exits with status 0 only if nothing failed and something passed or was skipped.
finish() {
    echo "$suite: $passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
    exit
}

# run ARGUMENTS…: runs the binary, which must succeed, with its output in the files stdout and stderr. test_cli.sh and
# test_data_scripts.sh define their own.
run() {
    "$binary" "$@" >stdout 2>stderr </dev/null
    status=$?
    check "'$*' succeeds: $(head -c 300 stderr)" [ $status -eq 0 ]
}
# has PACKAGE…: true if Python finds all of them, without importing them: torch takes seconds.
has() {
    "$python" -c 'import sys, importlib.util as u
sys.exit(any(u.find_spec(package) is None for package in sys.argv[1:]))' "$@" 2>/dev/null
}
says() { grep -qF -e "$1" "$2"; }
one_line() { [ "$(wc -l <"$1")" -eq 1 ]; }
empty() { [ ! -s "$1" ]; }
refused_alone() { one_line stderr && empty stdout; }
# refused FRAGMENT…: the last run printed one line on stderr with all fragments, and nothing on stdout.
refused() {
    check "one line on stderr, none on stdout: $(cat stderr)" refused_alone
    for fragment in "$@"; do check "the error contains '$fragment': $(cat stderr)" says "$fragment" stderr; done
}
# The columns of a log that do not contain times.
timeless() { cut -d, -f1-6 "$1"; }
same_log() { [ -s "$1" ] && [ "$(timeless "$1")" = "$(timeless "$2")" ]; }

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
