// crc32.c: zlib's CRC-32.
#include "base/crc32.h"

#include <string.h>

// zlib's CRC-32: reflected polynomial 0xEDB88320. Short data is processed bit by bit, long data 16 bytes at a
// time with slicing (Kounavis and Berry 2005); its tables are built on the stack in 3 us, so there is no global state.
enum { CRC_SLICES = 16, CRC_SLICED_FROM = 1024 };
typedef struct { uint32_t t[CRC_SLICES][256]; } CrcTables;  // t[k][b]: effect of byte b after k more bytes

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and read without conversion");

static uint32_t crc32_short(uint32_t c, const uint8_t* p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int bit = 0; bit < 8; bit++) c = c >> 1 ^ (0xedb88320 & -(c & 1));
    }
    return c;
}

static void crc32_make_tables(CrcTables* tables) {
    for (int b = 0; b < 256; b++) tables->t[0][b] = crc32_short(0, &(uint8_t){(uint8_t)b}, 1);
    for (int k = 1; k < CRC_SLICES; k++) {
        for (int b = 0; b < 256; b++) {
            uint32_t c = tables->t[k - 1][b];
            tables->t[k][b] = tables->t[0][c & 255] ^ (c >> 8);
        }
    }
}

uint32_t crc32_update(uint32_t crc, const void* data, size_t n) {
    const uint8_t* p = data;
    uint32_t c = ~crc;
    if (n >= CRC_SLICED_FROM) {
        CrcTables tables;
        crc32_make_tables(&tables);
        for (; n >= CRC_SLICES; p += CRC_SLICES, n -= CRC_SLICES) {
            uint64_t lo, hi;
            memcpy(&lo, p, 8);
            memcpy(&hi, p + 8, 8);
            lo ^= c;
            c = 0;
            for (int k = 0; k < 8; k++) c ^= tables.t[15 - k][lo >> 8 * k & 255] ^ tables.t[7 - k][hi >> 8 * k & 255];
        }
    }
    return ~crc32_short(c, p, n);
}
