#!/usr/bin/env python3
"""distributed.py: trains on several ranks with Open MPI and MPICH, and checks that the results are those of one
process, that nothing saved is lost if a rank is lost, and what the trainer prints.

    distributed.py --built build/distributed [--kills 50] [--mpi openmpi mpich]

--built has a folder per MPI library, and one of the trainer without MPI, plain, all made by build.sh. Prints
`distributed: N passed, N failed, N skipped`; the exit status is 0 if nothing failed."""

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time

sys.dont_write_bytecode = True

import launch
import world

ENDED_WITHIN = 30   # seconds until all processes of a failed run must have ended
TIMEOUT = 3   # --rank-timeout, seconds
# Message of the launcher when it ends the other ranks, or of a rank that notices it first
SAYS = r"on signal 9|KILLED BY SIGNAL: 9|Killed \(signal 9\)|communication with rank \d on \S+ failed"
# What the launcher returns if it gets a signal; otherwise that of a single process. mpirun of Open MPI passes SIGINT on
# as SIGTERM and returns 1; mpiexec of MPICH does not wait for the ranks after SIGTERM.
LAUNCHER = {("openmpi", signal.SIGTERM): 1, ("openmpi", signal.SIGINT): 1}


class Tests:
    """The suites, for one MPI library."""

    def __init__(self, w, report, mpi, kills, seed):
        self.w, self.report, self.mpi, self.kills = w, report, mpi, kills
        self.rng, self.case = random.Random(seed), w.case

    def run(self, case, ranks, args, **how):
        return launch.Job(case.dir, self.mpi, ranks, args, **how).finish()

    def succeeds(self, what, case, ranks, args, **how):
        result = self.run(case, ranks, args, **how)
        self.report.check(result.status == 0, f"{what}: {result.summary()}")
        return result

    def refused(self, what, status, fragments, case, args, ranks=4, **how):
        """The run must fail with one line that has the fragments."""
        result = self.run(case, ranks, args, **how)
        lines = result.lines()
        self.report.check(result.status == status and len(lines) == 1 and all(f in lines[0] for f in fragments)
                          and "\nstep " not in result.out,
                          f"{what}: expected status {status} and one line with {fragments}: {result.summary()}")

    def check_resumed(self, what, case, args, reference):
        """Resumed on another number of ranks, the run has the bytes of the uninterrupted reference."""
        ranks = self.rng.choice([4, 2, 1])
        self.succeeds(f"{what}, resumed on {ranks} ranks", case, ranks, args)
        case.check_same(self.report, f"{what}, resumed on {ranks} ranks", reference, older=False)
        case.remove()

    # ---- results do not depend on the number of ranks or on the MPI library -----------------------------------------

    def equal(self):
        """30 steps with accumulation, validation, sampling and saving: equal checkpoints, and logs but for times. The
        reference is one process of a build without MPI; 0 ranks: one process, without mpirun."""
        for model in launch.MODELS:
            args = launch.run_options(model)
            reference, alone = self.w.reference(args)
            for ranks in (0, 1, 2, 4) if model == "plain" else (0, 2, 4):
                what, case = f"{model}, {ranks} ranks", self.case()
                result = self.succeeds(what, case, ranks, args)
                self.report.check(result.out.count("\ndone: ") == 1, f"{what}: {result.summary()}")
                samples = [[line for line in text.splitlines() if line.startswith("  |")]
                           for text in (result.out, alone.out)]
                self.report.check(samples[0] == samples[1] != [], f"{what}: the samples differ")
                case.check_same(self.report, what, reference)
                case.remove()
        what, case, args = "a save that fails once", self.case(), launch.run_options()
        result = self.succeeds(what, case, 2, args, per_rank={0: 'TORTURE_DO=fail:28 TORTURE_AT=9 TORTURE_ONLY=/step_ '
                                                                 f'LD_PRELOAD={self.w.faults} exec "$@"'})
        self.report.check("saving step 6 failed; training continues" in result.err, f"{what}: {result.summary()}")
        case.check_same(self.report, what, self.w.reference(args)[0])

    def parts(self):
        """A resumed run may change --parts, and says so."""
        case = self.case()
        result = self.succeeds("the run to resume", case, 2, launch.run_options(steps=6))
        hint = r"^continue +mpirun -n 2 \S*train_gpt_tost train --resume --out run"
        self.report.check(re.search(hint, result.out, re.M), f"how to continue: {result.summary()}")
        for parts, says in (("4", False), ("2", True)):
            again = self.case(case.tree())
            result = self.succeeds(f"--parts {parts} after 4", again, 2,
                                   [*launch.resumed(again), "--steps", "8", "--parts", parts])
            said = (result.out + result.err).count(f"--parts {parts} instead of 4")
            self.report.check(said == says, f"--parts {parts} after 4: said {said} times")

    # ---- what one rank cannot do ends all ranks, with one line from one rank, and nothing is left --------------------

    def refusals(self):
        """Parts that 3 ranks cannot share; ranks with other arguments, another build, data or run folder;
        no memory; a full disk."""
        args, case = launch.run_options(), self.case()
        self.refused("built without MPI", 2, ["MPI=1"], case, args, binary=self.w.binary)
        self.refused("parts that 3 ranks cannot share", 2, ["--parts 4", "3 ranks"], case, args, ranks=3)
        for more, fragment in (("--bogus", "unknown option --bogus"), ("--max-time 9m", "--max-time differs")):
            self.refused(f"{more} on rank 2", 2, ["rank 2", fragment], case, args, per_rank={2: f'exec "$@" {more}'})
        self.report.check(not os.path.exists(case.path("run")), "a usage error leaves a folder")
        shutil.copy(self.mpi.binary, case.path("other"))
        with open(case.path("other"), "ab") as f:
            f.write(b"\0")   # the same program, but not the same file
        self.refused("another build on rank 2", 1, ["rank 2", "program differs"], case, args,
                     per_rank={2: f'shift; exec {case.path("other")} "$@"'})
        self.refused("no memory on rank 3", 1, ["rank 3", "memory"], case,
                     launch.changed(args, "--channels", "1024"),   # 27M parameters, 320 MB and more
                     per_rank={3: 'ulimit -v 350000; exec "$@"'})
        self.refused("--out that cannot be written", 1, ["/proc/run"], case, launch.changed(args, "--out", "/proc/run"))
        if os.geteuid() == 0:
            self.mounts(case, args)
        else:
            self.report.skip("other data, another run folder and a full disk: need root for a mount")

    def mounts(self, case, args):
        """Rank 2 has other data under the same path. Ranks see run folders whose newest checkpoints differ: rank 0
        decides whether the run is finished. The disk of rank 0 is full."""
        def mounted(source, target):   # shell command of a rank that sees the folder `source` in place of `target`
            return f"""exec unshare --mount sh -c 'mount --bind {source} {target} && exec "$@"' sh "$@\""""
        for place in ("data", "other_data"):
            shutil.copytree(self.w.root, case.path(place), ignore=lambda _, names: [n for n in names if "." not in n])
        with open(case.path("other_data", "tiny_train_000000.bin"), "r+b") as f:
            f.seek(1100)
            f.write(b"\x41\x00\x42\x00")
        self.refused("other data on rank 2", 1, ["rank 2", "--data"], case,
                     [a.replace("../tiny_train", "data/tiny_train") for a in args],
                     per_rank={2: mounted("other_data", "data")})
        self.succeeds("the run to resume", case, 2, launch.changed(args, "--steps", "12"))
        os.rename(case.path("run"), case.path("newer"))
        shutil.copytree(case.path("newer"), case.path("older"))
        shutil.rmtree(case.path("older", "step_00000012"))
        os.makedirs(case.path("run"))
        newer, older = mounted("newer", "run"), mounted("older", "run")
        for name in ("sample --model newer --tokens 1", "--help"):   # on each rank alone
            result = self.run(case, 2, name.split())
            self.report.check(result.status == 0 and not result.lines(), f"{name}: {result.summary()}")
        result = self.succeeds("finished", case, 2, launch.resumed(case), per_rank={0: newer, 1: older})
        self.report.check(result.out.count("finished") == 1, f"finished: {result.summary()}")
        self.refused("another run folder on rank 1", 1, ["rank 1"], case, launch.resumed(case), ranks=2,
                     per_rank={0: older, 1: newer})
        full = 'mkdir full; exec unshare --mount sh -c \'mount -t tmpfs -o size=256k tmpfs full && exec "$@"\' sh "$@"'
        result = self.run(case, 4, launch.changed(args, "--out", "full/run"), per_rank={0: full})
        self.report.check(result.status == 1 and len(result.lines()) == 1 and "No space" in result.lines()[0],
                          f"a full disk on rank 0: {result.summary()}")

    # ---- killed, stopped and signalled ranks: one line, and the resumed run has the bytes of an uninterrupted one ----

    def kill_one(self, case, number, fresh):
        """Starts or resumes the run and kills a random rank at a random time or while rank 0 saves, or rank 0 at a call
        of its save."""
        ranks, args = self.rng.choice([4, 4, 2]), launch.resumed(case, fresh)
        if number % 3 == 0:
            return self.run(case, ranks, args, per_rank={0: f'LD_PRELOAD={self.w.faults} exec "$@"'},
                            more={"TORTURE_JOURNAL": self.w.journal, "TORTURE_AT": str(self.rng.randint(1, 60)),
                                  "TORTURE_DO": self.rng.choice(["before", "after", "half"]), "TORTURE_ONLY": "/step_"})
        job = launch.Job(case.dir, self.mpi, ranks, args)
        # Rank 0 prints after MPI_Init, in which mpirun of Open MPI 4.1 itself may hang if a rank is killed.
        job.wait(lambda: os.path.getsize(job.path("stdout")) > 0)
        if number % 3 == 1:
            job.wait(case.unfinished)
        else:
            time.sleep(self.rng.uniform(0, 1.5))
        job.signal(signal.SIGKILL, self.rng.randrange(ranks))
        return job.finish()

    def kill(self):
        """Kills ranks. Each run is resumed on another number of ranks until it ends."""
        args, done, slowest = launch.run_options(steps=60), 0, 0
        reference, _ = self.w.reference(args)
        while done < self.kills:
            case = self.case()
            for _ in range(8):
                what, result = f"kill {done + 1}", self.kill_one(case, done, args)
                if result.status == 0 or done == self.kills:
                    break
                done, slowest = done + 1, max(slowest, result.seconds)
                self.report.check(result.seconds < ENDED_WITHIN and "still" not in result.err
                                  and len(result.lines()) <= 1 and re.search(SAYS, result.err + result.out),
                                  f"{what}: ended after {result.seconds:.1f} s: {result.summary()}")
                case.check_checkpoints(self.report, what, 0, sample=False)
            self.check_resumed(f"after {done} kills", case, launch.resumed(case, args), reference)
        self.report.figure(f"{done} kills; all processes had ended after at most {slowest:.1f} s")

    def timeout(self):
        """A wait for a stopped rank, or for one that stops before its MPI_Init or MPI_Finalize, ends the run after
        --rank-timeout. The line names the rank that did not respond."""
        stopped = 'kill -STOP $$; exec "$@"'
        lock = [r.name for r in self.case().launch(launch.run_options()).journal if r.path.endswith("run.lock")]
        at_end = (f'TORTURE_AT={lock.index("unlink") + 1} TORTURE_ONLY=run.lock TORTURE_DO=signal:{signal.SIGSTOP:d} '
                  f'LD_PRELOAD={self.w.faults} exec "$@"')   # when rank 0 has sent its last message
        for rank, steps, early, line in (
            (0, 30, {0: at_end}, r"MPI_Finalize: other ranks did not respond"),
            (2, 100000, {}, r"rank 2 on \S+ did not respond"),
            (0, 100000, {}, r"rank 0 on \S+ did not respond"),
            (2, 30, {2: stopped}, r"MPI_Init: other ranks did not respond"),
            (0, 30, {0: stopped}, r"MPI_Init: other ranks did not respond"),
        ):
            job = launch.Job(self.case().dir, self.mpi, 4, launch.run_options(steps=steps, timeout=TIMEOUT),
                             per_rank=early)
            if not early:
                job.wait_steps(10)
                job.signal(signal.SIGSTOP, rank)
            result, what = job.finish(), f"rank {rank} stopped {'before' if early else 'in training:'} {line}"
            self.report.check(result.status == 75 and result.seconds < TIMEOUT + ENDED_WITHIN
                              and len(result.lines()) == 1
                              and re.search(rf"{line} for {TIMEOUT} s \(--rank-timeout\)", result.err),
                              f"{what}: ended after {result.seconds:.1f} s: {result.summary()}")
            self.report.figure(f"{what}: {result.seconds:.1f} s")

    def signals(self):
        """A signal to the launcher or to any one rank stops all ranks after the same step, saves, and resumes."""
        def options_of(steps):   # a rate that does not depend on steps; no validation, which may be interrupted, and
                                 # so no best weights, which are kept if there are many steps
            options = launch.changed(launch.run_options(steps=steps), "--val-every", "0")
            return [*options, "--schedule", "constant"]
        patient = {"OMPI_MCA_odls_base_sigkill_timeout": "5"}   # mpirun waits twice as long
        for number, rank in ((signal.SIGUSR1, None), (signal.SIGTERM, None), (signal.SIGTERM, 0), (signal.SIGINT, None),
                             (signal.SIGINT, 3)):
            what, case = f"{number.name} to {'the launcher' if rank is None else f'rank {rank}'}", self.case()
            job = launch.Job(case.dir, self.mpi, 4, options_of(100000), more=patient if rank is None else None)
            job.wait_steps(10)
            time.sleep(self.rng.uniform(0, 0.1))
            job.signal(number, rank)
            result = job.finish()
            status = LAUNCHER.get((self.mpi.name, number), 128 + number) if rank is None else 128 + number
            if self.report.check(result.status == status and case.complete()
                                 and result.out.count("--resume --out run") == 1, f"{what}: {result.summary()}"):
                steps = str(case.complete()[-1] + 10)
                reference, _ = self.w.reference(options_of(steps))
                self.check_resumed(what, case, [*launch.resumed(case), "--steps", steps], reference)


def main():
    suites = "equal,parts,refusals,signals,kill,timeout"
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--built", required=True, help="folder of build.sh")
    p.add_argument("--kills", type=int, default=50, help="number of kills per MPI library")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10 ** 6), help="of kills and signals")
    p.add_argument("--mpi", nargs="+", default=["openmpi", "mpich"], help="MPI libraries, default: %(default)s")
    p.add_argument("--suites", default=suites, help=f"some of {suites}")
    o = p.parse_args()
    report = world.Report("distributed")
    with tempfile.TemporaryDirectory(prefix="distributed.", ignore_cleanup_errors=True) as root:
        print(f"seed {o.seed}, scratch {root}", flush=True)
        plain = os.path.join(o.built, "plain")
        w = world.World(f"{plain}/train_gpt_tost", f"{plain}/build/torture/faults.so", root)
        for name in o.mpi:
            mpi, report.name = launch.find_mpi(o.built, name), name
            if not mpi:
                report.skip(f"no trainer, see build.sh (Debian: lib{name}-dev)")
                continue
            tests = Tests(w, report, mpi, o.kills, o.seed)
            for suite in o.suites.split(","):
                report.suite(f"{name}, {suite}", getattr(tests, suite))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
