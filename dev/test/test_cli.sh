#!/bin/sh
# test_cli.sh BINARY: what a user meets: command lines right and wrong, help, runs that stop and go on, samples.
# Every run is of a model of some thousand parameters on text made here, with bytes as tokens.

. "$(dirname "$0")/lib.sh"
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive

# run STATUS ARGUMENTS…: runs the binary, output in files stdout and stderr, and checks the exit status.
run() {
    wanted=$1
    shift
    "$binary" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
    status=$?
    check "'$*': exit status $wanted wanted, $status came: $(head -c 300 "$dir/stderr")" [ $status -eq "$wanted" ]
}
empty_dir() { [ -z "$(ls -A "$1")" ]; }
differ() { ! cmp -s "$1" "$2"; }
same_checkpoint() { cmp -s "$1/model.safetensors" "$2/model.safetensors" &&
                    cmp -s "$1/optimizer.safetensors" "$2/optimizer.safetensors"; }
# refused TEXT: after a run: one line on stderr with the text, stdout empty.
refused() {
    check "the error says '$1': $(cat stderr)" says "$1" stderr
    check "one line on stderr: $(cat stderr)" one_line stderr
    check "nothing on stdout" empty stdout
}

# ---------------------------------------------------------------------------------------------
# Text, tokenizer, shards

: >vocab.bpe
printf 'a b\n' >other.bpe
awk 'BEGIN { for (i = 0; i < 120; i++) { for (j = 0; j < 6; j++) printf "%d and %d make %d. ", i, j, i + j
             print "\n<|endoftext|>" } }' >text.txt
run 0 tokenize --tokenizer vocab.bpe --out tiny --val-frac 0.2 text.txt
check "tokenize makes shards" [ -f tiny_train_000000.bin ]
check "tokenize makes validation shards" [ -f tiny_val_000000.bin ]
if [ $failed -ne 0 ]; then
    cat stderr
    finish
fi
printf 'one document' >lone.txt
run 0 tokenize --tokenizer vocab.bpe --out lone lone.txt
check "one document, --val-frac not given" says "no validation shards" stdout
run 1 tokenize --tokenizer vocab.bpe --out lone2 --val-frac 0.01 lone.txt
refused "none of 1 documents fell to the validation shards"
run 0 tokenize --tokenizer vocab.bpe --out lone3 --val-frac 0 lone.txt
check "--val-frac 0: nothing to be said" [ "$(wc -l <stdout)" -eq 2 ]
model="--layers 1 --heads 2 --channels 16 --block-size 32 --vocab-size 257 --batch 2 --total-batch 128"
data="--data $dir/tiny_train_*.bin --tokenizer $dir/vocab.bpe"
small="$model $data --warmup 1"             # for runs that say themselves what else they do
fast="--lr 0.003"
tiny="$small $fast --val-batches 2 --sample-tokens 8"
bare="--save-every 0 --val-every 0 --sample-every 0"
set -f   # patterns go to the program as they are
# shellcheck disable=SC2086  # the lists above are split on purpose

# ---------------------------------------------------------------------------------------------
# Help

