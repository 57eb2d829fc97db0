"""world.py: shared by all suites: a small model on generated text, launches of the program with faults, and checks."""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import time

import journal

MODEL = ("--layers 1 --heads 2 --channels 16 --block-size 32 --vocab-size 257 --batch 2 --total-batch 128 --warmup 2 "
         "--lr 0.3").split()   # high: the best validation loss is not the last one
DATA = ["--data", "../tiny_train_*.bin", "--tokenizer", "../vocab.bpe", "--order", "shuffled"]
RUN = MODEL + DATA + ["--val-batches", "2", "--sample-tokens", "8"]
OUT = ["--out", "run"]
CHECKPOINT_FILES = ("model.safetensors", "optimizer.safetensors")


class Report:
    """Counts checks by suite, prints failed and skipped checks, and finally a table and a closing line."""

    SHOWN = 40   # failed checks to print per suite

    def __init__(self, program="torture"):
        self.program, self.rows = program, []

    def begin(self, name):
        self.row = {"name": name, "passed": 0, "failed": 0, "skipped": 0, "began": time.monotonic(), "figures": []}
        self.rows.append(self.row)
        print(f"== {name}", flush=True)

    def end(self):
        self.row["seconds"] = time.monotonic() - self.row["began"]

    def check(self, ok, text):
        self.row["passed" if ok else "failed"] += 1
        if not ok and self.row["failed"] <= self.SHOWN:
            print(f"FAILED {self.program}: {self.row['name']}: {text}", flush=True)
        return bool(ok)

    def skip(self, text):
        self.row["skipped"] += 1
        print(f"skipped {self.program}: {self.row['name']}: {text}", flush=True)

    def figure(self, text):
        self.row["figures"].append(text)

    def close(self):
        print(f"\n{'suite':<10} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>8}  figures")
        for r in self.rows:
            print(f"{r['name']:<10} {r['passed']:>6} {r['failed']:>6} {r['skipped']:>7} {r['seconds']:>8.1f}  "
                  + "; ".join(r["figures"]))
        passed, failed, skipped = (sum(r[k] for r in self.rows) for k in ("passed", "failed", "skipped"))
        print(f"{self.program}: {passed} passed, {failed} failed, {skipped} skipped", flush=True)
        return 1 if failed or passed == 0 else 0


@dataclasses.dataclass
class Result:
    status: int       # negative: killed by that signal
    out: str
    err: str
    journal: list

    def killed(self):
        return self.status == -signal.SIGKILL

    def fault(self):
        """The first call that was made to fail, as (call, path), or None."""
        return next(((r.other, r.path) for r in self.journal if r.name == "fault"), None)

    def last(self):
        return self.journal[-1] if self.journal else None

    def calls(self):
        """The number of calls that faults.c counted."""
        return next((r.call for r in self.journal if r.name == "end"), 0)

    def summary(self):
        return f"status {self.status}: {self.err.strip()[:300]!r}"


