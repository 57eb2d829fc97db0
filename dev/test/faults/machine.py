"""machine.py: memory growth, files beyond 32 bits, leaks, data races."""

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

STEPS_MEASURED = (100, 1000, 5000)

# Allowed growth in bytes. Anonymous memory depends on malloc: without its cache of freed blocks, a few pages that were
# not used before step 100; with the cache, up to 7 blocks of each of 64 sizes up to 1 KiB, and the memory between them.
# File pages: shards and code that were not read before.
ALLOCATORS = {"without malloc's cache": ("glibc.malloc.tcache_count=0", 64 << 10), "with it": (None, 512 << 10)}
FILE_PAGES = 256 << 10


def memory(pid):
    """{"RssAnon": bytes, "RssFile": bytes, "fds": number}"""
    with open(f"/proc/{pid}/status") as f:
        lines = dict(line.split(":", 1) for line in f if ":" in line)
    found = {key: int(lines[key].split()[0]) << 10 for key in ("RssAnon", "RssFile")}
    return {**found, "fds": len(os.listdir(f"/proc/{pid}/fd"))}


def measured(w, report, tunables):
    """{step: memory} of one run. Its log is a pipe with a capacity of one page, so that the program is never far ahead
    of the rows read here."""
    case = w.case()
    args = [*world.RUN, "--steps", "5200", "--val-every", "20", "--sample-every", "25", "--save-every", "50",
            "--keep", "2", "--log", "rows"]
    os.mkfifo(case.path("rows"))
    more = {"GLIBC_TUNABLES": tunables} if tunables else {}
    process = case.start([*args, *world.OUT], stdout=subprocess.DEVNULL, plain=True, more=more)
    seen = {}
    with open(case.path("rows"), "rb", buffering=0) as rows:
        fcntl.fcntl(rows, fcntl.F_SETPIPE_SZ, 4096)
        for row in iter(rows.readline, b""):
            at = int(row.split(b",")[0]) + 1 if row[:1].isdigit() else 0
            for step in STEPS_MEASURED:
                if step <= at < step + 40:   # the minimum over 40 steps, between two saves
                    now = memory(process.pid)
                    seen[step] = {key: min(now[key], seen.get(step, now)[key]) for key in now}
    result = case.finish(process)
    report.check(result.status == 0, f"the run: {result.summary()}")
    case.remove()
    return seen


def growth(w, report):
    """Memory and descriptors must not grow from step 100 to 5,000, in a run with validations, samples and saves."""
    report.begin("growth")
    for name, (tunables, allowed) in ALLOCATORS.items():
        seen = measured(w, report, tunables)
        if not report.check(set(seen) == set(STEPS_MEASURED), f"{name}: measured at {sorted(seen)}"):
            continue
        for key, before in seen[100].items():
            most = before + {"RssAnon": allowed, "RssFile": FILE_PAGES, "fds": 0}[key]
            report.check(seen[5000][key] <= most, f"{name}: {key} at step 100: {before}, at 5,000: {seen[5000][key]}")
        kib = [(m["RssAnon"] + m["RssFile"]) >> 10 for m in seen.values()]
        report.figure(f"resident {name} at steps 100, 1,000, 5,000: {kib[0]}, {kib[1]}, {kib[2]} KiB, "
                      f"{seen[5000]['fds']} descriptors")
    report.end()


# ---------------------------------------------------------------------------------------------
# Shards of 5 GB

SEQ, SAMPLES, STEPS = 32, 4, 6   # tokens per sample, samples per step, steps at the end of the shard


def token_bytes(ids, width):
    return array.array("I" if width == 4 else "H", ids).tobytes()


def header(width, tokens):
    """The header of a uint32 shard. uint16 shards have none here: with a header they are limited to 2^31 tokens."""
    return array.array("i", [20240801, 7, tokens] + [0] * 253).tobytes() if width == 4 else b""


def ids(n):
    return [(7 * i * i + 3 * i) % 251 for i in range(n)]


