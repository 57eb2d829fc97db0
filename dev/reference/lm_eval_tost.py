"""lm-evaluation-harness on a run of the trainer, without exporting it. Options are those of the lm_eval command:

    python dev/reference/lm_eval_tost.py --model tost --model_args path=out/base --tasks lambada_openai,hellaswag

It uses the model in PyTorch and reads every sequence whole: slow, but independent of the trainer and of the Hugging
Face model. Needs torch, safetensors, tiktoken and lm_eval.
"""

import sys

import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from gpt2_encoding import load_tokenizer
from tost import Tost, generate


@register_model("tost")
class TostLM(TemplateLM):
    def __init__(self, path, tokenizer=None, device=None, **unused):
        super().__init__()
        self.model = Tost.from_checkpoint(path).eval().to(device or "cpu")
        self.encoding, self._device = load_tokenizer(path, tokenizer), device or "cpu"
        self.max_length = self.model.config.block_size

    @property
    def eot_token_id(self):
        return self.encoding.eot_token

    def tok_encode(self, string, add_special_tokens=None, **unused):
        return self.encoding.encode_ordinary(string)

    @torch.no_grad()
    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **unused):
        results = []
        for _, context, choice in requests:
            ids = torch.tensor((context + choice)[-(self.max_length + 1):], device=self._device)
            chosen = ids[-len(choice):]
            scores = self.model(ids[None, :-1])[0][0, -len(choice):].log_softmax(-1)
            total = scores.gather(1, chosen[:, None]).sum().item()
            results.append((total, bool((scores.argmax(-1) == chosen).all())))
        return results

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        totals = []
        for request in requests:
            windows = get_rolling_token_windows(self.tok_encode(request.args[0]), self.eot_token_id, self.max_length, 1)
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            totals.append(sum(total for total, _ in self._loglikelihood_tokens(pairs)))
        return totals

    def generate_until(self, requests, disable_tqdm=False):
        texts = []
        for context, options in (request.args for request in requests):
            prompt = self.tok_encode(context) or [self.eot_token_id]
            ids = generate(self.model, prompt, options.get("max_gen_toks", 256), self.encoding.n_vocab,
                           self.eot_token_id)
            stops = [options["until"]] if isinstance(options["until"], str) else options["until"]
            text, written = "", []
            for i in ids:
                written.append(i)
                text = self.encoding.decode(written)
                if any(stop in text for stop in stops):
                    break
            for stop in stops:
                text = text.split(stop)[0]
            texts.append(text)
        return texts


if __name__ == "__main__":
    sys.exit(cli_evaluate())
