#!/bin/sh
# test_huggingface.sh BINARY: tests export_hf.py and import_hf.py with Hugging Face transformers, and
# lm-evaluation-harness on the exported model and on lm_eval_tost.py.
#   PYTHON    default python3; tests that need a package it lacks are skipped
#   QUICK=1   nothing: importing torch and transformers takes several seconds

. "$(dirname "$0")/../lib.sh"
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 HF_HOME="$dir/home" HF_DATASETS_CACHE="$dir/home"
export TRANSFORMERS_VERBOSITY=error TOKENIZERS_PARALLELISM=false LMEVAL_LOG_LEVEL=ERROR
TOST_SHARED=$(cd "$repo" && cd "${TOST_SHARED:-../shared}" 2>/dev/null && pwd)
export TOST_SHARED

if [ -n "${QUICK:-}" ]; then
    skip "export to Hugging Face: only in make test_all"
    finish
fi
if ! has torch safetensors transformers tokenizers tiktoken; then
    skip "$python has no torch, safetensors, transformers, tokenizers or tiktoken: export to Hugging Face"
    finish
fi
"$python" "$repo/dev/test/cli/huggingface.py" "$binary" >report 2>errors
status=$?
check "dev/test/cli/huggingface.py completes: $(tail -n 3 errors)" [ $status -eq 0 ]
counted report
grep '^skipped' report && skipped=$((skipped + $(grep -c '^skipped' report)))
"$python" "$repo/dev/reference/export_hf.py" model.safetensors cli >stdout 2>stderr
status=$?
check "export_hf.py as a command: $(cat stderr)" [ $status -eq 0 -a -s cli/config.json ]
"$python" "$repo/dev/reference/tost.py" generate --model model.safetensors --prompt 'Once upon' --tokens 30 \
    --temperature 0 >theirs 2>stderr
"$binary" sample --model model.safetensors --prompt 'Once upon' --tokens 30 --temperature 0 >ours 2>/dev/null
check "tost.py generate writes the text of sample --temperature 0: $(cat stderr)" cmp -s ours theirs
finish
