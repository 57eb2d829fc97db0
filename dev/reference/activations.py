"""What a trained model computes for a text. Needs torch, numpy, safetensors and tiktoken."""

import re

import numpy as np
import torch
from safetensors import safe_open

from gpt2_encoding import load_tokenizer
from tost import Tost, find_model

SEPARATOR = re.compile(r"(?:\r?\n)?^<\|endoftext\|>[ \t\r]*(?:\n|\Z)", re.M)   # between documents, as in tokenize


class Activations:
    """Of a model (file, checkpoint folder or run) and the first T tokens of a text, as many as the model can read;
    text_tokens is their number in the whole text. numpy arrays: tokens (T); offsets (T+1), token t is the bytes
    text[offsets[t] : offsets[t + 1]]; loss (T), -log p(token t | tokens before it) in nats, NaN for the first;
    memberships pi (L,nh,T); projected tokens z (L,nh,T,hs). And model, the name of its file, and step."""

    @torch.no_grad()
    def __init__(self, path, text, tokenizer=None):
        path, encoding = find_model(path), load_tokenizer(path, tokenizer)
        model, self.model = Tost.from_checkpoint(path), str(path)
        with safe_open(path, framework="pt") as file:
            self.step = int((file.metadata() or {}).get("step", 0))
        first, *more = map(encoding.encode_ordinary, SEPARATOR.split(text))
        ids = first + [i for document in more for i in (encoding.eot_token, *document)]
        self.text_tokens, ids = len(ids), torch.tensor(ids[: model.config.max_seq()])
        if len(ids) == 0 or ids.max() >= model.config.vocab_size:
            raise ValueError(f"{path}: {'the tokenizer is that of another model' if len(ids) else 'the text is empty'}")
        pieces, layers = encoding.decode_tokens_bytes(ids.tolist()), [block.attn for block in model.transformer.h]
        self.tokens, self.text, self.offsets = ids.numpy(), b"".join(pieces), np.cumsum([0, *map(len, pieces)])
        z = []
        for layer in layers:
            layer.register_forward_pre_hook(lambda layer, inputs: z.append(layer.project(*inputs)[0]))
        loss = torch.nn.functional.cross_entropy(model(ids[None])[0][0, :-1], ids[1:], reduction="none")
        if not loss.isfinite().all():
            raise ValueError(f"{path}: the loss is not finite; the weights have diverged: use an earlier checkpoint")
        self.loss, self.z = np.append(np.float32("nan"), loss), torch.stack(z).numpy()
        self.pi = torch.stack([layer.membership(one[None].square())[0] for layer, one in zip(layers, z)]).numpy()
