#!/bin/sh
# openmp_inner_region.sh: in libgomp, a parallel region inside another one starts new threads each time, even if the
# outer region has one thread. LLVM's and Intel's runtime keep the threads. A loop of small matrix products inside
# `parallel for if (0)` therefore runs at 0.3 to 0.8 of its speed with GCC's runtime only.
#
# version    libgomp of the wheel of scikit-learn 1.7.2, libiomp5 of intel-openmp 2026.2.0 (PyPI), x86-64 Linux; any GCC
# expected   20 regions of two threads, one after the other, use the same second thread, wherever they are
# behaviour  Inside an outer region of one thread, libgomp uses a new second thread for each of the 20. The outer region
#            may have num_threads(1) or if (0).
# seen
#            libgomp: alone 1, inside if (0) 20, inside num_threads(1) 20
#            libiomp5: alone 1, inside if (0) 1, inside num_threads(1) 1
#
# Needs Python 3 with pip and gcc. Exits with 1 if the output is another one.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
for package in scikit-learn==1.7.2 intel-openmp==2026.2.0; do
    python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$package" "$package"
    python3 -m zipfile -e "$package"/*.whl "$package/files"
done
cat >regions.c <<'END'
#include <omp.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static long second;   // system's number of the second thread of a region

static void region(void) {
    #pragma omp parallel num_threads(2)
    if (omp_get_thread_num() == 1) second = syscall(SYS_gettid);
}

static int second_threads(int outer) {   // outer: 0 none, 1 if (0), 2 num_threads(1)
    long seen[20];
    int n = 0, k;
    for (int i = 0; i < 20; i++) {
        if (outer == 0) region();
        if (outer == 1) {
            #pragma omp parallel if (0)
            region();
        }
        if (outer == 2) {
            #pragma omp parallel num_threads(1)
            region();
        }
        for (k = 0; k < n && seen[k] != second; k++) { }
        if (k == n) seen[n++] = second;
    }
    return n;
}

int main(void) {
    const int alone = second_threads(0), serial = second_threads(1), one = second_threads(2);
    printf("alone %d, inside if (0) %d, inside num_threads(1) %d\n", alone, serial, one);
}
END
gcc -O1 -fopenmp -o regions regions.c
for library in "$(find "$dir" -name 'libgomp-*.so*')" "$(find "$dir" -name libiomp5.so)"; do
    mkdir link
    ln -s "$library" link/libgomp.so.1   # libiomp5 has the functions of libgomp, too
    basename "$library" | sed 's/[-.].*/: /' | tr -d '\n'
    env -u OMP_NUM_THREADS -u OMP_MAX_ACTIVE_LEVELS -u OMP_NESTED LD_LIBRARY_PATH="$dir/link" ./regions
    rm -r link
done | tee output
cmp output - <<'END'
libgomp: alone 1, inside if (0) 20, inside num_threads(1) 20
libiomp5: alone 1, inside if (0) 1, inside num_threads(1) 1
END
