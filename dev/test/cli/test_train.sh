#!/bin/sh
# test_train.sh BINARY: help, training, --init, the data of a run. Resuming: test_resume.sh. Invalid input:
# test_refusals.sh.
# shellcheck disable=SC2086,SC2154  # lists of options are split into words; variables of tiny.sh

. "$(dirname "$0")/tiny.sh"

# ---- A run -----------------------------------------------------------------------------------------------------------

check "nothing on stderr" empty stderr
n='[0-9.e-]+'
check "operations per token, no peak rate of a CPU" grep -Eq "^compute    $n MFLOP per token\$" stdout
check "a sample" says 'sample after step 6' stdout
check "the log: a row for the first validation and one per step, with a validation in every second" \
    [ "$(sed 1d straight/log.csv | awk -F, '{ printf "%d,%d,%d ", $1, $2, $4 != "" }')" = \
    "0,0,1 1,128,0 2,256,1 3,384,0 4,512,1 5,640,0 6,768,1 " ]
run $small $fast $bare --steps 6 --out plain
check "--save-every 0 saves nothing" [ -z "$(ls plain | grep step_)" ]
check "validation and samples do not change training" [ "$(training_of plain)" = "$(training_of straight)" ]
run $small $fast $bare --steps 6 --out plain --overwrite --seed 7
check "another seed gives another run" [ "$(training_of plain)" != "$(training_of straight)" ]

# ---- Help ------------------------------------------------------------------------------------------------------------

for command in train sample eval vocab tokenize info; do
    run $command --help
    check "$command --help: nothing on stderr" empty stderr
    case $command in train | eval) status=1 ;; *) status=0 ;; esac
    check "$command --help: status 75 only where it occurs" [ "$(tr -s '\n ' ' ' <stdout | grep -c '75 stopped by')" -eq $status ]
    check "$command --help: at most 80 columns" [ -z "$(sed 's/[×…]/x/g' stdout | awk 'length > 80')" ]
done
prints --help "vocab --size N" "tokenize --tokenizer FILE" "(default: 128 tokens)"
prints "--preset tost-base --help" "(default: 491520 tokens)"
prints "--data a:1 b:2 --help" "(default: a:1 b:2)"
prints "train --help" "--steps N                     total number of steps"
check "train --help explains * before it is used" [ "$(grep -m 1 -n -F '*' stdout | grep -c 'with \* may')" -eq 1 ]
check "train --help begins with three examples" [ "$(head -n 10 stdout | grep -c '^  # ')" -eq 3 ]

# ---- Ends of runs, and the best checkpoint ---------------------------------------------------------------------------

run $small --lr 0.3 --steps 6 --val-every 1 --keep 1 --keep-best --out best
check "a pruned checkpoint leaves nothing: $(ls best)" [ "$(echo $(ls best))" = "best device.txt log.csv step_00000006" ]
grep -o 'best [0-9.]* after step [0-9]*' stdout | tail -1 >best.line
prints "info best/best" "after step $(sed 's/.* //' best.line)"
prints "info best" "nats/token after step 6"
run sample --model best/best --tokens 4
prints "sample --model best --tokens 4" "best/step_00000006/model.safetensors"   # the newest, which is the best
prints "$small --lr 0.3 --steps 2 --val-every 1 --save-every 0 --keep-best --out only" "saved      only/best"
prints "$tiny --steps 50 --val-every 1 --stop-at-val 99 --max-time 1h --out early" \
    "stopped by --stop-at-val after step 1 of 50"
check "--stop-at-val saves" [ -f early/step_00000001/optimizer.safetensors ]
execute tost $tiny --steps 1000k --val-every 0 --max-time 0.2s --out early --overwrite
check "--max-time: exit status $status, expected 75" [ $status -eq 75 ]
check "--max-time saves" says "saved      early/step_" stdout
check "--max-time says so" says "stopped by --max-time after step " stdout
run $model $data --lr 3 --warmup 0 --val-every 2 --keep-best --save-every 1 --steps 6 --sample-every 0 --out worst
check "a run that is worse than the untrained model names its loss as the best, and does not keep it: $(ls worst)" \
    [ "$(grep -c '^val loss .* best 5\.[0-9]* after step 0$' stdout)" -eq 1 -a ! -e worst/best ]
