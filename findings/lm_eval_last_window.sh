#!/bin/sh
# lm-evaluation-harness moves the last window of a document back until it is full, so the last tokens of a text are
# predicted with far more context than those at the beginning of every other window.
#
# version: lm_eval 0.4.13; Python 3.11
# behaviour: of a text of 1,200 tokens and a model of 1,024, get_rolling_token_windows with context_len 1, which
#     loglikelihood_rolling uses, predicts tokens 1 to 1024 after 0 to 1023 others, and token 1025 after 849 others of
#     the text, not after 1. With 2,049 tokens, the last token alone has a window of 1,024
# seen:
#     1200 tokens: window 1 predicts 1024, the first with 1 token of context; window 2 predicts 176, the first with 849
#     2049 tokens: window 1 predicts 1024, the first with 1 token of context; window 2 predicts 1024, the first
#                  with 1; window 3 predicts 1, the first with 1024
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q numpy==2.4.6 jinja2==3.1.6 pyyaml==6.0.3 typing_extensions==4.15.0 requests==2.32.5
"$dir/venv/bin/pip" install -q --no-deps lm_eval==0.4.13
cd "$dir"
"$dir/venv/bin/python" - <<'END'
import importlib.util
import sys
import sysconfig

# The module alone: the package imports transformers and datasets.
path = sysconfig.get_path("purelib") + "/lm_eval/utils.py"
spec = importlib.util.spec_from_file_location("lm_eval_utils", path)
utils = importlib.util.module_from_spec(spec)
spec.loader.exec_module(utils)


def windows(tokens):
    """(tokens that the window predicts, tokens of context of the first of them)"""
    rolling = utils.get_rolling_token_windows(list(range(tokens)), prefix_token=-1, max_seq_len=1024, context_len=1)
    return [(len(predicted), len(context)) for context, predicted in map(utils.make_disjoint_window, rolling)]


for tokens in 1200, 2049:
    parts = [f"window {i} predicts {n}, the first with {context}" for i, (n, context) in enumerate(windows(tokens), 1)]
    print(f"{tokens} tokens: " + "; ".join(parts).replace("with 1;", "with 1 token of context;", 1))
expected = [(1024, 1), (176, 849)], [(1024, 1), (1024, 1), (1, 1024)]
sys.exit(0 if (windows(1200), windows(2049)) == expected else "the behaviour changed")
END
