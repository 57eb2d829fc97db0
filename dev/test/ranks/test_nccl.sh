#!/bin/sh
# test_nccl.sh BINARY: train_gpt_tostcu on several ranks, with emulated CUDA and NCCL (dev/test/cuda), which
# `make test_all` builds; BINARY is not used. Any number of ranks must write the same bytes.
. "$(dirname "$0")/../lib.sh"
program=${TOSTCU:-$repo/build/cuda_on_host/train_gpt_tostcu}
export OMP_NUM_THREADS=1

if [ -n "${QUICK:-}" ] && [ -z "${TOSTCU:-}" ]; then
    skip "ranks of train_gpt_tostcu: only in make test_all"
    finish
elif [ ! -x "$program" ]; then
    skip "ranks of train_gpt_tostcu: $program was not built"
    finish
fi

port=$((20000 + $$ % 20000))
# ranks N ARGUMENTS…: trains on N ranks like torchrun. Their output is in N.RANK.out and N.RANK.err, and the process ids
# in pids; sets status to that of rank 0.
ranks() {
    start "$@"
    status=0
    rank=0
    for pid in $pids; do
        if wait "$pid"; then code=0; else code=$?; fi
        [ $rank -ne 0 ] || status=$code
        rank=$((rank + 1))
    done
}
start() {
    n=$1
    shift
    port=$((port + 2)) pids='' rank=0
    while [ $rank -lt "$n" ]; do
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$n LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            "$program" "$@" --dtype fp32 >"$n.$rank.out" 2>"$n.$rank.err" </dev/null &
        pids="$pids $!"
        rank=$((rank + 1))
    done
}
same_loss() { grep -q 'loss *[0-9]' "$1" && [ "$(grep 'loss *[0-9]' "$1")" = "$(grep 'loss *[0-9]' "$2")" ]; }
errors() { cat "$1".*.err | head -c 600; }

cp -r "$repo/data/starter" . || exit 1
model="--data starter/starter_train_000000.bin --layers 2 --heads 2 --channels 32 --block-size 24 --batch 1 --seq 24 \
    --total-batch 192 --val-every 3 --val-batches 4 --sample-every 0 --save-every 2 --keep 0"
parts="--parts 4 --steps 6"
# shellcheck disable=SC2086  # lists of arguments
for n in 1 2 4; do
    ranks $n $model $parts --out "run$n"
    check "$n ranks: status $status: $(errors $n)" [ $status -eq 0 ]
    check "$n ranks: only rank 0 prints" [ "$(cat $n.[1-9].out 2>/dev/null | wc -c)" -eq 0 ]
    for file in model.safetensors optimizer.safetensors; do
        check "$n ranks: $file differs" cmp -s "run1/step_00000006/$file" "run$n/step_00000006/$file"
    done
    check "$n ranks: the log differs" same_log run1/log.csv "run$n/log.csv"
done
# Interrupted and resumed on other numbers of ranks
# shellcheck disable=SC2086
ranks 4 $model --parts 4 --steps 6 --out resumed
rm -rf resumed/step_00000006 resumed/step_00000004
for n in 2 1; do
    ranks $n --resume --out resumed
    check "resumed on $n ranks: status $status: $(errors $n)" [ $status -eq 0 ]
    check "resumed on $n ranks: differs" cmp -s run1/step_00000006/optimizer.safetensors \
        resumed/step_00000006/optimizer.safetensors
    rm -rf resumed/step_00000006 resumed/step_00000004
done
# eval
# shellcheck disable=SC2046
shard $(seq 1 500) >part.bin
ranks 1 eval --model run1 --data part.bin --batch 2
cp 1.0.out eval.out
ranks 2 eval --model run1 --data part.bin --batch 2
check "eval on 2 ranks: status $status: $(errors 2)" [ $status -eq 0 ]
check "eval on 2 ranks: differs from 1: $(head -c 300 eval.out)" same_loss eval.out 2.0.out
# A signal to one rank stops all after the same step.
# shellcheck disable=SC2086
start 2 $model --parts 2 --steps 1000 --out stopped
tries=0
while [ ! -e stopped/step_00000002 ] && [ $tries -lt 600 ]; do sleep 0.1; tries=$((tries + 1)); done
# shellcheck disable=SC2086
set -- $pids
kill -TERM "$2"
wait "$1"; first=$?
wait "$2"; second=$?
check "SIGTERM: status $first and $second: $(errors 2)" [ "$first $second" = "143 143" ]
# shellcheck disable=SC2086
ranks 2 $model --parts 2 --steps 2 --reduce fast --out fast
check "--reduce fast: status $status: $(errors 2)" [ $status -eq 0 ]
check "--reduce fast is reported" says "--reduce fast" 2.0.out
finish
