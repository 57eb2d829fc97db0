"""A text coloured token by token by the head that claims it, layer by layer, as one HTML page.

    train_gpt_tost inspect --model out/run --text @story.txt --out trained.safetensors
    train_gpt_tost --steps 0 --out out/start && \
        train_gpt_tost inspect --model out/start --text @story.txt --out start.safetensors
    membership.py trained.safetensors --initial start.safetensors --out membership.html

The membership Π of a token is a softmax over the heads of a layer. The head of the largest Π claims the token,
and the colour is as strong as the margin to the second. A token's energy is weighed against that of all tokens
before it, so Π changes with the position alone, in a model that has learnt nothing too: with --initial, the
same text in the same model before training, the page has a second mode, Π − Π at initialisation.

The page stands alone: no network, no other file. It prints, per layer, how large the margins are, how many
tokens the busiest head claims, and how far Π is from initialisation (½ Σ |Π − Π₀| over the heads, 0 to 1).
Needs Python 3.10, numpy and safetensors.
"""

import argparse
import base64
import html
import json
import os
import sys
import unicodedata
from pathlib import Path

from inspected import UNREADABLE, Inspection
from lines import failed, run
import numpy as np

MARKS = {"\n": "\u21b5", "\t": "\u21e5"}  # shown before the character itself
STRONG = 0.98  # quantile of the margins that is drawn at full strength


def shown(char):
    """A character as HTML. What has no glyph of its own is written as an escape, set apart by its style."""
    code = ord(char)
    if char in MARKS:
        return f"<i>{MARKS[char]}</i>{char}"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"<i>\\x{code - 0xDC00:02x}</i>"
    if unicodedata.category(char) in ("Cc", "Cf", "Co", "Cn", "Zl", "Zp"):
        return f"<i>\\u{{{code:x}}}</i>"
    return html.escape(char)


def shown_tokens(text, offsets):
    """HTML of each token. A character whose bytes several tokens share stands in the first of them."""
    out, at = [""] * (len(offsets) - 1), 0
    for char in text.decode("utf-8", "surrogateescape"):
        out[np.searchsorted(offsets, at, "right") - 1] += shown(char)
        at += len(char.encode("utf-8", "surrogateescape"))
    return [token or "<i>\u00b7</i>" for token in out]


def margins(values):
    """Largest less second largest of the heads: (L,nh,T) to (L,T)."""
    if values.shape[1] == 1:
        return np.ones(values.shape[::2])
    top = np.sort(values, axis=1)
    return top[:, -1] - top[:, -2]


def busiest(values):
    """Share of the tokens that the head with the most claims has, per layer."""
    claims = values.argmax(1)
    return [np.bincount(row).max() / len(row) for row in claims]


def packed(pi):
    """Π in 1/65535 as little-endian uint16, in base64."""
    return base64.b64encode(np.rint(pi.clip(0, 1) * 65535).astype("<u2").tobytes()).decode()


def summary(trained, initial):
    """Per layer: mean margin, share of the busiest head, and departure from initialisation or None."""
    rows = []
    departure = 0.5 * np.abs(trained.pi - initial.pi).sum(1).mean(1) if initial else [None] * trained.layers
    for l, (margin, share) in enumerate(zip(margins(trained.pi).mean(1), busiest(trained.pi))):
        rows.append((l + 1, float(margin), float(share), None if departure[l] is None else float(departure[l])))
    return rows


def page(trained, initial, title):
    tokens = shown_tokens(trained.text, trained.offsets)
    spans = "".join(f'<span id="t{t}">{token}</span>' for t, token in enumerate(tokens))
    modes = [trained.pi] + ([trained.pi - initial.pi] if initial else [])
    strong = [max(1e-6, float(np.quantile(margins(values), STRONG))) for values in modes]
    data = {"layers": trained.layers, "heads": trained.heads, "length": trained.length, "strong": strong,
            "pi": packed(trained.pi), "initial": packed(initial.pi) if initial else None,
            "ids": trained.tokens.tolist(),
            "loss": [None if np.isnan(x) else round(float(x), 4) for x in trained.loss]}
    facts = f"{trained.model}, step {trained.step}: {trained.length} tokens, {trained.mean_loss():.4f} nats a token"
    if initial:
        facts += f"; initialisation: {initial.model}, step {initial.step}"
    rows = "".join(f"<tr><th>{l}</th><td>{margin:.4f}</td><td>{share:.2f}</td>"
                   f"<td>{'' if away is None else f'{away:.4f}'}</td></tr>"
                   for l, margin, share, away in summary(trained, initial))
    values = {"TITLE": html.escape(title), "FACTS": html.escape(facts), "SPANS": spans, "ROWS": rows,
              "LAST": str(trained.layers), "DIFFERENCE": "" if initial else "disabled",
              "NOTE": "" if initial else " (needs --initial)",
              "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")}
    template = Path(__file__).with_name("membership.template.html").read_text(encoding="utf-8")
    parts = template.split("@@")  # text, name, text, name, …
    return "".join(values[part] if i % 2 else part for i, part in enumerate(parts))


def read(args):
    trained = Inspection(args.trained)
    initial = Inspection(args.initial) if args.initial else None
    if initial and not trained.same_text(initial):
        raise ValueError(f"{args.initial}: is of another text than {args.trained}: inspect both on the same one")
    if initial and initial.pi.shape != trained.pi.shape:
        raise ValueError(f"{args.initial}: has {initial.layers} layers of {initial.heads} heads, "
                         f"{args.trained} {trained.layers} of {trained.heads}")
    return trained, initial


def write(path, text):
    if not path.name:
        raise ValueError(f"--out {path}: a file's name is wanted")
    part = path.with_name(path.name + ".tmp")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        os.replace(part, path)
    except OSError as error:
        raise ValueError(f"--out {path} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trained", help="what inspect wrote of the model")
    parser.add_argument("--initial", metavar="FILE", help="the same of the model before training")
    parser.add_argument("--title", help="of the page; the file's name")
    parser.add_argument("--out", type=Path, default=Path("membership.html"), help="default %(default)s")
    args = parser.parse_args(arguments)
    try:
        trained, initial = read(args)
        write(args.out, page(trained, initial, args.title or f"Membership: {Path(args.trained).stem}"))
    except UNREADABLE as error:
        return failed(error)
    print("layer  margin  busiest  from initialisation")
    for l, margin, share, away in summary(trained, initial):
        print(f"{l:5d}  {margin:6.4f}  {share:7.3f}  {'' if away is None else f'{away:.4f}'}".rstrip())
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
