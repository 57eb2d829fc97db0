#!/usr/bin/env python3
"""Measures distributed training on one machine: against threads, against iperf3, and against PyTorch.

    dev/bench/distributed.py [--mpi openmpi] [--parts train,exchange,hosts,start,ddp]

Builds the trainer with MPI in build/distributed. Needs iperf3 for `exchange`, root for network namespaces (`exchange`
and `hosts`) and PyTorch for `ddp`. Prints `key value unit` lines and then a table of the required ratios; takes 8
minutes on two idle cores. Values are medians; values that are compared are measured alternately.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(REPO, "dev", "test", "ranks"))

import hosts
import launch

SLICE = 24_000_000         # bytes of a message: a slice of the gradients of a tost-base layer would be 7 MB on 4 ranks
PARAMETERS = 109_600_000   # of tost-base
figures = {}


class Skip(Exception):
    """Raised with the reason if a part cannot run."""


def report(key, value, unit):
    figures[key] = value
    print(f"{key} {value:.6g} {unit}", flush=True)


def ratio(key, over, under):
    if over in figures and under in figures:
        report(key, figures[over] / figures[under], "")


class Bench:
    def __init__(self, args, folder):
        self.folder = folder
        built = os.path.join(REPO, "build", "distributed")
        subprocess.run([os.path.join(REPO, "dev/test/ranks/build.sh"), built, args.mpi, "exchange_bench"],
                       check=True, stdout=subprocess.DEVNULL)
        self.mpi = next(m for m in launch.find_mpi(built) if m.name == args.mpi)
        self.exchange = os.path.join(built, args.mpi, "build", "exchange_bench")

    def start(self, ranks, threads, *options):
        """A training run that only trains, in a folder of its own."""
        data = os.path.join(REPO, "data/starter/starter_train_*.bin")
        return launch.Job(tempfile.mkdtemp(dir=self.folder), self.mpi, ranks,
                          ["--data", data, "--out", "run", "--val-every", "0", "--sample-every", "0", "--save-every",
                           "0", "--threads", str(threads), *options])

    def call(self, command):
        """The `key value` lines that a command prints."""
        done = subprocess.run(command, cwd=self.folder, env=launch.environment(), stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, check=False)
        if done.returncode != 0:
            raise Skip(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()[-300:]}")
        return dict(line.split(None, 2)[:2] for line in done.stdout.splitlines() if " " in line)

    def exchange_round(self, command, bytes_=SLICE, rounds=20):
        """Seconds of a round, and GB/s that a rank sends."""
        lines = self.call([*command, self.exchange, str(bytes_), str(rounds)])
        return float(lines["round"]), float(lines["rate"])


def train(bench):
    """2 ranks with 1 thread, and 1 rank with 2 threads, alternately: 8,192 tokens per step."""
    tokens = 8192
    options = f"--preset tost-base --batch 1 --seq 1024 --total-batch {tokens} --parts 2 --steps 4".split()
    ms = {"threads": [], "ranks": []}
    for _ in range(2):
        for name, ranks, threads in (("threads", 1, 2), ("ranks", 2, 1)):
            job = bench.start(ranks, threads, *options)
            result = job.finish(600)
            if result.status != 0:
                raise Skip(f"{ranks} ranks: {result.summary()}")
            with open(job.path("run/log.csv")) as f:
                ms[name] += [float(row["ms"]) for row in csv.DictReader(f)][1:]   # the first step is slower
    for name, values in ms.items():
        report(f"train_{name}", 1000 * tokens / statistics.median(values), "tokens/s")
    ratio("train_ratio", "train_ranks", "train_threads")
    # one thread per rank: the time in which each rank of a larger run computes 8,192 tokens
    report("compute_8192", 2 * statistics.median(ms["ranks"]) / 1000, "s")


def iperf3(server, client, address):
    """GB/s of two streams in opposite directions, the mean of both, as each rank sends and receives."""
    process = subprocess.Popen([*server, "iperf3", "-s", "-1", "-p", "25201"], stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    done = subprocess.run([*client, "iperf3", "-c", address, "-p", "25201", "-t", "2", "--bidir", "-l", "1M", "-J"],
                          capture_output=True, text=True, check=False)
    process.terminate()
    process.wait()
    end = json.loads(done.stdout).get("end", {})
    if "sum_received" not in end:
        raise Skip(f"iperf3: {json.loads(done.stdout).get('error', done.stderr)}")
    return sum(end[key]["bits_per_second"] for key in ("sum_received", "sum_received_bidir_reverse")) / 2 / 8e9


def exchange(bench):
    """Two ranks that exchange slices between two hosts whose links are not limited, and limited to 10 Gbit/s."""
    if not shutil.which("iperf3"):
        raise Skip("no iperf3 (Debian: iperf3)")
    with hosts.Hosts(2, bench.folder) as two:
        for key in ("unlimited", "10gbit"):
            if key != "unlimited":
                two.limit(key)
            command = [*two.on(1), *bench.mpi.command(2, two.mpi_options(bench.mpi))]
            pairs = [(iperf3(two.on(2), two.on(1), two.addresses[1]), bench.exchange_round(command)[1])
                     for _ in range(3)]
            report(f"iperf3_{key}", statistics.median(p[0] for p in pairs), "GB/s")
            report(f"exchange_{key}", statistics.median(p[1] for p in pairs), "GB/s")
            ratio(f"exchange_{key}_ratio", f"exchange_{key}", f"iperf3_{key}")


def four_hosts(bench):
    """The exchange of a step of tost-base between four hosts: each rank sends slices of the gradients to their owners,
    and then its slice of the parameters to all."""
    with hosts.Hosts(4, bench.folder) as four:
        four.limit("10gbit")
        command = [*four.on(1), *bench.mpi.command(4, four.mpi_options(bench.mpi))]
        seconds = 2 * bench.exchange_round(command, PARAMETERS, 3)[0]   # a slice: PARAMETERS / 4 values of 4 bytes
    report("hosts_exchange", seconds, "s")
    if "compute_8192" in figures:
        report("hosts_efficiency", figures["compute_8192"] / (figures["compute_8192"] + seconds), "")


def start(bench):
    """Seconds from the launch to the first step of the starter, on 1 and 4 ranks."""
    seconds = {1: [], 4: []}
    for _ in range(5):
        for ranks, values in seconds.items():
            job = bench.start(ranks, 1, "--steps", "100000", "--batch", "1", "--total-batch", "2048")
            job.wait_steps(2)   # the header and a row
            values.append(time.monotonic() - job.began)
            job.signal(2)
            job.finish()
    for ranks, values in seconds.items():
        report(f"start_{ranks}", statistics.median(values), "s")
    report("start_more", figures["start_4"] - figures["start_1"], "s")


def ddp(bench):
    """PyTorch's DistributedDataParallel, the same model and tokens per step, 2 processes with 1 thread."""
    lines = bench.call([os.environ.get("PYTHON", "python3"), os.path.join(REPO, "dev/bench/peers.py"), "ddp",
                        "--threads", "2", "--tokens", "8192", "--runs", "2"])
    if "ddp_tokens_per_s" not in lines:
        raise Skip("peers.py ddp gives no figure: it needs PyTorch")
    report("ddp", float(lines["ddp_tokens_per_s"]), "tokens/s")
    ratio("ddp_ratio", "train_ranks", "ddp")


