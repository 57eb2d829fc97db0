"""failures.py: killed, stopped and signalled ranks. The run ends with one line, and the resumed run has the bytes of an
uninterrupted one, on any number of ranks."""

import random
import re
import signal
import time

import launch

LOST = 75   # exit status if a rank is lost
TIMEOUT = 3   # --rank-timeout, seconds
# Message of the launcher when it ends the other ranks, or of a rank that notices it first
SAYS = r"on signal 9|KILLED BY SIGNAL: 9|Killed \(signal 9\)|communication with rank \d on \S+ failed"
# What the launcher returns if it gets a signal; otherwise that of a single process. mpirun of Open MPI passes SIGINT on
# as SIGTERM and returns 1; mpiexec of MPICH does not wait for the ranks after SIGTERM.
LAUNCHER = {("openmpi", signal.SIGTERM): 1, ("openmpi", signal.SIGINT): 1}


def plan(rng, number):
    """How to kill: a random rank at a random time or while rank 0 saves, or rank 0 at a call of its save."""
    return {"kind": ("time", "save", "call")[number % 3], "ranks": rng.choice([4, 4, 2]), "after": rng.uniform(0, 1.5),
            "at": rng.randint(1, 60), "do": rng.choice(["before", "after", "half"]), "rank": rng.random()}


def kill(w, case, mpi, how, fresh):
    """Starts the run, kills a rank, and waits for the others."""
    args = launch.resumed(case, fresh)
    if how["kind"] == "call":
        return launch.run(case, mpi, how["ranks"], args, per_rank={0: f'LD_PRELOAD={w.faults} exec "$@"'},
                          more={"TORTURE_JOURNAL": w.journal, "TORTURE_AT": str(how["at"]), "TORTURE_DO": how["do"],
                                "TORTURE_ONLY": "/step_"})
    job = launch.Job(case.dir, mpi, how["ranks"], args)
    job.wait_output()   # mpirun of Open MPI 4.1 itself may hang if a rank is killed in MPI_Init
    if how["kind"] == "save":
        job.wait(case.unfinished)
    else:
        time.sleep(how["after"])
    job.signal(signal.SIGKILL, int(how["rank"] * how["ranks"]))
    return job.finish()


def kills(w, report, mpis, count, seed):
    """Kills ranks `count` times with each MPI library. Each run is resumed on another number of ranks until it ends."""
    args = launch.run_options(steps=60)
    reference = launch.single(w, w.binary, args)["tree"]
    slowest = 0
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
                done, slowest = done + 1, max(slowest, result.seconds)
                report.check(result.seconds < launch.ENDED_WITHIN and "still" not in result.err,
                             f"{what}: ended after {result.seconds:.1f} s: {result.summary()}")
                report.check(len(result.lines()) <= 1 and re.search(SAYS, result.err + result.out),
                             f"{what}: {result.summary()}")
                case.check_checkpoints(report, what, 0, sample=False)
            check_resumed(report, case, mpi, f"after {done} kills, seed {seed}", rng, launch.resumed(case, args),
                          reference)
    report.figure(f"{count} kills with each library; all processes had ended after at most {slowest:.1f} s")


def check_resumed(report, case, mpi, what, rng, args, reference):
    """Resumed on another number of ranks, the run has the bytes of the uninterrupted reference."""
    ranks = rng.choice([4, 2, 1])
    what = f"{mpi.name}, {what}, resumed on {ranks} ranks"
    last = launch.run(case, mpi, ranks, args)
    report.check(last.status == 0, f"{what}: {last.summary()}")
    case.check_same(report, what, reference, older=False)
    case.remove()


def stopped_rank(w, report, mpis):
    """A wait for a stopped rank ends the run after --rank-timeout; the line names the rank."""
    for mpi in mpis:
        for rank in (2, 0):
            case, what = w.case(), f"{mpi.name}, SIGSTOP of rank {rank}"
            job = launch.Job(case.dir, mpi, 4, launch.run_options(steps=100000, timeout=TIMEOUT))
            job.wait_steps(10)
            job.signal(signal.SIGSTOP, rank)
            result = job.finish()
            report.check(result.status == LOST and result.seconds < TIMEOUT + launch.ENDED_WITHIN,
                         f"{what}: ended after {result.seconds:.1f} s: {result.summary()}")
            line = rf"rank {rank} on \S+ did not respond for {TIMEOUT} s \(--rank-timeout\)"
            report.check(len(result.lines()) == 1 and re.search(line, result.err), f"{what}: {result.err}")
            report.figure(f"{what}: {result.seconds:.1f} s")
            case.remove()


def signals(w, report, mpis, seed):
    """A signal to the launcher or to any one rank stops all ranks after the same step, saves, and resumes."""
    rng = random.Random(f"signals {seed}")
    constant = ["--schedule", "constant"]   # does not depend on the number of steps
    patient = {"OMPI_MCA_odls_base_sigkill_timeout": "5"}   # mpirun waits twice as long
    for mpi in mpis:
        for number, rank in ((signal.SIGUSR1, None), (signal.SIGUSR1, 3), (signal.SIGTERM, None), (signal.SIGTERM, 0),
                             (signal.SIGINT, None), (signal.SIGINT, 3)):
            what, case = f"{number.name} to {'the launcher' if rank is None else f'rank {rank}'}", w.case()
            job = launch.Job(case.dir, mpi, 4, [*launch.run_options(steps=100000), *constant],
                             more=patient if rank is None else None)
            job.wait_steps(10)
            time.sleep(rng.uniform(0, 0.1))
            job.signal(number, rank)
            result = job.finish()
            status = LAUNCHER.get((mpi.name, number), 128 + number) if rank is None else 128 + number
            if report.check(result.status == status and case.complete() and result.out.count("--resume --out run") == 1,
                            f"{mpi.name}, {what}: {result.summary()}"):
                steps = str(case.complete()[-1] + 10)
                reference = launch.single(w, w.binary, [*launch.run_options(steps=steps), *constant])["tree"]
                check_resumed(report, case, mpi, what, rng, [*launch.resumed(case), "--steps", steps], reference)
