"""Plots loss curves of one or more runs over the number of training tokens, as a PNG or SVG.

    loss.py RUN[,RUN…]… [--out loss.png] [--label NAME]… [--published openwebtext] [--line 'NAME=2.91']…

RUN is a log.csv, or the run folder that contains it, of the trainer or of dev/reference/train.py. Runs joined by
commas, such as runs with different seeds, are averaged: they are one curve. Training loss is drawn twice: pale as
logged, and smoothed (centred mean over 1/40 of the run; in a short run, over 1/10, at most 10 values). Validation loss
is drawn as points joined by a line. Each curve is thinner than the one below it, so that both are visible where they
overlap. The script prints the last validation loss of each curve, for several runs with their standard deviation.
--difference adds a panel with each curve's losses minus the first curve's at the same number of tokens, and prints the
largest differences. --published draws the paper's losses on a dataset, and those of GPT-2 base. If the runs have
different data, the plot says so.
Needs Python 3.11 or later and matplotlib.
"""

import math
import statistics
import sys

from cli import command, need, option_parser, run
from figure import COLORS, add_options, check_options, matplotlib, padded_labels, plain, style_axes, write
from runs import different_data, mean_of_runs, numpy as np

# Wu et al., ICLR 2025, arXiv 2412.17810; nats per token
PUBLISHED = {
    "openwebtext": {"ToST-base": 3.20, "ToST-medium": 2.88, "ToST-large": 2.72, "GPT-2 base": 2.84},
    "lambada": {"ToST-base": 4.98, "ToST-medium": 4.45, "ToST-large": 4.32, "GPT-2 base": 4.32},
    "wikitext2": {"ToST-base": 4.77, "ToST-medium": 4.30, "ToST-large": 3.99, "GPT-2 base": 4.13},
    "ptb": {"ToST-base": 6.39, "ToST-medium": 5.64, "ToST-large": 5.03, "GPT-2 base": 5.75},
}
RAW_ALPHA = 0.28
MOST_POINTS = 40  # markers of validations per run
COMPARED = {"train_loss": "training loss", "val_loss": "validation loss", "grad_norm": "gradient norm",
            "lr": "learning rate"}


