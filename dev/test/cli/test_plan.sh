#!/bin/sh
# test_plan.sh BINARY: --for and --text. How good the choice is: dev/results/budget.md.
# shellcheck disable=SC2086,SC2154  # lists of options are split into words; variables of tiny.sh

. "$(dirname "$0")/tiny.sh"
OMP_NUM_THREADS=1   # on a busy machine, steps with two threads may take longer than --for

# The last command that a run printed, with another program and folder
command_of() { sed -n 's/^command    [^ ]* //p' "$1" | tail -1 | tr -d "'"; }

# ---- --for -----------------------------------------------------------------------------------------------------------

# With another schedule, the steps stay as planned: otherwise no command repeats a run that a busy machine slows down.
given="$sizes --total-batch 128 --batch 2 --schedule linear --keep 1"
run $given $data --for 2s --out timed
cp stdout printed
check "the plan: $(grep '^plan' printed)" grep -Eq '^plan  .* steps, .* epochs, until ' printed
check "what is given stands" grep -q '^model      1 layer, 2 heads, 16 channels' printed
steps=$(sed -n 's/^done: \([0-9]*\) step.*/\1/p' printed)
check "the run ends with a sample" grep -q "^sample after step $steps:" printed
check "the learning rate has decayed" [ "$(awk -F, 'NR > 1 { if ($5 > most) most = $5; last = $5 }
    END { print (last < 0.1 * most) }' timed/log.csv)" = 1 ]
run $(command_of printed) --out plain
check "the printed command gives the same run" [ "$(training_of timed)" = "$(training_of plain)" ]
check "and the same weights" same_run timed plain
prints "--resume --out timed" "is finished: $steps of $steps steps"

# A run that is stopped keeps its plan.
sums 3000 >long.txt
run tokenize --tokenizer vocab.bpe --out long --val-frac 0.02 long.txt
execute tost $given --data "$dir/long_train_*.bin" --for 4s --max-time 0.1s --out stopped
check "--max-time: exit status $status, expected 75" [ $status -eq 75 ]
cp stdout printed
run --resume --out stopped
run $(command_of printed) --out unstopped
check "a resumed run is the planned one" same_run stopped unstopped

# ---- --text ----------------------------------------------------------------------------------------------------------

mkdir mine
run vocab --size 300 --out mine/text_vocab.bpe text.txt   # of a start that was killed
start="--text long.txt text.txt --for 2s $given --resume auto --out mine"
prints "$start" "tokenizer  mine/text_vocab.bpe: 300 tokens"
cp stdout printed
for file in vocab.bpe train_000000.bin val_000000.bin; do
    check "the run has its vocabulary and shards: $(ls mine)" [ -f mine/text_$file ]
done
run $(command_of printed) --out again
check "the printed command gives the same run" same_run mine again
cp mine/text_vocab.bpe learned.bpe
tr . '\n' <long.txt >lines.txt
prints "--text lines.txt --lines --for 2s $given --tokenizer learned.bpe --out mine --overwrite" \
    "the old run is now in mine.1" "tokenizer  learned.bpe" "$(grep -c make lines.txt) documents"
prints "--text lines.txt --lines --for 2s $sizes --total-batch 128 --resume auto --out mine" "is finished"
seq 2000 >lines.txt
wrong="--for 2s --seq 32 --val-windows 9 --keep-best --channels 30 --heads 7"
execute tost --text "$dir/lines.txt" $wrong --vocab-size 300 --out no
check "7 heads of 30 channels: exit status $status" [ $status -eq 1 ]
check "one hint: $(cat stderr)" [ "$(grep -c 'give --lines' stderr)" = 1 ]
check "a run that cannot start leaves no folder: $(ls no 2>/dev/null)" [ ! -e no ]
execute tost --text "$dir/lines.txt" $wrong --out no
check "without --vocab-size, before the text is read: $(cat stdout)" [ "$status,$(cat stdout)" = 1, ]
check "nor does it leave a folder" [ ! -e no ]
check "the old run has kept its shards" [ -f mine.1/text_train_000000.bin ]
mkdir own
cp learned.bpe own/text_vocab.bpe
execute tost --text "$dir/text.txt" $wrong --resume auto --out own
check "nor does it remove a vocabulary that was there: $(ls own)" [ "$status,$(ls own)" = 1,text_vocab.bpe ]
: >own/text_val_000000.bin
execute tost --text absent.txt --for 2s --out own
check "nor shards: $(ls own)" [ "$status,$(ls own | wc -l)" = 1,2 ]

finish
