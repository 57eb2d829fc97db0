"""Reads run folders: log.csv, which needs numpy, and the metadata of checkpoints."""

import copy
import json
import math
import struct
from pathlib import Path

try:
    import numpy
except ImportError:
    numpy = None   # --help does not need it

from cli import describe

COLUMNS = ("step", "tokens", "train_loss", "val_loss", "lr", "grad_norm", "ms", "tokens_per_s")
MAX_HEADER = 100 << 20  # bytes of a safetensors header


class Run:
    """Columns of a log.csv as arrays; val_loss is NaN in rows without validation. Steps count from 1; the row
    of step 0, which older logs lack, has only the validation loss of the initial model."""

    def __init__(self, path, label=None):
        path = Path(path)
        path = path / "log.csv" if path.is_dir() else path
        self.label = label or (path.parent.name if path.name == "log.csv" and path.parent.name else path.stem)
        try:
            with open(path, encoding="utf-8") as file:
                columns = numpy.array(read_rows(path, file)).T
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror}; expected a run's log.csv or its "
                             "folder") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not a text file; expected a run's log.csv or its folder") from error
        for name, column in zip(COLUMNS, columns):
            setattr(self, name, column)

    def points(self, name):
        """Token counts with a finite value of a column, and these values."""
        values = getattr(self, name)
        finite = numpy.isfinite(values)
        return self.tokens[finite], values[finite]


def data_of(path):
    """{what: value} of the data of a run, from its newest checkpoint; {} if there is none, or it cannot be read."""
    path = Path(path)
    try:
        metadata = newest_checkpoint(path if path.is_dir() else path.parent)
    except ValueError:
        return {}
    values = {"training data": metadata.get("option.data-blocks-crc"),
              "validation data": metadata.get("option.val-blocks-crc"), "tokenizer": metadata.get("tokenizer_hash")}
    return {what: value for what, value in values.items() if value}


def different_data(paths):
    """The note that the runs differ in their data, or None."""
    data = [data_of(path) for path in paths]
    differ = [what for what in ("training data", "validation data", "tokenizer")
              if len({one[what] for one in data if what in one}) > 1]
    return f"not the same {' and '.join(differ)}: losses of different data cannot be compared" if differ else None


def mean_of_runs(paths, label):
    """A Run with the means of the runs' columns; its list `runs` has these runs."""
    runs = [Run(path) for path in paths]
    for path, run in zip(paths, runs):
        if not numpy.array_equal(run.tokens, runs[0].tokens):
            raise ValueError(f"{path}: its steps differ from those of {paths[0]}; averaged runs need the same steps "
                             "and tokens per step")
    mean = copy.copy(runs[0])
    mean.runs = runs
    mean.label = label or (f"{mean.label} and {len(runs) - 1} more" if len(runs) > 1 else mean.label)
    for name in COLUMNS:
        setattr(mean, name, sum(getattr(run, name) for run in runs) / len(runs))
    return mean


def read_rows(path, lines):
    """The rows of a log, without an incomplete last line, which is still being written; NaN for an empty field."""
    if next(lines, "").rstrip() != ",".join(COLUMNS):
        raise ValueError(f"{path}: line 1 is not that of a log.csv")
    rows = []
    for number, line in enumerate(lines, 2):
        if not line.endswith("\n"):
            break
        try:
            rows.append([float(field or "nan") for field in line.rstrip().split(",")])
            if len(rows[-1]) != len(COLUMNS) or not 0 <= rows[-1][1] < math.inf:
                raise ValueError
        except ValueError as error:
            raise ValueError(f"{path}: line {number} is not a row of numbers") from error
    if not rows:
        raise ValueError(f"{path}: no rows")
    return rows


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
