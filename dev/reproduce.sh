#!/usr/bin/env bash
# reproduce.sh: one command from the data to a report that compares the results with the paper's.
#
#   dev/reproduce.sh [--preset tost-base]        OpenWebText from the Hugging Face Hub (24 GB), GPT-2's vocabulary
#   dev/reproduce.sh --from FOLDER               OpenWebText from local Parquet, JSONL or text files
#   dev/reproduce.sh --shards 'DIR/*train*.bin'  existing token shards of llm.c or nanoGPT; *val*.bin beside them
#   dev/reproduce.sh --smoke                     all stages in six minutes on data/starter, without a network
#
# Stages: program, vocabulary, data, training, samples, evaluation, report. If stopped at any point, by Ctrl-C, a kill
# or a power failure, run the same command again: it continues where it was stopped. Training runs on a GPU if there is
# one, else on the CPU; the result is OUT/report.md with OUT/report.png.
#
#   --preset NAME       starter, tost-base (default), tost-medium or tost-large
#   --out DIR           run folder (default: out/reproduce-PRESET, with --smoke out/smoke)
#   --from PATH         local OpenWebText file or folder; may be repeated
#   --shards GLOB       training shards; quote the pattern
#   --val-shards GLOB   validation shards (default: --shards with train replaced by val)
#   --tokenizer FILE    vocabulary of the shards (default: data/vocab.bpe, GPT-2's, downloaded if missing)
#   --ranks N           train with N processes, started by mpirun
#   --windows N         random windows of a loss (default: 16000, as for the published losses; with --smoke 40)
#   --program FILE      a trainer (default: built with make)
#   -- OPTIONS          options of `train`, such as --steps 1000 --batch 16; give the same ones to continue
#
# PYTHON selects the Python, which needs the packages of dev/requirements.txt; for --shards and --smoke, matplotlib.
set -u
name=${0##*/}
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
python=${PYTHON:-python3}
preset='' out='' shards='' val_shards='' tokenizer='' ranks=1 windows='' program='' smoke=''
from=() options=()

fail() { echo "$name: $1" >&2; exit "${2:-1}"; }
usage() { fail "$1 (--help lists the options)" 2; }

absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }

while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) sed -n '2,/^set /{/^set /!{s/^# \{0,1\}//p;};}' "$0"; exit ;;
        --smoke) smoke=smoke; shift; continue ;;
        --) shift; options=("$@"); break ;;
        --preset | --out | --from | --shards | --val-shards | --tokenizer | --ranks | --windows | --program) ;;
        *) usage "$1: not an option" ;;
    esac
    [ -n "${2:-}" ] || usage "$1 needs a value"
    case $1 in
        --preset) preset=$2 ;;
        --out) out=$(absolute "$2") ;;
        --from) [ -e "$2" ] || usage "--from $2: not found"; from+=("$(absolute "$2")") ;;
        --shards) shards=$(absolute "$2") ;;
        --val-shards) val_shards=$(absolute "$2") ;;
        --tokenizer) [ -f "$2" ] || usage "--tokenizer $2: not a file"; tokenizer=$(absolute "$2") ;;
        --ranks) case $2 in *[!0-9]* | 0*) usage "--ranks $2: give an integer of at least 1" ;; esac; ranks=$2 ;;
        --windows) case $2 in *[!0-9]* | 0*) usage "--windows $2: give an integer of at least 1" ;; esac; windows=$2 ;;
        --program) [ -x "$2" ] || usage "--program $2: not a program"; program=$(absolute "$2") ;;
    esac
    shift 2
done
[ -z "$smoke" ] || [ -z "$preset$shards$val_shards$tokenizer${from[*]:-}" ] ||
    usage "--smoke has its own preset and data: leave out --preset, --from, --shards and --tokenizer"
[ -z "$shards" ] || [ ${#from[@]} -eq 0 ] || usage "--shards and --from: give one of them"
[ -z "$val_shards" ] || [ -n "$shards" ] || usage "--val-shards needs --shards"
[ -z "$shards" ] || [ -n "$val_shards" ] || val_shards=$(dirname "$shards")/$(basename "$shards" | sed 's/train/val/g')
[ -z "$shards" ] || [ "$val_shards" != "$shards" ] ||
    usage "--shards $shards: no 'train' in the name: give --val-shards"
[ -z "$smoke" ] || preset=starter
preset=${preset:-tost-base}
case $preset in
    starter | tost-base | tost-medium | tost-large) ;;
    *) usage "--preset $preset: use starter, tost-base, tost-medium or tost-large" ;;
