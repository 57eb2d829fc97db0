#!/usr/bin/env python3
"""Measures distributed training on one machine: against threads, against iperf3, and against PyTorch.

    dev/bench/distributed.py [--mpi openmpi] [--parts train,exchange,hosts,memory,start,ddp] [--quick]

Builds the trainer with MPI in build/distributed. Needs iperf3 for `exchange`, root for network namespaces (`hosts` and
the rows of `exchange` with a rate) and PyTorch for `ddp`. Prints `key value unit` lines and then a table of the
required ratios; takes 9 minutes on two idle cores. --quick uses a small model, to try the program; its ratios mean
nothing.
Values are medians; values that are compared are measured alternately.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(REPO, "dev", "test", "distributed"))

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


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        built = os.path.join(REPO, "build", "distributed")
        subprocess.run([os.path.join(REPO, "dev/test/ranks/build.sh"), built, args.mpi, "exchange_bench"],
                       check=True, stdout=subprocess.DEVNULL)
        found = [m for m in launch.find_mpi(built) if m.name == args.mpi]
        if not found:
            raise SystemExit(f"--mpi {args.mpi}: not installed (Debian: libopenmpi-dev or libmpich-dev)")
        self.mpi = found[0]
        self.exchange_bench = os.path.join(built, args.mpi, "build", "exchange_bench")

    def data(self):
        return ["--data", os.path.join(REPO, "data/starter/starter_train_*.bin")]

    def model(self):
        if self.args.quick:
            return ["--layers", "2", "--heads", "4", "--channels", "128", "--block-size", "256", "--vocab-size", "2304"]
        return ["--preset", "tost-base"]

    def start(self, ranks, threads, *options):
        """A training run that only trains, in a folder of its own."""
        cwd = tempfile.mkdtemp(dir=self.folder)
        return launch.Job([*(self.mpi.command(ranks) if ranks > 1 else []), self.mpi.binary, *self.data(), "--out",
                           "run", "--val-every", "0", "--sample-every", "0", "--save-every", "0", "--threads",
                           str(threads), *options], self.mpi.binary, cwd, launch.environment())

    def train(self, ranks, threads, *options):
        """Milliseconds of each step but the first, which is slower."""
        job = self.start(ranks, threads, *options)
        result = job.finish(600)
        if result.status != 0:
            raise Skip(f"{ranks} ranks: {result.summary()}")
        with open(os.path.join(job.cwd, "run", "log.csv")) as f:
            return [float(row["ms"]) for row in csv.DictReader(f)][1:]

    def call(self, command):
        done = subprocess.run(command, cwd=self.folder, env=launch.environment(), stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, check=False)
        if done.returncode != 0:
            raise Skip(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout


def train(bench):
    """2 ranks with 1 thread, and 1 rank with 2 threads, alternately: 8,192 tokens per step."""
    tokens, seq = (1024, 256) if bench.args.quick else (8192, 1024)
    options = [*bench.model(), "--batch", "1", "--seq", str(seq), "--total-batch", str(tokens), "--parts", "2",
               "--steps", "4"]
    ms = {"ranks": [], "threads": []}
    for _ in range(2):
        for name, ranks, threads in (("threads", 1, 2), ("ranks", 2, 1)):
            ms[name] += bench.train(ranks, threads, *options)
    for name, values in ms.items():
        report(f"train_{name}", 1000 * tokens / statistics.median(values), "tokens/s")
    report("train_ratio", figures["train_ranks"] / figures["train_threads"], "")
    # one thread per rank: the time in which each rank of a larger run computes 8,192 tokens
    report("compute_8192", 2 * statistics.median(ms["ranks"]) / 1000 * 8192 / tokens, "s")


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
    both = end["sum_received"]["bits_per_second"] + end["sum_received_bidir_reverse"]["bits_per_second"]
    return both / 2 / 8e9


def exchange_rate(bench, command, bytes_=SLICE, rounds=20):
    """Seconds of a round, and GB/s that a rank sends."""
    lines = dict(line.split()[:2] for line in bench.call([*command, bench.exchange_bench, str(bytes_), str(rounds)])
                 .splitlines())
    return float(lines["round"]), float(lines["rate"])


def compare_rates(bench, key, command, server, client, address):
    ours, theirs = [], []
    for _ in range(3):
        theirs.append(iperf3(server, client, address))
        ours.append(exchange_rate(bench, command)[1])
    report(f"exchange_{key}", statistics.median(ours), "GB/s")
    report(f"iperf3_{key}", statistics.median(theirs), "GB/s")
    report(f"exchange_{key}_ratio", figures[f"exchange_{key}"] / figures[f"iperf3_{key}"], "")


def tcp(bench):
    if bench.mpi.name == "openmpi":
        return bench.mpi.command(2, ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include",
                                     "lo"])
    return bench.mpi.command(2, ["-genv", "UCX_TLS", "tcp,self", "-genv", "UCX_NET_DEVICES", "lo"])


def exchange(bench):
    """Two ranks that exchange slices: over shared memory, TCP on loopback, and limited links between two hosts."""
    report("exchange_memory", exchange_rate(bench, bench.mpi.command(2))[1], "GB/s")
    compare_rates(bench, "loopback", tcp(bench), [], [], "127.0.0.1")
    namespaces()
    with hosts.Hosts(2, bench.folder) as two:
        for rate in ("10gbit", "1gbit"):
            two.limit(rate)
            compare_rates(bench, rate, [*two.on(1), *bench.mpi.command(2, two.mpi_options(bench.mpi))], two.on(2),
                          two.on(1), two.addresses[1])


def namespaces():
    why = hosts.unavailable()
    if why:
        raise Skip(why)


def four_hosts(bench):
    """The exchange of a step of tost-base between four hosts: each rank sends slices of the gradients to their owners,
    and then its slice of the parameters to all."""
    namespaces()
    with hosts.Hosts(4, bench.folder) as four:
        for rate, gbit in (("10gbit", 10), ("1gbit", 1)):
            four.limit(rate)
            round_, _ = exchange_rate(bench, [*four.on(1), *bench.mpi.command(4, four.mpi_options(bench.mpi))],
                                      PARAMETERS, 3 if gbit > 1 else 1)   # a slice: PARAMETERS / 4 values of 4 bytes
            report(f"hosts_{rate}_exchange", 2 * round_, "s")
            report(f"hosts_{rate}_estimate", 2 * 3 * PARAMETERS * 8 / (gbit * 1e9), "s")
            if "compute_8192" in figures:
                compute = figures["compute_8192"]
                report(f"hosts_{rate}_efficiency", compute / (compute + 2 * round_), "")


def peak_memory(bench, ranks):
    """Peak memory of the largest rank, in MB, at the first step."""
    channels = "256" if bench.args.quick else "1024"   # 50M parameters, whose moments are 400 MB
    options = ["--layers", "4", "--heads", "4", "--channels", channels, "--block-size", "64", "--vocab-size", "2304",
               "--batch", "1", "--seq", "64", "--total-batch", str(64 * ranks), "--steps", "100000"]
    job = bench.start(ranks, 1, *options)
    if not job.wait_steps(3):
        raise Skip(f"{ranks} ranks: {job.finish(1).summary()}")
    pids = job.ranks().values() if ranks > 1 else [job.process.pid]
    peaks = []
    for pid in pids:
        with open(f"/proc/{pid}/status") as f:
            peaks.append(next(int(line.split()[1]) / 1000 for line in f if line.startswith("VmHWM")))
    job.signal(2)
    job.finish()
    return max(peaks)


def memory(bench):
    """Peak memory of 1, 2 and 4 ranks. With N ranks, each has 1/N of the moments."""
    for ranks in (1, 2, 4):
        report(f"memory_{ranks}", peak_memory(bench, ranks), "MB")


def seconds_to_step(bench, ranks):
    job = bench.start(ranks, 1, "--steps", "100000", "--batch", "1", "--total-batch", "2048")
    job.wait_steps(2)   # the header and a row
    seconds = time.monotonic() - job.began
    job.signal(2)
    job.finish()
    return seconds


def start(bench):
    """Seconds from the launch to the first step of the starter, on 1 and 4 ranks."""
    seconds = {1: [], 4: []}
    for _ in range(5):
        for ranks, values in seconds.items():
            values.append(seconds_to_step(bench, ranks))
    for ranks, values in seconds.items():
        report(f"start_{ranks}", statistics.median(values), "s")
    report("start_more", figures["start_4"] - figures["start_1"], "s")


def ddp(bench):
    """PyTorch's DistributedDataParallel, the same model and tokens per step, 2 processes with 1 thread."""
    out = bench.call([os.environ.get("PYTHON", "python3"), os.path.join(REPO, "dev/bench/peers.py"), "ddp", "--threads",
                      "2", "--tokens", "2048" if bench.args.quick else "8192", "--runs", "1" if bench.args.quick else "2"])
    lines = dict(line.split()[:2] for line in out.splitlines())
    if "ddp_tokens_per_s" not in lines:
        raise Skip(out.strip().splitlines()[-1])
    report("ddp", float(lines["ddp_tokens_per_s"]), "tokens/s")
    if "train_ranks" in figures:
        report("ddp_ratio", figures["train_ranks"] / figures["ddp"], "")


