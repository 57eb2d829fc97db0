"""disks.py: power failures, failing calls, full disks: the last checkpoint must
survive, one line on stderr must name file and reason, and the resumed run must equal a run without faults."""

import contextlib
import dataclasses
import errno
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess

import journal
import world

SHORT = [*world.RUN, "--steps", "6", "--val-every", "3", "--sample-every", "4", "--save-every", "2", "--keep", "1"]
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.ESTALE)


# ---------------------------------------------------------------------------------------------
# Power failures

def check_save_order(report, records):
    """Checks the order of calls in each save: sync the files, sync the folder, rename it, sync the run's folder, then
    remove old checkpoints."""
    synced, dirty, folder_synced, pending = set(), set(), False, None
    log_dirty = saves = 0
    for r in records:
        here = r.path
        if here.endswith("log.csv"):
            log_dirty = r.name == "write" or (log_dirty and r.name != "fsync")
        elif r.name == "mkdir" and here.endswith(".tmp"):
            report.check(not log_dirty, f"{here} is started before log.csv is synced")
            synced, dirty, folder_synced = set(), set(), False
        elif r.name in ("write", "new") and "/step_" in here:
            dirty.add(here)
            synced.discard(here)
        elif r.name == "fsync" and "/step_" in here:
            synced.add(here)
            dirty.discard(here)
            folder_synced = here.endswith(".tmp") and not dirty
        elif r.name in ("rename", "exchange") and re.fullmatch(r"run/step_\d+", r.other):
            whole = not dirty and len(synced) == 3 and folder_synced
            report.check(whole, f"{r.other} is renamed before all of it is synced")
            pending, saves = r.other, saves + 1
        elif r.name == "fsync" and here == "run":
            pending = None
        elif r.name in ("rename", "unlink", "rmdir"):
            report.check(pending is None, f"{here} is removed before the name {pending} is synced")
    return saves


def lost_trees(tree, records, rng):
    """(calls completed, kind of loss, surviving tree, step that must survive) after each call; each tree once."""
    disk, seen = journal.Disk(tree), set()
    for done in range(len(records) + 1):
        if done:
            disk.apply(records[done - 1])
        least = world.saved(records[:done])
        for kind, left in (("strict", disk.strict()), ("names", disk.names_only()), ("zeros", disk.zeros()),
                           ("torn", disk.torn(rng))):
            digest = hashlib.sha256(repr((least, sorted(left.items()))).encode()).digest()
            if digest not in seen:
                seen.add(digest)
                yield done, kind, left, least


def lose_power(w, report, what, args, start, reference, every, rng):
    """Simulates a power failure after each call of a launch that starts with the folder `start`, and resumes. Returns
    the number of resumed folders."""
    case = w.case(start)
    ran = case.launch([*args, *world.OUT])
    report.check(ran.status == 0, f"{what}: {ran.summary()}")
    same = journal_is_whole(start, ran.journal, case.tree())
    report.check(same, f"{what}: replaying the journal does not give what is on disk")
    floor = case_floor(start)
    case.remove()
    count = 0
    for n, (done, kind, left, least) in enumerate(lost_trees(start, ran.journal, rng)):
        if n % every:
            continue
        count += 1
        here = f"{what}, power failure after call {done} ({kind})"
        case = w.case(left)
        case.check_checkpoints(report, here, max(floor, least), sample=count % 8 == 0)
        case.check_resume(report, here, SHORT, reference)
        case.remove()
    return count


def case_floor(tree):
    return max([int(m[1]) for m in (re.fullmatch(r"run/step_(\d+)", p) for p in tree) if m], default=0)


def journal_is_whole(start, records, end):
    disk = journal.Disk(start)
    for r in records:
        disk.apply(r)
    return disk.tree() == end


def killed_in_save(w):
    """A run killed during its second save, with log rows after its checkpoint and an unfinished folder."""
    case = w.case()
    at = 1
    while not (case.complete() == [2] and case.unfinished()):
        case.remove()
        case = w.case()
        at += 1
        case.launch([*SHORT, *world.OUT], at=at, do="half")
    tree = case.tree()
    case.remove()
    return tree


