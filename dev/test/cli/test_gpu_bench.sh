#!/bin/sh
# test_gpu_bench.sh BINARY: tests dev/bench/gpu.py without a GPU: its error message, runs with made-up programs in place
# of nvidia-smi, the trainer and its benchmarks. PYTHON: default python3.
. "$(dirname "$0")/../lib.sh"

"$python" -c '' 2>/dev/null || { skip "dev/bench/gpu.py: $python is not Python"; finish; }
python_path=$("$python" -c 'import sys; print(sys.executable)')
# A PATH without nvidia-smi, in case the machine has a GPU
refuses 1 "env PATH=$dir $python_path $repo/dev/bench/gpu.py --out results" "no GPU"
check "without a GPU: nothing is written" [ ! -e results ]

# ---- made-up programs; `slow` and `broken` name programs that never end or fail ------------------------------------
mkdir built
cat >program <<'END'
#!/bin/sh
name=$(basename "$0")
here=$(dirname "$(readlink -f "$0")")
case " $(cat "$here/slow" 2>/dev/null) " in *" $name "*) echo 'begun bf16 2 rows 1.0 us 2 GB/s'; exec sleep 1000 ;; esac
case " $(cat "$here/broken" 2>/dev/null) " in *" $name "*) echo 'made-up failure'; exit 1 ;; esac
case $name in
    nvidia-smi) echo "Made Up, 1.0, 100 MiB" ;;
    ldd)
        echo '    libc.so.6 => /lib/libc.so.6'
        case $LD_LIBRARY_PATH in *packages*) ;; *) [ ! -e "$here/not_found" ] || cat "$here/not_found" ;; esac ;;
    python) echo "$here/packages" ;;
    bench_tssa) echo 'tssa_forward bf16 B 64 T 1024 C 768 50.0 us 4000 GB/s' ;;
    bench_*) echo "${name#bench_}_kernel bf16 65536 rows 60000.0 us 716.0 TFLOP/s" ;;
    test_tost)
        echo 'FAILED a made-up test'
        echo 'm.cuh:1: product of (5,3) and (3,7) in bf16, batch of 1: cuBLASLt status 15; it has no algorithm'
        echo 'test_tost: 12 passed, 1 failed, 0 skipped'; exit 1 ;;
    train_gpt_tostcu)
        [ "$1" != sample ] || { echo '500 tokens, 1234 tokens/s'; exit; }
        echo 'model      12 layers, 2 GB of memory'
        echo 'compute    650 MFLOP per token; 100% MFU: 1.52M tokens/s, 989.4 TFLOP/s in bf16 (data sheet)'
        while [ "$1" != --out ]; do shift; done
        mkdir -p "$2/step_00000002" && echo model >"$2/step_00000002/model.safetensors"
        echo 'step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s' >"$2/log.csv"
        for step in 1 2 3 4 5 6 7 8; do echo "$step,1,3.0,,1e-4,1,100,1000" >>"$2/log.csv"; done ;;
    compute-sanitizer)
        case $* in *racecheck*'--layers 2'*)
            echo '========= Internal Sanitizer Error: made up'
            echo '========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)'; exit 1 ;;
        esac
        echo '========= ERROR SUMMARY: 0 errors' ;;
    ncu) printf '"ID","Kernel Name"\n"",""\n"0","norm_kernel"\n' ;;
esac
END
chmod +x program
for name in nvidia-smi ldd compute-sanitizer ncu train_gpt_tostcu test_tost bench_tssa bench_norm bench_classifier \
    bench_adamw bench_matmul bench_delta_rule python; do
    ln -s "$dir/program" "built/$name"
done

other_python=$dir/no_python
start() {   # start RESULTS ARGUMENTS...: runs gpu.py with the made-up programs in the background
    results=$dir/$1
    shift
    PATH=$dir/built:$PATH PYTHON=$other_python "$python_path" "$repo/dev/bench/gpu.py" --built built \
        --out "$results" "$@" >"$dir/out" 2>"$dir/err" &
}
bench() {   # sets $status
    start "$@"
    wait $!
    status=$?
}
has_lines() { for row; do check "a line '$row' in: $(cat "$results"/*.md)" grep -q "^$row" "$results"/*.md; done; }

bench all
check "all stages: status $status, $(cat "$dir/err")" [ $status -eq 0 ]
has_lines '| tssa_forward, bf16 B 64 T 1024 C 768: µs | 50.0 | 4000 GB/s |  |' \
    '| tests | 12 passed, 1 failed, .*a made-up test' '| norm_kernel' '| adamw_kernel' '| matmul_kernel' \
    '| delta_rule_kernel' '| of these, products .* | 1 | (5,3) and (3,7)' '| trainer, --preset small: ms per step | 100.00' \
    '| memcheck, bf16, 94 KiB' '| profile, all options: kernels of one step | 1' '| the same .* --memory 1 .* | True' \
    '| memcheck, bf16, ragged, all options: errors | 0' '| trainer, T = 65536, bf16 --chunk 16384: tokens/s' \
    '| missing libraries | 0' '| sampling, 32 texts: tokens/s | 1234' '| profile: kernels of one step | 1' \
    '| trainer, T = 1024, bf16: tokens/s | 655,360 .* 426 TFLOP/s, MFU 43.1% of 989.4 .* (data sheet), 2 GB .* |  |' \
    '| racecheck, fp32' '| synccheck' '| the same weights .* | True' \
    '- loss against PyTorch: after 0 of 300 steps: .*no_python: No such file' '- PyTorch gpt2, T = 65536: ' \
    '| trainer, T = 65536, bf16 --memory 1: tokens/s' \
    '- racecheck, bf16, whole tiles: compute-sanitizer failed: Internal .* made up$'
check "an error of compute-sanitizer is not a hazard" [ "$(grep -c '^| racecheck, bf16, whole' "$results"/*.md)" -eq 0 ]
check "the kernels as CSV" grep -q norm_kernel "$results"/*.csv
bench train --stages train --commit abc123
has_lines '- commit: abc123' '| trainer, T = 1024, bf16: tokens/s'
mkdir -p packages/nvidia/cu13/lib
touch packages/nvidia/cu13/lib/libcublasLt.so.13
echo '    libcublasLt.so.13 => not found' >not_found
other_python=$dir/built/python
bench found --stages libraries
has_lines '| missing libraries | 0'   # libcublasLt is that of PyTorch's packages
rm not_found
# Two runs at once. Each ends at its limit of 8 s; gpu.py starts no program when less than 5 s are left.
echo 'test_tost bench_classifier' >slow
sed -i 's/begun bf16/CUDA part 3: 9 passed, 0 failed so far\\nbegun bf16/' program
start part --stages tests --limit 8
part=$!
echo bench_norm >broken
rm built/bench_adamw
bench limit --stages kernels tests --limit 8
check "a failed, a hanging and a missing program: status $status" [ $status -eq 0 ]
has_lines '- bench_norm: exit status 1: made-up failure' '| begun, bf16 2 rows: µs | 1.0' \
    '- bench_classifier: took more than' '- bench_adamw: ' '| tests | no time left' '- what is left: --stages kernels tests'
wait $part
results=$dir/part
has_lines '| tests | 9 passed, 0 failed so far'
start killed --stages tssa kernels
begun() { grep -qs '^begun' "$results"/*.log; }
until_true begun
kill $!
wait $!
check "a stopped run: status $?" [ $? -eq 143 ]
has_lines '| tssa_forward'
finish
