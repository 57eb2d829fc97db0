#!/bin/sh
# test_vocab.sh BINARY: vocab on text, JSONL and stdin; the commands that follow it; signals.

[ "$TMPDIR" ] || [ ! -w /dev/shm ] || export TMPDIR=/dev/shm
. "$(dirname "$0")/../lib.sh"
OMP_NUM_THREADS=2

# ---- Inputs and output -----------------------------------------------------------------------------------------------

{
    printf '  Straße,  naïve café – „Ünïcödé“ ½ Ⅷ ٣٤ 日本語、日本 日本\n<|endoftext|> \t\r\n'
    printf "I'll we've\tdon't  aaaa aaaaaaa bananabanana\r\n\r\n<|endoftext|>\n"
    printf 'not <|endoftext|> a separator\n<|endoftext|>'
} >mixed.txt
printf '{"text": "Ein Stra\\u00dfenfest\\nin K\\u00f6ln", "n": 1}\n\n{"text": "Zwei Feste <|endoftext|>"}\n' >web.jsonl
printf 'Ein Straßenfest\nin Köln\n<|endoftext|>\nZwei Feste <|endoftext|>' >web.txt
run vocab --size 290 --out a.bpe mixed.txt web.jsonl
run vocab --size 290 --out b.bpe --threads 1 web.txt mixed.txt
tost vocab --size 290 --out c.bpe --quiet mixed.txt - <web.txt >stdout 2>stderr
check "--quiet prints only two warnings: $(cat stdout stderr)" [ -z "$(cat stdout)" -a "$(wc -l <stderr)" -eq 2 ]
check "it counts the separators inside lines" says "mixed.txt: <|endoftext|> inside lines, read as text: 2; sed" stderr
tost vocab --size 290 --out d.bpe - <web.jsonl >/dev/null
sed 's/"text"/"content"/' web.jsonl >content.json
run vocab --size 290 --out g.bpe --text-field content content.json
run vocab --size 290 --out e.bpe web.jsonl
check "text and JSONL give the same" cmp -s a.bpe b.bpe
check "text on stdin gives the same" cmp -s a.bpe c.bpe
check "JSONL on stdin gives the same" cmp -s d.bpe e.bpe
check "another field of JSONL with another name gives the same" cmp -s g.bpe e.bpe
prints "vocab --size 9999 --out f.bpe web.txt" "--size 9999: merges that occur 10 times" "f.bpe: 292 tokens"
{ yes ab | head -n 10; yes cd | head -n 9; } >rare.txt
prints "vocab --size 259 --out rare.bpe rare.txt" "merges that occur 10 times or more in the text: 1; give --size 258,"
run vocab --size 258 --out frequent.bpe rare.txt
check "the size of the advice gives no warning: $(cat stderr)" empty stderr
run vocab --size 257 --out bytes.bpe
check "--size 257 has no merges" [ "$(cat bytes.bpe)" = '#version: 0.2' ]

# The next commands take it
run tokenize --tokenizer a.bpe --val-frac 0 --out mine "$repo/LICENSE"
prints "--data mine_train_000000.bin --layers 1 --heads 1 --channels 8 --block-size 8 --batch 2 --total-batch 16 --steps 1
    --out run" 290
for model in run run/step_00000001; do
    run tokenize --tokenizer $model --val-frac 0 --out of_run "$repo/LICENSE"
    check "tokenize takes the tokenizer of $model" cmp -s of_run_train_000000.bin mine_train_000000.bin
    rm of_run_*
done

# ---- Signals ---------------------------------------------------------------------------------------------------------

# In the merges: millions are asked for, of a word with millions of pairs
awk 'BEGIN { srand(1); for (i = 0; i < 3000000; i++) printf "%c", 97 + int(rand() * 26) }' >long.txt
mkfifo slow
begin vocab --size 4000000 --out stopped.bpe slow
cat long.txt >slow
sleep 1
kill -INT "$process"
end 130 "SIGINT while it learns"
check "SIGINT: nothing was written" says "nothing was written" stderr.bg
check "SIGINT while it learns: nothing is left: $(ls)" [ -z "$(find . -name 'stopped*')" ]
finish
