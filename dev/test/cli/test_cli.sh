#!/bin/sh
# test_cli.sh BINARY: the commands as a user runs them: help, training, resuming, a signal, sample, eval,
# info. Models have a few thousand parameters; tokens are bytes. Invalid input: test_refusals.sh.

. "$(dirname "$0")/../lib.sh"
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive

differ() { ! cmp -s "$1" "$2"; }
same_checkpoint() { cmp -s "$1/model.safetensors" "$2/model.safetensors" &&
                    cmp -s "$1/optimizer.safetensors" "$2/optimizer.safetensors"; }
# Steps, tokens, losses, learning rate and gradient norm, without the validation losses.
training_of() { cut -d, -f1-3,5,6 "$1/log.csv"; }
# warns "ARGUMENTS…" FRAGMENT…: the binary succeeds and prints one warning with all fragments.
# shellcheck disable=SC2086
warns() {
    prints "$@"
    check "one warning: $(cat stderr)" [ "$(grep -c "^$(basename "$binary"): " stderr)" -eq 1 ]
}
# equals "ARGUMENTS…" FILE TEXT: the binary succeeds and prints FILE
equals() {
    run $1
    check "$3" cmp -s stdout "$2"
}

# ---- Text, tokenizer, shards -----------------------------------------------------------------------------------------

: >vocab.bpe
awk 'BEGIN { for (i = 0; i < 120; i++) { for (j = 0; j < 6; j++) printf "%d and %d make %d. ", i, j, i + j
             print "\n<|endoftext|>" } }' >text.txt
