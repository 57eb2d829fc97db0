#!/bin/sh
# transformers_cache_renamed.sh: since 5.24, generate of transformers passes the KV cache as cache, not past_key_values.
# A custom model whose forward takes past_key_values and **kwargs, as is common in code for trust_remote_code, silently
# loses it: each step after the first sees only the last token, and the output is wrong. Deprecation warnings are the
# only hint.
#
# versions   transformers 5.23.0 and 5.24.0, torch 2.15.0 (PyPI), on the CPU
# input      a small GPT-2 with random weights, wrapped in a custom PreTrainedModel; a prompt of 10 tokens, 5 new ones,
#            greedy
# behaviour  generate of 5.24 makes a DynamicCache and passes the last token and cache=... to forward, whose **kwargs
#            takes the cache. A cache that forward returns as past_key_values comes back as cache, too.
# seen       5.23.0: equal to the tokens with use_cache=False: True; past_key_values in 5 of 5 calls
#            5.24.0: equal to the tokens with use_cache=False: False; past_key_values in 0 of 5 calls
#
# Needs Python 3.11 or newer with venv and pip. Exits with 1 if the output is another one.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >generate.py <<'END'
import torch
import transformers
from transformers import GenerationMixin, GPT2Config, GPT2LMHeadModel, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class CustomModel(PreTrainedModel, GenerationMixin):
    config_class = GPT2Config

    def __init__(self, config):
        super().__init__(config)
        self.inner = GPT2LMHeadModel(config)
        self.states = []  # whether each call had one
        self.post_init()

    def forward(self, input_ids, past_key_values=None, attention_mask=None, use_cache=True, **kwargs):
        self.states.append(past_key_values is not None)
        out = self.inner(input_ids, past_key_values=past_key_values, attention_mask=attention_mask, use_cache=use_cache)
        return CausalLMOutputWithPast(logits=out.logits, past_key_values=out.past_key_values)


torch.manual_seed(0)
config = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=None)
model = CustomModel(config).eval()
for p in model.parameters():
    torch.nn.init.normal_(p, std=0.3)
prompt = torch.randint(1, 50, (1, 10))
options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
tokens, states = model.generate(prompt, **options), model.states
equal = torch.equal(tokens, model.generate(prompt, use_cache=False, **options))
print(f"{transformers.__version__}: equal to the tokens with use_cache=False: {equal};",
      f"past_key_values in {sum(states[:5])} of 5 calls")
END
python3 -m venv venv
for version in 5.23.0 5.24.0; do
    venv/bin/pip install -q --disable-pip-version-check torch==2.15.0 transformers==$version
    venv/bin/python generate.py
done | tee seen
cat >expected <<'END'
5.23.0: equal to the tokens with use_cache=False: True; past_key_values in 5 of 5 calls
5.24.0: equal to the tokens with use_cache=False: False; past_key_values in 0 of 5 calls
END
cmp seen expected