for line in \
    "train preset layers heads channels block-size vocab-size bias membership init data val-data order tokenizer out
     resume overwrite log steps batch seq total-batch lr warmup min-lr-frac weight-decay beta1 beta2 eps grad-clip
     skip-loss-z skip-grad-z max-skipped seed
     val-every val-batches sample-every sample-tokens save-every keep on-save-error quiet temperature top-k top-p
     dtype threads recompute help" \
    "sample model tokenizer prompt tokens samples temperature top-k top-p seed dtype threads help" \
    "eval model data task json tokenizer batch seq stride windows seed dtype threads help" \
    "tokenize tokenizer out val-frac shard-tokens jsonl seed threads quiet help" \
    "info model help" \
    "inspect model text out tokenizer dtype threads help"; do
    # shellcheck disable=SC2086
    set -- $line
    command=$1
    shift
    run 0 "$command" --help
    check "$command --help: nothing on stderr" empty stderr
    check "$command --help: at most 100 columns" [ -z "$(sed 's/[×…]/x/g' stdout | awk 'length > 100')" ]
    for option in "$@"; do
        check "$command --help lists --$option" grep -q -e "^  --$option\( \|\$\)" stdout
    done
    check "$command --help lists nothing else" [ "$(grep -c '^  --' stdout)" -eq $# ]
done
run 0 --help
check "--help lists the commands" says "tokenize --tokenizer FILE" stdout
check "--help shows defaults with units" says "(default: 128 tokens)" stdout   # of --sample-tokens
run 0 --preset tost-base --help
check "--help shows the preset's defaults" says "(default: 491520 tokens)" stdout
run 0 train --help
check "train --help tells what --resume may change" says "These may be given anew: --data," stdout
check "and at what cost" says "the cosine ends there" stdout
run 0 -h
ln -s "$binary" other_name
./other_name --help >stdout
check "--help goes by the program's name" [ "$(head -n 1 stdout | cut -d' ' -f1,2)" = "usage: other_name" ]
check "so do errors" [ "$(./other_name info nowhere 2>&1 | cut -d: -f1)" = other_name ]

# ---------------------------------------------------------------------------------------------
# Runs: stop and go on

run 0 $tiny --steps 6 --save-every 3 --val-every 2 --sample-every 2 --out straight
check "nothing on stderr" empty stderr
check "a line an update" [ "$(grep -c '^step ' stdout)" -eq 6 ]
check "a sample" says "sample after update 6" stdout
check "a row an update and a header" [ "$(wc -l <straight/log.csv)" -eq 7 ]
check "steps from 0" [ "$(sed -n 2p straight/log.csv | cut -d, -f1,2)" = "0,128" ]
check "validation where it is due" [ "$(sed 1d straight/log.csv | awk -F, '{ printf "%d", $4 != "" }')" = "010101" ]
check "the last update is saved" [ -f straight/step_00000006/model.safetensors ]

cp -R straight halfway
rm -rf halfway/step_00000006
run 0 --resume --out halfway
check "resumed parameters and moments are those of a straight run" \
    same_checkpoint straight/step_00000006 halfway/step_00000006
check "resumed log is that of a straight run" same_log straight/log.csv halfway/log.csv
run 0 --resume --out halfway --quiet
check "--quiet: nothing on stdout" empty stdout
run 0 --resume --out halfway
check "a finished run says so" says "is finished" stdout
run 0 --resume --out halfway --steps 8
check "a larger --steps goes on" [ -f halfway/step_00000008/model.safetensors ]
check "its log goes on" [ "$(wc -l <halfway/log.csv)" -eq 9 ]
head -c 999 straight/step_00000006/model.safetensors >halfway/step_00000008/model.safetensors
head -c 999 straight/step_00000006/optimizer.safetensors >halfway/step_00000006/optimizer.safetensors
run 1 --resume --out halfway --steps 6
refused "halfway/step_00000003 is whole: move the newer ones away, and --resume goes on from it"
rm -r halfway/step_00000006 halfway/step_00000008
run 0 --resume --out halfway --steps 6
check "and so it does" same_checkpoint straight/step_00000006 halfway/step_00000006

run 1 $tiny --steps 6 --out straight
refused "--out straight holds a run already"
run 1 --resume --out straight --lr 0.5
refused "--lr 0.5 differs from the 0.003 of the run in straight"
run 1 --resume --out straight --layers 2
refused "--layers 2 differs from the 1 of"
run 1 --resume --out straight --order sequential
refused "--order sequential differs from the shuffled"
run 1 --resume --out straight --steps 9 --data "$dir/tiny_val_000000.bin"
refused "resume with the same shards"
check "nothing written" [ ! -e straight/step_00000009 ]

run 0 $small $fast $bare --steps 6 --out plain
check "--save-every 0 saves nothing" [ -z "$(ls plain | grep step_)" ]
check "validation and samples do not disturb training" \
    [ "$(cut -d, -f1-3,5,6 plain/log.csv)" = "$(cut -d, -f1-3,5,6 straight/log.csv)" ]
run 0 $small $fast $bare --steps 6 --out plain --overwrite --seed 7
check "another seed is another run" differ plain/log.csv straight/log.csv
run 0 $small --steps 2 --save-every 2 --out plain --overwrite --quiet
run 0 $small --steps 1 --save-every 1 --out plain --overwrite --quiet
check "--overwrite removes the old checkpoints" [ "$(ls plain | grep step_)" = step_00000001 ]
check "--overwrite begins the log anew" [ "$(wc -l <plain/log.csv)" -eq 2 ]
echo precious >diary
run 1 $small --steps 1 --log diary --out plain2 --quiet
refused "diary is there already"
check "nothing written" [ ! -e plain2 ]
run 1 $small --steps 1 --log diary --out plain --overwrite --quiet
refused "diary: line 1 is not that of a log.csv"
check "the file stands" [ "$(cat diary)" = precious ]
check "so does the run" [ -f plain/step_00000001/model.safetensors ]
run 0 $small --steps 1 --log outside.csv --out plain --overwrite --quiet
run 0 $small --steps 2 --log outside.csv --out plain --overwrite --quiet
check "--log is begun anew with its run" [ "$(wc -l <outside.csv)" -eq 3 ]
cp -R plain foreign
LC_ALL=C sed 's/"option\./"notion./g' plain/step_00000002/model.safetensors >foreign/step_00000002/model.safetensors
run 1 --resume --out foreign
refused "does not say how it was trained and cannot be resumed"
run 0 $small --steps 5 --save-every 1 --keep 2 --out kept --quiet
check "--keep 2 keeps the newest two" [ "$(ls kept | grep -c step_)" -eq 2 ]
run 0 $tiny --steps 0 --out zero
check "--steps 0 validates and saves" says "validation after update 0" stdout
check "--steps 0 validates and saves" [ -f zero/step_00000000/model.safetensors ]
run 0 --resume --out zero --steps 6
check "a run that stands at 0 goes on as a fresh one" \
    [ "$(cut -d, -f1-3,5,6 zero/log.csv)" = "$(cut -d, -f1-3,5,6 straight/log.csv)" ]
run 0 --init straight --steps 0 $data --out again --quiet
run 0 eval --model again --data "$dir/tiny_val_*.bin"
grep '^loss' stdout >again.loss
run 0 eval --model straight --data "$dir/tiny_val_*.bin" --batch 1
grep '^loss' stdout >straight.loss
check "--init starts from the file's weights" cmp -s again.loss straight.loss
run 1 --init straight --heads 4 $data --out none
refused "--heads 4 differs from the 2 of"

run 0 $tiny --steps 6 --save-every 3 --val-every 2 --sample-every 2 --recompute --out recomputed
rm -r recomputed/step_00000006
run 0 --resume --out recomputed
check "--recompute computes the same, and a resumed run may do without" \
    same_checkpoint straight/step_00000006 recomputed/step_00000006

uniform="$small --membership uniform --steps 4 --save-every 2"
run 0 $uniform --out even
check "a uniform membership is announced" says "uniform membership" stdout
run 0 info even
check "info tells it" says "uniform membership" stdout
run 0 $uniform --out even2 --quiet
rm -r even2/step_00000004
run 0 --resume --out even2 --quiet
check "it is resumed" same_checkpoint even/step_00000004 even2/step_00000004
run 0 sample --model even --tokens 5
run 1 --resume --out even --membership learned --steps 5
refused "--membership learned differs from the uniform of"
run 1 --init straight --membership uniform $data --out none
refused "--membership uniform differs from the learned of"
LC_ALL=C sed -i 's/"membership":"uniform"/"membership":"equable"/' even/step_00000004/model.safetensors
run 1 info even
refused "'membership' is 'equable'"
run 0 $small --steps 1 --quiet
run 0 $small --steps 1 --quiet
check "default folders are numbered" [ -d out/starter-001 -a -d out/starter-002 ]
run 0 info
check "info takes the newest run" says "out/starter-002/step_00000001/model.safetensors" stdout

# ---------------------------------------------------------------------------------------------
# Signals. A constant rate makes the run independent of --steps.

constant="--min-lr-frac 1 --save-every 1000000 --val-every 0 --sample-every 0"
for signal in "INT 130" "TERM 143" "HUP 129"; do
    # shellcheck disable=SC2086
    set -- $signal
    if [ "$1" = HUP ] && (sh -c 'kill -HUP $$; exit 0'); then
        skip "SIGHUP: ignored here, as under nohup"
        continue
    fi
    rm -rf stopped steady
    "$binary" $small $constant --steps 1000000 --out stopped >stdout 2>stderr </dev/null &
    id=$!
    # however slow the machine: until two updates are logged, or the run has ended by itself
    while kill -0 $id 2>/dev/null && [ "$(cat stopped/log.csv 2>/dev/null | wc -l)" -lt 3 ]; do sleep 0.1; done
    kill -"$1" $id
    wait $id
    status=$?
    check "SIG$1: exit status $2 wanted, $status came" [ $status -eq "$2" ]
    check "SIG$1: says how to go on" says "train --resume --out stopped" stdout
    done_steps=$(($(wc -l <stopped/log.csv) - 1))
    last=stopped/$(printf 'step_%08d' $done_steps)
    check "SIG$1: the update in hand is saved" [ -f "$last/model.safetensors" ]
    run 0 --resume --out stopped --steps $((done_steps + 2)) --quiet
    run 0 $small $constant --steps $((done_steps + 2)) --out steady --quiet
    last=$(printf 'step_%08d' $((done_steps + 2)))
    check "SIG$1: the resumed run is the straight run" same_checkpoint "stopped/$last" "steady/$last"
    check "SIG$1: so is its log" same_log stopped/log.csv steady/log.csv
done

# ---------------------------------------------------------------------------------------------
# Failures at run time

wild="--steps 200 --val-every 0 --sample-every 0 --lr 100 --weight-decay 100 --out wild --quiet"
run 1 $small $wild --save-every 1 --keep 1
check "updates that went wrong are skipped: $(cat stderr)" [ "$(grep -c 'is skipped: loss' stderr)" -eq 10 ]
check "parameters that went wrong are not saved" \
    [ "$(grep -c 'not saved; train --resume --out wild goes on' stderr)" -ge 10 ]
check "then the run stops" says "after 10 skipped in a row (--max-skipped); train --resume --out wild goes on" stderr
check "the good checkpoint stands" [ "$(ls wild | grep -c step_)" -eq 1 ]
run 0 eval --model wild --data "$dir/tiny_val_*.bin"
run 1 $small $wild --save-every 0 --max-skipped 0 --overwrite
refused "(--max-skipped); nothing is saved yet; a higher --max-skipped or a new run with a lower --lr may help"

cp -R straight full
if (ulimit -f 8; exec "$binary" --resume --out full --steps 7 --quiet) >stdout 2>stderr; then
    check "a save that fails: status 1" false
else
    check "a save that fails: status 1" [ $? -eq 1 ]
fi
refused "full/step_00000007"
check "it says what to go on with" \
    says "step 7 is not saved; stopped; train --resume --out full goes on from step 6" stderr
check "a save that fails leaves the earlier checkpoint" same_checkpoint straight/step_00000006 full/step_00000006
check "a save that fails leaves nothing half" [ -z "$(ls full | grep step_00000007)" ]
run 0 --resume --out full --steps 7 --quiet
(ulimit -f 8; exec "$binary" $small --steps 1 --out 'first save' --quiet) >stdout 2>stderr
refused "step 1 is not saved; stopped; nothing is saved yet"

if [ -c /dev/full ]; then
    "$binary" --help >/dev/full 2>stderr
    check "--help to a full disk: status 1" [ $? -eq 1 ]
    "$binary" sample --model straight --prompt x >/dev/full 2>stderr
    check "sample to a full disk: status 1" [ $? -eq 1 ]
    check "it says why" says "stdout cannot be written" stderr
    run 1 $small --steps 2 --log /dev/full --out logless --quiet
    check "a log on a full disk" says "/dev/full" stderr
else
    skip "/dev/full is not there"
fi

# ---------------------------------------------------------------------------------------------
# Sample, eval, info

run 0 sample --model straight --prompt "7 and" --tokens 40 --seed 5
cp stdout first
check "the text begins with the prompt" [ "$(head -c 5 first)" = "7 and" ]
run 0 sample --model straight --prompt "7 and" --tokens 40 --seed 5
check "the same seed gives the same text" cmp -s stdout first
run 0 sample --model straight --prompt "7 and" --tokens 40 --seed 6
check "another seed gives another text" differ stdout first
printf '7 and' >prompt
run 0 sample --model straight/step_00000006 --prompt @prompt --tokens 40 --seed 5
check "--prompt @FILE" cmp -s stdout first
"$binary" sample --model straight/step_00000006/model.safetensors --prompt - --tokens 40 --seed 5 \
    <prompt >stdout 2>stderr
check "--prompt -" cmp -s stdout first
: >prompt
run 1 sample --model straight --prompt @prompt
refused "--prompt @prompt is empty"
run 0 sample --model straight --tokens 4 --samples 3
check "--samples 3: two lines between" [ "$(grep -a -c '^---$' stdout)" -eq 2 ]
run 0 sample --model straight --temperature 0 --tokens 70 --prompt "1 and 2"
cp stdout first
run 0 sample --model straight --temperature 0 --tokens 70 --prompt "1 and 2" --seed 99
check "greedy text needs no seed, past the block size too" cmp -s stdout first
printf '\377\376\n' >prompt
run 0 sample --model straight --prompt @prompt --tokens 3
head -c 3 stdout >first
check "a prompt of any bytes comes back" cmp -s first prompt
run 1 sample --model straight --tokenizer other.bpe
refused "other.bpe has 258 tokens"
cp -R straight moved
mv vocab.bpe elsewhere.bpe
run 1 sample --model moved
refused "which is not there: give --tokenizer"
printf '#version: 0.2\n' >vocab.bpe
run 1 sample --model moved
refused "was trained with a tokenizer of CRC-32"
mv elsewhere.bpe vocab.bpe
mkdir -p afar/off
cd afar/off || exit 1
run 0 sample --model ../../moved/ --tokens 3
run 0 sample --model "$dir/moved/step_00000006" --tokens 3
cd "$dir" || exit 1

run 0 eval --model straight --data "$dir/tiny_*.bin" --seq 7 --batch 3
tokens=$((($(wc -c <tiny_train_000000.bin) + $(wc -c <tiny_val_000000.bin) - 2048) / 2))
check "every token but the first is scored once" [ "$(awk '$1 == "tokens" { print $2 }' stdout)" -eq $((tokens - 1)) ]
grep '^[lpb]' stdout >first
run 0 eval --model straight --data "$dir/tiny_*.bin" --seq 7 --batch 5
check "the batch does not matter but for rounding" [ "$(grep '^[lpb]' stdout | cat first - |
    awk '{ if ($1 in at) { off = $2 / at[$1] - 1; near += off * off < 1e-8 } at[$1] = $2 } END { print near }')" = 3 ]
run 1 eval --model straight --data "$dir/tiny_val_*.bin" --seq 33
check "--seq past the block size" says "--seq 33 is longer than the block size 32" stderr
run 1 eval --model straight --data "$dir/tiny_val_*.bin" --stride 33
refused "--stride 33 is longer than the window of 32 tokens"

# figure NAME FILE: a number of a JSON file that eval wrote, the first of that name.
figure() { sed -n "s/.*\"$1\": \[*\([^],} ]*\).*/\1/p" "$2" | head -1; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && (a - b) ^ 2 < 1e-8 * (1 + b ^ 2)) }'; }

