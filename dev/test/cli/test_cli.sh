#!/bin/sh
# test_cli.sh BINARY: the commands as a user runs them: help, training, resuming, signals, failures, sample, eval,
# inspect, info. Models have a few thousand parameters; tokens are bytes. Invalid input: test_refusals.sh.

. "$(dirname "$0")/../lib.sh"
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive

# run STATUS ARGUMENTS…: runs the binary with its output in the files stdout and stderr, and checks the exit status.
run() {
    expected=$1
    shift
    "$binary" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
    status=$?
    check "'$*': exit status $status, expected $expected: $(head -c 300 "$dir/stderr")" [ $status -eq "$expected" ]
}
differ() { ! cmp -s "$1" "$2"; }
same_checkpoint() { cmp -s "$1/model.safetensors" "$2/model.safetensors" &&
                    cmp -s "$1/optimizer.safetensors" "$2/optimizer.safetensors"; }
# warned FRAGMENT…: the last run printed one line on stderr with all fragments.
warned() {
    cp stderr warnings
    for fragment in "$@"; do grep -F -e "$fragment" warnings >match; mv match warnings; done
    check "one line on stderr contains '$*': $(cat stderr)" one_line warnings
}

# ---------------------------------------------------------------------------------------------
# Text, tokenizer, shards

: >vocab.bpe
awk 'BEGIN { for (i = 0; i < 120; i++) { for (j = 0; j < 6; j++) printf "%d and %d make %d. ", i, j, i + j
             print "\n<|endoftext|>" } }' >text.txt
run 0 tokenize --tokenizer vocab.bpe --out tiny --val-frac 0.2 text.txt
check "tokenize makes shards" [ -f tiny_train_000000.bin ]
if [ $failed -ne 0 ]; then
    cat stderr
    finish
fi
model="--layers 1 --heads 2 --channels 16 --block-size 32 --vocab-size 257 --batch 2 --total-batch 128"
data="--data $dir/tiny_train_*.bin --tokenizer $dir/vocab.bpe"
small="$model $data --warmup 1"
fast="--lr 0.003"
tiny="$small $fast --val-batches 2 --sample-tokens 8"
bare="--save-every 0 --val-every 0 --sample-every 0"
set -f   # the trainer expands patterns itself
# shellcheck disable=SC2086  # the lists above must be split into words

# ---------------------------------------------------------------------------------------------
# Help

for line in \
    "train preset layers heads channels block-size vocab-size bias membership init extend-block
     data val-data order tokenizer out resume overwrite log steps batch seq chunk total-batch lr schedule decay-frac
     warmup min-lr-frac weight-decay beta1 beta2 eps grad-clip ema skip-loss-z skip-grad-z max-skipped seed val-every
     val-batches sample-every sample-tokens save-every keep keep-best stop-at-val max-time on-save-error quiet
     temperature top-k top-p dtype threads parts reduce rank-timeout recompute help version man
     bash-completion" \
    "sample model weights tokenizer prompt prompts tokens samples stop temperature top-k top-p seed dtype threads help" \
    "eval model weights data task json force tokenizer batch seq chunk stride windows by-position
     seed dtype threads rank-timeout help" \
    "tokenize tokenizer out val-frac shard-tokens jsonl seed threads quiet help" \
    "info model weights vocab-size help" \
    "inspect model weights text out force tokenizer dtype threads help"; do
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
check "train --help begins with three examples" [ "$(head -n 10 stdout | grep -c '^  # ')" -eq 3 ]
check "train --help marks what --resume may change" grep -q "(default: 1600 steps) \*$" stdout
ln -s "$binary" other_name
./other_name --help >stdout
check "--help uses the program's name" [ "$(head -n 1 stdout | cut -d' ' -f1,2)" = "usage: other_name" ]
check "errors use the program's name" [ "$(./other_name info nowhere 2>&1 | cut -d: -f1)" = other_name ]

# ---------------------------------------------------------------------------------------------
# Runs and --resume

run 0 $tiny --steps 6 --save-every 3 --val-every 2 --sample-every 2 --out straight
check "nothing on stderr" empty stderr
check "lines of the first and the last step" [ "$(grep -c '^step [16]/6  loss' stdout)" -eq 2 ]
n='[0-9.e-]+'
check "operations per token and the peak rate" grep -Eq \
    "^compute    $n MFLOP per token; 100% MFU: $n[KMG]? tokens/s, $n TFLOP/s in float32 \(measured\)\$" stdout
check "model FLOPs utilization" grep -Eq '^step 6/6 .* tok/s  [0-9.]+% MFU$' stdout
check "a sample" grep -q 'sample after step 6' stdout
check "a row per step and a header" [ "$(wc -l <straight/log.csv)" -eq 7 ]
check "the log counts steps from 0" [ "$(sed -n 2p straight/log.csv | cut -d, -f1,2)" = "0,128" ]
check "validation every 2 steps" [ "$(sed 1d straight/log.csv | awk -F, '{ printf "%d", $4 != "" }')" = "010101" ]
check "the last step is saved" [ -f straight/step_00000006/model.safetensors ]

