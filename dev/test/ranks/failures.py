"""failures.py: killed, stopped and signalled ranks. The run ends with one line, and the resumed run has the bytes of an
uninterrupted one, on any number of ranks."""

import os
import random
import re
import signal
import time

import launch
import world

LOST = 75   # exit status if a rank is lost
TIMEOUT = 3   # --rank-timeout, seconds
# Message of the launcher when it ends the other ranks
SAYS = {"openmpi": r"on signal 9", "mpich": r"KILLED BY SIGNAL: 9|Killed \(signal 9\)"}
# What the launcher returns if it gets a signal; otherwise that of a single process. mpirun of Open MPI passes SIGINT on
# as SIGTERM and returns 1; mpiexec of MPICH does not wait for the ranks after SIGTERM.
LAUNCHER = {("openmpi", signal.SIGTERM): 1, ("openmpi", signal.SIGINT): 1}
RANKS = {("openmpi", signal.SIGINT): signal.SIGTERM}


def plan(rng, number):
    """How to kill: a random rank at a random time or while rank 0 saves, or rank 0 at a call of its save."""
    kind = ("time", "save", "call")[number % 3]
    return {"kind": kind, "ranks": rng.choice([4, 4, 2]), "after": rng.uniform(0, 1.5), "at": rng.randint(1, 60),
            "do": rng.choice(["before", "after", "half"]), "rank": rng.random()}


def wait_for_save(job, case):
    while not case.unfinished() and job.process.poll() is None:
        time.sleep(0.0005)


def kill(w, case, mpi, how, fresh):
    """Starts the run, kills a rank, and waits for the others."""
    wrapper, more, rank = (), None, int(how["rank"] * how["ranks"])
    if how["kind"] == "call":
        wrapper = launch.per_rank(case.dir, 0, f'LD_PRELOAD={w.faults} exec "$@"')
        more = {"TORTURE_JOURNAL": w.journal, "TORTURE_AT": str(how["at"]), "TORTURE_DO": how["do"],
                "TORTURE_ONLY": "/step_"}
    job = launch.start(case, mpi, how["ranks"], launch.resume(case, fresh), wrapper=wrapper, more=more)
    job.wait_ranks(how["ranks"])
    job.wait_output()   # mpirun of Open MPI 4.1 itself may hang if a rank is killed in MPI_Init
    if how["kind"] == "call":
        job.process.wait(60)
        return job.finish()
    if how["kind"] == "save":
        wait_for_save(job, case)
    else:
        time.sleep(how["after"])
    job.signal(signal.SIGKILL, rank)
    return job.finish()


def kills(w, report, mpis, count, seed):
    """Kills ranks `count` times with each MPI library. Each run is resumed on another number of ranks until it ends."""
    report.begin("kill")
    args = launch.run_options("plain", steps=60)
    reference = launch.single(w, w.binary, [*args, *world.OUT])["tree"]
    slowest = killed = 0
    for mpi in mpis:
        rng, done = random.Random(f"kill {seed}"), 0
        while done < count:
            case = w.case()
            for _ in range(8):
                how = plan(rng, done)
                what = f"{mpi.name}, seed {seed}, kill {done + 1} {how}"
                result = kill(w, case, mpi, how, args)
                if result.status == 0 or done == count:
                    break
                done, killed, slowest = done + 1, killed + 1, max(slowest, result.seconds)
                report.check(result.seconds < launch.ENDED_WITHIN and "still" not in result.err,
                             f"{what}: ended after {result.seconds:.1f} s: {result.summary()}")
                says = SAYS[mpi.name] + r"|communication with rank \d on \S+ failed"   # if a rank notices it first
                report.check(len(result.lines()) <= 1 and re.search(says, result.err + result.out),
                             f"{what}: {result.err!r} {result.out[-400:]!r}")
                case.check_checkpoints(report, what, 0, sample=False)
            ranks = rng.choice([4, 2, 1])
            last = launch.run(case, mpi, ranks, launch.resume(case, args))
            report.check(last.status == 0, f"{mpi.name}, seed {seed}, resumed on {ranks} ranks: {last.summary()}")
            case.check_same(report, f"{mpi.name}, seed {seed}, after {done} kills, resumed on {ranks} ranks", reference,
                            older=False)
            case.remove()
    report.figure(f"{killed} kills; all processes had ended after at most {slowest:.1f} s")
    report.end()


