#!/bin/sh
# test_huggingface.sh BINARY: tests export_hf.py and import_hf.py with Hugging Face transformers, and
# lm-evaluation-harness on the exported model.
#   PYTHON    default python3; tests that need a package it lacks are skipped
#   QUICK=1   nothing: importing torch and transformers takes several seconds

. "$(dirname "$0")/../lib.sh"
export HF_HUB_OFFLINE=1 HF_HOME="$dir/home" HF_DATASETS_CACHE="$dir/home" TOKENIZERS_PARALLELISM=false
export TRANSFORMERS_VERBOSITY=error LMEVAL_LOG_LEVEL=ERROR

slow_tests "export to Hugging Face" torch safetensors transformers tokenizers tiktoken
checks_of "$repo/dev/test/cli/huggingface.py" "$binary"
succeeds "$python" "$repo/dev/reference/export_hf.py" model.safetensors cli
set -- --model model.safetensors --prompt 'Once upon' --tokens 30
run sample --temperature 0 "$@"
mv stdout ours
succeeds "$python" "$repo/dev/reference/tost.py" generate "$@"
check "tost.py generate writes the text of sample --temperature 0" cmp -s ours stdout
finish