cp -R straight halfway
rm -rf halfway/step_00000006
run 0 --resume --out halfway
check "a resumed run ends with the same parameters and Adam moments" \
    same_checkpoint straight/step_00000006 halfway/step_00000006
check "a resumed run has the same log" same_log straight/log.csv halfway/log.csv
run 0 --resume --out halfway --quiet
check "--quiet: nothing on stdout" empty stdout
for unused in "val-data nowhere --val-every 0" "val-batches 3 --val-every 0" "keep 3 --save-every 0" \
    "temperature 0.5 --sample-every 0" "sample-tokens 8 --quiet"; do
    rm -rf unused
    run 0 $small --steps 1 --out unused --$unused
    check "--$unused: $(cat stderr)" grep -q -e "--${unused%% *} has no effect with --${unused##* --}" stderr
done
run 0 --resume --out unused --steps 2 --val-every 0 --val-batches 3
check "options without effect on --resume: $(cat stderr)" says "--val-batches has no effect with --val-every 0" stderr
OMP_NUM_THREADS=20000 run 1 sample --model nowhere
if "$binary" sample --model nowhere --threads 2 2>&1 | grep -q 'built without OpenMP'; then
    skip "OMP_NUM_THREADS: a build without OpenMP"
else
    check "OMP_NUM_THREADS is limited: $(cat stderr)" grep -q '20000.*4096' stderr
    OMP_THREAD_LIMIT=1 run 0 $small --steps 1 $bare --out limited
    check "OMP_THREAD_LIMIT: $(head -1 stdout)" grep -q '^device .* 1 thread,' stdout
fi
run 0 $small --val-every 0 --save-every 0 --steps 1 --temperature 0 --out silent
check "a sample without text: $(cat stdout)" says "sample after step 0: empty" stdout
run 0 --resume --out halfway
check "--resume of a finished run prints that it is finished" says "is finished" stdout
run 0 --resume --out halfway --steps 8
check "a larger --steps continues" [ -f halfway/step_00000008/model.safetensors ]
check "a larger --steps continues the log" [ "$(wc -l <halfway/log.csv)" -eq 9 ]
head -c 999 straight/step_00000006/model.safetensors >halfway/step_00000008/model.safetensors
head -c 999 straight/step_00000006/optimizer.safetensors >halfway/step_00000006/optimizer.safetensors
run 1 --resume --out halfway --steps 6
refused "halfway/step_00000008/" "halfway/step_00000003"
rm -r halfway/step_00000006 halfway/step_00000008
run 0 --resume --out halfway --steps 6
check "resumes from the older intact checkpoint" same_checkpoint straight/step_00000006 halfway/step_00000006

run 0 --resume --out halfway --steps 7 --dtype bf16
check "--dtype may change on --resume, which prints a line" says "--dtype bf16 instead of fp32" stdout
check "the start line names bf16" grep -q '^device.*bf16' stdout
run 0 eval --model halfway --data "$dir/tiny_*.bin" --dtype bf16
run 0 sample --model halfway --dtype bf16 --tokens 4
rm -r halfway/step_00000007

run 0 --resume --out halfway --steps 7 --lr 0.004 --schedule linear
check "--lr may change on --resume, which prints a line" says "--lr 0.004 instead of 0.003" stdout
check "--schedule may change on --resume" says "--schedule linear instead of cosine" stdout
check "the jump of the learning rate is printed" says "learning rate of the next step: " stdout
rm -r halfway/step_00000007

# The average of the weights
run 0 $tiny --steps 6 --save-every 3 --ema 0.9 --out average
cp -r average stopped && rm -r stopped/step_00000006
run 0 --resume --out stopped
check "--ema: a resumed run has the same average" cmp average/step_00000006/ema.safetensors stopped/step_00000006/ema.safetensors
cmp -s average/step_00000006/ema.safetensors average/step_00000006/model.safetensors
check "the average differs from the weights" [ $? -eq 1 ]
run 0 eval --weights ema --model average --data "$dir/tiny_val_*.bin"
check "--weights ema names the file" says "step_00000006/ema.safetensors, step 6" stderr
run 0 sample --weights ema --model average --tokens 4
run 0 info --weights ema average
run 1 eval --weights ema --model straight --data "$dir/tiny_val_*.bin"
refused "straight/step_00000006/model.safetensors" "ema.safetensors" "--ema"
cp -r straight begun
run 0 --resume --out begun --steps 7 --ema 0.9
check "--ema on --resume begins with the present weights" says "begins with the weights of step 6" stdout
cp average/step_00000003/ema.safetensors stopped/step_00000006/
run 1 eval --weights ema --model stopped --data "$dir/tiny_val_*.bin"
refused "different checkpoints" "step"

