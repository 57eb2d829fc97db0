#!/bin/sh
# shellcheck disable=SC2154,SC2046,SC2086
# Training on several ranks with MPI: distributed.py. Not part of `make test`. MPI, SUITES and KILLS (per MPI library)
# select parts. The default leaves out timeout, whose result depends on the speed of the machine.
. "$(dirname "$0")/../lib.sh"

built=$repo/build/distributed
if [ -n "${QUICK:-}" ]; then
    skip 'not a quick test: make test_all, or dev/test/ranks/test_distributed.sh ./train_gpt_tost'
    finish
fi
for mpi in plain ${MPI:-openmpi}; do
    "$repo/dev/test/ranks/build.sh" "$built" $mpi >build.log 2>&1
    case $? in
        0) [ $mpi = plain ] || mpis=${mpis:+$mpis,}$mpi ;;
        3) skip "$mpi: no mpicc.$mpi (Debian: lib$mpi-dev)" ;;
        *) check "the trainer builds ($mpi): $(tail -5 build.log)" false ;;
    esac
done
[ -n "${mpis:-}" ] || finish
"$python" "$repo/dev/test/ranks/distributed.py" --built "$built" --mpi "$mpis" --kills "${KILLS:-3}" \
    --suites "${SUITES:-equal,parts,refusals,signals,kill}" >log 2>&1
status=$?
grep -v '^distributed: [0-9]* passed' log
set -- $(sed -n 's/^distributed: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' log) 0 0 0
passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
[ $status -eq 0 ] || [ $failed -gt 0 ] || check "distributed.py: exit status $status" false
finish
