"""Writes the log of runs as events for TensorBoard.

    export_log.py RUN… [--out FOLDER]        then: tensorboard --logdir FOLDER
    export_log.py RUN --follow               while the run goes on, until Ctrl-C

RUN is a log.csv or a run folder. The series are train/loss, val/loss, train/lr, train/grad_norm, speed/ms,
speed/tokens_per_s and tokens, over the step; empty and infinite values are left out. The options of a run, from the
metadata of its newest checkpoint, become text. Without --follow, a log that grows is exported again as a whole. `wandb
sync FOLDER/RUN` uploads the events to Weights & Biases. Needs Python 3.11 or later, numpy and tensorboard.
"""

import math
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

from cli import command, option_parser, run
from runs import Run, newest_checkpoint

SERIES = {"train_loss": "train/loss", "val_loss": "val/loss", "lr": "train/lr", "grad_norm": "train/grad_norm",
          "ms": "speed/ms", "tokens_per_s": "speed/tokens_per_s", "tokens": "tokens"}
POLL = 2  # seconds


def values(path, log, follow):
    """(step, {series: value}, seconds) for each row; with follow also for those that are added until a signal."""
    stop, stopped, last = threading.Event(), not follow, -1
    if follow:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
    while True:
        for i, step in enumerate(log.step):
            if step > last:
                row = {series: getattr(log, name)[i] for name, series in SERIES.items()}
                yield (int(step), {series: value for series, value in row.items() if math.isfinite(value)},
                       log.ms[i] / 1000 if math.isfinite(log.ms[i]) else 0)
        last = max(last, log.step[-1])
        if stopped:
            return
        stopped = stop.wait(POLL)
        log = Run(path)


def options(folder):
    metadata = newest_checkpoint(folder) if folder.is_dir() else {}
    return {key.removeprefix("option."): value for key, value in metadata.items()
            if key.startswith("option.") or key == "program"}


def to_tensorboard(rows, folder, settings, time):
    """Replaces the event files that an earlier export wrote to the folder. time: when the run began."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise ValueError(f"{error}: pip install numpy tensorboard") from error
    shutil.rmtree(folder, ignore_errors=True)
    writer = EventFileWriter(str(folder), flush_secs=POLL)
    if settings:
        table = "".join(f"| {key} | {value} |\n" for key, value in settings.items())
        writer.add_event(Event(wall_time=time, summary=text_pb("options", "| option | value |\n|---|---|\n" + table)))
    for step, row, seconds in rows:
        time += seconds
        summary = Summary(value=[Summary.Value(tag=series, simple_value=value) for series, value in row.items()])
        writer.add_event(Event(step=step, wall_time=time, summary=summary))
    writer.close()


def is_ours(folder):
    """True if removing the folder loses nothing but exported events."""
    return not folder.exists() or folder.is_dir() and all(
        name.startswith("events.out.tfevents.") for name in os.listdir(folder))


@command()
def main(arguments):
    parser = option_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a log.csv or a run folder")
    parser.add_argument("--out", type=Path, metavar="FOLDER", default="out/tensorboard",
                        help="write events to FOLDER/RUN (default: out/tensorboard)")
    parser.add_argument("--follow", action="store_true", help="export one run while it goes on, until Ctrl-C")
    args = parser.parse_args(arguments)
    if args.follow and len(args.runs) > 1:
        raise ValueError("--follow: give one run")
    logs = [Run(path) for path in args.runs]
    if len({log.label for log in logs}) < len(logs):
        raise ValueError("two runs have the same name: export them to different folders")
    for path, log in zip(args.runs, logs):
        folder = args.out / log.label
        if not is_ours(folder):
            raise ValueError(f"--out {folder}: has files that are not events: give another folder")
        ended = (path / "log.csv" if path.is_dir() else path).stat().st_mtime
        began = ended - sum(filter(math.isfinite, log.ms)) / 1000  # validation and saves are left out
        to_tensorboard(values(path, log, args.follow), folder, options(path), began)
        print(folder)


if __name__ == "__main__":
    sys.exit(run(main))