# Ends of runs, and the best checkpoint
run 0 $small --lr 0.3 --steps 6 --val-every 1 --keep 1 --keep-best --out best
grep -o 'best [0-9.]* after step [0-9]*' stdout | tail -1 >best.line
check "--keep-best: the best validation is $(cat best.line)" [ -s best.line ]
run 0 info best/best
check "best is the checkpoint of that step" says "after step $(sed 's/.* //' best.line)" stdout
run 0 info best
check "info prints the last validation" says "nats/token after step 6" stdout
run 0 sample --model best/best --tokens 4
run 0 $small --lr 0.3 --steps 2 --val-every 1 --save-every 0 --keep-best --out only
check "--save-every 0 --keep-best: best is saved" says "saved      only/best" stdout
run 1 sample --model only
refused "only" "give only/best as --model or --init"
run 1 --resume --out only
refused "only" "give only/best as --model or --init"
run 0 $small --lr 0 --steps 1 --val-every 1 --keep-best --out unchanged
check "no (best) without a best checkpoint" grep -q "best [0-9.]* after step 0$" stdout
run 0 $tiny --steps 3 --val-every 0 --out best --overwrite
check "--overwrite removes the best checkpoint of the old run" [ ! -e best/best ]
run 0 $tiny --steps 50 --val-every 1 --stop-at-val 99 --out early
check "--stop-at-val stops after the first validation" says "stopped by --stop-at-val after step 1 of 50" stdout
check "--stop-at-val saves" [ -f early/step_00000001/optimizer.safetensors ]
run 0 $tiny --steps 50 --val-every 1 --stop-at-val 99 --max-time 1h --out early --overwrite
check "--stop-at-val with --max-time: status 0" says "stopped by --stop-at-val after step 1 of 50" stdout
run 75 $tiny --steps 1000000 --val-every 0 --max-time 0.2s --out early --overwrite
check "--max-time saves" says "saved      early/step_" stdout
check "--max-time says so" says "stopped by --max-time after step " stdout
mkdir newest && cd newest && mkdir out && cp -r ../straight out/
run 0 --resume --steps 7
check "--resume alone takes the newest run" [ -f out/straight/step_00000007/model.safetensors ]
cd ..
run 0 $model $data --steps 2 --warmup 5 --out short
check "--warmup beyond --steps: a warning" says "--warmup 5 is not less than --steps 2" stderr
mkdir killed && cp straight/log.csv killed/
run 1 $tiny --steps 6 --out killed
refused "killed" "without a complete checkpoint" "--overwrite"
run 75 $model $data --steps 1k --max-time 0.001s $bare --out k
run 0 --layers 1 --heads 2 --channels 16 --block-size 32 --batch 2 --total-batch 64 $data --steps 1 --out own
check "--vocab-size is the tokenizer's, a multiple of 64" says "vocabulary 320," stdout
mkdir shards && cp tiny_train_000000.bin vocab.bpe shards/
run 0 --layers 1 --heads 2 --channels 16 --block-size 32 --batch 2 --total-batch 64 --data 'sh*ds/tiny_train_*.bin' \
    --steps 1 --out glob
check "--vocab-size: the tokenizer is found if the pattern is that of a folder" says "vocabulary 320," stdout
run 1 $model --data 'sh*ds/tiny_train_*.bin' --steps 1 --keep-best --out new
refused "--keep-best" "--val-data"
run 0 $tiny --steps 1 --ema 0.9 --save-every 0 --out unsaved
check "--ema is not saved: a warning" says "--ema has no effect with --save-every 0" stderr

run 0 $small $fast $bare --steps 6 --out plain
check "--save-every 0 saves nothing" [ -z "$(ls plain | grep step_)" ]
check "validation and samples do not change training" \
    [ "$(cut -d, -f1-3,5,6 plain/log.csv)" = "$(cut -d, -f1-3,5,6 straight/log.csv)" ]
