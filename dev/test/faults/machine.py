"""machine.py: memory growth and leaks."""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import time

import world

# Steps of two runs; allowed difference of their peaks in KiB: a few pages of malloc without its cache of freed blocks
STEPS, ALLOWED = (1000, 9000), 256
DESCRIPTORS = 24   # that a run may have open: a leak of one per save fails


def peak(w, steps):
    """The peak of resident memory in KiB of a run with validations, samples and saves, which must succeed."""
    case = w.case()
    process = subprocess.Popen(
        [w.binary, *world.RUN, "--steps", str(steps), "--val-every", "20", "--sample-every", "25",
         "--save-every", "50", "--keep", "2"], cwd=case.dir, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)))
    highest, end = 0, time.monotonic() + 600
    while process.poll() is None and (time.monotonic() < end or process.kill()):
        found = re.search(r"^VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{process.pid}/status").read_text(), re.M)
        highest = int(found[1]) if found else highest   # not in the last moments of the process
        time.sleep(0.01)
    case.remove()
    return highest if process.returncode == 0 else 0


def growth(w, report):
    few, many = (peak(w, steps) for steps in STEPS)
    report.check(0 < many <= few + ALLOWED and few > 0, f"peaks of {STEPS} steps: {few} and {many} KiB; 0: it failed")
    report.figure(f"peaks of {STEPS} steps: {few} and {many} KiB")


# ---- Leaks -----------------------------------------------------------------------------------------------------------

# A model large enough that every parallel loop uses two threads
WIDE = ("--layers 2 --heads 4 --channels 64 --block-size 64 --vocab-size 257 --batch 4 --total-batch 512 --warmup 1 "
        "--val-windows 8 --sample-tokens 8 --steps 4 --val-every 2 --sample-every 2 --save-every 2 --keep 1").split()

# The commands to run under valgrind, with their exit status.
COMMANDS = [
    ([*world.TOKENIZE, "--shard-tokens", "9000", "--out", "made/x", "long.txt", "lines.jsonl"], 0),
    ([*WIDE, *world.DATA, *world.OUT], 0),
    (["--resume", "--steps", "6", *world.OUT], 0),
    (["sample", "--model", "run", "--tokens", "40", "--prompt", "1 and 2 make "], 0),
    (world.EVAL, 0),
    (["info", "run"], 0),
    ([*WIDE, *world.DATA, *world.OUT], 1),                           # the folder already holds a run
    (["eval", "--model", "run", "--data", "long.txt"], 1),           # not a shard
    (["sample", "--model", "long.txt"], 1),                          # not a model
]


def leaks(w, report, binary):
    if not shutil.which("valgrind"):
        report.skip("valgrind is not installed")
        return
    case = w.case()
    pathlib.Path(case.path("long.txt")).write_text(world.sums(1500))   # is split among threads
    pathlib.Path(case.path("lines.jsonl")).write_text(
        "".join(json.dumps({"text": f"{i} and {i} make {2 * i}"}) + "\n" for i in range(200)))
    tool = ["valgrind", "-q", "--leak-check=full", "--show-leak-kinds=all", "--errors-for-leak-kinds=all",
            "--error-exitcode=99", "--log-file=found"]
    for args, wanted in COMMANDS:
        done = subprocess.run([*tool, binary, *args], cwd=case.dir, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", env={**os.environ, "OMP_NUM_THREADS": "2"})
        found = pathlib.Path(case.path("found")).read_text(errors="replace").strip()
        report.check(done.returncode == wanted and not found, f"{' '.join(args)}: expected status {wanted}, got "
                     f"{done.returncode}: {done.stderr[-300:]!r}\n{found[:3000]}")
    case.remove()
    report.figure(f"valgrind's memcheck on {len(COMMANDS)} commands, every kind of leak")
