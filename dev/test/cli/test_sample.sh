#!/bin/sh
# test_sample.sh BINARY: sample: prompts, seeds, stop texts, what a terminal gets.
# shellcheck disable=SC2059,SC2086,SC2154  # lists of options are split into words; variables of tiny.sh

. "$(dirname "$0")/tiny.sh"

# equals "ARGUMENTS…" FILE TEXT: the binary succeeds and prints FILE
equals() {
    run $1
    check "$3" cmp -s stdout "$2"
}

sample="sample --model straight --tokens 40 --prompt 7 --seed"
run $sample 5
cp stdout first
check "the text starts with the prompt" [ "$(head -c 1 first)" = 7 ]
equals "$sample 5" first "the same seed gives the same text"
run $sample 6
check "another seed gives another text" [ "$(cat stdout)" != "$(cat first)" ]
run $sample 5 --samples 40   # more than are generated together
check "separators between the samples" [ "$(grep -a -c '^---$' stdout)" -eq 39 ]
head -c "$(wc -c <first)" stdout >of_40
check "the first of 40 samples equals one alone" cmp -s first of_40
printf '%s\n' '{"prompt": "7 and"}' '' ' ' '{"id":-3.5e+2, "prompt": "a longer prompt of more than 32 bytes: 4"}' \
    '{"prompt": "", "id": "\u00e9\"1"}' '' '{"prompt": "1 and 2 make"}' >some.jsonl
run sample --model straight --prompts some.jsonl --tokens 30 --samples 2 --seed 5
check "--prompts: one line of JSON per sample, in order" \
    [ "$(cut -d, -f1,2 stdout | tr -cd '0-9\n' | tr '\n' ' ')" = "00 01 30 31 40 41 60 61 " ]
check "an id is passed through" [ "$(grep -c '"sample": ., "id": \(-3.5e+2\|"\\u00e9\\"1"\), "prompt"' stdout)" -eq 4 ]
grep '^{"index": 3,' stdout >first
sed '4!s/.*//' some.jsonl >one.jsonl
equals "sample --model straight --prompts one.jsonl --tokens 30 --samples 2 --seed 5" first \
    "a prompt's samples do not depend on the other prompts"
printf '7\n7 \n\n7 and 2 and 3 and 4 and \n' >spaces.txt   # of two groups
printf '7\n7<|endoftext|>\n<|endoftext|>\n' >ends.txt
printf '7 and ' >space
short="sample --model straight --tokens 3"
warns "$short --prompt @space" 'ends in a space'
warns "$short --prompts spaces.txt" 'in line 2 ends in a space'
warns "$short --prompt 7\\n" "--prompt: " " \$'\n'"
warns "$short --prompt 7 --stop . --stop \\n" "--stop: " " \$'\n'"
warns "$short --prompts ends.txt" 'in line 2 has <|endoftext|> inside'
run sample --model straight --temperature 0 --tokens 20
sed '1s/^/<|endoftext|>/' stdout >first
equals "sample --model straight --temperature 0 --tokens 20 --prompt <|endoftext|>" first \
    "a line <|endoftext|> is the token"
check "without a note: $(cat stderr)" [ "$(wc -l <stderr)" -eq 2 ]

# A text depends on the seed, the id or place of its prompt, and the number of the sample.
# texts FORMAT TEXT…: the texts for the prompts that printf prints
texts() { printf "$@" | "$binary" sample --model straight --prompts - --tokens 30 2>stderr | sed 's/.*"text": //'; }
texts '7\n8 and\n7\n' >first
texts '\n \n7\n\n8 and\n7\n' >second
check "blank lines do not change the texts" cmp first second
check "the place of a prompt does" [ "$(sed -n 1p first)" != "$(sed -n 3p first)" ]
texts '{"prompt": "%s", "id": "%s"}\n' 8 a 7 b 7 c >first
check "the id of a prompt does" [ "$(sed -n 2p first)" != "$(sed -n 3p first)" ]
check "with an id, its place does not" [ "$(sed -n 2p first)" = "$(texts '{"prompt": "7", "id": "b"}\n')" ]
mkfifo asked
"$binary" sample --model straight --prompts - --tokens 30 <asked >answers 2>stderr &
exec 3>asked
echo 7 >&3
check "a line of a pipe is answered before the next" until_true [ -s answers ]
printf '\n8 and\n7' >&3
exec 3>&-
wait $!
texts '7\n8 and\n7\n' >first
check "with the same texts as all at once" [ "$(cat first)" = "$(sed 's/.*"text": //' answers)" ]
"$binary" sample --model straight --prompts - --tokens 3 <asked >answer 2>stderr &
exec 3>asked
echo 7 >&3
until_true [ -s answer ]
printf '7 \377\n' >&3
exec 3>&-
wait $!
check "a bad byte is counted from the start of the pipe: $(cat stderr)" says "at byte 4 of standard input" stderr

