#!/bin/sh
# test_mutants.sh: each mutant of the two mutants.sh changes one line. Their tests are not run.
if ! bash -c '[ "${BASH_VERSINFO[0]}" -ge 5 ]' 2> /dev/null; then
    echo "skipped mutants: no bash 5"
    echo "mutants: 0 passed, 0 failed, 1 skipped"
    exit
fi
export EDITS_ONLY=1 JOBS=2
bash dev/test/cuda/mutants.sh none none none
cuda=$?
bash dev/test/ranks/mutants.sh && exit $cuda
