"""The compression objective R^c of each layer on held-out text, for one or several models, as a PNG or SVG.

    train_gpt_tost inspect --model out/run   --text @story.txt --out trained.safetensors
    train_gpt_tost inspect --model out/start --text @story.txt --out start.safetensors    (train --steps 0)
    coding_rate.py trained.safetensors start.safetensors --out coding_rate.png

Files of one model (on several texts) make one curve: the mean over the texts, with their standard deviation.

What is measured, in nats a token, of n tokens z_t in a layer whose head h has the projection U_h, the
membership Π[h,t], and n_h = Σ_t Π[h,t] tokens (so that Σ_h n_h = n):

    R^c   = Σ_h n_h/n · ½ logdet(I + 1/n_h · U_hᵀ Z diag(Π_h) Zᵀ U_h)
    bound = Σ_h n_h/n · ½ Σ_d log(1 + m[h,d]),   m[h,d] = 1/n_h · Σ_t Π[h,t] (U_hᵀ z_t)[d]²

R^c is the compression term of the maximal coding rate reduction, and the bound its variational form with
f(x) = log(1 + x), both as Wu et al. (ICLR 2025, arXiv 2412.17810, section 3) define them; m is the diagonal of
the matrix in R^c, so that Hadamard's inequality makes the bound the larger one, and equal where no two of a
head's directions are correlated. TSSA is a gradient step on the bound: its factor 1/(1+m) is the derivative of
log(1 + m). U_hᵀ z_t is the w of the trainer, head by head: c_attn of the normalised residual stream.

On the scale: the paper's precision enters as d/ε² before the matrix. Training learns c_attn's scale, which
takes d/ε² up, and the factor in the layer is 1/(1+m) with m of w as it is; so d/ε² = 1 here in units of w.
A larger R^c of a trained model thus says that w has grown as much as that it spreads. So a second measure,
which no scale of a head's w changes: R^c with each head's w scaled to a mean m of 1, as a share of what
directions of equal energy without correlation would have,

    spread = Σ_h n_h/n · logdet(I + M_h · hs/tr M_h) / (hs log 2),   hs channels a head, M_h the matrix in R^c

which is 1 for tokens that fill all directions of their heads alike, and falls as they keep to a few.

On the statistics: in the layer they are causal (a token sees the m of those up to it). Here they are of the
whole text, which is what the layer has at the last token. Π is the layer's own, causal one. What is measured
is what enters the layer's step, not what leaves it. Needs Python 3.10, numpy, matplotlib and safetensors.
"""

import argparse
import math
import sys

from figure import COLOURS, add_file_options, check_file, plain, write  # before pyplot: no display
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from inspected import UNREADABLE, Inspection
from lines import failed, run

MEASURES = ("R^c", "bound", "mean m", "spread")


def head_rates(w, pi):
    """logdet, bound, trace and logdet at unit energy of one head: w (T,hs), pi (T), in float64."""
    w, pi = w.astype(np.float64), pi.astype(np.float64)
    moment = (w * pi[:, None]).T @ w / pi.sum()
    trace, hs = np.trace(moment), len(moment)
    unit = moment * (hs / trace) if trace > 0 else moment
    logdet, unit_logdet = (np.linalg.slogdet(np.eye(hs) + m)[1] for m in (moment, unit))
    return logdet, np.log1p(np.diag(moment)).sum(), trace, unit_logdet


def layer_rates(w, pi):
    """The MEASURES of one layer: w (T,C), pi (nh,T)."""
    share = pi.sum(1, dtype=np.float64) / pi.shape[1]
    hs = w.shape[1] // len(pi)
    heads = [head_rates(part, p) for part, p in zip(np.split(w, len(pi), axis=1), pi) if p.any()]
    logdet, bound, trace, unit = share[pi.any(1)] @ np.array(heads)
    return logdet / 2, bound / 2, trace / hs, unit / (hs * math.log(2))


def rates(inspection):
    """(L,4): the MEASURES of each layer."""
    return np.array([layer_rates(w, pi) for w, pi in zip(inspection.w, inspection.pi)])


def group(inspections):
    """{(model, step): its inspections}, of the same texts."""
    groups = {}
    for one in inspections:
        groups.setdefault((one.model, one.step), []).append(one)
    first, *others = groups.values()
    for other in others:
        same = len(other) == len(first) and all(any(a.same_text(b) for b in first) for a in other)
        if not same:
            raise ValueError(f"{other[0].path}: {other[0].model} is not inspected on the texts that "
                             f"{first[0].model} is: the rates of other texts are no comparison")
    for files in groups.values():
        for i, one in enumerate(files):
            if any(one.same_text(other) for other in files[:i]):
                raise ValueError(f"{one.path}: that text of {one.model} is given twice")
            if one.pi.shape[:2] != files[0].pi.shape[:2]:
                raise ValueError(f"{one.path}: has other layers or heads than {files[0].path}")
    return groups


def draw(curves):
    """curves: {label: (texts,L,4)}."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.9), layout="constrained")
    for i, (label, values) in enumerate(curves.items()):
        colour = COLOURS[i % len(COLOURS)]
        layers = np.arange(1, values.shape[1] + 1)
        mean, deviation = values.mean(0), values.std(0)
        for panel, column, style, name in ((left, 0, "o-", plain(label)), (left, 1, "^:", None),
                                           (right, 3, "o-", plain(label))):
            panel.plot(layers, mean[:, column], style, color=colour, label=name, markersize=4)
            if len(values) > 1:
                panel.fill_between(layers, *(mean[:, column] + s * deviation[:, column] for s in (-1, 1)),
                                   color=colour, alpha=0.15, linewidth=0)
    left.plot([], [], "^:", color="0.4", label="its variational bound", markersize=4)
    left.set(title="coding rate $R^c$", ylabel="nats a token")
    right.set(title="spread: $R^c$ at unit energy, as a share of the most", ylim=(0, 1.02))
    for panel in (left, right):
        panel.set_xlabel("layer")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(color="0.9", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    left.set_ylim(bottom=0)
    left.legend(frameon=False, fontsize=9)
    return figure


def print_numbers(curves):
    for label, values in curves.items():
        texts = f", mean of {len(values)} texts" if len(values) > 1 else ""
        print(f"{label}{texts}\nlayer" + "".join(f"{name:>12}" for name in MEASURES))
        for l, row in enumerate(values.mean(0), 1):
            print(f"{l:5d}" + "".join(f"{value:12.6f}" for value in row))


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="what inspect wrote")
    parser.add_argument("--label", action="append", default=[], help="name of a model, in order; its path")
    add_file_options(parser, "coding_rate.png")
    return parser.parse_args(arguments)


def main(arguments=None):
    args = parse(arguments)
    try:
        check_file(args)
        groups = group([Inspection(path) for path in args.files])
        if len(args.label) > len(groups):
            raise ValueError(f"--label {args.label[-1]}: more labels than models")
        labels = args.label + [f"{model}, step {step}" for model, step in list(groups)[len(args.label):]]
        if len(set(labels)) < len(labels):
            raise ValueError("--label: two models have one name")
        curves = {label: np.array([rates(one) for one in files]) for label, files in zip(labels, groups.values())}
        write(draw(curves), args)
    except UNREADABLE as error:
        return failed(error)
    print_numbers(curves)
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
