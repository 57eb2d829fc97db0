"""interrupts.py: runs that are killed or stopped and resumed must end with the bytes of a reference run."""

import os
import random
import shutil
import signal

import world

STEPS = 30
LONG = [*world.RUN, "--steps", str(STEPS), "--val-every", "3", "--sample-every", "4", "--save-every", "2",
        "--keep", "2", "--keep-best"]


def plan(rng, number, calls):
    """When to kill: three of four kills at a call on a checkpoint, within the next three saves, the others at any call
    that changes files. Between two calls, the files stay as they are."""
    how = {"do": rng.choice(["before", "after", "half"])}
    if number % 4 < 3:
        return {**how, "at": rng.randint(1, 90), "only": "/step_"}
    return {**how, "at": rng.randint(1, calls // 3)}


def interrupt(case, report, what, how, seen):
    """Launches the program with a planned kill. Returns True if it was killed."""
    result = case.resume(LONG, **how)
    if not result.killed():
        report.check(result.status == 0, f"{what}: not killed, and {result.summary()}")
        return False
    killed = [r for r in result.journal[-1:] if r.name.startswith("kill")]
    seen["inside"] += case.unfinished() or any(map(world.in_save, killed))
    seen["saved"] = max(seen["saved"], world.saved(result.journal))
    case.check_checkpoints(report, what, seen["saved"], sample=seen["inside"] % 4 == 0)
    return True


def kills(w, report, count, seed):
    """Kills runs `count` times. A run that completes is compared with the reference and the next one starts, with 1 or
    2 threads in turn."""
    rng = random.Random(f"kill {seed}")
    reference = {threads: w.reference(LONG, threads) for threads in (1, 2)}
    calls, seen = reference[1][1].calls(), {"inside": 0, "saved": 0}
    runs = done = 0
    while done < count:
        case = w.case(threads=1 + runs % 2)
        seen["saved"] = 0
        for _ in range(12):
            how = plan(rng, done, calls)
            what = f"seed {seed}, run {runs}, kill {done + 1} {how}"
            if done == count or not interrupt(case, report, what, how, seen):
                break
            done += 1
        case.check_resume(report, f"seed {seed}, run {runs}, after {done} kills", LONG, reference[case.threads][0])
        runs += 1
        case.remove()
    report.check(2 * seen["inside"] > count, f"of {count} kills only {seen['inside']} were inside a save")
    report.figure(f"{done} kills of {runs} runs, {seen['inside']} inside a save")


def check_stop(report, what, number, case, result):
    """Checks the status, the messages and that the last step was saved. Returns True if the signal stopped the run,
    False if the run was complete or still in set-up, when a signal kills it."""
    if result.status == 0:
        return False
    if result.status == -number and "\nstep " not in result.out:
        return False
    report.check(result.status == 128 + number, f"{what}: expected status {128 + number}: {result.summary()}")
    steps, row = case.complete(), case.tree()["run/log.csv"].splitlines()[-1].decode()
    report.check(steps and int(row.split(",")[0]) == steps[-1],
                 f"{what}: the log ends with {row!r}, the newest checkpoint is of {steps}")
    report.check("--resume --out run" in result.out, f"{what}: no command to resume: {result.out[-200:]!r}")
    report.check(len(result.err.splitlines()) == 2, f"{what}: expected one line on stderr: {result.err!r}")
    return result.status == 128 + number


def signals(w, report, count, seed):
    """SIGINT and SIGTERM at random calls, at calls that log a step, and at random times."""
    rng = random.Random(f"signal {seed}")
    reference, ran = w.reference(LONG)
    rows = [r.call for r in ran.journal if r.name == "write" and r.path == "run/log.csv"]   # header, step 0, …
    stops = runs = 0
    while stops < count:
        case, stopped = w.case(), True
        for _ in range(12):
            if not stopped or stops == count:
                break
            number = rng.choice([signal.SIGINT, signal.SIGTERM])
            at = rng.choice([rng.randint(rows[3], rows[-1] // 3), rng.choice(rows[3:len(rows) // 3]), 0])
            how = {"at": at, "do": f"signal:{int(number)}"} if at else {"after": rng.uniform(0, .3), "number": number}
            what = f"seed {seed}, {number.name}, stop {stops + 1} {how}"
            result = case.resume(LONG, **how)
            stopped = check_stop(report, what, number, case, result)
            stops += stopped
        case.check_resume(report, f"seed {seed}, run {runs}", LONG, reference, older=False)
        runs += 1
        case.remove()
    report.figure(f"{stops} stops of {runs} runs")


def overwrites(w, report, every):
    """Kills a run with --overwrite at each call up to its first log row: the old run must be whole, in its folder or
    renamed."""
    old, _ = w.reference([*LONG, "--seed", "5"])
    new, _ = w.reference(LONG)
    case = w.case(old)
    journal = case.launch([*LONG, "--overwrite"]).journal
    calls = [r.call for r in journal if r.name == "write" and r.path == "run/log.csv"][1]
    case.check_same(report, "an overwritten run", new)
    case.remove()
    renamed = 0
    for at in sorted({*range(1, calls + 1, every), calls}):
        case, what = w.case(old), f"--overwrite killed at call {at}"
        killed = case.launch([*LONG, "--overwrite"], at=at, do=("before", "after", "half")[at % 3])
        report.check(killed.killed(), f"{what}: {killed.summary()}")
        if os.path.exists(case.path("run.1")):
            shutil.rmtree(case.path("run"), ignore_errors=True)
            os.rename(case.path("run.1"), case.path("run"))
            renamed += 1
        case.check_same(report, what, old)
        case.remove()
    report.check(renamed > 0, "no kill after the folder was renamed")
    report.figure(f"{len(range(1, calls + 1, every))} kills, {renamed} after the folder was renamed")


# ---- tokenize, killed or stopped at any of its calls; the next tokenize must write the same shards -------------------

def shards(case):
    return {path: data for path, data in case.tree("made").items() if path.endswith(".bin") and ".tmp/" not in path}


def check_next(case, report, what, reference):
    """Tokenizes again. Shards that were renamed before the kill are refused, by name, and must be complete."""
    result = case.launch(world.MADE)
    if result.status == 1:
        left = shards(case)
        report.check("exist" in result.err and any(os.path.basename(path) in result.err for path in left),
                     f"{what}: {result.summary()}")
        report.check(left.items() <= reference.items(), f"{what}: an incomplete shard")
        for path in left:
            os.remove(case.path(path))
        result = case.launch(world.MADE)
    report.check(result.status == 0, f"{what}: the next tokenize: {result.summary()}")


def tokenize(w, report, every):
    case = w.case()
    ran = case.launch(world.MADE)
    reference, calls = case.tree("made"), ran.calls()
    report.check(ran.status == 0 and len(reference) == 5 and calls > 30, f"without a fault: {ran.summary()}")
    case.remove()
    for at in range(1, calls + 1, every):
        for do in ("before", "half", "after", "signal:2", "signal:15", "two:2"):
            case = w.case()
            result, what = case.launch(world.MADE, at=at, do=do), f"{do} at call {at}"
            if do.startswith("signal") and result.status != 0:   # 0: the signal came when all shards were complete
                report.check(result.status == 128 + int(do[7:]), f"{what}: {result.summary()}")
                report.check(not case.tree("made").keys() - {"made"}, f"{what}: {sorted(case.tree('made'))} is left")
            if result.status != 0:
                check_next(case, report, what, reference)
            report.check(case.tree("made") == reference, f"{what}: {sorted(case.tree('made'))}")
            case.remove()
    report.figure(f"kills and signals at each of {calls} calls")
