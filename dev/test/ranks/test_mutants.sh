#!/bin/sh
# Each mutant of distributed training and of Muon must change its line. dev/test/ranks/mutants.sh runs the tests with the mutants.
if ! bash -c '[ "${BASH_VERSINFO[0]}" -ge 5 ]' 2> /dev/null; then
    echo "skipped mutants: no bash 5"
    echo "mutants: 0 passed, 0 failed, 1 skipped"
    exit
fi
EDITS_ONLY=1 JOBS=2 exec bash dev/test/ranks/mutants.sh
