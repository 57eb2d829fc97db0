"""Measures what the membership Π of trained models does: the loss with Π replaced, and what determines Π.

    membership_ablation.py RUN… --val-data GLOB     RUN as in --model: a safetensors file, a checkpoint folder or a run

All losses are on the same windows, the first of --val-data, in float32. A replaced Π is replaced in all layers at once
and in all its uses: the weights of N and D, the factor of y and, with memory, the strength of its writes:

    uniform             1/heads
    mean                for each layer and head, the mean over all windows and positions
    mean by position    for each layer, head and position, the mean over all windows
    another text        Π at the same position of another window, half of all windows further

The means and the other Π are those of the unchanged model on these windows. With memory, y is the sum of two terms, and
each is also left out alone. With y = 0, only the MLPs and their convolutions are left. Then, for each layer:

    position, token     share of the variance that the position or the token id explains: 1 - (variance within the
                        groups) / variance, summed over the heads; both unbiased: if Π is independent of them, 0
    token, rest         the same of the token, in Π minus its mean by position
    entropy             mean over the tokens, divided by log(heads): 1 is uniform
    largest, mean       the largest Π of a token, mean over the tokens;  largest: over all tokens
    temp, denom_bias    smallest, mean and largest value. Π = softmax(temp (Σ s/S + hs denom_bias)) over the heads

For several runs, of the same sizes, all numbers are means ± standard deviations over the runs.
Needs Python 3.11 or later, torch, numpy and safetensors.
"""

import copy
import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "plot"))

from cli import command, need, option_parser, run

parser = option_parser(__doc__)
parser.add_argument("models", nargs="+", metavar="RUN")
parser.add_argument("--val-data", required=True, metavar="GLOB", help="validation shards")
parser.add_argument("--windows", type=int, default=128, metavar="N", help="windows; 0: all (default: 128)")
parser.add_argument("--binary", metavar="FILE", help="train_gpt_tost, to compare the loss with that of its eval")
parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers of each run")
if __name__ == "__main__":
    parser.parse_args()   # --help does not need the packages below
    need("torch", "safetensors", "numpy")

import torch
from safetensors import SafetensorError

from shards import Shards
from tost import Tost, TSSA, predict