def stopped_rank(w, report, mpis):
    """A rank that does not respond ends the run after --rank-timeout; the line names the rank."""
    report.begin("timeout")
    args = launch.run_options("plain", steps=100000, timeout=TIMEOUT)
    for mpi in mpis:
        for rank in (2, 0):
            case, what = w.case(), f"{mpi.name}, SIGSTOP of rank {rank}"
            job = launch.start(case, mpi, 4, [*args, *world.OUT])
            job.wait_ranks(4)
            job.wait_steps(10)
            job.signal(signal.SIGSTOP, rank)
            result = job.finish()
            report.check(result.status == LOST, f"{what}: expected status {LOST}: {result.summary()}")
            report.check(result.seconds < TIMEOUT + launch.ENDED_WITHIN, f"{what}: ended after {result.seconds:.1f} s")
            lines = result.lines()
            report.check(len(lines) == 1 and f"rank {rank} on" in lines[0].split(": ")[-1]
                         and f"did not respond for {TIMEOUT} s (--rank-timeout)" in lines[0],
                         f"{what}: {lines or result.err}")
            report.figure(f"{what}: {result.seconds:.1f} s")
            case.remove()
    report.end()


def record_statuses(case):
    """A wrapper that writes the exit status of each rank to a file. A signal ends a wait of the shell."""
    path = case.path("record.sh")
    rank = launch.RANK_IN_SHELL
    with open(path, "w") as f:
        f.write('#!/bin/sh\ntrap : TERM INT USR1\n"$@" &\npid=$!\n'
                'while kill -0 $pid 2>/dev/null; do wait $pid; status=$?; done\n'
                f'echo $status > status.{rank}\nexit $status\n')
    os.chmod(path, 0o755)
    return [path]


def statuses(case, ranks):
    found = []
    for rank in range(ranks):
        try:
            with open(case.path(f"status.{rank}")) as f:
                found.append(int(f.read()))
        except (OSError, ValueError):
            found.append(None)
    return found


def signals(w, report, mpis, seed):
    """A signal to the launcher or to any one rank stops all ranks after the same step, saves, and resumes."""
    report.begin("signals")
    rng = random.Random(f"signals {seed}")
    constant = ["--schedule", "constant"]   # does not depend on the number of steps
    args = [*launch.run_options("plain", steps=100000), *constant]
    patient = {"OMPI_MCA_odls_base_sigkill_timeout": "5"}   # mpirun waits twice as long
    for mpi in mpis:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            for rank in (None, 0, 3):
                case = w.case()
                what = f"{mpi.name}, {number.name} to {'the launcher' if rank is None else f'rank {rank}'}"
                job = launch.start(case, mpi, 4, [*args, *world.OUT], wrapper=record_statuses(case),
                                   more=patient if rank is None else None)
                job.wait_ranks(4)
                job.wait_steps(10)
                time.sleep(rng.uniform(0, 0.1))
                job.signal(number, rank)
                result = job.finish()
                ranks = 128 + (number if rank is not None else RANKS.get((mpi.name, number), number))
                launcher = LAUNCHER.get((mpi.name, number), 128 + number) if rank is None else ranks
                # mpirun of Open MPI ends the other ranks as soon as one has ended with a status that is not 0
                found = set(statuses(case, 4)) - ({None, 128 + signal.SIGTERM} if mpi.name == "openmpi" else set())
                report.check(result.status == launcher and found <= {ranks},
                             f"{what}: ranks {statuses(case, 4)}, {result.summary()}")
                report.check(case.complete() and result.out.count("--resume --out run") == 1,
                             f"{what}: {result.out[-300:]!r} {result.summary()}")
                if case.complete():
                    check_resumed(w, report, case, mpi, what, rng.choice([1, 2, 4]), constant)
                case.remove()
    report.end()


def check_resumed(w, report, case, mpi, what, ranks, more):
    """Ten steps more have the bytes of an uninterrupted run of that length."""
    steps = case.complete()[-1] + 10
    last = launch.run(case, mpi, ranks, ["--resume", *world.OUT, "--threads", "1", "--steps", str(steps)])
    report.check(last.status == 0, f"{what}: the resumed run: {last.summary()}")
    reference = launch.single(w, w.binary, [*launch.run_options("plain", steps=steps), *more, *world.OUT])["tree"]
    case.check_same(report, f"{what}, resumed on {ranks} ranks", reference, older=False)
