"""network.py: ranks on four hosts (network namespaces) with TCP between them."""

import failures
import hosts
import launch
import world

TIMEOUT = 3


def start_on(four, case, mpi, args):
    command = [*four.on(1), *mpi.command(4, four.mpi_options(mpi)), mpi.binary, *args, *world.OUT]
    return launch.Job(command, mpi.binary, case.dir, launch.environment())


def network(w, report, mpis):
    """The bytes of one process; a link that goes down ends the run, also on the host behind it."""
    report.begin("network")
    why = hosts.unavailable()
    if why:
        report.skip(why)
        return report.end()
    reference = {model: launch.single(w, w.binary, [*launch.run_options(model), *world.OUT])["tree"]
                 for model in ("plain", "odd")}
    for mpi in mpis:
        with hosts.Hosts(4, w.root) as four:
            for model in reference:
                case, what = w.case(), f"{mpi.name}, {model}, 4 hosts"
                result = start_on(four, case, mpi, launch.run_options(model)).finish()
                report.check(result.status == 0, f"{what}: {result.summary()}")
                case.check_same(report, what, reference[model])
                case.remove()
            link_down(w, report, four, mpi)
    report.end()


def link_down(w, report, four, mpi):
    case, what = w.case(), f"{mpi.name}, the link of host 3 goes down"
    args = launch.run_options("plain", steps=100000, timeout=TIMEOUT)
    job = start_on(four, case, mpi, args)
    report.check(job.wait_steps(20) and len(job.ranks()) == 4, f"{what}: does not train")
    four.cut(3)
    job.signal(0)   # the time counts from here
    result = job.finish()
    report.check(result.status == failures.LOST and result.seconds < TIMEOUT + launch.ENDED_WITHIN,
                 f"{what}: after {result.seconds:.1f} s: {result.summary()}")
    report.check(len(result.lines()) == 1 and "rank 2 on host3" in result.lines()[0], f"{what}: {result.err[-600:]!r}")
    report.figure(f"{what}: all had ended after {result.seconds:.1f} s")
    case.check_checkpoints(report, what, 6, sample=False)
    case.remove()
