#!/bin/sh
# Each mutant of the CUDA engine must change its line. `make test_mutants` runs the tests with the mutants.
EDITS_ONLY=1 exec dev/test/cuda/mutants.sh none none none
