#!/bin/sh
# FOLDER=… seeds.sh BINARY: writes the initial inputs of each fuzz target into FOLDER/TARGET/. Uses the binary to write
# checkpoints.
. "$(dirname "$0")/../../lib.sh"

# seed TARGET NAME: its standard input
seed() { mkdir -p "$FOLDER/$1" && cat >"$FOLDER/$1/$2"; }

tokens="0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29"
# The first two bytes select vocabulary, order and T.
# shellcheck disable=SC2086
{
    { little 1 1 7; shard $tokens; } | seed shards llmc
    { little 1 7 7; header 20240801 7 30; little 4 $tokens; } | seed shards wide
    { little 1 6 7; little 2 $tokens; } | seed shards raw
}

# A checkpoint of a tiny model, after the size of its model file in two bytes.
shard 0 1 2 0 1 2 0 1 >data.bin
model="--layers 1 --heads 1 --channels 2 --block-size 2 --vocab-size 3 --batch 1 --total-batch 2"
for bias in 0 1; do
    # shellcheck disable=SC2086
    run $model --bias $bias --data data.bin --steps 1 --val-every 0 --sample-every 0 --out run$bias --quiet
    saved=run$bias/step_00000001
    seed safetensors model$bias <"$saved/model.safetensors"
    size=$(wc -c <"$saved/model.safetensors")
    { little 2 "$size"; cat "$saved/model.safetensors" "$saved/optimizer.safetensors"; } |
        seed checkpoint model$bias
done

# A file with two byte tensors; the second has `elements` bytes starting at `begin`.
while read -r name elements begin; do
    header='{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
    header=$header'"b":{"dtype":"U8","shape":['$elements'],"data_offsets":['$begin,$((begin + elements))']}}'
    { little 8 ${#header}; printf %s "$header"; head -c $((4 + elements)) /dev/zero; } | seed safetensors "$name"
done <<'END'
whole 4 4
overlap 4 2
gap 4 5
empty_past_the_end 0 90
END

# shellcheck disable=SC2059
{
merges='#version: 0.2\n\304\240 t\nh e\n\304\240t he\ni n\n\0'
printf "$merges"'the tin hat\n it'"'"'s 12 \303\251t\303\251' | seed tokenizer words
printf "$merges"'\377\376  \t\r\n<|endoftext|>\n the' | seed tokenizer bytes
}
finish >/dev/null
