#!/bin/sh
# shellcheck disable=SC2086  # lists of arguments
# test_nccl.sh BINARY: train_gpt_tostcu on several ranks, with emulated CUDA and NCCL (dev/test/cuda), which
# `make test_all` builds; BINARY is not used. Any number of ranks must write the same bytes.
. "$(dirname "$0")/../lib.sh"
program=${TOSTCU:-$repo/build/cuda_on_host/train_gpt_tostcu}

if [ -n "${QUICK:-}" ] && [ -z "${TOSTCU:-}" ] || [ ! -x "$program" ]; then
    skip "ranks of train_gpt_tostcu: only in make test_all, which builds it"
    finish
fi

port=$((20000 + $$ % 20000))
# start N ARGUMENTS…: starts N ranks like torchrun. Their output is in N.RANK.out and N.RANK.err, their ids in pids.
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
# ranks N ARGUMENTS…: the same, until they end. They must succeed, and only rank 0 prints.
ranks() {
    start "$@"
    statuses=''
    for pid in $pids; do wait "$pid" || statuses="$statuses $?"; done
    check "$*: failed with$statuses: $(cat "$1".*.err | head -c 600)" [ -z "$statuses" ]
    check "$*: other ranks print" [ "$(cat "$1".[1-9].out 2>/dev/null | wc -c)" -eq 0 ]
}

cp -r "$repo/data/starter" . || exit 1
model="--data starter/starter_train_000000.bin --layers 2 --heads 2 --channels 32 --block-size 24 --batch 1 --seq 24 \
    --total-batch 192 --val-every 3 --val-windows 4 --sample-every 0 --save-every 2 --keep 0"
for n in 1 2 4; do
    ranks $n $model --parts 4 --steps 6 --out "run$n"
    check "$n ranks: the run differs" same_run run1 "run$n"
done
for n in 2 1; do   # resumed on other numbers of ranks
    rm -rf run4/step_00000006 run4/step_00000004
    ranks $n --resume --out run4
    check "resumed on $n ranks: the run differs" same_run run1 run4
done
# shellcheck disable=SC2046
shard $(seq 1 500) >part.bin
for n in 1 2; do
    ranks $n eval --model run1 --data part.bin --batch 2
    grep 'loss *[0-9]' $n.0.out >eval$n
done
check "eval on 2 ranks: differs from 1: $(cat eval1)" cmp eval1 eval2
# A signal to one rank stops all after the same step.
start 2 $model --parts 2 --steps 1000 --out stopped
until_true [ -e stopped/step_00000002 ]
set -- $pids
kill -TERM "$2"
wait "$1"; first=$?
wait "$2"; second=$?
check "SIGTERM: status $first and $second: $(cat 2.*.err)" [ "$first $second" = "143 143" ]
finish