run 0 $small $fast $bare --steps 6 --out plain --overwrite --seed 7
check "another seed gives another run" differ plain/log.csv straight/log.csv
run 0 $small --steps 2 --save-every 2 --out plain --overwrite --quiet
run 0 $small --steps 1 --save-every 1 --out plain --overwrite --quiet
check "--overwrite removes the old checkpoints" [ "$(ls plain | grep step_)" = step_00000001 ]
check "--overwrite starts a new log" [ "$(wc -l <plain/log.csv)" -eq 2 ]
echo precious >diary
run 1 $small --steps 1 --log diary --out plain2 --quiet
refused "diary"
check "no run folder is created" [ ! -e plain2 ]
run 1 $small --steps 1 --log diary --out plain --overwrite --quiet
refused "diary: line 1"
check "the file is unchanged" [ "$(cat diary)" = precious ]
check "the run is unchanged" [ -f plain/step_00000001/model.safetensors ]
run 0 $small --steps 1 --log outside.csv --out plain --overwrite --quiet
run 0 $small --steps 2 --log outside.csv --out plain --overwrite --quiet
check "--overwrite starts a new --log" [ "$(wc -l <outside.csv)" -eq 3 ]
cp -R plain foreign
LC_ALL=C sed 's/"option\./"notion./g' plain/step_00000002/model.safetensors >foreign/step_00000002/model.safetensors
run 1 --resume --out foreign
refused "foreign" "cannot be resumed"
run 0 $small --steps 5 --save-every 1 --keep 2 --out kept --quiet
check "--keep 2 keeps the newest two" [ "$(ls kept | grep -c step_)" -eq 2 ]
run 0 $tiny --steps 0 --out zero
check "--steps 0 validates" grep -q 'validation after step 0' stdout
check "--steps 0 saves" [ -f zero/step_00000000/model.safetensors ]
run 0 --resume --out zero --steps 6
check "a run resumed at step 0 equals a fresh one" \
    [ "$(cut -d, -f1-3,5,6 zero/log.csv)" = "$(cut -d, -f1-3,5,6 straight/log.csv)" ]
run 0 --init straight --steps 0 $data --out again --quiet
run 0 eval --model again --data "$dir/tiny_val_*.bin"
grep '^loss' stdout >again.loss
run 0 eval --model straight --data "$dir/tiny_val_*.bin" --batch 1
grep '^loss' stdout >straight.loss
check "--init starts from the file's weights" cmp -s again.loss straight.loss
run 0 $tiny --steps 6 --save-every 3 --val-every 2 --sample-every 2 --recompute --out recomputed
rm -r recomputed/step_00000006
run 0 --resume --out recomputed
check "a run with --recompute, resumed without it, gives the same results" \
    same_checkpoint straight/step_00000006 recomputed/step_00000006

uniform="$small --membership uniform --steps 4 --save-every 2"
run 0 $uniform --out even
check "train prints uniform membership" says "uniform membership" stdout
run 0 info even
check "info prints uniform membership" says "uniform membership" stdout
run 0 $uniform --out even2 --quiet
rm -r even2/step_00000004
run 0 --resume --out even2 --quiet
check "a run with uniform membership resumes" same_checkpoint even/step_00000004 even2/step_00000004
run 0 sample --model even --tokens 5
run 1 --resume --out even --membership learned --steps 5
refused "--membership learned" "uniform"
LC_ALL=C sed -i 's/"membership":"uniform"/"membership":"equable"/' even/step_00000004/model.safetensors
run 1 info even
refused "'membership'" "'equable'"

run 0 $small --steps 1 --quiet
run 0 $small --steps 1 --quiet
check "default folders are numbered" [ -d out/starter-001 -a -d out/starter-002 ]
run 0 info
check "info shows the newest run" says "out/starter-002/step_00000001/model.safetensors" stdout
check "info shows the version that wrote it" grep -qF "written by  $("$binary" --version | cut -d, -f1)" stdout

# ---------------------------------------------------------------------------------------------
# Signals, with a constant learning rate, so that the results do not depend on --steps

constant="--min-lr-frac 1 --save-every 1000000 --val-every 0 --sample-every 0"
for signal in "INT 130" "TERM 143" "HUP 129"; do
    # shellcheck disable=SC2086
    set -- $signal
    if [ "$1" = HUP ] && (sh -c 'kill -HUP $$; exit 0'); then
        skip "SIGHUP is ignored, as under nohup"
        continue
    fi
    rm -rf stopped steady
    "$binary" $small $constant --steps 1000000 --out stopped >stdout 2>stderr </dev/null &
    id=$!
    # wait until two steps are logged or the run has ended
    while kill -0 $id 2>/dev/null && [ "$(cat stopped/log.csv 2>/dev/null | wc -l)" -lt 3 ]; do sleep 0.1; done
    kill -"$1" $id
    wait $id
    status=$?
    check "SIG$1: exit status $status, expected $2" [ $status -eq "$2" ]
    check "SIG$1: prints how to resume" says "train --resume --out stopped" stdout
    done_steps=$(($(wc -l <stopped/log.csv) - 1))
    last=stopped/$(printf 'step_%08d' $done_steps)
    check "SIG$1: the last completed step is saved" [ -f "$last/model.safetensors" ]
    run 0 --resume --out stopped --steps $((done_steps + 2)) --quiet
    run 0 $small $constant --steps $((done_steps + 2)) --out steady --quiet
    last=$(printf 'step_%08d' $((done_steps + 2)))
    check "SIG$1: the resumed run equals an uninterrupted one" same_checkpoint "stopped/$last" "steady/$last"
    check "SIG$1: the resumed run has the same log" same_log stopped/log.csv steady/log.csv
