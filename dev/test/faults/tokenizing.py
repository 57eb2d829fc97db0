"""tokenizing.py: tokenize killed or stopped at any of its calls; the next tokenize must write the same shards."""

import os

import world

ARGS = ["tokenize", "--tokenizer", "../vocab.bpe", "--val-frac", "0.2", "--shard-tokens", "9000", "--out", "made/x",
        "../text.txt"]


def shards(case):
    return {path: data for path, data in case.tree("made").items() if path.endswith(".bin") and ".tmp/" not in path}


def check_next(case, report, what, reference):
    """Tokenizes again. Shards that were renamed before the kill are refused, by name, and must be complete."""
    result = case.launch(ARGS)
    if result.status == 1:
        left = shards(case)
        report.check("exist" in result.err and any(os.path.basename(path) in result.err for path in left),
                     f"{what}: {result.summary()}")
        report.check(all(reference.get(path) == data for path, data in left.items()), f"{what}: an incomplete shard")
        for path in left:
            os.remove(case.path(path))
        result = case.launch(ARGS)
    report.check(result.status == 0, f"{what}: the next tokenize: {result.summary()}")
    report.check(case.tree("made") == reference, f"{what}: {sorted(case.tree('made'))}")


def interrupts(w, report, every):
    report.begin("tokenize")
    case = w.case()
    ran = case.launch(ARGS)
    reference, calls = case.tree("made"), ran.calls()
    report.check(ran.status == 0 and len(reference) == 4 and calls > 30, f"without a fault: {ran.summary()}")
    case.remove()
    for at in range(1, calls + 1, every):
        for do in ("before", "half", "after", "signal:2", "signal:15", "twice:2"):
            case = w.case()
            result, what = case.launch(ARGS, at=at, do=do), f"{do} at call {at}"
            if do.startswith("signal") and result.status != 0:   # 0: the signal came when all shards were complete
                report.check(result.status == 128 + int(do[7:]), f"{what}: {result.summary()}")
                report.check(not case.tree("made").keys() - {"made"}, f"{what}: {sorted(case.tree('made'))} is left")
            if not (do.startswith("signal") and result.status == 0):
                check_next(case, report, what, reference)
            else:
                report.check(case.tree("made") == reference, f"{what}: {sorted(case.tree('made'))}")
            case.remove()
    report.figure(f"kills and signals at each of {calls} calls")
    report.end()
