#!/usr/bin/env bash
# mutants.sh CXX FLAGS "OBJECTS" [NAME…]: the test of the test of the kernels. Breaks the CUDA engine in one place at
# a time, runs cuda_on_host_test --quick on each mutant (or on those named), and demands that it fails; the engine as it
# is has to pass. OBJECTS: all of the test but kernels_test.o, which holds the engine. JOBS mutants, default one a core,
# are judged at once. Run from the root; nothing in the tree changes.
set -u
if [ $# -lt 3 ]; then echo "usage: $0 CXX FLAGS OBJECTS [NAME...]" >&2; exit 2; fi
cxx=$1 flags=$2 objects=$3
shift 3
chosen=" $* "
here=dev/test/cuda_on_host
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
at_once=${JOBS:-$(nproc 2>/dev/null || echo 1)}
passed=0 failed=0

# A mutant: name | train_gpt_tost.cu or cuda_common.cuh | a text that stands on exactly one line of it |
# lines below that one | a command of sed for that line
mutants() {
    cat << 'END'
carries_unsynchronised | cu | __syncthreads();   // the carries are written | 0 | s/__syncthreads();//
block_sum_reuses_early | cuh | // whoever read the sums before is done | 0 | s/__syncthreads();//
block_sum_reads_early | cuh | if (lane < N) shared[warp_index() * N + lane] = mine; | 1 | s/__syncthreads();//
tree_sum_unsynchronised | cuh | shared[threadIdx.x] += shared[threadIdx.x + by]; | 1 | s/__syncthreads();//
ticket_read_early | cuh | drawn = atomicAdd(ticket, 1); | 1 | s/__syncthreads();//
softmax_unsynchronised | cu | __device__ inline void membership_forward( | 1 | s/__syncthreads();//
mass_unsynchronised | cu | scratch[h * WARP + lane_index()] = carry[2 * z.C + h] | 1 | s/__syncwarp();//
softmax_over_time | cu | for (int h = 0; h < NH; h++) sum += scratch[ | 0 | s/h \* WARP + lane_index()/h/
dropped_carry | cu | carry[c] = (float)before; | 0 | s/(float)before/0.0f/
dropped_group | cuh | for (int j = 0; j < digit; j++, total += width) { | 0 | s/j < digit/j + 1 < digit/
group_without_itself | cuh | group[n] = own[n]; | 0 | s/own\[n\]/0.0/
lane_scan_too_short | cuh | for (int by = 1; by < WARP; by *= 2) { | 0 | s/by < WARP/by < WARP \/ 2/
chunk_edge_forward | cu | const bool inside = lane_index() < k.n; | 0 | s/< k.n/< k.n - 1/
chunk_edge_backward | cu | t0 + j < k.n) store_pack<P>(dw_t | 0 | s/t0 + j < k.n/t0 + j <= k.n/
state_not_continued | cu | (start ? start[c] : 0.0) + | 0 | s/start\[c\]/0.0/
no_accumulation | cu | matmul(mm, Product<S, float>{dw, dy, x | 0 | s/1\.0f/0.0f/
target_not_subtracted | cu | x[j] -= v + j == target ? scale : 0.0f; | 0 | s/v + j == target/v == target/
segment_without_its_end | cu | i < e.big_first[big + 1] | 0 | s/i < e/i + 1 < e/
input_overwritten | cu | CUDA_CHECK(cudaEventSynchronize(m->staged[turn])); | 0 | s/CUDA_CHECK.*//
uniform_behind_unset | cu | c < z.C; c += blockDim.x) behind[c] = 0.0f; | 0 | s/behind\[c\] = 0.0f;/continue;/
whole_tile_unasked | cu | return k.n == TSSA_CHUNK && z.HS % (WARP * P) == 0; | 0 | s/k.n == TSSA_CHUNK/true/
start_not_kept | cu | starts[(t0 / TSSA_PIECE - 1) * z.C + c + i] = sum[i]; | 0 | s/sum\[i\]/0.0f/
moments_before_dropped | cu | part[j] -= s * dN[i]; | 0 | s/part.*;//
bias_of_the_branch_unscaled | cu | total.dx[p][i] *= gamma_c[i]; | 0 | s/total.*;/;/
energy_below_its_least | cu | const bool above = ABOVE | 0 | s/= ABOVE.*/= true;/
plain_rows_once | cu | i0 < p.M; i0 += (int64_t)gridDim.y * PLAIN_TILE) | 0 | s/i0 += .*)$/i0 += p.M)/
big_tokens_once | cu | big < step->n_big; big += gridDim.x) { | 0 | s/big += gridDim.x/big += step->n_big/
temp_of_the_first_chunks | cu | for (size_t i = threadIdx.x; i < chunks; i += TEMP_THREADS) | 0 | s/i += TEMP_THREADS/i += chunks/
graph_of_another_shape | cu | g->T != T) { | 0 | s/g->T != T/false/
moments_into_the_weights | cu | if (s == TOST_PARAM && weights_copy(m)) | 0 | s/s == TOST_PARAM && //
nothing_to_score | cu | if (counted > 0) decode_losses | 0 | s/if (counted > 0) //
decay_everywhere | cu | / DECAY_GROUP, t->decay == TOST_DECAY | 0 | s/t->decay == TOST_DECAY/1/
END
}

# build NAME FOLDER: the test with the engine of a folder, which is looked through first. The lists are unquoted: words.
build() {
    $cxx "-I$2" $flags -c $here/kernels_test.cpp -o "$work/$1.o" &&
        $cxx $flags -o "$work/$1" "$work/$1.o" $objects -lm -ldl -rdynamic
}

# mutate NAME FILE TEXT BELOW EDIT: a copy of the engine with one change; complains where the text does not
# stand on one line.
mutate() {
    local name=$1 file=$2 text=$3 below=$4 edit=$5 lines
    mkdir -p "$work/$name.d/tost"
    cp train_gpt_tost.cu "$work/$name.d/" && cp tost/cuda_common.cuh "$work/$name.d/tost/" || return 1
    lines=$(grep -nF -- "$text" "$file" | cut -d: -f1)
    if [ "$(printf '%s\n' "$lines" | grep -c .)" -ne 1 ]; then
        echo "$file: \"$text\" stands on $(printf '%s\n' "$lines" | grep -c .) lines, not on one"
        return 1
    fi
    sed "$((lines + below))$edit" "$file" > "$work/$name.d/$file" || return 1
    if cmp -s "$file" "$work/$name.d/$file"; then
        echo "$file: line $((lines + below)) is as it was after $edit"
        return 1
    fi
}

# judge NAME FILE TEXT BELOW EDIT: writes the verdict to $work/NAME.verdict.
judge() {
    local name=$1 log=$work/$1.log
    if ! mutate "$@" > "$log" 2>&1 || ! build "$name" "$work/$name.d" >> "$log" 2>&1; then
        { echo "FAILED mutants: $name: could not be made:"; tail -5 "$log"; } > "$work/$name.verdict"
        return
    fi
    # in braces, so that the shell's word on an abort goes to the log too
    { timeout 120 "$work/$name" --quick; } > "$log" 2>&1
    local status=$?
    if [ $status -eq 0 ]; then
        echo "FAILED mutants: $name passed the test" > "$work/$name.verdict"
    elif grep -qE '^FAILED|^cuda_on_host: |AddressSanitizer|runtime error' "$log"; then
        echo "$name: $(grep -m1 -E '^FAILED|^cuda_on_host: |Sanitizer|runtime error' "$log" | cut -c1-150)" \
            > "$work/$name.verdict"
    else
        { echo "FAILED mutants: $name: status $status, and no check says why:"; tail -3 "$log"; } \
            > "$work/$name.verdict"
    fi
    rm -f "$work/$name" "$work/$name.o"
}

# tell NAME FILE TEXT BELOW EDIT: judges and says so at once, since the whole takes minutes.
tell() {
    judge "$@"
    cat "$work/$1.verdict"
}

if build engine . > "$work/log" 2>&1 && "$work/engine" --quick > "$work/log" 2>&1; then
    passed=1
else
    tail -5 "$work/log"
    echo "FAILED mutants: the engine as it is does not pass"
    echo "mutants: 0 passed, 1 failed, 0 skipped"
    exit 1
fi

names=
while IFS='|' read -r name file text below edit; do
    name=${name% }
    case "$chosen" in *[!\ ]*) case "$chosen" in *" $name "*) ;; *) continue ;; esac ;; esac
    case $file in *cuh*) file=tost/cuda_common.cuh ;; *) file=train_gpt_tost.cu ;; esac
    text=${text# } text=${text% } below=${below// /} edit=${edit# }
    names="$names $name"
    tell "$name" "$file" "$text" "$below" "$edit" &
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n; done
done < <(mutants)
wait

for name in $chosen; do
    case " $names " in *" $name "*) ;; *) echo "FAILED mutants: no mutant is named $name"; failed=$((failed + 1)) ;; esac
done
for name in $names; do
    if grep -q '^FAILED' "$work/$name.verdict"; then failed=$((failed + 1)); else passed=$((passed + 1)); fi
done
echo "mutants: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
