"""equal.py: the results do not depend on the number of ranks, the number of threads, or the MPI library."""

import re

import launch
import world


def samples(text):
    """The samples in the output of train."""
    return [line for line in text.splitlines() if line.startswith("  |")]


def compare(w, report, mpi, model, args, reference, ranks):
    what = f"{mpi.name}, {model}, {ranks} ranks"
    case = w.case()
    result = launch.run(case, mpi, ranks, [*args, *world.OUT])
    report.check(result.status == 0, f"{what}: {result.summary()}")
    case.check_same(report, what, reference["tree"])
    report.check(samples(result.out) == samples(reference["out"]) != [], f"{what}: the samples differ")
    ends = re.findall(r"^done: +30 steps", result.out, re.M)
    report.check(len(ends) == 1, f"{what}: {len(ends)} ranks print the end of the run: {result.out[-300:]}")
    case.remove()


def same_bytes(w, report, mpis, models):
    """30 steps with accumulation, validation, sampling and saving: equal checkpoints, and logs but for times."""
    report.begin("equal")
    for model in models:
        args = launch.run_options(model)
        reference = launch.single(w, w.binary, [*args, *world.OUT])
        for mpi in mpis:
            alone = launch.single(w, mpi.binary, [*args, *world.OUT])
            report.check(world.comparable(alone["tree"], True) == world.comparable(reference["tree"], True),
                         f"{model}, {mpi.name}: one process differs from a build without MPI")
            for ranks in (1, 2, 4):
                compare(w, report, mpi, model, args, reference, ranks)
    report.end()


def changed_parts(w, report, mpis):
    """The sum of the gradients is ordered by --parts: a resumed run may change it, and says what that means."""
    report.begin("parts")
    args = launch.run_options("plain", steps=6)
    for mpi in mpis:
        case = w.case()
        report.check(launch.run(case, mpi, 2, [*args, *world.OUT]).status == 0, f"{mpi.name}: the run to resume fails")
        tree = case.tree()
        for parts, says in (("4", False), ("2", True)):
            again = w.case(tree)
            result = launch.run(again, mpi, 2, ["--resume", *world.OUT, "--threads", "1", "--steps", "8", "--parts",
                                                parts])
            text = [line for line in (result.out + result.err).splitlines() if "--parts" in line and "order" in line]
            report.check(result.status == 0 and len(text) == says,
                         f"{mpi.name}, --parts {parts} after 4: {result.summary()}, of the order: {text}")
            again.remove()
        case.remove()
    report.end()
