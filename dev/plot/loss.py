"""Loss curves of one or many runs against the tokens they saw, as a PNG or SVG.

    loss.py RUN… [--out loss.png] [--label NAME]… [--published openwebtext] [--line 'NAME=2.91']…

RUN is a log.csv or the run folder that holds one, of the trainer or of dev/reference/train.py. Training loss
is drawn raw, pale, and smoothed over --smooth updates (a centred mean); validation loss as points. Where
runs cover each other the first is the widest line, so that all can be seen. --difference adds, below, how
far each run's training and validation losses are from the first run's at the same number of tokens, and
prints the largest differences. --published draws the published losses on a data set, and GPT-2 base's.

loss.png, beside this file, is of 100 updates of 2,048 bytes of WebText (--batch 16 --seq 128 --lr 6e-4
--warmup 10 --weight-decay 0.1 --val-every 20 --val-batches 8) by a model of 4 layers, 4 heads and 128
channels, in the trainer and in dev/reference/train.py with --dtype fp64 and fp32.
Needs Python 3.10 and matplotlib.
"""

import argparse
import csv
import math
import sys
from pathlib import Path

from figure import COLOURS, add_file_options, check_file, plain, write  # before pyplot: no display
from lines import failed, run
import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter

# Wu et al., ICLR 2025, arXiv 2412.17810: nats a token
PUBLISHED = {
    "openwebtext": {"ToST-base": 3.20, "ToST-medium": 2.88, "ToST-large": 2.72, "GPT-2 base": 2.84},
    "lambada": {"ToST-base": 4.98, "ToST-medium": 4.45, "ToST-large": 4.32, "GPT-2 base": 4.32},
    "wikitext2": {"ToST-base": 4.77, "ToST-medium": 4.30, "ToST-large": 3.99, "GPT-2 base": 4.13},
    "ptb": {"ToST-base": 6.39, "ToST-medium": 5.64, "ToST-large": 5.03, "GPT-2 base": 5.75},
}
RAW_ALPHA = 0.28
COLUMNS = ("step", "tokens", "train_loss", "val_loss", "lr", "grad_norm")
COMPARED = {"train_loss": "training loss", "val_loss": "validation loss", "grad_norm": "gradient norm",
            "lr": "learning rate"}


class Run:
    """The columns of a log.csv as lists; val_loss is NaN where it was not measured."""

    def __init__(self, path, label):
        path = Path(path)
        path = path / "log.csv" if path.is_dir() else path
        self.label = label or (path.parent.name if path.name == "log.csv" and path.parent.name else path.stem)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror}; a run's log.csv, or its folder, is "
                             "wanted") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: is no text; a run's log.csv, or its folder, is wanted") from error
        values = read_rows(path, text[: text.rfind("\n") + 1])  # a last line without its end is still being written
        for name, column in zip(COLUMNS, zip(*values)):
            setattr(self, name, list(column))

    def points(self, name):
        """{tokens: value} where it was measured and is finite."""
        return {t: v for t, v in zip(self.tokens, getattr(self, name)) if math.isfinite(v)}


def numbers(row):
    """The COLUMNS of a row; NaN where one is empty."""
    if None in row or None in row.values() or not 0 <= float(row["tokens"]) < math.inf:
        raise ValueError("fields are missing, or too many, or no number of tokens")
    return [float(row[name] or "nan") for name in COLUMNS]


def read_rows(path, text):
    rows = csv.DictReader(text.splitlines(keepends=True))
    try:
        missing = sorted(set(COLUMNS) - set(rows.fieldnames or ()))
        values = [] if missing else [numbers(row) for row in rows]
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}: line {rows.line_num} is not a row of numbers") from error
    if missing:
        raise ValueError(f"{path}: line 1 is not that of a log.csv: no column {missing[0]}")
    if not values:
        raise ValueError(f"{path}: no rows in it")
    return values


