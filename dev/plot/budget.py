"""Fits the law of `train --for` to measured runs and plots them: bits per byte against minutes, a line a model.

    budget.py [dev/results/budget.csv] [--out budget.png]

The loss, in nats per token, after D tokens of a model with L layers of C channels and a vocabulary of 4,096, on English
Wikipedia, is E + A (C/128)^-a (L/3)^-b + B (D/4M)^-d (C/128)^g: tost/run/plan.c has the constants. The minutes are those
of two idle cores of an AMD EPYC (Zen 5), from the cost of a token in plan_cost. Needs Python 3.11 or later and
matplotlib.
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
            setattr(self, name, text if name in ("text", "program", "note") else float(text or "nan"))
        self.minutes = self.tokens * cost(self.layers, self.channels, self.vocab) / SPEED / 60


def terms(p, a, b, d, g):
    """What E, A and B are multiplied by."""
    wide = p.channels / 128
    return 1, wide ** -a * (p.layers / 3) ** -b, (p.tokens / 4e6) ** -d * wide ** g


def fit(points):
    """Exponents on a grid; E, A and B, which are not negative, by least squares. Returns both and the errors."""
    import numpy as np
    losses, best = np.array([p.loss for p in points]), None
    grid = [np.arange(0.1, 1.21, 0.1), np.arange(0, 0.51, 0.05), np.arange(0.2, 1.01, 0.05), np.arange(0, 0.31, 0.1)]
    for exponents in itertools.product(*grid):
        x = np.array([terms(p, *exponents) for p in points])
        scales, *_ = np.linalg.lstsq(x, losses, rcond=None)
        errors = x @ scales - losses
        if (scales > 0).all() and (best is None or errors @ errors < best[2] @ best[2]):
            best = exponents, scales, errors
    return best


def draw(points, others):
    figure = matplotlib().figure.Figure((6.8, 4.3), layout="constrained")
    axes = figure.subplots()
    models = sorted({(p.layers, p.channels, p.vocab) for p in points}, key=lambda m: cost(*m))
    for i, model in enumerate(models):
        mine = sorted((p.minutes, p.bits_per_byte) for p in points if (p.layers, p.channels, p.vocab) == model)
        axes.plot(*zip(*mine), marker="o", markersize=4, linewidth=1.2, color=COLORS[i % len(COLORS)],
                  linestyle="-" if i < len(COLORS) else "--", label="{:g} × {:g}, vocabulary {:g}".format(*model))
    for i, p in enumerate(others):
        axes.plot(p.peer_minutes, p.bits_per_byte, marker="*v^sD"[i % 5], color="black", linestyle="none", label=p.program)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set(xlabel="minutes of two cores", ylabel="bits per byte, validation")
    style_axes(axes)
    figure.legend(loc="outside right center", frameon=False, fontsize=8, title="layers × channels")
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
    law = [p for p in points if p.note == "law"]
    exponents, scales, errors = fit(law)
    print("E = {:.3f}, A = {:.3f}, B = {:.3f}; a = {:.2f}, b = {:.2f}, d = {:.2f}, g = {:.2f}".format(*scales, *exponents))
    print(f"{len(law)} runs; root mean square error {math.sqrt(errors @ errors / len(law)):.4f}")
    for p, error in zip(law, errors):
        print(f"{p.layers:g} × {p.channels:g}, {p.tokens / 1e6:.1f}M tokens: loss {p.loss:.4f}, law {p.loss + error:.4f}")
    write(draw(law, [p for p in points if p.note == "peer"]), args)
    print(args.out)


if __name__ == "__main__":
    sys.exit(run(main))
