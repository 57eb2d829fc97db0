#!/usr/bin/env python3
"""Speed of the starter on an idle machine, beside a busy process, and at a high learning rate.

    dev/bench/starter.py [--program ./train_gpt_tost] [--rounds 5] [--others 0.1]

Prints one line per measurement, `key value unit`:

    train, train_busy, train_busy_share         training; beside one busy process; as a share of the idle speed
    sample, sample_busy, sample_busy_share      the same for sampling
    train_fixed, train_cost                     with GOMP_SPINCOUNT set to its default, which fixes the number of
                                                threads; what adapting it costs when idle
    train_high_lr_share                         training at --lr 0.1 as a share of the usual speed

Values are medians of runs that alternate. A run counts only if all other processes together used less than --others
cores meanwhile (Linux only), so the machine need not be idle all the time.
"""

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time

TEXTS, TOKENS = 4, 1000


def busy_seconds():
    """CPU time of all processes since boot."""
    with open("/proc/stat") as f:
        fields = [int(x) for x in f.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def run(command, env, busy):
    """Seconds of a command, and how many cores other processes used meanwhile."""
    all_before, own_before, start = busy_seconds(), own_seconds(), time.monotonic()
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        began = time.monotonic()
        subprocess.run(command, env=env, capture_output=True, check=True)
        seconds = time.monotonic() - began
    finally:
        if burner:
            burner.kill()
            burner.wait()
    others = busy_seconds() - all_before - (own_seconds() - own_before)
    return seconds, max(0.0, others) / (time.monotonic() - start)


def train(program, folder, steps, *options):
    return [program, "train", "--out", os.path.join(folder, "run"), "--overwrite", "--steps", str(steps), "--val-every",
            "0", "--sample-every", "0", *options]


def sample(program, folder):
    return [program, "sample", "--model", os.path.join(folder, "model"), "--samples", str(TEXTS), "--tokens",
            str(TOKENS)]


def steps_per_second(folder):
    """From the times of the steps after the first ten, which are slower."""
    with open(os.path.join(folder, "run", "log.csv")) as f:
        ms = [float(row["ms"]) for row in csv.DictReader(f)][10:]
    return 1000 * len(ms) / sum(ms)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default="./train_gpt_tost")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--seconds", type=float, default=540, help="stop after this time")
    p.add_argument("--others", type=float, default=0.1, help="most that other processes may use, in cores")
    a = p.parse_args()
    end = time.monotonic() + a.seconds
    rates = {}
    with tempfile.TemporaryDirectory() as folder:
        model = [a.program, "train", "--out", os.path.join(folder, "model"), "--steps", "20", "--val-every", "0",
                 "--sample-every", "0"]
        subprocess.run(model, check=True, capture_output=True)
        usual, fixed = dict(os.environ), dict(os.environ, GOMP_SPINCOUNT="300000")
        usual_train = train(a.program, folder, a.steps)
        measured = {
            "train": (usual_train, usual, False, steps_per_second),
            "train_busy": (usual_train, usual, True, steps_per_second),
            "train_fixed": (usual_train, fixed, False, steps_per_second),
            "train_high_lr": (train(a.program, folder, a.steps, "--lr", "0.1"), usual, False, steps_per_second),
            "sample": (sample(a.program, folder), usual, False, None),
            "sample_busy": (sample(a.program, folder), usual, True, None),
        }
        rates = {key: [] for key in measured}
        while time.monotonic() < end and min(len(x) for x in rates.values()) < a.rounds:
            for key, (command, env, busy, rate) in measured.items():
                if len(rates[key]) >= a.rounds:
                    continue
                seconds, others = run(command, env, busy)
                if others <= a.others:
                    rates[key].append(rate(folder) if rate else TEXTS * TOKENS / seconds)
    middle = {key: statistics.median(x) if x else float("nan") for key, x in rates.items()}
    for key, x in rates.items():
        unit = "tokens/s" if "sample" in key else "steps/s"
        print("%-24s %10.4g %s (%d runs)" % (key, middle[key], unit, len(x)))
    for part, whole in [("train_busy", "train"), ("sample_busy", "sample"), ("train_high_lr", "train")]:
        print("%-24s %10.3f" % (part + "_share", middle[part] / middle[whole]))
    print("%-24s %10.3f" % ("train_cost", 1 - middle["train"] / middle["train_fixed"]))


if __name__ == "__main__":
    main()
