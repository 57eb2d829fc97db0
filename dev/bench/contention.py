#!/usr/bin/env python3
"""Speed of training the starter and of sampling on an idle machine and beside one busy process.

    contention.py [--program ./train_gpt_tost] [--rounds 5] [--env NAME=VALUE ...]

Runs alternate: idle, busy, and both again with each --env setting. A run counts only if all other processes together
used less than --others of one core meanwhile, so the machine need not be idle all the time. Prints medians.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

BUSY = "while True: pass"


def cpu_seconds():
    """CPU time of all processes since boot."""
    with open("/proc/stat") as f:
        fields = [int(x) for x in f.readline().split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def run(command, env, busy):
    """Output of command, and the CPU seconds of other processes per second of its run."""
    burner = subprocess.Popen([sys.executable, "-c", BUSY]) if busy else None
    time.sleep(0.1)
    before, start = cpu_seconds(), time.monotonic()
    own = os.times()
    text = subprocess.run(command, env=env, capture_output=True, text=True).stdout
    seconds = time.monotonic() - start
    if burner:
        burner.kill()
        burner.wait()
    used, now = cpu_seconds() - before, os.times()
    ours = now.children_user + now.children_system - own.children_user - own.children_system - 0.1 * bool(burner)
    return text, max(0.0, used - ours) / seconds


def train(program, folder, env, busy, steps):
    text, others = run([program, "train", "--out", os.path.join(folder, "run"), "--steps", str(steps), "--val-every",
                        "0", "--sample-every", "0", "--save-every", "0", "--overwrite"], env, busy)
    rates = [float(x) for x in re.findall(r"(\d+) tok/s", text)]
    return (statistics.median(rates[2:]) if len(rates) > 4 else 0.0), others


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", action="append")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--seconds", type=float, default=240, help="give up after this time")
    p.add_argument("--others", type=float, default=0.1, help="most CPU time of other processes, in cores")
    p.add_argument("--env", action="append", default=[])
    a = p.parse_args()
    settings = [(prog, e) for prog in a.program or ["./train_gpt_tost"] for e in [""] + a.env]
    rates = {(s, busy): [] for s in settings for busy in (False, True)}
    end = time.monotonic() + a.seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end and min(len(r) for r in rates.values()) < a.rounds:
            for key in rates:
                if len(rates[key]) >= a.rounds: continue
                (prog, e), busy = key
                env = dict(os.environ, **dict(x.split("=", 1) for x in e.split(",") if x))
                rate, others = train(prog, folder, env, busy, a.steps)
                if others <= a.others and rate: rates[key].append(rate)
    for s in settings:
        idle, busy = rates[s, False], rates[s, True]
        if idle and busy:
            print("%-60s idle %7.0f busy %7.0f tokens/s, ratio %.2f (%d, %d runs)" %
                  (" ".join(s), statistics.median(idle), statistics.median(busy),
                   statistics.median(busy) / statistics.median(idle), len(idle), len(busy)))
        else: print("%-60s no quiet runs" % " ".join(s))


main()