PARTS = {"train": train, "exchange": exchange, "hosts": four_hosts, "start": start, "ddp": ddp}
REQUIRED = (
    ("2 ranks × 1 thread against 1 rank × 2 threads, tost-base, 8,192 tokens a step", "train_ratio", "≥ 0.97"),
    ("exchange of 24 MB slices against iperf3, two hosts", "exchange_unlimited_ratio", "≥ 0.80"),
    ("the same at 10 Gbit/s", "exchange_10gbit_ratio", "≥ 0.80"),
    ("4 hosts at 10 Gbit/s, efficiency at 8,192 tokens a rank without overlap", "hosts_efficiency", "≥ 0.97"),
    ("time to the first step, 4 ranks: more than 1 rank, s", "start_more", "≤ 1"),
    ("2 ranks × 1 thread against PyTorch DDP", "ddp_ratio", "≥ 1.3"),
)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mpi", default="openmpi", choices=("openmpi", "mpich"))
    p.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, folder)
        report("load_before", os.getloadavg()[0], "processes")   # 1 or more: the results are not reliable
        for name in args.parts.split(","):
            try:
                why = hosts.unavailable() if name in ("exchange", "hosts") else None
                if why:
                    raise Skip(why)
                PARTS[name](bench)
            except Skip as reason:
                print(f"skipped: {name}: {reason}", flush=True)
    print("\n| | measured | required |\n|---|---|---|")
    for text, key, required in REQUIRED:
        print(f"| {text} | {figures[key]:.3f} | {required} |" if key in figures else f"| {text} | - | {required} |")


if __name__ == "__main__":
    main()
