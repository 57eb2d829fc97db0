#!/usr/bin/env python3
"""GPU benchmark: builds, tests and measures the CUDA trainer and PyTorch models in one run, and writes a dated Markdown
table.

    dev/bench/gpu.py [--out DIR] [--limit SECONDS] [--stages NAME,…]    default: dev/bench/results, 600 seconds, all

Needs a GPU, the CUDA toolkit and make; uses compute-sanitizer and a Python with PyTorch ($PYTHON, by default the one
that runs this script) if available. Downloads nothing: the data are random tokens and data/starter. TSSA is measured
first, while the other programs are being built. A stage that fails, times out or lacks a tool is listed in the table,
and the other stages still run. The table is saved after each row, with the output of each command in a .log beside it,
so that a run that ends early leaves what it measured. The stages: {stages}.
"""

import argparse
import array
import csv
import datetime
import os
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("norm", "classifier", "adamw", "embedding")
LENGTHS, TOKENS, VOCAB = (1024, 4096, 16384, 65536), 65536, 50257
# run in this order, all but the first after the build; the least important ones last, in case time runs out
STAGES = ("tssa", "tests", "kernels", "matmuls", "trainer", "decode", "curve", "peers_short", "sanitizers",
          "peers_long")
NEED_TORCH = {"curve", "peers_short", "peers_long"}
TOOLKIT = Path("/usr/local/cuda")   # used if its programs are not on PATH
WARM_STEPS, STEPS = 5, 25           # of the trainer: not counted, all
CURVE_STEPS = 300


# ---- parsers of program outputs ------------------------------------------------------------------------------------

def parse_kernels(text):
    """Lines of dev/cuda's benches: (name, size, µs, GB/s, GB/s of a copy, time / minimal time)."""
    line = re.compile(r"^(\w+) +(\S.*?) +([\d.]+) us +([\d.]+) GB/s +([\d.]+) GB/s copy +([\d.]+) times the "
                      r"minimum$", re.M)
    return [(m[1], m[2], *map(float, m.groups()[2:])) for m in line.finditer(text)]


def parse_rates(text, unit):
    """Lines `name size µs us RATE unit`: (name, size, µs, rate)."""
    line = re.compile(rf"^(\w+) +(\S.*?) +([\d.]+) us +([\d.]+) {unit}$", re.M)
    return [(m[1], m[2], float(m[3]), float(m[4])) for m in line.finditer(text)]


def parse_log(path):
    """The columns step, train_loss and ms of a log.csv; an incomplete last row is ignored."""
    if not path.exists():
        return []
    rows = [row for row in csv.DictReader(path.read_text().splitlines()) if row["tokens_per_s"]]
    return [(int(row["step"]), float(row["train_loss"]), float(row["ms"])) for row in rows]


def parse_compute(text):
    """(FLOPs per token, peak rate in TFLOP/s, source of the peak rate) from the trainer's output, or None."""
    line = re.search(r"^compute +([\d.]+) MFLOP per token; 100% MFU: .*, ([\d.e+-]+) TFLOP/s in \w+ \((.*)\)$", text,
                     re.M)
    return (float(line[1]) * 1e6, float(line[2]), line[3]) if line else None