def lose_power_overwriting(w, report, old, new, every, rng):
    """Simulates a power failure after each call of a run with --overwrite. The folder must resume to the old run or to
    the new one. Returns the number of resumed folders."""
    case = w.case(old)
    ran = case.launch([*SHORT, *world.OUT, "--overwrite"])
    report.check(ran.status == 0, f"--overwrite: {ran.summary()}")
    case.check_same(report, "--overwrite", new)
    case.remove()
    count = 0
    for n, (done, kind, left, _) in enumerate(lost_trees(old, ran.journal, rng)):
        if n % every:
            continue
        count += 1
        case, what = w.case(left), f"--overwrite, power failure after call {done} ({kind})"
        report.check(case.complete(), f"{what}: no complete checkpoint")
        resumed = case.launch(["--resume", *world.OUT])
        report.check(resumed.status == 0, f"{what}: the resume: {resumed.summary()}")
        mine = {path: data for path, data in world.comparable(case.tree(), False).items()
                if path != "run/log.csv.new" and ".tmp" not in path}
        report.check(mine in (world.comparable(old, False), world.comparable(new, False)),
                     f"{what}: neither the old run nor the new one: {sorted(mine)}")
        case.remove()
    return count


def power(w, report, every, seed):
    rng = random.Random(f"power {seed}")
    reference, records = w.reference(SHORT)
    saves = check_save_order(report, records)
    report.check(saves == 3, f"expected 3 saves, the journal shows {saves}")
    count = lose_power(w, report, "a new run", SHORT, {}, reference, every, rng)
    count += lose_power(w, report, "a resumed run", ["--resume"], killed_in_save(w), reference, every, rng)
    old, _ = w.reference([*SHORT, "--seed", "5"])
    count += lose_power_overwriting(w, report, old, reference, every, rng)
    report.figure(f"order of syncs in {saves} saves; {count} folders that a power failure may leave, each resumed")


# ---------------------------------------------------------------------------------------------
# Calls that fail

def fault_kinds():
    """(value of TORTURE_DO, errno or None if the call may succeed)"""
    for e in ERRORS:
        yield f"fail:{e}", e
    yield f"fail:{errno.EINTR}", errno.EINTR
    yield "short", None
    yield f"fill:{errno.ENOSPC}", errno.ENOSPC
    yield f"stay:{errno.EIO}", errno.EIO
    yield f"stay:{errno.EROFS}", errno.EROFS


@dataclasses.dataclass
class Job:
    """A launch to be repeated with a fault at each of its calls."""
    name: str
    args: list           # of the program
    start: dict          # the initial folder
    attempt: object      # attempt(Trial): checks what follows one fault
    fresh: list = None   # options of the run, and the folder without faults
    reference: dict = None


