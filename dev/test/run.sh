#!/bin/sh
# run.sh TEST…: runs the judge, the tests of the modules given, the command line's, and those of the Python under dev/
# (which skip what PYTHON, default python3, has no packages for); closes on one line for all of them. NO_HOST, where it
# is not empty, says why the run of the CUDA kernels on a CPU is not among them. The exit status is 0 only if every
# program passed and none ended without its own closing line.
set -u
started=$(date +%s)
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
bad=0
set -- ./test_tost "$@"
for script in cli data_scripts exchange gpu_bench refusals sizes; do
    set -- "$@" "dev/test/test_$script.sh ./train_gpt_tost"
done
for program; do
    $program > "$log.one" 2>&1   # unquoted: a program and its operands
    status=$?
    # the judge's table of errors is long: the worst ten of it, and all other lines
    grep -v '^    ' "$log.one"
    grep '^    ' "$log.one" | sort -k2,2gr | head -10
    grep -E '^[a-z_]+: [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log.one" >> "$log" ||
        echo "$program: ended with status $status before its closing line: 0 passed, 1 failed, 0 skipped" |
            tee -a "$log"
    [ "$status" -eq 0 ] || bad=1
    rm -f "$log.one"
done
if [ -n "${NO_HOST:-}" ]; then
    echo "skipped cuda_on_host: $NO_HOST"
    echo 'cuda_on_host: 0 passed, 0 failed, 1 skipped' | tee -a "$log"
fi
seconds=$(($(date +%s) - started))
echo "tests ran for $((seconds / 60)) min $((seconds % 60)) s"
awk '{ for (i = 2; i <= NF; i++) {
           if ($i == "passed,") p += $(i-1); if ($i == "failed,") f += $(i-1); if ($i == "skipped") s += $(i-1) } }
     END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f != 0 || p == 0 }' "$log" || bad=1
exit $bad
