"""Reads run folders: log.csv, and the metadata of checkpoints. Needs only Python."""

import copy
import csv
import json
import math
import struct
from pathlib import Path

from cli import describe

COLUMNS = ("step", "tokens", "train_loss", "val_loss", "lr", "grad_norm", "ms", "tokens_per_s")
MAX_HEADER = 100 << 20  # bytes of a safetensors header


class Run:
    """The columns of a log.csv as lists; val_loss is NaN in rows without validation. Steps count from 1."""

    def __init__(self, path, label):
        path = Path(path)
        path = path / "log.csv" if path.is_dir() else path
        self.label = label or (path.parent.name if path.name == "log.csv" and path.parent.name else path.stem)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror}; expected a run's log.csv or its "
                             "folder") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not a text file; expected a run's log.csv or its folder") from error
        values = read_rows(path, text[: text.rfind("\n") + 1])  # an incomplete last line is still being written
        for name, column in zip(COLUMNS, zip(*values)):
            setattr(self, name, list(column))

    def points(self, name):
        """{tokens: value} for the finite values of a column."""
        return {t: v for t, v in zip(self.tokens, getattr(self, name)) if math.isfinite(v)}


def mean_of_runs(paths, label):
    """A Run with the means of the runs' columns; its list `runs` has these runs."""
    runs = [Run(path, None) for path in paths]
    for path, run in zip(paths, runs):
        if run.tokens != runs[0].tokens:
            raise ValueError(f"{path}: its steps differ from those of {paths[0]}; averaged runs need the same steps and "
                             "tokens per step")
    mean = copy.copy(runs[0])
    mean.runs = runs
    mean.label = label or (f"{mean.label} and {len(runs) - 1} more" if len(runs) > 1 else mean.label)
    for name in COLUMNS:
        setattr(mean, name, [sum(row) / len(runs) for row in zip(*(getattr(run, name) for run in runs))])
    return mean


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