run tokenize --tokenizer vocab.bpe --out tiny --val-frac 0.2 text.txt
[ $failed -eq 0 ] || finish
sizes="--layers 1 --heads 2 --channels 16 --block-size 32"
model="$sizes --vocab-size 257 --batch 2 --total-batch 128"
data="--data $dir/tiny_train_*.bin --tokenizer $dir/vocab.bpe"
small="$model $data --warmup 1"
fast="--lr 0.003 --dtype fp32"
tiny="$small $fast --val-windows 4 --sample-tokens 8"
bare="--save-every 0 --val-every 0 --sample-every 0"
set -f   # the trainer expands patterns itself
# shellcheck disable=SC2086  # the lists above must be split into words
{
# ---- Help ------------------------------------------------------------------------------------------------------------

for command in train sample eval vocab tokenize info; do
    run $command --help
    check "$command --help: nothing on stderr" empty stderr
    check "$command --help: at most 80 columns" [ -z "$(sed 's/[×…]/x/g' stdout | awk 'length > 80')" ]
done
prints --help "vocab --size N" "tokenize --tokenizer FILE" "(default: 128 tokens)"
prints "--preset tost-base --help" "(default: 491520 tokens)"
prints "$sizes $data --batch 3 --steps 0 $bare --out rounded" "4128 tokens per step"
prints "train --help" "--steps N                     total number of steps"
check "train --help begins with three examples" [ "$(head -n 10 stdout | grep -c '^  # ')" -eq 3 ]

# ---- Runs and --resume -----------------------------------------------------------------------------------------------

run $tiny --steps 6 --save-every 3 --val-every 2 --sample-every 2 --out straight
check "nothing on stderr" empty stderr
n='[0-9.e-]+'
check "operations per token, no peak rate of a CPU" grep -Eq "^compute    $n MFLOP per token\$" stdout
check "no FLOPs utilization on a CPU" grep -Eq '^step 6/6 .* tok/s  [0-9.]+ ms  lr ' stdout
check "a sample" says 'sample after step 6' stdout
check "the log: a row per step, from 1, with a validation in every second" \
    [ "$(sed 1d straight/log.csv | awk -F, '{ printf "%d,%d,%d ", $1, $2, $4 != "" }')" = \
    "1,128,0 2,256,1 3,384,0 4,512,1 5,640,0 6,768,1 " ]

cp -R straight halfway
rm -rf halfway/step_00000006
run --resume --out halfway
check "a resumed run ends with the same parameters and Adam moments" \
    same_checkpoint straight/step_00000006 halfway/step_00000006
check "a resumed run has the same log" same_log straight/log.csv halfway/log.csv
cp -R straight damaged
rm -r damaged/step_00000006
sed -i 3d damaged/log.csv
cp damaged/log.csv before
refuses 1 "tost --resume --out damaged --quiet" "damaged/log.csv: line 3 is not the row of step 2" "move the file away"
check "the log is unchanged" cmp -s before damaged/log.csv
rm damaged/log.csv
run --resume --out damaged --quiet
check "the new log begins at the step" [ "$(sed 1d damaged/log.csv | cut -d, -f1 | tr '\n' ' ')" = "4 5 6 " ]
cp -R straight lacking
sed -i 's/transformer.ln_f.weight/transformer.ln_f.weighs/' lacking/step_00000006/model.safetensors
refuses 1 "tost eval --model lacking --data $dir/tiny_val_*.bin" "lacking/step_00000006" "transformer.ln_f.weight"
prints "--resume --out halfway" "is finished"
run --resume --out halfway --steps 8
check "a larger --steps continues the log" [ "$(wc -l <halfway/log.csv)" -eq 9 ]
head -c 999 straight/step_00000006/model.safetensors >halfway/step_00000008/model.safetensors
head -c 999 straight/step_00000006/optimizer.safetensors >halfway/step_00000006/optimizer.safetensors
refuses 1 "tost --resume --out halfway --steps 6" "move halfway/step_00000008 away"
rm -r halfway/step_00000006 halfway/step_00000008
run --resume --out halfway --steps 6 --quiet
check "--quiet: nothing on stdout" empty stdout
check "resumes from an older checkpoint" same_checkpoint straight/step_00000006 halfway/step_00000006
prints "--resume --out halfway --steps 7 --dtype bf16" "--dtype bf16 instead of fp32"
check "the start line names bf16" grep -q '^device.*bf16' stdout
run eval --model halfway --data "$dir/tiny_*.bin" --dtype bf16
run sample --model halfway --dtype bf16 --tokens 4
rm -r halfway/step_00000007
prints "--resume --out halfway --steps 7 --lr 0.004 --schedule linear" "--lr 0.004 instead of 0.003" \
    "--schedule linear instead of cosine"
run $tiny --steps 0 --out zero
check "--steps 0 validates" says 'validation after step 0' stdout
run --resume --out zero --steps 6
check "a run resumed at step 0 equals a fresh one" [ "$(training_of zero)" = "$(training_of straight)" ]

# Pairs of runs that must be equal: the second is stopped halfway and resumed.
# halves NAME OPTIONS…: writes NAME and NAME2, of 4 steps
halves() {
    name=$1
    shift
    for out in $name ${name}2; do run "$@" --steps 4 --save-every 2 --out $out --quiet; done
    rm -r ${name}2/step_00000004
    run --resume --out ${name}2
    check "$*: a resumed run equals an uninterrupted one" same_checkpoint $name/step_00000004 ${name}2/step_00000004
}
halves even $small --membership uniform --conv 0
halves convolved $tiny --conv 4 --memory 1 --chunk 20
check "train prints convolutions and memory" says "convolutions, memory" stdout
halves no_positions $small --positions none --chunk 20

# Options that change the model
prints "info even" "uniform membership"
refuses 1 "tost --resume --out even --membership learned --steps 5" "--membership learned" "uniform"
prints "info no_positions" "no positions"
refuses 1 "tost --init no_positions --positions learned --out none" "--positions learned" "none in no_positions"
refuses 1 "tost --init straight --positions none --out none" "--positions none" "learned in straight"
prints "eval --model no_positions --data $dir/tiny_val_*.bin --seq 100 --by-position" "65-100"
printf '{"context": "1", "answer": 0, "choices": [" 2", " 3 4"]}\n' >task.jsonl
run eval --model no_positions --task task.jsonl --seq 2147483647 --batch 1
refuses 1 "tost --resume --out convolved --conv 0 --steps 5" "--conv 0" "4 in convolved"
refuses 1 "tost --init convolved --conv 0 --out none" "--conv 0" "4 in convolved"
refuses 1 "tost --resume --out even --conv 4 --steps 5" "--conv 4" "0 in even"

# Ends of runs, and the best checkpoint
run $small --lr 0.3 --steps 6 --val-every 1 --keep 1 --keep-best --out best
grep -o 'best [0-9.]* after step [0-9]*' stdout | tail -1 >best.line
prints "info best/best" "after step $(sed 's/.* //' best.line)"
prints "info best" "nats/token after step 6"
run sample --model best/best --tokens 4
prints "$small --lr 0.3 --steps 2 --val-every 1 --save-every 0 --keep-best --out only" "saved      only/best"
refuses 1 "tost sample --model only" "only: no complete checkpoint"
prints "$tiny --steps 3 --val-every 0 --out best --overwrite" "the old run is now in best.1"
check "--overwrite renames the old run with its best checkpoint" [ -e best.1/best -a ! -e best/best ]
prints "$tiny --steps 50 --val-every 1 --stop-at-val 99 --max-time 1h --out early" \
    "stopped by --stop-at-val after step 1 of 50"
check "--stop-at-val saves" [ -f early/step_00000001/optimizer.safetensors ]
execute tost $tiny --steps 1000k --val-every 0 --max-time 0.2s --out early --overwrite
check "--max-time: exit status $status, expected 75" [ $status -eq 75 ]
check "--max-time saves" says "saved      early/step_" stdout
check "--max-time says so" says "stopped by --max-time after step " stdout
mkdir killed && cp straight/log.csv killed/
refuses 1 "tost $tiny --steps 6 --out killed" "killed" "already contains a run" "--overwrite"

# The best checkpoint is the same if the run is interrupted; a run that is worse than the untrained model has none
for out in better better2; do
    execute tost $model $data --lr 0.01 --warmup 0 --val-every 2 --keep-best --save-every 1 --steps 6 --sample-every 0 --out $out \
        $([ $out = better ] || echo --max-time 0.001)
done
run --resume --out better2
check "a resumed run has the same best checkpoint" same_checkpoint better/best better2/best
run $model $data --lr 3 --warmup 0 --val-every 2 --keep-best --save-every 1 --steps 6 --sample-every 0 --out worst
check "of a run that is worse than the untrained model, the best is that of a step" \
    grep -q '"step":"[246]"' worst/best/model.safetensors
run --init straight $data --lr 3 --steps 3 --val-every 1 --keep-best --sample-every 0 --out best_init
check "the best checkpoint of --init may be that of step 0: $(ls best_init)" says '"step":"0"' best_init/best/model.safetensors
rm -r best_init/best
run --resume --out best_init --steps 4
check "also in a resumed run: a worse one is not saved" [ ! -e best_init/best ]

# A disk that is too small for a checkpoint
mkdir disk
on_disk() { unshare -rm sh -c 'mount -t tmpfs -o size=$1 none disk && shift && exec "$@"' sh "$@"; }
if on_disk 64k true 2>/dev/null; then
    refuses 1 "on_disk 64k $binary $small --steps 2 --quiet --out disk/run" "--out disk/run" "No space left" "needs" "KiB" \
        "--save-every 0"
    execute on_disk 64k "$binary" $small --steps 2 $bare --quiet --out disk/run
    check "--save-every 0 needs no space: $(cat stderr)" [ $status -eq 0 ]
else
    skip "small disks: they cannot be mounted here"
fi

# A copy of a run by hard links
cp -R straight linked && rm linked/log.csv linked/step_00000006/model.safetensors
ln straight/log.csv linked/log.csv
cp straight/log.csv own.csv
echo important >own.txt
ln own.txt linked/run.lock
refuses 1 "tost --resume --out linked --steps 4 --quiet" "linked/log.csv has other hard links" "copy it"
check "the log of the original is unchanged" cmp -s own.csv straight/log.csv
check "a file that is linked as run.lock is unchanged" [ "$(cat own.txt)" = important ]
check "the lock is removed" [ ! -e linked/run.lock ]

# Defaults from the data
mkdir shards && cp tiny_train_000000.bin vocab.bpe shards/
for given in "$data" "--data $dir/sh*ds/tiny_train_*.bin"; do
    prints "$sizes --batch 2 --total-batch 64 $given --steps 1 --overwrite --out own" "vocabulary 320,"
done
refuses 1 "tost $model --data sh*ds/tiny_train_*.bin --steps 1 --keep-best --out new" "--keep-best" "--val-data"
# What does not change a run
run $small $fast $bare --steps 6 --out plain
check "--save-every 0 saves nothing" [ -z "$(ls plain | grep step_)" ]
check "validation and samples do not change training" [ "$(training_of plain)" = "$(training_of straight)" ]
run $small $fast $bare --steps 6 --out seeded --seed 7
check "another seed gives another run" differ seeded/log.csv straight/log.csv
run --init straight --steps 0 $data --out again --quiet
for name in again straight; do
    run eval --model $name --data "$dir/tiny_val_*.bin"
    grep '^loss' stdout >$name.loss
done
check "--init starts from the file's weights" cmp -s again.loss straight.loss
run $small --steps 1 --quiet
prints "info" "out/starter-001/step_00000001/model.safetensors" "written by  $("$binary" --version | cut -d, -f1)"
run --resume --steps 2 --quiet
check "--resume alone takes the newest run" [ -f out/starter-001/step_00000002/model.safetensors ]

# ---- Sample ----------------------------------------------------------------------------------------------------------

sample="sample --model straight --tokens 40 --prompt 7 --seed"
run $sample 5
cp stdout first
check "the text starts with the prompt" [ "$(head -c 1 first)" = 7 ]
equals "$sample 5" first "the same seed gives the same text"
run $sample 6
check "another seed gives another text" differ stdout first
printf 7 >prompt
equals "sample --model straight/step_00000006 --prompt @prompt --tokens 40 --seed 5" first "--prompt @FILE"
"$binary" sample --model straight --prompt - --tokens 40 --seed 5 <prompt >stdout 2>stderr
check "--prompt -" cmp -s stdout first
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
printf '7 and\r\n\nno {object}\n \n' | "$binary" sample --model straight --prompts - --tokens 1 >stdout 2>stderr
check "--prompts of plain text, without blank lines" [ $? -eq 0 -a "$(wc -l <stdout)" -eq 2 -a "$(grep -c '"prompt": "\(7 and\|no {object}\)", "text"' stdout)" -eq 2 ]
run sample --model straight --temperature 0 --tokens 70 --prompt 1
cp stdout first
equals "sample --model straight --temperature 0 --tokens 70 --prompt 1 --seed 99" first \
    "greedy text does not depend on the seed, also past the block size"
run sample --model straight --prompt "$(printf '\377\376')" --tokens 3
printf '\377\376' >prompt
head -c 2 stdout >first
check "a prompt of any bytes is printed unchanged" cmp -s first prompt
run sample --model straight --prompt '7 and ' --tokens 3
check "a prompt that ends in a space gets a note" grep -q 'ends in a space' stderr
printf '7\n7 \n\n7 and 2 and 3 and 4 and \n' >spaces.txt   # of two groups
run sample --model straight --prompts spaces.txt --tokens 3
check "so does the first of a file: $(cat stderr)" [ "$(grep -c 'in line 2 ends in a space' stderr)" -eq 1 ]
run sample --model straight --prompt '7\n' --tokens 3
check "a note about \\n in a prompt: $(cat stderr)" [ "$(grep -c -e "--prompt: .* \$'.n'" stderr)" -eq 1 ]
run sample --model straight --prompt 7 --stop . --stop '\n' --tokens 3
check "a note about \\n in --stop: $(cat stderr)" [ "$(grep -c -e "--stop: .* \$'.n'" stderr)" -eq 1 ]
printf '7\n7<|endoftext|>\n<|endoftext|>\n' >ends.txt
run sample --model straight --prompts ends.txt --tokens 3
check "a note about <|endoftext|> inside a line: $(cat stderr)" \
    [ "$(grep -c 'in line 2 has <|endoftext|> inside' stderr)" -eq 1 ]
run sample --model straight --temperature 0 --tokens 20
sed '1s/^/<|endoftext|>/' stdout >first
equals "sample --model straight --temperature 0 --tokens 20 --prompt <|endoftext|>" first \
    "a line <|endoftext|> is the token"
check "without a note: $(cat stderr)" [ "$(wc -l <stderr)" -eq 2 ]

# A text depends on the seed, the id or place of its prompt, and the number of the sample.
texts() { sed 's/.*"text": //' stdout; }
printf '7\n8 and\n7\n' | "$binary" sample --model straight --prompts - --tokens 30 >stdout 2>stderr
texts >first
printf '\n \n7\n\n8 and\n7\n' | "$binary" sample --model straight --prompts - --tokens 30 >stdout 2>stderr
texts >second
check "blank lines do not change the texts" cmp first second
check "the place of a prompt does" [ "$(sed -n 1p first)" != "$(sed -n 3p first)" ]
printf '{"prompt": "%s", "id": "%s"}\n' 8 a 7 b 7 c | "$binary" sample --model straight --prompts - --tokens 30 \
    >stdout 2>stderr
texts | sed -n 2p >first
check "the id of a prompt does" [ "$(cat first)" != "$(texts | sed -n 3p)" ]
printf '{"prompt": "7", "id": "b"}\n' | "$binary" sample --model straight --prompts - --tokens 30 >stdout 2>stderr
texts >second
check "with an id, its place does not" cmp first second

# To a terminal, control bytes are escaped; to a pipe they are not.
printf 'a\033[2J\t\302\233bc\n\303\251' >prompt
run sample --model straight --prompt @prompt --tokens 1
check "a pipe gets the bytes of the text" [ "$(head -c 13 stdout | cksum)" = "$(cksum <prompt)" ]
if script -qec true typescript </dev/null >/dev/null 2>&1; then
    script -qec "$binary sample --model straight --prompt @prompt --tokens 1 2>/dev/null" typescript </dev/null >stdout
    check "a terminal gets escapes: $(cat stdout)" says "$(printf 'a\\x1b[2J\t\\xc2\\x9bbc')" stdout
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
run sample --model straight --tokens 1 --prompt @prompt
check "a few broken bytes of a long prompt: a warning" says "1 of 1501 bytes (0.0666%) are NUL or not UTF-8" stderr
cp -R straight moved
run sample --model moved/ --tokens 3
run sample --model "$dir/moved/step_00000006" --tokens 3

# ---- Eval ------------------------------------------------------------------------------------------------------------

# figure NAME FILE: the first number of that name in a JSON file.
figure() { sed -n "s/.*\"$1\": \[*\([^],} ]*\).*/\1/p" "$2" | head -1; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && (a - b) ^ 2 < 1e-8 * (1 + b ^ 2)) }'; }
scored() { awk '$1 == "tokens" { print $2 }' stdout; }
tokens=$((($(wc -c <tiny_train_000000.bin) + $(wc -c <tiny_val_000000.bin) - 2048) / 2))
for batch in 3 5; do
    run eval --model straight --data "$dir/tiny_*.bin" --seq 7 --batch $batch --json $batch.json
    check "every token but the first is scored once" [ "$(scored)" -eq $((tokens - 1)) ]
