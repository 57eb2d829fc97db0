"""sequence.py: --seq-ranks K gives the bytes of one process with --chunk seq/K."""

import launch
import world
from equal import samples

# model, K, groups of K ranks, parts, micro-batches per part, more options
CASES = [
    ("plain", 2, 1, 1, 1, []),
    ("plain", 4, 1, 1, 3, []),
    ("plain", 2, 2, 2, 2, ["--recompute"]),
    ("plain", 2, 1, 2, 1, ["--dtype", "bf16"]),
    ("plain", 4, 1, 1, 2, ["--mask-across-documents"]),
    ("biased", 4, 1, 1, 2, ["--order", "sequential"]),
    ("biased", 3, 1, 2, 1, ["--membership", "uniform"]),
]


def arguments(case):
    model, _, _, parts, micro_batches, more = case
    args = launch.run_options(model, parts=parts, micro_batches=micro_batches)
    if "--order" in more:
        at = args.index("--order")
        del args[at:at + 2]
    return [*args, *more]


def chunk(case):
    return str(launch.SEQ[case[0]] // case[1])


def same_bytes(w, report, mpis):
    """30 steps with accumulation, validation, sampling and saving: equal checkpoints, and logs but for times."""
    report.begin("sequence")
    for case in CASES:
        model, ranks_each, groups, *_ = case
        reference = launch.single(w, w.binary, [*arguments(case), "--chunk", chunk(case), *world.OUT])
        for mpi in mpis:
            what = f"{mpi.name}, {model}, {groups} × {ranks_each} ranks, {' '.join(case[5])}"
            folder = w.case()
            result = launch.run(folder, mpi, groups * ranks_each,
                                [*arguments(case), "--seq-ranks", str(ranks_each), *world.OUT])
            report.check(result.status == 0, f"{what}: {result.summary()}")
            folder.check_same(report, what, reference["tree"])
            report.check(samples(result.out) == samples(reference["out"]) != [], f"{what}: the samples differ")
            folder.remove()
    for mpi in mpis:
        resumed(w, report, mpi)
        interrupted(w, report, mpi)
    report.end()


def resumed(w, report, mpi):
    """A run of 2 ranks continues in one process, in chunks, and back."""
    args = [*launch.run_options("plain", parts=1, steps=24), "--schedule", "constant"]
    first = [*launch.run_options("plain", parts=1, steps=15), "--schedule", "constant"]
    reference = launch.single(w, w.binary, [*args, "--chunk", "16", *world.OUT])["tree"]
    more = ["--resume", *world.OUT, "--threads", "1", "--steps", "24"]
    folder = w.case()
    launch.run(folder, mpi, 2, [*first, "--seq-ranks", "2", *world.OUT])
    result = launch.run(folder, mpi, 1, more)
    report.check(result.status == 0, f"{mpi.name}, from ranks to chunks: {result.summary()}")
    folder.check_same(report, f"{mpi.name}, from ranks to chunks", reference, older=False)
    folder.remove()
    folder = w.case(launch.single(w, w.binary, [*first, "--chunk", "16", *world.OUT])["tree"])
    result = launch.run(folder, mpi, 2, [*more, "--seq-ranks", "2"])
    report.check(result.status == 0, f"{mpi.name}, from chunks to ranks: {result.summary()}")
    folder.check_same(report, f"{mpi.name}, from chunks to ranks", reference, older=False)
    folder.remove()


def interrupted(w, report, mpi):
    """A signal to one rank stops all after a step or between micro-batches; the resumed run has the same bytes."""
    args = launch.run_options("plain", parts=2, micro_batches=8, steps=200)
    reference = launch.single(w, w.binary, [*args, "--chunk", "16", *world.OUT])["tree"]
    for rank in (0, 3):
        folder = w.case()
        job = launch.start(folder, mpi, 4, [*args, "--seq-ranks", "2", *world.OUT])
        stopped = job.wait_ranks(4) and job.wait_steps(20)
        job.signal(launch.signal.SIGUSR1, rank)
        result = job.finish()
        report.check(stopped and result.status != 0 and launch.logged_steps(folder.dir) < 200,
                     f"{mpi.name}, signal to rank {rank}: {result.summary()}, {launch.logged_steps(folder.dir)} steps")
        result = launch.run(folder, mpi, 4, ["--resume", *world.OUT, "--threads", "1", "--seq-ranks", "2"])
        report.check(result.status == 0, f"{mpi.name}, resumed after a signal: {result.summary()}")
        folder.check_same(report, f"{mpi.name}, resumed after a signal to rank {rank}", reference, older=False)
        folder.remove()
