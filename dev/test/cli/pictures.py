"""pictures.py BINARY: the part of test_exchange.sh that tests dev/plot and starter.py --recall, in one process.

Runs in the folder prepared by test_exchange.sh: runs own and by_llmc with the same log; runs start, shuffled, the same
after training, and others of exchange.py; position.json from eval --by-position.
"""

import html
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "dev" / folder) for folder in ("plot", "data", "reference")]

import numpy as np

import budget
import loss
import position
import runs
import starter
from script_calls import call, check, missing, refuses_all, succeeds, write


# ---- membership.py ---------------------------------------------------------------------------------------------------


def check_page(membership):
    # markup, a newline, a tab, control characters, a byte that is not UTF-8, and a character cut by the block size
    write("seen.txt", b'a <b> & "c"\n\td\x01\xff\xc3\xa9\xe2\x80\xae and so \xc3\xa9\r\n')
    read = Path("seen.txt").read_bytes().decode("utf-8", "replace").removesuffix("\r\n")
    arguments = ("shuffled", "@seen.txt", "--initial", "start", "--title", "a <b> & c", "--out")
    out = succeeds(membership.main, *arguments, "page.html")
    text = Path("page.html").read_text(encoding="utf-8")
    trained, start, other = (membership.Activations(model, text) for model, text in
                             (("shuffled", read), ("start", read), ("shuffled", "another one")))
    T, spans = len(trained.tokens), re.findall(r'<span id="(t[0-9]+)">(.*?)</span>', text, re.S)
    data = json.loads(re.search(r'<script [^>]*id="data">(.*?)</script>', text, re.S)[1])
    check("the page loads nothing", not re.search(r"\b(src|href)=|https?:|url\(|@import", text))
    check("the title is escaped", "<title>a &lt;b&gt; &amp; c</title>" in text)
    check("one span per token", [f"t{t}" for t in range(T)] == [name for name, _ in spans])
    shown = re.sub("<i>.*?</i>", "", "".join(token for _, token in spans))
    check("the page contains the text, escaped", "<" not in shown
          and html.unescape(shown) == read[:-1].replace("\x01", "").replace("\u202e", ""))
    escapes = re.findall(r"<i>([^<]*)</i>", text[text.index('id="t0"'):])
    check(f"characters without a glyph are escaped: {set(escapes)}",
          {"\\xc3", "\\u{1}", "\\u{202e}", "\u21b5", "\u21e5", "\u00b7"} <= set(escapes))
    check("the page's Π", np.allclose(data["pi"], trained.pi, rtol=0, atol=0.51e-4))
    check("ids and losses, the first loss null", data["loss"][0] is None
          and np.allclose(data["loss"][1:], trained.loss[1:], atol=1e-4) and data["ids"] == trained.tokens.tolist())
    hues, lightness = (tuple(map(int, re.search(rf"{name} = \[([0-9, ]*)\]", text)[1].split(", ")))
                       for name in ("HUES", "LIGHTNESS"))
    check("the page has a key, in the colors of the picture", 'id="key"' in text and hues == membership.HUES
          and np.allclose(lightness, 100 * np.array(membership.LIGHTNESS)))
    layer, token = data["start"]
    margin, first = membership.margins(trained.pi)[layer], T // 4
    check("the page opens at the layer that changed most, at its largest margin after the first quarter",
          layer == np.abs(trained.pi - start.pi).sum(1).mean(1).argmax() and token >= first
          and margin[token] == margin[first:].max())
    distance = [0.5 * np.abs(trained.pi[l] - start.pi[l]).sum(0).mean() for l in range(2)]
    printed = [float(line.split()[3]) for line in out.splitlines()[1:-1]]
    check("printed distances from initialization", np.allclose(printed, distance, atol=1e-4) and max(distance) > 0.01)
    status, out, error = call(membership.main, "shuffled", "@seen.txt")
    check("the page is beside the run, and empty columns say why", Path("shuffled.html").exists() and status == 0
          and out.endswith("shuffled.html\n") and "needs --initial" in out and "needs --control" in out)
    check("a longer text is truncated with a warning", "33 tokens; only the first 32" in error)
    with_control = (*arguments[:4], "--control", "another one", "--picture", "strips.svg", "--out", "control.html")
    shares = [float(line.split()[4]) for line in succeeds(membership.main, *with_control).splitlines()[1:-1]]
    check("shares that the position explains", np.allclose(shares, membership.explained(trained, other), atol=1e-4)
          and "of the variance of Π" in Path("control.html").read_text(encoding="utf-8"))
    key = Path("strips.svg").read_text(encoding="utf-8").partition(">head</text>")[2]
    keys = re.findall(">([0-9]+)</text>", key)
    check(f"a picture of the strips, with a key of the heads: {keys}", keys == ["1", "2", "3", "4"])
    check("the position explains all of a text's own Π", np.allclose(membership.explained(trained, trained), 1))
    other.tokens, other.pi = trained.tokens, np.random.default_rng(1).permutation(trained.pi, axis=2)
    check("but less of them in random order", membership.explained(trained, other).max() < 0.9)
    values = np.array([[[0.5, 0.1], [0.2, 0.8], [0.3, 0.1]]])  # (1,3,2)
    check("margin: largest minus second-largest value", np.allclose(membership.margins(values), [[0.2, 0.7]]))
    check("share of the busiest head", membership.busiest(np.array([[[0.5, 0.1, 0.9], [0.2, 0.8, 0.05]]])) == [2 / 3])