run 0 eval --model straight --data "$dir/tiny_*.bin" --seq 16 --stride 5 --json strided.json
check "strided: every token but the first is scored once" [ "$(figure tokens strided.json)" -eq 16 ]
check "strided: in all" [ "$(awk '$1 == "tokens" { print $2 }' stdout)" -eq $((tokens - 1)) ]
run 0 eval --model straight --data "$dir/tiny_*.bin" --windows 7 --seed 1 --json first.json
check "random windows: as many as asked for" [ "$(grep -c '"start"' first.json)" -eq 7 ]
check "random windows: whole ones" [ "$(awk '$1 == "tokens" { print $2 }' stdout)" -eq $((7 * 32)) ]
run 0 eval --model straight --data "$dir/tiny_*.bin" --windows 7 --seed 1 --batch 2 --json second.json
starts() { grep -o '"start": [0-9]*' "$1"; }
check "the same seed, the same windows" [ "$(starts first.json)" = "$(starts second.json)" ]
run 0 eval --model straight --data "$dir/tiny_*.bin" --windows 7 --seed 2 --json second.json
check "another seed, other windows" [ "$(starts first.json)" != "$(starts second.json)" ]
run 1 eval --model straight --data "$dir/tiny_val_*.bin" --json nowhere/x.json
refused "--json nowhere/x.json cannot be written"
# standard output stays what it is, whatever it goes to
mkdir links
ln -s /dev/stdout links/stdout
"$binary" eval --model straight --data "$dir/tiny_*.bin" --windows 7 --seed 1 --json links/stdout >shown 2>stderr
check "--json to standard output, a file: $(cat stderr)" [ $? -eq 0 -a "$(ls links)" = stdout ]
check "the JSON first, then the figures" \
    [ "$(head -n "$(wc -l <first.json)" shown)" = "$(cat first.json)" -a "$(sed -n '$p' shown | cut -c1-5)" = speed ]
