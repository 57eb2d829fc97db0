#!/bin/sh
# test_eval.sh BINARY: eval: windows, positions, shards, tasks, signals, tokenizers.
# shellcheck disable=SC2086,SC2154  # lists of options are split into words; variables of tiny.sh

. "$(dirname "$0")/tiny.sh"

# ---- Windows and positions -------------------------------------------------------------------------------------------

# figure NAME FILE: the first number of that name in a JSON file.
figure() { sed -n "s/.*\"$1\": \[*\([^],} ]*\).*/\1/p" "$2" | head -1; }
tokens=$((($(wc -c <tiny_train_000000.bin) + $(wc -c <tiny_val_000000.bin) - 2048) / 2))
for batch in 3 5; do
    run eval --model straight --data "$dir/tiny_*.bin" --seq 7 --batch $batch --json $batch.json
    check "every token but the first is scored once" [ "$(printed tokens)" -eq $((tokens - 1)) ]
done
check "the batch size changes only rounding" near "$(figure loss 3.json)" "$(figure loss 5.json)"
run eval --model straight --data "$dir/tiny_*.bin" --seq 16 --stride 5 --json strided.json
check "strided: every token but the first is scored once" [ "$(figure tokens strided.json)" -eq 16 ]
check "strided: and in the total" [ "$(printed tokens)" -eq $((tokens - 1)) ]
random="eval --model straight --data $dir/tiny_*.bin --windows 7"
run $random --seed 1 --json first.json
check "random windows: the requested number" [ "$(grep -c '"start"' first.json)" -eq 7 ]
check "random windows: of full length" [ "$(printed tokens)" -eq $((7 * 32)) ]
starts() { grep -o '"start": [0-9]*' "$1"; }
run $random --seed 1 --batch 2 --json second.json
check "the same seed, the same windows" [ "$(starts first.json)" = "$(starts second.json)" ]
run $random --seed 2 --json second.json
check "another seed, other windows" [ "$(starts first.json)" != "$(starts second.json)" ]
run $random --seed 2 --json /dev/stdout
check "JSON and results in the same file" \
    [ "$(sed '/^}/q' stdout)" = "$(cat second.json)" -a "$(printed tokens)" -eq $((7 * 32)) ]

# Loss by position, which exchange.py compares with PyTorch
of_json() { sed -n 's/.*"first".*"tokens": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' "$1"; }
by_position="eval --model straight --data $dir/tiny_val_*.bin --seq 11 --by-position --json position.json"
run $by_position --batch 3
grep -v '^speed' stdout >first
for variant in "--batch 3 --chunk 4" "--chunk 1" "--chunk 400"; do
    run $by_position $variant
    check "--by-position $variant: the report" [ "$(grep -v '^speed' stdout)" = "$(cat first)" ]
done
check "--by-position: five bins" [ "$(of_json position.json | wc -l)" -eq 5 ]
run $by_position --stride 4
check "--by-position --stride: later windows score only their last positions" \
    [ "$(of_json position.json | cut -d' ' -f1 | head -n 3 | tr '\n' ' ')" = "1 1 2 " ]

run eval --model straight --data "$dir/tiny_val_*.bin" --seq 11 --limit 3
check "eval --limit" [ "$(printed tokens)" -eq 33 ]
# interrupted ARGUMENTS…: eval, interrupted, says that there is no result.
interrupted() {
    begin eval --model straight "$@" --json interrupted.json
    until_true [ -s stderr.bg ]   # the heading
    kill -TERM $process
    end 143 "eval $1, interrupted"
    check "it says only that: $(cat stderr.bg)" \
        [ "$(sed 1d stderr.bg)" = "$(basename "$binary"): interrupted: there is no result" ]
    check "and writes nothing" [ ! -s stdout.bg -a ! -e interrupted.json ]
}
interrupted --data "$dir/tiny_val_*.bin" --windows 100000000
yes '{"context": "7 and 2", "choices": [" make"], "answer": 0}' | head -n 200000 >long.jsonl
interrupted --task long.jsonl

# Past the block size, of a model without positions
run $small --positions none --steps 1 $never --out no_positions --quiet
prints "eval --model no_positions --data $dir/tiny_val_*.bin --seq 100 --by-position" "65-100"
printf '{"context": "1", "answer": 0, "choices": [" 2", " 3 4"]}\n' >task.jsonl
run eval --model no_positions --task task.jsonl --seq 2147483647 --batch 1

# ---- Shards ----------------------------------------------------------------------------------------------------------

prints "eval --model straight --data $dir/tiny_train_000000.bin $dir/tiny_val_000000.bin --seq 8" "shards: 2;"
check "no word on different shards" [ "$(grep -c 'the same file' stderr)" -eq 0 ]
ln -s tiny_val_000000.bin linked.bin
warns "eval --model straight --data tiny_val_000000.bin linked.bin" \
    "tiny_val_000000.bin and linked.bin are the same file: its tokens count twice"
