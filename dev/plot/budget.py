"""Fits the law of `train --for` to measured runs and plots both: bits per byte against minutes, a line for each size.

    budget.py [dev/results/budget.csv] [--out budget.png]

The loss, in nats per token on English Wikipedia with a vocabulary of 4,096, after D tokens of a model with N = 1e-5 ·
layers^0.7 · channels², is E + A N^-a + B (D/4M)^-d N^g; plan_loss in tost/run/plan.c has the constants. With a
vocabulary of 8,192, whose tokens are longer, it is F times as high. The minutes are those of two idle cores of an AMD
EPYC (Zen 5), from the cost of a token in plan_cost. Peers are drawn at their own minutes. Needs Python 3.11 or later
and matplotlib.
"""

import csv
import itertools
import math
import sys

from cli import command, option_parser, run
from figure import COLORS, add_options, check_options, matplotlib, style_axes, write

SPEED = 9.68e9   # plan_cost per second
SIZES = ((1, 128), (2, 128), (3, 128), (3, 192), (3, 256), (3, 384), (4, 512))   # with a line: some of plan_sizes
BAND = 0.12      # bits per byte
TEXTS = "use", "text", "program", "positions", "schedule"


def cost(L, C, V):
    """plan_cost of tost/run/plan.c."""
    return L * C * (C + 67) + V * (0.043 * C + 5) + 14 * C


def size(L, C):
    """N of plan_loss."""
    return 1e-5 * L ** 0.7 * C ** 2


class Point:
    """A row of the CSV: numbers where possible."""

    def __init__(self, row):
        for name, text in row.items():
            setattr(self, name, text if name in TEXTS else float(text or "nan"))
        if self.use != "peer":
            self.minutes = self.tokens * cost(self.layers, self.channels, self.vocab) / SPEED / 60
        self.N = size(self.layers, self.channels)


def fit(points):
    """Exponents and F on a grid; E, A and B by least squares, not negative. Returns (a, d, g, F), them, the errors."""
    import numpy as np
    losses, N, D, vocab = (np.array([getattr(p, name) for p in points]) for name in ("loss", "N", "tokens", "vocab"))
    best = None
    for a, d, g, F in itertools.product(np.arange(0.02, 0.3, 0.02), np.arange(0.2, 0.9, 0.02), np.arange(0, 0.31, 0.02),
                                        np.arange(1, 1.15, 0.01)):
        x = np.stack([np.ones_like(N), N ** -a, (D / 4e6) ** -d * N ** g], axis=1)
        x *= np.where(vocab == 8192, F, 1)[:, None]
        scales, *_ = np.linalg.lstsq(x, losses, rcond=None)
        errors = x @ scales - losses
        if (scales > 0).all() and (best is None or errors @ errors < best[2] @ best[2]):
            best = (a, d, g, F), scales, errors
    return best


def draw(points, peers, law):
    """A line of the law for each size, as far as it lies within BAND of the lowest; dots are runs, of 4,096 tokens in
    the vocabulary if they are filled."""
    import numpy as np
    (a, d, g, _), (E, A, B), _ = law
    figure = matplotlib().figure.Figure((7.2, 4.3), layout="constrained")
    axes = figure.subplots()
    minutes = np.geomspace(0.2, 60, 100)
    bits = np.mean([p.bits_per_byte / p.loss for p in points if p.vocab == 4096])
    curves = []
    for L, C in SIZES:
        N, D = size(L, C), minutes * 60 * SPEED / cost(L, C, 4096)
        curves.append(bits * (E + A * N ** -a + B * (D / 4e6) ** -d * N ** g))
    near = np.min(curves, axis=0) + BAND
    for (L, C), curve, color in zip(SIZES, curves, itertools.cycle(COLORS)):
        axes.plot(minutes, np.where(curve < near, curve, np.nan), color=color, linewidth=1.2, label=f"{L} × {C}")
    for p in points:
        own = (int(p.layers), int(p.channels))
        color = COLORS[SIZES.index(own) % len(COLORS)] if own in SIZES else "0.6"
        axes.plot(p.minutes, p.bits_per_byte, marker="o", markersize=4, color=color,
                  markerfacecolor=color if p.vocab == 4096 else "white")
    names = [p.program.split(",")[0] for p in peers]
    for name, marker in zip(dict.fromkeys(names), "*v^sDPXh"):
        some = [p for p, own in zip(peers, names) if own == name]
        axes.plot([p.minutes for p in some], [p.bits_per_byte for p in some], marker=marker, color="black",
                  linestyle="none", label=name)
    axes.axvspan(max(p.minutes for p in points), minutes[-1], color="0.95", zorder=0)
    axes.text(minutes[-1], 2.2, "extrapolated", ha="right", va="top", color="0.4")
    axes.set_xscale("log")
    axes.set_xticks([0.25, 0.5, 1, 2, 4, 10, 30, 60], minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set(xlabel="minutes of two cores", ylabel="bits per byte, validation", ylim=(None, 2.22))
    style_axes(axes)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8.5, title="layers × channels")
    return figure


@command()
def main(arguments):
    parser = option_parser(__doc__)
    parser.add_argument("csv", nargs="?", default="dev/results/budget.csv", help="runs (default: %(default)s)")
    add_options(parser, "budget.png", "line")
    args = parser.parse_args(arguments)
    check_options(args)
    with open(args.csv, encoding="utf-8", newline="") as file:
        points = [Point(row) for row in csv.DictReader(file)]
    law = [p for p in points if p.use == "law"]
    fitted = fit(law)
    (a, d, g, F), (E, A, B), errors = fitted
    print(f"E = {E:.3f}, A = {A:.3f}, B = {B:.3f}; a = {a:.2f}, d = {d:.2f}, g = {g:.2f}; F = {F:.2f}")
    print(f"{len(law)} runs; root mean square error {math.sqrt(errors @ errors / len(law)):.4f}")
    for p, error in zip(law, errors):
        print(f"{p.layers:g} × {p.channels:g}, {p.tokens / 1e6:.1f}M tokens: loss {p.loss:.4f}, law {error:+.4f}")
    write(draw(law, [p for p in points if p.use == "peer"], fitted), args)
    print(args.out)


if __name__ == "__main__":
    sys.exit(run(main))
