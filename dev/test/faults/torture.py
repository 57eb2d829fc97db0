#!/usr/bin/env python3
"""torture.py: kills and stops runs, makes system calls fail, simulates full disks and power failures, and checks that
nothing saved is lost. Also measures memory growth and looks for leaks.

    torture.py --binary ./train_gpt_tost --built build/torture [--kills 100] [--every 1] [--suites kill,signal,…]

Prints a table and `torture: N passed, N failed, N skipped`; the exit status is 0 if nothing failed."""

import argparse
import os
import random
import shutil
import sys
import tempfile
import traceback

sys.dont_write_bytecode = True

import disks
import interrupts
import machine
import world


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", required=True, help="the trainer")
    p.add_argument("--built", required=True, help="folder of faults.so and of the instrumented programs")
    p.add_argument("--kills", type=int, default=100, help="number of kills")
    p.add_argument("--every", type=int, default=1, help="try every N-th fault and power failure")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10 ** 6), help="of kills and signals")
    p.add_argument("--suites", help="comma-separated names (default: all)")
    return p.parse_args()


def run(report, name, suite):
    """Runs a suite. An exception counts as a failed check, and the other suites still run."""
    report.begin(name)
    try:
        suite()
    except Exception:
        report.check(False, traceback.format_exc())
    report.end()


def main():
    o = options()
    report = world.Report()
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    root = tempfile.mkdtemp(prefix="torture.", dir=os.environ.get("TMPDIR", fast))
    print(f"seed {o.seed}, scratch {root}")
    try:
        w = world.World(o.binary, os.path.join(o.built, "faults.so"), root)
        suites = {
            "kill": lambda: interrupts.kills(w, report, o.kills, o.seed),
            "signal": lambda: interrupts.signals(w, report, max(8, o.kills // 2), o.seed),
            "overwrite": lambda: interrupts.overwrites(w, report, o.every),
            "tokenize": lambda: interrupts.tokenize(w, report, o.every),
            "power": lambda: disks.power(w, report, o.every, o.seed),
            "fault": lambda: disks.faults(w, report, o.every, o.seed),
            "full": lambda: disks.full(w, report),
            "growth": lambda: machine.growth(w, report),
            "large": lambda: machine.large(w, report),
            "leaks": lambda: machine.leaks(w, report, o.built),
        }
        wanted = o.suites.split(",") if o.suites else list(suites)
        if set(wanted) - set(suites):
            unknown = ", ".join(sorted(set(wanted) - set(suites)))
            raise SystemExit(f"--suites {unknown}: unknown; there are {', '.join(suites)}")
        for name in wanted:
            run(report, name, suites[name])
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
