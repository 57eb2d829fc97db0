#!/bin/sh
# test_figures.sh BINARY: compares the largest errors that README states with those of test_tost. They depend on the
# instructions of the machine, so a measured error may be up to twice README's.

. "$(dirname "$0")/../lib.sh"
cd "$repo" || exit 1
./test_tost --golden dev/test/golden >"$dir/errors"

# largest PATTERN: the largest error of the tensors whose name matches.
largest() { awk -v name="$1" '/^    / && $1 ~ name && $2 > most { most = $2 } END { print most }' "$dir/errors"; }
stated() { sed -n "s/.*largest relative L2 errors are $1.*/\1/p" README.md; }
at_most_twice() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && a <= 2 * b) }'; }
logits=$(stated '\([0-9.e-]*\) of the logits') gradient=$(stated '.* \([0-9.e-]*\) of a')
check "README: error of the logits $logits, measured $(largest '^logits$')" \
    at_most_twice "$(largest '^logits$')" "$logits"
check "README: error of a gradient $gradient, measured $(largest '^grad[.]')" \
    at_most_twice "$(largest '^grad[.]')" "$gradient"
finish
