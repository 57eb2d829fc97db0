"""disks.py: power failures, failing calls, full disks: the last checkpoint must survive, one line on stderr must name
file and reason, and the resumed run must equal a run without faults."""

import dataclasses
import errno
import itertools
import os
import random
import re

import journal
import world

SHORT = [*world.RUN, "--steps", "6", "--val-every", "3", "--sample-every", "4", "--save-every", "2", "--keep", "1"]


# ---- Power failures --------------------------------------------------------------------------------------------------

def lose_power(w, report, what, args, start, reference, every, rng):
    """What a power failure after each call of a launch may leave, each different folder once. The launch starts with
    the folder `start`. The run that continues must equal the reference. Returns the number of folders."""
    case, seen, count = w.case(start), set(), 0
    ran = case.launch(args)
    report.check(ran.status == 0, f"{what}: {ran.summary()}")
    disk = journal.Disk(start)
    for done, record in enumerate(ran.journal, 1):
        disk.apply(record)
        least = max(newest(start), world.saved(ran.journal[:done]))
        for loss, left in disk.after_power_failure(rng):
            folder = hash((least, *sorted(left.items())))
            if folder in seen or seen.add(folder) or len(seen) % every:
                continue
            count += 1
            after, here = w.case(left), f"{what}, power failure after call {done}: {loss}"
            after.check_checkpoints(report, here, least, sample=count % 8 == 0)
            after.check_resume(report, here, SHORT, reference)
            after.remove()
    report.check(disk.tree() == case.tree(), f"{what}: replaying the journal does not give what is on disk")
    case.remove()
    return count


def newest(tree):
    return max([int(m[1]) for m in (re.fullmatch(r"run/step_(\d+)", p) for p in tree) if m], default=0)


def killed_in_save(w):
    """A run killed during its second save, with log rows after its checkpoint and an unfinished folder."""
    for at in itertools.count(1):
        case = w.case()
        case.launch(SHORT, at=at, do="half")
        tree, found = case.tree(), case.complete() == [2] and case.unfinished()
        case.remove()
        if found:
            return tree


def power(w, report, every, seed):
    rng = random.Random(f"power {seed}")
    reference, _ = w.reference(SHORT)
    count = lose_power(w, report, "a new run", SHORT, {}, reference, every, rng)
    count += lose_power(w, report, "a resumed run", ["--resume", *world.OUT], killed_in_save(w), reference, every, rng)
    report.figure(f"{count} folders that a power failure may leave, each resumed")


# ---- Calls that fail -------------------------------------------------------------------------------------------------

# (value of TORTURE_DO, errno or None if the call may succeed)
FAULTS = [*((f"fail:{e}", e) for e in (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.ESTALE, errno.EINTR)),
          ("short", None), (f"fill:{errno.ENOSPC}", errno.ENOSPC), (f"stay:{errno.EIO}", errno.EIO),
          (f"stay:{errno.EROFS}", errno.EROFS)]
REMAINS = "could not be removed"   # a warning about an old checkpoint
WARNING = re.compile(f"{REMAINS}|; training continues, and later steps try again$|log.csv: rows from step")


@dataclasses.dataclass
class Job:
    """A launch to be repeated with a fault at each of its calls."""
    name: str
    args: list           # of the program
    start: dict          # the initial folder
    attempt: object      # attempt(Trial): checks what follows one fault
    reference: dict = None   # the folder without faults


