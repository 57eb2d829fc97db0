#!/usr/bin/env bash
# mutants.sh CXX FLAGS "OBJECTS" [NAME...]: mutation test of the CUDA engine (see ../mutants.sh), with
# cuda_on_host_test --mutants or --exchange. OBJECTS: the test's objects except kernels_test.o, which contains the
# engine. Run it from the repository root.
set -u
if [ $# -lt 3 ]; then echo "usage: $0 CXX FLAGS OBJECTS [NAME...]" >&2; exit 2; fi
cxx=$1 flags=$2 objects=$3
shift 3
# shellcheck source=dev/test/mutants.sh
. dev/test/mutants.sh
sources=(train_gpt_tost.cu tost/cuda/*.cuh)
# of mutants.txt: NAME | EDIT
while IFS='|' read -r name edit; do edits[${name// /}]=${edit# }; done < dev/test/cuda/mutants.txt

# build NAME FOLDER: builds the test with the engine in FOLDER. flags and objects are lists of words.
build() {
    $cxx "-I$2" $flags -c dev/test/cuda/kernels_test.cpp -o "$work/$1.o" &&
        $cxx -o "$work/$1" "$work/$1.o" $objects -lm -ldl -rdynamic   # without the library of -fsanitize=thread
}

# mode NAME FILE: the tests that the mutant must fail
mode() {
    if [[ $1 =~ ^(first_device|muon_params_not_sent|muon_not_gathered)$ || $2 == */exchange.cuh ||
        $2 == */nccl.cuh ]]; then echo --exchange; else echo --mutants; fi
}

try_mutant() {
    local file found folder=$work/$1.d
    for file in "${sources[@]}"; do
        mkdir -p "$folder/$(dirname "$file")"
        [ "$file" = "$2" ] || cp "$file" "$folder/$file"
    done
    if ! build "$1" "$folder" > "$work/$1.log" 2>&1; then echo "does not build: $(tail -5 "$work/$1.log")"; return 1; fi
    found=$({ timeout 300 "$work/$1" "$(mode "$1" "$2")"; echo "exit status $?"; } 2>&1 |
        grep -m1 -E '^FAILED|^cuda_on_host: [^0-9]|^exit status|AddressSanitizer|runtime error')
    rm -f "$work/$1" "$work/$1.o"
    case $found in
        'exit status 139' | 'exit status 134') echo "it accesses memory that is not its own" ;;   # a signal
        'exit status'*) echo "passed the test: $found"; return 1 ;;
        *) echo "$found" ;;
    esac
}

unchanged_passes() {
    build engine . && "$work/engine" --quick && "$work/engine" --mutants && "$work/engine" --exchange
}

[ -z "${EDITS_ONLY:-}" ] || run_mutants "$@"
if unchanged_passes > "$work/log" 2>&1; then
    passed=1
    run_mutants "$@"
fi
tail -5 "$work/log"
fail "the unchanged engine does not pass"
verdict
