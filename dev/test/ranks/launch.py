"""launch.py: starts the trainer on several ranks with MPI, and finds its processes."""

import dataclasses
import os
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
    "plain": "--layers 2 --heads 4 --channels 64 --block-size 32 --vocab-size 257 --seq 32",
    "biased": "--layers 1 --heads 2 --channels 60 --block-size 24 --vocab-size 257 --seq 24 --bias 1",
    "odd": "--layers 3 --heads 3 --channels 51 --block-size 17 --vocab-size 263 --seq 13 --bias 1",
}
SEQ = {"plain": 32, "biased": 24, "odd": 13}
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK")
RANK_IN_SHELL = "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${SLURM_PROCID:-0}}}"
ENDED_WITHIN = 30   # seconds until all processes of a failed run must have ended; the figures have the measured times


def run_options(model, parts=4, micro_batches=2, steps=30, batch=2, timeout=60):
    """Training with accumulation, validation, sampling and saving: parts × micro_batches micro-batches a step."""
    total = parts * micro_batches * batch * SEQ[model]
    return [*MODELS[model].split(), *world.DATA, "--batch", str(batch), "--total-batch", str(total), "--steps",
            str(steps), "--warmup", "2", "--lr", "0.01", "--val-every", "5", "--val-batches", "5", "--sample-every", "10",
            "--sample-tokens", "8", "--save-every", "6", "--keep", "2", "--threads", "1", "--parts", str(parts),
            "--rank-timeout", str(timeout)]


@dataclasses.dataclass
class Mpi:
    """An MPI library: the trainer built with it, and its launcher."""
    name: str      # openmpi or mpich
    launcher: str
    binary: str

    def command(self, ranks, options=()):
        if self.name == "openmpi":
            return [self.launcher, "--oversubscribe", "--bind-to", "none", *options, "-n", str(ranks)]
        return [self.launcher, "-bind-to", "none", *options, "-n", str(ranks)]


def find_mpi(folder):
    """The MPI libraries for which `folder` has a trainer."""
    found = []
    for name in ("openmpi", "mpich"):
        binary = os.path.join(folder, name, "train_gpt_tost")
        launcher = shutil.which(f"mpirun.{name}") or shutil.which("mpirun")
        if launcher and os.access(binary, os.X_OK):
            found.append(Mpi(name, launcher, os.path.abspath(binary)))
    return found


def environment(more=None):
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl_base_warn_component_unused": "0",
            "UCX_LOG_LEVEL": "fatal", "PMIX_MCA_gds": "hash", **(more or {})}


@dataclasses.dataclass
class Result:
    status: int
    out: str
    err: str
    seconds: float   # from the last signal, or the start, to the end of the last process

    def lines(self):
        """The error lines of the trainer. The launchers write lines of their own."""
        return [line for line in self.err.splitlines() if re.search(r"\btrain_gpt_tost: ", line)]

    def summary(self):
        return f"status {self.status}: {self.err.strip()[-400:]!r}"