def sparse_shard(path, width, tokens, places):
    """Writes a sparse shard of zeros except for `places`: {token: ids}. False if the disk cannot store it."""
    head = header(width, tokens)
    try:
        with open(path, "wb") as f:
            f.write(head)
            for token, values in places.items():
                f.seek(len(head) + token * width)
                f.write(token_bytes(values, width))
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
    """A run that continues with the last samples of a large shard must equal a run on a small shard of the same tokens.
    An id that is too large there must be reported with its position."""
    first = (tokens - 1) // SEQ - SAMPLES * STEPS
    tail = ids(tokens - first * SEQ)
    common = [*world.MODEL, "--tokenizer", "../vocab.bpe", "--order", "sequential", "--val-every", "0",
              "--sample-every", "0", "--seq", str(SEQ), "--keep", "0"]
    what = f"{tokens} tokens of {8 * width} bits"
    if not sparse_shard(case.path("far.bin"), width, tokens, {first * SEQ: tail}):
        report.skip(f"{what}: {case.dir} has no room for {tokens * width} bytes, or no sparse files")
        return False
    sparse_shard(case.path("near.bin"), width, len(tail), {0: tail})

    def begin_far(name):
        begun = case.launch([*common, "--data", name + ".bin", "--steps", "0", "--out", name])
        report.check(begun.status == 0, f"{what}: {begun.summary()}")
        for file in world.CHECKPOINT_FILES:
            set_data_sample(case.path(name, "step_00000000", file), first)
    begin_far("far")
    far = case.launch(["--resume", "--steps", str(STEPS), "--out", "far"])
    near = case.launch([*common, "--data", "near.bin", "--steps", str(STEPS), "--out", "near"])
    report.check(far.status == 0 and near.status == 0, f"{what}: {far.summary()}, {near.summary()}")
    last = f"step_{STEPS:08d}"
    for name in world.CHECKPOINT_FILES:
        a, b = (tensors_of(case.path(run, last, name)) if case.complete(run) else run for run in ("far", "near"))
        report.check(a == b, f"{what}: {name} differs from that of a run on the last tokens only")
    logs = [[row[2:] for row in world.log_without_times(case.tree(run)[f"{run}/log.csv"])] for run in ("far", "near")]
    report.check(logs[0] == logs[1] and len(logs[0]) == STEPS + 1, f"{what}: the logs differ: {logs}")
    bad = tokens - 40
    sparse_shard(case.path("bad.bin"), width, tokens, {first * SEQ: tail[:-40] + [999] + tail[-39:]})
    begin_far("bad")
    refused = case.launch(["--resume", "--steps", str(STEPS), "--out", "bad"])
    report.check(refused.status == 1 and f"bad.bin: token {bad} at byte" in refused.err and "is 999" in refused.err,
                 f"{what}: {refused.summary()}")
    return True


def far_windows(report, case, width, tokens):
    """eval on random windows of such a shard must give the losses of the same windows in a small shard. Returns the
    number of windows beyond 4 GiB."""
    path, what, count = case.path("windows.bin"), f"eval on {tokens} tokens of {8 * width} bits", 32

    def score(data, *more):
        out = case.launch(["eval", "--model", "far", "--data", data, "--seq", str(SEQ), "--json", "out.json", *more])
        report.check(out.status == 0, f"{what}: {out.summary()}")
        with open(case.path("out.json")) as f:
            return [(x["start"], x["nats"]) for x in json.load(f)["window"]]
    drawn = ["--windows", str(count), "--seed", "5"]
    sparse_shard(path, width, tokens, {})
    starts = [start for start, _ in score("windows.bin", *drawn)]
    stream = ids(count * SEQ + 1)   # a window's last target is the first token of the next one
    sparse_shard(path, width, tokens, {at: stream[k * SEQ:(k + 1) * SEQ + 1] for k, at in enumerate(starts)})
    sparse_shard(case.path("small.bin"), width, len(stream), {0: stream})
    for (at, far), (_, near) in zip(score("windows.bin", *drawn), score("small.bin")):
        report.check(abs(far - near) < 1e-6 * near, f"{what}: at {at}: {far} nats, in the small shard {near}")
    beyond = sum(start * width > 1 << 32 for start in starts)
    report.check(beyond > 0, f"{what}: no window beyond 4 GiB: {starts}")
    return beyond