# A loss for each shard, of the windows that begin in it
mkdir few
little 2 $(seq 1 100) >few/long_1.bin
run eval --model straight --data few/long_1.bin --seq 9
check "one shard: $(cat stdout)" [ -z "$(grep '^shard' stdout)" ]
want="shard       $(printed loss) nats/token, 99 tokens in windows that begin in few/long_1.bin"
tail -c 200 few/long_1.bin >few/more_val_000000.bin
prints "eval --model straight --data few/long_1.bin few/more_val_000000.bin --seq 9" "$want" \
    " nats/token, 100 tokens in windows that begin in few/more_val_000000.bin"
odd=$(printf 'odd\037name.bin')
cp tiny_val_000000.bin "$odd"
run eval --model straight --data "$odd"

# Text: 18 bytes and 4 words in the targets, which are all tokens but the first. With --seq 1, the windows have the loss
# of each; <|endoftext|> is the target of windows 4, 17 and 20.
printf 'ab cd\n<|endoftext|>\n  two  words\n<|endoftext|>\nx\n' >words.txt
run tokenize --tokenizer vocab.bpe --val-frac 0 --out words --quiet words.txt
for windows in "--seq 6 --stride 4 --batch 2" "--seq 5 --chunk 2" "--seq 1"; do
    run eval --model straight --data words_train_000000.bin $windows --json words.json
    check "$windows: bytes and words" [ "$(figure bytes words.json)" = 18 -a "$(figure words words.json)" = 4 ]
done
check "bits per byte: without the loss of <|endoftext|>" near "$(figure bits_per_byte words.json)" \
    "$(awk -F'[:,}]' '/"start"/ && $2 != 4 && $2 != 17 && $2 != 20 { nats += $8 }
                      END { printf "%.9f", nats / log(2) / 18 }' words.json)"

# Tokenizers that do not fit
mkdir beside
cp tiny_val_000000.bin beside/x.bin
printf '#version: 0.2\n' >beside/vocab.bpe
warns "eval --model straight --data $dir/beside/*.bin --tokenizer beside/vocab.bpe" \
    "$dir/vocab.bpe" "00000000" " beside/vocab.bpe"

# ---- Tasks -----------------------------------------------------------------------------------------------------------

# nats TEXT: summed loss of all tokens of a text except the first, with --data on a raw shard.
nats() {
    printf '%s\n' "$1" >one.txt
    rm -f one_train_000000.bin
    "$binary" tokenize --tokenizer vocab.bpe --out one --val-frac 0 one.txt >/dev/null
    n=$(printf '%s' "$1" | wc -c)
    tail -c +1025 one_train_000000.bin | head -c $((2 * n)) >one.bin
    "$binary" eval --model straight --data one.bin --json one.json >/dev/null 2>&1
    figure nats one.json
}
# same_task FILE CHOICE CONTEXT: the loss of the first answer is the loss of the text minus the loss of its context, and
# the results do not depend on the batch size. Leaves the results in task.json and stdout.
same_task() {
    run eval --model straight --task $1 --batch 1
    grep '^[al]' stdout >first
    run eval --model straight --task $1 --json task.json
    check "$1: the loss of '$2' after '$3'" near "$(figure nats task.json)" \
        "$(awk -v a="$(nats "$3$2")" -v b="$(nats "$3")" 'BEGIN { printf "%.9f", a - b }')"
    check "$1: the results do not depend on the batch size" [ -s first -a "$(cat first)" = "$(grep '^[al]' stdout)" ]
}

example() { printf '{"context": "%s", "choices": [%s], "answer": %d}\n' "$@"; }
{ example "3 and 2 make" '" 5"' 0; example "1 and 4 make" '" five"' 0
  example "a text that is longer than the block size" '" holds"' 0; } >words.jsonl
same_task words.jsonl " 5" "3 and 2 make"
check "three examples" [ "$(figure examples task.json)" -eq 3 ]
check "perplexity per word and per token" \
    [ "$(grep -c -e '^perplexity per word ' -e '^perplexity per token ' stdout)" -eq 2 ]
run eval --model straight --task words.jsonl --limit 2 --json limit.json
head -n 2 words.jsonl >two.jsonl
run eval --model straight --task two.jsonl --json two.json
check "--limit 2 scores the first two examples" [ "$(figure nats limit.json)" = "$(figure nats two.json)" -a \
    "$(figure examples limit.json)" -eq 2 ]
example 1 '" 3-and-2-make-5-and-4"' 0 >huge.jsonl
run eval --model straight --task huge.jsonl
check "a large perplexity is short: $(cat stdout)" grep -q '^perplexity per word  *[0-9.]*e+[0-9]* ' stdout
{ example "2 and 2" '" make 4", " is", " and 3 and", " makes"' 1; example "9 and 2" '" make 11", " x"' 0; } >swag.jsonl
same_task swag.jsonl " make 4" "2 and 2"
check "tokens of each choice" says '"tokens": [7, 3, 10, 6]' task.json
check "the index of the answer" says '"answer": 1,' task.json
example '<|endoftext|>' '" 3 and"' 0 >inside.jsonl
warns "eval --model straight --task inside.jsonl" "inside.jsonl line 1 has <|endoftext|> inside"
finish
