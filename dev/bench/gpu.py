#!/usr/bin/env python3
"""GPU benchmark: runs the built CUDA programs and PyTorch models in stages, and writes a dated Markdown table.

    dev/bench/gpu.py --short 1          {0}
    dev/bench/gpu.py --short 2          {1}
    dev/bench/gpu.py --stages NAME ...

A program that fails, hangs or is missing, and a missed target, are listed in the table without stopping the others; the
exit status is then 1. The table is saved after each row; a .log beside it has the commands and their output. Downloads
nothing: the data are random tokens and data/starter. tests, racecheck and synccheck need compute-sanitizer, profile
needs ncu, curve and peers a Python with PyTorch and safetensors ($PYTHON, by default the one that runs this script).
dev/bench/README.md says how to build the programs.
"""

import argparse
import array
import csv
import datetime
import itertools
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
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LENGTHS, TOKENS, VOCAB = (1024, 65536, 16384, 4096), 65536, 50257   # the most important length first
BASE, ALL_OPTIONS = (1024, "bf16"), "--conv 4 --memory 1 --optimizer muon"
CASES = [BASE, *((T, "bf16") for T in LENGTHS[1:]), (65536, "bf16", "--memory", 1), (65536, "bf16", "--chunk", 16384),
         (1024, "bf16", "--conv", 4), (1024, "bf16", "--memory", 1), (1024, "bf16", "--optimizer", "muon"),
         (1024, "bf16", *ALL_OPTIONS.split()), (1024, "tf32"), (1024, "fp32")]
STARTER = "data/starter/starter_train_*.bin"
WARM_STEPS, STEPS, CURVE_STEPS = 5, 15, 300   # of the trainer: not counted, all, and of the loss curves


