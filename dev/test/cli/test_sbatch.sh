#!/bin/sh
# shellcheck disable=SC2154
# test_sbatch.sh BINARY: when dev/cluster/train.sbatch requeues its job, with srun, scontrol and a trainer that are
# replaced by scripts.
. "$(dirname "$0")/../lib.sh"

command -v bash >/dev/null || { skip "train.sbatch: no bash"; finish; }
mkdir bin
cat >bin/srun <<'END'
#!/bin/sh
while case $1 in -*) ;; *) false ;; esac; do shift; done
exec "$@"
END
# Slurm 22.05 prints both times on one line; PreemptTime is None if the job was not preempted.
cat >bin/scontrol <<'END'
#!/bin/sh
case "$1 $2" in
    "show hostnames") echo node1 ;;
    "show job") printf 'JobId=%s\n   PreemptEligibleTime=2026-01-01T00:00:00 PreemptTime=%s\n' "$3" "$PREEMPTED" ;;
    "requeue 7") echo requeued >>"$REQUEUED" ;;
    *) exit 1 ;;
esac
END
cat >bin/trainer <<'END'
#!/bin/sh
echo "$*" >arguments
[ "$SAVED" = none ] || mkdir -p "run/$SAVED"
exit "$STATUS"
END
chmod +x bin/*

# job STATUS SAVED PREEMPTED RESTARTS RESULT: runs the script; the trainer saves run/SAVED and exits with STATUS. The
# result is `requeued`, once and with status 0, or empty.
job() {
    : >requeued
    execute env PATH="$dir/bin:$PATH" STATUS="$1" SAVED="$2" PREEMPTED="$3" REQUEUED="$dir/requeued" TOST=trainer \
        SLURM_RESTART_COUNT="$4" SLURM_JOB_ID=7 SLURM_JOB_NODELIST=node1 SLURM_CPUS_PER_TASK=1 \
        bash "$repo/dev/cluster/train.sbatch" run --steps 9
    what="status $1, saved $2, preempted $3, $4 restarts"
    check "$what: '$(cat requeued)', expected '$5'" [ "$(cat requeued)" = "$5" ]
    [ "$5" ] && wanted=0 || wanted=$1
    check "$what: exit status $status, expected $wanted" [ $status -eq "$wanted" ]
}

time=2026-01-01T00:01:00
job 138 none None 0 requeued
check "the first start and later ones have the same command" says "--steps 9 --resume auto --out run" arguments
job 75 step_00000003 None 1 requeued
job 138 step_00000005 None 2 requeued
job 137 step_00000008 None 3 requeued
job 138 none None 1 ''
check "it says why" says "without a new checkpoint in run" stderr
job 143 step_00000009 $time 0 requeued
job 143 none $time 1 requeued
job 143 step_00000010 None 1 ''
job 143 none None 0 ''
job 1 step_00000011 $time 0 ''
job 0 none None 0 ''
finish
