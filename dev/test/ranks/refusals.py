"""refusals.py: what one rank cannot do ends all ranks, with one line from one rank, and nothing is left."""

import os
import shutil
import subprocess

import launch
import world


def refused(report, case, mpi, what, status, fragments, args, wrapper=(), ranks=4, out="run"):
    """Runs the command on 4 ranks, which must fail with one line that has the fragments."""
    result = launch.run(case, mpi, ranks, [*args, "--out", out], wrapper=wrapper)
    report.check(result.status == status, f"{mpi.name}, {what}: expected status {status}: {result.summary()}")
    lines = result.lines()
    report.check(len(lines) == 1 and all(f in lines[0] for f in fragments),
                 f"{mpi.name}, {what}: expected one line with {fragments}: {lines or result.err[-400:]!r}")
    report.check("\nstep " not in result.out, f"{mpi.name}, {what}: trains: {result.out[-200:]!r}")


def options_refused(report, case, mpi):
    """Steps that cannot be divided among the ranks."""
    args = launch.run_options("plain")
    refused(report, case, mpi, "parts that 3 ranks cannot share", 2, ["--parts 4", "3 ranks"], args, ranks=3)
    odd = [a if b != "--total-batch" else "320" for b, a in zip(["", *args], args)]
    refused(report, case, mpi, "an indivisible batch", 2, ["--total-batch 320", "256"], odd)
    report.check(not os.path.exists(case.path("run")), f"{mpi.name}: a usage error leaves a folder")


def differences_refused(report, case, mpi):
    """Rank 2 has other data under the same path, or another build."""
    args = launch.run_options("plain")
    shards = [n for n in os.listdir(case.path("..")) if n.startswith("tiny_") and n.endswith(".bin")]
    for place in ("data", "other_data"):
        os.makedirs(case.path(place))
        for name in shards:
            shutil.copy(case.path("..", name), case.path(place, name))
    with open(case.path("other_data", "tiny_train_000000.bin"), "r+b") as f:
        f.seek(1100)
        f.write(b"\x41\x00\x42\x00")
    if os.geteuid() == 0:
        mounted = 'mount --bind other_data data && exec "$@"'
        wrapper = launch.per_rank(case.dir, 2, f"""exec unshare --mount sh -c '{mounted}' sh "$@\"""")
        refused(report, case, mpi, "other data on rank 2", 1, ["rank 2", "--data"],
                [a.replace("../tiny_train", "data/tiny_train") for a in args], wrapper)
    else:
        report.skip(f"{mpi.name}: other data on rank 2: needs root for a mount")
    shutil.copy(mpi.binary, case.path("other"))
    with open(case.path("other"), "ab") as f:
        f.write(b"\0")   # the same program, but not the same file
    wrapper = launch.per_rank(case.dir, 2, f'shift; exec {case.path("other")} "$@"')
    refused(report, case, mpi, "another build on rank 2", 1, ["rank 2", "program differs"], args, wrapper)
    for what, more, fragments in (("an unknown option on rank 2", "--bogus", ["rank 2", "unknown option --bogus"]),
                                  ("another time limit on rank 2", "--max-time 9m", ["rank 2", "command line differs"]),
                                  ("the help on rank 2", "--help", ["rank 2", "command line differs"])):
        wrapper = launch.per_rank(case.dir, 2, f'exec "$@" {more}')
        refused(report, case, mpi, what, 2, fragments, args, wrapper)


def folders_differ(report, mpi, case):
    """On one rank, the newest checkpoint is of another step: rank 0 decides whether the run is finished."""
    if os.geteuid() != 0:
        return report.skip(f"{mpi.name}: another run folder on rank 1: needs root for a mount")
    args = launch.run_options("plain", steps=12)
    report.check(launch.run(case, mpi, 2, [*args, *world.OUT]).status == 0, f"{mpi.name}: the run to resume fails")
    shutil.copytree(case.path("run"), case.path("older"))
    shutil.rmtree(case.path("older", "step_00000012"))
    for seen, status, fragment in ((("run", "older"), 0, "finished"), (("older", "run"), 1, "rank 1")):
        os.rename(case.path(seen[0]), case.path("first"))
        os.rename(case.path(seen[1]), case.path("second"))
        os.makedirs(case.path("run"))
        wrappers = [f'exec unshare --mount sh -c \'mount --bind {name} run && exec "$@"\' sh "$@"'
                    for name in ("first", "second")]
        result = launch.run(case, mpi, 2, ["--resume", *world.OUT, "--threads", "1"],
                            wrapper=launch.per_rank(case.dir, 1, wrappers[1], other=wrappers[0][5:]), timeout=30)
        texts = result.lines() if status else [line for line in result.out.splitlines() if fragment in line]
        report.check(result.status == status and len(texts) == 1 and fragment in texts[0],
                     f"{mpi.name}, rank 0 sees {seen[0]}, rank 1 {seen[1]}: {result.summary()} {result.out[-300:]!r}")
        os.rmdir(case.path("run"))
        os.rename(case.path("first"), case.path(seen[0]))
        os.rename(case.path("second"), case.path(seen[1]))
    shutil.rmtree(case.path("run"))


def machine_refused(w, report, case, mpi):
    """No memory on rank 3; a full disk and a folder that cannot be written on rank 0."""
    args = launch.run_options("plain")
    large = [a if b != "--channels" else "1024" for b, a in zip(["", *args], args)]   # 27M parameters, 320 MB and more
    wrapper = launch.per_rank(case.dir, 3, 'ulimit -v 350000; exec "$@"')
    refused(report, case, mpi, "no memory on rank 3", 1, ["rank 3", "memory"], large, wrapper)
    refused(report, case, mpi, "--out that cannot be written", 1, ["/proc/run"], args, out="/proc/run")
    os.makedirs(case.path("full"))
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", case.path("full")],
                                           capture_output=True, check=False).returncode != 0:
        return report.skip("a full disk on rank 0: needs root and mount")
    try:
        result = launch.run(case, mpi, 4, [*args, "--out", "full/run"])
        report.check(result.status == 1 and len(result.lines()) == 1 and "No space" in result.lines()[0],
                     f"{mpi.name}, a full disk on rank 0: {result.summary()}")
    finally:
        subprocess.run(["umount", case.path("full")], check=False)


def refusals(w, report, mpis):
    report.begin("refusals")
    for mpi in mpis:
        case = w.case()
        options_refused(report, case, mpi)
        differences_refused(report, case, mpi)
        folders_differ(report, mpi, case)
        machine_refused(w, report, case, mpi)
        case.remove()
    report.end()


def not_built(w, report, mpis):
    """A trainer without MPI that a launcher starts several times: one line instead of four runs."""
    report.begin("no_mpi")
    for mpi in mpis:
        case = w.case()
        job = launch.Job([*mpi.command(4), w.binary, *launch.run_options("plain"), *world.OUT], w.binary, case.dir,
                         launch.environment())
        result = job.finish()
        lines = result.lines()
        report.check(result.status == 2 and len(lines) == 1 and "MPI=1" in lines[0],
                     f"{mpi.name}: {result.summary()}")
        report.check(not os.path.exists(case.path("run")), f"{mpi.name}: trains")
        case.remove()
    report.end()