"$binary" eval --model straight --data "$dir/tiny_*.bin" --windows 7 --seed 1 --json links/stdout 2>stderr | cat >piped
check "--json to standard output, a pipe" [ "$(grep -v '^speed' shown)" = "$(grep -v '^speed' piped)" ]
run 1 eval --model straight --data "$dir/text.txt" --json bad.json
check "nothing written where the data is wrong" [ ! -e bad.json -a ! -e bad.json.tmp ]

# ---------------------------------------------------------------------------------------------
# Tokenizers that may not be the model's

# warned TEXT: after a run that went well: a line on stderr with the text.
warned() { check "a line says '$1': $(cat stderr)" [ "$(grep -c -F -e "$1" stderr)" -eq 1 ]; }
mkdir beside lone.d
cp tiny_val_000000.bin beside/x.bin
printf '#version: 0.2\n' >beside/vocab.bpe
run 0 eval --model straight --data "$dir/beside/*.bin"
warned "beside the shards stands $dir/beside/vocab.bpe of CRC-32 "
run 0 eval --model straight --data "$dir/beside/*.bin" --tokenizer beside/vocab.bpe
warned "was trained with the tokenizer $dir/vocab.bpe of CRC-32 00000000, and beside/vocab.bpe has "
check "and no other: $(cat stderr)" [ "$(grep -c 'learned$' stderr)" -eq 1 ]
run 0 sample --model straight --tokens 3 --tokenizer beside/vocab.bpe
warned "was trained with the tokenizer"
run 0 --init straight --data "$dir/beside/*.bin" --steps 0 --out warned --quiet
warned "straight/step_00000006/model.safetensors was trained with the tokenizer"
run 0 $model --tokenizer vocab.bpe --data "$dir/beside/*.bin" --steps 0 --val-every 0 --out warned2 --quiet
warned "beside the shards stands"
{ header 20240520 1 99; little 2 $(seq 300 398); } >lone.d/x.bin
wide="--layers 1 --heads 2 --channels 16 --block-size 32 --batch 2 --total-batch 128"
run 0 $wide --vocab-size 515 --data lone.d/x.bin --steps 0 --out wide --quiet
check "nothing is said where nothing is known" empty stderr
run 0 eval --model wide --data lone.d/x.bin
warned "no bits/byte: wide/step_00000000/model.safetensors names no tokenizer: give --tokenizer FILE"
run 0 eval --model wide --data lone.d/x.bin --tokenizer vocab.bpe
warned "the shards hold the id 398, and the tokenizer vocab.bpe has 257: if they are made with another"
check "half of the vocabulary and more is known: $(cat stderr)" [ "$(grep -c 'learned$' stderr)" -eq 1 ]
run 0 $wide --vocab-size 515 --data lone.d/x.bin --tokenizer vocab.bpe --steps 0 --out wide2 --quiet
warned "the shards hold the id 398"
run 0 $wide --vocab-size 516 --data lone.d/x.bin --steps 0 --out wide3 --quiet
run 0 sample --model wide3 --tokenizer vocab.bpe --tokens 3
warned "the tokenizer vocab.bpe has 257 tokens, the vocabulary of wide3/step_00000000/model.safetensors 516: if"