def runs(pid):
    """True if the process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def rank_of(pid, binary):
    """The rank of a process that runs `binary`, or None."""
    try:
        if os.readlink(f"/proc/{pid}/exe") != binary:
            return None
        with open(f"/proc/{pid}/environ") as f:
            variables = dict(entry.partition("=")[::2] for entry in f.read().split("\0"))
    except OSError:
        return None
    return next((int(variables[v]) for v in RANK_VARIABLES if v in variables), None)


def find_ranks(binary, cwd):
    """Process ids by rank, of the processes that run `binary` in `cwd`."""
    binary, found = os.path.realpath(binary), {}
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/cwd") == os.path.realpath(cwd):
                rank = rank_of(entry, binary)
                if rank is not None:
                    found[rank] = int(entry)
        except OSError:
            pass
    return found


def logged_steps(cwd):
    try:
        with open(os.path.join(cwd, "run", "log.csv"), "rb") as f:
            return len(f.read().splitlines())
    except OSError:
        return 0


class Job:
    """A started launcher and its ranks."""

    def __init__(self, command, binary, cwd, env):
        self.binary, self.cwd, self.began = os.path.realpath(binary), cwd, time.monotonic()
        self.stdout = open(os.path.join(cwd, "stdout"), "w+")
        self.stderr = open(os.path.join(cwd, "stderr"), "w+")
        self.process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=self.stdout,
                                        stderr=self.stderr, start_new_session=True)
        self.seen = {}

    def ranks(self):
        """Process ids by rank, also of those that have ended."""
        self.seen.update(find_ranks(self.binary, self.cwd))
        return self.seen

    def wait_ranks(self, count, seconds=30):
        end = time.monotonic() + seconds
        while len(self.ranks()) < count and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        return len(self.seen) == count

    def wait_output(self, seconds=30):
        """Waits until rank 0 has printed something: then MPI_Init has ended on all ranks."""
        end = time.monotonic() + seconds
        while os.path.getsize(self.stdout.name) == 0 and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)

    def wait_steps(self, count, seconds=60):
        """Waits until the run has logged `count` more steps."""
        end, target = time.monotonic() + seconds, logged_steps(self.cwd) + count
        while logged_steps(self.cwd) < target and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        return logged_steps(self.cwd) >= target

    def signal(self, number, rank=None):
        """Sends a signal to a rank, or to the launcher."""
        self.began = time.monotonic()
        try:
            os.kill(self.process.pid if rank is None else self.ranks()[rank], number)
        except (ProcessLookupError, KeyError):
            pass

    def alive(self):
        """Process ids of the ranks that still run, also of ranks that nobody looked for before."""
        return [pid for pid in {*self.seen.values(), *self.ranks().values()} if runs(pid)]

    def finish(self, timeout=120):
        end = time.monotonic() + timeout
        late = ""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = f"(still running after {timeout} s)"
        while self.alive() and time.monotonic() < end:
            time.sleep(0.01)
        seconds = time.monotonic() - self.began
        if self.alive():
            late += f"({len(self.alive())} ranks still run after {timeout} s)"
        for pid in [*self.alive(), *([self.process.pid] if self.process.poll() is None else [])]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        texts = []
        for stream in (self.stdout, self.stderr):
            stream.close()
            with open(stream.name, errors="replace") as f:
                texts.append(f.read())
        return Result(self.process.returncode, texts[0], texts[1] + late, seconds)


def per_rank(folder, rank, then, other='"$@"'):
    """A shell script that runs `then` on one rank and `other` on the others; "$@" is the command."""
    path = os.path.join(folder, f"rank_{rank}.sh")
    with open(path, "w") as f:
        f.write(f'#!/bin/sh\nif [ "{RANK_IN_SHELL}" = {rank} ]; then {then}; else exec {other}; fi\n')
    os.chmod(path, 0o755)
    return [path]


def start(case, mpi, ranks, args, options=(), wrapper=(), more=None):
    return Job([*mpi.command(ranks, options), *wrapper, mpi.binary, *args], mpi.binary, case.dir, environment(more))


def run(case, mpi, ranks, args, options=(), wrapper=(), more=None, timeout=120):
    return start(case, mpi, ranks, args, options, wrapper, more).finish(timeout)


def resume(case, fresh):
    """The arguments that continue the run in a case, or start it again if nothing was saved."""
    return ["--resume", *world.OUT, "--threads", "1"] if case.complete() else [*fresh, *world.OUT, "--overwrite"]


def single(w, binary, args):
    """A run without a launcher, which must succeed: its folder and what it printed."""
    case = w.case()
    done = subprocess.run([binary, *args], cwd=case.dir, env=environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace", timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{binary} {' '.join(args)}: status {done.returncode}: {done.stderr.strip()[:400]}")
    tree = case.tree()
    case.remove()
    return {"tree": tree, "out": done.stdout}