# ---- budget.py -------------------------------------------------------------------------------------------------------


def check_budget():
    """The constants of losses made from a law; those of the measured runs are in plan.c."""
    rows = []
    for L, C, D in itertools.product((1, 3), (64, 256), (1e6, 4e6, 16e6)):
        N = 1e-5 * L ** 0.7 * C * C
        loss_of = 1.5 + 2 * N ** -0.1 + 0.5 * (D / 4e6) ** -0.6 * N ** 0.2
        rows += [f"law,a,{V},{L},{C},{D},{loss_of * F},2" for V, F in ((4096, 1), (8192, 1.08))]
    names = "use,text,vocab,layers,channels,tokens,loss,bits_per_byte,program,minutes"
    write("law.csv", "\n".join([names, *rows, "peer,a,4096,,,1,3,2,x,4"]) + "\n")
    out = succeeds(budget.main, "law.csv", "--out", "law.png")
    check(f"budget.py finds a law: {out}", "E = 1.500, A = 2.000, B = 0.500; a = 0.10, d = 0.60, g = 0.20; F = 1.08" in out)
    repository = Path(__file__).resolve().parents[3]
    out = succeeds(budget.main, repository / "dev/results/budget.csv", "--out", "budget.png")
    constants = re.findall(r"-?[0-9]+[.][0-9]+", out.splitlines()[0])
    source = (repository / "tost/run/plan.c").read_text()
    used = re.search(r"return (.*) \+ (.*) \* pow\(N, -(.*)\) \+ (.*) \* pow\(D, -(.*)\) \* pow\(N, (.*)\);", source)
    E, A, B, a, d, g, _ = constants
    check(f"plan.c has the constants of budget.csv: {constants}", [*map(float, used.groups())]
          == [*map(float, (E, A, a, B, d, g))])


# ---- starter.py --recall ---------------------------------------------------------------------------------------------


def check_items():
    options = "--seed 3 --stories 30 --recall --out recall.jsonl"
    subprocess.run([sys.executable, starter.__file__, *options.split()], check=True)
    items = [json.loads(line) for line in Path("recall.jsonl").read_text().splitlines()]
    kinds = {item["kind"] for item in items}
    check(f"{len(items)} items of kinds {sorted(kinds)}",
          len(items) > 30 and len(kinds) > 4 and kinds <= set(starter.RECALLED))
    for item in items:
        words, choices = re.findall(r"\w+", item["context"]), {choice.removeprefix(" ") for choice in item["choices"]}
        answer = item["choices"][item["answer"]].removeprefix(" ")
        good = (len(choices) == 4 and words[-item["distance"]] == answer
                and answer not in words[len(words) - item["distance"] + 1:] and not set(words) & (choices - {answer})
                and choices <= set(starter.RECALLED[item["kind"]].split("|")) and item["context"][-1] != " ")
        if not good:
            check(f"valid item: {item}", False)
    check("the answer has every position among the choices", {item["answer"] for item in items} == {0, 1, 2, 3})


# ---- position.py -----------------------------------------------------------------------------------------------------


def fake_positions(path, *losses, last=4, **changed):
    ends = [(1, 1), (2, 2), (3, last)]
    bins = [{"first": first, "last": end, "tokens": 7, "loss": loss, "loss_95": None if first == 1 else 0.25}
            for (first, end), loss in zip(ends, losses)]
    write(path, json.dumps({"content": "eval", "model": f"out/{path}/step_00000100/model.safetensors",
                            "position": bins} | changed))


def check_positions():
    out = succeeds(position.main, "position.json", "--out", "position.png")
    check("position.py on eval's results", Path("position.png").read_bytes()[:4] == b"\x89PNG")
    row = next(line.split() for line in out.splitlines() if line.startswith("17-32 "))
    bin = next(b for b in json.loads(Path("position.json").read_text())["position"] if b["first"] == 17)
    check("a bin's loss and interval", row[1:] == [f"{bin['loss']:.4f}", "±", f"{bin['loss_95']:.4f}"])
    fake_positions("first.json", 3.0, 2.0, 1.0)
    fake_positions("second.json", 4.0, 2.0, 2.0)
    fake_positions("longer.json", 3.0, 2.0, 1.0, last=5)
    out = succeeds(position.main, "first.json,second.json", "longer.json", "--label", "x<y", "--out", "two.svg")
    table = [line.split() for line in out.splitlines()]
    check("two lines", "x&lt;y" in Path("two.svg").read_text())
    check("names and numbers of models", "1: x<y; 2 models" in out and "2: longer.json; 1 model\n" in out)
    check("mean and standard error of two runs", ["1", "3.5000", "±", "0.5000", "3.0000", "±", "nan"] in table)
    check("bins of one line only", ["3-4", "1.5000", "±", "0.5000"] in table
          and ["3-5", "1.0000", "±", "0.2500"] in table)
    fake_positions("wrong.json", 1.0, position=[{"first": 1}])
    refuses_all("position")