class Case:
    """A folder for one run. It is the program's working directory, so that all runs print the same paths."""

    def __init__(self, world, name, tree=None, threads=1):
        self.world, self.dir, self.threads = world, os.path.join(world.root, name), threads
        os.makedirs(self.dir)
        for path, data in sorted((tree or {}).items()):
            if data is None:
                os.makedirs(self.path(path), exist_ok=True)
            else:
                os.makedirs(os.path.dirname(self.path(path)), exist_ok=True)
                with open(self.path(path), "wb") as f:
                    f.write(data)

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def remove(self):
        shutil.rmtree(self.dir)

    def start(self, args, at=0, do="", only="", stdout=subprocess.PIPE, plain=False, more=None):
        """Starts the program with a fault. plain: without faults.c; more: environment variables"""
        if os.path.exists(self.world.journal):
            os.remove(self.world.journal)
        env = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "OMP_WAIT_POLICY": "passive", **(more or {})}
        if not plain:
            env.update(LD_PRELOAD=self.world.faults, TORTURE_JOURNAL=self.world.journal)
        if at:
            env.update(TORTURE_AT=str(at), TORTURE_DO=do, **({"TORTURE_ONLY": only} if only else {}))
        return subprocess.Popen([self.world.binary, *args], cwd=self.dir, env=env,
                                stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True,
                                errors="replace")

    def finish(self, process, timeout=120):
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += "(timeout)"
        records = journal.read(self.world.journal) if os.path.exists(self.world.journal) else []
        return Result(process.returncode, out or "", err, records)

    def launch(self, args, at=0, do="", only="", kill_after=None):
        process = self.start(args, at, do, only)
        if kill_after is not None:
            time.sleep(kill_after)
            process.kill()
        return self.finish(process)

    def resume(self, fresh, **how):
        """Resumes the run if it has a complete checkpoint, else starts it again with the options `fresh`."""
        return self.launch(["--resume", *OUT] if self.complete() else [*fresh, *OUT, "--overwrite"], **how)

    def check_resume(self, report, what, fresh, reference, older=None):
        """Resumes the run, which must succeed and equal the reference run (see check_same)."""
        last = self.resume(fresh)
        report.check(last.status == 0, f"{what}: the resume: {last.summary()}")
        self.check_same(report, what, reference, "is finished" not in last.out if older is None else older)

    def tree(self, below="run"):
        out = {}
        if os.path.isdir(self.path(below)):
            out[below] = None
        for folder, names, files in os.walk(self.path(below)):
            place = os.path.relpath(folder, self.dir)
            out.update({os.path.join(place, n): None for n in names})
            for n in files:
                with open(os.path.join(folder, n), "rb") as f:
                    out[os.path.join(place, n)] = f.read()
        return out

    def complete(self, run="run"):
        """Steps of the complete checkpoints, by file names."""
        if not os.path.isdir(self.path(run)):
            return []
        names = os.listdir(self.path(run))
        steps = [re.fullmatch(r"step_(\d+)\.new", n) for n in names]   # replaces the others
        if not any(steps):
            steps = [re.fullmatch(r"step_(\d+)", n) for n in names]
        return sorted(int(m[1]) for m in steps if m and all(os.path.isfile(self.path(run, m[0], f))
                                                            for f in CHECKPOINT_FILES))

    def unfinished(self, run="run"):
        return os.path.isdir(self.path(run)) and any(n.endswith(".tmp") for n in os.listdir(self.path(run)))

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
        for step in steps[:-1]:   # of a run that is not being replaced
            older = self.launch(["info", f"run/step_{step:08d}"])
            report.check(older.status == 0, f"{what}: info does not open step {step}: {older.summary()}")
        if sample:
            text = self.launch(["sample", "--model", "run", "--tokens", "5", "--prompt", "1 and 2 make "])
            report.check(text.status == 0 and text.out.startswith("1 and 2 make "), f"{what}: sample: {text.summary()}")

    def check_same(self, report, what, reference, older=True):
        """The run's folder must equal that of the reference run, except for the times in the log. older=False: compares
        only the last checkpoint, because a finished run that is resumed saves nothing and removes no old checkpoint,
        and a stopped run has saved other steps."""
        mine, other = comparable(self.tree(), older), comparable(reference, older)
        both = mine.keys() & other.keys()
        wrong = [f"{n} is missing" for n in sorted(other.keys() - both)]
        wrong += [f"{n} is extra" for n in sorted(mine.keys() - both)]
        wrong += [f"{n} differs" for n in sorted(both) if mine[n] != other[n]]
        return report.check(not wrong, f"{what}: differs from the reference run: {', '.join(wrong)[:300]}")


def log_without_times(log):
    """Rows of log.csv without the columns of times."""
    rows = [line.split(",") for line in log.decode().splitlines()]
    keep = [i for i, name in enumerate(rows[0]) if name not in ("ms", "tokens_per_s")] if rows else []
    return [[row[i] for i in keep] if len(row) == len(rows[0]) else row for row in rows]


def comparable(tree, older):
    """The files that check_same compares: the log without times, and not run.lock, which a killed process leaves."""
    last = max((path for path in tree if re.fullmatch(r"run/step_\d+", path)), default="")
    return {path: log_without_times(data) if path == "run/log.csv" else data for path, data in tree.items()
            if path != "run/run.lock" and (older or not path.startswith("run/step_") or path.startswith(last))}


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
        with open(os.path.join(root, "vocab.bpe"), "w"):
            pass
        with open(os.path.join(root, "text.txt"), "w") as f:
            f.write(sums(120))
        self.tokenize = ["tokenize", "--tokenizer", "../vocab.bpe", "--val-frac", "0.2", "--shard-tokens", "3000"]
        case = self.case()
        made = case.launch([*self.tokenize, "--out", "../tiny", "../text.txt"])
        if made.status != 0:
            raise SystemExit(f"cannot make the shards: {made.summary()}")

    def case(self, tree=None, threads=1):
        self.cases += 1
        return Case(self, f"case_{self.cases}", tree, threads)

    def reference(self, args, threads=1):
        """The reference run, without faults: its folder and its journal."""
        case = self.case(threads=threads)
        result = case.launch([*args, *OUT])
        if result.status != 0:
            raise SystemExit(f"the run without faults fails: {result.summary()}")
        tree = case.tree()
        case.remove()
        return tree, result.journal