done

# ---------------------------------------------------------------------------------------------
# Failures at run time

wild="--steps 200 --val-every 0 --sample-every 0 --lr 100 --weight-decay 100 --out wild --quiet"
run 1 $small $wild --save-every 1 --keep 1
check "steps that are not finite are skipped: $(cat stderr)" [ "$(grep -c 'skipped.*loss' stderr)" -eq 10 ]
check "parameters that are not finite are not saved" [ "$(grep -c 'not saved.*--resume --out wild' stderr)" -ge 10 ]
warned "10" "--max-skipped" "--resume --out wild"
check "the last valid checkpoint remains" [ "$(ls wild | grep -c step_)" -eq 1 ]
run 0 eval --model wild --data "$dir/tiny_val_*.bin"
run 1 $small $wild --save-every 0 --max-skipped 0 --overwrite
refused "--max-skipped" "--lr"

cp -R straight full
if (ulimit -f 8; exec "$binary" --resume --out full --steps 7 --quiet) >stdout 2>stderr; then
    check "a save that fails: status 1" false
else
    check "a save that fails: status 1" [ $? -eq 1 ]
fi
refused "full/step_00000007" "not saved" "--resume --out full" "step 6"
check "a save that fails leaves the earlier checkpoint" same_checkpoint straight/step_00000006 full/step_00000006
check "a save that fails leaves no partial folder" [ -z "$(ls full | grep step_00000007)" ]
run 0 --resume --out full --steps 7 --quiet
(ulimit -f 8; exec "$binary" $model $data --steps 1 --out 'first save' --quiet) >stdout 2>stderr
refused "step 1" "not saved"

# ---------------------------------------------------------------------------------------------
# Sample, eval, info

run 0 sample --model straight --prompt "7 and" --tokens 40 --seed 5
cp stdout first
check "the text starts with the prompt" [ "$(head -c 5 first)" = "7 and" ]
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
run 0 sample --model straight --tokens 4 --samples 3
check "--samples 3: two separators" [ "$(grep -a -c '^---$' stdout)" -eq 2 ]
for n in 1 2 40; do   # 40: more than are generated together
    run 0 sample --model straight --prompt "7 and" --tokens 60 --samples $n --seed 5
    cp stdout samples$n
done
for n in 1 2; do
    head -c "$(wc -c <samples$n)" samples40 >first
    check "the first of 40 samples equal $n alone" cmp -s samples$n first
done
stop=$(tail -c +6 samples1 | head -c 9 | tail -c 3)
run 0 sample --model straight --prompt "7 and" --tokens 60 --seed 5 --stop "$stop"
head -c "$(($(wc -c <stdout) - 1))" stdout >first
head -c "$(wc -c <first)" samples1 | cmp -s - first
check "--stop prints the text before the stop text" [ $? -eq 0 -a "$(wc -c <first)" -le 11 ]

printf '%s\n' '{"prompt": "7 and"}' 'no object' '' '{"id": 3, "prompt": "a longer prompt of more than 32 bytes: 4"}' \
    '{"prompt": ""}' '{"text": "x"}' '{"prompt": "1 and 2 make"}' >some.jsonl
run 1 sample --model straight --prompts some.jsonl --tokens 30 --samples 2 --seed 5
check "--prompts: one line of JSON per sample, in order" \
    [ "$(cut -d, -f1,2 stdout | tr -cd '0-9\n' | tr '\n' ' ')" = "00 01 30 31 40 41 60 61 " ]
check "--prompts: bad lines are named" [ "$(grep -c -e '--prompts some.jsonl: line [26]:' stderr)" -eq 2 ]
cp stdout all.json
for index in 0 3 4 6; do
    awk -v line=$((index + 1)) '{ print NR == line ? $0 : "" }' some.jsonl >one.jsonl
    run 0 sample --model straight --prompts one.jsonl --tokens 30 --samples 2 --seed 5
    grep "^{\"index\": $index," all.json >first
    check "a prompt's samples do not depend on the other prompts" cmp -s stdout first
done
printf '7 and\r\nno {object}\n' | "$binary" sample --model straight --prompts - --tokens 1 >stdout 2>stderr
check "--prompts of plain text" [ $? -eq 0 -a "$(grep -c '"prompt": "\(7 and\|no {object}\)", "text"' stdout)" -eq 2 ]
run 0 sample --model straight --temperature 0 --tokens 70 --prompt "1 and 2"
cp stdout first
run 0 sample --model straight --temperature 0 --tokens 70 --prompt "1 and 2" --seed 99
check "greedy text does not depend on the seed, also past the block size" cmp -s stdout first
printf '\377\376\n' >prompt
run 0 sample --model straight --prompt @prompt --tokens 3
head -c 3 stdout >first
check "a prompt of any bytes is printed unchanged" cmp -s first prompt
cp -R straight moved
mkdir -p other/folder
cd other/folder || exit 1
run 0 sample --model ../../moved/ --tokens 3
run 0 sample --model "$dir/moved/step_00000006" --tokens 3
cd "$dir" || exit 1

