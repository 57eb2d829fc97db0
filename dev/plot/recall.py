"""Recall against distance: how often a model names the fact that a story told so many words ago.

    recall.py RESULT.json… [--label NAME]… [--out recall.png]

RESULT.json is what `eval --task hellaswag ITEMS --json` wrote of a recall test (dev/data/starter.py --recall,
which has the commands); it names ITEMS, whose "distance" and "kind" are read. An item counts where the answer is
the likeliest of its four endings (the sum of their tokens' losses, no length taken off). Printed for each run and
each --bin words of distance, and for each kind of fact: items, accuracy, and Wilson's 95 % interval; chance is
0.25. For two runs on the same items their difference too, with the 95 % interval of paired items. Items whose
story did not fit into the model's block size are left out, since the fact may be what was cut: how many is said.
Needs Python 3.10 and matplotlib.
"""

import argparse
import json
import math
import sys
from pathlib import Path

from figure import COLOURS, add_file_options, check_file, plain, write  # before pyplot: no display
from lines import failed, run
import matplotlib.pyplot as plt

Z95 = 1.959963984540054  # of the normal distribution, two-sided
CHANCE = 0.25


class Result:
    """{line: whether it is solved} and {line: (distance, kind)} of one run."""

    def __init__(self, path, items, label):
        result = read_json(path)
        self.solved, self.cut = {}, 0
        task = result.get("task", "hellaswag") if isinstance(result, dict) else "hellaswag"
        if task != "hellaswag":
            raise ValueError(f"{path}: is of the task {task}: recall is of hellaswag's form")
        try:
            self.label = label or f"{result['model']} on {Path(result['file']).name}"
            items, limit = items or Path(result["file"]), int(result["seq"]) + 1
            for example in result["example"]:
                # the context's last token is read with the endings: see tost/eval_task.c
                line, context, ending = int(example["line"]), int(example["context"]), max(map(int, example["tokens"]))
                if context + ending >= limit:
                    self.cut += 1
                else:
                    self.solved[line] = bool(example["accuracy_sum"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{path}: is not what eval --task --json writes") from error
        self.items = read_items(items)
        strange = self.solved.keys() - self.items.keys()
        if strange:
            raise ValueError(f"{path}: line {min(strange)} is no item of {items}")
        if not self.solved:
            raise ValueError(f"{path}: holds no item whose story was read whole")


def read_text(path, way_out=""):
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}{way_out}") from error


def read_json(path):
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: is no JSON: what eval --task --json writes is wanted") from error


def read_items(path):
    """{line: (distance, kind)}"""
    items = {}
    for number, line in enumerate(read_text(path, ": give the items as --items").split("\n"), 1):
        if line.strip():
            try:
                item = json.loads(line)
                items[number] = int(item["distance"]), str(item["kind"])
                if items[number][0] < 1:
                    raise ValueError("a distance of no words")
            except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
                raise ValueError(f"{path}: line {number} is no item of starter.py --recall: give its items as "
                                 "--items") from error
    return items


def wilson(hits, n):
    """95 % interval of a share."""
    p, zz = hits / n, Z95 * Z95 / n
    middle, half = (p + zz / 2) / (1 + zz), Z95 / (1 + zz) * math.sqrt((p * (1 - p) + zz / 4) / n)
    return (0.0 if hits == 0 else middle - half), (1.0 if hits == n else middle + half)


def paired(one, other, lines):
    """Mean of one - other over the same items, and half its 95 % interval."""
    away = [one.solved[line] - other.solved[line] for line in lines]
    n, mean = len(away), sum(away) / len(away)
    squares = sum((x - mean) ** 2 for x in away)
    return mean, Z95 * math.sqrt(squares / (n - 1) / n) if n > 1 else math.nan


def bins(results, width):
    """[(name, middle, {line of each group})] by distance, then by kind, then all."""
    items, lines = results[0].items, sorted(results[0].solved)
    by_distance, by_kind = {}, {}
    for line in lines:
        distance, kind = items[line]
        by_distance.setdefault((distance - 1) // width, []).append(line)
        by_kind.setdefault(kind, []).append(line)
    rows = [(f"{width * b + 1}-{width * (b + 1)} words", width * (b + 0.5) + 0.5, group)
            for b, group in sorted(by_distance.items())]
    return rows, [(kind, None, group) for kind, group in sorted(by_kind.items())] + [("all", None, lines)]


def share(result, lines):
    hits = sum(result.solved[line] for line in lines)
    return hits / len(lines), *wilson(hits, len(lines))


def print_table(results, rows):
    print(f"{'':16}{'items':>6}" + "".join(f"  {f'{i + 1}':^22}" for i in range(len(results)))
          + ("  1 less 2" if len(results) == 2 else ""))
    for name, _, lines in rows:
        text = f"{name:16}{len(lines):6d}"
        for result in results:
            accuracy, low, high = share(result, lines)
            text += f"  {accuracy:.3f} ({low:.3f}-{high:.3f}) "
        if len(results) == 2:
            mean, half = paired(*results, lines)
            text += f"  {mean:+.3f} ± {half:.3f}"
        print(text.rstrip())


def draw(results, rows):
    figure, axes = plt.subplots(figsize=(6.8, 3.9), layout="constrained")
    for i, result in enumerate(results):
        points = [(middle, *share(result, lines)) for _, middle, lines in rows]
        places, values, lows, highs = zip(*points)
        off = [[value - low for value, low in zip(values, lows)], [high - value for value, high in zip(values, highs)]]
        axes.errorbar(places, values, off, color=COLOURS[i % len(COLOURS)], marker="o", markersize=4, capsize=2.5,
                      label=plain(result.label))
    axes.axhline(CHANCE, color="0.45", linewidth=0.9, linestyle=(0, (4, 3)), label="chance")
    axes.set(xlabel="distance in words", ylabel="accuracy of four, 95 % interval", ylim=(0, 1.02))
    axes.grid(color="0.9", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return figure


def same_items(results):
    """The runs' results on the items that all of them read whole."""
    first = results[0]
    for other in results[1:]:
        if other.items != first.items:
            raise ValueError(f"{other.label}: its items are not those of {first.label}: one test for all is wanted")
    lines = set.intersection(*(set(result.solved) for result in results))
    if not lines:
        raise ValueError("the runs have read no item in common whole")
    for result in results:
        result.solved = {line: result.solved[line] for line in lines}
    return results


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", metavar="RESULT.json")
    parser.add_argument("--items", metavar="FILE", help="the items, where they are no longer where RESULT names them")
    parser.add_argument("--label", action="append", default=[], help="name of a run, in order; its path")
    parser.add_argument("--bin", type=int, default=16, metavar="WORDS", help="width of a bin (default %(default)s)")
    add_file_options(parser, "recall.png")
    return parser.parse_args(arguments)


def main(arguments=None):
    args = parse(arguments)
    try:
        check_file(args)
        if args.bin < 1:
            raise ValueError(f"--bin {args.bin}: a word at least is wanted")
        if len(args.label) > len(args.results):
            raise ValueError(f"--label {args.label[-1]}: more labels than runs")
        labels = args.label + [None] * (len(args.results) - len(args.label))
        results = same_items([Result(path, args.items, label) for path, label in zip(args.results, labels)])
        by_distance, by_kind = bins(results, args.bin)
        write(draw(results, by_distance), args)
    except (OSError, ValueError) as error:
        return failed(error)
    for i, result in enumerate(results, 1):
        cut = f"; {result.cut} items left out, whose story did not fit" if result.cut else ""
        print(f"{i}: {result.label}{cut}")
    print_table(results, by_distance + by_kind)
    print(f"chance {CHANCE}\n{args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