# ---------------------------------------------------------------------------------------------
# Tasks

# nats TEXT: of all tokens of a text but its first, by --data on a raw shard.
nats() {
    printf '%s\n' "$1" >one.txt
    rm -f one_train_000000.bin
    "$binary" tokenize --tokenizer vocab.bpe --out one --val-frac 0 one.txt >/dev/null
    n=$(printf '%s' "$1" | wc -c)
    tail -c +1025 one_train_000000.bin | head -c $((2 * n)) >one.bin
    "$binary" eval --model straight --data one.bin --json one.json >/dev/null 2>&1
    figure nats one.json
}
difference() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.9f", a - b }'; }

printf '{"text": "%s"}\n' '3 and 2 make 5' '1 and 4 make five' 'a text that is longer than the block size holds' \
    >lambada.jsonl
run 0 eval --model straight --task lambada lambada.jsonl --json task.json
check "lambada: a word's loss is that of the text less that of its beginning" \
    near "$(figure nats task.json)" "$(difference "$(nats "3 and 2 make 5")" "$(nats "3 and 2 make")")"
check "lambada: three examples" [ "$(figure examples task.json)" -eq 3 ]
check "lambada: a long context is cut to what fits before ten tokens" [ "$(grep -c '"context": 23,' task.json)" -eq 1 ]
check "lambada: a share with its interval" grep -q '^accuracy_within_10 .*(95%: ' stdout
grep '^[al]' stdout >first
run 0 eval --model straight --task lambada lambada.jsonl --batch 1
check "lambada: the batch does not matter" [ "$(cat first)" = "$(grep '^[al]' stdout)" ]

