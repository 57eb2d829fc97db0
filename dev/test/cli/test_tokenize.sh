#!/bin/sh
# test_tokenize.sh BINARY: tokenize stopped by signals and a second process; byte order marks and FIFOs; a shard that
# changes while eval reads it.

[ "$TMPDIR" ] || [ ! -w /dev/shm ] || export TMPDIR=/dev/shm
. "$(dirname "$0")/../lib.sh"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

: >vocab.bpe
printf 'hello\n' >text.txt
mkfifo slow
args="tokenize --tokenizer vocab.bpe --val-frac 0"

# tokens PREFIX: the tokens in its first training shard, from info
tokens() { "$binary" info "$1_train_000000.bin" | sed 's/.* \([0-9]*\) tokens.*/\1/'; }

# shellcheck disable=SC2086  # the lists above must be split into words
{
# ---- A second process with the same --out ----------------------------------------------------------------------------

begin $args --out a slow
check "tokenize says that it waits for a FIFO" until_true says "slow: waiting for a process" stderr.bg
refuses 1 "tost $args --out a text.txt" "in use by process $process"
run $args --out a2 text.txt   # another prefix that begins with the first
echo hello >slow
end 0 "the first tokenize"
check "its shards are complete" [ "$(tokens a)" -eq 7 ]
check "no temporary folder is left" [ ! -e a.tmp ]

# ---- Signals ---------------------------------------------------------------------------------------------------------

begin $args --out stopped slow
check "tokenize waits" until_true says "slow: waiting" stderr.bg
kill -TERM $process
end 143 SIGTERM
check "SIGTERM: nothing was written" says "nothing was written" stderr.bg
check "SIGTERM: nothing is left: $(ls)" [ -z "$(find . -name 'stopped*')" ]

begin $args --out killed slow
check "tokenize waits" until_true says "slow: waiting" stderr.bg
kill -KILL $process
wait $process 2>/dev/null
head -c 5000 /dev/zero >killed.tmp/train_000007.bin   # as if it had written more
run $args --out killed text.txt
check "the next run removes what a killed one left" [ "$(echo killed*)" = "killed_train_000000.bin killed_vocab.bpe" ]
check "and writes its shards" [ "$(tokens killed)" -eq 7 ]

# ---- Byte order marks ------------------------------------------------------------------------------------------------

printf '\357\273\277hello' >mark.txt
printf '\357\273\277{"text": "hello"}\n' >mark.jsonl
for name in mark.txt mark.jsonl; do
    run $args --out $name $name
    check "$name: the mark is not part of the text" [ "$(tokens $name)" -eq 6 ]
done

# ---- What it says about its input ------------------------------------------------------------------------------------

printf '{"text": "one"}\nbad\n{"text": 2}\n{"text": "two"}\n' >lines.json
{ yes 'many good bytes' | head -n 200; printf '\377\n<|endoftext|>\nfor <|endoftext|> in\n'; } >flawed.txt
run tokenize --tokenizer vocab.bpe --val-frac 0.5 --seed 3 --skip-bad-lines --out said lines.json flawed.txt
check "JSONL by its first line" says "lines.json: JSONL, documents: 2" stdout
check "plain text" says "flawed.txt: plain text, documents: 2" stdout
check "lines are skipped" says "lines skipped: 2, the first: lines.json: line 2: byte 0: expected an object" stderr
check "a few broken bytes are kept" \
    says "1 of 3237 bytes (0.0309%) are NUL or not UTF-8, the first at byte 3200 of flawed.txt" stderr
check "separators inside lines" says "flawed.txt: <|endoftext|> inside lines, read as text: 1; sed 's/<|endo" stderr
check "the validation shards' share and files: $(cat stdout)" \
    grep -q "said_val_\*.bin: [0-9]* tokens, shards: 1, [0-9.]*% of the tokens, from [12] of 2 files: [a-z]*\." stdout
sed "s/<|endoftext|>/\\n&\\n/g" flawed.txt >split.txt
run $args --out split split.txt
check "the suggested command makes separators of them" says "split.txt: plain text, documents: 3" stdout
cp text.txt '9 9.txt'
run $args --out all '9 9.txt' text.txt mark.txt text.txt text.txt text.txt text.txt mark.jsonl mark.jsonl
check "many files are only counted" says "files of plain text: 7, of JSONL: 2" stdout
refuses 1 "tost $args --out bad lines.json" "lines.json: line 2" "--skip-bad-lines"
check "nothing is left: $(ls)" [ -z "$(find . -name 'bad*')" ]
# On a pipe, too many broken bytes are noticed at its end
{ yes '0123456789' | head -n 400000; yes "$(printf '\351t\351')" | head -n 30000; } >late.txt
mkfifo late
cat late.txt >late &
piped() { tost "$@" - <late; }
refuses 1 "piped $args --out bad" "60000 of 4520000 bytes (1.33%)" "byte 4400000 of standard input"
check "nothing is left: $(ls)" [ -z "$(find . -name 'bad*')" ]

# ---- A shard that changes while it is read ---------------------------------------------------------------------------

model="--layers 1 --heads 1 --channels 8 --vocab-size 257 --block-size 8 --batch 2 --total-batch 16"
yes 'a text' | head -c 20000 >long.txt
run $args --out long long.txt
cp long_train_000000.bin d.bin

run $model --data d.bin --steps 1 --out run --overwrite --quiet
begin eval --model run --data d.bin --windows 1000000000 --seq 8
check "eval begins" until_true says "windows: " stderr.bg
little 2 999 | dd of=d.bin bs=1 seek=21000 conv=notrunc 2>/dev/null
end 1 "eval on a shard that is overwritten"
check "eval names the shard: $(tail -n 1 stderr.bg)" says "d.bin: changed while in use" stderr.bg
}
finish
