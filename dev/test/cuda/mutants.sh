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

# mutant | sed command that changes its line
while IFS='|' read -r name edit; do edits[${name// /}]=${edit# }; done << 'END'
carries_unsynchronized | /f(c, sum);/,/__syncthreads();/s/__syncthreads();//
block_sum_reuses_early | /shared may/s/__syncthreads();//
block_sum_reads_early | /N) shared\[warp_index()/{n;s/__syncthreads();//}
tree_sum_unsynchronized | /by = blockDim\.x/,/__syncthreads();/s/__syncthreads();//
ticket_read_early | /f(atomicAdd(ticket,/{n;s/__syncthreads();//}
ticket_of_the_grid | s/atomicAdd(ticket, 1)/(int)blockIdx.x/
flag_not_released | s/store_release(flag, 1)/cuda_on_host_store(flag, 1, false)/
flag_not_awaited | s/while.*{}//
flag_not_acquired | s/load_acquire(flag);//
wait_unsynchronized | /wait_flag(flag);/,/__syncthreads();/s/__syncthreads();//
group_wait_unsynchronized | /wait_flag(flags/{n;s/__syncthreads();//}
flag_raised_early | /scan_publish(float\*/{n;s/__syncthreads();//}
group_flag_raised_early | /store_pack<SCAN_VEC>(totals/,/__syncthreads();/s/__syncthreads();//
flag_not_raised | /raise_flag(flags + k);/s/if (threadIdx.x == 0) raise_flag.*;//
group_flag_not_raised | /raise_flag(flags + level/s/if (threadIdx.x == 0) raise_flag.*;//
group_not_awaited | /scan_wait_level(flags/s/scan_wait.*;//
prefix_not_awaited | /scan_wait_levels(flags,/s/scan_wait.*;//
softmax_unsynchronized | /= args\.NH/{n;s/__syncthreads();//}
mass_unsynchronized | /reciprocal(before/{n;s/__syncwarp();//}
mass_before_the_softmax | /lane\] = lane/,/__syncthreads();/s/__syncthreads();//
softmax_over_time | s/scores + i/scores/
dropped_carry | /n++) before\[n\]/s/to_float(sum\[n\])/0.0f/
dropped_group | s/= k % SCAN_RADIX/= max((int)(k % SCAN_RADIX), 1) - 1/
group_without_itself | /of_group\[n\]);/s/of_group\[n\]/0.0f/
serial_chain | s/scan_wait_level(flags + level, i)/scan_wait_levels(flags + level, i, size)/
lane_scan_too_short | /(int by = 1;/s/by < WARP/by < WARP \/ 2/
run_edge_forward | /inside = lane/s/< k.n/< k.n - 1/
run_edge_backward | s/t0 + j < k.n/t0 + j <= k.n/
state_not_continued | s/if (states.*;//
state_not_passed | /states\.end\[at/s/= first + /= /
adjoint_not_passed | s/, after, before/, TOST_NO_STATE, before/
position_ignored | s/= chunk->first/= 0/
place_ignored | /(size_t)(pass->first/s/pass->first + //
bias_place_ignored | /args\.ddenom_bias/s/args.pass->first + //
low_part_dropped | s/__fadd_rn(sum.lo, error)/0.0f/
no_accumulation | s/add ? 1\.0f/add ? 0.0f/
weights_not_overwritten | /p\.beta =/s/: 0\.0f/: 1.0f/
wte_not_overwritten | /dwte\.beta/s/: 0\.0f/: 1.0f/
places_not_overwritten | s/if (add) //
sums_not_overwritten | s/add ? s.out\[c\] : 0.0f/s.out[c]/
temp_not_overwritten | s/add ? args.dtemp\[h\] : 0.0f/args.dtemp[h]/
denom_bias_not_overwritten | s/add ? \*out : 0.0f/*out/
parts_not_overwritten | s/end == TOST_PART_ENDS/false/
target_not_subtracted | s/v + j == target/v == target/
segment_without_its_end | /s\.big_first\[big\];/s/i < s/i + 1 < s/
input_overwritten | /CUDA_CHECK(cudaEventSynchronize(s->copied\[s->turn\]));/s/CUDA_CHECK.*//
whole_unasked | s/k.n == TSSA_RUN/true/
start_of_group_dropped | s/+= before\[i\]/+= 0.0f/
start_not_kept | /tssa_store_start<WHOLE>(starts\.A,/s/tssa_store_start.*;//
mean_unsynchronized | /du overwrites/s/__syncthreads();//
mass_overwritten_early | /__syncwarp();   \/\//s/__syncwarp();//
moments_before_dropped | /-= (EXACT/s/part.*;//
mass_terms_dropped | s/less_D += .*;//
bias_of_the_branch_unscaled | /total\.dbias\[p\]\[i\] \*=/s/total.*;/;/
gamma_of_zero | s/fabsf(gamma)/1.0f/
gamma_without_bias | s/if (db) .*;//
least_without_b | s/fabsf(b)/0.0f/
energy_below_its_least | /(float)TOST_ENERGY_MIN;/s/= S.*/= true;/
big_tokens_once | s/big += gridDim.x/big += s.header->n_big/
conv_end | /load_part<WHOLE>(row,/s/t < args.T ? inside : 0/inside/
conv_state | /load_part<WHOLE>(row,/{n;s/i++/row[i++] = 0/}
conv_rows_not_passed | /conv_store<false>(args\.y,/s/conv_store.*;//
conv_runs_once | /dweight\[VEC\]\[CONV_WIDTH\]/,/for (int run = blockIdx\.x; run/s/run += gridDim.x/run += args.B * runs/
conv_whole | s/args.C % VEC == 0/true/
conv_whole_end | s/end <= args.T/end <= args.T + 1/
conv_whole_with_state | s/ && !with_state//
conv_before_the_pass | s/j >= CONV_BEFORE || t0 > 0/true/
conv_left | /CONV_RUN -/s/ - CONV_BEFORE//
memory_pairs | s/j = i + 1/j = i + 2/
memory_solved_late | /DELTA_ROWS; i0/{n;s/__syncwarp();//}
memory_tile_late | /add_four(x\.at(x\.O, TILE/,/__syncwarp();/s/__syncwarp();//
memory_solved_late_backward | /TILE; i0/{n;s/__syncwarp();//}
memory_tile_late_backward | /add_four(x\.at(x\.O, di,/,/__syncwarp();/s/__syncwarp();//
memory_part_dropped | /add_part<true>(dk, from/s/add_part.*;/from += size;/
product_without_rest | /a\.word, b\.rest);/s/multiply_words.*;//
memory_key_not_passed | s/= \*x.key/= 0.0f * *x.key/
memory_dpi | /(args\.with_memory &&/s/args.with_memory/false/
memory_dz | /(args\.with_memory)/s/args.with_memory/false/
memory_G_after | s/run.t0 > first/false/
memory_segment_key | s/ && last;/ \&\& false;/
memory_chain_unsynchronized | /((size_t)(BACKWARD/{n;s/__syncthreads();//}
memory_P | /+ (size_t)(BACKWARD/s/BACKWARD/false/g
temp_of_the_first_runs | s/i += TEMP_THREADS/i += runs/
graph_of_another_shape | s/g->T != T/false/
nothing_to_score | s/if (counted > 0) //
decay_everywhere | s/t->decay == TOST_DECAY/1/
sent_before_computed | /CUDA_CHECK(cudaStreamWaitEvent(x->stream,/s/CUDA_CHECK.*//
used_before_received | /CUDA_CHECK(cudaStreamWaitEvent(x->compute,/s/CUDA_CHECK.*//
first_device | s/count > 1 ? local_rank : 0/0/
split_anywhere | s/if (p.K.*;//
split_in_place | s/output_type |/output_type | CUBLASLT_REDUCTION_SCHEME_INPLACE |/
bias_of_the_first_layer | s/? alignment/? (uintptr_t)p.bias/
muon_without_nesterov | s/= rest \* g\[j\] + mu \* m\[j\]/= m[j]/
muon_norm_of_the_first | s/blockIdx.y \* gridDim.x + unit/unit/
muon_norm_of_a_unit | /+= sums\[blockIdx\.y/s/+= sums/= sums/
muon_gram_not_transposed | s/tall ? PRODUCT_TN : //
muon_coefficient | s/TOST_MUON_B/TOST_MUON_C/
muon_scale_of_rows | /TOST_MUON_SCALE/s/max(rows, columns)/rows/
muon_params_not_sent | s/if (m->options.optimizer == TOST_MUON && /if (false \&\& /
muon_not_gathered | s/muon ? TOST_GRAD/false ? TOST_GRAD/
batch_without_steps | s/matmul_set.*step);//
row_in_32_bits | /(unsigned)c;/s/(size_t)(unsigned)/(unsigned)/
waits_forever | /nccl_add(l,/{n;s/if (!\(.*\)) comm_timed_out.*;/\1;/}
END

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
