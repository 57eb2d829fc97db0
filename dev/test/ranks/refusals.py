"""refusals.py: what one rank cannot do ends all ranks, with one line from one rank, and nothing is left."""

import os
import shutil
import subprocess

import launch


def refused(report, case, mpi, what, status, fragments, args, ranks=4, **how):
    """Runs the command, which must fail with one line that has the fragments."""
    result = launch.run(case, mpi, ranks, args, **how)
    lines = result.lines()
    report.check(result.status == status and len(lines) == 1 and all(f in lines[0] for f in fragments)
                 and "\nstep " not in result.out,
                 f"{mpi.name}, {what}: expected status {status} and one line with {fragments}: {lines} {result.summary()}")


def mounted(source, target):
    """Shell command of a rank that sees the folder `source` in place of `target`."""
    return f"""exec unshare --mount sh -c 'mount --bind {source} {target} && exec "$@"' sh "$@\""""


def options_differ(report, case, mpi, args):
    """Steps that cannot be divided among the ranks, and ranks with other arguments or another build."""
    refused(report, case, mpi, "parts that 3 ranks cannot share", 2, ["--parts 4", "3 ranks"], args, ranks=3)
    refused(report, case, mpi, "an indivisible batch", 2, ["--total-batch 320", "512"], 
            launch.changed(args, "--total-batch", "320"))
    for what, more, fragment in (("an unknown option", "--bogus", "unknown option --bogus"),
                                 ("another time limit", "--max-time 9m", "command line differs"),
                                 ("the help", "--help", "command line differs")):
        refused(report, case, mpi, f"{what} on rank 2", 2, ["rank 2", fragment], args,
                per_rank={2: f'exec "$@" {more}'})
    report.check(not os.path.exists(case.path("run")), f"{mpi.name}: a usage error leaves a folder")
    shutil.copy(mpi.binary, case.path("other"))
    with open(case.path("other"), "ab") as f:
        f.write(b"\0")   # the same program, but not the same file
    refused(report, case, mpi, "another build on rank 2", 1, ["rank 2", "program differs"], args,
            per_rank={2: f'shift; exec {case.path("other")} "$@"'})


def folders_differ(report, case, mpi, args):
    """Rank 2 has other data under the same path. Ranks see run folders whose newest checkpoints differ: rank 0 decides
    whether the run is finished."""
    for place in ("data", "other_data"):
        os.makedirs(case.path(place))
        for name in os.listdir(case.path("..")):
            if name.endswith(".bin"):
                shutil.copy(case.path("..", name), case.path(place, name))
    with open(case.path("other_data", "tiny_train_000000.bin"), "r+b") as f:
        f.seek(1100)
        f.write(b"\x41\x00\x42\x00")
    refused(report, case, mpi, "other data on rank 2", 1, ["rank 2", "--data"],
            [a.replace("../tiny_train", "data/tiny_train") for a in args],
            per_rank={2: mounted("other_data", "data")})
    report.check(launch.run(case, mpi, 2, launch.changed(args, "--steps", "12")).status == 0,
                 f"{mpi.name}: the run to resume fails")
    os.rename(case.path("run"), case.path("newer"))
    shutil.copytree(case.path("newer"), case.path("older"))
    shutil.rmtree(case.path("older", "step_00000012"))
    os.makedirs(case.path("run"))
    result = launch.run(case, mpi, 2, launch.resumed(case), per_rank={0: mounted("newer", "run"),
                                                                      1: mounted("older", "run")})
    report.check(result.status == 0 and result.out.count("finished") == 1, f"{mpi.name}, finished: {result.summary()}")
    refused(report, case, mpi, "another run folder on rank 1", 1, ["rank 1"], launch.resumed(case), ranks=2,
            per_rank={0: mounted("older", "run"), 1: mounted("newer", "run")})


def machine_refused(report, case, mpi, args):
    """No memory on rank 3; a full disk and a folder that cannot be written on rank 0."""
    refused(report, case, mpi, "no memory on rank 3", 1, ["rank 3", "memory"],
            launch.changed(args, "--channels", "1024"),   # 27M parameters, 320 MB and more
            per_rank={3: 'ulimit -v 350000; exec "$@"'})
    refused(report, case, mpi, "--out that cannot be written", 1, ["/proc/run"],
            launch.changed(args, "--out", "/proc/run"))
    os.makedirs(case.path("full"))
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", case.path("full")],
                                           capture_output=True, check=False).returncode != 0:
        return report.skip("a full disk on rank 0: needs root and mount")
    try:
        result = launch.run(case, mpi, 4, launch.changed(args, "--out", "full/run"))
        report.check(result.status == 1 and len(result.lines()) == 1 and "No space" in result.lines()[0],
                     f"{mpi.name}, a full disk on rank 0: {result.summary()}")
    finally:
        subprocess.run(["umount", case.path("full")], check=False)


def not_built(w, report, mpis):
    """A trainer without MPI that a launcher starts several times."""
    for mpi in mpis:
        refused(report, w.case(), mpi, "built without MPI", 2, ["MPI=1"], launch.run_options(), binary=w.binary)


def refusals(w, report, mpis):
    args = launch.run_options()
    for mpi in mpis:
        case = w.case()
        options_differ(report, case, mpi, args)
        machine_refused(report, case, mpi, args)
        if os.geteuid() == 0:
            folders_differ(report, case, mpi, args)
        else:
            report.skip(f"{mpi.name}: other data and another run folder: needs root for a mount")
        case.remove()
