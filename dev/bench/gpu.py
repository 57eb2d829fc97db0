#!/usr/bin/env python3
"""GPU benchmark: runs the built CUDA programs and PyTorch models in stages, and writes a dated Markdown table.

    make -k -j CUDA=always train_gpt_tostcu test_tost bench_cuda
    dev/bench/gpu.py [--stages NAME ...] [--out DIR] [--limit SECONDS] [--built DIR] [--commit NAME]

Every stage runs alone, and one that fails, hangs or lacks a program is listed in the table without stopping the others.
The table is saved after each row, with the commands and their output in a .log beside it. Downloads nothing: the data
are random tokens and data/starter. Stages, in the order of a run: {stages}.
memcheck, racecheck and synccheck need compute-sanitizer, profile needs ncu, curve and peers a Python with PyTorch
($PYTHON, by default the one that runs this script). dev/bench/README.md says which to run together.
"""

import argparse
import array
import csv
import datetime
import os
import random
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LENGTHS, TOKENS, VOCAB = (1024, 65536, 16384, 4096), 65536, 50257   # the most important length first
BASE, ALL_OPTIONS = (1024, "bf16"), "--conv 4 --memory 1 --optimizer muon"
CASES = [BASE, *((T, "bf16") for T in LENGTHS[1:]), (65536, "bf16", "--chunk", 16384), (1024, "fp32"), (1024, "tf32"),
         (1024, "bf16", "--conv", 4), (1024, "bf16", "--memory", 1),
         (65536, "bf16", "--memory", 1), (1024, "bf16", "--optimizer", "muon"),
         (1024, "bf16", *ALL_OPTIONS.split())]
STARTER = "data/starter/starter_train_*.bin"
WARM_STEPS, STEPS, CURVE_STEPS = 5, 25, 300   # of the trainer: not counted, all, and of the loss curves


def output_of(command):
    """The command's output, without that of its failures."""
    return subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=20).stdout.strip()


def base(T, batch, steps, data, dtype="bf16"):
    """Options of a run of tost-base."""
    return f"""--preset tost-base --dtype {dtype} --block-size {T} --seq {T} --batch {batch} --total-batch {batch * T}
               --steps {steps} --data {data}""".split()


