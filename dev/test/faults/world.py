"""world.py: shared by all suites: a small model on generated text, launches of the program with faults, and checks."""

import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import compare
import journal

MODEL = ("--layers 1 --heads 2 --channels 16 --block-size 32 --vocab-size 257 --batch 2 --total-batch 128 --warmup 2 "
         "--lr 0.3").split()   # high: the best validation loss is not the last one
DATA = ["--data", "../tiny_train_*.bin", "--tokenizer", "../vocab.bpe", "--order", "shuffled"]
OUT = ["--out", "run"]
RUN = MODEL + DATA + OUT + ["--val-windows", "4", "--sample-tokens", "8"]
TOKENIZE = ["tokenize", "--tokenizer", "../vocab.bpe", "--val-frac", "0.2", "--seed", "4"]   # see --lr
MADE = [*TOKENIZE, "--shard-tokens", "9000", "--out", "made/x", "../text.txt"]   # two shards and one for validation
EVAL = ["eval", "--model", "run", "--data", "../tiny_val_*.bin", "--tokenizer", "../vocab.bpe", "--json", "out.json"]
CHECKPOINT_FILES = ("model.safetensors", "optimizer.safetensors")


class Report:
    """Counts checks, prints failed and skipped ones, what each suite did, and a closing line."""

    SHOWN = 40   # failed checks to print per suite

    def __init__(self, program="torture"):
        self.program, self.passed, self.failed, self.skipped = program, 0, 0, 0

    def suite(self, name, run):
        """Runs a suite. An exception counts as a failed check, and the other suites still run."""
        self.name, self.figures, self.shown = name, [], 0
        began, passed = time.monotonic(), self.passed
        try:
            run()
        except Exception:
            self.check(False, traceback.format_exc())
        print(f"{name}: {self.passed - passed} checks in {time.monotonic() - began:.1f} s; {'; '.join(self.figures)}",
              flush=True)

    def check(self, ok, text):
        self.passed += bool(ok)
        self.failed += not ok
        self.shown += not ok
        if not ok and self.shown <= self.SHOWN:
            print(f"FAILED {self.program}: {self.name}: {text}", flush=True)
        return bool(ok)

    def skip(self, text):
        self.skipped += 1
        print(f"skipped {self.program}: {self.name}: {text}", flush=True)

    def figure(self, text):
        self.figures.append(text)

    def close(self):
        print(f"{self.program}: {self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        return 1 if self.failed or self.passed + self.skipped == 0 else 0


@dataclasses.dataclass
class Result:
    status: int       # negative: killed by that signal
    out: str
    err: str
    journal: list = ()

    def killed(self):
        return self.status == -signal.SIGKILL

    def fault(self):
        """The first call that was made to fail, as (call, path)."""
        return next(((r.other, r.path) for r in self.journal if r.name == "fault"), ("none", ""))

    def calls(self):
        """The number of calls that faults.c counted."""
        return next((r.call for r in self.journal if r.name == "end"), 0)

    def summary(self):
        return f"status {self.status}: {self.err.strip()[-400:]!r} {self.out[-200:]!r}"


class Case:
    """A folder for one run. It is the program's working directory, so that all runs print the same paths."""

    def __init__(self, world, name, tree=None, threads=1):
        self.world, self.dir, self.threads = world, os.path.join(world.root, name), threads
        os.makedirs(self.dir)
        for path, data in sorted((tree or {}).items()):   # a folder comes before its files
            if data is None:
                os.makedirs(self.path(path))
            else:
                pathlib.Path(self.path(path)).write_bytes(data)

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def remove(self):
        shutil.rmtree(self.dir)

    def launch(self, args, at=0, do="", only="", after=None, number=signal.SIGKILL):
        """Runs the program with a fault at its call `at`, counted among those with `only` in their path, or with a
        signal `after` some seconds."""
        pathlib.Path(self.world.journal).unlink(missing_ok=True)
        env = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "OMP_WAIT_POLICY": "passive",
               "LD_PRELOAD": self.world.faults, "TORTURE_JOURNAL": self.world.journal,
               "TORTURE_AT": str(at), "TORTURE_DO": do, "TORTURE_ONLY": only}
        process = subprocess.Popen([self.world.binary, *args], cwd=self.dir, env=env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        if after is not None:
            time.sleep(after)
            process.send_signal(number)
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += "(timeout)"
        records = journal.read(self.world.journal) if os.path.exists(self.world.journal) else []
        return Result(process.returncode, out, err, records)

    def resume(self, fresh, **how):
        """Resumes the run if it has a complete checkpoint, else starts it again with the options `fresh`."""
        return self.launch(["--resume", *OUT] if self.complete() else [*fresh, "--overwrite"], **how)

    def check_resume(self, report, what, fresh, reference, older=None):
        """Resumes the run, which must succeed and equal the reference run (see check_same)."""
        last = self.resume(fresh)
        report.check(last.status == 0, f"{what}: the resume: {last.summary()}")
        self.check_same(report, what, reference, "is finished" not in last.out if older is None else older)

    def tree(self, below="run"):
        """{path: bytes, or None for a folder}"""
        top = pathlib.Path(self.path(below))
        return {str(path.relative_to(self.dir)): None if path.is_dir() else path.read_bytes()
                for path in ([top, *top.rglob("*")] if top.is_dir() else [])}

    def complete(self, run="run"):
        """Steps of the complete checkpoints, by file names."""
        steps = [re.fullmatch(r"step_(\d+)", n) for n in self.names(run)]
        return sorted(int(m[1]) for m in steps if m and all(os.path.isfile(self.path(run, m[0], f))
                                                            for f in CHECKPOINT_FILES))

    def names(self, run):
        return os.listdir(self.path(run)) if os.path.isdir(self.path(run)) else []

    def unfinished(self):
        return any(n.endswith(".tmp") for n in self.names("run"))

    def check_checkpoints(self, report, what, least, sample=True):
        """The newest complete checkpoint must be of step `least` or later; info must select it and open the older ones;
        sample must work."""
        steps = self.complete()
        newest = steps[-1] if steps else 0
        report.check(newest >= least, f"{what}: the checkpoint of step {least} was saved, but the newest is {newest}")
        if not steps:
            return
        info = self.launch(["info", "run"])
        report.check(info.status == 0 and re.search(rf"^trained +{newest} ", info.out, re.M),
                     f"{what}: info does not open step {newest}: {info.summary()}")
        for step in steps[:-1]:
            older = self.launch(["info", f"run/step_{step:08d}"])
            report.check(older.status == 0, f"{what}: info does not open step {step}: {older.summary()}")
        if sample:
            text = self.launch(["sample", "--model", "run", "--tokens", "5", "--prompt", "1 and 2 make "])
            report.check(text.status == 0 and text.out.startswith("1 and 2 make "), f"{what}: sample: {text.summary()}")

    def check_same(self, report, what, reference, older=True):
        """The run's folder must equal that of the reference run (see compare.py)."""
        wrong = compare.differences(self.tree(), reference, older)
        return report.check(not wrong, f"{what}: differs from the reference run: {', '.join(wrong)[:300]}")


def saved(records, run="run"):
    """The step of the last checkpoint that must survive a power failure: renamed, then the run's folder synced."""
    renamed = published = 0
    for r in records:
        m = re.fullmatch(rf"{run}/step_(\d+)", r.other) if r.name in ("rename", "exchange") else None
        if m:
            renamed = int(m[1])
        elif r.name == "fsync" and r.path == run:
            published = renamed
    return published


def in_save(record):
    """True if the call is part of a save: a call on a checkpoint, or a sync."""
    return "/step_" in record.path or "/step_" in record.other or record.name.endswith("-fsync")


def sums(documents):
    lines = ("".join(f"{i} and {j} make {i + j}. " for j in range(6)) for i in range(documents))
    return "".join(line + "\n<|endoftext|>\n" for line in lines)


class World:
    def __init__(self, binary, faults, root):
        self.binary, self.faults, self.root = os.path.abspath(binary), os.path.abspath(faults), root
        os.makedirs(root, exist_ok=True)
        self.journal = os.path.join(root, "journal")
        self.cases = 0
        pathlib.Path(root, "vocab.bpe").touch()
        pathlib.Path(root, "text.txt").write_text(sums(120))
        made = self.case().launch([*TOKENIZE, "--shard-tokens", "3000", "--out", "../tiny", "../text.txt"])
        if made.status != 0:
            raise SystemExit(f"cannot make the shards: {made.summary()}")

    def case(self, tree=None, threads=1):
        self.cases += 1
        return Case(self, f"case_{self.cases}", tree, threads)

    def reference(self, args, threads=1):
        """The reference run, without faults: its folder, and what the program said and did."""
        case = self.case(threads=threads)
        result = case.launch(args)
        if result.status != 0:
            raise RuntimeError(f"the run without faults fails: {result.summary()}")
        tree = case.tree()
        case.remove()
        return tree, result