@dataclasses.dataclass
class Trial:
    w: world.World
    report: world.Report
    job: Job
    at: int
    do: str
    errno: int    # None: the call may succeed

    def launch(self):
        self.case = self.w.case(self.job.start)
        self.result = self.case.launch(self.job.args, at=self.at, do=self.do)
        self.fault = self.result.fault() or ("none", "")
        self.what = f"{self.job.name}, {self.do} at call {self.at}, {' '.join(self.fault)}"
        return self.result

    def check(self, ok, text):
        return self.report.check(ok, f"{self.what}: {text}")

    def may_succeed(self):
        """True if the program may succeed: the failed call is repeated (a rename by other means) or was not needed (a
        folder that exists), the data is already safe (close after sync), or the failure is harmless (the note in the
        lock file; an old checkpoint that cannot be removed, which gives a warning)."""
        call, path = self.fault
        once = not self.do.startswith(("stay", "fill"))
        if path.endswith("run.lock") and call != "open":
            return once or call in ("unlink", "close")
        made = {*self.job.start, *(r.path for r in self.result.journal if r.name == "mkdir")}
        again = (call == "mkdir" and path in made) or (call == "rename" and "/step_" in path)
        if self.job.name == "tokenize" and call == "rmdir" and path.endswith(".tmp"):
            return True   # the shards are complete; the next tokenize uses the folder again
        return self.errno in (None, errno.EINTR) or call == "close" or (once and again) or self.old_remains()

    def old_remains(self):
        refused = any(r.name == "fault" and ".old.tmp" in r.path for r in self.result.journal)
        return refused and self.REMAINS in self.result.err

    REMAINS = "could not be removed"

    def check_failure(self):
        """Checks for status 0 if may_succeed, else for status 1 and one line with file (or folder) and reason. The
        header of eval and a warning about an old checkpoint may precede it. Returns True if the program failed."""
        if self.result.status == 0:
            self.check(self.may_succeed(), "status 0 in spite of the fault")
            return False
        self.check(self.result.status == 1, f"expected status 1: {self.result.summary()}")
        if self.errno is None:
            return True
        path, err = self.fault[1], self.result.err
        names = {os.path.basename(path), os.path.basename(os.path.dirname(path)), path.removesuffix(".tmp")} - {""}
        if path.endswith("run.lock"):   # a harmless failure, followed by that of another call below the same folder
            names.add(path.split("/")[0])
        heading = re.compile(r".*, step \d+; shards: \d+; windows: ")
        lines = [x for x in err.splitlines() if not heading.match(x) and self.REMAINS not in x]
        self.check(len(lines) == 1, f"expected one line on stderr: {err!r}")
        self.check(any(n in err for n in names), f"{path} is not named: {err!r}")
        self.check(lines and os.strerror(self.errno) in lines[-1], f"{os.strerror(self.errno)!r} is missing: {err!r}")
        return True

    def check_resume(self):
        """The checkpoints must open after a failure, and the resumed run must equal the reference run."""
        least = max(case_floor(self.job.start), world.saved(self.result.journal))
        self.case.check_checkpoints(self.report, self.what, least, sample=self.at % 16 == 0)
        self.case.check_resume(self.report, self.what, self.job.fresh, self.job.reference)


def fail_and_stop(t):
    """--on-save-error stop, the default."""
    t.launch()
    if t.check_failure():
        t.check_resume()
    else:
        t.case.check_same(t.report, t.what, t.job.reference, older=not t.old_remains())


def fail_and_continue(t):
    """--on-save-error continue: a failure during training gives a warning, and training continues to the last step. The
    run succeeds if the last step is saved; else it is resumed."""
    t.launch()
    warnings = [line for line in t.result.err.splitlines() if "training continues" in line]
    if t.result.status == 0:
        t.check(warnings or t.may_succeed(), "no warning")
        t.check(all(t.errno is None or os.strerror(t.errno) in line for line in warnings), f"no reason in {warnings}")
        t.case.check_same(t.report, t.what, t.job.reference, older=not t.old_remains())
        return
    t.check(t.result.status == 1, f"expected status 1: {t.result.summary()}")
    t.check("\nstep 6/" in t.result.out or "\nstep 1/" not in t.result.out, f"training stopped: {t.result.summary()}")
    t.check_resume()


def fail_tokenize(t):
    """tokenize must write all shards or none. The folder of a writer may remain if it cannot be removed."""
    t.launch()
    removing = t.do.startswith("stay") or (t.fault[0] in ("unlink", "rmdir", "close") and ".tmp" in t.fault[1])
    left = sorted(n for n in t.case.tree("made") if not (removing and re.search(r"\.tmp(/run\.lock)?$", n)))
    if not t.check_failure():
        whole = ["made", "made/x_train_000000.bin", "made/x_train_000001.bin", "made/x_val_000000.bin"]
        t.check(left == whole, f"not all shards: {left}")
    elif not t.do.startswith("stay"):
        t.check(left in ([], ["made"]), f"files are left: {left}")


OLD_JSON = b'{\n  "content": "eval"\n}\n'


def fail_json(t):
    """eval --json must leave the old results or the complete new ones, and no other file."""
    t.launch()
    after = t.case.tree(".")
    text = after.get("./out.json", b"")
    if not t.check_failure():
        t.check(text.endswith(b"}\n"), f"incomplete results: {text[-40:]!r}")
        return
    t.check(text == OLD_JSON, "the old results are lost")
    if not t.do.startswith("stay"):
        t.check("./out.json.tmp" not in after, "out.json.tmp is left")


