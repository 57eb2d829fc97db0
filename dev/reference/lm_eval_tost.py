"""lm-evaluation-harness on a run of the trainer, without exporting it, for tasks that score choices. Options are those
of the lm_eval command:

    python dev/reference/lm_eval_tost.py --model tost --model_args path=out/base --tasks lambada_openai,hellaswag

It uses the model in PyTorch and reads every sequence whole: slow, but independent of the trainer and of the Hugging
Face model. Needs torch, safetensors, tiktoken and lm_eval.
"""

import sys

try:
    import torch
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
except ImportError as error:
    if "--help" in sys.argv:
        print(__doc__)
        sys.exit()
    sys.exit(f"{error}: pip install -r dev/requirements.txt")

from gpt2_encoding import load_tokenizer
from tost import Tost


@register_model("tost")
class TostLM(TemplateLM):
    def __init__(self, path, tokenizer=None, device=None, **unused):
        super().__init__()
        if not device or device.startswith("cuda") and not torch.cuda.is_available():  # lm_eval's default is cuda:0
            device = "cpu"
        self.model = Tost.from_checkpoint(path).eval().to(device)
        self.encoding, self._device = load_tokenizer(path, tokenizer), device
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

    def unsupported(self, *unused, **options):
        raise NotImplementedError("only tasks that score choices; for others, export the model with export_hf.py")

    loglikelihood_rolling = generate_until = unsupported


if __name__ == "__main__":
    sys.exit(cli_evaluate())
