#!/bin/sh
# sampling_order.sh: transformers divides by the temperature before top_p and top_k, MLX-LM after both; transformers
# applies top_k before top_p, MLX-LM after it. With the same options, the sets of tokens that the same model draws from
# differ in size by up to a factor of 8, so a temperature tuned with top_p in one library does not carry over.
#
# versions   transformers 5.24.0, torch 2.15.0, mlx and mlx-cpu 0.32.4, mlx-lm 0.32.2 (PyPI), on the CPU
# input      1,000 tokens, the n-th with a probability proportional to 1/n
# behaviour  generate of transformers gives the scores that it draws from: the tokens above -inf remain. A sampler of
#            MLX-LM draws 400,000 times from the log-probabilities: the tokens drawn remain. Without temperature and
#            top_k, both keep the same tokens.
# seen       tokens that remain        transformers   MLX-LM
#            top_p 0.9                          473      473
#            top_p 0.9, temperature 0.7          60      473
#            top_p 0.9, temperature 1.5         749      473
#            top_p 0.9, top_k 50                 32       50
#
# Needs Python 3.11 or newer with venv and pip. Exits with 1 if the output is another one.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check transformers==5.24.0 torch==2.15.0 mlx==0.32.4 mlx-cpu==0.32.4 \
    mlx-lm==0.32.2
cat >order.py <<'END'
import mlx.core as mx
import torch
from mlx_lm.sample_utils import make_sampler
from transformers import GPT2Config, GPT2LMHeadModel

V, DRAWS = 1000, 400
LOGPROBS = torch.log_softmax(-torch.log(torch.arange(1, V + 1.0)), 0)


class FixedLogits(GPT2LMHeadModel):
    def forward(self, *args, **options):
        output = super().forward(*args, **options)
        output.logits = LOGPROBS.expand(output.logits.shape)
        return output


def of_transformers(temperature=1.0, top_k=0, top_p=1.0):
    config = GPT2Config(vocab_size=V, n_embd=8, n_layer=1, n_head=1, n_positions=8, bos_token_id=0, eos_token_id=0)
    output = FixedLogits(config).eval().generate(
        torch.tensor([[1]]), do_sample=True, max_new_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p,
        pad_token_id=0, output_scores=True, return_dict_in_generate=True)
    return int(output.scores[0].isfinite().sum())


def of_mlx_lm(temperature=1.0, top_k=0, top_p=1.0):
    mx.set_default_device(mx.cpu)
    mx.random.seed(0)
    sampler = make_sampler(temp=temperature, top_k=top_k, top_p=top_p)
    rows = mx.broadcast_to(mx.array(LOGPROBS.numpy()), (1000, V))
    drawn = set()
    for _ in range(DRAWS):
        drawn.update(sampler(rows).tolist())
    return len(drawn)


print("tokens that remain        transformers   MLX-LM")
for options in ({}, {"temperature": 0.7}, {"temperature": 1.5}, {"top_k": 50}):
    name = ", ".join(f"{key} {value}" for key, value in {"top_p": 0.9, **options}.items())
    print(f"{name:<26}{of_transformers(top_p=0.9, **options):>12}{of_mlx_lm(top_p=0.9, **options):>9}")
END
venv/bin/python order.py | tee seen
cat >expected <<'END'
tokens that remain        transformers   MLX-LM
top_p 0.9                          473      473
top_p 0.9, temperature 0.7          60      473
top_p 0.9, temperature 1.5         749      473
top_p 0.9, top_k 50                 32       50
END
cmp seen expected
