"""disks.py: the power goes, calls fail, the disk fills, a folder becomes read-only: the last checkpoint stands, the
line on stderr says which file and why, and the run goes on to the straight run's bytes."""

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
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT)


# ---------------------------------------------------------------------------------------------
# The power goes

def discipline(report, records):
    """Each save in the order that a power loss cannot break: bytes, folder, name, run folder, and only then removal."""
    synced, dirty, folder_synced, pending = set(), set(), False, None
    log_dirty = saves = 0
    for r in records:
        here = r.path
        if here.endswith("log.csv"):
            log_dirty = r.name == "write" or (log_dirty and r.name != "fsync")
        elif r.name == "mkdir" and here.endswith(".tmp"):
            report.check(not log_dirty, f"{here} is begun before log.csv is synced")
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
            report.check(whole, f"{r.other} is named before all of it is synced")
            pending, saves = r.other, saves + 1
        elif r.name == "fsync" and here == "run":
            pending = None
        elif r.name in ("rename", "unlink", "rmdir"):
            report.check(pending is None, f"{here} goes before the name {pending} is synced")
    return saves


def lost_trees(tree, records, rng):
    """(number of calls done, what lasts, step that must last) for each call and each kind of loss; each tree once."""
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


def lose_power(w, report, what, args, start, straight, every, rng):
    """The power goes after each call of a launch that begins on the folder `start`. How many folders were resumed."""
    case = w.case(start)
    ran = case.launch([*args, *world.OUT])
    report.check(ran.status == 0, f"{what}: {ran.words()}")
    same = journal_is_whole(start, ran.journal, case.tree())
    report.check(same, f"{what}: the journal does not make what is on disk")
    floor = case_floor(start)
    case.remove()
    count = 0
    for n, (done, kind, left, least) in enumerate(lost_trees(start, ran.journal, rng)):
        if n % every:
            continue
        count += 1
        here = f"{what}, power lost after call {done} ({kind})"
        case = w.case(left)
        case.stands(report, here, max(floor, least), sample=count % 8 == 0)
        last = case.go_on(SHORT)
        report.check(last.status == 0, f"{here}: the resume: {last.words()}")
        case.ends_as(report, here, straight, older="is finished" not in last.out)
        case.remove()
    return count


def case_floor(tree):
    return max([int(m[1]) for m in (re.fullmatch(r"run/step_(\d+)", p) for p in tree) if m], default=0)


def journal_is_whole(start, records, end):
    disk = journal.Disk(start)
    for r in records:
        disk.apply(r)
    return disk.tree() == end


def half_done(w):
    """A run that was killed inside its second save: log rows beyond its checkpoint, and an unfinished folder."""
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


def power(w, report, every, seed):
    report.begin("power")
    rng = random.Random(f"power {seed}")
    straight, records = w.straight(SHORT)
    saves = discipline(report, records)
    report.check(saves == 3, f"3 saves wanted, the journal shows {saves}")
    count = lose_power(w, report, "a new run", SHORT, {}, straight, every, rng)
    count += lose_power(w, report, "a resumed run", ["--resume"], half_done(w), straight, every, rng)
    report.figure(f"order of syncs in {saves} saves; {count} different folders that a loss may leave, each resumed")
    report.end()


# ---------------------------------------------------------------------------------------------
# Calls that fail

def kinds():
    """(what faults.c is told, errno or None where all may go well)"""
    for e in ERRORS:
        yield f"fail:{e}", e
    yield f"fail:{errno.EINTR}", errno.EINTR
    yield "short", None
    yield f"fill:{errno.ENOSPC}", errno.ENOSPC
    yield f"stay:{errno.EIO}", errno.EIO
    yield f"stay:{errno.EROFS}", errno.EROFS


@dataclasses.dataclass
class Job:
    """A launch that is repeated with a fault at each of its calls."""
    name: str
    args: list           # of the program
    start: dict          # the folder it begins on
    attempt: object      # attempt(Trial): what must hold after one fault
    fresh: list = None   # the options of the run, and the folder that it must end as
    straight: dict = None


