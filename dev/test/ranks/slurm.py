"""slurm.py: dev/cluster/train.sbatch on a Slurm cluster of four nodes on this machine, whose daemons have their own
munge key, ports and folder. Needs root."""

import os
import shutil
import signal
import socket
import subprocess
import time

import launch
import world

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
PORT = 26817


def unavailable():
    """Why Slurm cannot be used here, or None."""
    missing = [p for p in PROGRAMS if not shutil.which(p) and not shutil.which(p, path="/usr/sbin")]
    if missing:
        return f"no {', '.join(missing)} (Debian: munge, slurmctld, slurmd, slurm-client)"
    return None if os.geteuid() == 0 else "needs root"


class Slurm:
    """A context: the daemons run. Raises RuntimeError if they do not start."""

    def __init__(self, folder):
        self.folder, self.nodes = folder, [f"n{i}" for i in range(1, 5)]
        self.conf = os.path.join(folder, "slurm.conf")
        self.env = {**os.environ, "SLURM_CONF": self.conf, "PATH": f"{os.environ['PATH']}:/usr/sbin"}

    def configuration(self):
        host, d = socket.gethostname(), self.folder
        return f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={PORT}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={d}/munge.socket,cred_expire=6
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/%n/spool
TmpFS={d}/%n/tmp
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/%n/slurmd.pid
SlurmctldLogFile={d}/slurmctld.log
SlurmdLogFile={d}/%n/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MpiDefault=pmix
NodeName=n[1-4] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{PORT + 1}-{PORT + 4}] CPUs=1 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

    def call(self, *words, check=True):
        """Runs a command of Slurm; returns what it prints."""
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()[:300]}")
        return done.stdout

    def __enter__(self):
        for path in ("state", *(f"{n}/{sub}" for n in self.nodes for sub in ("spool", "tmp"))):
            os.makedirs(os.path.join(self.folder, path))
        os.chmod(self.folder, 0o755)   # munged demands it
        key = os.path.join(self.folder, "munge.key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as f:
            f.write(os.urandom(128))
        with open(self.conf, "w") as f:
            f.write(self.configuration())
        try:
            munge = [f"--{name}={self.folder}/munge.{name.split('-')[0]}"
                     for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")]
            self.call("munged", "--force", *munge)
            self.call("slurmctld", "-c")
            for node in self.nodes:
                self.call("slurmd", "-N", node)
            self.wait_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_idle(self):
        end = time.monotonic() + 20
        while self.call("sinfo", "-h", "-t", "idle", "-o", "%D", check=False).strip() != "4":
            if time.monotonic() > end:
                raise RuntimeError(f"the nodes are not idle: {self.call('sinfo', '-N', check=False)}")
            time.sleep(0.2)

    def __exit__(self, *_):
        pids = []
        for path in ("slurmctld.pid", "munge.pid", *(f"{n}/slurmd.pid" for n in self.nodes)):
            try:
                with open(os.path.join(self.folder, path)) as f:
                    pids.append(int(f.read()))
                os.kill(pids[-1], signal.SIGTERM)
            except (OSError, ValueError):
                pass
        end = time.monotonic() + 10
        while any(launch.runs(pid) for pid in pids) and time.monotonic() < end:
            time.sleep(0.05)

    def state(self, job):
        return dict(field.partition("=")[::2] for field in self.call("scontrol", "-o", "show", "job", job).split())

    def wait(self, job, condition, seconds=150):
        """Waits until condition(state) is true; returns the state."""
        end = time.monotonic() + seconds
        while not condition(state := self.state(job)):
            if time.monotonic() > end:
                raise RuntimeError(f"job {job} after {seconds} s: {state.get('JobState')}, {state.get('Reason')}")
            time.sleep(0.2)
        return state


def ended(state):
    return state["JobState"] not in ("RUNNING", "COMPLETING", "PENDING")


def interrupt(slurm, case, job, mpi, how, starts):
    """Waits until the job trains, interrupts it, and waits until it is requeued."""
    before = launch.logged_steps(case.dir)
    slurm.wait(job, lambda state: ended(state) or launch.logged_steps(case.dir) > before + 20)
    if how == "SIGUSR1":   # as Slurm sends it before the time limit
        slurm.call("scancel", "--signal=USR1", job)
    elif how == "SIGKILL":
        for pid in list(launch.find_ranks(mpi.binary, case.dir).values())[-1:]:
            os.kill(pid, signal.SIGKILL)
    return slurm.wait(job, lambda state: int(state["Restarts"]) == starts or ended(state))


def requeues(w, report, mpis, script, time_limit):
    """The job script continues after SIGUSR1 and after the loss of a rank, and ends with the bytes of one start."""
    report.begin("slurm")
    why = unavailable()
    if why:
        report.skip(why)
        return report.end()
    args = launch.run_options("plain", steps=2000 if time_limit else 300)
    reference = launch.single(w, w.binary, [*args, *world.OUT])["tree"]
    folder = os.path.join(w.root, "slurm")
    with Slurm(folder) as slurm:
        for mpi in mpis:
            case = w.case()
            slurm.env.update(TOST=mpi.binary, TOST_MPI="pmix" if mpi.name == "openmpi" else "pmi2",
                             OMP_WAIT_POLICY="passive")
            submitted = slurm.call("sbatch", "--parsable", f"--chdir={case.dir}", "--cpus-per-task=1",
                                   *(["--time=1", "--signal=USR1@45"] if time_limit else []), script, "run", *args)
            job = submitted.strip()
            for starts, how in enumerate(["limit"] if time_limit else ["SIGUSR1", "SIGKILL"], 1):
                state = interrupt(slurm, case, job, mpi, how, starts)
                report.check(int(state["Restarts"]) == starts, f"{mpi.name}, {how}: {case_log(case, job)}")
            state = slurm.wait(job, ended)
            report.check(state["JobState"] == "COMPLETED", f"{mpi.name}: {state['JobState']}: {case_log(case, job)}")
            case.check_same(report, f"{mpi.name}, requeued {state['Restarts']} times", reference, older=False)
            case.remove()
    report.end()


def case_log(case, job):
    with open(case.path(f"tost-{job}.log")) as f:
        return f.read()[-600:]
