#!/usr/bin/env bash
# mutants.sh CXX FLAGS "OBJECTS" [NAME...]: mutation test. Changes one line of the CUDA engine at a time and runs
# cuda_on_host_test --mutants or --exchange, which must fail for each mutant and pass for the unchanged engine.
#
# A mutant changes the line that ends with `// mutant: NAME` (or `// mutant: A, B`) in train_gpt_tost.cu or
# tost/cuda/*.cuh. OBJECTS: the test's objects except kernels_test.o, which contains the engine. JOBS mutants run in
# parallel (default: one per core). Run it from the repository root; it changes no file there.
set -u
if [ $# -lt 3 ]; then echo "usage: $0 CXX FLAGS OBJECTS [NAME...]" >&2; exit 2; fi
cxx=$1 flags=$2 objects=$3
shift 3
chosen=("$@")
test_folder=dev/test/cuda
sources=(train_gpt_tost.cu tost/cuda/*.cuh)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
jobs=${JOBS:-$(nproc 2>/dev/null || echo 1)}

# mutant | sed command for its line
declare -A edits=()
while IFS='|' read -r name edit; do edits[${name// /}]=${edit# }; done << 'END'
carries_unsynchronized | s/__syncthreads();//
block_sum_reuses_early | s/__syncthreads();//
block_sum_reads_early | s/__syncthreads();//
tree_sum_unsynchronized | s/__syncthreads();//
ticket_read_early | s/__syncthreads();//
ticket_of_the_grid | s/atomicAdd(ticket, 1)/(int)blockIdx.x/
flag_not_released | s/store_release(flag, 1)/cuda_on_host_store(flag, 1, false)/
flag_not_awaited | s/while.*{}//
flag_not_acquired | s/load_acquire(flag);//
wait_unsynchronized | s/__syncthreads();//
group_wait_unsynchronized | s/__syncthreads();//
flag_raised_early | s/__syncthreads();//
group_flag_raised_early | s/__syncthreads();//
flag_not_raised | s/if (threadIdx.x == 0) raise_flag.*;//
group_flag_not_raised | s/if (threadIdx.x == 0) raise_flag.*;//
group_not_awaited | s/scan_wait.*;//
prefix_not_awaited | s/scan_wait.*;//
softmax_unsynchronized | s/__syncthreads();//
mass_unsynchronized | s/__syncwarp();//
mass_before_the_softmax | s/__syncthreads();//
softmax_over_time | s/x + i/x/
dropped_carry | s/to_float(sum\[n\])/0.0f/
dropped_group | s/= k % SCAN_RADIX/= max((int)(k % SCAN_RADIX), 1) - 1/
group_without_itself | s/of_group\[n\]/0.0f/
serial_chain | s/scan_wait_level(flags + level, i)/scan_wait_levels(flags + level, i, size)/
lane_scan_too_short | s/by < WARP/by < WARP \/ 2/
chunk_edge_forward | s/< k.n/< k.n - 1/
chunk_edge_backward | s/t0 + j < k.n/t0 + j <= k.n/
state_not_continued | s/? start\[n\]/? 0.0/
state_not_passed | s/= first + /= /
adjoint_not_passed | s/right, right, /right, NULL, /
position_ignored | s/= position/= 0/
place_ignored | s/step->first + //
bias_place_ignored | s/a.step->first + //
low_part_dropped | s/__fadd_rn(sum.lo, error)/0.0f/
no_accumulation | s/add ? 1\.0f/add ? 0.0f/
weights_not_overwritten | s/: 0\.0f/: 1.0f/
wte_not_overwritten | s/: 0\.0f/: 1.0f/
places_not_overwritten | s/if (add) //
sums_not_overwritten | s/add ? s.out\[c\] : 0.0f/s.out[c]/
temp_not_overwritten | s/add ? a.dtemp\[h\] : 0.0f/a.dtemp[h]/
denom_bias_not_overwritten | s/add ? \*out : 0.0f/*out/
parts_not_overwritten | s/end == TOST_PART_ENDS/false/
chunks_overwritten | s/m->grads_stale = false;//
target_not_subtracted | s/v + j == target/v == target/
segment_without_its_end | s/i < e/i + 1 < e/
input_overwritten | s/CUDA_CHECK.*//
whole_unasked | s/k.n == TSSA_CHUNK/true/
start_of_group_dropped | s/+= before\[i\]/+= 0.0f/
start_not_kept | s/tssa_store_start.*;//
mean_unsynchronized | s/__syncthreads();//
mass_overwritten_early | s/__syncwarp();//
moments_before_dropped | s/part.*;//
mass_terms_dropped | s/less_D += .*;//
bias_of_the_branch_unscaled | s/total.*;/;/
energy_below_its_least | s/= S.*/= true;/
big_tokens_once | s/big += gridDim.x/big += step->n_big/
temp_of_the_first_chunks | s/i += TEMP_THREADS/i += chunks/
graph_of_another_shape | s/g->T != T/false/
moments_into_the_weights | s/if (s == TOST_PARAM) //
nothing_to_score | s/if (counted > 0) //
decay_everywhere | s/t->decay == TOST_DECAY/1/
sent_before_computed | s/CUDA_CHECK.*//
used_before_received | s/CUDA_CHECK.*//
wrong_slice | s/, r, k/, x->rank, k/
wrong_count | s/row, n,/row, n - 32,/
bucket_left_out | s/else/else if (x->started != 1)/
row_of_another_rank | s/= r.*;/= r > 0 ? r - 1 : 0;/
level_not_set | s/x->part.*)/true)/
norm_by_rank | s/place\[i\]/i/
first_device | s/count > 1 ? local_rank : 0/0/
split_anywhere | s/if (p.K.*;//
split_in_place | s/output_type |/output_type | CUBLASLT_REDUCTION_SCHEME_INPLACE |/
bias_of_the_first_layer | s/? alignment/? (uintptr_t)p.bias/
waits_forever | s/if (!\(.*\)) nccl_timed_out.*;/\1;/
END

# mutate NAME FOLDER: copies the engine to FOLDER with one line changed.
mutate() {
    local found file line
    mkdir -p "$2/tost/cuda" && cp train_gpt_tost.cu "$2/" && cp tost/cuda/*.cuh "$2/tost/cuda/" || return 1
    found=$(grep -nE "// mutant: ([a-z0-9_]+, )*$1(,|\$)" "${sources[@]}")
    if [ "$(grep -c . <<< "$found")" -ne 1 ]; then
        echo "\`// mutant: $1\` marks $(grep -c . <<< "$found") lines of ${sources[*]}; it must mark one"
        return 1
    fi
    IFS=: read -r file line _ <<< "$found"
    sed "$line${edits[$1]}" "$file" > "$2/$file" || return 1
    if cmp -s "$file" "$2/$file"; then
        echo "$file:$line: ${edits[$1]} changes nothing"
        return 1
    fi
}

# build NAME FOLDER: builds the test with the engine in FOLDER. flags and objects are lists of words.
build() {
    $cxx "-I$2" $flags -c $test_folder/kernels_test.cpp -o "$work/$1.o" &&
        $cxx -o "$work/$1" "$work/$1.o" $objects -lm -ldl -rdynamic   # without the library of -fsanitize=thread
}

# mode NAME: the tests that a mutant must fail
mode() {
    case $1 in
        first_device) echo --exchange ;;
        *) if grep -q "// mutant: $1\$" tost/cuda/exchange.cuh tost/cuda/nccl.cuh; then echo --exchange
           else echo --mutants; fi ;;
    esac
}

# run_mutant NAME: builds a mutant and runs it up to the first failed check; prints the result and saves it in
# $work/NAME.result.
run_mutant() {
    local name=$1 log=$work/$1.log found
    if ! mutate "$name" "$work/$name.d" > "$log" 2>&1 || ! build "$name" "$work/$name.d" >> "$log" 2>&1; then
        echo "FAILED mutants: $name: does not build: $(tail -5 "$log")"
    else
        found=$({ timeout 120 "$work/$name" "$(mode "$name")"; echo "exit status $?"; } 2>&1 |
            grep -m1 -E '^FAILED|^cuda_on_host: [^0-9]|^exit status|AddressSanitizer|runtime error')
        case $found in
            'exit status 0') echo "FAILED mutants: $name passed the test" ;;
            'exit status 139' | 'exit status 134')   # a signal, or the C library finds its heap overwritten
                echo "$name: it accesses memory that is not its own" ;;
            'exit status'*) echo "FAILED mutants: $name: $found without a failed check" ;;
            *) echo "$name: ${found:0:150}" ;;
        esac
    fi > "$work/$name.result"
    cat "$work/$name.result"
    rm -f "$work/$name" "$work/$name.o"
}

passed=0 failed=0
fail() { echo "FAILED mutants: $1"; failed=$((failed + 1)); }

if build engine . > "$work/log" 2>&1 && "$work/engine" --mutants > "$work/log" 2>&1 &&
    "$work/engine" --exchange > "$work/log" 2>&1; then
    passed=1
else
    tail -5 "$work/log"
    fail "the unchanged engine does not pass"
    echo "mutants: 0 passed, 1 failed, 0 skipped"
    exit 1
fi
for name in $(sed -n 's/.*\/\/ mutant: //p' "${sources[@]}" | tr ',' ' '); do
    [ -n "${edits[$name]:-}" ] || fail "the tag \`// mutant: $name\` has no edit in mutants.sh"
done
names=()
for name in $(if [ ${#chosen[@]} -gt 0 ]; then echo "${chosen[@]}"; else printf '%s\n' "${!edits[@]}" | sort; fi); do
    if [ -n "${edits[$name]:-}" ]; then names+=("$name"); else fail "no mutant is named $name"; fi
done
for name in "${names[@]}"; do
    run_mutant "$name" &
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
done
wait
for name in "${names[@]}"; do
    if grep -q '^FAILED' "$work/$name.result"; then failed=$((failed + 1)); else passed=$((passed + 1)); fi
done
echo "mutants: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
