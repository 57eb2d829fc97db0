"""Trains variants of ToST, to find out where a short convolution helps and how TSSA could use its past:

    variants.py VARIANT --init MODEL --data GLOB --val-data GLOB --steps N --lr X --out DIR …

VARIANT joins words with +, such as z+ln_2+relative:

    published   the model as published
    z           a causal convolution of width 4 on z; ln_1, ln_2: on the output of this LayerNorm; z+ln_2 is --conv 4
    relative    relative energy: u = Σ_d s (t+1) / (S hs) + hs denom_bias; the first term is of order one at any t
    decay       sums that decay: S[t] = λ S[t-1] + s[t], likewise N and D. λ = exp(-1/τ), and each head learns its τ.
                The initial τ are log-spaced, from 4 to the block size
    mean        adds the first moment: y += β μ, μ = Σ Π z / D; β is learned, one per channel, and starts at 0.1
    memory      each head recalls what came after similar tokens: --memory 1

Without wpe and denom_bias: --init MODEL made with --positions none.

The other options are those of train.py, without --attention; --val-data is required. No weights are saved. The last
line is a JSON object: the loss on all of --val-data, and for each layer the share of the variance of Π that the
position explains there.
Needs Python 3.11 or later, torch, numpy and safetensors.
"""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "plot"))

from cli import command, option_parser, run
from train_options import add_options

parser = add_options(option_parser(__doc__))
parser.add_argument("variant", metavar="VARIANT")
if __name__ == "__main__":
    parser.parse_args()   # --help does not need the packages below

import torch
import torch.nn as nn
import torch.nn.functional as F

import train
from tost import CONV_WIDTH, ENERGY_MIN, MASS_EPS, TSSA, Conv, predict

PLACES, TERMS = ("z", "ln_1", "ln_2"), ("relative", "decay", "mean", "memory")
WINDOWS = 128  # for the share of Π's variance


class Variant(TSSA):
    """TSSA with the changes of `words`. Keeps Π (B,nh,T) of the last forward."""

    def change(self, words, block):
        nh, hs = self.n_head, self.c_attn.out_features // self.n_head
        self.relative, self.decay, self.mean, memory = (word in words for word in TERMS)
        if self.decay:   # λ = exp(-exp(rate)) = exp(-1/τ)
            self.rate = nn.Parameter(-torch.linspace(math.log(4), math.log(block), nh))
        if self.mean:
            self.mean_scale = nn.Parameter(torch.full((nh, 1, hs), 0.1))
        if memory:
            self.memory_scale = nn.Parameter(torch.zeros(nh * hs))

    def sums(self, x):
        """Σ of λ^(t-u) x[u] over u ≤ t, x (B,nh,T,n)."""
        if not self.decay:
            return x.cumsum(2)
        t = torch.arange(x.size(2), device=x.device)
        with torch.autocast(x.device.type, enabled=False):
            return torch.exp(-self.rate.exp()[:, None, None] * (t[:, None] - t).clamp_min(0)).tril() @ x

    def membership(self, s):
        r = s / self.sums(s).clamp_min(ENERGY_MIN)
        if self.relative:
            r = r * self.sums(torch.ones_like(s[..., :1])) / s.size(3)
        if self.denom_bias is not None:
            r = r + self.denom_bias[:, : s.size(2)]
        self.pi = F.softmax(self.temp * r.sum(-1), dim=1)
        return self.pi

    def forward(self, x):
        z = self.project(x)
        s = z.square()
        pi = self.membership(s).unsqueeze(-1)
        D = self.sums(pi) + MASS_EPS
        y = -z * pi / (1 + self.sums(s * pi) / D)
        if self.mean:
            y = y + self.mean_scale * self.sums(z * pi) / D
        if self.memory_scale is not None:
            y = y + self.memory_scale.view(self.n_head, 1, -1) * predict(z, pi)
        return self.c_proj(y.transpose(1, 2).flatten(2).to(x.dtype))


def change(model, words):
    """Makes a model without convolutions and memory the variant, in place."""
    config = replace(model.config, conv=CONV_WIDTH)
    for block in model.transformer.h:
        block.attn.__class__ = Variant
        block.attn.change(words, config.block_size)
        if "z" in words:
            block.attn.conv = Conv(config)
        if "ln_1" in words:
            block.ln_1 = nn.Sequential(block.ln_1, Conv(config))
        if "ln_2" in words:
            block.mlp.conv = Conv(config)


@torch.no_grad()
def explained(trainer):
    """Per layer, the share of the variance of Π, in the first WINDOWS windows of --val-data, that lies between the
    means of the positions."""
    B, shares = trainer.args.batch, []
    layers = [[] for _ in trainer.model.transformer.h]
    windows = min(WINDOWS, trainer.val.samples)
    for first in range(0, windows, B):
        trainer.model(torch.from_numpy(trainer.val.batch(first, min(B, windows - first))[0]).to(trainer.args.device))
        for kept, block in zip(layers, trainer.model.transformer.h):
            kept.append(block.attn.pi)
    for kept in layers:
        pi = torch.cat(kept)
        between = (pi.mean(0) - pi.mean((0, 2))[:, None]).square().sum() * len(pi)
        shares.append(round((between / (pi - pi.mean((0, 2))[:, None]).square().sum()).item(), 3))
    return shares


@command()
def main(arguments):
    args = parser.parse_args(arguments)
    words = set(args.variant.split("+"))
    if words - {"published", *TERMS, *PLACES}:
        raise ValueError(f"{args.variant}: not a variant: join {', '.join(('published', *TERMS, *PLACES))} with +")
    if args.attention != "tssa":
        raise ValueError("--attention: only in train.py")
    torch.set_num_threads(args.threads or torch.get_num_threads())
    trainer = train.Trainer(args, lambda model: change(model, words))
    if not trainer.val:
        raise ValueError("--val-data: missing")
    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "log.csv", "w" if args.overwrite else "x") as log:
        print(",".join(train.COLUMNS), file=log)
        trainer.run(log)
    if args.by_position:
        args.by_position.write_text(json.dumps(trainer.by_position()), encoding="utf-8")
    args.val_batches = 0
    print(json.dumps({"variant": args.variant, "lr": args.lr, "seed": args.seed,
                      "tokens": args.steps * args.total_batch, "loss": round(trainer.validate(), 4),
                      "position_share": explained(trainer)}))


if __name__ == "__main__":
    sys.exit(run(main))