@dataclasses.dataclass
class Trial:
    w: world.World
    report: world.Report
    job: Job
    at: int
    do: str
    errno: int    # None: all may go well

    def launch(self):
        self.case = self.w.case(self.job.start)
        self.result = self.case.launch(self.job.args, at=self.at, do=self.do)
        self.fault = self.result.fault() or ("none", "")
        self.what = f"{self.job.name}, {self.do} at call {self.at}, {' '.join(self.fault)}"
        return self.result

    def check(self, ok, text):
        return self.report.check(ok, f"{self.what}: {text}")

    def harmless(self):
        """Whether all may end well: what failed once is done again (a name is given in another way, if not in the
        first) or was done before (a folder made); or what it is about is safe by then (a file closed after its sync)
        or of no weight (the note in the lock, an old checkpoint that stays, which is said)."""
        call, path = self.fault
        once = not self.do.startswith(("stay", "fill"))
        if path.endswith("run.lock") and call != "open":
            return once or call in ("unlink", "close")
        made = {*self.job.start, *(r.path for r in self.result.journal if r.name == "mkdir")}
        again = (call == "mkdir" and path in made) or (call == "rename" and "/step_" in path)
        return self.errno in (None, errno.EINTR) or call == "close" or (once and again) or self.kept_old()

    def kept_old(self):
        refused = any(r.name == "fault" and ".old.tmp" in r.path for r in self.result.journal)
        return refused and self.stays in self.result.err

    stays = "is saved, but what it replaces could not be removed"

    def fails_well(self):
        """Not noticed where that is harmless, else status 1 and one line that names file (or folder) and reason; eval's
        heading and words of an old checkpoint that stays may come before it. Whether it failed."""
        if self.result.status == 0:
            self.check(self.harmless(), "not noticed")
            return False
        self.check(self.result.status == 1, f"status 1 wanted: {self.result.words()}")
        if self.errno is None:
            return True
        path, err = self.fault[1], self.result.err
        names = {os.path.basename(path), os.path.basename(os.path.dirname(path)), path.removesuffix(".tmp")} - {""}
        heading = re.compile(r".*, step \d+; shards: \d+; windows: ")
        lines = [x for x in err.splitlines() if not heading.match(x) and self.stays not in x]
        self.check(len(lines) == 1, f"one line on stderr wanted: {err!r}")
        self.check(any(n in err for n in names), f"{path} is not named: {err!r}")
        self.check(lines and os.strerror(self.errno) in lines[-1], f"{os.strerror(self.errno)!r} is not said: {err!r}")
        return True

    def goes_on_well(self):
        """What stands after a failure opens, and the run goes on to the straight one's end."""
        least = max(case_floor(self.job.start), world.saved(self.result.journal))
        self.case.stands(self.report, self.what, least, sample=self.at % 16 == 0)
        last = self.case.go_on(self.job.fresh)
        self.check(last.status == 0, f"the resume: {last.words()}")
        self.case.ends_as(self.report, self.what, self.job.straight, older="is finished" not in last.out)


def fail_and_stop(t):
    """--on-save-error stop, the default."""
    t.launch()
    if t.fails_well():
        t.goes_on_well()
    else:
        t.case.ends_as(t.report, t.what, t.job.straight, older=not t.kept_old())


def fail_and_continue(t):
    """--on-save-error continue: once the run has begun, what fails is said, and it trains on to its last update; if
    that is saved all is well, else it is resumed from what could be saved."""
    t.launch()
    said = [line for line in t.result.err.splitlines() if "training goes on" in line]
    if t.result.status == 0:
        t.check(said or t.harmless(), "not said")
        t.check(all(t.errno is None or os.strerror(t.errno) in line for line in said), f"no reason in {said}")
        t.case.ends_as(t.report, t.what, t.job.straight, older=not t.kept_old())
        return
    t.check(t.result.status == 1, f"status 1 wanted: {t.result.words()}")
    t.check("\nstep 6/" in t.result.out or "\nstep 1/" not in t.result.out, f"it did not train on: {t.result.words()}")
    t.goes_on_well()


def fail_tokenize(t):
    """All shards or none."""
    t.launch()
    left = sorted(t.case.tree("made"))
    if not t.fails_well():
        whole = ["made", "made/x_train_000000.bin", "made/x_train_000001.bin", "made/x_val_000000.bin"]
        t.check(left == whole, f"not all shards: {left}")
    elif not t.do.startswith("stay"):
        t.check(left in ([], ["made"]), f"files are left: {left}")


OLD_FIGURES = b"figures of before\n"


def fail_json(t):
    """The figures of before, or all of the new ones, and nothing beside them."""
    t.launch()
    after = t.case.tree(".")
    text = after.get("./out.json", b"")
    if not t.fails_well():
        t.check(text.endswith(b"}\n"), f"half of the figures: {text[-40:]!r}")
        return
    t.check(text == OLD_FIGURES, "the old figures are gone")
    if not t.do.startswith("stay"):
        t.check("./out.json.tmp" not in after, "out.json.tmp is left")


