// processor.c: compiled for the oldest processor of the architecture, unlike all other files. The Makefile defines
// BUILT_FOR as the features that the other files use: the names of the compiler's macros without outer underscores.
#include "base/processor.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

#ifndef BUILT_FOR
#define BUILT_FOR ""
#endif

#if defined(__x86_64__)
// The first one that is missing is reported.
#define FEATURES(X) X(AVX512F, "avx512f") X(AVX512CD, "avx512cd") X(AVX512VL, "avx512vl") X(AVX512BW, "avx512bw") \
    X(AVX512DQ, "avx512dq") X(AVX512VBMI, "avx512vbmi") X(AVX512VBMI2, "avx512vbmi2") X(AVX512VNNI, "avx512vnni") \
    X(AVX512BITALG, "avx512bitalg") X(AVX512VPOPCNTDQ, "avx512vpopcntdq") X(AVX512BF16, "avx512bf16") \
    FEATURE_FP16(X) X(GFNI, "gfni") X(AVX2, "avx2") X(FMA, "fma") X(AVX, "avx") X(BMI2, "bmi2") X(POPCNT, "popcnt") \
    X(SSE4_2, "sse4.2")
#if __GNUC__ >= 12
#define FEATURE_FP16(X) X(AVX512FP16, "avx512fp16")
#else
#define FEATURE_FP16(X)   // clang does not know it
#endif
#define HAS(feature) __builtin_cpu_supports(feature)
#define PORTABLE "make ARCH=-march=x86-64-v3 (AVX2) or make ARCH= (any x86-64)"
#define KNOWN (__builtin_cpu_init(), HAS("sse2"))   // zig's runtime detects no features, not even this one

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#define FEATURES(X) X(ARM_FEATURE_ATOMICS, 1 << 8) X(ARM_FEATURE_DOTPROD, 1 << 20) X(ARM_FEATURE_SVE, 1 << 22)
#define HAS(bit) ((getauxval(AT_HWCAP) & (bit)) != 0)
#define PORTABLE "make ARCH= (any aarch64)"
#define KNOWN true

#else
#define FEATURES(X) X(nothing, true)
#define HAS(known) known
#define PORTABLE "make ARCH="
#define KNOWN true
#endif

static void must_have(const char* name, bool has) {
    if (has || !strstr(BUILT_FOR, name)) return;
    fprintf(stderr, "built for %.*s, which this processor lacks: rebuild here, or use " PORTABLE "\n",
            (int)strlen(name) - 2, name + 1);
    _exit(STATUS_FAILED);
}

// Before the constructors of other files, which use the features.
__attribute__((constructor(101))) void processor_check(void) {
    if (!KNOWN) return;
#define CHECK(name, feature) must_have(" " #name " ", HAS(feature));
    FEATURES(CHECK)
}

const char* processor_unused(void) {
    static const char vectors[] = " AVX512F AVX512BF16 FMA ";   // used by matrix products
#define UNUSED(name, feature) if (strstr(vectors, " " #name " ") && !strstr(BUILT_FOR, " " #name " ") && HAS(feature)) \
        return "; this processor also has " #name ": make ARCH=-march=native";
    FEATURES(UNUSED)
    return "";
}
