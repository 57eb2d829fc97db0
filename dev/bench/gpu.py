#!/usr/bin/env python3
"""GPU benchmark: builds, tests and measures the CUDA trainer and PyTorch models in one run, and writes a
dated Markdown table.

    dev/bench/gpu.py [--out DIR] [--limit SECONDS] [--stages NAME,…]
                                             default: dev/bench/results, 600 seconds, all stages
    dev/bench/gpu.py --rehearse --out DIR    the same stages on a CPU with toy sizes; the figures are meaningless
    dev/bench/gpu.py --self-test             tests the parsers and the table on made-up outputs

Needs a GPU, the CUDA toolkit and make; uses compute-sanitizer and a Python with PyTorch ($PYTHON, by default
the one that runs this script) if available. Downloads nothing: the data are random tokens and data/starter.
TSSA is measured first, while the other programs are being built. A stage that fails, times out or lacks a tool is
listed in the table, and the other stages still run. The table is saved after each row, with the output of each command
in a .log beside it, so that a run that ends early leaves what it measured. If the time limit is too short for all
stages, split them into several runs with --stages. The stages: {stages}.
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
KERNELS = ("tssa", "norm", "classifier", "adamw")
LENGTHS, TOKENS, VOCAB = (1024, 4096, 16384, 65536), 65536, 50257
# run in this order, all but the first after the build; the least important ones last, in case time runs out
STAGES = ("tssa", "tests", "kernels", "matmuls", "trainer", "decode", "curve", "peers_short", "sanitizers",
          "peers_long")
NEED_TORCH = {"curve", "peers_short", "peers_long"}
TOOLKIT = Path("/usr/local/cuda")   # used if its programs are not on PATH
WARM_STEPS = 5   # of the trainer, not counted


# ---- parsers of program outputs ------------------------------------------------------------------------------------

def parse_counts(text):
    """(passed, failed, skipped) from the last summary line of a test program."""
    found = re.findall(r"^(?:\w+: )?(\d+) passed, (\d+) failed, (\d+) skipped$", text, re.M)
    return tuple(map(int, found[-1])) if found else None


def parse_kernels(text):
    """Lines of dev/cuda's benches: (name, size, µs, GB/s, GB/s of a copy, time / minimal time)."""
    line = re.compile(r"^(\w+) +(\S.*?) +([\d.]+) us +([\d.]+) GB/s +([\d.]+) GB/s copy +([\d.]+) times the "
                      r"minimum$", re.M)
    return [(m[1], m[2], *map(float, m.groups()[2:])) for m in line.finditer(text)]


def parse_rates(text, unit):
    """Lines `name size µs us RATE unit`: (name, size, µs, rate)."""
    line = re.compile(rf"^(\w+) +(\S.*?) +([\d.]+) us +([\d.]+) {unit}$", re.M)
    return [(m[1], m[2], float(m[3]), float(m[4])) for m in line.finditer(text)]


def parse_values(text):
    """The `key value unit` lines of gpu_peers.py as a dict; a string with the reason if it was skipped."""
    skipped = re.search(r"^skipped: (.*)$", text, re.M)
    if skipped:
        return skipped[1]
    return {m[1]: float(m[2]) for m in re.finditer(r"^(\w+) ([-+]?(?:[.\d]\S*|inf|nan)) \S+$", text, re.M)}


def parse_log(text):
    """The columns step, train_loss and ms of a log.csv; an incomplete last row is ignored."""
    rows = [row for row in csv.DictReader(text.splitlines()) if row["tokens_per_s"]]
    return [(int(row["step"]), float(row["train_loss"]), float(row["ms"])) for row in rows]


def parse_compute(text):
    """(FLOPs per token, peak rate in TFLOP/s, source of the peak rate) from the trainer's output, or None."""
    line = re.search(r"^compute +([\d.]+) MFLOP per token; 100% MFU: .*, ([\d.e+-]+) TFLOP/s in \w+ \((.*)\)$", text,
                     re.M)
    return (float(line[1]) * 1e6, float(line[2]), line[3]) if line else None


def utilization(tflops, compute, square):
    """Text: the model's FLOP rate in TFLOP/s, and its shares of the peak rate and of a measured product's rate."""
    parts = [f"{tflops:.0f} TFLOP/s"]
    if compute:
        parts.append(f"MFU {100 * tflops / compute[1]:.1f}% of {compute[1]:.4g} TFLOP/s ({compute[2]})")
    if square:
        parts.append(f"{100 * tflops / square:.0f}% of the square product")
    return ", ".join(parts)