PARTS = {"train": train, "exchange": exchange, "hosts": four_hosts, "memory": memory, "start": start, "ddp": ddp}
REQUIRED = (
    ("2 ranks × 1 thread against 1 rank × 2 threads, tost-base, 8,192 tokens a step", "train_ratio", "≥ 0.97"),
    ("exchange of 24 MB slices against iperf3, loopback", "exchange_loopback_ratio", "≥ 0.80"),
    ("the same between two hosts at 10 Gbit/s", "exchange_10gbit_ratio", "≥ 0.80"),
    ("4 hosts at 10 Gbit/s, efficiency at 8,192 tokens a rank without overlap", "hosts_10gbit_efficiency", "≥ 0.97"),
    ("time to the first step, 4 ranks: more than 1 rank, s", "start_more", "≤ 1"),
    ("2 ranks × 1 thread against PyTorch DDP", "ddp_ratio", "≥ 1.3"),
)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mpi", default="openmpi", choices=("openmpi", "mpich"))
    p.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    p.add_argument("--quick", action="store_true")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, folder)
        report("load_before", os.getloadavg()[0], "processes")   # 1 or more: the results are not reliable
        for name in args.parts.split(","):
            try:
                PARTS[name](bench)
            except Skip as reason:
                print(f"skipped: {name}: {reason}", flush=True)
    print("\n| | measured | required |\n|---|---|---|")
    for text, key, required in REQUIRED:
        print(f"| {text} | {figures[key]:.3f} | {required} |" if key in figures else f"| {text} | - | {required} |")


if __name__ == "__main__":
    main()