# ---- loss.py ---------------------------------------------------------------------------------------------------------


def check_long_log():
    """100,000 rows, with a skipped step and an incomplete last row."""
    rows = [f"{i},{i * 64},{3 + i % 7 / 8},{'' if i % 5000 else 2.5},{1e-3 / i:.9e},{'nan' if i == 9 else 1},2.500,1"
            for i in range(1, 100001)]
    write("long.csv", "\n".join([",".join(runs.COLUMNS), *rows, "100001,6400064,3"]))
    run = runs.Run("long.csv")
    check("a long log", np.array_equal(run.tokens, np.arange(1, 100001) * 64) and run.lr[99999] == 1e-8
          and np.isnan(run.grad_norm[8]) and run.points("val_loss")[0].tolist() == [5000 * 64 * i for i in range(1, 21)])
    succeeds(loss.main, "long.csv", "--out", "long.png")


def check_losses(model):
    out = succeeds(loss.main, "own", "by_llmc", "--label", "a<b", "--label", "other", "--difference", "--published",
                   "openwebtext", "--line", "1 and 2 make=3", "--out", "loss.svg")
    svg = Path("loss.svg").read_text()
    check("the SVG contains labels, published values and lines",
          all(text in svg for text in ("a&lt;b", "ToST-base 3.20", "1 and 2 make 3.00")))
    check("--difference of equal runs is zero", out.count("largest difference +0.000e+00") == 4)
    smooth = loss.smooth(np.array([1, math.nan, 3]), 3)
    check("smoothing ignores the loss of a skipped step", np.allclose(smooth, [1, 5 / 3, 2]))
    smooth = loss.smooth(np.array([1.0, 3] * 10), 4)
    check("the end is smoothed as well", np.allclose(smooth[[0, 1, -2, -1]], [1, 5 / 3, 2, 7 / 3]))
    check_long_log()
    log = Path("own/log.csv").read_text()
    write("cut.csv", log[:-4])   # an incomplete last row, which is ignored
    succeeds(loss.main, "cut.csv", "--out", "loss.png")
    check("one log as PNG", Path("loss.png").read_bytes()[:4] == b"\x89PNG")
    rows = log.splitlines()
    column = rows[0].split(",").index("val_loss")
    last = rows[-1].split(",")
    other = [*last[:column], f"{float(last[column]) + 0.5:.9f}", *last[column + 1 :]]
    write("other.csv", "\n".join([*rows[:-1], ",".join(other)]) + "\n")
    out = succeeds(loss.main, "own,other.csv", "--label", "both", "--out", "loss.png")
    check("the mean of two runs and its deviation",
          f"both: validation loss {float(last[column]) + 0.25:.4f} ± {0.5 / math.sqrt(2):.4f} (2 runs) after" in out)
    for sign, *order in ("+", "own", "other.csv"), ("-", "other.csv", "own"):
        out = succeeds(loss.main, *order, "--difference", "--out", "two.svg")
        check(f"the sign of a difference: {out}", f"validation loss  largest difference {sign}5.000e-01" in out)
    succeeds(loss.main, "own", "cut.csv", "--out", "two.svg")
    check("no gaps in the curve of a longer run", "stroke-dasharray" not in Path("two.svg").read_text())
    write("other_data/step_00000024/model.safetensors", re.sub(rb'(val-blocks-crc":")........', rb"\g<1>00000000",
                                                                    model.read_bytes()))
    write("other_data/log.csv", Path("shuffled/log.csv").read_text())
    out = succeeds(loss.main, "shuffled", "other_data", "own", "--out", "two.svg")
    check(f"runs of other data get a note: {out}", "not the same validation data: " in out
          and "not the same validation data: " in Path("two.svg").read_text())
    check("runs of the same data do not", runs.different_data(["shuffled", "sequential", "own"]) is None)
    axes = loss.draw([runs.Run("own")], loss.parse(["own"])).axes[0]
    check("validations are joined", [line.get_linestyle() for line in axes.lines if line.get_marker() == "o"][0] == "-")
    refuses_all("loss", header=rows[0] + "\n")


def main():
    model = next(Path("shuffled").glob("step_*/model.safetensors"))
    if not missing("membership.py", "torch", "safetensors", "tiktoken"):
        import membership

        check_page(membership)
        refuses_all("membership", model=model)
    check_items()
    check_budget()
    check_positions()
    check_losses(model)


if __name__ == "__main__":
    main()
