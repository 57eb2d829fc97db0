"""interrupts.py: runs that are killed or stopped, again and again, and resumed: they end as the straight run, to the
byte."""

import random
import signal
import time

import world

UPDATES = 30
LONG = [*world.RUN, "--steps", str(UPDATES), "--val-every", "3", "--sample-every", "4", "--save-every", "2",
        "--keep", "2"]


def plan(rng, number, calls, seconds):
    """Where a kill falls: three of four at a call on a checkpoint, within the next three saves; of the others half at
    any call that changes files, half at a moment of the clock."""
    how = {"do": rng.choice(["before", "after", "half"])}
    if number % 4 < 3:
        return {**how, "at": rng.randint(1, 90), "only": "/step_"}
    if number % 8 == 3:
        return {**how, "at": rng.randint(1, calls // 3)}
    return {"kill_after": rng.uniform(0, 1.2 * seconds)}


def interrupt(case, report, what, how, seen):
    """One launch that is to be killed. Whether it was."""
    result = case.go_on(LONG, **how)
    if not result.killed():
        report.check(result.status == 0, f"{what}: not killed, and {result.words()}")
        return False
    last = result.last()
    inside = case.unfinished() or ("at" in how and last and last.name.startswith("kill") and world.in_save(last))
    seen["inside" if inside else "between"] += 1
    seen["timed" if "kill_after" in how else how["do"]] += 1
    case.stands(report, what, max(seen["saved"], world.saved(result.journal)), sample=seen["inside"] % 4 == 0)
    seen["saved"] = max(seen["saved"], world.saved(result.journal))
    return True


def kills(w, report, count, seed):
    """SIGKILL at `count` instants; a run that reaches its end is compared, and another begun, with 1 or 2 threads."""
    report.begin("kill")
    rng = random.Random(f"kill {seed}")
    began = time.monotonic()
    straight = {threads: w.straight(LONG, threads) for threads in (1, 2)}
    seconds, calls = (time.monotonic() - began) / 2, straight[1][1][-1].call
    seen = {k: 0 for k in ("inside", "between", "timed", "before", "after", "half", "saved")}
    runs = done = 0
    while done < count:
        case = w.case(threads=1 + runs % 2)
        seen["saved"] = 0
        for _ in range(12):
            how = plan(rng, done, calls, seconds)
            what = f"seed {seed}, run {runs}, kill {done + 1} {how}"
            if done == count or not interrupt(case, report, what, how, seen):
                break
            done += 1
        last = case.go_on(LONG)
        report.check(last.status == 0, f"run {runs}: the last resume: {last.words()}")
        case.ends_as(report, f"seed {seed}, run {runs}, after {done} kills", straight[case.threads][0],
                     older="is finished" not in last.out)
        runs += 1
        case.remove()
    report.check(2 * seen["inside"] > count, f"of {count} kills only {seen['inside']} were inside a save")
    report.figure(f"{done} kills of {runs} runs, {seen['inside']} inside a save; {seen['before']} before a call, "
                  f"{seen['after']} after, {seen['half']} at half a write, {seen['timed']} by the clock")
    report.end()


def stop(case, report, what, number, how, delay=0.0):
    """One launch that gets a signal, by itself at a call or from outside once its first update is done."""
    process = case.start(["--resume", *world.OUT] if case.complete() else [*LONG, *world.OUT, "--overwrite"], **how)
    if not how:
        for line in process.stdout:
            if line.startswith("step "):
                break
        time.sleep(delay)
        process.send_signal(number)
    return case.finish(process)


def stopped_well(case, report, what, number, result):
    """Status, words, a checkpoint of the last update. Whether the run was stopped: not where it had come to its end,
    nor where it was still setting up, which a signal ends as it does any program."""
    if result.status == 0:
        return False
    if result.status == -number and "\nstep " not in result.out:
        return False
    report.check(result.status == 128 + number, f"{what}: status {128 + number} wanted: {result.words()}")
    steps, rows = case.complete(), world.timeless(case.tree()["run/log.csv"])
    waits = "is left to --resume" in result.out   # a validation cut short: its row comes when it is made up for
    report.check(steps and int(rows[-1][0]) + 1 + waits == steps[-1],
                 f"{what}: the log ends with step {rows[-1][0]}, the newest checkpoint is of {steps}")
    report.check("--resume --out run" in result.out, f"{what}: how to go on is not said: {result.out[-200:]!r}")
    report.check(len(result.err.splitlines()) == 2, f"{what}: a line on stderr was wanted: {result.err!r}")
    return result.status == 128 + number


def signals(w, report, count, seed):
    """SIGINT and SIGTERM at random instants and inside saves; then two of them."""
    report.begin("signal")
    rng = random.Random(f"signal {seed}")
    straight, records = w.straight(LONG)
    rows = [r.call for r in records if r.name == "write" and r.path == "run/log.csv"]   # the header first
    stops = runs = inside = 0
    while stops < count:
        case, going = w.case(), True
        for _ in range(12):
            if not going or stops == count:
                break
            number = rng.choice([signal.SIGINT, signal.SIGTERM])
            at = rng.choice([rng.randint(rows[2], rows[-1] // 3), rng.choice(rows[2:len(rows) // 3]), 0])
            how = {"at": at, "do": f"signal:{int(number)}"} if at else {}
            what = f"seed {seed}, {number.name}, stop {stops + 1} {how}"
            going = stopped_well(case, report, what, number, stop(case, report, what, number, how, rng.uniform(0, .02)))
            stops += going
            inside += going and at > 0
        last = case.go_on(LONG)
        report.check(last.status == 0, f"run {runs}: the last resume: {last.words()}")
        case.ends_as(report, f"seed {seed}, run {runs}", straight, older=False)
        runs += 1
        case.remove()
    for at in sorted(rng.sample(range(rows[1], records[-1].call - 5), max(4, count // 4))):
        twice(w, report, straight, at, rng.choice([signal.SIGINT, signal.SIGTERM]))
    report.figure(f"{stops} stops of {runs} runs, {inside} of them at a call that changes files; "
                  f"{max(4, count // 4)} ended by a second signal")
    report.end()


def twice(w, report, straight, at, number):
    """Of two signals at one call the second ends the program there: nothing more is written."""
    case, what = w.case(), f"{number.name} twice at call {at}"
    result = case.launch([*LONG, *world.OUT], at=at, do=f"twice:{int(number)}")
    report.check(result.status == 128 + number, f"{what}: status {128 + number} wanted: {result.words()}")
    case.stands(report, what, world.saved(result.journal), sample=False)
    last = case.go_on(LONG)
    report.check(last.status == 0, f"{what}: the resume: {last.words()}")
    case.ends_as(report, what, straight, older="is finished" not in last.out)
    case.remove()
