"""equal.py: the results do not depend on the number of ranks or hosts, or on the MPI library."""

import hosts
import launch
import world


def samples(text):
    """The samples in the output of train."""
    return [line for line in text.splitlines() if line.startswith("  |")]


def same_bytes(w, report, mpis, models):
    """30 steps with accumulation, validation, sampling and saving: equal checkpoints, and logs but for times."""
    for model in models:
        args = launch.run_options(model)
        reference = launch.single(w, w.binary, args)
        for mpi in mpis:
            alone = launch.single(w, mpi.binary, args)
            report.check(world.comparable(alone["tree"], True) == world.comparable(reference["tree"], True),
                         f"{model}, {mpi.name}: one process differs from a build without MPI")
            for ranks in (1, 2, 4):
                what, case = f"{mpi.name}, {model}, {ranks} ranks", w.case()
                result = launch.run(case, mpi, ranks, args)
                report.check(result.status == 0 and result.out.count("\ndone: ") == 1, f"{what}: {result.summary()}")
                report.check(samples(result.out) == samples(reference["out"]) != [], f"{what}: the samples differ")
                case.check_same(report, what, reference["tree"])
                case.remove()


def changed_parts(w, report, mpis):
    """A resumed run may change --parts, and says so."""
    for mpi in mpis:
        case = w.case()
        report.check(launch.run(case, mpi, 2, launch.run_options(steps=6)).status == 0, f"{mpi.name}: no run to resume")
        tree = case.tree()
        for parts, says in (("4", False), ("2", True)):
            again = w.case(tree)
            result = launch.run(again, mpi, 2, [*launch.resumed(again), "--steps", "8", "--parts", parts])
            said = (result.out + result.err).count(f"--parts {parts} instead of 4")
            report.check(result.status == 0 and said == says,
                         f"{mpi.name}, --parts {parts} after 4: {result.summary()}: said {said} times")
            again.remove()
        case.remove()


def network(w, report, mpis):
    """Four hosts (network namespaces) with TCP between them. A link that goes down ends the run on both sides of it."""
    timeout, args = 3, launch.run_options("odd")
    why = hosts.unavailable()
    if why:
        return report.skip(why)
    reference = launch.single(w, w.binary, args)["tree"]
    for mpi in mpis:
        with hosts.Hosts(4, w.root) as four:
            place = {"on": four.on(1), "options": four.mpi_options(mpi)}
            case, what = w.case(), f"{mpi.name}, 4 hosts"
            result = launch.run(case, mpi, 4, args, **place)
            report.check(result.status == 0, f"{what}: {result.summary()}")
            case.check_same(report, what, reference)
            case, what = w.case(), f"{mpi.name}, the link of host 3 goes down"
            job = launch.Job(case.dir, mpi, 4, launch.run_options(steps=100000, timeout=timeout), **place)
            report.check(job.wait_steps(20), f"{what}: does not train")
            four.cut(3)
            job.signal(0)   # the time counts from here
            result = job.finish()
            report.check(result.status == 75 and result.seconds < timeout + launch.ENDED_WITHIN
                         and [line for line in result.lines() if "rank 2 on host3" in line] == result.lines() != [],
                         f"{what}: after {result.seconds:.1f} s: {result.summary()}")
            report.figure(f"{what}: all had ended after {result.seconds:.1f} s")
            case.check_checkpoints(report, what, 6, sample=False)
