// gemm_amx.h: the tile registers of AMX (Intel Sapphire Rapids and later), private to gemm.c. Eight tiles of 16 rows of
// 64 bytes each; TDPBF16PS multiplies one of 16 x 32 bf16 by one of 32 x 16. The processor and Linux must both offer
// them, which is checked at run time. TOST_AMX_HEADER names a header that implements the instructions in C, for tests.
#ifndef TOST_GEMM_AMX_H
#define TOST_GEMM_AMX_H

#include <stdbool.h>
#include <stdint.h>

// Before an instruction that reads memory at p: GCC does not know that, and could omit or delay writing it.
#define AMX_READS(p) __asm__ volatile("" : : "r"(p) : "memory")

enum { TILE_ROWS = 16, TILE_ROW_BYTES = 64, TILE_REGISTERS = 8 };

#if defined(TOST_AMX_HEADER)

#define HAVE_AMX
#define AMX_TARGET
#include TOST_AMX_HEADER

#elif defined(__x86_64__) && defined(__linux__) && defined(__AVX512F__) && (__GNUC__ >= 11 || __clang_major__ >= 12)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HAVE_AMX
#define AMX_TARGET __attribute__((target("amx-tile,amx-bf16")))

// Asks Linux for the tiles, for all threads of the process. False if the processor has none or Linux refuses them.
static bool amx_enable(void) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, TILE_STATE = 3 << 17, TILE_DATA = 18, ARCH_REQ_XCOMP_PERM = 0x1023 };
    uint32_t a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || ~d & (AMX_BF16 | AMX_TILE)) return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (~low & TILE_STATE) == 0 && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}

#endif

#ifdef HAVE_AMX

// Around the kernels, in each thread: all tiles have their full size.
AMX_TARGET static void amx_begin(void) {
    struct { uint8_t palette, start_row, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {
        .palette = 1
    };
    for (int i = 0; i < TILE_REGISTERS; i++) config.bytes[i] = TILE_ROW_BYTES, config.rows[i] = TILE_ROWS;
    AMX_READS(&config);
    _tile_loadconfig(&config);
}

AMX_TARGET static void amx_end(void) { _tile_release(); }

#else

static inline bool amx_enable(void) { return false; }
static inline void amx_begin(void) {}
static inline void amx_end(void) {}

#endif
#endif