done
check "the batch size changes only rounding" near "$(figure loss 3.json)" "$(figure loss 5.json)"
run eval --model straight --data "$dir/tiny_*.bin" --seq 16 --stride 5 --json strided.json
check "strided: every token but the first is scored once" [ "$(figure tokens strided.json)" -eq 16 ]
check "strided: and in the total" [ "$(scored)" -eq $((tokens - 1)) ]
random="eval --model straight --data $dir/tiny_*.bin --windows 7"
run $random --seed 1 --json first.json
check "random windows: the requested number" [ "$(grep -c '"start"' first.json)" -eq 7 ]
check "random windows: of full length" [ "$(scored)" -eq $((7 * 32)) ]
starts() { grep -o '"start": [0-9]*' "$1"; }
run $random --seed 1 --batch 2 --json second.json
check "the same seed, the same windows" [ "$(starts first.json)" = "$(starts second.json)" ]
run $random --seed 2 --json second.json
check "another seed, other windows" [ "$(starts first.json)" != "$(starts second.json)" ]
run $random --seed 2 --json /dev/stdout
check "JSON and results in the same file" [ "$(sed '/^}/q' stdout; scored)" = "$(cat second.json; scored)" ]

# Loss by position, which exchange.py compares with PyTorch
of_json() { sed -n 's/.*"first".*"tokens": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' "$1"; }
for variant in "--batch 3" "--batch 3 --chunk 4" "--chunk 1" "--chunk 400"; do
    run eval --model straight --data "$dir/tiny_val_*.bin" --seq 11 $variant --by-position --json position.json
    [ "$variant" != "--batch 3" ] || grep -v '^speed' stdout >first
    grep -v '^speed' stdout >got
    check "--by-position $variant: the report" cmp -s first got
