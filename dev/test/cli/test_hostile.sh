#!/bin/sh
# test_hostile.sh BINARY: file names and malicious files: names that contain escape sequences, checkpoints with such
# metadata, files for which a slow algorithm would take minutes.
# shellcheck disable=SC2086  # a list of options

. "$(dirname "$0")/../lib.sh"
sizes="--layers 1 --heads 2 --channels 4 --block-size 8 --vocab-size 257 --batch 2 --total-batch 16 --val-every 0"

# add_metadata FILE TEXT: inserts entries, "key":"value", …, at the start of a safetensors file's __metadata__, whose
# checksum gets another name.
add_metadata() {
    length=$(od -An -tu8 -N8 "$1")
    { little 8 $((length + $(printf '%s' "$2" | wc -c))); printf '{"__metadata__":{%s' "$2"; tail -c +26 "$1"; } |
        sed 's|"header_|"Header_|' >edited
    mv edited "$1"
}
# replace_metadata RUN TEXT: the entries of step 2 take the place of its tokenizer and data.
replace_metadata() {
    for file in "$1"/step_00000002/*.safetensors; do
        sed 's|"tokenizer":|"tokenizzz":|; s|"option.data":|"option.dxta":|' "$file" >edited && mv edited "$file"
        add_metadata "$file" "$2"
    done
}
# printable FILE: true if it has only lines of valid UTF-8 without control characters.
printable() {
    iconv -f UTF-8 -t UTF-8 "$1" >/dev/null 2>&1 && ! LC_ALL=C grep -q "$(printf '[\001-\010\013-\037\177]')" "$1"
}
# seconds N ARGUMENTS…: runs the binary with at most N seconds of CPU time.
seconds() (ulimit -t "$1" && shift && exec "$binary" "$@")
# says_little STATUS ARGUMENTS…: the command ends with this status and prints only printable text.
says_little() {
    wanted=$1
    shift
    execute tost "$@"
    check "'$*': exit status $status, expected $wanted: $(cat stderr)" [ $status -eq "$wanted" ]
    check "'$*': stdout is printable" printable stdout
    check "'$*': stderr is printable" printable stderr
}

# ---- File names with control characters or quotes: a resumed run finds its data; with quotes, the printed command works

: >vocab.bpe
awk 'BEGIN { for (i = 0; i < 2000; i++) printf "%d and ", i * i }' >text.txt
for name in "$(printf 'a\nb\tc\033[31m')" "$(printf '\303\251\343\202\202 \\xff \302\205')" \
    "it's \$name ü 語 *?["; do
    mkdir "$name"
    cp vocab.bpe "$name"
    says_little 0 tokenize --tokenizer vocab.bpe --val-frac 0 --out "$name/x" text.txt
    says_little 0 --data "$name/x_train_000000.bin" $sizes --steps 2 --sample-tokens 4 --out "$name/run"
    sed -n "s|^continue *$binary ||p" stdout >command
    says_little 0 --resume --out "$name/run" --steps 3
    check "a run in '$name' is resumed with its data and tokenizer" [ -f "$name/run/step_00000003/model.safetensors" ]
    says_little 0 info "$name/run"
    says_little 0 eval --model "$name/run" --data "$name/x_train_000000.bin"
done
check "the printed command to continue works: $(cat command)" sh -c "'$binary' $(cat command) --quiet" 2>stderr
name=$(printf 'x\033[31m')
ln -s "$binary" "$name"
"./$name" --data "$name" --help >stdout
check "--help with a hostile program name and value is printable" printable stdout
check "--help shows the program name escaped" says 'x\x1b[31m' stdout

# ---- A checkpoint whose metadata would control the terminal ----------------------------------------------------------

run tokenize --tokenizer vocab.bpe --val-frac 0 --out plain --quiet text.txt
run --data plain_train_000000.bin $sizes --steps 2 --out run --quiet
evil='\u001b]0;owned\u0007\u009b31m\u202e\r\nline'
cp -R run evil
rm evil/*/vocab.bpe
replace_metadata evil "\"tokenizer\":\"$evil\",\"option.data\":\"$evil.bin\",\"option.$evil\":\"$evil\","
says_little 0 info evil
check "info shows the metadata escaped" says '\x1b]0;owned\x07\xc2\x9b31m\xe2\x80\xae\r\nline' stdout
says_little 0 eval --model evil --data plain_train_000000.bin
says_little 1 sample --model evil --tokens 3
says_little 1 --resume --out evil --steps 3
check "an error is one line" one_line stderr
says_little 0 --init evil --data plain_train_000000.bin --steps 1 --seq 8 --batch 2 --total-batch 16 --out tuned

# ---- Files outside the run that its metadata names: only the command line opens them ---------------------------------

cp -R run logged
mv logged/log.csv elsewhere.csv
cp elsewhere.csv before
for part in model optimizer; do
    add_metadata logged/step_00000002/$part.safetensors '"option.log":"elsewhere.csv",'
done
run --resume --out logged --steps 3
check "the new log begins at step 3" [ "$(sed 1d logged/log.csv | cut -d, -f1)" = 3 ]
check "a log elsewhere is not changed" cmp -s before elsewhere.csv
cp -R run named
rm named/*/vocab.bpe
mkfifo pipe
replace_metadata named '"tokenizer":"pipe",'
refuses 1 "timeout 10 $binary sample --model named --tokens 3" "no vocab.bpe" "--tokenizer"
run sample --model named --tokenizer vocab.bpe --tokens 3

# ---- Links and FIFOs with the names of temporary files ---------------------------------------------------------------

# replaces FILE: it is a new file, and the target of the link that had its temporary name is as before.
replaces() { [ -s "$1" ] && [ -f "$1" ] && [ ! -L "$1" ] && [ ! -s target ]; }
: >target
ln -s target scores.json.tmp
run eval --model run --data plain_train_000000.bin --json scores.json
check "eval --json does not follow a link" replaces scores.json
mkfifo other.json.tmp
cat other.json.tmp >/dev/null &   # the reader without which opening a FIFO waits
reader=$!
(ulimit -t 10; exec timeout -k 1 20 "$binary" eval --model run --data plain_train_000000.bin --json other.json) \
    >stdout 2>stderr
check "eval --json does not write to a FIFO: exit status $?" cmp -s scores.json other.json
kill $reader 2>/dev/null

# ---- Files with so many entries that searching them would take minutes -----------------------------------------------

cp -R run many
add_metadata many/step_00000002/model.safetensors \
    "$(awk 'BEGIN { for (i = 0; i < 200000; i++) printf "\"x%d\":\"%d\",", i, i }')"
refuses 1 "seconds 10 info many/step_00000002" "more than 4096 entries"
awk 'BEGIN { for (i = 0; i < 300000; i++) printf "%s\"%d\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}",
                                                 i ? "," : "{", i; printf "}" }' >header
{ little 8 "$(wc -c <header)"; cat header; } >tensors.safetensors
refuses 1 "seconds 10 info tensors.safetensors" "tensors.safetensors: " "transformer.wte.weight"
finish