class Table:
    def __init__(self, facts, path):
        self.facts, self.path, self.rows, self.notes = facts, path, [], []

    def row(self, what, value, details="", target=""):
        self.rows.append((what, str(value), details, target))
        self.write()

    def note(self, stage, reason):
        self.notes.append(f"- {stage}: {reason}")
        print(f"not measured: {stage}: {reason}", flush=True)
        self.write()

    def write(self):
        lines = [f"# {self.path.stem}", "", *(f"- {key}: {value}" for key, value in self.facts.items()), "",
                 "| measurement | value | details | target |", "|---|---|---|---|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        lines += ["", "Not measured:", "", *self.notes] if self.notes else []
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.replace(self.path)


class Run:
    def __init__(self, table, built, limit, work):
        self.table, self.built, self.work, self.end = table, built, work, time.monotonic() + limit
        self.python = os.environ.get("PYTHON", sys.executable)
        missing = re.search(r"(libcublasLt\S*) => not found", output_of(f"ldd {self.program('train_gpt_tostcu')}"))
        if missing:   # PyTorch's package has one
            packages = output_of(f"{self.python} -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'")
            folders = [str(file.parent) for file in Path(packages).glob(f"nvidia/*/lib/{missing[1]}")]
            os.environ["LD_LIBRARY_PATH"] = ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")]).strip(":")

    def program(self, name):
        """Where `make` writes it, or directly in the folder of --built."""
        path = self.built / "build/cuda" / name
        return path if path.exists() else self.built / name

    def command(self, words, limit):
        """The command's output, also if it fails, and the reason why it failed or None."""
        words, left, process = [str(word) for word in words], min(limit, self.end - time.monotonic()), None
        if left < 5:
            return "", "no time left"
        print(f"== {shlex.join(words)}", flush=True)
        with open(self.table.path.with_suffix(".log"), "a+b") as log:
            log.write(f"== {shlex.join(words)}\n".encode())
            log.flush()
            start = log.tell()
            try:   # a new session, so that child processes can be killed with it
                process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log,
                                           stderr=subprocess.STDOUT, start_new_session=True)
                reason = process.wait(left) and f"exit status {process.returncode}"
            except OSError as error:
                reason = f"{words[0]}: {error.strerror}"
            except subprocess.TimeoutExpired:
                reason = f"took more than {left:.0f} s"
            finally:   # also if this program is stopped
                if process and process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            log.seek(start)
            output = log.read().decode(errors="replace")
        return output, reason and f"{reason}: {(output.strip().splitlines() or ['no output'])[-1][:200]}"

    def shard(self, name, ids):
        path = self.work / name
        path.write_bytes(array.array("H", ids).tobytes())
        return path

    def trainer(self, name, options, limit=60, prefix=()):
        """Runs the trainer. Returns (output, complete rows of log.csv), after a note if it failed."""
        words = [*prefix, self.program("train_gpt_tostcu"), *options, "--val-every=0", "--sample-every=0", "--out"]
        output, reason = self.command([*words, self.work / name], limit)
        if reason:
            self.table.note(name, reason)
        return output, self.log_rows(name)

    def log_rows(self, name):
        path = self.work / name / "log.csv"
        rows = csv.DictReader(path.read_text().splitlines()) if path.exists() else []
        return [row for row in rows if row["tokens_per_s"]]

    # ---- stages ----

    def libraries(self):
        output, reason = self.command(["ldd", self.program("train_gpt_tostcu"), self.program("test_tost")], 20)
        missing = re.findall(r"^\s*(\S+) => not found", output, re.M)
        self.table.row("missing libraries", reason or len(missing), ", ".join(missing), "0")

    def bench(self, name, limit=60):
        """Rows of a benchmark of dev/cuda, which prints lines `NAME SIZE X us DETAILS`."""
        output, reason = self.command([self.program(f"bench_{name}")], limit)
        found = re.findall(r"^(\w+) +(\S.*?) +([\d.]+) us +(.*)$", output, re.M)
        for kernel, size, us, details in found:
            self.table.row(f"{kernel}, {size}: µs", us, " ".join(details.split()))
        if reason or not found:
            self.table.note(f"bench_{name}", reason or "no figures")

    def tests(self):
        output, reason = self.command([self.program("test_tost")], 240)
        counts = re.findall(r"^test_tost: (\d+ passed.*)$", output, re.M)
        counts = counts or re.findall(r"^CUDA part \d+: (.*)$", output, re.M)[-1:]   # the last ones before a timeout
        failed = re.findall(r"^FAILED (.*)$", output, re.M)
        if reason and not reason.startswith("exit status"):
            self.table.note("tests", reason)
        self.table.row("tests", counts[0] if counts else reason, "; ".join(failed[:10]), "0 failed")
        refused = re.findall(r"product of (\(.*\)) in bf16.*: cuBLASLt status 15", output)
        self.table.row("of these, products in bf16 that cuBLASLt refuses", len(refused), "; ".join(refused),
                       "only odd sizes, which no preset has")

    def train(self, cases):
        """Each case is a length, dtype and more options."""
        draw = random.Random(1)   # ids that follow Zipf's law
        data = self.shard("random.bin", (int(VOCAB ** draw.random()) - 1 for _ in range(4 * TOKENS + 1)))
        first = None
        for T, dtype, *more in cases:
            name = " ".join(map(str, (f"trainer, T = {T}, {dtype}", *more)))
            options = [*base(T, TOKENS // T, STEPS, data, dtype), *more, "--save-every", 0]
            output, rows = self.trainer(name, options)
            if len(rows) <= WARM_STEPS:
                continue
            ms = statistics.median(float(row["ms"]) for row in rows[WARM_STEPS:])
            rate = TOKENS / ms * 1e3
            first = first or rate
            parts = [f"{ms:.2f} ms per step", f"{rate / first:.3f} × the first case"]
            compute = re.search(r"^compute +([\d.]+) MFLOP .*, ([\d.e+-]+) TFLOP/s in \w+ \((.*)\)$", output, re.M)
            if compute:
                flops, peak = rate * float(compute[1]) * 1e-6, float(compute[2])
                parts.append(f"{flops:.0f} TFLOP/s, MFU {100 * flops / peak:.1f}% of {peak:.4g} TFLOP/s ({compute[3]})")
            parts += re.findall(r", (\S+ \S+ of memory)", output)[:1]
            self.table.row(f"{name}: tokens/s", f"{rate:,.0f}", ", ".join(parts))

    def small(self):
        """The preset small, with convolutions, memory and Muon."""
        data = self.shard("ids.bin", (i * 7919 % 4096 for i in range(2 * TOKENS)))
        name = "trainer, --preset small"
        _, rows = self.trainer(name, ["--preset", "small", "--steps", STEPS, "--data", data, "--save-every", 0])
        if len(rows) > WARM_STEPS:
            ms = statistics.median(float(row["ms"]) for row in rows[WARM_STEPS:])
            self.table.row(f"{name}: ms per step", f"{ms:.2f}")

    def batches(self):
        """The preset tost-base as in README, with the default micro-batch and with others."""
        data = self.shard("batches.bin", (i * 7919 % VOCAB for i in range(4 * TOKENS + 1)))
        for more in ((), *(("--batch", batch) for batch in (1, 20, 60, 80))):
            name = " ".join(map(str, ("trainer, --preset tost-base", *more)))
            output, rows = self.trainer(name, ["--preset", "tost-base", "--steps", 4, "--data", data, "--save-every", 0,
                                               *more])
            if len(rows) > 1:
                rate = statistics.median(float(row["tokens_per_s"]) for row in rows[1:])
                self.table.row(f"{name}: tokens/s", f"{rate:,.0f}", *re.findall(r"per step: (.*)$", output, re.M)[:1])

    def sampling(self):
        """Speed of decoding: one text, and 32 together."""
        self.trainer("sampled", base(1024, 8, 1, STARTER))
        for samples in (1, 32):
            output, reason = self.command([self.program("train_gpt_tostcu"), "sample", "--dtype", "bf16", "--model",
                                           self.work / "sampled", "--prompt", "Once", "--tokens", 500, "--samples",
                                           samples], 60)
            found = re.findall(r"([\d.]+) tokens/s$", output, re.M)
            if found:
                self.table.row(f"sampling, {samples} texts: tokens/s", found[-1])
            if reason:
                self.table.note(f"sampling, {samples} texts", reason)

    def sanitizer(self, tool):
        data = self.shard("small.bin", (i * 7919 % 257 for i in range(2000)))
        plain = "--conv 0 --optimizer adamw"
        whole = "--layers 2 --heads 3 --channels 192 --block-size 80 --seq 80 --batch 3 --total-batch 480"
        ragged = "--layers 1 --heads 3 --channels 60 --bias 1 --block-size 70 --seq 37 --batch 3 --total-batch 222"
        heads = "--layers 1 --heads 1 --channels 256 --block-size 70 --seq 37 --batch 2 --total-batch 148"
        for name, shape in (("bf16, whole tiles", f"{whole} {plain}"), ("fp32, ragged", f"{ragged} {plain}"),
                            ("bf16, ragged, all options", f"{ragged} {ALL_OPTIONS}"),
                            ("bf16, 94 KiB of shared memory", f"{heads} {ALL_OPTIONS}")):
            # checks the trainer's kernels, whose names end in _kernel, and not cuBLASLt's
            prefix = f"compute-sanitizer --tool {tool} --kernel-name kns=_kernel --kernel-name-exclude kns=splitKreduce"
            options = f"{shape} --vocab-size 257 --steps 2 --save-every 0 --dtype {name[:4]} --data {data}".split()
            output, _ = self.trainer(f"{tool}, {name}", options, 50, prefix.split())
            errors = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", output)
            named = re.findall(r"^=+ +(?:at|in kernel|.*\baccess at) (?:void )?([A-Za-z_]\w*)", output, re.M)
            broken = re.search("Internal Sanitizer Error.*", output)   # its summary counts that as an error
            if broken:
                self.table.note(f"{tool}, {name}", f"compute-sanitizer failed: {broken[0]}")
            elif errors:
                self.table.row(f"{tool}, {name}: errors", str(sum(map(int, errors))),
                               ", ".join(sorted(set(named))), "0")

    def profile(self):
        """Time and bytes of each kernel of one step, without options and with all, as a .csv beside the table."""
        metrics = "gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum"
        data = self.shard("profile.bin", (i * 7919 % VOCAB for i in range(TOKENS + 1)))
        for name, more in (("profile", ""), ("profile, all options", ALL_OPTIONS)):
            output, _ = self.trainer(name, [*base(1024, 64, 1, data), *more.split(), "--save-every", 0], 120,
                                     ["ncu", "--clock-control", "none", "--cache-control", "none", "--csv", "--page",
                                      "raw", "--metrics", metrics])
            lines = [line for line in output.splitlines() if line.startswith('"')]
            if lines:
                path = self.table.path.with_suffix(".options.csv" if more else ".csv")
                path.write_text("\n".join(lines) + "\n", encoding="utf-8")
                self.table.row(f"{name}: kernels of one step", len(lines) - 2, path.name)

    def curve(self):
        """The loss curves of the trainer and of PyTorch, from the same start on the same data."""
        start, ours, torch = (self.work / name for name in ("start", "ours", "torch"))
        self.trainer("start", base(1024, 8, 0, STARTER))
        _, rows = self.trainer("ours", [*base(1024, 8, CURVE_STEPS, STARTER), "--warmup", 30, "--init", start])
        _, reason = self.command([self.python, "dev/reference/train.py", "--init", start, "--like", ours, "--out",
                                  torch, "--quiet", "--device", "cuda", "--dtype", "bf16"], 150)
        pairs = [(float(a["train_loss"]), float(b["train_loss"])) for a, b in zip(rows, self.log_rows("torch"))]
        if pairs:
            worst = max((abs(a - b) for a, b in pairs), key=lambda x: (x != x, x))   # NaN is the worst
            self.table.row(f"loss of {len(pairs)} steps against PyTorch, largest difference", f"{worst:.4f}",
                           "last losses {:.4f} and {:.4f}".format(*pairs[-1]), f"0.02 at each of {CURVE_STEPS} steps")
        if reason:
            self.table.note("loss against PyTorch", f"after {len(pairs)} of {CURVE_STEPS} steps: {reason}")

    def peers(self):
        for T, model in ((T, model) for T in LENGTHS for model in ("tost", "gpt2")):
            output, reason = self.command([self.python, "dev/bench/peers.py", "compiled_bf16", "--device", "cuda",
                                           "--model", model, "--seq", T, "--tokens", TOKENS, "--runs", 10], 110)
            found = re.findall(r"^compiled_bf16_(\w+) (.*)$", output, re.M)
            if found:
                self.table.row(f"PyTorch {model}, compiled, T = {T}: {found[0][0]}", found[0][1],
                               ", ".join(map(" ".join, found[1:])))
            else:
                self.table.note(f"PyTorch {model}, T = {T}", reason or output.strip()[-200:])

    def repeat(self):
        """Two runs of two steps must give the same weights and moments, which show each bit of the gradients."""
        for more in ("", ALL_OPTIONS):
            names = [f"{run} run of two steps {more}".strip() for run in ("first", "second")]
            for name in names:
                self.trainer(name, [*base(1024, TOKENS // 1024, 2, STARTER), *more.split()])
            one, two = ([file.read_bytes() for file in sorted((self.work / name).glob("step_*/*.safetensors"))]
                        for name in names)
            if one and two:
                self.table.row(f"the same weights and moments after two steps twice {more}".strip(), one == two, "",
                               "True")


STAGES = {"libraries": Run.libraries, "train": lambda run: run.train([BASE]), "tests": Run.tests,
          "memcheck": lambda run: run.sanitizer("memcheck"), "cases": lambda run: run.train(CASES),
          "tssa": lambda run: run.bench("tssa", 40),
          "kernels": lambda run: [run.bench(name) for name in ("delta_rule", "norm", "classifier", "adamw")],
          "matmuls": lambda run: run.bench("matmul"), "batches": Run.batches, "small": Run.small,
          "sampling": Run.sampling, "profile": Run.profile, "repeat": Run.repeat,
          "racecheck": lambda run: run.sanitizer("racecheck"), "synccheck": lambda run: run.sanitizer("synccheck"),
          "curve": Run.curve, "peers": Run.peers}


def main():
    parser = argparse.ArgumentParser(description=__doc__.format(stages=", ".join(STAGES)),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), metavar="NAME",
                        help="stages to run, in this order (default: all)")
    parser.add_argument("--out", type=Path, metavar="DIR", default=ROOT / "dev/bench/results",
                        help="folder of the table (default dev/bench/results)")
    parser.add_argument("--limit", type=float, default=540, metavar="SECONDS", help="time limit of the whole run (default 540)")
    parser.add_argument("--built", type=Path, metavar="DIR", default=ROOT,
                        help="the programs, or the repository in which they were built (default: this one)")
    parser.add_argument("--commit", metavar="NAME", default=output_of("git describe --always --dirty") or "unknown",
                        help="commit of the programs, written to the table (default: that of the repository)")
    args = parser.parse_args()
    gpus = output_of("nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader").splitlines()
    if not gpus:
        sys.exit("gpu.py: no GPU found by nvidia-smi")
    os.environ["PATH"] += ":/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"
    facts = {"GPU, driver, memory": gpus[0], "commit": args.commit,
             "command": shlex.join(sys.argv)}
    name = re.sub(r"[^a-z0-9]+", "-", gpus[0].split(",")[0].lower()).strip("-")
    args.out.mkdir(parents=True, exist_ok=True)
    table = Table(facts, args.out.resolve() / f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}-{name}.md")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as work:
        run = Run(table, args.built.resolve(), args.limit, Path(work))
        incomplete = []
        for stage in args.stages:
            notes = len(table.notes)
            try:
                STAGES[stage](run)
            except Exception as error:   # of output that is not as expected: the other stages still run
                table.note(stage, repr(error))
            incomplete += [stage] if len(table.notes) > notes else []
    if incomplete:
        table.note("what is left", f"--stages {' '.join(incomplete)}")
    table.write()
    print(f"\n{table.path.read_text(encoding='utf-8')}\nwrote {table.path}")


if __name__ == "__main__":
    main()