done
check "--by-position: five bins" [ "$(of_json position.json | wc -l)" -eq 5 ]
run eval --model straight --data "$dir/tiny_val_*.bin" --seq 11 --stride 4 --by-position --json position.json
check "--by-position --stride: later windows score only their last positions" \
    [ "$(of_json position.json | cut -d' ' -f1 | head -n 3 | tr '\n' ' ')" = "1 1 2 " ]

run eval --model straight --data "$dir/tiny_val_*.bin" --seq 11 --limit 3
check "eval --limit" [ "$(sed -n 's/^tokens *//p' stdout)" -eq 33 ]
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

# ---- A checkpoint has its tokenizer, and --init inherits it ----------------------------------------------------------

cp -R straight copied
run $model --data "$dir/tiny_train_*.bin" --steps 0 --val-every 0 --out finder
check "train finds the vocabulary that tokenize wrote" says "tiny_vocab.bpe: 257 tokens" stdout
run --init straight --data "$dir/tiny_train_*.bin" --steps 1 --val-every 0 --out heir --quiet
prints "--init straight --data $dir/tiny_train_*.bin --epochs 2 --batch 1 --total-batch 64 --dtype bfloat16 --val-every 0 --out epochs" \
    "lr 0.0003, " " to 3e-05;" " tokens, 2.0"