EQUAL = 1e-4  # nats per token: allowed difference from eval
BATCH = 8     # windows in memory at a time
# Of Π (n,nh,T) of a layer; the result is expanded to its shape
REPLACEMENTS = {"uniform": lambda pi: torch.full_like(pi, 1 / pi.size(1)),
                "mean": lambda pi: pi.mean((0, 2), keepdim=True),
                "mean by position": lambda pi: pi.mean(0, keepdim=True),
                "another text": lambda pi: pi.roll(-(len(pi) // 2), 0)}


class Probe(TSSA):
    """TSSA that keeps Π (B,nh,T), uses a given Π instead of its own, or leaves out its own term of y."""
    given, tssa, pi = None, True, torch.empty(0)

    def membership(self, s):
        self.pi = super().membership(s) if self.given is None else self.given
        return self.pi

    def forward(self, x):
        if self.tssa:
            return super().forward(x)
        z = self.project(x)
        y = torch.zeros_like(z)
        if self.memory_scale is not None:
            pi = self.membership(z.square()).unsqueeze(-1)
            y = self.memory_scale.view(self.n_head, 1, -1) * predict(z, pi)
        return self.c_proj(y.transpose(1, 2).flatten(2))


def load(path):
    model = Tost.from_checkpoint(path)
    for block in model.transformer.h:
        block.attn.__class__ = Probe
    return model


def with_terms(model, tssa, memory=False):
    """A copy of the model whose y has only these terms."""
    model = copy.deepcopy(model)
    for block in model.transformer.h:
        block.attn.tssa, block.attn.memory_scale = tssa, block.attn.memory_scale if memory else None
    return model


@torch.no_grad()
def measure(model, x, y, given=None):
    """The mean loss on windows x, y (n,T), and Π of each layer, a list of (n,nh,T). given: the Π to use, likewise."""
    total, layers = 0.0, [[] for _ in model.transformer.h]
    for at in range(0, len(x), BATCH):
        for l, block in enumerate(model.transformer.h):
            block.attn.given = given and given[l][at : at + BATCH]
        rows = x[at : at + BATCH]
        total += model(rows, y[at : at + BATCH])[1].item() * len(rows)
        for kept, block in zip(layers, model.transformer.h):
            kept.append(block.attn.pi)
    return total / len(x), [torch.cat(kept) for kept in layers]


def measure_losses(model, x, y):
    """{name: loss}, and the model's own Π."""
    loss, own = measure(model, x, y)
    losses = {"own Π": loss}
    for name, change in REPLACEMENTS.items():
        losses[name] = measure(model, x, y, [change(pi).expand_as(pi) for pi in own])[0]
    if model.config.memory:
        losses["memory off, TSSA on"] = measure(with_terms(model, True), x, y)[0]
        losses["TSSA off, memory on"] = measure(with_terms(model, False, True), x, y)[0]
    losses["y = 0"] = measure(with_terms(model, False), x, y)[0]
    return losses, own


def explained(pi, groups):
    """The share of the variance of Π, pi (n,nh,T), between the groups, groups (n,T): group numbers of the tokens."""
    values = pi.double().transpose(1, 2).flatten(0, 1)   # (n T, nh)
    counts = torch.bincount(groups.flatten()).double()
    sums = torch.zeros(len(counts), values.size(1)).double().index_add_(0, groups.flatten(), values)
    within = (values - (sums / counts.clamp_min(1)[:, None])[groups.flatten()]).square().sum()
    total, n, used = (values - values.mean(0)).square().sum().item(), len(values), counts.count_nonzero().item()
    if total < 1e-14 * n or n == used:   # constant up to rounding; or each token has its own group
        return None
    return 1 - within.item() / (n - used) / (total / (n - 1))


def describe_layer(attention, pi, x):
    """{column: number} of a layer."""
    nh, at = pi.size(1), torch.arange(x.size(1)).expand_as(x)
    row = {"position": explained(pi, at), "token": explained(pi, x), "token, rest": explained(pi - pi.mean(0), x),
           "entropy": (torch.special.entr(pi.double()).sum(1).mean() / math.log(nh)).item() if nh > 1 else None,
           "largest, mean": pi.amax(1).mean().item(), "largest": pi.max().item()}
    for name in ("temp", "denom_bias"):
        values = getattr(attention, name)
        for kind in ("min", "mean", "max"):
            row[f"{name}, {kind}"] = None if values is None else getattr(values, kind)().item()
    return row


def eval_loss(path, args, windows):
    options = ["--model", path, "--data", args.val_data, "--limit", str(windows)]
    done = subprocess.run([args.binary, "eval", *options], capture_output=True, text=True)
    found = re.search(r"^loss +([0-9.]+)", done.stdout, re.M)
    if done.returncode or not found:
        raise ValueError(f"{args.binary} eval: {done.stderr.strip() or 'no loss'}")
    return float(found[1])


def measure_run(path, args):
    model = load(path)
    shards = Shards(args.val_data, model.config.block_size, model.config.vocab_size, "sequential")
    windows = min(args.windows or shards.samples, shards.samples)
    if windows < 2:
        raise ValueError("--windows: another text needs 2 windows")
    x, y = map(torch.from_numpy, shards.batch(range(windows)))
    losses, own = measure_losses(model, x, y)
    if args.binary:
        losses["eval"] = eval_loss(path, args, windows)
        if not abs(losses["eval"] - losses["own Π"]) <= EQUAL:
            raise ValueError(f"{path}: loss {losses['own Π']:.6f}, but {losses['eval']:.6f} in {args.binary} eval")
    return {"model": path, "config": model.config.metadata(), "windows": windows, "loss": losses,
            "layers": [describe_layer(block.attn, pi, x) for block, pi in zip(model.transformer.h, own)]}


def cell(values, digits=4):
    """The mean, and the standard deviation if there are several values; "-" if one is None."""
    if None in values:
        return "-"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def print_table(head, rows):
    first, *widths = (max(map(len, column)) for column in zip(head, *rows))
    for name, *texts in [head, *rows]:
        print(name.ljust(first), *(text.rjust(width + 1) for text, width in zip(texts, widths)))
    print()


def print_report(results):
    first = results[0]
    print(*(result["model"] for result in results))
    print(", ".join(f"{key} {value}" for key, value in first["config"].items()) + f"; {first['windows']} windows\n")
    rows = [[name, cell([one["loss"][name] for one in results]),
             cell([one["loss"][name] - one["loss"]["own Π"] for one in results], 6 if name == "eval" else 4)]
            for name in first["loss"]]
    print_table(["loss", "nats/token", "change"], rows)
    columns = list(first["layers"][0])
    for some in (columns[:6], columns[6:]):
        rows = [[str(l), *(cell([layer[name] for layer in layers]) for name in some)]
                for l, layers in enumerate(zip(*(one["layers"] for one in results)), 1)]
        print_table(["layer", *some], rows)


@command(SafetensorError)
def main(arguments):
    args = parser.parse_args(arguments)
    results = []
    for path in args.models:
        results.append(measure_run(path, args))
        if results[-1]["config"] != results[0]["config"]:
            raise ValueError(f"{path}: not the sizes and options of {args.models[0]}: measure them apart")
    print_report(results)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run(main))
