"""Writes an HTML page that colors each token of a text by the head with the largest membership, for each layer.

    train_gpt_tost --steps 0 --out out/start                                              (the untrained model)
    train_gpt_tost inspect --model out/run   --text @story.txt --out trained.safetensors
    train_gpt_tost inspect --model out/start --text @story.txt --out start.safetensors
    tr ' ' '\\n' < story.txt | shuf | tr '\\n' ' ' > shuffled.txt                           (the control)
    train_gpt_tost inspect --model out/run   --text @shuffled.txt --out control.safetensors
    membership.py trained.safetensors --initial start.safetensors --control control.safetensors --out membership.html

The membership Π of a token is a softmax over the heads of a layer. A token has the color of the head with the
largest Π; the stronger the color, the larger the margin to the second-largest Π. Π depends on a token's energy
relative to the sum over all tokens up to it, so even in an untrained model it changes with the position.

The page is one self-contained file. The script also prints, per layer, the mean margin; the share of tokens whose
leading head is the busiest one; with --initial, the same text in the model before training, the distance from it
(½ Σ |Π − Π₀| over the heads, 0 to 1); and with --control, another text in the same model, the share of the variance of
Π that the position explains: the covariance of Π at equal positions of both texts, divided by its variance. It is 1 if
Π depends only on the position. --picture draws the strips of all three files. Needs Python 3.11 or later, numpy and
safetensors; for --picture, matplotlib.
"""

import html
import json
import sys
import unicodedata
from pathlib import Path

from cli import command, describe, option_parser, run, write_file
import figure

parser = option_parser(__doc__)
parser.add_argument("trained", metavar="TRAINED", help="output of `train_gpt_tost inspect`")
parser.add_argument("--initial", metavar="FILE", help="the same for the model before training")
parser.add_argument("--control", metavar="FILE", help="another text in the same model, such as shuffled words")
parser.add_argument("--picture", metavar="FILE", help="also draw the strips, *.png or *.svg")
parser.add_argument("--title", help="page title (default: the file name)")
parser.add_argument("--out", metavar="FILE", help="default: that of TRAINED, with .html")
if __name__ == "__main__":
    parser.parse_args()   # --help does not need the packages below

try:
    import numpy as np
    from safetensors import SafetensorError, safe_open
except ImportError as error:
    sys.exit(f"{error}: pip install numpy safetensors")

MARKS = {"\n": "\u21b5", "\t": "\u21e5"}  # shown before the character
FULL_COLOR = 0.98  # quantile of the margins that is shown in full color
TENSORS = ("tokens", "offsets", "loss", "pi", "text")


class Inspection:
    """Arrays tokens (T), offsets (T+1), loss (T), pi (L,nh,T); text as bytes; model and step."""

    def __init__(self, path):
        self.path = str(path)
        if Path(path).is_dir():
            raise ValueError(f"{path}: is a folder; give the file that inspect wrote")
        try:
            with safe_open(self.path, framework="np") as file:
                metadata = file.metadata() or {}
                if metadata.get("content") != "inspect":
                    raise ValueError(f"{path}: not a file of `train_gpt_tost inspect`")
                for name in TENSORS:
                    setattr(self, name, file.get_tensor(name))
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror or describe(error)}") from error
        except SafetensorError as error:
            raise ValueError(f"{path}: not a complete safetensors file of inspect ({describe(error)})") from error
        self.text = self.text.tobytes()
        self.model, self.step = metadata.get("model", self.path), int(metadata.get("step", 0))
        self.layers, self.heads, self.length = self.pi.shape

    def mean_loss(self):
        """Nats per token, without the first token, which has no context. NaN for a single token."""
        return float(self.loss[1:].mean()) if self.length > 1 else float("nan")

    def same_text(self, other):
        return np.array_equal(self.tokens, other.tokens) and self.text == other.text


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


def busiest(values):
    """Per layer, the largest share of tokens with the same leading head."""
    leading = values.argmax(1)
    return [np.bincount(row).max() / len(row) for row in leading]


def explained(trained, control):
    """Per layer, the share of the variance of Π that the position explains."""
    T = min(trained.length, control.length)
    a, b = (one.pi[:, :, :T].astype(float) for one in (trained, control))
    a, b = (pi - pi.mean(2, keepdims=True) for pi in (a, b))
    return 2 * (a * b).sum((1, 2)) / np.maximum((a * a + b * b).sum((1, 2)), 1e-30)


