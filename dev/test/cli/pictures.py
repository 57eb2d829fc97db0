"""pictures.py: the part of test_exchange.sh that needs numpy, safetensors and matplotlib, in one process.

Runs in the folder prepared by test_exchange.sh: trained.safetensors and start.safetensors from inspect on seen.txt,
other.safetensors on another text; recall.jsonl and blind.jsonl from starter.py. Prints one line
per check, starting with "ok" or "FAILED".
"""

import base64
import html.parser
import json
import re
import struct
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "dev" / folder) for folder in ("plot", "data")]

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

import membership
import position
import starter
from inspected import Inspection
from script_calls import call, check


def refuse(main, text, out, *arguments):
    status, _, err = call(main, *arguments)
    check(f"{' '.join(map(str, arguments))}: expected '{text}', got {err!r}",
          status == 1 and text in err and err.count("\n") == 1)
    check("no file is written", not Path(out).exists() and not Path(f"{out}.tmp").exists())


# ----------------------------------------------------------------------------------------------------------
# membership.py


class Page(html.parser.HTMLParser):
    """The text of each token without escapes, the JSON data, and all URLs that the page refers to."""

    def __init__(self, text):
        super().__init__()
        self.spans, self.data, self.urls, self.open = {}, "", [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.urls += [value for name, value in attributes.items() if name in ("src", "href")]
        self.open.append((tag, attributes.get("id") or ""))
        if tag == "span":
            self.spans.setdefault(attributes.get("id"), "")
        if tag in ("meta", "input", "canvas", "link", "img", "br"):
            self.open.pop()

    def handle_endtag(self, tag):
        if self.open and self.open[-1][0] == tag:
            self.open.pop()

    def handle_data(self, text):
        tag, name = self.open[-1] if self.open else ("", "")
        if tag == "span":
            self.spans[name] += text
        elif name == "data":
            self.data += text


def unpack(packed, shape):
    raw = base64.b64decode(packed)
    return np.array(struct.unpack(f"<{len(raw) // 2}H", raw)).reshape(shape) / 65535


def check_page():
    status, out, err = call(membership.main, "trained.safetensors", "--initial", "start.safetensors",
                            "--title", "a <b> & c", "--out", "page.html")
    check(f"membership.py: {err}", status == 0)
    text = Path("page.html").read_text(encoding="utf-8")
    trained, start = Inspection("trained.safetensors"), Inspection("start.safetensors")
    page, T = Page(text), trained.length
    data = json.loads(page.data)
    check("the page loads nothing", not page.urls and "http:" not in text and "https:" not in text
          and "url(" not in text and "@import" not in text)
    check("the title is escaped", "<title>a &lt;b&gt; &amp; c</title>" in text)
    check("one span per token",
          [f"t{t}" for t in range(T)] == [name for name in page.spans if re.match("t[0-9]", name)])
    shown = "".join(page.spans[f"t{t}"] for t in range(T))
    check("the page contains the text", shown == Path("seen.txt").read_text(encoding="utf-8", errors="ignore")
          .replace("\x01", "").replace("\u202e", ""))
    escapes = re.findall(r"<i>([^<]*)</i>", text[text.index('id="t0"'):])
    check(f"characters without a glyph are escaped: {set(escapes)}",
          {"\\xff", "\\u{1}", "\\u{202e}", "\u21b5", "\u21e5", "\u00b7"} <= set(escapes))
    for name, one in (("pi", trained), ("initial", start)):
        check(f"the page's {name} equals the file's",
              np.abs(unpack(data[name], one.pi.shape) - one.pi).max() <= 0.51 / 65535)
    check("ids and losses, the first loss null", data["loss"][0] is None
          and np.allclose(data["loss"][1:], trained.loss[1:], atol=1e-4) and data["ids"] == trained.tokens.tolist())
    layer, token = data["start"]
    letters = [trained.text[a:b].decode("utf-8", "replace").isalpha()
               and a >= len(trained.text) // 4 for a, b in zip(trained.offsets, trained.offsets[1:])]
    margin = membership.margins(trained.pi)[layer]
    check("the page opens at the layer that changed most, at the letter with the largest margin",
          layer == np.abs(trained.pi - start.pi).sum(1).mean(1).argmax() and letters[token]
          and margin[token] == margin[letters].max())
    distance = [0.5 * np.abs(trained.pi[l] - start.pi[l]).sum(0).mean() for l in range(trained.layers)]
    printed = [float(line.split()[3]) for line in out.splitlines()[1:-1]]
    check("printed distances from initialization",
          np.allclose(printed, distance, atol=1e-4) and max(distance) > 0.01)
    check("the same files give the same page", call(membership.main, "trained.safetensors", "--initial",
          "start.safetensors", "--title", "a <b> & c", "--out", "again.html")[0] == 0
          and Path("again.html").read_text() == text)
    status, _, err = call(membership.main, "trained.safetensors", "--out", "alone.html")
    alone = Path("alone.html").read_text()
    check(f"without --initial: {err}", status == 0 and 'value="1" disabled' in alone
          and json.loads(Page(alone).data)["initial"] is None and 'value="1" disabled' not in text)


def synthetic(path, layers=2, heads=2, hs=3, text=b"abcd", model="synthetic", step=0, seed=0, w=None, pi=None):
    """A file like those of inspect, with one token per byte."""
    rng, T = np.random.default_rng(seed), len(text)
    pi = rng.dirichlet(np.ones(heads), (layers, T)).transpose(0, 2, 1) if pi is None else pi
    w = rng.normal(size=(layers, T, heads * hs)) if w is None else w
    tensors = {"tokens": np.frombuffer(text, np.uint8).astype(np.int32), "offsets": np.arange(T + 1, dtype=np.int32),
               "loss": np.ones(T, np.float32), "text": np.frombuffer(text, np.uint8),
               "pi": np.ascontiguousarray(pi, np.float32), "w": np.ascontiguousarray(w, np.float32)}
    save_file(tensors, path, {"content": "inspect", "model": model, "step": str(step)})
    return tensors


def check_margins():
    values = np.array([[[0.5, 0.1], [0.2, 0.8], [0.3, 0.1]]])  # (1,3,2)
    check("margin: largest minus second-largest value", np.allclose(membership.margins(values), [[0.2, 0.7]]))
    check("a single head has margin 1", np.array_equal(membership.margins(values[:, :1]), [[1, 1]]))
    check("share of the busiest head", membership.busiest(np.array([[[0.5, 0.1, 0.9], [0.2, 0.8, 0.05]]])) == [2 / 3])
    synthetic("large.safetensors", layers=12, heads=12, hs=1, text=bytes(range(256)) * 4)
    status, _, err = call(membership.main, "large.safetensors", "--initial", "large.safetensors", "--out", "large.html")
    check(f"1,024 tokens, 12 layers of 12 heads: under 2 MB: {err}",
          status == 0 and Path("large.html").stat().st_size < 2e6)


def change(path, **changed):
    """Copies trained.safetensors with changed tensors; None removes a tensor."""
    with safe_open("trained.safetensors", framework="np") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()
    tensors = {name: np.ascontiguousarray(one) for name, one in (tensors | changed).items() if one is not None}
    save_file(tensors, path, metadata)
    return tensors


def check_invalid_files():
    """A folder, files of other types and incomplete files are each a one-line error."""
    Path("folder").mkdir(exist_ok=True)
    Path("empty").touch()
    Path("text.txt").write_text("text\n")
    Path("bad.json").write_text("{")
    Path("deep.json").write_text("[" * 100000)
    Path("list.json").write_text("[1, 2]")
    Path("cut.safetensors").write_bytes(Path("trained.safetensors").read_bytes()[:3000])
    main, out = membership.main, "no.html"
    refuse(main, "folder: is a folder; give the file", out, "folder", "--out", out)
    for name in ("empty", "text.txt", "bad.json", "deep.json", "cut.safetensors"):
        refuse(main, f"{name}: not a complete safetensors file of inspect", out, name, "--out", out)
    refuse(main, "a?b: cannot be read: No such file", out, "a\nb", "--out", out)
    for name in ("tokens", "offsets", "loss", "pi", "w", "text"):
        change("less.safetensors", **{name: None})
        refuse(main, f"less.safetensors: tensor '{name}' is missing", out, "less.safetensors", "--out", out)
    pi = change("odd.safetensors")["pi"]
    for changed, text in ((pi.astype(np.float64), "'pi' is F64"), (pi[0], "'pi' is F32 ("),
                          (pi[:, :0], "'pi' is F32 ("), (pi * 2, "'pi' is not a membership")):
        change("odd.safetensors", pi=changed)
        refuse(main, f"odd.safetensors: {text}", out, "odd.safetensors", "--out", out)
    refuse(main, f"--out folder/x/{out} cannot be written: No such file", out, "trained.safetensors", "--out",
           f"folder/x/{out}")


def check_page_refusals():
    trained = "trained.safetensors"
    refuse(membership.main, "not the text of trained.safetensors", "no.html",
           trained, "--initial", "other.safetensors", "--out", "no.html")
    refuse(membership.main, "not a file of `train_gpt_tost", "no.html", "plain.safetensors", "--out", "no.html")
    Path("cut.safetensors").write_bytes(Path(trained).read_bytes()[:3000])
    refuse(membership.main, "cut.safetensors", "no.html", "cut.safetensors", "--out", "no.html")
    refuse(membership.main, "nowhere", "no.html", "nowhere", "--out", "no.html")
    refuse(membership.main, "nowhere", "nowhere", trained, "--out", "nowhere/x.html")
    a, text = "synthetic.safetensors", b"abcd"
    synthetic(a, text=text)
    synthetic("three.safetensors", heads=3, text=text)
    refuse(membership.main, "2 layers of 3 heads", "no.html", a, "--initial", "three.safetensors", "--out", "no.html")
    synthetic("odd.safetensors", w=np.zeros((2, 3, 6)))   # one token missing
    refuse(membership.main, "'w' has shape (2, 3, 6)", "no.html", "odd.safetensors", "--out", "no.html")


# ----------------------------------------------------------------------------------------------------------
# starter.py --recall


def read_lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def check_items():
    items, blind = read_lines("recall.jsonl"), read_lines("blind.jsonl")
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
    check("--blind: same items without the story", len(blind) == len(items) and all(
        {**item, "context": ""} == {**other, "context": ""} and item["context"].endswith(other["context"])
        and "?" in other["context"] and "\n" not in other["context"] and len(other["context"]) < len(item["context"]) for item, other in zip(items, blind)))
    check("--blind: exactly one question per item", all(item["context"].count("?") == 1 for item in blind))


# ----------------------------------------------------------------------------------------------------------
# position.py


def fake_positions(path, *losses, last=4, tokens=7, **changed):
    ends = [(1, 1), (2, 2), (3, last)]
    bins = [{"first": first, "last": end, "tokens": tokens, "loss": loss, "loss_95": None if first == 1 else 0.25}
            for (first, end), loss in zip(ends, losses)]
    Path(path).write_text(json.dumps({"content": "eval", "model": f"out/{path}/step_00000100/model.safetensors",
                                      "position": bins} | changed))


def check_positions():
    status, out, err = call(position.main, "position.json", "--out", "position.png")
    check(f"position.py on eval's results: {err}",
          status == 0 and Path("position.png").read_bytes()[:4] == b"\x89PNG")
    result = json.loads(Path("position.json").read_text())["position"]
    row = next(line.split() for line in out.splitlines() if line.startswith("17-32 "))
    bin = next(b for b in result if b["first"] == 17)
    check("a bin's loss and interval", row[1:] == [f"{bin['loss']:.4f}", "±", f"{bin['loss_95']:.4f}"])
    fake_positions("first.json", 3.0, 2.0, 1.0)
    fake_positions("second.json", 4.0, 2.0, 2.0)
    fake_positions("longer.json", 3.0, 2.0, 1.0, last=5)
    status, out, err = call(position.main, "first.json,second.json", "longer.json", "--label", "x<y", "--out", "two.svg")
    table = [line.split() for line in out.splitlines()]
    check(f"two lines: {err}", status == 0 and "x&lt;y" in Path("two.svg").read_text())
    check("names and numbers of models", "1: x<y; 2 models" in out and "2: longer.json; 1 model\n" in out)
    check("mean and standard error of two runs", ["1", "3.5000", "±", "0.5000", "3.0000", "±", "nan"] in table)
    fake_positions("more.json", 2.5, 9.0, tokens=8, model="out/first.json/step_00000100/model.safetensors")
    status, out, err = call(position.main, "first.json,more.json,second.json", "--line", "other=2", "--out", "more.png")
    lines = [line.split() for line in out.splitlines()]
    check(f"two results of a model: each bin from the one with more tokens: {out}",
          status == 0 and ["1", "3.2500", "±", "0.7500"] in lines and ["3-4", "1.5000", "±", "0.5000"] in lines)
    check("bins of one line only", ["3-4", "1.5000", "±", "0.5000"] in table and ["3-5", "1.0000", "±", "0.2500"] in table)

    def refused(text, *arguments):
        refuse(position.main, text, "no.png", *arguments, "--out", "no.png")
    refused("longer.json/step_00000100/model.safetensors: evaluated at other positions than out/first.json",
            "first.json,longer.json")
    refused("seen.txt: not a result", "seen.txt")
    for wrong in ([], [{"first": 1}], None, 3, [{"first": 0, "last": 1, "loss": 1, "loss_95": 1, "tokens": 1}]):
        fake_positions("wrong.json", 1.0, position=wrong)
        refused("wrong.json: no", "wrong.json")
    refused("nowhere.json: No such file", "first.json,nowhere.json")
    refused("--first 9: no position so late", "first.json", "--first", "9")
    refused("--line x: give NAME=VALUE", "first.json", "--line", "x")


def main():
    save_file({"x": np.zeros(1, np.float32)}, "plain.safetensors")
    check_page()
    check_margins()
    check_page_refusals()
    check_invalid_files()
    check_items()
    check_positions()


if __name__ == "__main__":
    main()
