// safetensors.h: the safetensors format: 8-byte header length, JSON header, raw tensors. Reading checks header length,
// JSON, dtypes, shapes, offsets, overlaps, gaps and file size.
#pragma once

#include <stdio.h>
#include "base/files.h"
#include "base/key_values.h"

enum { ST_MAX_DIMS = 8, ST_NAME_MAX = 160 };
typedef enum { ST_F64, ST_F32, ST_F16, ST_BF16, ST_I64, ST_I32, ST_U8, ST_DTYPES } StDtype;

typedef struct {
    char     name[ST_NAME_MAX];
    StDtype  dtype;
    int      ndim;                // 0 for a scalar
    int64_t  shape[ST_MAX_DIMS];
    uint64_t count;               // elements
    uint64_t offset, bytes;       // from the start of the file
} StTensor;

typedef struct {
    char*     path;
    int       fd;
    uint64_t  file_size, data_start;
    int       n_tensors;
    StTensor* tensors;            // sorted by name
    KeyValues meta;              // in file order
} StFile;

bool            st_begins(const char* head, size_t n);                  // true if a file begins like a safetensors file
bool            st_open(StFile* f, const char* path, TostError* err);   // on failure nothing to close
void            st_close(StFile* f);                                    // does nothing if closed or zeroed
const StTensor* st_find(const StFile* f, const char* name);             // NULL if absent
const char*     st_meta(const StFile* f, const char* key);              // NULL if absent
bool st_read(const StFile* f, const StTensor* t, void* out, TostError* err);         // its bytes
bool st_check_float(const StFile* f, const StTensor* t, TostError* err);             // F64, F32, F16 or BF16
bool st_read_f32(const StFile* f, const StTensor* t, float* out, TostError* err);    // converts these four
// Like st_read_f32, but fails if an element is NaN, infinite or below min, and names it. -FLT_MAX: no minimum.
bool st_read_finite(const StFile* f, const StTensor* t, float min, float* out, TostError* err);
bool st_crc32(const StFile* f, uint32_t* crc, TostError* err);          // of all tensor data

// Writing: declare all tensors and metadata, then append the tensors' bytes in that order, then end. __metadata__ gets
// the CRC-32 of the tensor bytes as "crc32" (8 hexadecimal digits), that of the header before it as "header_crc32";
// meta must have neither. Tensor data starts at a multiple of 8. In metadata, bytes that are not UTF-8 become U+FFFD.

typedef struct {
    Path      path;
    FILE*     out;
    uint64_t  written;            // tensor bytes
    uint32_t  crc;
    long      crc_at;             // file offset of the CRC's digits
} StWriter;

// Uses name, dtype, ndim and shape of each tensor.
bool st_begin(StWriter* w, const char* path, const StTensor* tensors, int n_tensors, const KeyValues* meta,
              TostError* err);
bool st_append(StWriter* w, const void* data, size_t bytes, TostError* err);
// To be called even if st_begin failed. ok: writes the CRC and fsyncs. Closes; removes the file if !ok or on failure.
bool st_end(StWriter* w, bool ok, TostError* err);