def output_of(command):
    """The command's output, without that of its failures."""
    return subprocess.run(f"timeout 20 {command}", shell=True, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def base(T, batch, steps, data, dtype="bf16"):
    """Options of a run of tost-base."""
    return f"""--preset tost-base --dtype {dtype} --block-size {T} --seq {T} --batch {batch} --total-batch {batch * T}
               --steps {steps} --data {data}""".split()


class Table:
    def __init__(self, facts, folder, name):
        self.facts, self.rows, self.notes, self.lock = facts, [], [], threading.Lock()
        for number in itertools.count(1):
            self.path = folder / f"{name}{f'-{number}' if number > 1 else ''}.md"
            try:
                return self.path.touch(exist_ok=False)
            except FileExistsError:   # of a run that started in the same second
                pass

    def row(self, what, value, details="", target="", met=True):
        self.rows.append((what, str(value), details, target))
        if met:
            self.write()
        else:
            self.note(what, "; ".join(filter(None, (str(value), details, f"target: {target}"))))

    def note(self, what, reason):
        self.notes.append(f"- {what}: {reason}")
        print(f"failed: {what}: {reason}", flush=True)
        self.write()

    def write(self):
        with self.lock:
            lines = [f"# {self.path.stem}", "", *(f"- {key}: {value}" for key, value in self.facts.items()), "",
                     "| measurement | value | details | target |", "|---|---|---|---|"]
            lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
            lines += ["", "Failed or not measured:", "", *self.notes] if self.notes else []
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
            temporary.replace(self.path)


class Run:
    def __init__(self, table, built, work):
        self.table, self.built, self.work = table, built, work
        self.end, self.ran = time.monotonic(), False   # of the stage; whether the trainer ran
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
        words, start = [str(word) for word in words], time.monotonic()
        if self.end - start < 1:
            return "", "no time left"
        print(f"== {shlex.join(words)}", flush=True)
        with tempfile.TemporaryFile(dir=self.work) as file:
            try:   # a new session, so that child processes can be killed with it
                process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file,
                                           stderr=subprocess.STDOUT, start_new_session=True)
                while process.poll() is None and time.monotonic() < min(start + limit, self.end):
                    time.sleep(0.02)
                reason = f"exit status {process.returncode}" if process.poll() else None
            except OSError as error:
                return "", f"{words[0]}: {error.strerror}"
            if process.poll() is None:
                reason = f"stopped after {time.monotonic() - start:.0f} s"
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            file.seek(0)
            output = file.read()
        with self.table.lock, open(self.table.path.with_suffix(".log"), "ab") as log:
            log.write(f"== {shlex.join(words)}\n".encode() + output)
        output = output.decode(errors="replace")
        return output, reason and f"{reason}: {(output.strip().splitlines() or ['no output'])[-1][:200]}"

    def shard(self, name, ids):
        path = self.work / name
        if not path.exists():
            path.write_bytes(array.array("H", ids).tobytes())
        return path

    def trainer(self, name, options, limit=30, prefix=()):
        """Runs the trainer. Returns (output, complete rows of log.csv), after a note if it failed. If the first run
        fails, it is repeated with direct launches, and if these work, all later programs use them."""
        words = [*prefix, self.program("train_gpt_tostcu"), *options, "--val-every=0", "--sample-every=0", "--out"]
        output, reason = self.command([*words, self.work / name], limit)
        if reason and not (self.ran or prefix or "TOST_NO_GRAPHS" in os.environ):
            self.table.note(name, reason)
            shutil.rmtree(self.work / name, ignore_errors=True)
            os.environ["TOST_NO_GRAPHS"] = "1"
            output, reason = self.command([*words, self.work / name], limit)
            if reason:
                del os.environ["TOST_NO_GRAPHS"]
            else:
                self.table.note(name, "ran with TOST_NO_GRAPHS=1; so do all later programs")
        self.ran = True
        rows, steps = self.log_rows(name), int(options[options.index("--steps") + 1])
        warning = re.search("no CUDA graphs.*", output)
        reason = reason or warning and warning[0] or len(rows) < steps and f"{len(rows)} of {steps} steps in log.csv"
        if reason:
            self.table.note(name, reason)
        return output, rows

    def log_rows(self, name):
        path = self.work / name / "log.csv"
        rows = csv.DictReader(path.read_text().splitlines()) if path.exists() else []
        return [row for row in rows if row["tokens_per_s"]]

    # ---- stages ----

    def kernels(self):
        """Rows of the benchmarks of dev/cuda, which print lines `NAME SIZE X us DETAILS`."""
        for name in sorted(file.stem for file in ROOT.glob("dev/cuda/bench_*.cu")):
            output, reason = self.command([self.program(name)], 20)
            found = re.findall(r"^(\w+) +(\S.*?) +([\d.]+) us +(.*)$", output, re.M)
            for kernel, size, us, details in found:
                self.table.row(f"{kernel}, {size}: µs", us, " ".join(details.split()))
            if reason or not found:
                self.table.note(name, reason or "no figures")

    def tests(self):
        """test_tost, and beside it the trainer under memcheck."""
        with ThreadPoolExecutor() as pool:
            memcheck = pool.submit(self.sanitizer, "memcheck")
            self.test_tost()
        memcheck.result()

    def test_tost(self):
        output, reason = self.command([self.program("test_tost")], 165)
        parts = re.findall(r"^CUDA part \d+: (.*)$", output, re.M)
        counts = re.findall(r"^test_tost: (\d+ passed.*)$", output, re.M) or parts[-1:]   # the last ones before the end
        failed = re.findall(r"^FAILED (.*)$", output, re.M)[:10] + ([] if parts else ["no CUDA part ran"])
        self.table.row("tests", counts[0] if counts else "none", "; ".join(failed + [reason] * bool(reason)),
                       "0 failed", bool(parts) and not reason)

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

    def preset(self, preset, *more, steps=4, vocab=VOCAB):
        """A row with the tokens/s of README's command, on other data. Returns them, or None."""
        data = self.shard(f"{preset}.bin", (i * 7919 % vocab for i in range(4 * 491520 + 1)))
        name = " ".join(map(str, ("trainer, --preset", preset, *more)))
        output, rows = self.trainer(name, ["--preset", preset, "--steps", steps, "--data", data, "--save-every", 0,
                                           *more])
        if len(rows) < 2:
            return None
        rate = statistics.median(float(row["tokens_per_s"]) for row in rows[1:])
        self.table.row(f"{name}: tokens/s", f"{rate:,.0f}", *re.findall(r"per step: (.*)$", output, re.M)[:1])
        return rate

    def batches(self):
        rate, one, *_ = [self.preset("tost-base", *more) for more in ((), *(("--batch", n) for n in (1, 20, 60)))]
        self.ratio("README's command against --batch 1", rate, one, 2)

    def ratio(self, name, rate, other, target):
        if rate and other:
            self.table.row(name, f"{rate / other:.2f} ×", "", f"{target} × or more", rate >= target * other)

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
            if reason or not found:
                self.table.note(f"sampling, {samples} texts", reason or "no figures")

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
            output, rows = self.trainer(f"{tool}, {name}", options, 50, prefix.split())
            errors = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", output)
            named = re.findall(r"^=+ +(?:at|in kernel|.*\baccess at) (?:void )?([A-Za-z_]\w*)", output, re.M)
            broken = re.search("Internal Sanitizer Error.*", output)   # its summary counts that as an error
            if broken:
                self.table.note(f"{tool}, {name}", f"compute-sanitizer failed: {broken[0]}")
            elif errors:
                count = sum(map(int, errors))
                self.table.row(f"{tool}, {name}: errors", count, ", ".join(sorted(set(named))), "0", count == 0)
            elif rows:
                self.table.note(f"{tool}, {name}", "no summary of errors")

    def profile(self):
        """Time and bytes of each kernel of one step, without options and with all, as a .csv beside the table."""
        metrics = "gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum"
        data = self.shard("profile.bin", (i * 7919 % VOCAB for i in range(TOKENS + 1)))
        for name, more in (("profile", ""), ("profile, all options", ALL_OPTIONS)):
            output, rows = self.trainer(name, [*base(1024, 64, 1, data), *more.split(), "--save-every", 0], 120,
                                     ["ncu", "--clock-control", "none", "--cache-control", "none", "--csv", "--page",
                                      "raw", "--metrics", metrics])
            lines = [line for line in output.splitlines() if line.startswith('"')]
            if lines:
                path = self.table.path.with_suffix(".options.csv" if more else ".csv")
                path.write_text("\n".join(lines) + "\n", encoding="utf-8")
                self.table.row(f"{name}: kernels of one step", len(lines) - 2, path.name)
            elif rows:
                self.table.note(name, "no kernels")

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
                           "last losses {:.4f} and {:.4f}".format(*pairs[-1]), "0.02 or less", worst <= 0.02)
        if len(pairs) < CURVE_STEPS:
            self.table.note("loss against PyTorch", f"after {len(pairs)} of {CURVE_STEPS} steps: {reason or 'ended'}")

    def peers(self, lengths):
        for T, model in itertools.product(lengths, ("tost", "gpt2")):
            output, reason = self.command([self.python, "dev/bench/peers.py", "compiled_bf16", "--device", "cuda",
                                           "--model", model, "--seq", T, "--tokens", TOKENS, "--runs", 10], 60)
            found = re.findall(r"^compiled_bf16_(\w+) (.*)$", output, re.M)
            if found:
                self.table.row(f"PyTorch {model}, compiled, T = {T}: {found[0][0]}", found[0][1],
                               ", ".join(map(" ".join, found[1:])))
                if (T, model) == (1024, "tost"):
                    rate = float(found[0][1].split()[0])
                    self.ratio("README's command against PyTorch", self.preset("tost-base"), rate, 1.5)
            else:
                self.table.note(f"PyTorch {model}, T = {T}", reason or output.strip()[-200:] or "no figures")

    def repeat(self):
        """Two runs of two steps must give the same weights and moments, which show each bit of the gradients."""
        for more in ("", ALL_OPTIONS):
            names = [f"{run} run of two steps {more}".strip() for run in ("first", "second")]
            for name in names:
                self.trainer(name, [*base(1024, TOKENS // 1024, 2, STARTER), *more.split()])
            one, two = ([file.read_bytes() for file in sorted((self.work / name).glob("step_*/*.safetensors"))]
                        for name in names)
            name = f"the same weights and moments after two steps twice {more}".strip()
            if one and two:
                self.table.row(name, one == two, "", "True", one == two)
            else:
                self.table.note(name, "no checkpoints")


# The seconds of each stage, which can also use those that the stages before it left, and its function
STAGES = {"train": (50, lambda run: run.train([BASE])), "batches": (45, Run.batches), "tests": (165, Run.tests),
          "kernels": (60, Run.kernels), "curve": (60, Run.curve), "repeat": (45, Run.repeat),
          "cases": (95, lambda run: run.train(CASES)), "peers": (90, lambda run: run.peers(LENGTHS[:1])),
          "long_peers": (360, lambda run: run.peers(LENGTHS[1:])),
          "small": (20, lambda run: run.preset("small", steps=STEPS, vocab=4096)), "sampling": (60, Run.sampling),
          "profile": (240, Run.profile), "racecheck": (200, lambda run: run.sanitizer("racecheck")),
          "synccheck": (200, lambda run: run.sanitizer("synccheck"))}
SHORT = ("train", "batches", "tests", "kernels"), ("curve", "repeat", "cases", "peers")


def seconds(stages):
    return sum(STAGES[name][0] for name in stages)


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__.format(
        *(f"at most {seconds(names)} s: {', '.join(names)}" for names in SHORT)))
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--short", type=int, choices=(1, 2), help="the stages of a first try, in two commands")
    group.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), metavar="NAME",
                       help="stages to run, in this order, of (default: all, with their seconds) " +
                       ", ".join(f"{name} {limit}" for name, (limit, _) in STAGES.items()))
    parser.add_argument("--out", type=Path, metavar="DIR", default=ROOT / "dev/bench/results",
                        help="folder of the table (default dev/bench/results)")
    parser.add_argument("--limit", type=float, metavar="SECONDS",
                        help="time limit of the whole run, divided among the stages in proportion (default: their sum)")
    parser.add_argument("--built", type=Path, metavar="DIR", default=ROOT,
                        help="the programs, or the repository in which they were built (default: this one)")
    parser.add_argument("--commit", metavar="NAME",
                        help="commit of the programs, written to the table (default: that of the repository)")
    args = parser.parse_args()
    stages = SHORT[args.short - 1] if args.short else args.stages
    gpus = output_of("nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader").splitlines()
    if not gpus:
        sys.exit("gpu.py: no GPU found by nvidia-smi")
    os.environ["PATH"] += ":/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"
    commit = args.commit or output_of("git describe --always --dirty") or "unknown"
    facts = {"GPU, driver, memory": gpus[0], "commit": commit, "command": shlex.join(sys.argv),
             "TOST_NO_GRAPHS": os.environ.get("TOST_NO_GRAPHS", "not set")}
    name = re.sub(r"[^a-z0-9]+", "-", gpus[0].split(",")[0].lower()).strip("-")
    args.out.mkdir(parents=True, exist_ok=True)
    table = Table(facts, args.out.resolve(), f"{datetime.datetime.now():%Y-%m-%d-%H%M%S}-{name}")
    with tempfile.TemporaryDirectory() as work:
        run = Run(table, args.built.resolve(), Path(work))
        for sign in (signal.SIGTERM, signal.SIGINT):   # ends the program that runs, and starts no other
            signal.signal(sign, lambda *_: setattr(run, "end", float("-inf")))
        incomplete = []
        for stage in stages:
            notes = len(table.notes)
            run.end += STAGES[stage][0] * (args.limit / seconds(stages) if args.limit else 1)
            try:
                STAGES[stage][1](run)
            except Exception as error:   # of output that is not as expected: the other stages still run
                table.note(stage, repr(error))
            incomplete += [stage] if len(table.notes) > notes else []
    if incomplete:
        table.note("to be repeated", f"--stages {' '.join(incomplete)}")
    table.write()
    print(f"\n{table.path.read_text(encoding='utf-8')}\nwrote {table.path}")
    return 1 if incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
