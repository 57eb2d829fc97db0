#!/usr/bin/env bash
# mutants.sh [NAME...]: mutation test of distributed training (see ../mutants.sh). Builds each mutant with Open MPI, and
# runs distributed.py.
set -u
repo=$(cd "$(dirname "$0")/../../.." && pwd)
built=$repo/build/distributed_mutants
tree=$built/openmpi
cd "$repo" || exit 1
# shellcheck source=dev/test/mutants.sh
. dev/test/mutants.sh
JOBS=1
sources=(train_gpt_tost.c tost/ranks/*.c tost/run/{train,setup,save,report,ranks,checkpoint}.c)

# mutant | suites that must fail | sed command for its line
declare -A suites=()
while IFS='|' read -r name suite edit; do
    name=${name// /}
    suites[$name]=${suite// /} edits[$name]=${edit# }
done << 'END'
wrong_slice         | equal   | s/, r, k/, (r + 1) % x->ranks, k/
missing_wait        | equal   | s/comm_wait(\(.*\));/x->comm->test(\1, NULL);/
gather_not_awaited  | equal   | s/comm_wait(\(.*\));/x->comm->test(\1, NULL);/
parts_in_a_row      | equal   | s/for.*/if (x->part > 0) tree_add(grad, x->level[0], grad, x->size);/
bucket_left_out     | equal   | s/>= from/> from/
wrong_tree          | equal   | s/row\[i\] *, row\[i\]/row[0], row[0]/
signal_not_shared   | signals | s/any || all\[r\]/any/
finished_not_shared | refusals | s/comm_broadcast.*;//
END

# prepare: a copy of the tree, as links, in which a source can be replaced.
prepare() {
    rm -rf "$tree/tost" "$tree/train_gpt_tost.c"
    find tost -type d -exec mkdir -p "$tree/{}" \;
    find tost -type f -exec ln -sf "$repo/{}" "$tree/{}" \;
    for file in CITATION.cff Makefile dev train_gpt_tost.c; do ln -sfn "$repo/$file" "$tree/$file"; done
}
build() { (unset MAKEFLAGS MAKELEVEL; make -s -L -C "$tree" MPI=1 MPICC=mpicc.openmpi CUDA=0 EMULATION=0 \
    train_gpt_tost build/torture/faults.so) > "$built/log" 2>&1; }
run_tests() {
    timeout 300 python3 dev/test/ranks/distributed.py --binary "$built/plain" --built "$built" --mpi openmpi \
        --models plain --first --suites "$1" > "$built/log" 2>&1
}

try_mutant() {
    local found='' status=1
    rm -f "$tree/$2"
    cp "$work/$1.d/$2" "$tree/$2"
    if ! build; then found="does not build: $(tail -5 "$built/log")"
    elif run_tests "${suites[$1]}"; then found="passed the test"
    elif found=$(grep -m1 '^FAILED' "$built/log"); then status=0
    else found="no failed check: $(tail -3 "$built/log")"; fi
    ln -sf "$repo/$2" "$tree/$2"   # make -L compares the time of the link
    echo "$found"
    return $status
}

if ! command -v mpicc.openmpi > /dev/null; then
    echo "skipped mutants: no mpicc.openmpi (Debian: libopenmpi-dev)"
    echo "mutants: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
prepare
if build && cp "$tree/train_gpt_tost" "$built/plain" && run_tests equal,signals; then
    passed=1
    run_mutants "$@"
fi
tail -5 "$built/log"
fail "the unchanged trainer does not pass"
verdict