def parse_sanitizer(text):
    """The number of errors in compute-sanitizer's summary (None if there is no summary), and the kernels it names,
    which may belong to cuBLAS."""
    found = re.findall(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", text)
    kernels = sorted(set(re.findall(r"^=+ +(?:at|in kernel|.*\baccess at) (?:void )?([A-Za-z_]\w*)", text, re.M)))
    return sum(int(a or b) for a, b in found) if found else None, kernels


def sanitizer_filters(help_text):
    """Options of compute-sanitizer that check the trainer's kernels, whose names end in _kernel, and not cuBLASLt's."""
    for option in ("--kernel-name", "--kernel-regex", "--filter"):
        if re.search(rf"{option}(?![\w-])", help_text):
            excluded = [f"{option}-exclude", "kns=splitKreduce"] if f"{option}-exclude" in help_text else []
            return [option, "kns=_kernel", *excluded]
    return []


def median_step(log):
    """Median milliseconds per step, without the warm-up."""
    counted = [ms for step, _, ms in log if step >= WARM_STEPS]
    return statistics.median(counted) if counted else None


def curve_difference(ours, theirs, steps):
    """The largest loss difference and its step; None if a log lacks a step."""
    a, b = ({step: loss for step, loss, _ in log} for log in (ours, theirs))
    if not all(step in a and step in b for step in range(steps)):
        return None
    worst = max(range(steps), key=lambda step: abs(a[step] - b[step]) if a[step] == a[step] and b[step] == b[step]
                else float("inf"))
    return abs(a[worst] - b[worst]), worst


# ---- the table ----------------------------------------------------------------------------------------------------

class Table:
    def __init__(self, facts, path=None):
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
        if self.path:
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

class Sizes:
    """Sizes of a run on a GPU, or of a rehearsal on a CPU."""

    def __init__(self, rehearse):
        self.rehearse = rehearse
        self.trainer = "./train_gpt_tost" if rehearse else "./train_gpt_tostcu"
        self.lengths = (32, 64) if rehearse else LENGTHS
        self.tokens = 128 if rehearse else TOKENS
        self.steps = WARM_STEPS + (3 if rehearse else 20)
        self.curve_steps = 4 if rehearse else 300
        self.curve_batch = (2, 64) if rehearse else (8, 1024)
        self.vocab = 2304 if rehearse else VOCAB
        toy = "--layers 2 --heads 2 --channels 32 --vocab-size 2304".split()
        self.model = ["--preset", "tost-base", *(toy if rehearse else [])]
        self.dtype = "fp32" if rehearse else "bf16"
        self.peer = ["--device", "cpu", "--toy", "--eager", "--steps", "2"] if rehearse else []


class Run:
    def __init__(self, sizes, table, limit, work):
        self.sizes, self.table, self.work = sizes, table, work
        self.log = table.path.with_suffix(".log") if table.path else None
        self.end = time.monotonic() + limit
        self.started = []   # processes
        self.python = os.environ.get("PYTHON", sys.executable)
        self.matmul_ms = self.square = None  # ms of a step's matrix products; TFLOP/s of the square product
        self.compute = None                  # result of parse_compute
        capability = output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").split("\n")[0].strip()
        known = re.fullmatch(r"\d+\.\d", capability) and not sizes.rehearse
        self.arch = int(capability.replace(".", "")) if known else 0   # e.g. 90; 0: unknown
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
        try:
            output, _ = process.communicate(timeout=max(left, 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            self.keep_log(words, output, "killed")
            return output if keep else None, f"took more than {left:.0f} s"
        self.keep_log(words, output, f"exit status {process.returncode}")
        if process.returncode != 0:
            lines = [line for line in output.splitlines() if line.strip()]
            last = lines[-1][:200] if lines else "no output"
            return output if keep else None, f"exit status {process.returncode}: {last}"
        return output, None

    def keep_log(self, words, output, end):
        if self.log:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(f"== {' '.join(words)}\n{output}== {end}\n")

    def shown(self, words):
        """The command as text, with TMP for the temporary folder."""
        text = shlex.join(str(word).replace(str(self.work), "TMP") for word in words)
        return text.replace(self.python, "python3")

    def random_shard(self):
        """A uint16 shard of random tokens that follow Zipf's law, for one run of the trainer."""
        path = self.work / "random.bin"
        if not path.exists():
            draw, n = random.Random(1), self.sizes.tokens * self.sizes.steps + 1
            ids = array.array("H", (int(self.sizes.vocab ** draw.random()) - 1 for _ in range(min(n, 1 << 20))))
            path.write_bytes((ids * (n // len(ids) + 1))[:n].tobytes())
        return path

    def train(self, name, T, batch, steps, extra=(), limit=60, dtype=None):
        """Runs the trainer. Returns (command, output, log), or (command, None, reason) if it fails."""
        out = self.work / name
        words = [self.sizes.trainer, *self.sizes.model, "--dtype", dtype or self.sizes.dtype, "--block-size", T,
                 "--seq", T, "--batch", batch, "--total-batch", batch * T, "--steps", steps, "--val-every", 0,
                 "--sample-every", 0, "--out", out, *extra]
        output, reason = self.command(words, limit)
        if output is None:
            return words, None, reason
        log = out / "log.csv"
        return words, output, parse_log(log.read_text()) if log.exists() else []

    # ---- stages ----

    def architecture(self):
        """The make variable for this GPU's architecture. Without a GPU, nvcc's `native` is an old one."""
        return [f"BENCH_ARCH=sm_{self.arch}"] if self.arch else []

    def build(self, requested):
        """Builds everything. Measures TSSA as soon as its benchmark is built, while the rest is being built."""
        make = ["make", f"-j{os.cpu_count()}"]
        start = time.monotonic()
        words = [*make, "train_gpt_tost"]   # with the library that the other programs share
        output, reason = self.command(words, 100)
        if output is not None and not self.sizes.rehearse:
            make += ["CUDA=always", *self.architecture()]
            words = [*make, "train_gpt_tostcu", "test_tost",
                     *(f"build/cuda/bench_{name}" for name in (*KERNELS, "matmul", "decode") if name != "tssa")]
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
        if self.sizes.rehearse:
            return
        output, reason = self.command(["./test_tost"], 150, keep=True)
        counts = parse_counts(output or "")
        if counts is None:
            failed = re.findall(r"^FAILED (.*)$", output or "", re.M)
            until = f"; {len(failed)} checks failed before that{', first ' + failed[0][:200] if failed else ''}"
            self.table.note("tests", (reason or "no summary line") + until)
            return
        parity = any(line.startswith("CUDA: ") for line in output.splitlines())
        self.table.row("tests", "{} passed, {} failed, {} skipped".format(*counts),
                       "including CUDA against CPU" if parity else "without CUDA against CPU", "0 failed",
                       "./test_tost")

    def sanitizers(self):
        if self.sizes.rehearse or not shutil.which("compute-sanitizer"):
            self.table.note("compute-sanitizer", "not found")
            return
        every = "--vocab-size 257 --steps 2 --val-every 0 --sample-every 0 --save-every 0".split()
        small = {"ragged": "--layers 1 --heads 3 --channels 60 --bias 1 --block-size 70 --seq 37 --batch 3 "
                           "--total-batch 222",
                 "whole tiles": "--layers 2 --heads 3 --channels 192 --block-size 80 --seq 80 --batch 3 "
                                "--total-batch 480 --recompute"}
        runs = [("bf16", "whole tiles"), ("fp32", "ragged"), ("bf16", "ragged")]
        ids = array.array("H", (i * 7919 % 257 for i in range(2000)))
        shard = self.work / "small.bin"
        shard.write_bytes(ids.tobytes())
        filters = sanitizer_filters(output_of("compute-sanitizer", "--help"))
        for tool in ("memcheck", "racecheck", "synccheck"):
            for dtype, shape in runs:
                name = f"{tool}, {dtype}, {shape}"
                words = ["compute-sanitizer", "--tool", tool, *filters, self.sizes.trainer, *small[shape].split(),
                         *every, "--dtype", dtype, "--data", shard, "--out", self.work / re.sub(r"\W+", "_", name)]
                output, reason = self.command(words, 40, keep=True)
                errors, kernels = parse_sanitizer(output or "")
                if errors is None:
                    self.table.note(name, reason or "no summary")
                else:
                    self.table.row(f"compute-sanitizer {name}, errors", str(errors),
                                   f"in {', '.join(kernels)}" if kernels else "", "0", self.shown(words))

    def kernels(self):
        for name in KERNELS if not self.sizes.rehearse else ():
            if name != "tssa":
                self.kernel(name)

    def kernel(self, name):
        words = [f"build/cuda/bench_{name}"]
        output, reason = self.command(words, 40, keep=True)
        found = parse_kernels(output or "")
        if not found or reason:
            self.table.note(words[0], reason or "no figures")
        for kernel, size, us, rate, copy, times in found:
            target = {"tssa_forward": "1.5", "tssa_backward": "2"}.get(kernel, "")
            self.table.row(f"{kernel}, {size}: µs", f"{us:.1f}",
                           f"{rate:.0f} GB/s, copy {copy:.0f} GB/s: {times:.2f} × the minimal time",
                           target and f"{target} ×", words[0])
            shape = re.fullmatch(r"bf16 B (\d+) T (\d+) C 768", size)
            if kernel.startswith("tssa_") and shape:
                self.tssa_us[int(shape[2])] = self.tssa_us.get(int(shape[2]), 0) + us

    def matmuls(self):
        words = ["build/cuda/bench_matmul"]
        output, reason = (None, "not in a rehearsal") if self.sizes.rehearse else self.command(words, 40)
        found = parse_rates(output or "", "TFLOP/s")
        if not found:
            self.table.note(words[0], reason or "no figures")
        for name, size, us, rate in found:
            self.table.row(f"{name}, {size}: ms", f"{us / 1e3:.2f}", f"{rate:.0f} TFLOP/s", "", words[0])
            if name == "step_matmuls":
                self.matmul_ms = us / 1e3
            if name == "square_matmul":
                self.square = rate

    def trainer(self):
        for T in self.sizes.lengths:
            self.trainer_row(T, self.sizes.dtype)

    def trainer_row(self, T, dtype):
        first, what = self.sizes.lengths[0], f"trainer, T = {T}"
        words, output, log = self.train(f"train_{T}_{dtype}", T, self.sizes.tokens // T, self.sizes.steps,
                                        ["--data", self.random_shard(), "--save-every", 0], dtype=dtype)
        ms = median_step(log) if output else None
        if ms is None:
            self.table.note(what, log if output is None else "no step in its log")
            return
        rate = self.sizes.tokens / ms * 1e3
        memory = re.search(r", (\S+ \S+) of memory", output)
        parts = [f"{ms:.2f} ms per step", f"{memory[1]} of memory" if memory else ""]
        self.compute = parse_compute(output)
        if self.compute and not self.sizes.rehearse:
            parts.append(utilization(rate * self.compute[0] * 1e-12, self.compute, self.square))
        if self.matmul_ms:
            parts.append(f"{ms / self.matmul_ms:.2f} × its matrix products alone (target 1.3)")
        if T in self.tssa_us:
            parts.append(f"TSSA {100 * 12 * self.tssa_us[T] / 1e3 / ms:.0f}%")
        if T != first and first in self.rates:
            parts.append(f"{rate / self.rates[first]:.3f} of T = {first}")
        target = "650,000" if T == 1024 else "0.9 of T = 1,024" if T == 65536 else ""
        self.table.row(f"{what}, tokens/s", f"{rate:,.0f}", ", ".join(filter(None, parts)), target, self.shown(words))
        self.rates[T] = rate

    def decode(self):
        words = ["build/cuda/bench_decode"]
        output, reason = (None, "not in a rehearsal") if self.sizes.rehearse else self.command(words, 40)
        found = parse_rates(output or "", "tokens/s")
        if not found:
            self.table.note(words[0], reason or "no figures")
        base = {}
        for _, size, us, rate in found:
            batch = size.rsplit(" position ", 1)[0]
            base.setdefault(batch, rate)
            self.table.row(f"decode, {size}, tokens/s", f"{rate:,.0f}",
                           f"{us:.0f} µs per step, {rate / base[batch]:.3f} of the first position's rate",
                           "0.97" if batch.endswith(" B 1") and size.endswith(" 1000") else "", words[0])

    def has_torch(self):
        code = ("import sys, importlib.util as u\n"
                "sys.exit(any(u.find_spec(p) is None for p in ('torch', 'safetensors')))")
        return self.command([self.python, "-c", code], 30)[0] is not None

    def curve(self):
        batch, T = self.sizes.curve_batch
        steps, shards = self.sizes.curve_steps, "data/starter/starter_train_*.bin"
        data = ["--data", shards, "--warmup", min(30, steps // 2)]
        _, _, start = self.train("start", T, batch, 0, data)
        if isinstance(start, str):
            self.table.note("loss against PyTorch", start)
            return
        words, output, ours = self.train("ours", T, batch, steps, [*data, "--init", self.work / "start"], 60)
        if output is None:
            self.table.note("loss against PyTorch", ours)
            return
        device = ["--dtype", "fp32"] if self.sizes.rehearse else ["--device", "cuda", "--dtype", "bf16"]
        theirs = [self.python, "dev/reference/train.py", "--init", self.work / "start", "--like", self.work / "ours",
                  "--out", self.work / "torch", "--quiet", *device]
        output, reason = self.command(theirs, 150)
        log = self.work / "torch" / "log.csv"
        done = parse_log(log.read_text()) if log.exists() else []
        found = curve_difference(ours, done, min(steps, len(done)))
        if found is None or not done:
            self.table.note("loss against PyTorch", reason or "a log is incomplete")
            return
        self.table.row(f"loss of {len(done)} steps against PyTorch, largest difference", f"{found[0]:.4f}",
                       f"at step {found[1]}; last losses {ours[len(done) - 1][1]:.4f} and {done[-1][1]:.4f}",
                       "0.02 at each of 300 steps", f"{self.shown(words)} && {self.shown(theirs)}")
        if output is None:
            self.table.note("loss against PyTorch", f"after {len(done)} of {steps} steps: {reason}")

    def peers(self, lengths):
        for T in lengths:
            for model in ("tost", "gpt2"):
                words = [self.python, "dev/bench/gpu_peers.py", model, "--seq", T, "--tokens", self.sizes.tokens,
                         *self.sizes.peer]
                output, reason = self.command(words, 110)
                found = parse_values(output) if output else reason
                if isinstance(found, str) or "tokens_per_s" not in found:
                    self.table.note(f"PyTorch {model} at T = {T}", found if isinstance(found, str) else "no figures")
                    continue
                parts = [f"{found['step']:.2f} ms per step"]
                if "memory" in found:
                    parts.append(f"{found['memory']:.1f} GiB")
                if not self.sizes.rehearse:
                    parts.append(utilization(found["model_flops"], self.compute, self.square))
                if T in self.rates:
                    parts.append(f"the trainer is {self.rates[T] / found['tokens_per_s']:.2f} × as fast")
                self.table.row(f"PyTorch {model}{'' if '--eager' in words else ', compiled'}, T = {T}, tokens/s",
                               f"{found['tokens_per_s']:,.0f}", ", ".join(parts),
                               "trainer 2 ×" if (model, T) == ("tost", 1024) else "", self.shown(words))

    def peers_short(self):
        self.peers(self.sizes.lengths[:1])

    def peers_long(self):   # the longest first, in case time runs out
        self.peers([self.sizes.lengths[-1], *self.sizes.lengths[1:-1]])

    def all(self, requested):
        """Runs the build and the requested stages. Returns False if the build fails."""
        if not self.build(requested):
            return False
        torch = bool(requested & NEED_TORCH) and self.has_torch()
        for stage in (name for name in STAGES if name in requested and name != "tssa"):
            if self.end - time.monotonic() < 5:
                self.table.note(stage, "no time left")
            elif torch or stage not in NEED_TORCH:
                getattr(self, stage)()
        if not torch and requested & NEED_TORCH:
            self.table.note("PyTorch", f"{self.python} lacks torch or safetensors; set PYTHON to a Python with both")
        return True


def output_of(*words):
    """The command's output, or an empty string if it fails."""
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def gpu_facts():
    """Returns (facts for the head of the table, None), or (None, reason) if nothing can be measured."""
    gpus = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").splitlines()
    if not gpus:
        return None, "no GPU found by nvidia-smi; --rehearse runs on a CPU"
    release = re.search(r"release (\S+),", output_of("nvcc", "--version"))
    if not release:
        return None, "nvcc not found: install the CUDA toolkit or add its bin folder to PATH"
    name, driver, memory = (field.strip() for field in gpus[0].split(","))
    return {"title": f"{name}, {datetime.date.today()}", "device": f"{name}, {memory}", "driver": driver,
            "CUDA": release[1], **common_facts()}, None


def common_facts():
    commit = output_of("git", "rev-parse", "--short", "HEAD") or "unknown"
    changed = " with changes" if output_of("git", "status", "--porcelain", "--untracked-files=no") else ""
    return {"commit": commit + changed, "date": str(datetime.date.today()),
            "command": " ".join(["dev/bench/gpu.py", *sys.argv[1:]])}


# ---- self-test ----------------------------------------------------------------------------------------------

def self_test():
    passed = failed = 0

    def check(what, got, want):
        nonlocal passed, failed
        if got == want:
            passed += 1
        else:
            failed += 1
            print(f"FAILED gpu_bench: {what}: {got!r}, want {want!r}")

    kernels = ("Made up (compute capability 9.0), bf16; copy 4000 GB/s\n"
               "tssa_forward                 bf16 B 64 T 1024 C 768             50.0 us     4000 GB/s"
               "     4000 GB/s copy   1.00 times the minimum\n"
               "grad_norm                    bf16 110.4M parameters            110.5 us     3996 GB/s"
               "     4000 GB/s copy   1.00 times the minimum\n")
    check("kernels", parse_kernels(kernels), [("tssa_forward", "bf16 B 64 T 1024 C 768", 50.0, 4000.0, 4000.0, 1.0),
                                              ("grad_norm", "bf16 110.4M parameters", 110.5, 3996.0, 4000.0, 1.0)])
    classifier = ("cross_entropy_gradient       bf16 rows 10923 V 50304            600.0 us     3663 GB/s"
                  "     4000 GB/s copy   1.09 times the minimum\n")
    check("classifier", parse_kernels(classifier),
          [("cross_entropy_gradient", "bf16 rows 10923 V 50304", 600.0, 3663.0, 4000.0, 1.09)])
    check("no kernels", parse_kernels("no usable GPU: made up\n"), [])
    rates = "step_matmuls                 bf16 65536 rows                  60000.0 us    716.0 TFLOP/s\n"
    check("matmuls", parse_rates(rates, "TFLOP/s"), [("step_matmuls", "bf16 65536 rows", 60000.0, 716.0)])
    decode = "decode                       bf16 B 1 position 1000             400.0 us     2500 tokens/s\n"
    check("decode", parse_rates(decode, "tokens/s"), [("decode", "bf16 B 1 position 1000", 400.0, 2500.0)])
    counts = "x: 1 passed, 0 failed, 0 skipped\ntest_tost: 12 passed, 3 failed, 1 skipped\n"
    check("counts", parse_counts(counts), (12, 3, 1))
    check("no counts", parse_counts("Segmentation fault\n"), None)
    printed = ("compute    651.3 MFLOP per token; 100% MFU: 1.519M tokens/s, 989.4 TFLOP/s in bf16 (data sheet)\n")
    check("compute", parse_compute("tost\n" + printed), (651.3e6, 989.4, "data sheet"))
    check("no compute", parse_compute("compute    651.3 MFLOP per token\n"), None)
    check("utilization", utilization(423.4, parse_compute(printed), 790),
          "423 TFLOP/s, MFU 42.8% of 989.4 TFLOP/s (data sheet), 54% of the square product")
    check("utilization of an unknown peak", utilization(423.4, None, None), "423 TFLOP/s")
    check("memcheck", parse_sanitizer("========= Invalid __global__ read of size 4 bytes\n"
                                      "=========     at void made_up_kernel<float>(float*)+0x10\n"
                                      "========= ERROR SUMMARY: 2 errors\n"), (2, ["made_up_kernel"]))
    check("racecheck", parse_sanitizer(
        "========= Error: Race reported between Write access at void made_up_kernel<float>(float*)+0x10 in x.cu:3\n"
        "=========     and Read access at other_kernel(int)+0x20 in x.cu:4 [16 hazards]\n"
        "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"),
        (1, ["made_up_kernel", "other_kernel"]))
    check("no summary", parse_sanitizer("========= COMPUTE-SANITIZER\n"), (None, []))
    check("filters", sanitizer_filters("  --kernel-name arg  Filters\n  --kernel-name-exclude arg  Filters\n"),
          ["--kernel-name", "kns=_kernel", "--kernel-name-exclude", "kns=splitKreduce"])
    check("filters of older versions", sanitizer_filters("--kernel-regex arg\n--kernel-regex-exclude arg\n"),
          ["--kernel-regex", "kns=_kernel", "--kernel-regex-exclude", "kns=splitKreduce"])
    check("no filters", sanitizer_filters("--tool arg\n--kernel-name-base arg\n"), [])
    check("peer", parse_values("tokens_per_s 1.5e+05 tokens/s\nstep 436.9 ms\n"),
          {"tokens_per_s": 1.5e5, "step": 436.9})
    check("peer without memory", parse_values("skipped: CUDA out of memory\n"), "CUDA out of memory")
    header = "step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s\n"
    log = parse_log(header + "".join(f"{i},{i},{3 - i / 10},,1e-4,1,{1000 if i < WARM_STEPS else 90 + i},1\n"
                                     for i in range(8)))
    check("incomplete log", parse_log(header + "0,1,3.0,,1e-4,1,90,1\n1,2,2.9,,1e"), [(0, 3.0, 90.0)])
    check("median", median_step(log), 96.0)
    check("median of none", median_step(log[:WARM_STEPS]), None)
    other = [(step, loss + (0.5 if step == 3 else 0.01), ms) for step, loss, ms in log]
    worst, where = curve_difference(log, other, 8)
    check("curve", (round(worst, 9), where), (0.5, 3))
    nan = [(step, float("nan") if step == 2 else loss, ms) for step, loss, ms in log]
    check("curve with NaN", curve_difference(log, nan, 8)[1], 2)
    check("curve cut short", curve_difference(log, other[:5], 8), None)
    table = Table({"title": "Made up", "device": "none"})
    table.row("a | b", "1", "two", "3", "make x")
    table.note("stage", "a made-up reason")
    check("table", table.text(), "# Made up\n\n- device: none\n\n"
          "| measurement | value | details of the same run | target | command |\n|---|---|---|---|---|\n"
          "| a \\| b | 1 | two | 3 | `make x` |\n\nNot measured:\n\n- stage: a made-up reason\n")
    with tempfile.TemporaryDirectory() as folder:
        table.path = free_path(Path(folder), "day")
        table.write()
        check("file", table.path.read_text(), table.text())
        check("next file", free_path(Path(folder), "day").name, "day-2.md")
        run = Run(Sizes(True), table, 60, Path(folder))
        slow = ["sh", "-c", "echo so far; sleep 99"]
        check("time limit", run.command(slow, 5), (None, "took more than 5 s"))
        check("output before the limit", run.command(slow, 5, keep=True), ("so far\n", "took more than 5 s"))
        check("no program", run.command(["./no-such-program"], 5)[1], "./no-such-program: No such file or directory")
        check("failing program", run.command([sys.executable, "-c", "print('why'); raise SystemExit(3)"], 20)[1],
              "exit status 3: why")
        check("no time left", Run(Sizes(True), table, 0, Path(folder)).command(["true"], 5)[1], "no time left")
    print(f"gpu_bench: {passed} passed, {failed} failed, 0 skipped")
    return failed != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.format(stages=", ".join(STAGES)),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the table (default dev/bench/results)")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS",
                        help="time limit of the whole run (default 600)")
    parser.add_argument("--stages", type=lambda text: set(text.split(",")), default=set(STAGES), metavar="NAME,…",
                        help="stages to run (default: all)")
    parser.add_argument("--rehearse", action="store_true", help="run on a CPU with toy sizes; needs --out")
    parser.add_argument("--self-test", action="store_true", help="test this script; measures nothing")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    if args.stages - set(STAGES):
        parser.error(f"--stages {','.join(sorted(args.stages - set(STAGES)))}: the stages are {', '.join(STAGES)}")
    if args.rehearse and not args.out:
        parser.error("--rehearse needs --out: its table is not a result")
    os.environ["PATH"] += f":{TOOLKIT}/bin:{TOOLKIT}/compute-sanitizer"
    rehearsal = {"title": "REHEARSAL on a CPU, not a result"}
    facts, reason = ({**rehearsal, **common_facts()}, None) if args.rehearse else gpu_facts()
    if facts is None:
        print(f"gpu.py: {reason}", file=sys.stderr)
        return 1
    folder = args.out or ROOT / "dev/bench/results"
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", facts["title"].lower()).strip("-") if args.rehearse else \
        f"{facts['date']}-{re.sub(r'[^a-z0-9]+', '-', facts['device'].split(',')[0].lower()).strip('-')}"
    table = Table(facts, free_path(folder, name))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as work:
        run = Run(Sizes(args.rehearse), table, args.limit, Path(work))
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