check "it says so" says "worse      the validation loss rose after step 0: a lower --lr may help" stdout
check "the loss is in the log" grep -q "^0,0,,$(sed -n 's/^val loss.*best \([0-9]*\.[0-9]\{4\}\).*/\1/p' stdout)[0-9]*,,,,$" worst/log.csv

# A disk that is too small for a checkpoint
mkdir disk
on_disk() { unshare -rm sh -c 'mount -t tmpfs -o size=$1 none disk && shift && exec "$@"' sh "$@"; }
if on_disk 64k true 2>/dev/null; then
    refuses 1 "on_disk 64k $binary $small --steps 2 --quiet --out disk/run" \
        "--out disk/run" "No space left" "needs" "KiB" "--save-every 0"
    execute on_disk 64k "$binary" $small --steps 2 $bare --quiet --out disk/run
    check "--save-every 0 needs no space: $(cat stderr)" [ $status -eq 0 ]
else
    skip "small disks: they cannot be mounted here"
fi

# ---- --init ----------------------------------------------------------------------------------------------------------

run --init straight --steps 0 $data --out tuned --quiet
run eval --model tuned --data "$dir/tiny_val_*.bin"
loss=$(printed loss)
run eval --model straight --data "$dir/tiny_val_*.bin"
check "--init starts from the file's weights" [ "$loss" -a "$(printed loss)" = "$loss" ]
# tunes MODEL "OPTIONS…" TEXT…: --init MODEL prints each text.
tunes() {
    arguments="--init $1 $2 --val-every 0 --out tuned --overwrite"
    shift 2
    prints "$arguments" "$@"
}
tunes straight "--data $dir/tiny_train_*.bin --epochs 2 --batch 8 --total-batch 1024 --dtype bfloat16" \
    "lr 0.0003, " " to 3e-05;" " tokens, 2.0"
tunes straight "--data $dir/tiny_train_*.bin --steps 1 --lr 0.5" "lr 0.5, "
run $small $fast --min-lr-frac 0 --steps 2 $never --out ended --quiet
tunes ended "$data --steps 1" "lr 0.0003, "   # a tenth of the peak
run --init ended $data --steps 0 --val-every 0 --out still --quiet
check "without a step, the learning rate is not 0" \
    [ "$("$binary" info still | awk '$1 == "lr" { print ($2 > 0) }')" = 1 ]
run $sizes --vocab-size 257 $data --seq 16 --batch 3 --total-batch 96 --lr 0.01 --steps 3 $never --out base --quiet
tunes base "$data --steps 2 --sample-every 0" "96 tokens per step: 2 micro-batches × 3 sequences × 16 tokens"
tunes base "$data --seq 8 --steps 0" "96 tokens per step: 4 micro-batches × 3 "
tunes base "$data --parts 2 --steps 0" "96 tokens per step: 2 micro-batches × 3 "
tunes base "$data --total-batch 64 --steps 0" "2 micro-batches × 2 "

# ---- Data ------------------------------------------------------------------------------------------------------------

prints "$sizes $data --batch 3 --steps 0 $bare --out rounded" "1056 tokens per step"
mkdir shards
cp tiny_train_000000.bin vocab.bpe shards/
for given in "$data" "--data $dir/sh*ds/tiny_train_*.bin"; do
    prints "$sizes --batch 2 --total-batch 64 $given --steps 1 --overwrite --out own" "vocabulary 320,"
done
prints "$model --data $dir/tiny_train_*.bin --steps 0 --val-every 0 --out finder" "tiny_vocab.bpe: 257 tokens"

