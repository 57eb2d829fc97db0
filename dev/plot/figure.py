"""What the pictures share: colours, the options of the file that is written, and its writing. Drawn without a display."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams.update({"font.size": 9.5, "svg.hashsalt": "tost", "svg.fonttype": "none"})

# Okabe and Ito's colours, which colour-blind readers can tell apart
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")


def add_file_options(parser, name):
    parser.add_argument("--out", default=name, help="*.png or *.svg (default %(default)s)")
    parser.add_argument("--dpi", type=int, default=110, help="of a PNG (default %(default)s)")


def check_file(args):
    if Path(args.out).suffix not in (".png", ".svg"):
        raise ValueError(f"--out {args.out}: a name that ends in .png or .svg is wanted")


def write(figure, args):
    """The same data give the same file: an SVG holds no date."""
    figure.savefig(args.out, dpi=args.dpi, metadata={"Date": None} if args.out.endswith(".svg") else None)
