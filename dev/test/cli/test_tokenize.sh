#!/bin/sh
# test_tokenize.sh BINARY: tokenize with FIFOs, stopped by a signal; what it says about its input.
# shellcheck disable=SC2086  # lists of options are split into words

[ "$TMPDIR" ] || [ ! -w /dev/shm ] || export TMPDIR=/dev/shm
. "$(dirname "$0")/../lib.sh"

: >my-merges.txt
: >vocab.json   # of another tokenizer
printf 'hello\n' >text.txt
mkfifo slow
args="tokenize --tokenizer my-merges.txt --val-frac 0"

# ---- Signals ---------------------------------------------------------------------------------------------------------

begin $args --out stopped slow
check "tokenize begins" until_true [ -e stopped.tmp ]
sleep 0.3   # it opens the FIFO
kill -TERM $process
end 143 SIGTERM
check "SIGTERM: nothing was written" says "nothing was written" stderr.bg
check "SIGTERM: nothing is left: $(ls)" [ -z "$(find . -name 'stopped*')" ]
begin $args --out waited slow
check "tokenize begins again" until_true [ -e waited.tmp ]
run $args --out waited2 text.txt   # another prefix that begins with the first
echo hello >slow
end 0 "a FIFO"
prints "info waited_train_000000.bin" " 7 tokens"

# ---- What it says about its input ------------------------------------------------------------------------------------

printf '{"text": "one"}\nbad\n{"text": 2}\n{"text": "two"}\n' >lines.json
{ yes 'many good bytes' | head -n 200; printf '\377\n<|endoftext|>\nfor <|endoftext|> in\n'; } >flawed.txt
prints "tokenize --tokenizer my-merges.txt --val-frac 0.5 --seed 3 --skip-bad-lines --out said lines.json flawed.txt" \
    "files of plain text: 1, of JSONL: 1" "4 documents, " \
    "lines skipped: 2, the first: lines.json: line 2: byte 0: expected an object" \
    "1 of 3237 bytes (0.0309%) are NUL or not UTF-8, the first at byte 3200 of flawed.txt" \
    "flawed.txt: <|endoftext|> inside lines, read as text: 1; sed 's/<|endo"
check "four warnings on stderr: $(cat stderr)" [ "$(grep -c "^$(basename "$binary"): " stderr)" -eq 4 ]
check "the validation shards' share: $(cat stdout)" \
    grep -q "said_val_\*.bin: [0-9]* tokens, shards: 1, [0-9.]*% of the tokens" stdout
sed "s/<|endoftext|>/\\n&\\n/g" flawed.txt >split.txt
prints "$args --out split split.txt" "3 documents, "   # the suggested command makes separators of them
prints "tokenize --tokenizer my-merges.txt --val-frac 0.01 --quiet --out lone text.txt" "--val-frac 0.01" "no validation tokens"

# A document per line; names of files in a file
printf 'ann\r\nbea\n\n <|endoftext|>\n<|endoftext|>\ncleo' >names.txt
prints "$args --lines --out names names.txt" "4 documents, " " 28 tokens"
yes name | head -n 60 >many.txt
prints "$args --out hint many.txt" "1 document, " "many.txt was read as one document" "give --lines"
printf 'many.txt\n\nnames.txt\n' >list
prints "$args --lines --out listed --files-from list text.txt" "files of plain text: 3" "65 documents, "
check "no hint with --lines: $(cat stderr)" [ "$(grep -c 'many lines' stderr)" -eq 0 ]
"$binary" $args --out piped --files-from - <list >stdout
check "names from stdin: $(cat stdout)" says "files of plain text: 2" stdout

# A document of bytes, whose last tokens are the validation shards: 2,578 tokens, then 25,780
yes 123456789 | head -c 2577 >lone.txt
lone="tokenize --tokenizer my-merges.txt --quiet"
prints "$lone --val-frac 0.02 --out few lone.txt" "--val-frac 0.02: 51 validation tokens: train with --seq 50 or less" \
    "such as 0.11, for --seq 256"
{ cat lone.txt; printf '\n<|endoftext|>\n'; cat lone.txt; } >copies.txt   # all in the training shards, but for the end
prints "$lone --val-frac 0.02 --out copies copies.txt" "--val-frac 0.02: 103 validation tokens"
prints "$lone --val-frac 0.11 --out window lone.txt" "--val-frac 0.11: 283 validation tokens" "error of about 0.4 nats"
refuses 1 "tost --data few_train_*.bin --layers 1 --steps 1 --seq 256 --out no" "few_val_000000.bin: 51 tokens" "--seq 50"
run --data few_train_000000.bin --layers 1 --channels 8 --heads 1 --steps 1 --seq 50 --out fits
yes 123456789 | tr '\n' ' ' | head -c 25779 >lone.txt
run $lone --val-frac 0.4 --out many lone.txt
check "10,312 validation tokens are no reason for a warning: $(cat stderr)" empty stderr
finish
