#!/bin/sh
# test_refusals.sh BINARY: every case of refusals.txt: what a user gets for a bad option, file or environment, to the
# letter. Each is run in a folder of its own that holds
#   vocab.bpe, other.bpe    bytes as tokens, and one merge more
#   good.bin                a shard of 64 tokens
#   run                     a model of some thousand parameters after updates 1 and 2
#   tiny, a.jsonl, swag.jsonl, cbt.txt    text, and examples of the three tasks
# and that must be the same afterwards, to the byte.

[ "$TMPDIR" ] || [ ! -w /dev/shm ] || export TMPDIR=/dev/shm   # hundreds of small files: disks are slow
. "$(dirname "$0")/lib.sh"
table=$repo/dev/test/refusals.txt
export OMP_NUM_THREADS=1 LC_ALL=C
unset TERM COLUMNS POSIXLY_CORRECT
mkdir bin stock case
ln -s "$binary" bin/tost
PATH=$dir/bin:$PATH

# ---------------------------------------------------------------------------------------------
# What set-up lines call

# shard TOKEN…: an llm.c shard of them.
shard() { header 20240520 1 $#; little 2 "$@"; }
# poke FILE OFFSET TEXT: writes over what is there; TEXT as printf takes it.
# shellcheck disable=SC2059
poke() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null; }
# cut_to FILE BYTES: bytes from its beginning; negative: all but so many.
cut_to() { head -c "$2" "$1" >cut.tmp && mv cut.tmp "$1"; }
# swap FILE FROM TO: in a file of any bytes, as sed does; of the same length in a header of safetensors.
swap() { sed "s/$2/$3/" "$1" >swap.tmp && mv swap.tmp "$1"; }
# spoil FILE: its last number of 32 bits is none.
spoil() { poke "$1" $(($(wc -c <"$1") - 4)) '\377\377\377\377'; }
# tensors JSON [BYTES]: a safetensors file of that header and so many zero bytes.
tensors() { little 8 ${#1}; printf '%s' "$1"; head -c "${2:-0}" /dev/zero; }
# long N: so many letters.
long() { head -c "$1" /dev/zero | tr '\0' Z; }
# as_user COMMAND…: by one whom permissions hold back.
as_user() {
    if [ "$(id -u)" -ne 0 ]; then "$@"; else setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; fi
}
# memory KIB COMMAND…: with so much address space.
memory() (ulimit -v "$1" && shift && exec "$@")

narrow="--heads 2 --channels 4 --block-size 8 --vocab-size 257 --batch 2 --total-batch 16 --steps 1 --quiet"
sizes="--layers 1 $narrow"
train="--data good.bin $sizes"
to_new="--tokenizer vocab.bpe --out new"
task="eval --model run --tokenizer vocab.bpe --task"
first=run/step_00000001/model.safetensors   # of which cases name the file itself
second=run/step_00000002

# ---------------------------------------------------------------------------------------------
# The stock

cd stock || exit 1
: >vocab.bpe
printf 'a b\n' >other.bpe
# shellcheck disable=SC2046
shard $(seq 1 64) >good.bin
echo 'some text' >tiny
echo '{"text": "1 2 3"}' >a.jsonl
echo '{"ctx": "1", "label": 1, "endings": ["2", "3", "4", "5"]}' >swag.jsonl
awk 'BEGIN { for (k = 1; k <= 20; k++) print k " a"; print "21 XXXXX b\t3\t\t1|2|3|4|5|6|7|8|9|0" }' >cbt.txt
# shellcheck disable=SC2086
tost --layers 1 --heads 2 --channels 4 --block-size 8 --vocab-size 257 --batch 2 --total-batch 16 --data good.bin \
    --steps 2 --save-every 1 --quiet --out run 2>../stderr
check "the stock is made: $(cat ../stderr)" [ -f $second/model.safetensors ]
cd ..
chmod -R go+rX .
[ $failed -eq 0 ] || finish

# ---------------------------------------------------------------------------------------------
# The cases

newline='
'

# All names, and what the files hold but for large ones.
snapshot() { find case \( -type f -size -1024k -exec cksum {} + \) -o -print; }
# whole FILE: sets `text` to all of it.
whole() {
    text=
    while IFS= read -r text_line || [ "$text_line" ]; do text=$text$text_line$newline; done <"$1"
}

# What differs from machine to machine, and what is long, in a word.
plain='s/ZZZ*/Z…Z/g; s/CRC-32 is [0-9a-f]*, but was [0-9a-f]*/CRC-32 is H, but was H/
s/needs [0-9.]* [A-Z]iB/needs N GiB/'

number=0 setup='' skipped_by='' expected='' fresh=''
# run_case COMMAND STATUS EXPECTED: EXPECTED is all of stderr.
run_case() {
    if [ "$setup" ] || [ -z "$fresh" ]; then
        rm -rf case
        cp -R stock case
        (cd case && eval "$setup") </dev/null || check "line $number: set-up of $1" false
        snapshot >before
        fresh=$([ "$setup" ] || echo yes)
    fi
    (cd case && eval "$1") >stdout 2>stderr </dev/null
    status=$?
    snapshot >after
    sed "$plain" stderr >plainly
    whole plainly
    check "line $number, $1: status $2 wanted, $status came" [ $status -eq "$2" ]
    check "line $number, $1: '$3' wanted, '$text' came" [ "$text" = "$3" ]
    check "line $number, $1: something on stdout" empty stdout
    cmp -s before after || fresh=''
    check "line $number, $1: something was written" cmp -s before after
}

while IFS= read -r line; do
    number=$((number + 1))
    case $line in
        '#'* | '') ;;
        ': '*) setup=$setup${line#: }$newline ;;
        '? '*) eval "${line#? }" >/dev/null 2>&1 || skipped_by=${line#? } ;;
        '$ '*) command=${line#$ } ;;
        '> '*) expected=$expected${line#> }$newline ;;
        [0-9]*)
            if [ "$skipped_by" ]; then
                skip "line $number, $command: not where '$skipped_by' fails"
            else
                run_case "$command" "${line%% *}" "${expected}tost: ${line#* }$newline"
            fi
            setup='' skipped_by='' expected=''
            ;;
        *) check "line $number of refusals.txt says nothing: $line" false ;;
    esac
done <"$table"
check "the last case is whole" [ -z "$setup$expected" ]
finish