esac
out=${out:-$PWD/out/${smoke:-reproduce-$preset}}
cd "$here" || exit 1

# ---------------------------------------------------------------------------------------------
# Signals. Each command runs in its own process group and gets a signal once, from this script: a second one would end
# the trainer without a checkpoint. mpirun passes SIGUSR1 on to the ranks, which stop as they do for SIGINT.

child='' stopped=''
on_signal() {
    stopped=$1
    local signal=$1
    [ "$running" != mpirun ] || signal=USR1
    [ -z "$child" ] || kill -s "$signal" "$child" 2>/dev/null
}
for signal in INT TERM HUP; do
    # shellcheck disable=SC2064  # the signal's name is expanded now
    trap "on_signal $signal" $signal
done

# run COMMAND…: returns its exit status, and ends the script if it was stopped.
run() {
    local status
    running=${1##*/}
    set -m
    "$@" &
    child=$!
    set +m
    while :; do
        wait "$child"
        status=$?
        [ $status -gt 128 ] || break   # else the wait was interrupted, or the command ended by a signal
        kill -0 "$child" 2>/dev/null || break
    done
    child=''
    if [ -n "$stopped" ]; then
        echo "$name: stopped by SIG$stopped: run the same command again to continue" >&2
        exit $((128 + $(kill -l "$stopped")))
    fi
    return $status
}

stage() { printf '\n== %s\n' "$*"; }

# ---------------------------------------------------------------------------------------------
# Stages

check_python() {
    local packages=matplotlib
    [ -n "$shards$smoke" ] || packages="matplotlib, datasets"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "$python cannot be run, or is older than Python 3.11: set PYTHON"
    "$python" -c "import $packages" 2>/dev/null ||
        fail "$python cannot import $packages: $python -m pip install -r dev/requirements.txt"
}

build() {
    if [ -z "$program" ]; then
        target=train_gpt_tost
        if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
            if command -v nvcc >/dev/null || [ -x train_gpt_tostcu ]; then target=train_gpt_tostcu
            else echo "$name: there is a GPU but no nvcc: training on the CPU" >&2; fi
        fi
        mpi=()
        [ "$ranks" -eq 1 ] || mpi=(MPI=1)
        [ "$ranks" -eq 1 ] || [ $target = train_gpt_tost ] || mpi+=(NCCL=1)
        stage "program: make ${mpi[*]:-} $target"
        run make "${mpi[@]}" $target || fail "make $target failed"
        program=$here/$target
    fi
    "$program" --version || fail "$program: cannot be run"
    [ "$ranks" -eq 1 ] || command -v mpirun >/dev/null || fail "--ranks $ranks: no mpirun: install Open MPI or MPICH"
}

vocabulary() {
    [ -z "$tokenizer" ] || return 0
    tokenizer=$here/data/vocab.bpe
    [ -f "$tokenizer" ] || { stage vocabulary; run "$python" dev/data/vocab.py; } || fail "no vocabulary: see above"
}

training_data() {
    [ -z "$shards" ] || return 0
    stage "data: OpenWebText"
    run "$python" dev/data/corpus.py openwebtext --tokenizer "$tokenizer" --binary "$program" \
        ${from[@]+--from "${from[@]}"} || fail "no training data: see above"
    shards="$here/data/openwebtext/openwebtext_train_*.bin"
    val_shards="$here/data/openwebtext/openwebtext_val_*.bin"
}

# fetch FILE SCRIPT…: makes FILE with a script of dev/data, unless it exists. A set that cannot be had is left out of
# the report.
fetch() {
    local file=$1 script=$2
    shift 2
    [ -e "$file" ] || run "$python" "dev/data/$script" "$@" || echo "$name: without ${file##*/}: see above" >&2
}
evaluation_data() {
    stage "data: evaluation sets"
    sets=$here/data
    if [ -n "$smoke" ]; then
        sets=$out/sets
        [ -e "$sets/.complete" ] || { run "$python" dev/test/cli/small_sets.py "$sets" && touch "$sets/.complete"; } ||
            fail "the sets of the smoke test could not be made"
        return
    fi
    local stream
    fetch "$sets/eval/lambada.jsonl" evalset.py lambada
    fetch "$sets/eval/hellaswag.jsonl" evalset.py hellaswag
    fetch "$sets/eval/cbt_CN.jsonl" evalset.py cbt
    for stream in $streams; do
        fetch "$sets/published/${stream}_test_000000.bin" published.py "$stream" --tokenizer "$tokenizer" \
            --binary "$program"
    done
}

# The output of a new run is beside $out until it ends, because --overwrite may rename $out.
keep_output() { [ ! -e "${out%/}.train.log" ] || mv "${out%/}.train.log" "$out/train.log"; }

train() {
    local how=--overwrite launcher=() log=${out%/}.train.log
    if compgen -G "$out/step_*[0-9]/model.safetensors" >/dev/null; then
        how=--resume log=$out/train.log
        keep_output
    fi
    if [ "$ranks" -gt 1 ]; then
        launcher=(mpirun -n "$ranks")   # Open MPI binds each rank to one core by default
        ! mpirun --version 2>/dev/null | grep -q 'Open MPI' || launcher+=(--bind-to none)
    fi
    stage "training: $preset in $out"
    mkdir -p "$out" || fail "--out $out: cannot be created"
    local command=("${launcher[@]}" "$program" train --preset "$preset" --data "$shards" --val-data "$val_shards"
        --tokenizer "$tokenizer" ${smoke_options[@]+"${smoke_options[@]}"} ${options[@]+"${options[@]}"}
        "$how" --out "$out")
    if [ -t 1 ]; then run "${command[@]}"   # a terminal shows a live line
    else run "${command[@]}" > >(tee -a "$log")
    fi || fail "training ended with status $?: see above"
    keep_output
}

# trained_steps: of the newest checkpoint
trained_steps() { "$program" info "$out" | sed -n 's/^trained *\([0-9][0-9]*\) steps.*/\1/p'; }

samples() {
    printf '%s\n' "Once upon a time" "The president of the United States" "In a shocking finding, scientists" \
        >"$out/prompts.txt"
    stage samples
    run "$program" sample --model "$model" --prompts "$out/prompts.txt" --tokens 100 --seed 1 >"$out/samples.tmp" ||
        fail "sampling failed: see above"
    mv "$out/samples.tmp" "$out/samples.jsonl"
}

# evaluate NAME FILE ARGUMENTS…: writes OUT/eval/NAME.json, unless it is that of the newest checkpoint, or FILE,
# which the arguments name, does not exist.
evaluate() {
    local result=$out/eval/$1.json what=$1 file=$2
    shift 2
    if ! compgen -G "$file" >/dev/null; then
        echo "$what: not evaluated: no $file"
        return
    fi
    # partial: of an interrupted eval of earlier versions
    if grep -qs "^ *\"step\": $steps,\$" "$result" && ! grep -q '^ *"partial": ' "$result"; then
        echo "$what: evaluated at step $steps"
        return
    fi
    stage "evaluation: $what"
    run "$program" eval --model "$model" --tokenizer "$tokenizer" "$@" --json "$result" ||
        fail "evaluation of $what failed: see above"
}

evaluations() {
    mkdir -p "$out/eval"
    evaluate validation "$val_shards" --data "$val_shards" --windows "$windows"
    local stream task file
    for stream in $streams; do
        file=$sets/published/${stream}_test_000000.bin
        evaluate "${stream}_loss" "$file" --data "$file" --windows "$windows"
    done
    for task in $tasks; do
        file=$sets/eval/$task.jsonl
        evaluate $task "$file" --task "$file"
    done
}

running='' smoke_options=()
streams="lambada wikitext2 ptb"   # of the paper's table; the task of LAMBADA is another file
tasks="lambada lambada_published hellaswag cbt_CN cbt_NE"
if [ -n "$smoke" ]; then
    streams="stories_1 stories_2 stories_3"
    tasks="last_word_1 last_word_2 recall cloze_1 cloze_2"
    shards="$here/data/starter/starter_train_*.bin"
    val_shards="$here/data/starter/starter_val_*.bin"
    tokenizer=$here/data/starter/vocab.bpe
    windows=${windows:-40}
    for default in --steps=200 --batch=4 --total-batch=1024 --save-every=50 --val-every=100 --val-windows=20 \
        --sample-every=0; do
        case " ${options[*]:-} " in *" ${default%%=*}"[\ =]*) ;; *) smoke_options+=("$default") ;; esac
    done
fi
windows=${windows:-16000}
check_python
build
vocabulary
training_data
[ -n "$smoke" ] || evaluation_data
train
[ -z "$smoke" ] || evaluation_data   # after training: the sets are in $out
steps=$(trained_steps)
[ -n "$steps" ] || fail "$out: no checkpoint: train with --save-every above 0"
model=$(printf '%s/step_%08d' "$out" "$steps")   # the last one, not best
samples
evaluations
stage report
run "$python" dev/plot/report.py "$out" || fail "no report: see above"
