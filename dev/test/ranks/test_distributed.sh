#!/bin/sh
# Training on several ranks with MPI: distributed.py. Not part of `make test`. MPI, SUITES and KILLS (per MPI library)
# select parts. The default leaves out timeout, whose result depends on the speed of the machine.
python=${PYTHON:-python3}
if [ -n "${QUICK:-}" ] || ! command -v "$python" >/dev/null; then
    echo 'skipped distributed: only in make test_all, with Python'
    echo 'distributed: 0 passed, 0 failed, 1 skipped'
    exit
fi
repo=$(cd "$(dirname "$0")/../../.." && pwd)
mpis=${MPI:-openmpi}
for mpi in plain $mpis; do
    "$repo/dev/test/ranks/build.sh" "$repo/build/distributed" "$mpi" || [ $? -eq 3 ] || {   # 3: not installed
        echo "FAILED distributed: the trainer does not build ($mpi)"
        echo 'distributed: 0 passed, 1 failed, 0 skipped'
        exit 1
    }
done
# shellcheck disable=SC2086  # a list of MPI libraries
exec "$python" "$repo/dev/test/ranks/distributed.py" --built "$repo/build/distributed" --mpi $mpis \
    --kills "${KILLS:-3}" --suites "${SUITES:-equal,parts,refusals,signals,kill}"
