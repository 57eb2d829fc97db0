#!/bin/sh
# test_resume.sh BINARY: --resume continues a run with the same bits, from any checkpoint and after --init; options that
# may change; what it takes from the old run.
# shellcheck disable=SC2086,SC2154  # lists of options are split into words; variables of tiny.sh

. "$(dirname "$0")/tiny.sh"

# ---- The same run ----------------------------------------------------------------------------------------------------

# without_end RUN COPY: copies a run without its last checkpoint, of step 6.
without_end() { cp -R $1 $2 && rm -r $2/step_00000006; }
without_end straight halfway
run --resume --out halfway
check "a resumed run equals an uninterrupted one" same_run straight halfway
prints "--resume --out halfway" "is finished"

# One command for the first start and each restart
start="$tiny --steps 6 --save-every 3 --val-every 2 --sample-every 2 --resume auto --out auto"
mkdir auto
cp straight/log.csv auto   # of a run that ended before its first checkpoint
prints "$start" "the old run is now in auto.1"
rm -r auto/step_00000006
prints "$start" "resumed    auto/step_00000003"
check "--resume auto starts a run and continues it" same_run straight auto
prints "--init straight $data --keep-optimizer --steps 2 $never --resume=auto --out auto_init" "done: 2 steps"
prints "--init straight $data --keep-optimizer --steps 2 $never --resume=auto --out auto_init" "is finished"

# resumed OPTIONS…: a run of 4 steps in `whole`, and one in `parts` that is stopped after step 2 and resumed
resumed() {
    rm -rf whole parts
    run "$@" --steps 4 --save-every 2 --out whole --quiet
    cp -R whole parts
    rm -r parts/step_00000004
    run --resume --out parts
    check "$*: a resumed run equals an uninterrupted one" same_run whole parts
}
resumed $small --membership uniform --conv 0
prints "info parts" "uniform membership"
resumed $small --positions none --bigrams 100 --chunk 20
prints "info parts" "no positions"
resumed $tiny --conv 4 --memory 1 --chunk 20
check "train prints convolutions and memory" says "convolutions, memory" stdout
cp tiny_train_000000.bin old_train_000000.bin
run $model $fast --tokenizer vocab.bpe --data "$dir/tiny_train_*.bin:3" "$dir/old_train_*.bin:1" --steps 6 \
    --save-every 3 --val-every 3 --sample-every 0 --out mixture
without_end mixture mixture2
run --resume --out mixture2 --quiet --data "$dir/tiny_train_*.bin:0.75" "$dir/old_train_*.bin:0.25"
check "a mixture is resumed, with the same proportions" same_log mixture/log.csv mixture2/log.csv
prints "$tiny --steps 0 --out zero" "validation after step 0"
run --resume --out zero --steps 6
check "a run resumed at step 0 equals a fresh one" [ "$(training_of zero)" = "$(training_of straight)" ]

# The best checkpoint
run --init straight $data --lr 3 --steps 3 --val-every 1 --keep-best --sample-every 0 --out best_init
check "the best checkpoint of --init may be that of step 0: $(ls best_init)" \
    says '"step":"0"' best_init/best/model.safetensors
used="using best_init/best, validation loss $(awk -F, '$1 == "0" { printf "%.6f", $4 }' best_init/log.csv)"
used="$used after step 0, instead of step_00000003, "
for use in "sample --model best_init --tokens 4" "eval --model best_init --data $dir/tiny_val_*.bin --json best.json"; do
    warns "$use" "$used" "best_init/best/model.safetensors, step 0"
done
warns "--init best_init $data --steps 0 --val-every 0 --out heir_of_best" "$used" "weights    best_init/best/model.saf"
run eval --model best_init/step_00000003 --data "$dir/tiny_val_*.bin" --json newest.json
check "a named checkpoint is used" grep -q '"step": 3,' newest.json
check "instead of the best" grep -q '"step": 0,' best.json
prints "info best_init" "best_init/step_00000003/model.safetensors" "trained     3 steps"
cp -R best_init resumed_best
prints "--resume --out resumed_best --steps 4" "resumed    resumed_best/step_00000003/model.safetensors"
head -c 999 best_init/best/model.safetensors >resumed_best/best/model.safetensors
execute tost sample --model resumed_best --tokens 4
check "a damaged best is named: $(cat stderr)" says "resumed_best/best/model.safetensors: " stderr
check "and not used: exit status $status" [ $status -eq 1 ]
rm -r best_init/best
run --resume --out best_init --steps 4
check "if best was removed, the next validation is the best" says '"step":"4"' best_init/best/model.safetensors