run 0 eval --model straight --data "$dir/tiny_*.bin" --seq 7 --batch 3
tokens=$((($(wc -c <tiny_train_000000.bin) + $(wc -c <tiny_val_000000.bin) - 2048) / 2))
check "every token but the first is scored once" [ "$(awk '$1 == "tokens" { print $2 }' stdout)" -eq $((tokens - 1)) ]
grep '^[lpb]' stdout >first
run 0 eval --model straight --data "$dir/tiny_*.bin" --seq 7 --batch 5
check "the batch size changes only rounding" [ "$(grep '^[lpb]' stdout | cat first - |
    awk '{ if ($1 in at) { off = $2 / at[$1] - 1; near += off * off < 1e-8 } at[$1] = $2 } END { print near }')" = 3 ]
# figure NAME FILE: the first number of that name in a JSON file.
figure() { sed -n "s/.*\"$1\": \[*\([^],} ]*\).*/\1/p" "$2" | head -1; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && (a - b) ^ 2 < 1e-8 * (1 + b ^ 2)) }'; }

run 0 eval --model straight --data "$dir/tiny_*.bin" --seq 16 --stride 5 --json strided.json
check "strided: every token but the first is scored once" [ "$(figure tokens strided.json)" -eq 16 ]
check "strided: and in the total" [ "$(awk '$1 == "tokens" { print $2 }' stdout)" -eq $((tokens - 1)) ]
run 0 eval --model straight --data "$dir/tiny_*.bin" --windows 7 --seed 1 --json first.json
check "random windows: the requested number" [ "$(grep -c '"start"' first.json)" -eq 7 ]
check "random windows: of full length" [ "$(awk '$1 == "tokens" { print $2 }' stdout)" -eq $((7 * 32)) ]
run 0 eval --model straight --data "$dir/tiny_*.bin" --windows 7 --seed 1 --batch 2 --json second.json
starts() { grep -o '"start": [0-9]*' "$1"; }
check "the same seed, the same windows" [ "$(starts first.json)" = "$(starts second.json)" ]
run 0 eval --model straight --data "$dir/tiny_*.bin" --windows 7 --seed 2 --json second.json
check "another seed, other windows" [ "$(starts first.json)" != "$(starts second.json)" ]

