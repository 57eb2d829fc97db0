#!/bin/sh
# bench.sh BENCH: measures the limits of the machine, the trainer, and PyTorch and tiktoken if installed, in one run.
# Prints `key value unit` lines, and the speed of the matrix product by shape. BENCH is dev/bench/bench.
#   TEXT, VOCAB   a text and a vocab.bpe for tokenize
#   PYTHON        Python interpreter, with torch and tiktoken if available (default: python3)
set -u
[ -z "${TEXT:-}" ] || [ -n "${VOCAB:-}" ] || { echo "TEXT needs VOCAB, a vocab.bpe" >&2; exit 1; }
processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
echo "$(date -u +%F), $(nproc) × $processor, commit $(git rev-parse --short HEAD 2>/dev/null || echo none)"
for part in limits train small decode tssa products; do "$1" $part || exit 1; done

if [ -n "${TEXT:-}" ]; then   # median of 3 runs after a warm-up, so that the text is in the page cache
    work=$(mktemp -d) || exit 1
    trap 'rm -rf "$work"' EXIT
    for run in 0 1 2 3; do
        rm -rf "$work/shards"
        start=$(date +%s.%N)
        ./train_gpt_tost tokenize --tokenizer "$VOCAB" --out "$work/shards/x" --quiet "$TEXT" >&2 || exit 1
        [ $run -eq 0 ] || echo "$start $(date +%s.%N)"
    done | awk -v n="$(wc -c <"$TEXT")" '{ print n / ($2 - $1) / 1e6 }' | sort -g | sed -n '2s/.*/tokenize & MB\/s/p'
else echo "skipped: tokenize: no text (set TEXT and VOCAB)"
fi
"${PYTHON:-python3}" dev/bench/peers.py ${TEXT:+--text "$TEXT" --vocab "$VOCAB"}
