#!/usr/bin/env bash
# mutants.sh [NAME...]: mutation test of distributed training. Changes one line of the trainer at a time, builds it with
# Open MPI, and runs distributed.py, which must fail for each mutant and pass for the unchanged trainer.
#
# A mutant changes the line that ends with `// mutant: NAME` in the sources below. It changes no file in the repository.
set -u
repo=$(cd "$(dirname "$0")/../../.." && pwd)
built=$repo/build/distributed_mutants
tree=$built/openmpi
cd "$repo" || exit 1
sources=(train_gpt_tost.c tost/ranks/*.c tost/run/{train,setup,save,report,ranks,checkpoint}.c)
chosen=("$@")

# mutant | suites that must fail | sed command for its line
declare -A edits=() suites=()
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
parameters_not_told | timeout | s/comm_b/if (state != TOST_PARAM) comm_b/
END

passed=0 failed=0
fail() { echo "FAILED mutants: $1"; failed=$((failed + 1)); }

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

# mutate NAME: replaces the file with the tagged line, and sets `mutated` to its name; writes why it cannot to the log.
mutate() {
    local found file line
    exec 3> "$built/log"
    found=$(grep -nE "// mutant: ([a-z0-9_]+, )*$1(,|\$)" "${sources[@]}")
    if [ "$(grep -c . <<< "$found")" -ne 1 ]; then
        echo "\`// mutant: $1\` marks $(grep -c . <<< "$found") lines of ${sources[*]}; it must mark one" >&3
        return 1
    fi
    IFS=: read -r file line _ <<< "$found"
    rm -f "$tree/$file"
    mutated=$file
    sed "$line${edits[$1]}" "$file" > "$tree/$file" || return 1
    if cmp -s "$file" "$tree/$file"; then
        echo "$file:$line: ${edits[$1]} changes nothing" >&3
        return 1
    fi
}

if ! command -v mpicc.openmpi > /dev/null; then
    echo "skipped mutants: no mpicc.openmpi (Debian: libopenmpi-dev)"
    echo "mutants: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
prepare
if build && cp "$tree/train_gpt_tost" "$built/plain" && run_tests equal,signals; then
    passed=1
else
    tail -5 "$built/log"
    fail "the unchanged trainer does not pass"
    echo "mutants: 0 passed, 1 failed, 0 skipped"
    exit 1
fi
for name in $(sed -n 's/.*\/\/ mutant: //p' "${sources[@]}" | tr ',' ' '); do
    [ -n "${edits[$name]:-}" ] || fail "the tag \`// mutant: $name\` has no edit in mutants.sh"
done
[ ${#chosen[@]} -gt 0 ] || mapfile -t chosen < <(printf '%s\n' "${!edits[@]}" | sort)
for name in "${chosen[@]}"; do
    mutated=
    if [ -z "${edits[$name]:-}" ]; then
        fail "no mutant is named $name"
    elif ! mutate "$name" || ! build; then
        fail "$name: does not build: $(tail -5 "$built/log")"
    elif run_tests "${suites[$name]}"; then
        fail "$name passed the test"
    elif found=$(grep -m1 '^FAILED' "$built/log"); then
        echo "$name: ${found:0:150}"
        passed=$((passed + 1))
    else
        fail "$name: no failed check: $(tail -3 "$built/log")"
    fi
    [ -z "$mutated" ] || ln -sf "$repo/$mutated" "$tree/$mutated"   # make -L compares the time of the link
done
echo "mutants: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