# ---- Other options ---------------------------------------------------------------------------------------------------

prints "--resume --out halfway --steps 7 --dtype bf16" "--dtype bf16 instead of fp32"
check "the start line names bf16" grep -q '^device.*bf16' stdout
run eval --model halfway --data "$dir/tiny_*.bin" --dtype bf16
run sample --model halfway --dtype bf16 --tokens 4
run $small --steps 1 --quiet
prints "info" "out/starter-001/step_00000001/model.safetensors" "written by  $("$binary" --version | cut -d, -f1)"
run --resume --steps 2 --quiet
check "--quiet: nothing on stdout" empty stdout
check "--resume alone takes the newest run" [ -f out/starter-001/step_00000002/model.safetensors ]

prints "$data --layers 1 --vocab-size 257 --steps 0 --parts 3 $never --out parts3" \
    "1536 tokens per step: 3 micro-batches × 2 sequences × 256 tokens"   # the next above the preset's 1,024

# ---- Files of the run ------------------------------------------------------------------------------------------------

without_end straight linked
echo important >own.txt
ln own.txt linked/run.lock
run --resume --out linked --steps 4 --quiet
check "a file that is linked as run.lock is unchanged" [ "$(cat own.txt)" = important ]
mkdir pipes
mkfifo pipes/run.lock   # like a file on some file systems, it has no random-access writes
refuses 1 "timeout 10 $binary $small --steps 1 --quiet --out pipes" pipes/run.lock "random-access writes"
run --init straight --data "$dir/tiny_train_*.bin" --steps 1 --val-every 0 --out heir --quiet
mkdir away
mv vocab.bpe tiny_vocab.bpe away
run sample --model heir --tokens 3
prints "--resume --out straight --steps 7 --save-every 7 --sample-every 7" "sample after step 7"   # its own tokenizer
mv away/vocab.bpe away/tiny_vocab.bpe .
rm heir/step_00000001/vocab.bpe
run sample --model heir --tokenizer vocab.bpe --tokens 3
run --resume --out heir --steps 2 --quiet
check "a resumed run without its vocab.bpe takes that of the shards" [ -e heir/step_00000002/vocab.bpe ]

# ---- After --init ----------------------------------------------------------------------------------------------------

for init in "--init mixture --keep-optimizer" "--init mixture --memory 1"; do
    run $init $data --steps 2 $never --out tuned --overwrite
    run --resume --out tuned --steps 3 --quiet
    prints "info tuned" "init-file      mixture/step_00000006/model.safetensors"
done
# A step reads all the data, so all steps read the same: --keep-optimizer computes the steps of a resumed run.
shard $(seq 1 65) >once.bin
once="--data once.bin --order sequential --schedule constant --warmup 0 --beta2 0.5 $never --quiet"
run $sizes --vocab-size 257 --batch 2 --total-batch 64 $once --steps 6 --save-every 3 --out once
run --init once/step_00000003 --keep-optimizer $once --steps 2 --save-every 1 --out twice
run --init twice/step_00000001 --keep-optimizer $once --steps 2 --out thrice
run --init once/step_00000003 $once --steps 2 --out forgot
after() { sed "1,$2d" "$1/log.csv" | head -n 2 | cut -d, -f3,6; }
check "--keep-optimizer: steps 4 and 5" [ "$(after twice 1)" = "$(after once 4)" ]
check "--keep-optimizer after it: steps 5 and 6" [ "$(after thrice 1)" = "$(after once 5)" ]
check "without it: another step 5" [ "$(after forgot 1)" != "$(after once 4)" ]
finish