def large(w, report):
    report.begin("large")
    where = tempfile.mkdtemp(prefix="torture.", dir=os.environ.get("TMPDIR"))
    try:
        beyond = 0
        for width, tokens in ((4, 1_250_000_000), (2, 2_500_000_000)):
            apart = world.World(w.binary, w.faults, os.path.join(where, str(width)))
            case = apart.case()
            if far_end(report, case, width, tokens):
                beyond += far_windows(report, case, width, tokens)
            shutil.rmtree(apart.root)
        report.figure(f"sparse shards of 5.0 GB: 1.25G uint32 and 2.5G raw uint16 tokens; {STEPS} steps at the end "
                      f"of each, {beyond} of 64 eval windows beyond 4 GiB")
    finally:
        shutil.rmtree(where, ignore_errors=True)
    report.end()


# ---------------------------------------------------------------------------------------------
# Leaks and races

# A model large enough that every parallel loop uses two threads
WIDE = ("--layers 2 --heads 4 --channels 64 --block-size 64 --vocab-size 257 --batch 4 --total-batch 512 --warmup 1 "
        "--val-batches 2 --sample-tokens 8 --steps 4 --val-every 2 --sample-every 2 --save-every 2 --keep 1").split()

# The commands to run under each tool, with their exit status.
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


def watched(w, report, binary, prefix, env, commands, log):
    """Runs the commands under a tool that writes its findings to files `log`*."""
    case = watched_case(w)
    for args, wanted in commands:
        done = subprocess.run([*prefix, binary, *args], cwd=case.dir, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", env={**os.environ, "OMP_NUM_THREADS": "2", **env})
        found = ""
        for name in sorted(os.listdir(case.dir)):
            if name.startswith(log):
                with open(case.path(name), errors="replace") as f:
                    found += f.read()
                os.remove(case.path(name))
        command = " ".join(args)
        report.check(done.returncode == wanted,
                     f"{command}: expected status {wanted}, got {done.returncode}: {done.stderr[-300:]!r}")
        report.check(not found.strip(), f"{command}:\n{found[:3000]}")
    case.remove()


def leaks(w, report, built):
    report.begin("leaks")
    binary = os.path.abspath(os.path.join(built, "valgrind"))
    if not shutil.which("valgrind"):
        report.skip("memory and leaks: valgrind is not installed")
    elif not os.path.exists(binary):
        report.skip(f"memory and leaks: {binary} was not built")
    else:
        tool = ["valgrind", "-q", "--leak-check=full", "--show-leak-kinds=all", "--errors-for-leak-kinds=all",
                "--error-exitcode=99", "--log-file=found.%p"]
        watched(w, report, binary, tool, {}, COMMANDS, "found")
        report.figure(f"valgrind's memcheck on {len(COMMANDS)} commands, every kind of leak")
    report.end()


def detects_races(probe, env):
    """True if ThreadSanitizer works here: it finds the probe's race, and none if a barrier orders the threads."""
    found = [subprocess.run([*without_aslr(), probe, how], capture_output=True, text=True, env={**os.environ, **env})
             for how in ("race", "clean")]
    return "data race" in found[0].stderr and found[1].returncode == 0 and "data race" not in found[1].stderr


def without_aslr():
    """ThreadSanitizer does not work with the address randomization of some kernels."""
    return ["setarch", os.uname().machine, "-R"] if shutil.which("setarch") else []


def races(w, report, built):
    report.begin("races")
    folder = os.path.abspath(os.path.join(built, "races"))
    programs = [os.path.join(folder, name) for name in ("probe", "train_gpt_tost", "test_gemm")]
    env = {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1 exitcode=66", "OMP_NUM_THREADS": "2"}
    if not all(map(os.path.exists, programs)):
        report.skip("races: the programs were not built: needs clang with libomp and -fsanitize=thread")
    elif not detects_races(programs[0], env):
        report.skip("races: ThreadSanitizer does not support OpenMP here: needs libarcher of libomp")
    else:
        logged = {**env, "TSAN_OPTIONS": env["TSAN_OPTIONS"] + " log_path=found"}
        watched(w, report, programs[1], without_aslr(), logged, COMMANDS, "found")
        gemm = subprocess.run([*without_aslr(), programs[2]], capture_output=True, text=True, env={**os.environ, **env})
        report.check(gemm.returncode == 0 and "data race" not in gemm.stderr,
                     f"test_gemm: {gemm.stdout[-300:]}{gemm.stderr[:2000]}")
        report.figure(f"ThreadSanitizer on {len(COMMANDS)} commands and test_gemm, 2 threads; the probe works")
    report.end()
