"""launch.py: starts the trainer on several ranks with MPI."""

import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "faults"))

import world   # of the torture tests

# Slices are units of 16,384 parameters. The three models have 7, 4 and 6 units, so that the slices of 4 ranks differ.
MODELS = {
    "plain": "--layers 2 --heads 4 --channels 64 --block-size 32 --vocab-size 257 --seq 32 --total-batch 512 "
             "--conv 0 --optimizer adamw",
    "chunk": "--layers 1 --heads 2 --channels 60 --block-size 24 --vocab-size 257 --seq 24 --total-batch 384 --bias 1 "
             "--chunk 10 --conv 4 --memory 1 --optimizer muon",
    "odd": "--layers 3 --heads 3 --channels 51 --block-size 17 --vocab-size 263 --seq 13 --total-batch 208 --bias 1 "
           "--conv 0 --optimizer muon",
}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl_base_warn_component_unused": "0",
               "UCX_LOG_LEVEL": "fatal", "PMIX_MCA_gds": "hash"}


def run_options(model="plain", steps=30, timeout=60):
    """Training with accumulation, validation, sampling and saving: four parts of two micro-batches of two sequences.
    The odd model has a mixture of two sources."""
    mixture = ["--data", "../tiny_train_000000.bin:0.7", "--data", "../tiny_train_000001.bin:0.3"]
    data = [*mixture, *world.DATA[2:]] if model == "odd" else world.DATA
    return [*MODELS[model].split(), *data, *world.OUT, "--steps", str(steps), "--rank-timeout", str(timeout),
            *("--batch 2 --parts 4 --warmup 2 --lr 0.01 --val-every 5 --val-windows 10 --sample-every 10 "
              "--sample-tokens 8 --save-every 6 --keep 2 --threads 1").split()]


def changed(args, option, value):
    """The arguments with another value of one option."""
    return [value if before == option else arg for before, arg in zip(["", *args], args)]


@dataclasses.dataclass
class Mpi:
    """An MPI library: the trainer built with it, and its launcher."""
    name: str      # openmpi or mpich
    launcher: str
    binary: str

    def command(self, ranks):
        """Starts programs on some ranks; 0: one process, without the launcher."""
        own = ["--oversubscribe", "--bind-to", "none"] if self.name == "openmpi" else ["-bind-to", "none"]
        return [self.launcher, *own, "-n", str(ranks)] if ranks else []


def find_mpi(folder, name):
    """An MPI library, if `folder` has a trainer for it."""
    mpi = Mpi(name, shutil.which(f"mpirun.{name}") or shutil.which("mpirun"),
              os.path.abspath(os.path.join(folder, name, "train_gpt_tost")))
    return mpi if mpi.launcher and os.access(mpi.binary, os.X_OK) else None


@dataclasses.dataclass
class Result(world.Result):
    seconds: float = 0   # from the last signal, or the start, to the end of the last process

    def lines(self):
        """The error lines of the trainer. The launchers write lines of their own."""
        return [line for line in self.err.splitlines() if re.search(r"\btrain_gpt_tost: ", line)]


def runs(pid):
    """True if the process runs; a zombie does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Job:
    """A started launcher and its ranks. per_rank: shell commands that replace `exec "$@"` on some ranks."""

    def __init__(self, folder, mpi, ranks, args, per_rank=None, more=None, binary=None):
        self.folder, self.count, self.began = folder, ranks, time.monotonic()
        cases = "".join(f"{rank}) {then} ;;\n" for rank, then in (per_rank or {}).items())
        with open(self.path("start.sh"), "w") as f:
            f.write('rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}\n'
                    f'echo $$ > pid.$rank\ncase $rank in\n{cases}*) exec "$@" ;;\nesac\n')
        for rank in range(ranks):
            pathlib.Path(self.path(f"pid.{rank}")).write_text("")
        self.files = [open(self.path(name), "w+", errors="replace") for name in ("stdout", "stderr")]
        self.process = subprocess.Popen([*mpi.command(ranks), "sh", "start.sh", binary or mpi.binary, *args],
                                        cwd=folder, env={**ENVIRONMENT, **(more or {})}, stdin=subprocess.DEVNULL,
                                        stdout=self.files[0], stderr=self.files[1], start_new_session=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def pid(self, rank):
        return int(pathlib.Path(self.path(f"pid.{rank}")).read_text() or 0)

    def alive(self):
        return [pid for pid in map(self.pid, range(self.count)) if runs(pid)]

    def wait(self, condition, seconds=60):
        """Waits for a condition, or for the end of the run. Returns the condition."""
        end = time.monotonic() + seconds
        while not condition() and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        return condition()

    def wait_steps(self, count):
        """Waits until the run has logged `count` steps."""
        log = pathlib.Path(self.path("run/log.csv"))
        return self.wait(lambda: log.exists() and log.read_bytes().replace(b"\n0,", b"").count(b"\n") > count)

    def signal(self, number, rank=None):
        """Sends a signal to a rank, or to the launcher."""
        self.began = time.monotonic()
        try:
            os.kill(self.process.pid if rank is None else self.pid(rank), number)
        except ProcessLookupError:
            pass

    def finish(self, timeout=120):
        end, late = time.monotonic() + timeout, ""
        while (self.process.poll() is None or self.alive()) and time.monotonic() < end:
            time.sleep(0.01)
        seconds = time.monotonic() - self.began
        if self.process.poll() is None or self.alive():
            late = f"(still running after {timeout} s: {len(self.alive())} ranks)"
        for pid in [*self.alive(), *([self.process.pid] if self.process.poll() is None else [])]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for stream in self.files:
            stream.seek(0)
        out, err = (stream.read() for stream in self.files)
        return Result(self.process.returncode, out, err + late, seconds=seconds)


def resumed(case, fresh=()):
    """The arguments that continue the run in a case, or start it again if nothing was saved."""
    return [*fresh, "--overwrite"] if fresh and not case.complete() else ["--resume", *world.OUT, "--threads", "1"]