@dataclasses.dataclass
class Trial:
    w: world.World
    report: world.Report
    job: Job
    at: int
    do: str
    errno: int    # None: the call may succeed

    def __post_init__(self):
        self.case = self.w.case(self.job.start)
        self.result = self.case.launch(self.job.args, at=self.at, do=self.do)
        self.fault = self.result.fault()
        self.what = f"{self.job.name}, {self.do} at call {self.at}, {' '.join(self.fault)}"

    def check(self, ok, text):
        return self.report.check(ok, f"{self.what}: {text}")

    def may_succeed(self):
        """True if the program may succeed: the failed call is repeated (a rename by other means) or was not needed (a
        folder that exists), the data is already safe (close after sync), or the failure is harmless (the note in the
        lock file; device.txt; an old checkpoint that cannot be removed, which gives a warning)."""
        call, path = self.fault
        once = not self.do.startswith(("stay", "fill"))
        if path.endswith("run.lock") and call != "open":
            return once or call in ("unlink", "close")
        made = {*self.job.start, *(r.path for r in self.result.journal if r.name == "mkdir")}
        again = (call == "mkdir" and path in made) or (call == "rename" and "/step_" in path)
        if once and re.search(r"run(/(log\.csv|device\.txt|step_.*))?$", path):
            return True
        if self.fault == ("fsync", "run/log.csv"):
            return True   # a run goes on and writes it later; the last sync is not needed
        if self.job.name == "tokenize" and call == "rmdir" and path.endswith(".tmp"):
            return True   # the shards are complete; the next tokenize uses the folder again
        return self.errno in (None, errno.EINTR) or call == "close" or (once and again) or self.old_remains()

    def old_remains(self):
        refused = any(r.name == "fault" and ".tmp" in r.path for r in self.result.journal)
        return refused and REMAINS in self.result.err

    def check_failure(self):
        """Checks for status 0 if may_succeed, else for status 1 and one line with file (or folder) and reason. The
        header of eval and warnings may precede it. Returns True if the program failed."""
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
        lines = [x for x in err.splitlines() if not heading.match(x) and not WARNING.search(x)]
        self.check(len(lines) == 1, f"expected one line on stderr: {err!r}")
        self.check(any(n in err for n in names), f"{path} is not named: {err!r}")
        self.check(lines and os.strerror(self.errno) in lines[-1], f"{os.strerror(self.errno)!r} is missing: {err!r}")
        return True


def fail_run(t):
    """The checkpoints must open after a failure, and the resumed run must equal the reference run."""
    if t.check_failure():
        least = max(newest(t.job.start), world.saved(t.result.journal))
        t.case.check_checkpoints(t.report, t.what, least, sample=t.at % 16 == 0)
        t.case.check_resume(t.report, t.what, SHORT, t.job.reference)
    else:
        t.case.check_same(t.report, t.what, t.job.reference, older=not t.old_remains())


def fail_tokenize(t):
    """tokenize must write all shards or none. The folder of a writer may remain if it cannot be removed."""
    removing = t.do.startswith("stay") or (t.fault[0] in ("unlink", "rmdir", "close") and ".tmp" in t.fault[1])
    left = sorted(n for n in t.case.tree("made") if not (removing and re.search(r"\.tmp(/run\.lock)?$", n)))
    if not t.check_failure():
        whole = ["made", "made/x_train_000000.bin", "made/x_train_000001.bin", "made/x_val_000000.bin",
                 "made/x_vocab.bpe"]
        t.check(left == whole, f"not all shards: {left}")
    elif not t.do.startswith("stay"):
        t.check(left in ([], ["made"]), f"files are left: {left}")


OLD_JSON = b'{\n  "content": "eval"\n}\n'


def fail_json(t):
    """eval --json must leave the old results or the complete new ones, and no other file."""
    after = t.case.tree(".")
    text = after.get("out.json", b"")
    t.check(text.endswith(b"}\n"), f"incomplete results: {text[-40:]!r}")
    if t.check_failure() and not t.do.startswith("stay"):
        t.check("out.json.tmp" not in after, "out.json.tmp is left")


def fail_all(w, report, job, share, rng):
    """A trial for every call of the launch and every kind of fault, or for a random sample: 1 of `share`."""
    case = w.case(job.start)
    ran = case.launch(job.args)
    case.remove()
    report.check(ran.status == 0 and ran.calls() > 0, f"{job.name} without a fault: {ran.summary()}")
    pairs = [(at, *fault) for fault in FAULTS for at in range(1, ran.calls() + 1)]
    pairs = rng.sample(pairs, -(-len(pairs) // share))
    for at, do, e in pairs:
        trial = Trial(w, report, job, at, do, e)
        job.attempt(trial)
        trial.check(trial.fault[0] != "none", "no call failed")
        trial.case.remove()
    report.figure(f"{job.name} {len(pairs)} (of {ran.calls()} calls)")


def faults(w, report, every, seed):
    rng = random.Random(f"fault {seed}")
    reference, _ = w.reference(SHORT)
    jobs = [
        Job("new", SHORT, {}, fail_run, reference),
        Job("resumed", ["--resume", *world.OUT], killed_in_save(w), fail_run, reference),
        Job("tokenize", world.MADE, {}, fail_tokenize),
        Job("eval --json", world.EVAL, {**reference, "out.json": OLD_JSON}, fail_json),
    ]
    for job in jobs:
        fail_all(w, report, job, every, rng)