prints "--init straight --data $dir/tiny_train_*.bin --steps 1 --lr 0.5 --val-every 0 --out given" "lr 0.5, "
run --init straight $data --batch 2 --total-batch 128 --steps 3 --lr 10 --warmup 0 --keep-best --out worse --quiet
prints "info worse/best" "after step 0"   # training made it worse
run $small $fast --min-lr-frac 0 --steps 2 --val-every 0 --sample-every 0 --out ended --quiet
refuses 1 "tost --init ended $data --steps 2 --out none" "ended" "learning rate is 0" "--lr"
run --init ended $data --steps 0 --val-every 0 --out still --quiet
check "without a step, the learning rate is not 0" [ "$("$binary" info still | awk '$1 == "lr" { print ($2 > 0) }')" = 1 ]
run $tiny --steps 3 --save-every 1 --keep 1 --val-every 0 --out pruned
check "a pruned checkpoint leaves nothing: $(ls pruned)" [ "$(echo $(ls pruned))" = "log.csv step_00000003" ]
# Defaults from --init, and its optimizer's state
never="--val-every 0 --sample-every 0"
run $sizes --vocab-size 257 $data --seq 16 --batch 3 --total-batch 96 --lr 0.01 --steps 3 $never --out base --quiet
prints "--init base $data --steps 2 $never --out same" "96 tokens per step: 2 micro-batches × 3 sequences × 16 tokens"
prints "--init base $data --seq 8 --steps 0 --val-every 0 --out same --overwrite" "96 tokens per step: 4 micro-batches × 3 "
prints "--init base $data --parts 2 --steps 0 --val-every 0 --out same --overwrite" "96 tokens per step: 2 micro-batches × 3 "
prints "--init base $data --total-batch 64 --steps 0 --val-every 0 --out same --overwrite" "2 micro-batches × 2 "
for init in "--init base --keep-optimizer" "--init base --memory 1"; do
    run $init $data --steps 2 $never --out tuned --overwrite
    run --resume --out tuned --steps 3 --quiet
    prints "info tuned" "init-file      base/step_00000003/model.safetensors"
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
# A mixture of two sources
mixed="$model --tokenizer $dir/vocab.bpe $fast --steps 6 --save-every 3 --val-every 3 --sample-every 0"
cp tiny_train_000000.bin old_train_000000.bin
cp tiny_val_000000.bin old_val_000000.bin
prints "$mixed --data $dir/tiny_train_*.bin:3 --data $dir/old_train_*.bin:1 --out mixture" \
    "tiny_train_*.bin: 1 shard, " ", 75% of the samples, " "old_train_*.bin: 1 shard, " ", 25% of the samples, " \
    "validation $dir/tiny_val_*.bin …: 2 shards"
