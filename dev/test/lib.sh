# lib.sh: shared by the shell tests. Each test_NAME.sh BINARY reads it with `. "$(dirname "$0")/lib.sh"`. It sets
#   binary, repo, python    absolute paths; PYTHON overrides python3
#   dir                     a new empty folder, the working directory, removed at exit
# shellcheck shell=sh

suite=$(basename "$0" .sh)
suite=${suite#test_}
binary=$(cd "$(dirname "$1")" 2>/dev/null && pwd)/$(basename "$1")
if [ $# -ne 1 ] || [ ! -x "$binary" ]; then
    echo "usage: test_$suite.sh BINARY" >&2
    exit 2
fi
repo=$(cd "$(dirname "$0")/../.." && pwd)
python=$(command -v "${PYTHON:-python3}" || echo "${PYTHON:-python3}")
case $python in /*) ;; */*) python=$PWD/$python ;; esac
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1

passed=0 failed=0 skipped=0
# check TEXT COMMAND…: one check; passes if the command succeeds.
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
# Prints the summary line and exits: 0 only if nothing failed and something ran.
finish() {
    echo "$suite: $passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
    exit
}

says() { grep -qF -e "$1" "$2"; }
one_line() { [ "$(wc -l <"$1")" -eq 1 ]; }
empty() { [ ! -s "$1" ]; }
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