def smooth(values, width):
    """Centred mean over `width` values; the window shrinks on both sides at the beginning, but at the end only on
    the right. A non-finite value (of a skipped step) is replaced by the last finite one."""
    n, i, finite = len(values), np.arange(len(values)), np.isfinite(values)
    if not finite.any():
        return values
    last = np.maximum.accumulate(np.where(finite, i, finite.argmax()))   # the last finite value, at first the first
    sums = np.concatenate(([0.0], values[last].cumsum()))
    half = np.minimum(width // 2, np.minimum(i, n - 1 - i))
    before = np.where(i > n // 2, np.minimum(i, width // 2), half)
    return (sums[i + half + 1] - sums[i - before]) / (half + before + 1)


def differences(run, first, name):
    """Token counts at which both runs have a value, and value - first run's value there."""
    (t, ours), (u, theirs) = run.points(name), first.points(name)
    tokens, i, j = np.intersect1d(t, u, return_indices=True)
    return tokens, ours[i] - theirs[j]


def print_differences(runs):
    for run in runs[1:]:
        print(f"{run.label} minus {runs[0].label}:")
        for name, title in COMPARED.items():
            tokens, values = differences(run, runs[0], name)
            if len(tokens):
                worst = abs(values).argmax()
                print(f"  {title:16} largest difference {values[worst]:+.3e} at {tokens[worst]:.0f} tokens, "
                      f"mean {values.mean():+.3e}, mean magnitude {abs(values).mean():.3e}, {len(values)} values")


def print_last(run):
    """The last validation loss; of several runs, their mean and standard deviation."""
    measured = np.flatnonzero(np.isfinite(run.val_loss))
    if len(measured):
        last = measured[-1]
        losses = [one.val_loss[last] for one in run.runs]
        several = f" ± {statistics.stdev(losses):.4f} ({len(losses)} runs)" if len(losses) > 1 else ""
        print(f"{run.label}: validation loss {run.val_loss[last]:.4f}{several} after {run.tokens[last]:.0f} tokens")


def draw_losses(axes, runs, args):
    markers = {}  # legend entries that apply to all runs: {name: style}
    for i, run in enumerate(runs):
        color = COLORS[i % len(COLORS)]
        width = 1.4 + min(1.1, 3 / len(runs)) * (len(runs) - 1 - i)
        window = max(1, len(run.tokens) // 40, min(len(run.tokens) // 10, 10))
        tokens, losses = run.tokens[run.tokens > 0], run.train_loss[run.tokens > 0]
        if window > 1:
            axes.plot(tokens, losses, color=color, alpha=RAW_ALPHA, linewidth=0.7, zorder=1.9)
            markers["before smoothing"] = {"alpha": RAW_ALPHA}
        axes.plot(tokens, smooth(losses, window), color=color, linewidth=width,
                  label=plain(run.label), solid_capstyle="round")
        tokens, val = run.points("val_loss")
        if len(val):
            axes.plot(tokens, val, color=color, linewidth=0.8, marker="o", markevery=max(1, len(val) // MOST_POINTS),
                      zorder=3, markersize=3.4 + width, markerfacecolor="white", markeredgewidth=1.3)
            markers["validation"] = {"linewidth": 0.8, "marker": "o", "markerfacecolor": "white"}
    for name, style in markers.items():
        axes.plot([], [], color="0.4", label=name, **style)
    axes.set_ylabel("loss, nats per token")


def spread(places, gap):
    """Moves sorted positions apart until they differ by at least `gap`, so that names do not overlap."""
    places = list(places)
    for _ in range(100):
        for i in range(1, len(places)):
            overlap = gap - (places[i] - places[i - 1])
            if overlap > 0:
                places[i - 1 : i + 1] = places[i - 1] - overlap / 2, places[i] + overlap / 2
    return places


def draw_lines(axes, args):
    """Horizontal lines with their names on the right."""
    lines = list(PUBLISHED[args.published].items()) if args.published else []
    for text in args.line:
        name, _, value = text.rpartition("=")
        try:
            lines.append((name, float(value)))
        except ValueError:
            name = ""
        if not name or not math.isfinite(lines[-1][1]):
            raise ValueError(f"--line {text}: give NAME=VALUE, as in 'GPT-2 base=2.84'")
    for name, value in lines:
        axes.axhline(value, color="0.45", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    low, high = axes.get_ylim()
    lines.sort(key=lambda line: line[1])
    for (name, value), place in zip(lines, spread([value for _, value in lines], 0.042 * (high - low))):
        axes.annotate(f"{plain(name)} {value:.2f}", (1.01, place), xycoords=axes.get_yaxis_transform(), va="center",
                      fontsize=8, color="0.3", annotation_clip=False)


def draw_differences(axes, runs):
    """The axis is linear up to the median size of the differences, and logarithmic beyond, for each sign."""
    sizes = []
    for i, run in enumerate(runs[1:], 1):
        color = COLORS[i % len(COLORS)]
        tokens, values = differences(run, runs[0], "train_loss")
        sizes += list(abs(values[values != 0]))
        axes.plot(tokens, values, color=color, linewidth=1.0)
        tokens, values = differences(run, runs[0], "val_loss")
        axes.plot(tokens, values, color=color, linewidth=0.8, marker="o", markersize=4.5, markerfacecolor="white",
                  markeredgewidth=1.2)
    axes.axhline(0, color="0.45", linewidth=0.9, zorder=1)
    if sizes:
        middle, top = np.median(sizes), 10 ** np.floor(np.log10(max(sizes)))
        axes.set_yscale("asinh", linear_width=middle)
        axes.set_yticks([-top, 0, top] + [s * top / 100 for s in (-1, 1) if top / 100 > middle])   # without overlap
    axes.margins(y=0.1)
    axes.set_ylabel(f"minus\n{plain(runs[0].label)}")


def draw(runs, args, note=None):
    panels = 2 if args.difference else 1
    plot = matplotlib()
    figure = plot.figure.Figure((7.6, 4.4 + 1.5 * (panels - 1)), layout="constrained")
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=(3, 1)[:panels])
    draw_losses(axes[0, 0], runs, args)
    if args.min is not None or args.max is not None:
        axes[0, 0].set_ylim(args.min, args.max)
    draw_lines(axes[0, 0], args)
    axes[0, 0].legend(frameon=False, fontsize=9, handlelength=3.5)
    if args.title:
        axes[0, 0].set_title(plain(args.title), loc="left", fontsize=11)
    if note:
        axes[0, 0].annotate(note, (0.01, 0.02), xycoords="axes fraction", fontsize=8, color="0.3")
    if args.difference:
        draw_differences(axes[1, 0], runs)
    for panel in axes[:, 0]:
        style_axes(panel)
        panel.margins(x=0.015)
    axes[-1, 0].set_xlabel("tokens")
    axes[-1, 0].xaxis.set_major_formatter(plot.ticker.EngFormatter(sep=""))
    return figure


def parse(arguments):
    parser = option_parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN[,RUN…]",
                        help="a log.csv or a run folder; runs joined by commas are averaged")
    parser.add_argument("--published", choices=PUBLISHED, help="draw the published losses on this dataset as lines")
    parser.add_argument("--line", action="append", default=[], metavar="NAME=VALUE", help="draw a horizontal line")
    parser.add_argument("--difference", action="store_true", help="plot and print the differences from the first run")
    parser.add_argument("--title", help="title of the plot")
    parser.add_argument("--min", type=float, help="lowest loss shown")
    parser.add_argument("--max", type=float, help="highest loss shown")
    add_options(parser, "loss.png", "run")
    return parser.parse_args(arguments)


@command()
def main(arguments):
    args = parse(arguments)
    need("matplotlib", "numpy")
    check_options(args)
    if args.difference and len(args.runs) < 2:
        raise ValueError("--difference: give at least two runs")
    labels = padded_labels(args, len(args.runs), "run")
    runs = [mean_of_runs(paths.split(","), label) for paths, label in zip(args.runs, labels)]
    note = different_data([path for paths in args.runs for path in paths.split(",")])
    write(draw(runs, args, note), args)
    for run in runs:
        print_last(run)
    if note:
        print(note)
    if args.difference:
        print_differences(runs)
    print(args.out)


if __name__ == "__main__":
    sys.exit(run(main))