prints "$sizes $bare --batch 2 --total-batch 128 --data $dir/tiny_train_*.bin:3 $dir/old_train_*.bin:1 --epochs 2" \
    ", 3.0" " epochs, " ", 1.0"
check "info shows its sources" sh -c "\"$binary\" info mixture | grep -q 'data  *.*train_\*.bin:3 .*train_\*.bin:1$'"
cp -R mixture mixture2
rm -rf mixture2/step_00000006
run --resume --out mixture2 --quiet --data "$dir/tiny_train_*.bin:0.75" "$dir/old_train_*.bin:0.25"
check "a mixture is resumed, with the same proportions" same_log mixture/log.csv mixture2/log.csv

# Ids that do not fit the vocabulary
mkdir ids
one="$sizes $bare --batch 2 --total-batch 128 --steps 1"
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
rm -r ids

# What is read of the data
mkdir few
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
mkdir val_x && cp few/long_1.bin val_x
run $few --data val_x/long_1.bin --steps 1
check "no warning of a folder named val: $(cat stderr)" empty stderr

# A pattern that tokenize prints
one="$sizes $bare --batch 2 --total-batch 128 --steps 1"
mkdir 'corpus [v1]'
execute "$binary" tokenize --tokenizer vocab.bpe --val-frac 0 --out 'corpus [v1]/x' text.txt
printed=$(sed -n 's/: [0-9]* tokens, shards.*//p' stdout)
execute "$binary" $one --data "$printed"
check "--data finds '$printed': $(cat stderr)" says "corpus [v1]/x_train_*.bin: 1 shard" stdout

