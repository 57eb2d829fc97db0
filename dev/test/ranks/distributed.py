#!/usr/bin/env python3
"""distributed.py: trains on several ranks with Open MPI and MPICH, and checks that the results are those of one
process, that nothing saved is lost if a rank is lost, and what the trainer prints.

    distributed.py --binary build/distributed/plain/train_gpt_tost --built build/distributed [--kills 50]

--binary is the trainer without MPI; --built has a folder per MPI library, made by build.sh. Prints a table and
`distributed: N passed, N failed, N skipped`; the exit status is 0 if nothing failed."""

import argparse
import os
import random
import shutil
import sys
import tempfile
import traceback

sys.dont_write_bytecode = True

import launch
import equal
import failures
import network
import refusals
import slurm
import world

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "cluster", "train.sbatch")


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", required=True, help="the trainer, built without MPI")
    p.add_argument("--built", required=True, help="folder of build.sh, with the trainers built with MPI")
    p.add_argument("--kills", type=int, default=50, help="number of kills per MPI library")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10 ** 6), help="of kills and signals")
    p.add_argument("--mpi", help="openmpi, mpich or openmpi,mpich (default: all that are built)")
    p.add_argument("--models", default=",".join(launch.MODELS), help=f"of equal: some of {', '.join(launch.MODELS)}")
    p.add_argument("--first", action="store_true", help="stop at the first failed check")
    p.add_argument("--suites", help="comma-separated names (default: all but slurm and limit)")
    return p.parse_args()


class FirstFailure(world.Report):
    """Stops at the first failed check."""

    def check(self, ok, text):
        if not super().check(ok, text):
            raise SystemExit(1)
        return True


def run(report, suite):
    """Runs a suite. An exception counts as a failed check, and the other suites still run."""
    try:
        suite()
    except Exception:
        report.check(False, traceback.format_exc())
        report.end()


def main():
    o = options()
    report = (FirstFailure if o.first else world.Report)("distributed")
    mpis = [m for m in launch.find_mpi(o.built) if not o.mpi or m.name in o.mpi.split(",")]
    if not mpis:
        raise SystemExit(f"--built {o.built}: no trainer of {o.mpi or 'any MPI library'}; see build.sh")
    root = tempfile.mkdtemp(prefix="distributed.", dir=os.environ.get("TMPDIR"))
    print(f"seed {o.seed}, scratch {root}, {', '.join(m.name for m in mpis)}")
    try:
        w = world.World(o.binary, os.path.join(o.built, mpis[0].name, "build/torture/faults.so"), root)
        suites = {
            "equal": lambda: equal.same_bytes(w, report, mpis, o.models.split(",")),
            "parts": lambda: equal.changed_parts(w, report, mpis),
            "no_mpi": lambda: refusals.not_built(w, report, mpis),
            "refusals": lambda: refusals.refusals(w, report, mpis),
            "signals": lambda: failures.signals(w, report, mpis, o.seed),
            "timeout": lambda: failures.stopped_rank(w, report, mpis),
            "kill": lambda: failures.kills(w, report, mpis, o.kills, o.seed),
            "network": lambda: network.network(w, report, mpis),
            "slurm": lambda: slurm.requeues(w, report, mpis, SCRIPT, time_limit=False),
            "limit": lambda: slurm.requeues(w, report, mpis, SCRIPT, time_limit=True),
        }
        wanted = o.suites.split(",") if o.suites else [name for name in suites if name not in ("slurm", "limit")]
        if set(wanted) - set(suites):
            unknown = ", ".join(sorted(set(wanted) - set(suites)))
            raise SystemExit(f"--suites {unknown}: unknown; there are {', '.join(suites)}")
        for name in wanted:
            run(report, suites[name])
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