printf '{"ind": 4, "ctx": "2 and 2", "label": 1, "endings": ["make 4", "is", "and 3 and", "makes"]}\n' >swag.jsonl
printf '{"ctx": "9 and 2", "label": 0, "endings": ["make 11", "x", "y", "z"]}\n' >>swag.jsonl
run 0 eval --model straight --task hellaswag swag.jsonl --json task.json
check "hellaswag: an ending's loss" \
    near "$(figure nats task.json)" "$(difference "$(nats "2 and 2 make 4")" "$(nats "2 and 2")")"
check "hellaswag: tokens of each ending" says '"tokens": [7, 3, 10, 6]' task.json
grep '^[al]' stdout >first
run 0 eval --model straight --task hellaswag swag.jsonl --batch 4
check "hellaswag: the batch does not matter" [ "$(cat first)" = "$(grep '^[al]' stdout)" ]

awk 'BEGIN { for (k = 1; k <= 20; k++) print k " " k " and 1."
             print "21 so XXXXX is\t7\t\t1|2|3|4|5|6|7|8|9|10\n" }' >cbt.txt
run 0 eval --model straight --task cbt cbt.txt --json task.json
check "cbt: the passage is cut to the block size" says '"context": 28,' task.json
check "cbt: what stands after the gap is scored" says '"tokens": [4, 4, 4, 4, 4, 4, 4, 4, 4, 5]' task.json
check "cbt: the answer's place" says '"label": 6,' task.json

