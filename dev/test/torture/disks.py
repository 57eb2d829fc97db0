"""disks.py: the power goes, calls fail, the disk fills, a folder becomes read-only: the last checkpoint stands, the line
on stderr says which file and why, and the run goes on to the straight run's bytes."""

import contextlib
import errno
import hashlib
import os
import random
import re
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
            report.check(not dirty and len(synced) == 3 and folder_synced, f"{r.other} is named before all of it is synced")
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
    report.check(journal_is_whole(start, ran.journal, case.tree()), f"{what}: the journal does not make what is on disk")
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
        case.ends_as(report, here, straight, was_done="is finished" in last.out)
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


def harmless(do, e, call, path, made):
    """Whether a run may end well all the same: what failed once is done again (a name is given in another way, if not in
    the first), was done before (a folder made), or what it is about is safe by then (a file closed after its sync)."""
    once = not do.startswith(("stay", "fill"))
    again = (call == "mkdir" and path in made) or (call == "rename" and "/step_" in path)
    return e in (None, errno.EINTR) or call == "close" or (once and again)


def one_line(report, what, result, e, fault):
    """One line on stderr (eval says more there before it), with the file (or its folder) and the reason in it."""
    path = fault[1]
    names = {os.path.basename(path), os.path.basename(os.path.dirname(path)), path.removesuffix(".tmp")} - {""}
    lines = result.err.splitlines()
    lines = [line for line in lines if not re.match(r".*, on \d+ shards, ", line)]
    report.check(len(lines) == 1, f"{what}: one line on stderr wanted: {result.err!r}")
    report.check(any(n in result.err for n in names), f"{what}: {path} is not named: {result.err!r}")
    report.check(os.strerror(e) in result.err, f"{what}: {os.strerror(e)!r} is not said: {result.err!r}")


def fail_one(w, report, name, args, start, straight, at, do, e):
    """The call number `at` of a training run fails."""
    case = w.case(start)
    result = case.launch(args, at=at, do=do)
    fault = result.fault()
    what = f"{name}, {do} at call {at}, {fault}"
    if fails_well(report, what, result, do, e, fault, start):
        case.stands(report, what, max(case_floor(start), world.saved(result.journal)), sample=at % 16 == 0)
        last = case.go_on(SHORT)
        report.check(last.status == 0, f"{what}: the resume: {last.words()}")
        case.ends_as(report, what, straight, was_done="is finished" in last.out)
    else:
        case.ends_as(report, what, straight)
    case.remove()


