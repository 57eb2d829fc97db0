// crc32.h: checksums.
#pragma once

#include <stddef.h>
#include <stdint.h>

uint32_t crc32_update(uint32_t crc, const void* data, size_t n);   // zlib's CRC-32; start from 0
