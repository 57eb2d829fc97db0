"""machine.py: memory growth, files beyond 32 bits, leaks."""

import array
import fcntl
import json
import os
import shutil
import subprocess
import tempfile

import world

# ---------------------------------------------------------------------------------------------
# Memory of a long run

# Allowed growth in bytes: malloc without its cache of freed blocks may use a few more pages; shards and code that were not
# read before step 100 add file pages.
ALLOWED = {"RssAnon": 64 << 10, "RssFile": 256 << 10, "fds": 0}
STEPS_MEASURED = (100, 1000, 5000)


def memory(pid):
    """{"RssAnon": bytes, "RssFile": bytes, "fds": number}"""
    with open(f"/proc/{pid}/status") as f:
        lines = dict(line.split(":", 1) for line in f if ":" in line)
    found = {key: int(lines[key].split()[0]) << 10 for key in ("RssAnon", "RssFile")}
    return {**found, "fds": len(os.listdir(f"/proc/{pid}/fd"))}


def growth(w, report):
    """Memory and descriptors must not grow from step 100 to 5,000, in a run with validations, samples and saves. Its log
    is a pipe with a capacity of one page, so that the program is never far ahead of the rows read here."""
    case, seen = w.case(), {}
    args = [*world.RUN, "--steps", "5200", "--val-every", "20", "--sample-every", "25", "--save-every", "50",
            "--keep", "2", "--log", "rows"]
    os.mkfifo(case.path("rows"))
    reader = os.open(case.path("rows"), os.O_RDONLY | os.O_NONBLOCK)   # the program refuses a FIFO without one
    process = case.start([*args, *world.OUT], stdout=subprocess.DEVNULL, plain=True,
                         more={"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"})
    with open(case.path("rows"), "rb", buffering=0) as rows:
        os.close(reader)
        fcntl.fcntl(rows, fcntl.F_SETPIPE_SZ, 4096)
        for row in iter(rows.readline, b""):
            at = int(row.split(b",")[0]) + 1 if row[:1].isdigit() else 0
            for step in STEPS_MEASURED:
                if step <= at < step + 40:   # the minimum over 40 steps, between two saves
                    now = memory(process.pid)
                    seen[step] = {key: min(now[key], seen.get(step, now)[key]) for key in now}
    result = case.finish(process)
    report.check(result.status == 0 and set(seen) == set(STEPS_MEASURED), f"the run: {sorted(seen)}, {result.summary()}")
    for key, before in seen[100].items():
        report.check(seen[5000][key] <= before + ALLOWED[key], f"{key} at step 100: {before}, at 5,000: {seen[5000][key]}")
    kib = [(m["RssAnon"] + m["RssFile"]) >> 10 for m in seen.values()]
    report.figure(f"resident at steps 100, 1,000, 5,000: {kib} KiB, {seen[5000]['fds']} descriptors")
    case.remove()


# ---------------------------------------------------------------------------------------------
# Shards of 5 GB

SEQ, SAMPLES, STEPS = 32, 4, 6   # tokens per sample, samples per step, steps at the end of the shard


def shard(path, width, tokens, first, ids):
    """Writes a sparse shard of zeros, except for `ids` from token `first`. uint16 shards have no header here: with one
    they are limited to 2^31 tokens. False if the disk cannot store it."""
    head = array.array("i", [20240801, 7, tokens] + [0] * 253).tobytes() if width == 4 else b""
    try:
        with open(path, "wb") as f:
            f.write(head)
            f.seek(len(head) + first * width)
            f.write(array.array("I" if width == 4 else "H", ids).tobytes())
            f.truncate(len(head) + tokens * width)
    except OSError:
        return False
    return os.stat(path).st_blocks * 512 < 64 << 20


