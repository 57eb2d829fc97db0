"""What the pictures share: colours, the options of the file that is written, and its writing. Drawn without a
display."""

import os
import sys
from pathlib import Path

try:
    import matplotlib
except ImportError as error:
    sys.exit(f"{error}: pip install matplotlib")

matplotlib.use("Agg")
matplotlib.rcParams.update({"font.size": 9.5, "svg.hashsalt": "tost", "svg.fonttype": "none"})

# Okabe and Ito's colours, which colour-blind readers can tell apart
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MOST_DPI = 2400


def add_file_options(parser, name):
    parser.add_argument("--out", default=name, help="*.png or *.svg (default %(default)s)")
    parser.add_argument("--dpi", type=int, default=110, help="of a PNG (default %(default)s)")


def check_file(args):
    if Path(args.out).suffix not in (".png", ".svg"):
        raise ValueError(f"--out {args.out}: a name that ends in .png or .svg is wanted")
    if not 1 <= args.dpi <= MOST_DPI:
        raise ValueError(f"--dpi {args.dpi}: 1 to {MOST_DPI} are possible")


def plain(text):
    """Text that matplotlib draws as it is, dollars too."""
    return text.replace("$", r"\$")


def write(figure, args):
    """Whole or not at all. The same data give the same file: an SVG holds no date."""
    kind, part = Path(args.out).suffix[1:], Path(args.out + ".tmp")
    try:
        figure.savefig(part, format=kind, dpi=args.dpi, metadata={"Date": None} if kind == "svg" else None)
        os.replace(part, args.out)
    except OSError as error:
        raise ValueError(f"--out {args.out} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
