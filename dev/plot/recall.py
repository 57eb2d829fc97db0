"""Plots recall over distance: how often a model recalls a fact that the story stated a given number of words earlier.

    recall.py RESULT.json… [--label NAME]… [--out recall.png]

RESULT.json is the output of `eval --task ITEMS --json RESULT.json` on a recall test; dev/data/starter.py
--help lists the commands. It contains the path of ITEMS, which has the "distance" and "kind" of each item. An item is
solved if the answer has the lowest total loss of the four choices. The script prints the number of items and, per
run, the accuracy with its 95 % Wilson interval, for each distance bin (--bin words wide) and each kind of fact;
chance is 0.25. For two runs it adds their difference with the 95 % interval for paired items. Items whose story
exceeds the model's block size are excluded and counted, since the fact may have been cut off. The plot shows the
number of items of each bin; bins with fewer than 20 are gray.
Needs Python 3.10 and matplotlib.
"""

import json
import math
import sys
from pathlib import Path

from cli import fail, option_parser, run
from figure import COLORS, add_options, check_options, padded_labels, plain, short_name, style_axes, write
import matplotlib.pyplot as plt

Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
CHANCE = 0.25
FEW = 20  # items; the accuracy of a bin with fewer is drawn in gray


class Result:
    """One run: solved, {line: True if solved}; items, {line: (distance, kind)}; cut, the number of excluded items."""

    def __init__(self, path, items, label):
        result = read_json(path)
        self.solved, self.cut = {}, 0
        try:
            self.label = label or f"{result['model']} on {Path(result['file']).name}"
            self.name = label or f"{short_name(result['model'])} on {Path(result['file']).name}"  # in the legend
            items, limit = items or Path(result["file"]), int(result["seq"]) + 1
            for example in result["example"]:
                # the context's last token is an input of the choices: see tost/commands/eval_task.c
                line, context, choice = int(example["line"]), int(example["context"]), max(map(int, example["tokens"]))
                if context + choice >= limit:
                    self.cut += 1
                else:
                    self.solved[line] = bool(example["acc"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{path}: not a result of eval --task --json") from error
        self.items = read_items(items)
        unknown = self.solved.keys() - self.items.keys()
        if unknown:
            raise ValueError(f"{path}: line {min(unknown)} is not an item of {items}")
        if not self.solved:
            raise ValueError(f"{path}: no item whose whole story fits the block size")


def read_text(path, hint=""):
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}{hint}") from error


def read_json(path):
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON; give a result of eval --task --json") from error


def read_items(path):
    """{line: (distance, kind)}"""
    items = {}
    for number, line in enumerate(read_text(path, "; give the items with --items").split("\n"), 1):
        if line.strip():
            try:
                item = json.loads(line)
                items[number] = int(item["distance"]), str(item["kind"])
                if items[number][0] < 1:
                    raise ValueError("distance below 1")
            except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
                raise ValueError(f"{path}: line {number} is not an item of starter.py --recall; give the "
                                 "items with --items") from error
    return items


def wilson(hits, n):
    """95 % Wilson interval of hits/n."""
    p, zz = hits / n, Z95 * Z95 / n
    middle, half = (p + zz / 2) / (1 + zz), Z95 / (1 + zz) * math.sqrt((p * (1 - p) + zz / 4) / n)
    return (0.0 if hits == 0 else middle - half), (1.0 if hits == n else middle + half)


def paired(one, other, lines):
    """Mean of one - other over the same items, and the half-width of its 95 % interval."""
    difference = [one.solved[line] - other.solved[line] for line in lines]
    n, mean = len(difference), sum(difference) / len(difference)
    squares = sum((x - mean) ** 2 for x in difference)
    return mean, Z95 * math.sqrt(squares / (n - 1) / n) if n > 1 else math.nan


def bins(results, width):
    """Two lists of (name, middle distance or None, lines): the distance bins; the kinds, followed by all items."""
    items, lines = results[0].items, sorted(results[0].solved)
    by_distance, by_kind = {}, {}
    for line in lines:
        distance, kind = items[line]
        by_distance.setdefault((distance - 1) // width, []).append(line)
        by_kind.setdefault(kind, []).append(line)
    rows = [(f"{width * b + 1}-{width * (b + 1)} words", width * (b + 0.5) + 0.5, group)
            for b, group in sorted(by_distance.items())]
    return rows, [(kind, None, group) for kind, group in sorted(by_kind.items())] + [("all", None, lines)]


def accuracy(result, lines):
    """Accuracy and the limits of its 95 % interval."""
    hits = sum(result.solved[line] for line in lines)
    return hits / len(lines), *wilson(hits, len(lines))


def print_table(results, rows):
    print(f"{'':16}{'items':>6}" + "".join(f"  {f'{i + 1}':^22}" for i in range(len(results)))
          + ("  1 minus 2" if len(results) == 2 else ""))
    for name, _, lines in rows:
        text = f"{name:16}{len(lines):6d}"
        for result in results:
            value, low, high = accuracy(result, lines)
            text += f"  {value:.3f} ({low:.3f}-{high:.3f}) "
        if len(results) == 2:
            mean, half = paired(*results, lines)
            text += f"  {mean:+.3f} ± {half:.3f}"
        print(text.rstrip())


def limits(results, rows):
    """The range of the y axis: chance and the intervals of all bins that have enough items."""
    ends = [end for result in results for _, _, lines in rows if len(lines) >= FEW
            for end in accuracy(result, lines)[1:]]
    return max(-0.02, min([CHANCE - 0.1, *ends]) - 0.03), min(1.02, max([CHANCE + 0.1, *ends]) + 0.03)


def draw(results, rows, width):
    figure, axes = plt.subplots(figsize=(6.8, 4.1), layout="constrained")
    axes.axhline(CHANCE, color="0.45", linewidth=0.9, linestyle=(0, (4, 3)), label="chance")
    for i, result in enumerate(results):
        shift = width * 0.16 * (i - (len(results) - 1) / 2) / max(1, len(results) / 3)  # so that intervals are apart
        enough = [(middle + shift, *accuracy(result, lines)) for _, middle, lines in rows if len(lines) >= FEW]
        few = [(middle + shift, *accuracy(result, lines)) for _, middle, lines in rows if len(lines) < FEW]
        for points, color, label in ((few, "0.75", None), (enough, COLORS[i % len(COLORS)], plain(result.name))):
            if points:
                places, values, lows, highs = zip(*points)
                bars = [[v - low for v, low in zip(values, lows)], [high - v for v, high in zip(values, highs)]]
                axes.errorbar(places, values, bars, color=color, marker="o", markersize=4, capsize=2.5, label=label,
                              linestyle="-" if label else "none")
    for _, middle, lines in rows:
        axes.annotate(f"n={len(lines)}" if middle == rows[0][1] else str(len(lines)), (middle, 1.01),
                      xycoords=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=7.5,
                      color="0.35" if len(lines) >= FEW else "0.65")
    few = any(len(lines) < FEW for _, _, lines in rows)
    axes.set(xlabel="distance in words" + (f"; gray: fewer than {FEW} items" if few else ""),
             ylabel="accuracy, 95 % interval", ylim=limits(results, rows))
    style_axes(axes)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def same_items(results):
    """Restricts the results to the items that fit the block size of every run."""
    first = results[0]
    for other in results[1:]:
        if other.items != first.items:
            raise ValueError(f"{other.label}: other items than {first.label}; evaluate all runs on the same "
                             "recall test")
    lines = set.intersection(*(set(result.solved) for result in results))
    if not lines:
        raise ValueError("no item fits the block size of every run")
    for result in results:
        result.solved = {line: result.solved[line] for line in lines}
    return results


def main(arguments=None):
    parser = option_parser(__doc__)
    parser.add_argument("results", nargs="+", metavar="RESULT.json", help="output of eval --task --json")
    parser.add_argument("--items", metavar="FILE", help="the items, if they are not at the path in RESULT.json")
    parser.add_argument("--bin", type=int, default=16, metavar="WORDS", help="width of a bin (default: %(default)s)")
    add_options(parser, "recall.png", "run")
    args = parser.parse_args(arguments)
    try:
        check_options(args)
        if args.bin < 1:
            raise ValueError(f"--bin {args.bin}: give at least 1 word")
        labels = padded_labels(args, len(args.results), "run")
        results = same_items([Result(path, args.items, label) for path, label in zip(args.results, labels)])
        by_distance, by_kind = bins(results, args.bin)
        write(draw(results, by_distance, args.bin), args)
    except (OSError, ValueError) as error:
        return fail(error)
    for i, result in enumerate(results, 1):
        cut = f"; {result.cut} items left out: the story exceeds the block size" if result.cut else ""
        print(f"{i}: {result.label}{cut}")
    print_table(results, by_distance + by_kind)
    print(f"chance {CHANCE}\n{args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
