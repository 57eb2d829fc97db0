"""Writes an HTML page that colors each token of a text by the head with the largest membership, for each layer.

    train_gpt_tost --steps 0 --out out/start                              (the untrained model)
    tr ' ' '\\n' < story.txt | shuf | tr '\\n' ' ' > shuffled.txt          (the control)
    membership.py out/run @story.txt --initial out/start --control @shuffled.txt --out membership.html

The membership Π of a token is a softmax over the heads of a layer. A token has the color of the head with the
largest Π; the stronger the color, the larger the margin to the second-largest Π. Π depends on a token's energy
relative to the sum over all tokens up to it, so even in an untrained model it changes with the position.

The page is one self-contained file. The script also prints, per layer, the mean margin; the share of tokens whose
leading head is the busiest one; with --initial, the same text in the model before training, the distance from it
(½ Σ |Π − Π₀| over the heads, 0 to 1); and with --control, another text in the same model, the share of the variance of
Π that the position explains: the covariance of Π at equal positions of both texts, divided by its variance. It is 1 if
Π depends only on the position. --picture draws the strips of all three. Bytes of a file that are not UTF-8 are read as
U+FFFD. Needs Python 3.11 or later, torch, numpy, safetensors and tiktoken; for --picture, matplotlib.
"""

import colorsys
import html
import json
import sys
import unicodedata
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "reference"))

from cli import about, command, need, option_parser, run, write_file
import figure

parser = option_parser(__doc__)
parser.add_argument("model", metavar="RUN", help="run, checkpoint folder or model file")
parser.add_argument("text", metavar="TEXT", help="a text or @FILE; only the tokens that the model can read are used")
parser.add_argument("--initial", metavar="RUN", help="the model before training, for the same text")
parser.add_argument("--control", metavar="TEXT", help="another text in the same model, such as shuffled words")
parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="default: the vocab.bpe beside the model file")
parser.add_argument("--picture", metavar="FILE", help="also draw the strips, *.png or *.svg")
parser.add_argument("--title", help="page title (default: the name of the run)")
parser.add_argument("--out", metavar="FILE", help="default: RUN.html")
if __name__ == "__main__":
    given = parser.parse_args()   # --help does not need the packages below
    need("torch", "numpy", "safetensors", "tiktoken", *(["matplotlib"] if given.picture else []))

import numpy as np
from safetensors import SafetensorError

from activations import Activations

# Hues and lightness of the heads, as in the page; after 24 heads they repeat.
HUES, LIGHTNESS = (0, 30, 54, 120, 175, 210, 265, 315), (0.56, 0.33, 0.76)
MARKS = {"\n": "\u21b5", "\t": "\u21e5"}  # shown before the character
FULL_COLOR = 0.98  # quantile of the margins that is shown in full color


def char_html(char):
    """A character as HTML; one without a glyph becomes an escape sequence in <i>."""
    code = ord(char)
    if char in MARKS:
        return f"<i>{MARKS[char]}</i>{char}"
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"<i>\\x{code - 0xDC00:02x}</i>"
    if unicodedata.category(char) in ("Cc", "Cf", "Co", "Cn", "Zl", "Zp"):
        return f"<i>\\u{{{code:x}}}</i>"
    return html.escape(char)


def token_html(text, offsets):
    """HTML of each token. A character that is split over several tokens appears in the first."""
    out, at = [""] * (len(offsets) - 1), 0
    for char in text.decode("utf-8", "surrogateescape"):
        out[np.searchsorted(offsets, at, "right") - 1] += char_html(char)
        at += len(char.encode("utf-8", "surrogateescape"))
    return [token or "<i>\u00b7</i>" for token in out]


def margins(values):
    """Largest minus second-largest value over the heads: (L,nh,T) to (L,T)."""
    if values.shape[1] == 1:
        return np.ones(values.shape[::2])
    top = np.sort(values, axis=1)
    return top[:, -1] - top[:, -2]


def full_margin(one):
    """The margin that is shown in full color."""
    return max(1e-6, float(np.quantile(margins(one.pi), FULL_COLOR)))


def busiest(values):
    """Per layer, the largest share of tokens with the same leading head."""
    leading = values.argmax(1)
    return [np.bincount(row).max() / len(row) for row in leading]


def explained(trained, control):
    """Per layer, the share of the variance of Π that the position explains."""
    T = min(len(trained.tokens), len(control.tokens))
    a, b = (one.pi[:, :, :T].astype(float) for one in (trained, control))
    a, b = (pi - pi.mean(2, keepdims=True) for pi in (a, b))
    return 2 * (a * b).sum((1, 2)) / np.maximum((a * a + b * b).sum((1, 2)), 1e-30)


def most_changed(trained, initial):
    """[layer, token], from 0, at which the page opens: the layer that differs most from initialization, or has the
    largest margins, and its token with the largest margin after the first quarter of the text."""
    margin, first = margins(trained.pi), len(trained.tokens) // 4
    layer = (np.abs(trained.pi - initial.pi).sum(1) if initial else margin).mean(1).argmax()
    return [int(layer), int(margin[layer, first:].argmax() + first)]


