# mutants.sh: what the mutation tests share; they source it. A mutant changes one line of the sources, and the tests must
# fail for it. A mutation test sets
#
#     sources                 the files
#     edits[NAME]             the sed command of each mutant; it finds its line by its text or by that of a line before
#     try_mutant NAME FILE    builds with $work/NAME.d/FILE in place of FILE and runs the tests. Prints the failed check
#                             and succeeds if they fail; else prints why not
#
# and calls run_mutants [NAME...]. $JOBS mutants run in parallel (default: one per core). With EDITS_ONLY=1, it only
# checks that each edit changes exactly one line, and prints failures. It changes no file in the repository.
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
declare -A edits=()

fail() { echo "FAILED mutants: $1"; failed=$((failed + 1)); }
verdict() {
    echo "mutants: $passed passed, $failed failed, 0 skipped"
    [ $failed -eq 0 ]
    exit
}

# mutate NAME: writes the changed source to $work/NAME.d and sets `mutated` to its name, or prints why it cannot.
mutate() {
    local file copy lines=0
    for file in "${sources[@]}"; do
        copy=$work/$1.d/$file
        mkdir -p "${copy%/*}"
        sed "${edits[$1]}" "$file" > "$copy" || return 1
        if cmp -s "$file" "$copy"; then rm "$copy"; continue; fi
        mutated=$file
        lines=$((lines + $(diff "$file" "$copy" | grep -c '^<')))
    done
    [ "$lines" -eq 1 ] && return
    echo "${edits[$1]} changes $lines lines of ${sources[*]}; it must change one"
    return 1
}

run_mutant() {
    local text
    if ! mutate "$1" > "$work/$1.log"; then echo "FAILED mutants: $1: $(cat "$work/$1.log")"
    elif [ -n "${EDITS_ONLY:-}" ]; then :
    elif text=$(try_mutant "$1" "$mutated"); then echo "$1: ${text:0:150}"
    else echo "FAILED mutants: $1: $text"; fi | tee "$work/$1.result"
}

run_mutants() {
    local name names=()
    for name in $(if [ $# -gt 0 ]; then echo "$@"; else printf '%s\n' "${!edits[@]}" | sort; fi); do
        if [ -n "${edits[$name]:-}" ]; then names+=("$name"); else fail "no mutant is named $name"; fi
    done
    for name in "${names[@]}"; do
        run_mutant "$name" &
        while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-$(nproc)}" ]; do wait -n; done
    done
    wait
    for name in "${names[@]}"; do
        if grep -q '^FAILED' "$work/$name.result"; then failed=$((failed + 1)); else passed=$((passed + 1)); fi
    done
    verdict
}