def set_data_sample(path, sample):
    """Sets the next sample in a checkpoint's metadata."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        head, tensors = json.loads(f.read(size)), f.read()
    head["__metadata__"]["data_sample"] = str(sample)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + tensors)


def tensors_of(path):
    with open(path, "rb") as f:
        f.seek(int.from_bytes(f.read(8), "little"), os.SEEK_CUR)
        return f.read()


def far_end(report, case, width, tokens):
    """A run that continues with the last samples of a large shard must equal a run on a small shard of the same
    tokens."""
    first = (tokens - 1) // SEQ - SAMPLES * STEPS
    tail = [(7 * i * i + 3 * i) % 251 for i in range(tokens - first * SEQ)]
    common = [*world.MODEL, "--tokenizer", "../vocab.bpe", "--order", "sequential", "--val-every", "0",
              "--sample-every", "0", "--seq", str(SEQ), "--keep", "0"]
    what = f"{tokens} tokens of {8 * width} bits"
    if not shard(case.path("far.bin"), width, tokens, first * SEQ, tail):
        report.skip(f"{what}: {case.dir} has no room for {tokens * width} bytes, or no sparse files")
        return
    shard(case.path("near.bin"), width, len(tail), 0, tail)
    begun = case.launch([*common, "--data", "far.bin", "--steps", "0", "--out", "far"])
    report.check(begun.status == 0, f"{what}: {begun.summary()}")
    for file in world.CHECKPOINT_FILES:
        set_data_sample(case.path("far", "step_00000000", file), first)
    far = case.launch(["--resume", "--steps", str(STEPS), "--out", "far"])
    near = case.launch([*common, "--data", "near.bin", "--steps", str(STEPS), "--out", "near"])
    report.check(far.status == 0 and near.status == 0, f"{what}: {far.summary()}, {near.summary()}")
    last = f"step_{STEPS:08d}"
    for name in world.CHECKPOINT_FILES:
        a, b = (tensors_of(case.path(run, last, name)) if case.complete(run) else run for run in ("far", "near"))
        report.check(a == b, f"{what}: {name} differs from that of a run on the last tokens only")
    logs = [[row[2:] for row in world.log_without_times(case.tree(run)[f"{run}/log.csv"])] for run in ("far", "near")]
    report.check(logs[0] == logs[1] and len(logs[0]) == STEPS + 1, f"{what}: the logs differ: {logs}")


def large(w, report):
    with tempfile.TemporaryDirectory(prefix="torture.") as where:
        for width, tokens in ((4, 1_250_000_000), (2, 2_500_000_000)):
            apart = world.World(w.binary, w.faults, os.path.join(where, str(width)))
            far_end(report, apart.case(), width, tokens)
    report.figure(f"sparse shards of 5.0 GB: 1.25G uint32 and 2.5G raw uint16 tokens; {STEPS} steps at the end of each")


# ---------------------------------------------------------------------------------------------
# Leaks

# A model large enough that every parallel loop uses two threads
WIDE = ("--layers 2 --heads 4 --channels 64 --block-size 64 --vocab-size 257 --batch 4 --total-batch 512 --warmup 1 "
        "--val-batches 2 --sample-tokens 8 --steps 4 --val-every 2 --sample-every 2 --save-every 2 --keep 1").split()

# The commands to run under valgrind, with their exit status.
COMMANDS = [
    (["tokenize", "--tokenizer", "../vocab.bpe", "--val-frac", "0.2", "--shard-tokens", "9000", "--out", "made/x",
      "long.txt", "lines.jsonl"], 0),
    ([*WIDE, *world.DATA, *world.OUT], 0),
    (["--resume", "--steps", "6", *world.OUT], 0),
    (["sample", "--model", "run", "--tokens", "40", "--prompt", "1 and 2 make "], 0),
    (["eval", "--model", "run", "--data", "../tiny_val_*.bin", "--tokenizer", "../vocab.bpe", "--json", "out.json"], 0),
    (["eval", "--model", "run", "--data", "zeros.bin", "--windows", "4"], 0),
    (["info", "run"], 0),
    ([*WIDE, *world.DATA, *world.OUT], 1),                           # the folder already holds a run
    (["eval", "--model", "run", "--data", "long.txt"], 1),           # not a shard
    (["sample", "--model", "long.txt"], 1),                          # not a model
]


def watched_case(w):
    """Inputs that are large enough to be split among threads."""
    case = w.case()
    with open(case.path("long.txt"), "w") as f:
        f.write(world.sums(1500))
    with open(case.path("lines.jsonl"), "w") as f:
        f.writelines(json.dumps({"text": f"{i} and {i} make {2 * i}"}) + "\n" for i in range(200))
    with open(case.path("zeros.bin"), "wb") as f:
        f.truncate(6 << 20)
    return case


def leaks(w, report, built):
    binary = os.path.abspath(os.path.join(built, "valgrind"))
    if not shutil.which("valgrind") or not os.path.exists(binary):
        report.skip(f"memory and leaks: valgrind is not installed, or {binary} was not built")
        return
    case = watched_case(w)
    tool = ["valgrind", "-q", "--leak-check=full", "--show-leak-kinds=all", "--errors-for-leak-kinds=all",
            "--error-exitcode=99", "--log-file=found"]
    for args, wanted in COMMANDS:
        done = subprocess.run([*tool, binary, *args], cwd=case.dir, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", env={**os.environ, "OMP_NUM_THREADS": "2"})
        with open(case.path("found"), errors="replace") as f:
            found = f.read()
        command = " ".join(args)
        report.check(done.returncode == wanted,
                     f"{command}: expected status {wanted}, got {done.returncode}: {done.stderr[-300:]!r}")
        report.check(not found.strip(), f"{command}:\n{found[:3000]}")
    case.remove()
    report.figure(f"valgrind's memcheck on {len(COMMANDS)} commands, every kind of leak")