# To a terminal, control bytes are escaped; to a pipe they are not.
prompt=$(printf 'a\033[2J\t\302\233bc\377\n\303\251')
export prompt
run sample --model straight --prompt "$prompt" --tokens 1
check "a pipe gets the bytes of the text" [ "$(head -c 14 stdout)" = "$prompt" ]
if script -qec true typescript </dev/null >/dev/null 2>&1; then
    script -qec "'$binary' sample --model straight --prompt \"\$prompt\" --tokens 1 2>/dev/null" typescript \
        </dev/null >stdout
    check "a terminal gets escapes: $(cat stdout)" says "$(printf 'a\\x1b[2J\t\\xc2\\x9bbc\\xff')" stdout
    check "it gets characters as they are" grep -q "^$(printf '\303\251')" stdout
else
    skip 'sample on a terminal: no script (util-linux), or no pseudo-terminal'
fi
for ends in '' '\n' '\r\n'; do
    printf "\357\273\277 7 and\n 2\n$ends" >prompt
    [ "$ends" ] && printf ' 7 and\n 2\n' >wanted || printf ' 7 and\n 2' >wanted
    for argument in @prompt -; do
        "$binary" sample --model straight --temperature 0 --tokens 1 --prompt $argument <prompt >stdout 2>stderr
        head -c "$(wc -c <wanted)" stdout >first
        check "--prompt $argument loses a mark and one line end ('$ends')" cmp -s first wanted
        check "--prompt $argument: and no more ('$ends')" [ "$(wc -c <stdout)" -le $(($(wc -c <wanted) + 2)) ]
    done
done
{ printf '\377'; yes 'some good text' | head -n 100; } >prompt
warns "sample --model straight --tokens 1 --prompt @prompt" "1 of 1501 bytes (0.0666%) are NUL or not UTF-8"
cp -R straight moved
run sample --model moved/ --tokens 3
run sample --model "$dir/moved/step_00000006" --tokens 3

# --stop
run sample --model straight --tokens 40 $(printf ' --stop %d' 0 1 2 3 4 5 6 7 8 9)
check "--stop several times: the first of them ends a text" [ -z "$(tr -cd 0-9 <stdout)" ]
unit=$(printf '\037')   # no character of a value separates it from others
run sample --model straight --tokens 40
cp stdout first
digits=0${unit}1${unit}2${unit}3${unit}4${unit}5${unit}6
equals "sample --model straight --tokens 40 --stop $unit --stop $digits" first "a stop text may have the character 0x1f"

# A model without a tokenizer, also in eval
mkdir lone.d
shard $(seq 300 398) >lone.d/x.bin
run $sizes $step --data lone.d/x.bin --steps 0 --quiet --out wide --vocab-size 515
check "no tokenizer in checkpoint or folder: no warning" empty stderr
run sample --model wide --prompt '300 301' --tokens 4
check "sample prints ids: $(cat stdout)" grep -Eqx '300 301( [0-9]{1,3}){4}' stdout
check "and says why: $(cat stderr)" [ "$(grep -c 'no vocab.bpe beside it; .* samples are ids' stderr)" -eq 1 ]
prints "eval --model wide --data lone.d/x.bin" "bits/byte" "wide/step_00000000/model.safetensors" "--tokenizer"
finish
