// race_probe.c: checks a race detector. With the argument `race` all threads write one number; otherwise an OpenMP
// barrier separates writes and reads.
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