# Several shards and sources
cp tiny_train_000000.bin more_train_000000.bin
cp tiny_val_000000.bin more_val_000000.bin
prints "$model --steps 1 --sample-every 0 --data $dir/tiny_train_000000.bin $dir/more_train_000000.bin --out both" \
    "tiny_train_000000.bin …: 2 shards" "tiny_val_000000.bin …: 2 shards"
run --resume --out both --steps 2 --quiet
prints "$model --steps 1 --sample-every 0 --data $dir/tiny_train_*.bin:3 --data $dir/more_train_*.bin:1 --out mixture" \
    "tiny_train_*.bin: 1 shard, " ", 75% of the samples, " "more_train_*.bin: 1 shard, " ", 25% of the samples, " \
    "validation $dir/tiny_val_*.bin …: 2 shards"
check "info shows its sources" sh -c "\"$binary\" info mixture | grep -q 'data  *.*train_\*.bin:3 .*train_\*.bin:1$'"
prints "$sizes $bare --batch 8 --total-batch 1024 --data $dir/tiny_train_*.bin:3 $dir/more_train_*.bin:1 --epochs 2" \
    ", 3.0" " epochs, " ", 1.0"

# Ids that do not fit the vocabulary
one="$sizes $bare $step --steps 1"
mkdir ids
little 2 $(seq 0 4999 | awk '{ print $1 % 65 }') >ids/letters.bin
warns "$one --vocab-size 50257 --data ids/letters.bin" "letters.bin: " "largest id is 64" "has 50257"
warns "$one --tokenizer vocab.bpe --data ids/letters.bin" "letters.bin: " "largest id is 64" "has 257"
run $one --vocab-size 129 --data ids/letters.bin --quiet
check "ids in the upper half: no warning: $(cat stderr)" empty stderr
printf 'a b\nc d\n' >ids/vocab.bpe
head -c 20000000 /dev/zero | tr '\0' '\1' >ids/many.bin   # 10,000,000 ids 257, of 259
warns "$one --data ids/many.bin" "many.bin: " "<|endoftext|> (id 258)" "10000000 tokens"
head -c 19999998 ids/many.bin >ids/less.bin
run $one --data ids/less.bin --quiet
check "fewer tokens: no warning: $(cat stderr)" empty stderr

# What is read of the data
mkdir few val_x
for i in 1 2 3; do little 2 $(seq 10 $((28 + i))) >few/short_$i.bin; done
little 2 $(seq 1 100) >few/long_1.bin
few="$sizes --vocab-size 257 --batch 1 --total-batch 32 --sample-every 0 --save-every 0"
prints "$few --data few/*.bin --val-data tiny_val_*.bin --val-windows 2 --epochs 2" \
    ": 4 shards (3 unused: fewer than --seq + 1 tokens), 96 of 163 tokens, 2.00 epochs, shuffled" \
    "done: 6 steps, 192 tokens" "validation tiny_val_*.bin: 1 shard, 64 of " \
    "tokenizer  none found: give --tokenizer FILE"
prints "$few --data few/*.bin --order sequential --epochs 1" ": 4 shards, 160 of 163 tokens, 1.00 epochs, sequential"
cp few/long_1.bin few/x_val_000000.bin
warns "$few --data few/x_*.bin --steps 1" "few/x_val_000000.bin is named like validation data" "'NAME_train_*.bin'"
cp few/long_1.bin val_x
run $few --data val_x/long_1.bin --steps 1
check "no warning of a folder named val: $(cat stderr)" empty stderr

# The starter, from the repository's folder
cd "$repo" || exit 1
prints "--steps 1 --layers 1 --heads 2 --channels 16 --batch 2 --seq 16 --total-batch 32 --val-windows 2
    --sample-tokens 4 --vocab-size 2304 --out $dir/starter" "data/starter/vocab.bpe"
finish
