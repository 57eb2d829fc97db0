"""Fits the law of `train --for` to measured runs and plots them: bits per byte against minutes, a line a model.

    budget.py [dev/results/budget.csv] [--out budget.png]

The loss, in nats per token on English Wikipedia with a vocabulary of 4,096, after D tokens of a model with N weights in
its layers (10 · layers · channels²) is E + A (N/1M)^-a + B (D/4M)^-d (N/1M)^g; plan_loss in tost/run/plan.c has the
constants. The minutes are those of two idle cores of an AMD EPYC (Zen 5), from the cost of a token in plan_cost. Peers
are drawn at their own minutes. Needs Python 3.11 or later and matplotlib.
"""

import csv
import itertools
import math
import sys

from cli import command, option_parser, run
from figure import COLORS, add_options, check_options, matplotlib, style_axes, write

SPEED = 9.68e9   # plan_cost per second


def cost(L, C, V):
    """plan_cost of tost/run/plan.c."""
    return L * C * (C + 67) + V * (0.043 * C + 5) + 14 * C


class Point:
    """A row of the CSV: numbers where possible."""

    def __init__(self, row):
        for name, text in row.items():
            setattr(self, name, text if name in ("use", "text", "program", "schedule") else float(text or "nan"))
        if self.use != "peer":
            self.minutes = self.tokens * cost(self.layers, self.channels, self.vocab) / SPEED / 60
        self.N = 1e-5 * self.layers * self.channels ** 2


def fit(points):
    """Exponents on a grid; E, A and B, which are not negative, by least squares. Returns both and the errors."""
    import numpy as np
    losses, N, D = (np.array([getattr(p, name) for p in points]) for name in ("loss", "N", "tokens"))
    best = None
    for a, d, g in itertools.product(np.arange(0.02, 0.5, 0.02), np.arange(0.3, 1, 0.02), np.arange(0, 0.31, 0.02)):
        x = np.stack([np.ones_like(N), N ** -a, (D / 4e6) ** -d * N ** g], axis=1)
        scales, *_ = np.linalg.lstsq(x, losses, rcond=None)
        errors = x @ scales - losses
        if (scales > 0).all() and (best is None or errors @ errors < best[2] @ best[2]):
            best = (a, d, g), scales, errors
    return best


def draw(points, peers):
    figure = matplotlib().figure.Figure((6.8, 4.3), layout="constrained")
    axes = figure.subplots()
    models = sorted({(p.layers, p.channels, p.vocab) for p in points}, key=lambda model: cost(*model))
    for i, model in enumerate(models):
        runs = sorted((p.minutes, p.bits_per_byte) for p in points if (p.layers, p.channels, p.vocab) == model)
        axes.plot(*zip(*runs), marker="o", markersize=4, linewidth=1.2, color=COLORS[i % len(COLORS)],
                  linestyle=("-", "--", ":")[i // len(COLORS) % 3], label="{:g} × {:g}, {:g}".format(*model))
    for i, p in enumerate(peers):
        axes.plot(p.minutes, p.bits_per_byte, marker="*v^sD"[i % 5], color="black", linestyle="none", label=p.program)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set(xlabel="minutes of two cores", ylabel="bits per byte, validation")
    style_axes(axes)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8, title="layers × channels, vocabulary")
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
    (a, d, g), (E, A, B), errors = fit(law)
    print(f"E = {E:.3f}, A = {A:.3f}, B = {B:.3f}; a = {a:.2f}, d = {d:.2f}, g = {g:.2f}")
    print(f"{len(law)} runs; root mean square error {math.sqrt(errors @ errors / len(law)):.4f}")
    for p, error in zip(law, errors):
        print(f"{p.layers:g} × {p.channels:g}, {p.tokens / 1e6:.1f}M tokens: loss {p.loss:.4f}, law {error:+.4f}")
    write(draw([p for p in points if p.use in ("law", "vocabulary")], [p for p in points if p.use == "peer"]), args)
    print(args.out)


if __name__ == "__main__":
    sys.exit(run(main))
