"""Shared by the scripts that draw with matplotlib: colors, common options, axes. Needs no display."""

from pathlib import Path

from cli import need, write_file

# Okabe and Ito's palette, distinguishable for color-blind readers
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")


def matplotlib():
    """The package with its Figure. Imported when a figure is drawn, since --help does not need it."""
    need("matplotlib", "numpy")
    import matplotlib.figure

    matplotlib.rcParams.update({"font.size": 9.5, "svg.hashsalt": "tost", "svg.fonttype": "none",
                                "agg.path.chunksize": 10000})   # for long curves
    return matplotlib


def add_options(parser, out, labelled):
    parser.add_argument("--label", action="append", default=[], metavar="NAME",
                        help=f"name of a {labelled} in the legend; repeat in the order of the {labelled}s")
    parser.add_argument("--out", default=out, metavar="FILE", help="*.png or *.svg (default: %(default)s)")


def check_options(args):
    if Path(args.out).suffix not in (".png", ".svg"):
        raise ValueError(f"--out {args.out}: give a name that ends in .png or .svg")


def padded_labels(args, count, labelled):
    """The --label names, followed by None up to `count`."""
    if len(args.label) > count:
        raise ValueError(f"--label {args.label[-1]}: more labels than {labelled}s")
    return args.label + [None] * (count - len(args.label))


def plain(text):
    """Escapes "$", which matplotlib would read as math mode."""
    return text.replace("$", r"\$")


def short_name(model):
    """The run of a checkpoint, or the last name in another path: out/a/step_00000100/model.safetensors is "a"."""
    names = [name for name in Path(model).parts if name != "model.safetensors" and not name.startswith("step_")]
    return names[-1] if names else model


def style_axes(axes):
    axes.grid(color="0.9", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def write(figure, args):
    """Writes args.out. An SVG contains no date, so the same data give the same file."""
    kind = Path(args.out).suffix[1:]
    metadata = {"Date": None} if kind == "svg" else None
    write_file(args.out, lambda part: figure.savefig(part, format=kind, dpi=110, metadata=metadata))