def summary(trained, initial, control):
    """Per layer: mean margin, share of the busiest head, distance from initialization, and the share that the position
    explains; the last two need their option."""
    L = len(trained.pi)
    distance = 0.5 * np.abs(trained.pi - initial.pi).sum(1).mean(1) if initial else ["needs --initial"] * L
    position = explained(trained, control) if control else ["needs --control"] * L
    columns = margins(trained.pi).mean(1), busiest(trained.pi), distance, position
    return [[value if isinstance(value, str) else f"{value:.4f}" for value in row] for row in zip(*columns)]


def page(args, trained, initial, control):
    tokens = token_html(trained.text, trained.offsets)
    data = {"full": full_margin(trained),
            "start": most_changed(trained, initial), "pi": trained.pi.astype(float).round(4).tolist(),
            "ids": trained.tokens.tolist(),
            "loss": [None if np.isnan(x) else round(float(x), 4) for x in trained.loss]}
    nats = trained.loss[1:].mean() if len(tokens) > 1 else np.nan   # the first token has no context
    facts = f"{trained.model}, step {trained.step}: {len(tokens)} tokens, {nats:.4f} nats per token"
    if control:
        share = explained(trained, control)
        facts += (f". The position explains {100 * share.min():.0f} to {100 * share.max():.0f} % of the variance of Π "
                  f"in the layers; control: {args.control[:40]}")
    title = args.title or f"Membership: {figure.short_name(trained.model)}"
    values = {"TITLE": html.escape(title), "FACTS": html.escape(facts),
              "SPANS": "".join(f'<span id="t{t}">{token}</span>' for t, token in enumerate(tokens)),
              "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")}
    template = Path(__file__).with_name("membership.template.html").read_text(encoding="utf-8")
    parts = template.split("@@")  # text, name, text, name, …
    return "".join(values[part] if i % 2 else part for i, part in enumerate(parts))


def strips(panels, path):
    """Draws the strip of each (title, activations): layers × tokens in the colors of the leading heads."""
    matplotlib, heads = figure.matplotlib(), max(one.pi.shape[1] for _, one in panels)
    colors = np.array([[*colorsys.hls_to_rgb(HUES[h % 8] / 360, LIGHTNESS[h // 8 % 3], 0.8), 1] for h in range(heads)])
    full = full_margin(panels[0][1])
    picture = matplotlib.figure.Figure((9, 1.5 * len(panels)), layout="constrained")
    axes = picture.subplots(len(panels), squeeze=False, sharex=True)   # the same positions below each other
    for (title, one), ax in zip(panels, axes[:, 0]):
        image = colors[one.pi.argmax(1)]
        image[..., 3] = (margins(one.pi) / full).clip(0, 1)
        L, _, T = one.pi.shape
        ax.imshow(image, aspect="auto", interpolation="nearest", extent=(0.5, T + 0.5, L + 0.5, 0.5))
        ax.set(title=title, ylabel="layer", yticks=range(1, L + 1))
    axes[-1, 0].set_xlabel("position; color: the head with the largest Π, stronger with its margin")
    picture.legend(handles=[matplotlib.patches.Patch(color=color, label=str(h + 1)) for h, color in enumerate(colors)],
                   title="head", loc="outside right upper", frameon=False,
                   ncols=-(-heads // (5 * len(panels))))
    write_file(path, lambda part: picture.savefig(part, format=Path(path).suffix[1:], dpi=100))


def read_text(value):
    """TEXT or the content of @FILE, without a byte order mark and one final line end."""
    if not value.startswith("@"):
        return value
    text = Path(value[1:]).read_bytes().decode("utf-8-sig", "replace")
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def read(args):
    """The activations of RUN, --initial and --control; None for an option that is not given."""
    def activations(model, text):
        if None in (model, text):
            return None
        with about(model, SafetensorError):
            return Activations(model, read_text(text), args.tokenizer)

    trained, initial, control = (activations(model, text) for model, text in (
        (args.model, args.text), (args.initial, args.text), (args.model, args.control)))
    if initial and (initial.pi.shape != trained.pi.shape or initial.tokens.tolist() != trained.tokens.tolist()):
        raise ValueError(f"{args.initial}: its layers, heads or tokens differ from those of {args.model}")
    if trained.text_tokens > len(trained.tokens):
        print(f"the text has {trained.text_tokens} tokens; only the first {len(trained.tokens)} (the block size) are "
              "used", file=sys.stderr)
    return trained, initial, control


@command()
def main(arguments):
    args = parser.parse_args(arguments)
    args.out = args.out or f"{Path(args.model)}.html"
    trained, initial, control = read(args)
    text = page(args, trained, initial, control)
    write_file(args.out, lambda part: part.write_text(text, encoding="utf-8", newline="\n"))
    if args.picture:
        panels = ("the text", trained), ("the control", control), ("the text, before training", initial)
        strips([panel for panel in panels if panel[1]], args.picture)
    print("layer  margin  busiest  from initialization  explained by position")
    for l, (margin, share, distance, position) in enumerate(summary(trained, initial, control), 1):
        print(f"{l:5d}  {margin}  {share:>7}  {distance:>19}  {position:>21}")
    print(args.out)


if __name__ == "__main__":
    sys.exit(run(main))
