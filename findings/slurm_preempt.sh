#!/bin/bash
# slurm_preempt.sh: a Slurm job that ends by itself within the grace time of a preemption is not requeued; without a
# grace time, its processes get SIGTERM twice within milliseconds.
#
# version    slurmctld, slurmd and slurm-client 22.05.8-4+deb12u3 (Debian 12)
# expected   with PreemptMode=REQUEUE, a preempted job is requeued; a process gets one SIGTERM and, after GraceTime or
#            KillWait, SIGKILL
# behaviour  With GraceTime=20, a job that saves on SIGTERM and exits with 143, as checkpointing programs do, ends as
#            FAILED and is lost: Slurm requeues only what still runs at the end of the grace time. PreemptTime of
#            `scontrol show job` tells such a job from one that was cancelled. With GraceTime=0 the job is requeued, but
#            SIGTERM comes twice, some milliseconds apart, which a program may take for an impatient user.
# seen
#            GraceTime=20: 1 SIGTERM, FAILED, Restarts=0, PreemptTime is set
#            GraceTime=0: 2 SIGTERM, PENDING, Restarts=1
#
# Needs Debian 12, root, python3, and the packages' dependencies (apt-get install slurmctld slurmd). The packages are
# unpacked in a temporary folder, and slurmctld and slurmd run from it, on this machine only. Exits with 1 if the output
# is another one.
set -eu
version=22.05.8-4+deb12u3
dir=$(mktemp -d)
# shellcheck disable=SC2046
stop() { kill $(cat "$dir"/*.pid 2>/dev/null) 2>/dev/null || true; sleep 1; rm -rf "$dir"; }
trap stop EXIT
cd "$dir"
mkdir state spool packages
chmod 755 "$dir"
(cd packages && apt-get download -qq -o APT::Sandbox::User=root slurmctld=$version slurmd=$version \
    slurm-client=$version slurm-wlm-basic-plugins=$version)
for package in packages/*.deb; do dpkg -x "$package" root; done
plugins=$(dirname "$(find "$dir/root" -name auth_none.so)")
export LD_LIBRARY_PATH=$plugins PATH=$dir/root/usr/sbin:$dir/root/usr/bin:$PATH SLURM_CONF=$dir/slurm.conf
host=$(hostname -s)
configure() {
    cat >slurm.conf <<END
ClusterName=finding
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=26817
SlurmdPort=26818
SlurmUser=root
AuthType=auth/none
CredType=cred/none
PluginDir=$plugins
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=10
MailProg=/bin/true
NodeName=$host NodeAddr=127.0.0.1 CPUs=1
PartitionName=low Nodes=$host Default=YES PriorityTier=1 GraceTime=$1
PartitionName=high Nodes=$host PriorityTier=10 PreemptMode=OFF
END
}
# The job's process: counts the SIGTERM of its first second, and exits with 143.
cat >process.py <<'END'
import signal, sys, time
count = 0
def term(number, frame):
    global count
    count += 1
signal.signal(signal.SIGTERM, term)
open(sys.argv[1], "w").write("running")
while not count:
    time.sleep(0.001)
time.sleep(1)
open(sys.argv[1], "w").write(f"{count} SIGTERM")
sys.exit(143)
END
# shellcheck disable=SC2016
printf '#!/bin/sh\nsrun --mpi=none python3 %s/process.py "$1"\n' "$dir" >job.sh

# try GRACE: one job in the partition low, which a job in the partition high preempts
try() {
    job=$(sbatch --parsable --requeue -n1 -o /dev/null job.sh "$dir/got$1")
    until [ "$(cat "got$1" 2>/dev/null)" = running ]; do sleep 0.2; done
    sleep 1
    sbatch -p high -n1 -o /dev/null --wrap 'sleep 3' >/dev/null
    until grep -q SIGTERM "got$1"; do sleep 0.2; done
    sleep 3
    scontrol show job "$job" >state.txt
    state=$(grep -o 'JobState=[A-Z]*' state.txt) restarts=$(grep -o 'Restarts=[0-9]*' state.txt)
    preempted=
    if grep -q ' PreemptTime=[0-9]' state.txt; then preempted=", PreemptTime is set"; fi
    echo "GraceTime=$1: $(cat "got$1"), ${state#*=}, $restarts$preempted"
    scancel "$job"
    sleep 4
}
configure 20
slurmctld
slurmd
until sinfo -h -o %T 2>/dev/null | grep -q idle; do sleep 0.5; done
try 20 | tee seen
configure 0
scontrol reconfigure
sleep 2
try 0 | tee -a seen
cat >expected <<'END'
GraceTime=20: 1 SIGTERM, FAILED, Restarts=0, PreemptTime is set
GraceTime=0: 2 SIGTERM, PENDING, Restarts=1
END
cmp seen expected