def fail_all(report, w, name, args, start, attempt, share, rng):
    """attempt(k, kind, errno) for every call k that the launch makes and every kind of fault, or for a share of them."""
    case = w.case(start)
    ran = case.launch(args)
    case.remove()
    report.check(ran.status == 0 and ran.calls() > 0, f"{name} without a fault: {ran.words()}")
    pairs = [(k, do, e) for do, e in kinds() for k in range(1, ran.calls() + 1)]
    chosen = rng.sample(pairs, -(-len(pairs) // share))
    for k, do, e in chosen:
        attempt(k, do, e)
    return f"{name} {len(chosen)} (of {ran.calls()} calls)"


TOKENIZE = ["tokenize", "--tokenizer", "../vocab.bpe", "--val-frac", "0.2", "--shard-tokens", "9000", "--out", "made/x",
            "../text.txt", "--threads", "1"]
EVAL = ["eval", "--model", "run", "--data", "../tiny_val_*.bin", "--tokenizer", "../vocab.bpe", "--json", "out.json"]
OLD_FIGURES = b"figures of before\n"


def faults(w, report, every, seed):
    report.begin("fault")
    rng = random.Random(f"fault {seed}")
    straight, _ = w.straight(SHORT)
    scored = {**straight, "out.json": OLD_FIGURES}
    jobs = [
        ("a new run", [*SHORT, *world.OUT], {}, fail_one),
        ("a resumed run", ["--resume", *world.OUT], half_done(w), fail_one),
        ("tokenize", TOKENIZE, {}, fail_tokenize),
        ("eval --json", EVAL, scored, fail_json),
    ]
    for name, args, start, attempt in jobs:
        report.figure(fail_all(report, w, name, args, start, lambda k, do, e: attempt(w, report, name, args, start, straight,
                                                                                     k, do, e), every, rng))
    report.end()


def fails_well(report, what, result, do, e, fault, made=()):
    """Not noticed where that is harmless, else status 1 and one line. Whether it failed."""
    if result.status == 0:
        made = {*made, *(r.path for r in result.journal if r.name == "mkdir")}
        report.check(harmless(do, e, *fault, made), f"{what}: not noticed")
        return False
    report.check(result.status == 1, f"{what}: status 1 wanted: {result.words()}")
    if e is not None:
        one_line(report, what, result, e, fault)
    return True


def fail_tokenize(w, report, name, args, start, _, at, do, e):
    """All shards or none."""
    case = w.case(start)
    result = case.launch(args, at=at, do=do)
    fault, left = result.fault(), sorted(case.tree("made"))
    case.remove()
    what = f"{name}, {do} at call {at}, {fault}"
    if not fails_well(report, what, result, do, e, fault):
        whole = ["made", "made/x_train_000000.bin", "made/x_train_000001.bin", "made/x_val_000000.bin"]
        report.check(left == whole, f"{what}: not all shards: {left}")
    elif not do.startswith("stay"):
        report.check(left in ([], ["made"]), f"{what}: files are left: {left}")


def fail_json(w, report, name, args, start, _, at, do, e):
    """The figures of before, or all of the new ones, and nothing beside them."""
    case = w.case(start)
    result = case.launch(args, at=at, do=do)
    fault, after = result.fault(), case.tree(".")
    case.remove()
    what = f"{name}, {do} at call {at}, {fault}"
    text = after["./out.json"]
    if not fails_well(report, what, result, do, e, fault):
        report.check(text.endswith(b"}\n"), f"{what}: half of the figures: {text[-40:]!r}")
        return
    report.check(text == OLD_FIGURES, f"{what}: the old figures are gone")
    if not do.startswith("stay"):
        report.check("./out.json.tmp" not in after, f"{what}: out.json.tmp is left")


# ---------------------------------------------------------------------------------------------
# A disk that fills, a folder that becomes read-only

@contextlib.contextmanager
def small_disk(where, size):
    """A tmpfs of `size` bytes at `where`; None where it cannot be mounted. It is unmounted whatever happens."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", where], capture_output=True, text=True)
    if made.returncode != 0:
        yield None
        return
    try:
        yield where
    finally:
        subprocess.run(["mount", "-o", "remount,rw", where], capture_output=True)
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
        result = case.launch([*SHORT[:-2], "--keep", "0", *world.OUT])
        report.check(result.status == 1, f"{what}: status 1 wanted: {result.words()}")
        report.check(len(result.err.splitlines()) == 1 and os.strerror(errno.ENOSPC) in result.err and "run/" in result.err,
                     f"{what}: one line wanted that names file and reason: {result.err!r}")
        case.stands(report, what, world.saved(result.journal), sample=True)
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        last = case.launch(["--resume", *world.OUT] if case.complete() else [*SHORT[:-2], "--keep", "0", *world.OUT, "--overwrite"])
        report.check(last.status == 0, f"{what}: the resume: {last.words()}")
        case.ends_as(report, what, straight)
    case.remove()
    return True


def turns_read_only(w, report):
    """The disk under the checkpoints is remounted read-only between two saves; its log stands elsewhere."""
    args, what = [*SHORT[:-2], "--keep", "0", "--log", "log.csv", *world.OUT], "a disk that becomes read-only"
    straight = w.case()
    rows = [r.call for r in straight.launch(args).journal if r.name == "write" and r.path == "log.csv"]
    case = w.case()
    os.mkdir(case.path("run"))
    with small_disk(case.path("run"), 64 << 20) as disk:
        if not disk:
            report.skip(f"{what}: a tmpfs cannot be mounted here (it takes root)")
            return
        process = case.start(args, at=rows[3], do=f"signal:{int(signal.SIGSTOP)}")   # at update 3's row: between saves
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        changed = subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True, text=True)
        process.send_signal(signal.SIGCONT)
        result = case.finish(process)
        if changed.returncode != 0:
            report.skip(f"{what}: it cannot be remounted here: {changed.stderr.strip()}")
            return
        report.check(result.status == 1, f"{what}: status 1 wanted: {result.words()}")
        report.check(len(result.err.splitlines()) == 1 and os.strerror(errno.EROFS) in result.err
                     and "run/step_00000004" in result.err, f"{what}: one line that names file and reason: {result.err!r}")
        case.stands(report, what, 2, sample=True)
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        last = case.launch(["--resume", *world.OUT])
        report.check(last.status == 0, f"{what}: the resume: {last.words()}")
        case.ends_as(report, what, straight.tree())
        logs = [world.timeless(c.tree(".")["./log.csv"]) for c in (case, straight)]
        report.check(logs[0] == logs[1], f"{what}: the log is not as the straight run's")
    case.remove()


def full(w, report):
    report.begin("full")
    straight, _ = w.straight([*SHORT[:-2], "--keep", "0"])
    tried = [size for size in range(64 << 10, 288 << 10, 16 << 10) if fills(w, report, straight, size)]
    turns_read_only(w, report)
    report.figure(f"tmpfs of {len(tried)} sizes filled at another place each; one remounted read-only" if tried
                  else "nothing could be mounted")
    report.end()
