#!/usr/bin/env bash
# mutants.sh [NAME...]: mutation test of distributed training and of Muon (see ../mutants.sh). A mutant must fail
# test_comm, the golden files of test_tost, or a suite of distributed.py with Open MPI.
set -u
repo=$(cd "$(dirname "$0")/../../.." && pwd)
built=$repo/build/distributed_mutants
tree=$built/openmpi
cd "$repo" || exit 1
# shellcheck source=dev/test/mutants.sh
. dev/test/mutants.sh
JOBS=1
sources=(train_gpt_tost.c tost/ranks/*.c tost/commands/train.c
         tost/run/{start,setup,folder,train,save,report,agree}.c tost/store/checkpoint.c)

# of mutants.txt: NAME | suite that must fail | EDIT
declare -A suites=()
while IFS='|' read -r name suite edit; do
    name=${name// /}
    suites[$name]=${suite// /} edits[$name]=${edit# }
done < dev/test/ranks/mutants.txt

build() {
    local targets=(MPI=1 MPICC=mpicc.openmpi train_gpt_tost build/torture/faults.so)
    [ "$1" != test_comm ] || targets=(CC=cc build/cc-openmp/dev/test/ranks/test_comm)
    [ "$1" != test_tost ] || targets=(CC=cc test_tost)
    (unset MAKEFLAGS MAKELEVEL; make -s -C "$tree" CUDA=0 EMULATION=0 "${targets[@]}") > "$built/log" 2>&1
}
run_tests() {
    if [ "$1" = test_comm ]; then timeout 300 "$tree/build/cc-openmp/dev/test/ranks/test_comm"
    elif [ "$1" = test_tost ]; then timeout 300 "$tree/test_tost" --golden dev/test/golden
    else timeout 300 python3 dev/test/ranks/distributed.py --built "$built" --mpi openmpi --suites "$1"
    fi > "$built/log" 2>&1
}

try_mutant() {
    local found='' status=1 suite=${suites[$1]}
    cp "$work/$1.d/$2" "$tree/$2"
    if ! build "$suite"; then found="does not build: $(tail -5 "$built/log")"
    elif run_tests "$suite"; then found="passed the test"
    elif found=$(grep -m1 '^FAILED' "$built/log"); then status=0
    else found="no failed check: $(tail -3 "$built/log")"; fi
    cp "$2" "$tree/$2"
    echo "$found"
    return $status
}

[ -z "${EDITS_ONLY:-}" ] || run_mutants "$@"
if ! command -v mpicc.openmpi > /dev/null; then
    echo "skipped mutants: no mpicc.openmpi (Debian: libopenmpi-dev)"
    echo "mutants: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
rm -rf "$tree"
mkdir -p "$tree"
cp -r tost dev CITATION.cff Makefile train_gpt_tost.c test_tost.c "$tree"
if build signals && dev/test/ranks/build.sh "$built" plain && run_tests signals,refusals && build test_comm &&
    run_tests test_comm && build test_tost && run_tests test_tost; then
    passed=1
    run_mutants "$@"
fi
tail -5 "$built/log"
fail "the unchanged trainer does not pass"
verdict
