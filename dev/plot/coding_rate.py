"""Plots the coding rate R^c of each layer, for one or more models on the same texts, as a PNG or SVG.

    train_gpt_tost --steps 0 --out out/start                                              (the untrained model)
    train_gpt_tost inspect --model out/run   --text @story.txt --out trained.safetensors
    train_gpt_tost inspect --model out/start --text @story.txt --out start.safetensors
    coding_rate.py trained.safetensors start.safetensors --out coding_rate.png

Several files of one model, each on its own text, give one curve: the mean with a band of one standard deviation.

Notation: the input of a layer is n tokens z_t; head h has the projection U_h, the membership Π[h,t], and
n_h = Σ_t Π[h,t] tokens, so that Σ_h n_h = n. In nats per token,

    R^c   = Σ_h n_h/n · ½ logdet(I + 1/n_h · U_hᵀ Z diag(Π_h) Zᵀ U_h)
    bound = Σ_h n_h/n · ½ Σ_d log(1 + m[h,d]),   m[h,d] = 1/n_h · Σ_t Π[h,t] (U_hᵀ z_t)[d]²

R^c is the compression term of maximal coding rate reduction, and `bound` its variational form with f(x) = log(1 + x),
as defined by Wu et al. (ICLR 2025, arXiv 2412.17810, section 3). m is the diagonal of the matrix in R^c, so
Hadamard's inequality gives R^c <= bound, with equality if no two directions of a head are correlated. TSSA is a
gradient step on the bound: its factor 1/(1+m) is the derivative of log(1 + m). U_hᵀ z_t is the w of the trainer:
c_attn applied to the normalized residual stream, split into heads.

Scale: the paper multiplies the matrix by d/ε². Here d/ε² = 1, as in the layer, which computes 1/(1+m) directly from
w: the learned scale of c_attn includes the factor. R^c therefore increases both if w grows and if it spreads over
more directions. `spread` does not depend on the scale of w. It is R^c with each head's w scaled to a mean m of 1,
divided by its maximum, which is reached if all directions of a head are uncorrelated and have equal energy:

    spread = Σ_h n_h/n · logdet(I + M_h · hs/tr M_h) / (hs log 2),   hs channels per head, M_h the matrix in R^c

It is 1 if the tokens fill all directions of their heads equally, and lower if they concentrate on a few.

In the layer, m at a token averages over the tokens up to it; here it averages over the whole text, as at the last
token. Π is the layer's causal membership. All measures describe the input of the layer's attention, not its output.
Needs Python 3.10, numpy, matplotlib and safetensors.
"""

import math
import sys

from figure import COLORS, add_options, check_options, padded_labels, plain, short_name, style_axes, write
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogFormatter, MaxNLocator

from cli import fail, option_parser, run
from inspected import Inspection

MEASURES = ("R^c", "bound", "mean m", "spread")


def head_rates(w, pi):
    """One head's logdet, bound, trace, and logdet after scaling to unit energy; w (T,hs), pi (T); in float64."""
    w, pi = w.astype(np.float64), pi.astype(np.float64)
    M = (w * pi[:, None]).T @ w / pi.sum()
    trace, hs = np.trace(M), len(M)
    unit = M * (hs / trace) if trace > 0 else M
    logdet, unit_logdet = (np.linalg.slogdet(np.eye(hs) + matrix)[1] for matrix in (M, unit))
    return logdet, np.log1p(np.diag(M)).sum(), trace, unit_logdet


def layer_rates(w, pi):
    """The MEASURES of one layer; w (T,C), pi (nh,T)."""
    share = pi.sum(1, dtype=np.float64) / pi.shape[1]
    hs = w.shape[1] // len(pi)
    heads = [head_rates(part, p) for part, p in zip(np.split(w, len(pi), axis=1), pi) if p.any()]
    logdet, bound, trace, unit = share[pi.any(1)] @ np.array(heads)
    return logdet / 2, bound / 2, trace / hs, unit / (hs * math.log(2))


def rates(inspection):
    """(L,4): the MEASURES of each layer."""
    return np.array([layer_rates(w, pi) for w, pi in zip(inspection.w, inspection.pi)])


def group(inspections):
    """{(model, step): its inspections}. Raises ValueError unless all models were inspected on the same texts."""
    groups = {}
    for one in inspections:
        groups.setdefault((one.model, one.step), []).append(one)
    first, *others = groups.values()
    for other in others:
        same = len(other) == len(first) and all(any(a.same_text(b) for b in first) for a in other)
        if not same:
            raise ValueError(f"{other[0].path}: {other[0].model} and {first[0].model} were not inspected on the "
                             "same texts; inspect both on the same texts")
    for files in groups.values():
        for i, one in enumerate(files):
            if any(one.same_text(other) for other in files[:i]):
                raise ValueError(f"{one.path}: this text of {one.model} is given twice")
            if one.pi.shape[:2] != files[0].pi.shape[:2]:
                raise ValueError(f"{one.path}: layers and heads differ from {files[0].path}")
    return groups


def draw(curves, names):
    """curves: {label: array (texts,L,4)}, the last axis is MEASURES; names: one per curve, for the legend."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.1), layout="constrained")
    for i, (label, values) in enumerate(zip(names, curves.values())):
        color = COLORS[i % len(COLORS)]
        layers = np.arange(1, values.shape[1] + 1)
        mean, deviation = values.mean(0), values.std(0)
        for panel, column, style, name in ((left, 0, "o-", plain(label)), (left, 1, "^:", None),
                                           (right, 3, "o-", None)):
            panel.plot(layers, mean[:, column], style, color=color, label=name, markersize=4)
            if len(values) > 1:
                panel.fill_between(layers, np.maximum(mean[:, column] - deviation[:, column], mean[:, column] / 10),
                                   mean[:, column] + deviation[:, column],
                                   color=color, alpha=0.15, linewidth=0)
    left.plot([], [], "^:", color="0.4", label="variational bound", markersize=4)
    left.set(title="coding rate $R^c$", ylabel="nats per token", yscale="log")
    left.yaxis.set_major_formatter(LogFormatter(labelOnlyBase=False))
    right.set(title="spread: $R^c$ at unit energy / maximum", ylim=(0, 1.02))
    for panel in (left, right):
        panel.set_xlabel("layer")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        style_axes(panel)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def print_numbers(curves):
    for label, values in curves.items():
        texts = f", mean of {len(values)} texts" if len(values) > 1 else ""
        print(f"{label}{texts}\nlayer" + "".join(f"{name:>12}" for name in MEASURES))
        for l, row in enumerate(values.mean(0), 1):
            print(f"{l:5d}" + "".join(f"{value:12.6f}" for value in row))


def main(arguments=None):
    parser = option_parser(__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="output of `train_gpt_tost inspect`")
    add_options(parser, "coding_rate.png", "model")
    args = parser.parse_args(arguments)
    try:
        check_options(args)
        groups = group([Inspection(path) for path in args.files])
        given = padded_labels(args, len(groups), "model")
        labels = [label or f"{model}, step {step}" for label, (model, step) in zip(given, groups)]
        names = [label or f"{short_name(model)}, step {step}" for label, (model, step) in zip(given, groups)]
        if len(set(labels)) < len(labels):
            raise ValueError("--label: two models have the same name")
        curves = {label: np.array([rates(one) for one in files]) for label, files in zip(labels, groups.values())}
        write(draw(curves, names if len(set(names)) == len(names) else labels), args)
    except (OSError, ValueError) as error:
        return fail(error)
    print_numbers(curves)
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