for task in lambada hellaswag cbt; do
    run 1 eval --model straight --task $task text.txt --json bad.json
    refused "text.txt line 1"
    run 1 eval --model straight --task $task nowhere.jsonl --json bad.json
    refused "nowhere.jsonl"
done
head -c 70 swag.jsonl >cut.jsonl
run 1 eval --model straight --task hellaswag cut.jsonl --json bad.json
refused "cut.jsonl line 1, byte 70"
run 1 eval --model straight --task lambada lambada.jsonl --tokenizer other.bpe --json bad.json
refused "other.bpe has 258 tokens"
run 1 eval --model straight --task lambada lambada.jsonl --seq 9 --json bad.json
refused "lambada.jsonl line 1: 10 tokens after the context, but a text holds 9"
run 1 eval --model straight --task lambada lambada.jsonl --seq 33 --json bad.json
refused "--seq 33 is longer than the block size 32"
run 1 eval --model straight --task lambada lambada.jsonl --json "$dir"
refused "is a folder: name a file"
check "nothing written where a task fails" [ ! -e bad.json -a ! -e bad.json.tmp ]

# ---------------------------------------------------------------------------------------------
# Inspect. What stands in its file test_exchange.sh compares with PyTorch.

run 0 inspect --model straight --text '3 and 2 make 5' --out seen.safetensors
cp seen.safetensors first
cp stdout first.out
check "inspect counts the tokens" grep -q '^tokens  *14$' stdout
check "its loss is that of eval" near "$(awk '$1 == "loss" { print 13 * $2 }' first.out)" "$(nats '3 and 2 make 5')"
printf '3 and 2 make 5' >seen.txt
run 0 inspect --model straight --text @seen.txt --out seen.safetensors
check "inspect --text @FILE" cmp -s seen.safetensors first
"$binary" inspect --model straight --text - --out seen.safetensors <seen.txt >stdout 2>stderr
check "inspect --text -" cmp -s seen.safetensors first
run 0 inspect --model zero/step_00000000 --text '3 and 2 make 5' --out seen.safetensors
check "an untrained model shows something else" differ seen.safetensors first
run 0 inspect --model straight --text x --out seen.safetensors
check "one token: no loss" [ "$(grep -c '^loss' stdout)" -eq 0 ]
printf '%0100d' 0 >long.txt
run 0 inspect --model straight --text @long.txt --out seen.safetensors
check "a longer text is cut, and that is said" says "the text has 100 tokens: the first 32" stderr
check "as many tokens as the block size" grep -q '^tokens  *32$' stdout
: >empty.txt
rm -rf seen.safetensors look
mkdir look
for wrong in "--text @ --out look/x~--text @ names no file" "--text @nowhere --out look/x~nowhere" \
    "--text @empty.txt --out look/x~--text @empty.txt is empty" \
    "--text x --out look~--out look is a folder: name a file" "--text x --out nowhere/x~nowhere/x" \
    "--text x --out look/x --tokenizer other.bpe~other.bpe has 258 tokens"; do
    run 1 inspect --model straight ${wrong%~*}
    check "one line says '${wrong#*~}'" says "${wrong#*~}" stderr
    check "nothing on stdout" empty stdout