def most_changed(trained, initial):
    """[layer, token], from 0, at which the page opens: the layer that differs most from initialization, or has the
    largest margins, and its token with the largest margin after the first quarter of the text."""
    margin, first = margins(trained.pi), trained.length // 4
    layer = (np.abs(trained.pi - initial.pi).sum(1) if initial else margin).mean(1).argmax()
    return [int(layer), int(margin[layer, first:].argmax() + first)]


def summary(trained, initial, control):
    """Per layer: mean margin, share of the busiest head, distance from initialization, and the share that the position
    explains; the last two need their file."""
    distance = 0.5 * np.abs(trained.pi - initial.pi).sum(1).mean(1) if initial else ["needs --initial"] * trained.layers
    position = explained(trained, control) if control else ["needs --control"] * trained.layers
    columns = margins(trained.pi).mean(1), busiest(trained.pi), distance, position
    return [[value if isinstance(value, str) else f"{value:.4f}" for value in row] for row in zip(*columns)]


def page(trained, initial, control, title):
    tokens = token_html(trained.text, trained.offsets)
    data = {"full": max(1e-6, float(np.quantile(margins(trained.pi), FULL_COLOR))),
            "start": most_changed(trained, initial), "pi": trained.pi.astype(float).round(4).tolist(),
            "ids": trained.tokens.tolist(),
            "loss": [None if np.isnan(x) else round(float(x), 4) for x in trained.loss]}
    facts = f"{trained.model}, step {trained.step}: {trained.length} tokens, {trained.mean_loss():.4f} nats per token"
    if control:
        share = explained(trained, control)
        facts += (f". The position explains {100 * share.min():.0f} to {100 * share.max():.0f} % of the variance of Π "
                  f"in the layers; control: {Path(control.path).stem}")
    values = {"TITLE": html.escape(title), "FACTS": html.escape(facts),
              "SPANS": "".join(f'<span id="t{t}">{token}</span>' for t, token in enumerate(tokens)),
              "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")}
    template = Path(__file__).with_name("membership.template.html").read_text(encoding="utf-8")
    parts = template.split("@@")  # text, name, text, name, …
    return "".join(values[part] if i % 2 else part for i, part in enumerate(parts))


def strips(panels, path):
    """Draws the strip of each (title, inspection): layers × tokens in the colors of the leading heads."""
    matplotlib = figure.matplotlib()
    picture = matplotlib.figure.Figure((9, 1.5 * len(panels)), layout="constrained")
    axes = picture.subplots(len(panels), squeeze=False)
    for (title, one), ax in zip(panels, axes[:, 0]):
        image = matplotlib.colormaps["hsv"](one.pi.argmax(1) * 0.381966 % 1)  # neighboring heads differ most
        image[..., 3] = (margins(one.pi) / FULL_COLOR).clip(0, 1)
        ax.imshow(image, aspect="auto", interpolation="nearest", extent=(0.5, one.length + 0.5, one.layers + 0.5, 0.5))
        ax.set(title=title, ylabel="layer", yticks=range(1, one.layers + 1))
    axes[-1, 0].set_xlabel("position; color: the head with the largest Π, stronger with its margin")
    write_file(path, lambda part: picture.savefig(part, format=Path(path).suffix[1:], dpi=100))


def read(args):
    trained, initial, control = (path and Inspection(path) for path in (args.trained, args.initial, args.control))
    if initial and not trained.same_text(initial):
        raise ValueError(f"{args.initial}: not the text of {args.trained}; inspect both on the same text")
    for path, other in ((args.initial, initial), (args.control, control)):
        if other and other.pi.shape[:2] != trained.pi.shape[:2]:
            raise ValueError(f"{path}: {other.layers} layers of {other.heads} heads, but "
                             f"{args.trained} has {trained.layers} of {trained.heads}")
    return trained, initial, control


@command()
def main(arguments):
    args = parser.parse_args(arguments)
    args.out = args.out or str(Path(args.trained).with_suffix(".html"))
    trained, initial, control = read(args)
    text = page(trained, initial, control, args.title or f"Membership: {Path(args.trained).stem}")
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
