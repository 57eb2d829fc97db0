// processor.c: compiled for the oldest processor of the architecture, unlike all other files. The Makefile defines
// BUILT_FOR as the features that the other files use: the names of the compiler's macros without outer underscores.
#include "base/processor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

#ifndef BUILT_FOR
#define BUILT_FOR ""
#endif

#if defined(__x86_64__)
#include <cpuid.h>

enum { EBX, ECX, EDX, EAX };
enum { YMM_STATE = 0x6, ZMM_STATE = 0xe6 };   // registers that the operating system must save, as bits of XCR0

static const struct { const char* name; uint32_t leaf, subleaf; int reg, bit; uint32_t state; } features[] = {
    { "SSE3", 1, 0, ECX, 0, 0 },           { "SSSE3", 1, 0, ECX, 9, 0 },
    { "SSE4_1", 1, 0, ECX, 19, 0 },        { "SSE4_2", 1, 0, ECX, 20, 0 },
    { "MOVBE", 1, 0, ECX, 22, 0 },         { "POPCNT", 1, 0, ECX, 23, 0 },
    { "LZCNT", 0x80000001, 0, ECX, 5, 0 }, { "BMI", 7, 0, EBX, 3, 0 },
    { "BMI2", 7, 0, EBX, 8, 0 },           { "ADX", 7, 0, EBX, 19, 0 },
    { "AVX", 1, 0, ECX, 28, YMM_STATE },   { "F16C", 1, 0, ECX, 29, YMM_STATE },
    { "FMA", 1, 0, ECX, 12, YMM_STATE },   { "AVX2", 7, 0, EBX, 5, YMM_STATE },
    { "GFNI", 7, 0, ECX, 8, 0 },           { "VPCLMULQDQ", 7, 0, ECX, 10, YMM_STATE },
    { "AVXVNNI", 7, 1, EAX, 4, YMM_STATE },
    { "AVX512IFMA", 7, 0, EBX, 21, ZMM_STATE },   { "AVX512CD", 7, 0, EBX, 28, ZMM_STATE },
    { "AVX512BW", 7, 0, EBX, 30, ZMM_STATE },     { "AVX512VL", 7, 0, EBX, 31, ZMM_STATE },
    { "AVX512VBMI", 7, 0, ECX, 1, ZMM_STATE },    { "AVX512VBMI2", 7, 0, ECX, 6, ZMM_STATE },
    { "AVX512VNNI", 7, 0, ECX, 11, ZMM_STATE },   { "AVX512BITALG", 7, 0, ECX, 12, ZMM_STATE },
    { "AVX512VPOPCNTDQ", 7, 0, ECX, 14, ZMM_STATE }, { "AVX512FP16", 7, 0, EDX, 23, ZMM_STATE },
    { "AVX512BF16", 7, 1, EAX, 5, ZMM_STATE },    { "AVX512DQ", 7, 0, EBX, 17, ZMM_STATE },
    { "AVX512F", 7, 0, EBX, 16, ZMM_STATE },
};

static uint32_t enabled_state(void) {
    uint32_t r[4], low, high;
    const uint32_t osxsave = 1u << 27;
    if (!__get_cpuid(1, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) || !(r[ECX] & osxsave)) return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has_feature(size_t i) {
    uint32_t r[4];
    return __get_cpuid_count(features[i].leaf, features[i].subleaf, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) &&
           r[features[i].reg] >> features[i].bit & 1 && (features[i].state & ~enabled_state()) == 0;
}

#define PORTABLE "make ARCH=-march=x86-64-v3 (AVX2) or make ARCH= (any x86-64)"

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

#include "base/error.h"

static const struct { const char* name; unsigned long type; int bit; } features[] = {
    { "ARM_FEATURE_ATOMICS", AT_HWCAP, 8 },  { "ARM_FEATURE_DOTPROD", AT_HWCAP, 20 },
    { "ARM_FEATURE_SVE", AT_HWCAP, 22 },     { "ARM_FEATURE_SVE2", AT_HWCAP2, 1 },
    { "ARM_FEATURE_BF16", AT_HWCAP2, 14 },
};

static bool has_feature(size_t i) { return getauxval(features[i].type) >> features[i].bit & 1; }

#define PORTABLE "make ARCH= (any aarch64)"

#else

static const struct { const char* name; } features[] = { { "nothing" } };
static bool has_feature(size_t i) { return i == 0; }
#define PORTABLE "make ARCH="

#endif

static bool built_for(const char* name) {
    char word[32];
    snprintf(word, sizeof word, " %s ", name);
    return strstr(BUILT_FOR, word) != NULL;
}

// Before the constructors of other files, which use the features.
__attribute__((constructor(101))) void processor_check(void) {
    for (size_t i = countof(features); i-- > 0;)    // reports the last missing one, which is the most specific
        if (built_for(features[i].name) && !has_feature(i)) {
            fprintf(stderr, "built for %s, which this processor lacks: rebuild here, or use " PORTABLE "\n",
                    features[i].name);
            _exit(STATUS_FAILED);
        }
}