# Loss by position, against windows that score a single position each: with --seq N --stride 1, those that start where
# the windows of --seq 11 do. Only the first window scores all N positions; the loss of position N is the difference
# between its losses for N and N - 1.
of_windows() {
    for n in 1 2 3 4 5 6 7 8 9 10 11; do
        run 0 eval --model straight --data "$dir/tiny_val_*.bin" --seq $n --stride 1 --json position.json
        sed -n 's/.*"start": \([0-9]*\), .*"nats": \([^}]*\)}.*/\1 \2/p' position.json | awk -v n=$n '
            $1 == 0 { print n, $2, 0 } $1 > 0 && $1 % 11 == 0 { print n, $2, 1 }'
    done | awk '{ if (!$3) { x = $2 - first; first = $2 } else x = $2
                  for (bin = 0; 2 ^ bin < $1; bin++); nats[bin] += x; tokens[bin]++ }
        END { for (bin = 0; bin in tokens; bin++) printf "%d %.9f\n", tokens[bin], nats[bin] / tokens[bin] }'
}
of_json() { sed -n 's/.*"first".*"tokens": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' "$1"; }
same_positions() { awk 'NR == FNR { tokens[FNR] = $1; loss[FNR] = $2; n = FNR; next }
    { good += $1 == tokens[FNR] && ($2 - loss[FNR]) ^ 2 < 1e-10 } END { exit !(n == 5 && good == n && FNR == n) }' "$@"; }
of_windows >wanted
for variant in "--batch 3" "--batch 3 --chunk 4" "--chunk 1" "--chunk 11" "--chunk 400"; do
    run 0 eval --model straight --data "$dir/tiny_val_*.bin" --seq 11 $variant --by-position --json position.json
    of_json position.json >got
    check "--by-position $variant: $(cat wanted got)" same_positions wanted got
    [ "$variant" != "--batch 3" ] || grep -v '^speed' stdout >first
    grep -v '^speed' stdout >got
    check "--by-position $variant: the report" cmp -s first got
done
check "--by-position: ranges and tokens on stdout" \
    [ "$(awk '/^position/ { on = 1; next } on { print $1, $NF }' first)" = \
      "$(awk '{ split("1 2 3-4 5-8 9-11", bin, " "); print bin[NR], $1 }' wanted)" ]
check "--by-position: the last bin ends with the window" [ "$(grep -c '"first": 9, "last": 11' position.json)" -eq 1 ]
run 0 eval --model straight --data "$dir/tiny_val_*.bin" --seq 11 --stride 4 --by-position --json position.json
check "--by-position --stride: later windows score only their last positions" \
    [ "$(of_json position.json | cut -d' ' -f1 | head -n 3 | tr '\n' ' ')" = "1 1 2 " ]

# A model with more positions
run 0 --init straight --extend-block 75 --data "$dir/tiny_train_*.bin" --steps 0 --val-every 0 --out extended --quiet
run 0 eval --model straight --data "$dir/tiny_val_*.bin"
grep -v '^speed' stdout >first
run 0 eval --model extended --data "$dir/tiny_val_*.bin" --seq 32
grep -v '^speed' stdout >got
check "--extend-block: the same loss within the old block size" cmp -s first got
run 0 eval --model extended --data "$dir/tiny_val_*.bin" --by-position
check "--extend-block: positions up to the new block size" grep -q '^65-75 ' stdout
run 0 sample --model extended --prompt "7 and" --tokens 80
extend="--init straight --extend-block 75 $data $fast --batch 1 --total-batch 150 --steps 4 --save-every 2"
for name in longer halves; do run 0 $extend --val-every 0 --sample-every 0 --out $name --quiet; done
rm -r halves/step_00000004
run 0 --resume --out halves --quiet
check "--extend-block: a resumed run equals an uninterrupted one" \
    same_checkpoint longer/step_00000004 halves/step_00000004

# A link to /dev/stdout must not be replaced by a file.
mkdir links
ln -s /dev/stdout links/stdout
"$binary" eval --model straight --data "$dir/tiny_*.bin" --windows 7 --seed 1 --json links/stdout >shown 2>stderr
check "--json to standard output, a file: $(cat stderr)" [ $? -eq 0 -a "$(ls links)" = stdout ]
check "--json to standard output: the JSON first, then the report" \
    [ "$(head -n "$(wc -l <first.json)" shown)" = "$(cat first.json)" -a "$(sed -n '$p' shown | cut -c1-5)" = speed ]
"$binary" eval --model straight --data "$dir/tiny_*.bin" --windows 7 --seed 1 --json links/stdout 2>stderr | cat >piped
check "--json to standard output, a pipe" [ "$(grep -v '^speed' shown)" = "$(grep -v '^speed' piped)" ]

# ---------------------------------------------------------------------------------------------
# Warnings about tokenizers that do not fit the model

one_warning() { [ "$(grep -c "^$(basename "$binary"): " stderr)" -eq 1 ]; }
mkdir beside lone.d
cp tiny_val_000000.bin beside/x.bin
printf '#version: 0.2\n' >beside/vocab.bpe
run 0 eval --model straight --data "$dir/beside/*.bin"
warned "$dir/beside/vocab.bpe" "CRC-32"
run 0 eval --model straight --data "$dir/beside/*.bin" --tokenizer beside/vocab.bpe
warned "$dir/vocab.bpe" "00000000" " beside/vocab.bpe"
check "no other warning: $(cat stderr)" one_warning
run 0 sample --model straight --tokens 3 --tokenizer beside/vocab.bpe
warned "straight/" " beside/vocab.bpe"
run 0 --init straight --data "$dir/beside/*.bin" --steps 0 --out warned --quiet
warned "straight/step_00000006/model.safetensors" "tokenizer"
run 0 $model --tokenizer vocab.bpe --data "$dir/beside/*.bin" --steps 0 --val-every 0 --out warned2 --quiet
warned "beside/vocab.bpe"
shard $(seq 300 398) >lone.d/x.bin
wide="--layers 1 --heads 2 --channels 16 --block-size 32 --batch 2 --total-batch 128"
run 0 $wide --vocab-size 515 --data lone.d/x.bin --steps 0 --out wide --quiet
check "no tokenizer in checkpoint or folder: no warning" empty stderr
run 0 eval --model wide --data lone.d/x.bin
warned "bits/byte" "wide/step_00000000/model.safetensors" "--tokenizer"
run 0 eval --model wide --data lone.d/x.bin --tokenizer vocab.bpe
warned "398" "vocab.bpe" "257"
check "no other warning: $(cat stderr)" one_warning
run 0 $wide --vocab-size 515 --data lone.d/x.bin --tokenizer vocab.bpe --steps 0 --out wide2 --quiet
warned "398"
run 0 $wide --vocab-size 516 --data lone.d/x.bin --steps 0 --out wide3 --quiet
run 0 sample --model wide3 --tokenizer vocab.bpe --tokens 3
warned "vocab.bpe" "257" "wide3/step_00000000/model.safetensors" "516"

# ---------------------------------------------------------------------------------------------
# Tasks

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
difference() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.9f", a - b }'; }

example() { printf '{"context": "%s", "choices": [%s], "answer": %d}\n' "$@"; }
{ example "3 and 2 make" '" 5"' 0; example "1 and 4 make" '" five"' 0
  example "a text that is longer than the block size" '" holds"' 0; } >words.jsonl
run 0 eval --model straight --task words.jsonl --json task.json
check "one choice: its loss is the loss of the text minus the loss of its context" \
    near "$(figure nats task.json)" "$(difference "$(nats "3 and 2 make 5")" "$(nats "3 and 2 make")")"
check "three examples" [ "$(figure examples task.json)" -eq 3 ]
check "perplexity per word and per token" \
    [ "$(grep -c -e '^perplexity per word ' -e '^perplexity per token ' stdout)" -eq 2 ]
check "accuracy with its confidence interval" grep -q '^accuracy_within_10 .*(95%: ' stdout
grep '^[al]' stdout >first
run 0 eval --model straight --task words.jsonl --batch 1
check "one choice: the results do not depend on the batch size" [ "$(cat first)" = "$(grep '^[al]' stdout)" ]

{ example "2 and 2" '" make 4", " is", " and 3 and", " makes"' 1; example "9 and 2" '" make 11", " x"' 0; } >swag.jsonl
run 0 eval --model straight --task swag.jsonl --json task.json
check "several choices: the loss of a choice" \
    near "$(figure nats task.json)" "$(difference "$(nats "2 and 2 make 4")" "$(nats "2 and 2")")"
check "tokens of each choice" says '"tokens": [7, 3, 10, 6]' task.json
check "the index of the answer" says '"answer": 1,' task.json
grep '^[al]' stdout >first
run 0 eval --model straight --task swag.jsonl --batch 4
check "several choices: the results do not depend on the batch size" [ "$(cat first)" = "$(grep '^[al]' stdout)" ]

# ---------------------------------------------------------------------------------------------
# Inspect. test_exchange.sh compares the contents of its file with PyTorch.

run 0 inspect --model straight --text '3 and 2 make 5' --out seen.safetensors
cp seen.safetensors first
cp stdout first.out
check "inspect prints the number of tokens" grep -q '^tokens  *14$' stdout
check "the loss equals that of eval" near "$(awk '$1 == "loss" { print 13 * $2 }' first.out)" "$(nats '3 and 2 make 5')"
printf '3 and 2 make 5' >seen.txt
run 0 inspect --model straight --text @seen.txt --out seen.safetensors
check "inspect --text @FILE" cmp -s seen.safetensors first
"$binary" inspect --model straight --text - --out seen.safetensors <seen.txt >stdout 2>stderr
check "inspect --text -" cmp -s seen.safetensors first
run 0 inspect --model zero/step_00000000 --text '3 and 2 make 5' --out seen.safetensors
check "an untrained model gives another file" differ seen.safetensors first
run 0 inspect --model straight --text x --out seen.safetensors
check "one token: no loss" [ "$(grep -c '^loss' stdout)" -eq 0 ]
printf '%0100d' 0 >long.txt
run 0 inspect --model straight --text @long.txt --out seen.safetensors
check "a longer text is truncated with a warning" grep -q '100 .*32' stderr
check "it is truncated to the block size" grep -q '^tokens  *32$' stdout
(trap '' XFSZ; ulimit -f 2; exec "$binary" inspect --model straight --text @long.txt --out too_large) >stdout 2>stderr
check "inspect: a file that cannot be written" [ $? -eq 1 -a ! -e too_large -a ! -e too_large.tmp ]
check "inspect names the file and the reason" grep -q 'too_large.*File too large' stderr
run 0 info straight
check "info prints the sizes" says "1 layers, 2 heads, 16 channels, block size 32, vocabulary 257" stdout
check "info prints step and tokens" grep -q '6.*768 tokens' stdout
check "info prints the tokenizer" says "vocab.bpe, CRC-32 00000000" stdout

# ---------------------------------------------------------------------------------------------
# The starter, from the repository's folder

if [ -f "$repo/data/starter/vocab.bpe" ]; then
    cd "$repo" || exit 1
    "$binary" --steps 1 --layers 1 --heads 2 --channels 16 --batch 2 --seq 16 --total-batch 32 --val-batches 1 \
        --sample-tokens 4 --vocab-size 2304 --out "$dir/starter" >"$dir/stdout" 2>"$dir/stderr"
    check "the starter shards are found in the repository: $(cat "$dir/stderr")" [ $? -eq 0 ]
    check "the starter tokenizer is found" says "data/starter/vocab.bpe" "$dir/stdout"
    cd "$dir" || exit 1
else
    skip "no data/starter"
fi

finish