def fail_all(w, report, job, share, rng):
    """A trial for every call that the launch makes and every kind of fault, or for a share of them."""
    case = w.case(job.start)
    ran = case.launch(job.args)
    case.remove()
    report.check(ran.status == 0 and ran.calls() > 0, f"{job.name} without a fault: {ran.words()}")
    pairs = [(at, do, e) for do, e in kinds() for at in range(1, ran.calls() + 1)]
    for at, do, e in rng.sample(pairs, -(-len(pairs) // share)):
        trial = Trial(w, report, job, at, do, e)
        job.attempt(trial)
        trial.check(trial.fault[0] != "none", "no call failed")
        trial.case.remove()
    report.figure(f"{job.name} {-(-len(pairs) // share)} (of {ran.calls()} calls)")


def faults(w, report, every, seed):
    report.begin("fault")
    rng = random.Random(f"fault {seed}")
    straight, _ = w.straight(SHORT)
    patient = [*SHORT, "--on-save-error", "continue"]
    jobs = [
        Job("stop", [*SHORT, *world.OUT], {}, fail_and_stop, SHORT, straight),
        Job("resumed", ["--resume", *world.OUT], half_done(w), fail_and_stop, SHORT, straight),
        Job("continue", [*patient, *world.OUT], {}, fail_and_continue, patient, w.straight(patient)[0]),
        Job("tokenize", ["tokenize", "--tokenizer", "../vocab.bpe", "--val-frac", "0.2", "--shard-tokens", "9000",
                         "--out", "made/x", "../text.txt"], {}, fail_tokenize),
        Job("eval --json", ["eval", "--model", "run", "--data", "../tiny_val_*.bin", "--tokenizer", "../vocab.bpe",
                            "--json", "out.json"], {**straight, "out.json": OLD_FIGURES}, fail_json),
    ]
    for job in jobs:
        fail_all(w, report, job, every, rng)
    report.end()


# ---------------------------------------------------------------------------------------------
# A disk that fills, a folder that becomes read-only

KEEP_ALL = [*SHORT[:-2], "--keep", "0"]


def one_line(err, why, file):
    return len(err.splitlines()) == 1 and os.strerror(why) in err and file in err


@contextlib.contextmanager
def small_disk(where, size):
    """A tmpfs of `size` bytes at `where`; None where it cannot be mounted. It is unmounted whatever happens."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", where], capture_output=True)
    if made.returncode != 0:
        yield None
        return
    try:
        yield where
    finally:
        if subprocess.run(["umount", where], capture_output=True).returncode != 0:
            subprocess.run(["umount", "-l", where], capture_output=True)


def fills(w, report, straight, size):
    """A run in a disk that holds some of its checkpoints but not all; then the disk grows."""
    case = w.case()
    os.mkdir(case.path("run"))
    what = f"a disk of {size >> 10} KiB"
    with small_disk(case.path("run"), size) as disk:
        if not disk:
            report.skip("a disk that fills: a tmpfs cannot be mounted here (it takes root)")
            return False
        result = case.launch([*KEEP_ALL, *world.OUT])
        report.check(result.status == 1, f"{what}: status 1 wanted: {result.words()}")
        report.check(one_line(result.err, errno.ENOSPC, "run/"),
                     f"{what}: one line wanted that names file and reason: {result.err!r}")
        case.stands(report, what, world.saved(result.journal), sample=True)
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        last = case.go_on(KEEP_ALL)
        report.check(last.status == 0, f"{what}: the resume: {last.words()}")
        case.ends_as(report, what, straight)
    case.remove()
    return True


def turns_read_only(w, report):
    """The folder becomes read-only between two saves, while the program holds files in it open: a mount of itself is
    laid over it."""
    straight, records = w.straight(KEEP_ALL)
    rows = [r.call for r in records if r.name == "write" and r.path == "run/log.csv"]
    case, what = w.case(), "a folder that becomes read-only"
    run = case.path("run")
    process = case.start([*KEEP_ALL, *world.OUT], at=rows[3], do=f"signal:{int(signal.SIGSTOP)}")
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)   # at the row of update 3
    laid = subprocess.run(["mount", "--bind", run, run], capture_output=True, text=True)
    try:
        locked = subprocess.run(["mount", "-o", "remount,bind,ro", run], capture_output=True, text=True)
        process.send_signal(signal.SIGCONT)
        result = case.finish(process)
    finally:
        if laid.returncode == 0:
            subprocess.run(["umount", run], check=True)
    if laid.returncode or locked.returncode:
        report.skip(f"{what}: {(laid.stderr or locked.stderr).strip()} (it takes root)")
        return
    report.check(result.status == 1, f"{what}: status 1 wanted: {result.words()}")
    report.check(one_line(result.err, errno.EROFS, "run/step_00000004"),
                 f"{what}: one line that names file and reason: {result.err!r}")
    case.stands(report, what, 2)
    last = case.launch(["--resume", *world.OUT])
    report.check(last.status == 0, f"{what}: the resume: {last.words()}")
    case.ends_as(report, what, straight)
    case.remove()


def full(w, report):
    report.begin("full")
    if not shutil.which("mount"):
        report.skip("a disk that fills, a folder that becomes read-only: no mount is installed")
        return report.end()
    straight, _ = w.straight(KEEP_ALL)
    tried = [size for size in range(64 << 10, 288 << 10, 16 << 10) if fills(w, report, straight, size)]
    turns_read_only(w, report)
    report.figure(f"tmpfs of {len(tried)} sizes, each full at another place" if tried else "no tmpfs could be mounted")
    report.end()
