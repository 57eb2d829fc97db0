#!/bin/sh
# bench.sh BENCH: measures the trainer, the limits of the machine, and PyTorch and tiktoken if installed, in one run,
# and prints a table and the speed of the matrix product by shape. BENCH is dev/bench/bench.
#   TEXT, VOCAB   a text and a vocab.bpe for tokenize (default: those in ../shared)
#   PYTHON        Python interpreter, with torch and tiktoken if available (default: python3)
set -u
bench=$1
python=${PYTHON:-python3}
vocab=${VOCAB:-../shared/data/gpt2/vocab.bpe}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
figures=$work/figures

say() { printf '%s\n' "$*"; }
figure() { awk -v key="$1" '$1 == key { print $2; exit }' "$figures"; }
or_dash() { figure "$1" | grep . || echo -; }
ratio() { awk -v a="$(figure "$1")" -v b="$(figure "$2")" 'BEGIN { if (b > 0) printf "%.2f", a / b; else print "-" }'; }
giga() { awk -v mib="$(figure "$1")" 'BEGIN { if (mib > 0) printf "%.2f", mib * 1048576 / 1e9; else print "-" }'; }
row() { printf '| %s | %s | %s |\n' "$1" "${2:--}" "${3:-}"; }

say "measuring limits, training, decode, TSSA, tokenize, PyTorch and tiktoken: takes minutes" >&2
{
    "$bench" limits
    "$bench" train
    "$bench" decode
    "$bench" tssa
} >> "$figures" || exit 1

# tokenize: median of 3 runs after a warm-up, so that the text is in the page cache
text=${TEXT:-}
if [ -z "$text" ] && [ -r ../shared/data/text/classic_books_50MB.txt.xz ] && command -v xz > /dev/null; then
    text=$work/books.txt
    xz -dc ../shared/data/text/classic_books_50MB.txt.xz > "$text"
fi
if [ -n "$text" ] && [ -r "$vocab" ]; then
    bytes=$(wc -c < "$text")
    for run in 0 1 2 3; do
        rm -rf "$work/shards"
        start=$(date +%s.%N)
        ./train_gpt_tost tokenize --tokenizer "$vocab" --out "$work/shards/books" "$text" > /dev/null 2>&1 || exit 1
        end=$(date +%s.%N)
        [ $run -eq 0 ] || echo "$start $end"
    done | awk -v n="$bytes" '{ print n / ($2 - $1) / 1e6 }' | sort -g | sed -n 2p | sed 's/^/tokenize /' >> "$figures"
else
    say "skipped: tokenize: no text (set TEXT and VOCAB)" >&2
fi
"$python" dev/bench/peers.py ${text:+--text "$text" --vocab "$vocab"} > "$work/peers" 2>"$work/peers.err" ||
    say "skipped: PyTorch and tiktoken: $(tail -1 "$work/peers.err")" >&2
grep '^skipped' "$work/peers" >&2
grep -v '^skipped' "$work/peers" | sed 's/^/peer_/' >> "$figures"

processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo none)
say "$(date -u +%F), $(grep -c '^processor' /proc/cpuinfo) × $processor, commit $commit"
say "limits: sgemm $(figure sgemm) GFLOP/s, memory reads $(figure memory_read) GB/s"
say
row "what" "measured" "for comparison, in the same run"
row "---" "---" "---"
row "training tost-base, B·T = 1,024, tokens/s" "$(figure train)" \
    "matrix products alone $(figure train_matmuls_alone) (ratio $(figure train_share_of_matmuls)); PyTorch \
$(or_dash peer_train_tokens_per_s)"
row "memory of training tost-base, GB" "$(figure train_memory)" "PyTorch $(giga peer_train_peak_memory)"
for at in 10 128 500 1000; do
    row "sampling tost-base at position $at, tokens/s" "$(figure decode_at_$at)" \
        "$(figure decode_bandwidth_at_$at) of memory read bandwidth; PyTorch without a decode state: \
$(or_dash peer_sample_${at}_tokens_per_s)"
done
row "TSSA forward + backward, us per token and layer, T = 1,024" "$(figure tssa_at_1024)" ""
for at in 4096 16384 65536; do
    row "the same, T = $at" "$(figure tssa_at_$at)" "$(ratio tssa_at_$at tssa_at_1024) × T = 1,024"
done
row "tokenize, MB/s" "$(figure tokenize)" \
    "tiktoken: $(or_dash peer_tiktoken_1_thread) on one core, $(or_dash peer_tiktoken_all_threads) on all cores"
say
"$bench" products