def smooth(values, width):
    """Centred mean over `width` values, over fewer towards the ends, so that no end is pulled to one side. A value
    that is not finite, of an update that was skipped, counts as the last that was."""
    sums, last = [0.0], next(filter(math.isfinite, values), math.nan)
    for value in values:
        last = value if math.isfinite(value) else last
        sums.append(sums[-1] + last)
    n, out = len(values), []
    for i in range(n):
        half = min(width // 2, i, n - 1 - i)
        out.append((sums[i + half + 1] - sums[i - half]) / (2 * half + 1))
    return out


def differences(run, first, name):
    """Tokens, and |value - first's value| there, where both runs measured it."""
    ours, theirs = run.points(name), first.points(name)
    tokens = sorted(ours.keys() & theirs.keys())
    return tokens, [abs(ours[t] - theirs[t]) for t in tokens]


def print_differences(runs):
    for run in runs[1:]:
        print(f"{run.label} against {runs[0].label}:")
        for name, title in COMPARED.items():
            tokens, values = differences(run, runs[0], name)
            if tokens:
                worst = max(range(len(values)), key=values.__getitem__)
                print(f"  {title:16} largest difference {values[worst]:.3e} at {tokens[worst]:.0f} tokens, "
                      f"mean {sum(values) / len(values):.3e}, of {len(values)} measured")


def draw_losses(axes, runs, args):
    marks = {}  # what else is drawn, by name
    for i, run in enumerate(runs):
        colour = COLOURS[i % len(COLOURS)]
        width = 1.6 + 3.4 * (len(runs) - 1 - i) / (len(runs) - 1) if len(runs) > 1 else 2.0
        window = args.smooth or max(1, len(run.tokens) // 40)
        if window > 1 and not args.no_raw:
            axes.plot(run.tokens, run.train_loss, color=colour, alpha=RAW_ALPHA, linewidth=0.4 * width)
            marks["before smoothing"] = {"alpha": RAW_ALPHA}
        axes.plot(run.tokens, smooth(run.train_loss, window), color=colour, linewidth=width, label=plain(run.label),
                  solid_capstyle="round")
        val = run.points("val_loss")
        if val and not args.no_val:
            axes.plot(list(val), list(val.values()), color=colour, linestyle="none", marker="o", zorder=3,
                      markersize=3.4 + width, markerfacecolor="white", markeredgewidth=1.3)
            marks["validation"] = {"linestyle": "none", "marker": "o", "markerfacecolor": "white"}
    for name, style in marks.items():  # in the legend once for all runs
        axes.plot([], [], color="0.4", label=name, **style)
    axes.set_ylabel("loss, nats a token")


def spread(places, gap):
    """Rising places, with those nearer than gap moved apart: names that must not cover each other."""
    places = list(places)
    for _ in range(100):
        for i in range(1, len(places)):
            lack = gap - (places[i] - places[i - 1])
            if lack > 0:
                places[i - 1 : i + 1] = places[i - 1] - lack / 2, places[i] + lack / 2
    return places


def draw_lines(axes, args):
    """Horizontal lines, named on the right."""
    lines = list(PUBLISHED[args.published].items()) if args.published else []
    for text in args.line:
        name, _, value = text.rpartition("=")
        try:
            lines.append((name, float(value)))
        except ValueError:
            name = ""
        if not name or not math.isfinite(lines[-1][1]):
            raise ValueError(f"--line {text}: expected NAME=VALUE, as in 'GPT-2 base=2.84'")
    for name, value in lines:
        axes.axhline(value, color="0.45", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    low, high = axes.get_ylim()
    lines.sort(key=lambda line: line[1])
    for (name, value), place in zip(lines, spread([value for _, value in lines], 0.042 * (high - low))):
        axes.annotate(f"{plain(name)} {value:.2f}", (1.01, place), xycoords=axes.get_yaxis_transform(), va="center",
                      fontsize=8, color="0.3", annotation_clip=False)


def draw_differences(axes, runs):
    floor = 1e-9  # the log's last decimal; a difference of 0 is drawn there
    for i, run in enumerate(runs[1:], 1):
        colour = COLOURS[i % len(COLOURS)]
        tokens, values = differences(run, runs[0], "train_loss")
        axes.plot(tokens, [max(v, floor) for v in values], color=colour, linewidth=1.0)
        tokens, values = differences(run, runs[0], "val_loss")
        axes.plot(tokens, [max(v, floor) for v in values], color=colour, linestyle="none", marker="o",
                  markersize=4.5, markerfacecolor="white", markeredgewidth=1.2)
    axes.set_yscale("log")
    axes.set_ylabel(f"difference\nfrom {plain(runs[0].label)}")


def draw(runs, args):
    panels = 2 if args.difference else 1
    figure, axes = plt.subplots(panels, 1, sharex=True, squeeze=False, layout="constrained",
                                figsize=(7.6, 4.4 + 1.5 * (panels - 1)),
                                gridspec_kw={"height_ratios": (3, 1)[:panels]})
    draw_losses(axes[0, 0], runs, args)
    if args.min is not None or args.max is not None:
        axes[0, 0].set_ylim(args.min, args.max)
    draw_lines(axes[0, 0], args)
    axes[0, 0].legend(frameon=False, fontsize=9)
    if args.title:
        axes[0, 0].set_title(plain(args.title), loc="left", fontsize=11)
    if args.difference:
        draw_differences(axes[1, 0], runs)
    for panel in axes[:, 0]:
        panel.grid(color="0.9", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.015)
    axes[-1, 0].set_xlabel("tokens")
    axes[-1, 0].xaxis.set_major_formatter(EngFormatter(sep=""))
    if args.log_x:
        axes[-1, 0].set_xscale("log")
    return figure


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="log.csv, or a folder that holds one")
    parser.add_argument("--label", action="append", default=[], help="name of a run, in order; its folder's")
    parser.add_argument("--smooth", type=int, default=0, metavar="N",
                        help="updates averaged; 0: a 40th of the run; 1: not smoothed")
    parser.add_argument("--no-raw", action="store_true", help="leave the raw training loss out")
    parser.add_argument("--no-val", action="store_true", help="leave the validation loss out")
    parser.add_argument("--published", choices=PUBLISHED, help="published losses on it, as lines")
    parser.add_argument("--line", action="append", default=[], metavar="NAME=VALUE", help="a line more")
    parser.add_argument("--difference", action="store_true", help="from the first run, drawn and printed")
    parser.add_argument("--title", help="above the picture")
    parser.add_argument("--log-x", action="store_true", help="tokens on a logarithmic scale")
    parser.add_argument("--min", type=float, help="lowest loss shown")
    parser.add_argument("--max", type=float, help="highest loss shown")
    add_file_options(parser, "loss.png")
    return parser.parse_args(arguments)


def main(arguments=None):
    args = parse(arguments)
    try:
        check_file(args)
        if len(args.label) > len(args.runs):
            raise ValueError(f"--label {args.label[-1]}: more labels than runs")
        if args.smooth < 0:
            raise ValueError(f"--smooth {args.smooth}: 0 or more updates are wanted")
        for name in ("min", "max"):
            if not math.isfinite(getattr(args, name) or 0):
                raise ValueError(f"--{name} {getattr(args, name)}: a finite loss is wanted")
        if args.difference and len(args.runs) < 2:
            raise ValueError("--difference: two runs at least are wanted")
        labels = args.label + [None] * (len(args.runs) - len(args.label))
        runs = [Run(path, label) for path, label in zip(args.runs, labels)]
        figure = draw(runs, args)
        write(figure, args)
    except (OSError, ValueError) as error:
        return failed(error)
    if args.difference:
        print_differences(runs)
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
