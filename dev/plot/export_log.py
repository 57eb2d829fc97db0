"""Writes the log of runs as events for TensorBoard or as runs of Weights & Biases, with their own libraries.

    export_log.py RUN… [--tensorboard FOLDER]        then: tensorboard --logdir FOLDER
    export_log.py RUN… --wandb PROJECT [--offline]   offline runs are uploaded later, with `wandb sync`
    export_log.py RUN --wandb PROJECT --follow       while the run goes on, until Ctrl-C

RUN is a log.csv or a run folder. The series are train/loss, val/loss, train/lr, train/grad_norm, speed/ms,
speed/tokens_per_s and tokens, over the step; empty and infinite values are left out. The options of a run, from the
metadata of its newest checkpoint, become text in TensorBoard and the config in Weights & Biases. Without --follow, a log
that grows is exported again as a whole.

Needs Python 3.11 or later, numpy, and tensorboard or wandb: pip install tensorboard wandb
"""

import math
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

from cli import command, need, option_parser, run
from runs import Run, newest_checkpoint

SERIES = {"train_loss": "train/loss", "val_loss": "val/loss", "lr": "train/lr", "grad_norm": "train/grad_norm",
          "ms": "speed/ms", "tokens_per_s": "speed/tokens_per_s", "tokens": "tokens"}
POLL = 2  # seconds


def values(path, log, follow):
    """(step, {series: value}, seconds) for each row; with follow also for those that are added until a signal."""
    stop, last = threading.Event(), -1
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
        if not follow or stop.wait(POLL):
            return
        log = Run(path, None)


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
        raise ValueError(f"--tensorboard: {error}: pip install tensorboard") from error
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


def to_wandb(rows, name, project, settings, offline):
    try:
        import wandb
    except ImportError as error:
        raise ValueError(f"--wandb: {error}: pip install wandb") from error
    try:
        run_ = wandb.init(project=project, name=name, config=settings, mode="offline" if offline else "online",
                          settings=wandb.Settings(silent=True))
        for step, row, _ in rows:
            run_.log(row, step=step)
        run_.finish()
    except wandb.errors.Error as error:
        raise ValueError(f"--wandb {project}: {str(error).splitlines()[0]}") from error


def is_ours(folder):
    """True if removing the folder loses nothing but exported events."""
    return not folder.exists() or folder.is_dir() and all(
        name.startswith("events.out.tfevents.") for name in os.listdir(folder))


def parse(arguments):
    parser = option_parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a log.csv or a run folder")
    parser.add_argument("--tensorboard", metavar="FOLDER", default=None,
                        help="write events to FOLDER/RUN (default: out/tensorboard, unless --wandb is given)")
    parser.add_argument("--wandb", metavar="PROJECT", help="log to this project of Weights & Biases")
    parser.add_argument("--offline", action="store_true", help="with --wandb: write to ./wandb, without a network")
    parser.add_argument("--follow", action="store_true", help="export one run while it goes on, until Ctrl-C")
    parser.add_argument("--label", action="append", default=[], metavar="NAME",
                        help="name of a run; repeat in the order of the runs")
    return parser.parse_args(arguments)


@command()
def main(arguments):
    args = parse(arguments)
    need("numpy")
    tensorboard = Path(args.tensorboard or "out/tensorboard") if args.tensorboard or not args.wandb else None
    if len(args.label) > len(args.runs):
        raise ValueError(f"--label {args.label[-1]}: more labels than runs")
    if args.offline and not args.wandb:
        raise ValueError("--offline applies only to --wandb: give --wandb PROJECT")
    if args.follow and (len(args.runs) > 1 or args.tensorboard and args.wandb):
        raise ValueError("--follow: give one run, and either --tensorboard or --wandb")
    labels = args.label + [None] * (len(args.runs) - len(args.label))
    logs = [(Path(path), Run(path, label)) for path, label in zip(args.runs, labels)]
    names = [log.label for _, log in logs]
    if len(set(names)) < len(names):
        raise ValueError("two runs have the same name: give each a --label")
    for path, log in logs:
        settings = options(path)
        if tensorboard:
            folder = tensorboard / log.label
            if not is_ours(folder):
                raise ValueError(f"--tensorboard {folder}: has files that are not events: give another folder")
            ended = (path / "log.csv" if path.is_dir() else path).stat().st_mtime
            began = ended - sum(filter(math.isfinite, log.ms)) / 1000  # validation and saves are left out
            to_tensorboard(values(path, log, args.follow), folder, settings, began)
            print(folder)
        if args.wandb:
            to_wandb(values(path, log, args.follow), log.label, args.wandb, settings, args.offline)
            where = ", offline, in ./wandb" if args.offline else ""
            print(f"{args.wandb}, {log.label}{where}")


if __name__ == "__main__":
    sys.exit(run(main))