done
look() (trap '' XFSZ; ulimit -f 2; exec "$binary" inspect --model straight --text @long.txt --out look/x)
if look >stdout 2>stderr; then
    check "an inspection that cannot be written: status 1" false
fi
check "it names the file" says "look/x" stderr
check "nothing written where inspect fails" empty_dir look
cp straight/step_00000006/model.safetensors kept.safetensors
for kept in kept.safetensors seen.txt; do
    cp $kept first.kept
    run 1 inspect --model kept.safetensors --tokenizer vocab.bpe --text x --out $kept
    refused "--out $kept is there already and is none of inspect's files"
    check "$kept stands as it was" cmp -s $kept first.kept
done
run 1 info first
refused "transformer.wte.weight' is missing"

run 0 info straight
check "info tells the sizes" says "1 layers, 2 heads, 16 channels, block size 32, vocabulary 257" stdout
check "info tells the step" says "6 updates, 768 tokens" stdout
check "info tells the tokenizer" says "vocab.bpe, CRC-32 00000000" stdout

# ---------------------------------------------------------------------------------------------
# The starter, from the repository's folder

if [ -f "$repo/data/starter/vocab.bpe" ]; then
    cd "$repo" || exit 1
    "$binary" --steps 1 --layers 1 --heads 2 --channels 16 --batch 2 --seq 16 --total-batch 32 --val-batches 1 \
        --sample-tokens 4 --vocab-size 2304 --out "$dir/starter" >"$dir/stdout" 2>"$dir/stderr"
    check "the starter data is found from the repository: $(cat "$dir/stderr")" [ $? -eq 0 ]
    check "its tokenizer too" says "data/starter/vocab.bpe" "$dir/stdout"
    cd "$dir" || exit 1
else
    skip "data/starter is not there"
fi

finish