def parse_sanitizer(text):
    """The number of errors in compute-sanitizer's summary (None if there is no summary), and the kernels it names,
    which may belong to cuBLAS."""
    found = re.findall(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", text)
    kernels = sorted(set(re.findall(r"^=+ +(?:at|in kernel|.*\baccess at) (?:void )?([A-Za-z_]\w*)", text, re.M)))
    return sum(int(a or b) for a, b in found) if found else None, kernels


def sanitizer_filters(help_text):
    """Options of compute-sanitizer that check the trainer's kernels, whose names end in _kernel, and not cuBLASLt's."""
    for option in ("--kernel-name", "--kernel-regex"):
        if re.search(rf"{option}(?![\w-])", help_text):
            return [option, "kns=_kernel", f"{option}-exclude", "kns=splitKreduce"]
    return []


# ---- the table ----------------------------------------------------------------------------------------------------

class Table:
    def __init__(self, facts, path):
        self.facts, self.path, self.rows, self.notes = facts, path, [], []

    def row(self, what, value, details="", target="", command=""):
        self.rows.append((what, value, details, target, command and f"`{command}`"))
        self.write()

    def note(self, stage, reason):
        self.notes.append(f"{stage}: {reason}")
        print(f"skipped: {stage}: {reason}", flush=True)
        self.write()

    def text(self):
        lines = [f"# {self.facts['title']}", ""]
        lines += [f"- {key}: {value}" for key, value in self.facts.items() if key != "title"]
        lines += ["", "| measurement | value | details of the same run | target | command |", "|---|---|---|---|---|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        if self.notes:
            lines += ["", "Not measured:", ""] + [f"- {note}" for note in self.notes]
        return "\n".join(lines) + "\n"

    def write(self):
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(self.text(), encoding="utf-8")
        temporary.replace(self.path)


def free_path(folder, name):
    """FOLDER/NAME.md, or FOLDER/NAME-2.md and so on if it exists, so that no table is overwritten."""
    path, number = folder / f"{name}.md", 2
    while path.exists():
        path, number = folder / f"{name}-{number}.md", number + 1
    return path


# ---- the run ------------------------------------------------------------------------------------------------------

class Run:
    def __init__(self, table, limit, work):
        self.table, self.work, self.log = table, work, table.path.with_suffix(".log")
        self.end = time.monotonic() + limit
        self.started = []   # processes
        self.python = os.environ.get("PYTHON", sys.executable)
        self.matmul_ms = self.square = None  # ms of a step's matrix products; TFLOP/s of the square product
        self.compute = None                  # result of parse_compute
        self.tssa_us, self.rates = {}, {}    # both by T: µs of TSSA forward + backward; the trainer's tokens/s

    def command(self, words, limit, keep=False):
        """Runs a command. Returns (output, None), or (None, reason) if it fails; with keep, (output, reason)."""
        words = [str(word) for word in words]
        left = min(limit, self.end - time.monotonic())
        if left < 5:
            return None, "no time left"
        try:
            process = self.start(words)
        except OSError as error:
            return None, f"{words[0]}: {error.strerror}"
        return self.finish(process, words, left, keep)

    def start(self, words):
        print(f"== {' '.join(words)}", flush=True)
        # a new session, so that child processes can be killed with it
        self.started.append(subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                             text=True, errors="replace", stdin=subprocess.DEVNULL,
                                             start_new_session=True))
        return self.started[-1]

    def stop(self):
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, 9)

    def finish(self, process, words, left, keep=False):
        reason = None
        try:
            output, _ = process.communicate(timeout=max(left, 1))
            if process.returncode != 0:
                last = ([line for line in output.splitlines() if line.strip()] or ["no output"])[-1]
                reason = f"exit status {process.returncode}: {last[:200]}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            reason = f"took more than {left:.0f} s"
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(f"== {' '.join(words)}\n{output}== {reason or 'done'}\n")
        return output if keep or not reason else None, reason

    def measured(self, words, parse, limit=40):
        """The figures in a benchmark's output, of which a failed one may have some; notes why there are none."""
        output, reason = self.command(words, limit, keep=True)
        found = parse(output or "")
        if not found or reason:
            self.table.note(str(words[0]), reason or "no figures")
        return found

    def shown(self, words):
        """The command as text, with TMP for the temporary folder."""
        text = shlex.join(str(word).replace(str(self.work), "TMP") for word in words)
        return text.replace(self.python, "python3")

    def shard(self, name, ids):
        path = self.work / name
        path.write_bytes(array.array("H", ids).tobytes())
        return path

    def train(self, name, T, batch, steps, extra, limit=60):
        """Runs the trainer. Returns (command, output, log); output is None if it failed, after a note."""
        out = self.work / name
        words = ["./train_gpt_tostcu", "--preset", "tost-base", "--dtype", "bf16", "--block-size", T, "--seq", T,
                 "--batch", batch, "--total-batch", batch * T, "--steps", steps, "--val-every", 0, "--sample-every", 0,
                 "--out", out, *extra]
        output, reason = self.command(words, limit)
        if output is None:
            self.table.note(f"trainer, {name}", reason)
        return words, output, parse_log(out / "log.csv")

    # ---- stages ----

    def build(self, requested):
        """Builds everything. Measures TSSA as soon as its benchmark is built, while the rest is being built."""
        capability = output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").split("\n")[0].strip()
        arch = [f"BENCH_ARCH=sm_{capability.replace('.', '')}"] if capability else []
        make = ["make", f"-j{os.cpu_count()}"]
        start = time.monotonic()
        words = [*make, "train_gpt_tost"]   # with the library that the other programs share
        output, reason = self.command(words, 100)
        if output is not None:
            make += ["CUDA=always", *arch]
            words = [*make, "train_gpt_tostcu", "test_tost",
                     *(f"build/cuda/bench_{name}" for name in (*KERNELS, "matmul", "decode"))]
            rest = self.start(words)
            output, reason = self.command([*make, "build/cuda/bench_tssa"], 150)
            if output is None:
                self.table.note("build of bench_tssa", reason)
            elif "tssa" in requested:
                self.kernel("tssa")
            output, reason = self.finish(rest, words, min(250 + start, self.end) - time.monotonic())
        if output is None:
            self.table.note("build", reason)
            return False
        self.table.row("build, s", f"{time.monotonic() - start:.0f}", command=self.shown(words))
        return True

    def tests(self):
        output, reason = self.command(["./test_tost"], 150, keep=True)
        counts = re.search(r"^test_tost: (\d+ passed, \d+ failed, \d+ skipped)$", output or "", re.M)
        if not counts:
            failed = re.findall(r"^FAILED (.*)$", output or "", re.M)
            self.table.note("tests", f"{reason or 'no summary line'}; failed before that: {failed[:1] or 'none'}")
            return
        parity = "" if "\nCUDA: " in f"\n{output}" else "without "
        self.table.row("tests", counts[1], f"{parity or 'including '}CUDA against CPU", "0 failed", "./test_tost")

    def sanitizers(self):
        if not shutil.which("compute-sanitizer"):
            self.table.note("compute-sanitizer", "not found")
            return
        every = "--vocab-size 257 --steps 2 --val-every 0 --sample-every 0 --save-every 0".split()
        small = {"ragged": "--layers 1 --heads 3 --channels 60 --bias 1 --block-size 70 --seq 37 --batch 3 "
                           "--total-batch 222",
                 "whole tiles": "--layers 2 --heads 3 --channels 192 --block-size 80 --seq 80 --batch 3 "
                                "--total-batch 480 --recompute"}
        shard = self.shard("small.bin", (i * 7919 % 257 for i in range(2000)))
        filters = sanitizer_filters(output_of("compute-sanitizer", "--help"))
        for tool in ("memcheck", "racecheck", "synccheck"):
            for dtype, shape in (("bf16", "whole tiles"), ("fp32", "ragged"), ("bf16", "ragged")):
                name = f"{tool}, {dtype}, {shape}"
                words = ["compute-sanitizer", "--tool", tool, *filters, "./train_gpt_tostcu", *small[shape].split(),
                         *every, "--dtype", dtype, "--data", shard, "--out", self.work / re.sub(r"\W+", "_", name)]
                output, reason = self.command(words, 40, keep=True)
                errors, kernels = parse_sanitizer(output or "")
                if errors is None:
                    self.table.note(name, reason or "no summary")
                else:
                    self.table.row(f"compute-sanitizer {name}, errors", str(errors),
                                   f"in {', '.join(kernels)}" if kernels else "", "0", self.shown(words))

    def kernels(self):
        for name in KERNELS:
            self.kernel(name)

    def kernel(self, name):
        words = [f"build/cuda/bench_{name}"]
        for kernel, size, us, rate, copy, times in self.measured(words, parse_kernels):
            target = {"tssa_forward": "1.5 ×", "tssa_backward": "2 ×"}.get(kernel, "")
            self.table.row(f"{kernel}, {size}: µs", f"{us:.1f}",
                           f"{rate:.0f} GB/s, copy {copy:.0f} GB/s: {times:.2f} × the minimal time", target, words[0])
            shape = re.fullmatch(r"bf16 B (\d+) T (\d+) C 768", size)
            if kernel.startswith("tssa_") and shape:
                self.tssa_us[int(shape[2])] = self.tssa_us.get(int(shape[2]), 0) + us

    def matmuls(self):
        words = ["build/cuda/bench_matmul"]
        for name, size, us, rate in self.measured(words, lambda text: parse_rates(text, "TFLOP/s")):
            self.table.row(f"{name}, {size}: ms", f"{us / 1e3:.2f}", f"{rate:.0f} TFLOP/s", "", words[0])
            if name == "step_matmuls":
                self.matmul_ms = us / 1e3
            if name == "square_matmul":
                self.square = rate

    def utilization(self, tflops):
        """Text: the model's FLOP rate in TFLOP/s, and its shares of the peak rate and of a measured product's rate."""
        parts = [f"{tflops:.0f} TFLOP/s"]
        if self.compute:
            _, peak, source = self.compute
            parts.append(f"MFU {100 * tflops / peak:.1f}% of {peak:.4g} TFLOP/s ({source})")
        if self.square:
            parts.append(f"{100 * tflops / self.square:.0f}% of the square product")
        return ", ".join(parts)

    def trainer(self):
        draw = random.Random(1)   # ids that follow Zipf's law
        ids = [int(VOCAB ** draw.random()) - 1 for _ in range(1 << 20)]
        data = ["--data", self.shard("random.bin", (ids * (TOKENS * STEPS // len(ids) + 2))[:TOKENS * STEPS + 1])]
        for T in LENGTHS:
            words, output, log = self.train(f"T = {T}", T, TOKENS // T, STEPS, [*data, "--save-every", 0])
            counted = [ms for step, _, ms in log if step >= WARM_STEPS]
            if output and counted:
                self.trainer_row(T, statistics.median(counted), words, output)

    def trainer_row(self, T, ms, words, output):
        rate, first = TOKENS / ms * 1e3, LENGTHS[0]
        memory = re.search(r", (\S+ \S+) of memory", output)
        parts = [f"{ms:.2f} ms per step", f"{memory[1]} of memory" if memory else ""]
        self.compute = parse_compute(output)
        if self.compute:
            parts.append(self.utilization(rate * self.compute[0] * 1e-12))
        if self.matmul_ms:
            parts.append(f"{ms / self.matmul_ms:.2f} × its matrix products alone (target 1.3)")
        if T in self.tssa_us:
            parts.append(f"TSSA {100 * 12 * self.tssa_us[T] / 1e3 / ms:.0f}%")
        if T != first and first in self.rates:
            parts.append(f"{rate / self.rates[first]:.3f} of T = {first}")
        target = {1024: "650,000", 65536: "0.9 of T = 1,024"}.get(T, "")
        self.table.row(f"trainer, T = {T}, tokens/s", f"{rate:,.0f}", ", ".join(filter(None, parts)), target,
                       self.shown(words))
        self.rates[T] = rate

    def decode(self):
        words, base = ["build/cuda/bench_decode"], {}
        for _, size, us, rate in self.measured(words, lambda text: parse_rates(text, "tokens/s")):
            batch = size.rsplit(" position ", 1)[0]
            base.setdefault(batch, rate)
            self.table.row(f"decode, {size}, tokens/s", f"{rate:,.0f}",
                           f"{us:.0f} µs per step, {rate / base[batch]:.3f} of the first position's rate",
                           "0.97" if batch.endswith(" B 1") and size.endswith(" 1000") else "", words[0])

    def curve(self):
        """The loss curves of the trainer and of PyTorch, from the same start on the same data."""
        data = ["--data", "data/starter/starter_train_*.bin", "--warmup", 30]
        start, ours, torch = (self.work / name for name in ("start", "ours", "torch"))
        if self.train("start", 1024, 8, 0, data)[1] is None:
            return
        words, output, log = self.train("ours", 1024, 8, CURVE_STEPS, [*data, "--init", start])
        if output is None:
            return
        theirs = [self.python, "dev/reference/train.py", "--init", start, "--like", ours, "--out", torch, "--quiet",
                  "--device", "cuda", "--dtype", "bf16"]
        _, reason = self.command(theirs, 150)
        pairs = [(abs(a - b), step, a, b) for (step, a, _), (_, b, _) in zip(log, parse_log(torch / "log.csv"))]
        if reason:
            self.table.note("loss against PyTorch", f"after {len(pairs)} of {CURVE_STEPS} steps: {reason}")
        if pairs:
            worst, step, _, _ = max(pairs, key=lambda pair: pair[0] if pair[0] == pair[0] else float("inf"))
            self.table.row(f"loss of {len(pairs)} steps against PyTorch, largest difference", f"{worst:.4f}",
                           f"at step {step}; last losses {pairs[-1][2]:.4f} and {pairs[-1][3]:.4f}",
                           "0.02 at each of 300 steps", f"{self.shown(words)} && {self.shown(theirs)}")

    def peers(self, lengths):
        for T in lengths:
            for model in ("tost", "gpt2"):
                self.peer(model, T)

    def peer(self, model, T):
        words = [self.python, "dev/bench/gpu_peers.py", model, "--seq", T, "--tokens", TOKENS]
        output, reason = self.command(words, 110)
        found = {m[1]: float(m[2]) for m in re.finditer(r"^(\w+) ([-+]?(?:[.\d]\S*|inf|nan)) \S+$", output or "", re.M)}
        if "tokens_per_s" not in found:
            why = re.search(r"^skipped: (.*)$", output or "", re.M)
            self.table.note(f"PyTorch {model} at T = {T}", why[1] if why else reason or "no figures")
            return
        parts = [f"{found['step']:.2f} ms per step", f"{found.get('memory', 0):.1f} GiB",
                 self.utilization(found["model_flops"])]
        if T in self.rates:
            parts.append(f"the trainer is {self.rates[T] / found['tokens_per_s']:.2f} × as fast")
        self.table.row(f"PyTorch {model}, compiled, T = {T}, tokens/s", f"{found['tokens_per_s']:,.0f}",
                       ", ".join(parts), "trainer 2 ×" if (model, T) == ("tost", 1024) else "", self.shown(words))

    def peers_short(self):
        self.peers(LENGTHS[:1])

    def peers_long(self):   # the longest first, in case time runs out
        self.peers([LENGTHS[-1], *LENGTHS[1:-1]])

    def all(self, requested):
        """Runs the build and the requested stages. Returns False if the build fails."""
        if not self.build(requested):
            return False
        torch = bool(requested & NEED_TORCH) and self.command([self.python, "-c", "import torch, safetensors"], 60)[0]
        for stage in (name for name in STAGES if name in requested and name != "tssa"):
            if self.end - time.monotonic() < 5:
                self.table.note(stage, "no time left")
            elif stage in NEED_TORCH and torch is None:
                self.table.note(stage, f"{self.python} lacks torch or safetensors; set PYTHON to a Python with both")
            else:
                getattr(self, stage)()
        return True


def output_of(*words):
    """The command's output, or an empty string if it fails."""
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def facts_of_machine():
    """Returns (facts for the head of the table, None), or (None, reason) if nothing can be measured."""
    gpus = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").splitlines()
    if not gpus:
        return None, "no GPU found by nvidia-smi"
    release = re.search(r"release (\S+),", output_of("nvcc", "--version"))
    if not release:
        return None, "nvcc not found: install the CUDA toolkit or add its bin folder to PATH"
    name, driver, memory = (field.strip() for field in gpus[0].split(","))
    commit = output_of("git", "rev-parse", "--short", "HEAD") or "unknown"
    changed = " with changes" if output_of("git", "status", "--porcelain", "--untracked-files=no") else ""
    today = str(datetime.date.today())
    return {"title": f"{name}, {today}", "device": f"{name}, {memory}", "driver": driver, "CUDA": release[1],
            "commit": commit + changed, "date": today, "command": " ".join(["dev/bench/gpu.py", *sys.argv[1:]])}, None


def main():
    parser = argparse.ArgumentParser(description=__doc__.format(stages=", ".join(STAGES)),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", default=ROOT / "dev/bench/results",
                        help="folder of the table (default dev/bench/results)")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS",
                        help="time limit of the whole run (default 600)")
    parser.add_argument("--stages", type=lambda text: set(text.split(",")), default=set(STAGES), metavar="NAME,…",
                        help="stages to run (default: all)")
    args = parser.parse_args()
    if args.stages - set(STAGES):
        parser.error(f"--stages {','.join(sorted(args.stages - set(STAGES)))}: the stages are {', '.join(STAGES)}")
    os.environ["PATH"] += f":{TOOLKIT}/bin:{TOOLKIT}/compute-sanitizer"
    facts, reason = facts_of_machine()
    if facts is None:
        print(f"gpu.py: {reason}", file=sys.stderr)
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", facts["device"].split(",")[0].lower()).strip("-")
    table = Table(facts, free_path(args.out, f"{facts['date']}-{name}"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as work:
        run = Run(table, args.limit, Path(work))
        try:
            ok = run.all(args.stages)
        finally:
            run.stop()
    if not ok:
        print(f"gpu.py: the build failed; {table.path} has what was measured before", file=sys.stderr)
        return 1
    print(f"\n{table.text()}\nwrote {table.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