cp tiny_train_000000.bin more_train_000000.bin
cp tiny_val_000000.bin more_val_000000.bin
both="$dir/tiny_train_000000.bin $dir/more_train_000000.bin"
prints "$model --steps 1 --sample-every 0 --data $both --out both" "tiny_train_000000.bin …: 2 shards" \
    "tiny_val_000000.bin …: 2 shards"
run --resume --out both --steps 2 --quiet
prints "eval --model both --data $both --seq 8" "shards: 2;"
# A loss for each shard, of the windows that begin in it
loss_of() { sed -n "s/^loss  *\([0-9.]*\) nats.*/\1/p" stdout; }
run eval --model both --data few/long_1.bin --seq 9
check "one shard: $(cat stdout)" [ -z "$(grep '^shard' stdout)" ]
want="shard       $(loss_of) nats/token, 99 tokens in windows that begin in few/long_1.bin"
tail -c 200 few/long_1.bin >few/more_val_000000.bin
prints "eval --model both --data few/long_1.bin few/more_val_000000.bin --seq 9" "$want" \
    " nats/token, 100 tokens in windows that begin in few/more_val_000000.bin"
run sample --model copied --tokens 40 $(printf ' --stop %d' 0 1 2 3 4 5 6 7 8 9)
check "--stop several times: the first of them ends a text" [ -z "$(tr -cd 0-9 <stdout)" ]
unit=$(printf '\037')   # no character of a value separates it from others
run sample --model copied --tokens 40
cp stdout first
equals "sample --model copied --tokens 40 --stop $unit --stop 0${unit}1${unit}2${unit}3${unit}4${unit}5${unit}6" first \
    "a stop text may have the character 0x1f"
refuses 2 "tost sample --model copied --stop a --stop=" "--stop" "empty"
cp tiny_val_000000.bin "odd${unit}name.bin"
run eval --model copied --data "odd${unit}name.bin"
refuses 2 "tost $model --data odd${unit}name.bin --out none" "odd\x1fname.bin" "rename"
mkdir away
mv vocab.bpe tiny_vocab.bpe away
run sample --model copied --tokens 3
run sample --model heir --tokens 3
run --resume --out copied --steps 7 --save-every 7 --sample-every 7
check "a resumed run samples with it" says "sample after step 7" stdout
mv away/vocab.bpe away/tiny_vocab.bpe .
rm heir/step_00000001/vocab.bpe
refuses 1 "tost sample --model heir --tokens 3" "no vocab.bpe" "--tokenizer"
run sample --model heir --tokenizer vocab.bpe --tokens 3
run --resume --out heir --steps 2 --quiet
check "a resumed run without its vocab.bpe takes that of the shards" [ -e heir/step_00000002/vocab.bpe ]

# ---- Shards and tokenizers that do not fit the model -----------------------------------------------------------------

mkdir beside lone.d
cp tiny_val_000000.bin beside/x.bin
printf '#version: 0.2\n' >beside/vocab.bpe
refuses 1 "tost eval --model straight --data $dir/beside/*.bin" "$dir/beside/vocab.bpe" "CRC-32" "--tokenizer"
warns "eval --model straight --data $dir/beside/*.bin --tokenizer beside/vocab.bpe" \
    "$dir/vocab.bpe" "00000000" " beside/vocab.bpe"
refuses 1 "tost --init straight --data $dir/beside/*.bin --steps 0 --out warned --quiet" \
    "$dir/beside/vocab.bpe" "CRC-32"
refuses 1 "tost --init straight $data --val-data $dir/beside/*.bin --steps 0 --out warned --quiet" \
    "$dir/beside/vocab.bpe" "CRC-32"
