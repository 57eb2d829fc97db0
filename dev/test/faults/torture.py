#!/usr/bin/env python3
"""torture.py: kills and stops runs, makes system calls fail, simulates full disks and power failures, and checks that
nothing saved is lost. Also measures memory growth and looks for leaks.

    torture.py --binary ./train_gpt_tost --built build/torture [--kills 100] [--every 1] [--suites kill,signal,…]

Prints `torture: N passed, N failed, N skipped`; the exit status is 0 if nothing failed."""

import argparse
import os
import random
import sys
import tempfile

sys.dont_write_bytecode = True

import disks
import interrupts
import machine
import world

SUITES = {
    "kill": lambda w, report, o: interrupts.kills(w, report, o.kills, o.seed),
    "signal": lambda w, report, o: interrupts.signals(w, report, max(8, o.kills // 2), o.seed),
    "overwrite": lambda w, report, o: interrupts.overwrites(w, report, o.every),
    "tokenize": lambda w, report, o: interrupts.tokenize(w, report, o.every),
    "power": lambda w, report, o: disks.power(w, report, o.every, o.seed),
    "fault": lambda w, report, o: disks.faults(w, report, o.every, o.seed),
    "growth": lambda w, report, o: machine.growth(w, report),
    "leaks": lambda w, report, o: machine.leaks(w, report, os.path.abspath(os.path.join(o.built, "valgrind"))),
}


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", required=True, help="the trainer")
    p.add_argument("--built", required=True, help="folder of faults.so and of the trainer for valgrind")
    p.add_argument("--kills", type=int, default=100, help="number of kills")
    p.add_argument("--every", type=int, default=1, help="try every N-th fault and power failure")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10 ** 6), help="of kills and signals")
    p.add_argument("--suites", default=",".join(SUITES), help="some of %(default)s")
    return p.parse_args()


def main():
    o, report = options(), world.Report()
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="torture.", dir=os.environ.get("TMPDIR", fast)) as root:
        print(f"seed {o.seed}, scratch {root}")
        w = world.World(o.binary, os.path.join(o.built, "faults.so"), root)
        for name in o.suites.split(","):
            report.suite(name, lambda: SUITES[name](w, report, o))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
