// race_probe.c: what a race detector must tell apart: `race` writes one number from all threads at once, `clean` sums
// in a reduction with a barrier of OpenMP's between writing and reading.
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
    static int shared, seen[64];
    int sum = 0;
    if (argc == 2 && strcmp(argv[1], "race") == 0) {
        #pragma omp parallel for num_threads(2)
        for (int i = 0; i < 1000; i++) shared = i;
    } else {
        #pragma omp parallel for num_threads(2)
        for (int i = 0; i < 64; i++) seen[i] = i;
        #pragma omp parallel for num_threads(2) reduction(+ : sum)
        for (int i = 0; i < 64; i++) sum += seen[63 - i];
    }
    printf("%d\n", shared + sum);
    return 0;
}
