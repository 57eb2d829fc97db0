# tiny.sh: what the tests of the commands share, after lib.sh: in $dir, a tokenizer without merges (tokens are bytes),
# text.txt, its shards tiny_*.bin, and `straight`, a run of 6 steps with checkpoints of steps 3 and 6.
# shellcheck shell=sh disable=SC2086,SC2154  # lists of options are split into words

. "$(dirname "$0")/../lib.sh"
OMP_NUM_THREADS=2

# warns "ARGUMENTS…" FRAGMENT…: the binary succeeds and prints one warning with all fragments.
warns() {
    prints "$@"
    check "one warning: $(cat stderr)" [ "$(grep -c "^$(basename "$binary"): " stderr)" -eq 1 ]
}
# Steps, tokens, losses, learning rate and gradient norm, without the validation losses and the row of step 0.
training_of() { grep -v ^0, "$1/log.csv" | cut -d, -f1-3,5,6; }

: >vocab.bpe
sums 120 >text.txt
sizes="--layers 1 --heads 2 --channels 16 --block-size 32"
step="--batch 2 --total-batch 128"
model="$sizes --vocab-size 257 $step"
data="--data $dir/tiny_train_*.bin --tokenizer $dir/vocab.bpe"
small="$model $data --warmup 1"
fast="--lr 0.003 --dtype fp32"
tiny="$small $fast --val-windows 4 --sample-tokens 8"
never="--val-every 0 --sample-every 0"
bare="--save-every 0 $never"
set -f   # the trainer expands patterns itself
run tokenize --tokenizer vocab.bpe --out tiny --val-frac 0.2 text.txt
run $tiny --steps 6 --save-every 3 --val-every 2 --sample-every 2 --out straight
[ $failed -eq 0 ] || finish
