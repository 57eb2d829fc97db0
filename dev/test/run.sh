#!/bin/sh
# run.sh PROGRAM...: runs the reference test, the given test programs and the scripts dev/test/*/test_*.sh, one per core
# at a time, and prints the output of each when it ends. The last line is the sum of their summary lines. The exit
# status is 0 only if every program passed and printed its summary line.
#   QUICK=1               fewer cases (make test)
#   SCRIPTS="NAME …"      only these scripts, test_NAME.sh; empty: none
#   NO_EMULATION=REASON   counts the tests of the CUDA emulation as skipped
#   PYTHON                the Python to test with, default python3; tests of missing packages are skipped
#   JOBS                  number of programs at a time, default one per core
#   LIMIT                 seconds after which a program is ended and counts as failed, default 1800
set -u
started=$(date +%s)
work=$(mktemp -d) || exit 1
LIMIT=${LIMIT:-1800} xargs=
trap 'kill $xargs 2> /dev/null; end_late -1; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
# Otherwise, waiting OpenMP threads would spin on cores that other programs need.
export work OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" QUICK="${QUICK:-}"

# run_one NUMBER PROGRAM: writes NUMBER.begun with its process group and start, NUMBER.out, then NUMBER.done with exit
# status, seconds and program. Without a terminal, dash has no set -m; macOS and the BSDs have no setsid.
cat > "$work/run_one" << 'END'
number=$1 name=${2% ./train_gpt_tost} started=$(date +%s)
set -- $2   # split into the program and its arguments
group=$(command -v setsid) || set -m
$group "$@" > "$work/$number.out" 2>&1 &
echo "$! $started" > "$work/$number.begun"
wait $!
echo "$? $(($(date +%s) - started)) $name" 2> /dev/null > "$work/$number.tmp" || exit 1   # run.sh was stopped
rm -f "$work/$number.begun"
mv "$work/$number.tmp" "$work/$number.done"
END

# end_late SECONDS: ends the programs that have run for longer, with their process groups.
end_late() {
    now=$(date +%s)
    for begun in "$work"/*.begun; do
        { [ -e "$begun" ] && read -r group at < "$begun" && [ $((now - at)) -gt "$1" ]; } 2> /dev/null || continue
        : > "${begun%.begun}.late"
        kill -KILL "-$group" 2> /dev/null || kill -KILL "$group" 2> /dev/null   # without a group, the program alone
    done
}

# print_done FILE: prints the output of a finished program; of the indented lines, which are errors, the ten largest.
print_done() {
    read -r status seconds program < "$1"
    out=${1%.done}.out
    grep -av '^    ' "$out"
    ! grep -aq '^    ' "$out" || echo "largest measured errors:"
    grep -a '^    ' "$out" | sort -k2,2gr | head -10
    problem=
    if [ -e "${1%.done}.late" ]; then
        problem="did not end in $LIMIT s"
    elif ! grep -aE '^[a-z0-9_]+: [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$out" >> "$work/counts"; then
        problem="exit status $status, no summary line"
    fi
    [ -z "$problem" ] || echo "$program: $problem: 0 passed, 1 failed, 0 skipped" | tee -a "$work/counts"
    [ "$status" -eq 0 ] || bad=1
    [ "$seconds" -le 2 ] || echo "($program: $seconds s)"
    rm -f "$1"
}

bad=0 number=0
list() { number=$((number + 1)); printf '%s\0%s\0' $number "$*"; }
scripts=$(printf '%s\n' dev/test/*/test_*.sh)
[ -z "${SCRIPTS+given}" ] || scripts=$(for name in $SCRIPTS; do ls dev/test/*/test_"$name".sh || exit; done) || exit
ranks=dev/test/ranks/test_distributed.sh   # first, because it takes long and mostly waits
long='dev/test/cli/test_(exchange|huggingface|reproduce).sh'   # before short ones, so that none runs alone at the end
for program in $(echo "$scripts" | grep -x $ranks) "$@" ./test_tost \
    $(echo "$scripts" | grep -xE "$long") $(echo "$scripts" | grep -vxE "$ranks|$long"); do
    case $program${QUICK:+1} in
        */cuda_on_host*/test) list "$program" --first-half
            list env CUDA_ON_HOST_INEXACT=1 "$program" --second-half
            list env CUDA_ON_HOST_INEXACT=1 "${program}_tost" --cuda 0
            list env CUDA_ON_HOST_INEXACT=1 "${program}_tost" --cuda 1 ;;
        */cuda_on_host*/test1) list "$program" --quick ;;
        *.sh | *.sh1) list "$program" ./train_gpt_tost ;;
        *) list "$program" ;;
    esac
done > "$work/programs"
xargs -0 -n 2 -P "${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}" sh "$work/run_one" < "$work/programs" &
xargs=$!
running=1
while [ $number -gt 0 ] && [ "$running" ]; do
    sleep 0.2
    kill -0 $xargs 2> /dev/null || running=
    end_late "$LIMIT"
    for file in "$work"/*.done; do
        [ ! -e "$file" ] || { print_done "$file"; number=$((number - 1)); }
    done
done
[ $number -eq 0 ] || { echo "$number programs left no result"; bad=1; }
wait
if [ -n "${NO_EMULATION:-}" ]; then
    echo "skipped cuda_on_host: $NO_EMULATION"
    echo 'cuda_on_host: 0 passed, 0 failed, 1 skipped' | tee -a "$work/counts"
fi
seconds=$(($(date +%s) - started))
echo "tests ran for $((seconds / 60)) min $((seconds % 60)) s"
awk '{ for (i = 2; i <= NF; i++) {
           if ($i == "passed,") p += $(i-1); if ($i == "failed,") f += $(i-1); if ($i == "skipped") s += $(i-1) } }
     END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f != 0 || p == 0 }' "$work/counts" || bad=1
exit $bad
