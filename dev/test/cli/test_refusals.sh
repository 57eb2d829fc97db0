#!/bin/sh
# test_refusals.sh BINARY: runs the cases of refusals.txt: invalid options, files and environments. PYTHON, default
# python3, runs scripts. Each case runs in a folder that contains
#   vocab.bpe, other.bpe    a tokenizer without merges (tokens are bytes), and one with one merge
#   good.bin                a shard of 64 tokens
#   run                     a run of a small model with checkpoints of steps 1 and 2
#   tiny, a.jsonl, swag.jsonl             text, and an example of eval --task
#   fifo, shut, bare/x.bin                a FIFO, a folder that is not writable, good.bin without a tokenizer beside it
# and must not write to it.
# shellcheck disable=SC2046,SC2059,SC2086  # lists are split into words; the format of poke is an argument

[ "$TMPDIR" ] || [ ! -w /dev/shm ] || export TMPDIR=/dev/shm   # hundreds of small files: disks are slow
. "$(dirname "$0")/../lib.sh"
export LC_ALL=C
unset TERM COLUMNS POSIXLY_CORRECT MAKEFLAGS MAKELEVEL
mkdir bin template case
ln -s "$binary" bin/tost
PATH=$dir/bin:$PATH
unset -f tost   # the link, which gives messages a short name

# ---- Helpers for set-up lines and commands ---------------------------------------------------------------------------

# poke FILE OFFSET TEXT: overwrites bytes; TEXT is a printf format.
poke() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null; }
# cut_to FILE BYTES: keeps the first BYTES bytes.
cut_to() { head -c "$2" "$1" >cut.tmp && mv cut.tmp "$1"; }
# replace FILE FROM TO: sed s/FROM/TO/, also for binary files. The length of a safetensors header must not change; its
# checksum gets another name.
replace() { sed "s/$2/$3/; s/\"header_crc32/\"Header_crc32/" "$1" >replace.tmp && mv replace.tmp "$1"; }
# corrupt FILE: sets its last float to NaN.
corrupt() { poke "$1" $(($(wc -c <"$1") - 4)) '\377\377\377\377'; }
# overflow FILE: sets its last four floats to 3.4e38.
overflow() { poke "$1" $(($(wc -c <"$1") - 16)) "$(for i in 1 2 3 4; do printf '%s' '\377\377\177\177'; done)"; }
# as_user COMMAND…: runs the command as a user for whom file permissions apply.
as_user() {
    if [ "$(id -u)" -ne 0 ]; then "$@"; else setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; fi
}

model="--layers 1 --heads 2 --channels 4 --block-size 8 --vocab-size 257 --batch 2 --total-batch 16 --steps 1"
sizes="$model --quiet"
train="--data good.bin $sizes"
to_new="--tokenizer vocab.bpe --out new"
task="eval --model run --tokenizer vocab.bpe --task"
first=run/step_00000001/model.safetensors
second=run/step_00000002
dev=$repo/dev
alone="$python -S -E -s"   # without installed packages

# ---- The folder that each case starts with ---------------------------------------------------------------------------

cd template || exit 1
: >vocab.bpe
printf 'a b\n' >other.bpe
printf 'a\000b\n' >nul
shard $(seq 1 64) >good.bin
echo 'some text' >tiny
echo '{"text": "1 2 3"}' >a.jsonl
echo '{"context": "1", "answer": 1, "choices": [" 2", " 3", " 4", " 5"]}' >swag.jsonl
tost ${model% --steps 1} --memory 0 --data good.bin --steps 2 --save-every 1 --quiet --out run 2>../stderr
check "the small model is trained: $(cat ../stderr)" [ -f $second/model.safetensors ]
mkdir shut bare
mkfifo fifo
cp good.bin bare/x.bin
cd ..
chmod -R go+rX .
chmod 555 template/shut
[ $failed -eq 0 ] || finish

# ---- The cases -------------------------------------------------------------------------------------------------------

# fresh_folder: copies the template, runs the set-up lines of the case and makes all files older than `stamp`.
fresh_folder() {
    rm -rf case
    cp -R template case
    (cd case && eval "$setup") </dev/null || fault="$fault; its set-up failed"
    find case -exec touch -h -t 200001010000 {} +
    before=$(contents)
}
# contents: lists all names in the folder, and again those of files written since fresh_folder.
contents() { find case -print ! -type d -newer stamp -print; }
# possible COMMAND: whether the case can be run here: by another user, with /dev/full or limited memory, without MPI,
# with Python and its packages.
possible() {
    case $1 in
        *as_user*) as_user tost --help ;;
        */dev/full*) [ -c /dev/full ] ;;
        *'ulimit -v'*) (ulimit -v 4000000; exec tost --help) ;;
        *OMPI* | *SLURM_STEP*) ! grep -q MPI_Init "$binary" ;;
        *reproduce.sh*) command -v bash ;;
        *'$alone'*) "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ;;
        *'$python'*) has numpy matplotlib ;;
    esac >/dev/null 2>&1
}
# run_case STATUS COMMAND "FRAGMENT | FRAGMENT …": runs one case and checks its result.
run_case() {
    fault=''
    [ -z "$setup" ] && [ "$fresh" ] || fresh_folder
    fresh=$([ "$setup" ] || echo yes)
    (cd case && eval "$2") >stdout 2>stderr </dev/null
    status=$? message='' lines=0
    while IFS= read -r text; do message=$text lines=$((lines + 1)); done <stderr
    [ $status -eq "${1%+}" ] || fault="$fault; exit status $status, expected ${1%+}"
    [ $lines -eq 1 ] || [ "$1" != "${1%+}" ] || fault="$fault; $lines lines on stderr, expected 1"
    case $2,$message in *'$dev/'* | 'make '* | *,'tost: '*) ;; *) fault="$fault; the message does not begin with 'tost: '" ;; esac
    fragments="$3 | "
    while [ "$fragments" ]; do
        fragment=${fragments%% | *} fragments=${fragments#* | }
        case $message in *"$fragment"*) ;; *) fault="$fault; no '$fragment' in the message" ;; esac
    done
    [ ! -s stdout ] || fault="$fault; output on stdout"
    [ "$(contents)" = "$before" ] || fault="$fault; files were written" fresh=''
    check "line $number, $2: ${fault#; }: $message" [ -z "$fault" ]
}

touch -t 200101010000 stamp
sed "s|\$first|$first|g; s|\$second|$second|g" "$repo/dev/test/cli/refusals.txt" >table
number=0 setup='' last='' fresh=''
while IFS= read -r line; do
    number=$((number + 1))
    case $line in
        '#'* | '') continue ;;
        ': '*) setup="$setup${line#: }; " ; continue ;;
        '& '*) setup=$last line=${line#& } ;;
    esac
    rest=${line#* | } command=${rest%% | *}
    if possible "$command"; then
        run_case "${line%% | *}" "$command" "${rest#* | }"
    else
        skip "line $number, $command: not possible here"
    fi
    last=$setup setup=''
done <table
finish
