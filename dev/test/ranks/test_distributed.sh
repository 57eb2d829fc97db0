#!/bin/sh
# test_distributed.sh BINARY: distributed.py, training on several ranks with MPI; BINARY is not used. MPI, SUITES and
# KILLS (per MPI library) select parts. The default leaves out timeout: its result depends on the speed of the machine.
# shellcheck disable=SC2086  # a list of MPI libraries

. "$(dirname "$0")/../lib.sh"
slow_tests "distributed.py"
mpis=${MPI:-openmpi}
for mpi in plain $mpis; do
    "$repo/dev/test/ranks/build.sh" "$repo/build/distributed" "$mpi" || [ $? -eq 3 ] || {   # 3: not installed
        check "the trainer builds ($mpi)" false
        finish
    }
done
"$python" "$repo/dev/test/ranks/distributed.py" --built "$repo/build/distributed" --mpi $mpis \
    --kills "${KILLS:-3}" --suites "${SUITES:-equal,parts,refusals,signals,kill}"
