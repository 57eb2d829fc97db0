"""Plots the loss by position in the sequence: does a model predict better the more text it has read?

    position.py RESULT.json[,RESULT.json…]… [--label NAME]… [--out position.png]

RESULT.json is the output of `eval --data GLOB --by-position --json RESULT.json`. Each argument is a line of the plot.
Results joined by commas belong to one line. Several results of the same model, with windows of different lengths, are
merged: each bin is taken from the result with the most tokens. Several models, such as runs with different seeds, are
averaged, and the error bars show the standard error of the mean. The error bars of a single model show its 95 %
interval, with windows as samples. Position n is predicted from n tokens. The script prints the values it draws.
Needs Python 3.11 or later and matplotlib.
"""

import json
import math
import statistics
import sys
from pathlib import Path

from cli import command, option_parser, run
from figure import COLORS, add_options, check_options, matplotlib, padded_labels, plain, short_name, style_axes, write


def read_result(path):
    """Returns the model's file and {(first, last): (loss, 95 % interval or NaN, tokens)}."""
    try:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
        bins = {(int(b["first"]), int(b["last"])): (float(b["loss"]), float(b["loss_95"] or "nan"), int(b["tokens"]))
                for b in result["position"]}
        model = str(result["model"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: not a result of eval --by-position --json") from error
    if not bins or not all(0 < first <= last for first, last in bins):
        raise ValueError(f"{path}: no position was evaluated")
    return model, bins


class Line:
    """A line of the plot. points: [(first, last, loss, error)]; runs: number of models"""

    def __init__(self, argument, label):
        models = {}
        for path in argument.split(","):
            model, bins = read_result(path)
            merged = models.setdefault(model, {})
            for place, value in bins.items():
                if place not in merged or value[2] > merged[place][2]:
                    merged[place] = value
        names, merged = list(models), list(models.values())
        self.name, self.points, self.runs = label or short_name(names[0]), [], len(names)
        for name, bins in zip(names, merged):
            if bins.keys() != merged[0].keys():
                raise ValueError(f"{name}: evaluated at other positions than {names[0]}; give both the same --seq")
        for place in sorted(merged[0]):
            losses = [bins[place][0] for bins in merged]
            error = statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else merged[0][place][1]
            self.points.append((*place, statistics.fmean(losses), error))


def print_table(lines):
    bins = sorted({point[:2] for line in lines for point in line.points})
    print(f"{'position':17}" + "".join(f"  {i:^16}" for i in range(1, len(lines) + 1)))
    for first, last in bins:
        text = f"{first if first == last else f'{first}-{last}':<17}"
        for line in lines:
            found = [point for point in line.points if point[:2] == (first, last)]
            text += f"  {found[0][2]:.4f} ± {found[0][3]:.4f} " if found else " " * 18
        print(text.rstrip())


def draw(lines):
    figure = matplotlib().figure.Figure((6.8, 4.1), layout="constrained")
    axes = figure.subplots()
    for i, line in enumerate(lines):
        shift = 1 + 0.03 * (i - (len(lines) - 1) / 2)  # so that error bars do not overlap
        first, last, losses, errors = zip(*line.points)
        places = [math.sqrt(a * b) * shift for a, b in zip(first, last)]
        axes.errorbar(places, losses, errors, label=plain(line.name),
                      color=COLORS[i % len(COLORS)], marker="o", markersize=4, capsize=2.5, linewidth=1.4)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    many = any(line.runs > 1 for line in lines)
    axes.set(xlabel="position in the sequence, tokens",
             ylabel=f"loss, nats per token, {'standard error of runs' if many else '95 % interval'}")
    axes.tick_params(axis="x", labelrotation=30)
    style_axes(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


@command()
def main(arguments):
    parser = option_parser(__doc__)
    parser.add_argument("results", nargs="+", metavar="RESULT.json[,…]", help="output of eval --by-position --json")
    add_options(parser, "position.png", "line")
    args = parser.parse_args(arguments)
    check_options(args)
    labels = padded_labels(args, len(args.results), "line")
    lines = [Line(argument, label) for argument, label in zip(args.results, labels)]
    write(draw(lines), args)
    for i, line in enumerate(lines, 1):
        print(f"{i}: {line.name}; {line.runs} model{'s' if line.runs > 1 else ''}")
    print_table(lines)
    print(args.out)


if __name__ == "__main__":
    sys.exit(run(main))