def fail_all(w, report, job, share, rng):
    """A trial for every call of the launch and every kind of fault, or for a random sample: 1 of `share`."""
    case = w.case(job.start)
    ran = case.launch(job.args)
    case.remove()
    report.check(ran.status == 0 and ran.calls() > 0, f"{job.name} without a fault: {ran.summary()}")
    pairs = [(at, do, e) for do, e in fault_kinds() for at in range(1, ran.calls() + 1)]
    for at, do, e in rng.sample(pairs, -(-len(pairs) // share)):
        trial = Trial(w, report, job, at, do, e)
        job.attempt(trial)
        trial.check(trial.fault[0] != "none", "no call failed")
        trial.case.remove()
    report.figure(f"{job.name} {-(-len(pairs) // share)} (of {ran.calls()} calls)")


def faults(w, report, every, seed):
    rng = random.Random(f"fault {seed}")
    reference, _ = w.reference(SHORT)
    tolerant = [*SHORT, "--on-save-error", "continue"]
    jobs = [
        Job("stop", [*SHORT, *world.OUT], {}, fail_and_stop, SHORT, reference),
        Job("resumed", ["--resume", *world.OUT], killed_in_save(w), fail_and_stop, SHORT, reference),
        Job("continue", [*tolerant, *world.OUT], {}, fail_and_continue, tolerant, w.reference(tolerant)[0]),
        Job("tokenize", ["tokenize", "--tokenizer", "../vocab.bpe", "--val-frac", "0.2", "--shard-tokens", "9000",
                         "--out", "made/x", "../text.txt"], {}, fail_tokenize),
        Job("eval --json", ["eval", "--model", "run", "--data", "../tiny_val_*.bin", "--tokenizer", "../vocab.bpe",
                            "--json", "out.json"], {**reference, "out.json": OLD_JSON}, fail_json),
    ]
    for job in jobs:
        fail_all(w, report, job, every, rng)


# ---------------------------------------------------------------------------------------------
# Full disks

KEEP_ALL = [*SHORT[:-2], "--keep", "0"]


def one_line(err, why, file):
    return len(err.splitlines()) == 1 and os.strerror(why) in err and file in err


@contextlib.contextmanager
def small_disk(where, size):
    """A tmpfs of `size` bytes at `where`, or None if it cannot be mounted. Always unmounted at the end."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", where], capture_output=True)
    if made.returncode != 0:
        yield None
        return
    try:
        yield where
    finally:
        if subprocess.run(["umount", where], capture_output=True).returncode != 0:
            subprocess.run(["umount", "-l", where], capture_output=True)


def fills(w, report, reference, size):
    """A run on a disk with space for some of its checkpoints; then the disk grows and the run is resumed."""
    case = w.case()
    os.mkdir(case.path("run"))
    what = f"a disk of {size >> 10} KiB"
    with small_disk(case.path("run"), size) as disk:
        if not disk:
            report.skip("full disks: a tmpfs cannot be mounted here (needs root)")
            return False
        result = case.launch([*KEEP_ALL, *world.OUT])
        report.check(result.status == 1, f"{what}: expected status 1: {result.summary()}")
        report.check(one_line(result.err, errno.ENOSPC, "run/"),
                     f"{what}: expected one line with file and reason: {result.err!r}")
        case.check_checkpoints(report, what, world.saved(result.journal), sample=True)
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        case.check_resume(report, what, KEEP_ALL, reference, older=True)
    case.remove()
    return True


def full(w, report):
    if not shutil.which("mount"):
        report.skip("full disks: mount is not installed")
        return
    reference, _ = w.reference(KEEP_ALL)
    tried = [size for size in range(64 << 10, 288 << 10, 16 << 10) if fills(w, report, reference, size)]
    report.figure(f"tmpfs of {len(tried)} sizes" if tried else "no tmpfs could be mounted")
