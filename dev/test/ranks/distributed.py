#!/usr/bin/env python3
"""distributed.py: trains on several ranks with Open MPI and MPICH, and checks that the results are those of one
process, that nothing saved is lost if a rank is lost, and what the trainer prints.

    distributed.py --binary build/distributed/plain/train_gpt_tost --built build/distributed [--kills 50]

--binary is the trainer without MPI; --built has a folder per MPI library, made by build.sh. Prints
`distributed: N passed, N failed, N skipped`; the exit status is 0 if nothing failed."""

import argparse
import os
import random
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True

import launch
import equal
import failures
import refusals
import world

NAMES = "equal,parts,no_mpi,refusals,signals,kill,timeout,network"


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", required=True, help="the trainer, built without MPI")
    p.add_argument("--built", required=True, help="folder of build.sh, with the trainers built with MPI")
    p.add_argument("--kills", type=int, default=50, help="number of kills per MPI library")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10 ** 6), help="of kills and signals")
    p.add_argument("--mpi", default="openmpi,mpich")
    p.add_argument("--models", default=",".join(launch.MODELS), help=f"of equal: some of {', '.join(launch.MODELS)}")
    p.add_argument("--first", action="store_true", help="stop at the first failed check")
    p.add_argument("--suites", default=NAMES, help=f"some of {NAMES}")
    o = p.parse_args()
    if set(o.suites.split(",")) - set(NAMES.split(",")):
        p.error(f"--suites {o.suites}: there are {NAMES}")
    return o


class FirstFailure(world.Report):
    """Stops at the first failed check."""

    def check(self, ok, text):
        if not super().check(ok, text):
            raise SystemExit(1)
        return True


def main():
    o = options()
    report = (FirstFailure if o.first else world.Report)("distributed")
    mpis = [m for m in launch.find_mpi(o.built) if m.name in o.mpi.split(",")]
    if not mpis:
        raise SystemExit(f"--built {o.built}: no trainer of {o.mpi}; see build.sh")
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
            "kill": lambda: failures.kills(w, report, mpis, o.kills, o.seed),
            "timeout": lambda: failures.stopped_rank(w, report, mpis),
            "network": lambda: equal.network(w, report, mpis),
        }
        for name in o.suites.split(","):
            report.suite(name, suites[name])
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