shard $(seq 300 398) >lone.d/x.bin
wide="$sizes --batch 2 --total-batch 128 --data lone.d/x.bin --steps 0 --quiet --out"
run $wide wide --vocab-size 515
check "no tokenizer in checkpoint or folder: no warning" empty stderr
run sample --model wide --prompt '300 301' --tokens 4
check "then sample prints ids: $(cat stdout)" grep -Eqx '300 301( [0-9]{1,3}){4}' stdout
check "and says why: $(cat stderr)" [ "$(grep -c 'no vocab.bpe beside it; .* samples are ids' stderr)" -eq 1 ]
prints "eval --model wide --data lone.d/x.bin" "bits/byte" "wide/step_00000000/model.safetensors" "--tokenizer"
refuses 1 "tost eval --model wide --data lone.d/x.bin --tokenizer vocab.bpe" "398" "vocab.bpe" "257"

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
    check "$1: the results do not depend on the batch size" [ "$(cat first)" = "$(grep '^[al]' stdout)" ]
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
{ example "2 and 2" '" make 4", " is", " and 3 and", " makes"' 1; example "9 and 2" '" make 11", " x"' 0; } >swag.jsonl
same_task swag.jsonl " make 4" "2 and 2"
check "tokens of each choice" says '"tokens": [7, 3, 10, 6]' task.json
check "the index of the answer" says '"answer": 1,' task.json
for context in '' '<|endoftext|>\n' '<|endoftext|>'; do
    example "$context" '"3 and 4 make 7.", " 3 and"' 0 >minimal.jsonl
    run eval --model straight --task minimal.jsonl --json task.json
    grep -o '"tokens": .*' task.json >>minimal
done
check "an empty context is <|endoftext|>: $(cat minimal)" \
    [ "$(sed -n 1p minimal)" = "$(sed -n 2p minimal)" -a "$(sed -n 1p minimal)" != "$(sed -n 3p minimal)" ]
check "a note about <|endoftext|> in a text: $(cat stderr)" says "minimal.jsonl line 1 has <|endoftext|> inside" stderr

# ---- Info ------------------------------------------------------------------------------------------------------------

mkdir runs runs/empty runs/unfinished
: >runs/file
cp straight/log.csv runs/unfinished/
cp -R no_positions straight convolved best halfway runs/
cp -R straight runs/other
run --resume --out runs/other --steps 9 --val-data tiny_val_000000.bin --quiet
cp -R even runs/broken && cut_to() { head -c 999 "$1" >cut && mv cut "$1"; } && cut_to runs/broken/step_00000004/model.safetensors
run info runs/ --json runs.json
sed 1,2d stdout >table
check "info DIR: one line per run: $(cat stdout)" [ "$(awk '{ print $1 }' table | sort | tr '\n' ' ')" = \
    "best convolved halfway no_positions other straight " ]
check "by validation loss" [ "$(grep -v ^other table | awk '$4 != "-" { print $4 }')" = \
    "$(grep -v ^other table | awk '$4 != "-" { print $4 }' | sort -g)" ]
check "a run that was not validated is the last" [ "$(tail -n 1 table | awk '{ print $1, $2, $4 }')" = "best 3 -" ]
check "steps, tokens and options" grep -q '^straight  *6  *768 .* 0.003  *muon  1 layer, 2 heads' table
check "warnings name the others: $(cat stderr)" \
    [ "$(grep -c 'runs/unfinished: no complete\|runs/broken/step_00000004' stderr)" -eq 2 -a "$(wc -l <stderr)" -eq 2 ]
check "the seconds are those of the log" near "$(awk '$1 == "straight" { print $5 }' table)" \
    "$(awk -F, 'NR > 1 { s += $7 } END { printf "%.1f", s / 1000 }' straight/log.csv)"
check "by validation data first: $(cat table)" \
    [ "$(sed '$d' table | awk '{ print $1, $NF }' | tail -n 1)" = "other tiny_val_000000.bin" ]
check "although it has a lower loss" \
    [ "$(awk '{ loss[$1] = $4 } END { print loss["other"] < loss["straight"] }' table)" -eq 1 ]
check "a run that was resumed with another rate has both" grep -q '^halfway .* 0.003,0.004  *muon  1 layer' table
check "--json has the order of the table" [ "$(grep -o '"run": "[a-z_]*' runs.json | cut -c 9-)" = "$(awk '{ print $1 }' table)" ]
check "--json has exact losses and all options" grep -q '"run": "best", .*"val_loss": null, .*"option' runs.json
prints "info straight convolved" "straight | convolved" "memory         0 | 1" "steps          6 | 4"
check "info RUN RUN prints no other options: $(cat stdout)" [ "$(grep -c "^lr\|^data\|^seq\|^channels" stdout)" -eq 0 ]
prints "info straight" "1 layer, 2 heads, 16 channels, block size 32, vocabulary 257" "768 tokens" \
    "vocab.bpe, CRC-32 00000000"
}


# The starter, from the repository's folder
cd "$repo" || exit 1
prints "--steps 1 --layers 1 --heads 2 --channels 16 --batch 2 --seq 16 --total-batch 32 --val-windows 2
    --sample-tokens 4 --vocab-size 2304 --out $dir/starter" "data/starter/vocab.bpe"
finish
