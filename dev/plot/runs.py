"""Reads run folders: log.csv and the metadata of checkpoints. Needs only Python; logs are read faster with numpy."""

import copy
import csv
import json
import math
import struct
import warnings
from pathlib import Path

try:
    import numpy
except ImportError:
    numpy = None   # export_log.py and export_hf.py do without it

from cli import describe

COLUMNS = ("step", "tokens", "train_loss", "val_loss", "lr", "grad_norm", "ms", "tokens_per_s")
BLOCK = 4 << 20        # bytes of a log read at once
MAX_HEADER = 100 << 20  # bytes of a safetensors header


class Run:
    """Columns of a log.csv, all or those given, as arrays of numpy, or lists if there is no numpy; val_loss is NaN in
    rows without validation. Steps count from 1."""

    def __init__(self, path, label, columns=COLUMNS):
        path = Path(path)
        path = path / "log.csv" if path.is_dir() else path
        self.label = label or (path.parent.name if path.name == "log.csv" and path.parent.name else path.stem)
        try:
            values = read_columns(path, columns) if numpy else None
            if values is None:
                text = path.read_text(encoding="utf-8")
                rows = read_rows(path, text[: text.rfind("\n") + 1])  # an incomplete last line is still being written
                values = [list(column) for name, column in zip(COLUMNS, zip(*rows)) if name in columns]
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror}; expected a run's log.csv or its "
                             "folder") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not a text file; expected a run's log.csv or its folder") from error
        for name, column in zip([name for name in COLUMNS if name in columns], values):
            setattr(self, name, numpy.asarray(column) if numpy else column)

    def points(self, name):
        """Token counts with a finite value of a column, and these values."""
        values = getattr(self, name)
        finite = numpy.isfinite(values)
        return self.tokens[finite], values[finite]


def mean_of_runs(paths, label, columns):
    """A Run with the means of the runs' columns; its list `runs` has these runs."""
    runs = [Run(path, None, columns) for path in paths]
    for path, run in zip(paths, runs):
        if not numpy.array_equal(run.tokens, runs[0].tokens):
            raise ValueError(f"{path}: its steps differ from those of {paths[0]}; averaged runs need the same steps and "
                             "tokens per step")
    mean = copy.copy(runs[0])
    mean.runs = runs
    mean.label = label or (f"{mean.label} and {len(runs) - 1} more" if len(runs) > 1 else mean.label)
    for name in columns:
        setattr(mean, name, sum(getattr(run, name) for run in runs) / len(runs))
    return mean


def read_columns(path, columns):
    """The columns of a log with the fields of COLUMNS, read in blocks; None for other logs, which read_rows reads or
    refuses."""
    wanted, found, rest = numpy.isin(COLUMNS, columns), [], b""
    with open(path, "rb") as file:
        if file.readline().rstrip() != ",".join(COLUMNS).encode():
            return None
        while block := file.read(BLOCK):
            block, _, rest = (rest + block).rpartition(b"\n")
            if block:
                found.append(read_block(block + b"\n", wanted))
            if found and found[-1] is None:
                return None
    return numpy.concatenate(found).T if found else None


def read_block(block, wanted):
    """(rows, wanted columns, of which one is tokens) of complete rows; None if they are not rows of numbers."""
    text = numpy.frombuffer(block, "u1")
    ends = numpy.flatnonzero((text == ord(",")) | (text == ord("\n")))
    if len(ends) % len(COLUMNS) or block.count(b"\n") * len(COLUMNS) != len(ends) \
            or (text[ends[len(COLUMNS) - 1 :: len(COLUMNS)]] != ord("\n")).any():
        return None
    fields = numpy.tile(wanted, len(ends) // len(COLUMNS))
    text = text[numpy.repeat(fields, numpy.diff(ends, prepend=-1))].tobytes().replace(b"\n", b",")
    while b",," in text:
        text = text.replace(b",,", b",nan,")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")   # of a field that is not a number
        try:
            values = numpy.fromstring(text, sep=",")
        except ValueError:
            return None
    if len(values) != fields.sum():
        return None
    values = values.reshape(-1, wanted.sum())
    tokens = values[:, int(wanted[0])]
    return values if ((0 <= tokens) & (tokens < math.inf)).all() else None


def numbers(row):
    """The COLUMNS of a row; NaN for an empty field."""
    if None in row or None in row.values() or not 0 <= float(row["tokens"]) < math.inf:
        raise ValueError("missing fields, extra fields, or an invalid number of tokens")
    return [float(row[name] or "nan") for name in COLUMNS]


def read_rows(path, text):
    rows = csv.DictReader(text.splitlines(keepends=True))
    try:
        missing = sorted(set(COLUMNS) - set(rows.fieldnames or ()))
        values = [] if missing else [numbers(row) for row in rows]
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}: line {rows.line_num} is not a row of numbers") from error
    if missing:
        raise ValueError(f"{path}: line 1: no column {missing[0]}: not a log.csv")
    if not values:
        raise ValueError(f"{path}: no rows")
    return values


def read_metadata(path):
    """The metadata of a safetensors file, and the number of its parameters."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
        header = json.loads(file.read(min(size, MAX_HEADER)))
    metadata = header.pop("__metadata__", {})
    return metadata | {"parameters": sum(math.prod(tensor["shape"]) for tensor in header.values())}


def newest_checkpoint(folder):
    """Metadata of the checkpoint with the most steps, or {}."""
    found = {}
    for path in folder.glob("step_*/model.safetensors"):
        if path.parent.suffix:
            continue  # .tmp or .new
        try:
            metadata = read_metadata(path)
            if int(metadata.get("step", 0)) >= int(found.get("step", 0)):
                found = metadata
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not a checkpoint of the trainer ({describe(error)})") from error
    return found
