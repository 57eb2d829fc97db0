// safetensors.c: files are read with pread, not mmap, so that truncating one meanwhile gives an error, not SIGBUS.
#include "run/safetensors.h"
#include "base/bf16.h"
#include "base/crc32.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/platform.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian and read without conversion");

enum { HEADER_MAX = 100000000, BLOCK = 1 << 14, CRC_BLOCK = 1 << 18 };  // bytes; HEADER_MAX is the format's limit

static const struct { const char* name; size_t size; } dtypes[ST_DTYPES] = {
    [ST_F64] = {"F64", 8}, [ST_F32] = {"F32", 4}, [ST_F16] = {"F16", 2}, [ST_BF16] = {"BF16", 2},
    [ST_I64] = {"I64", 8}, [ST_I32] = {"I32", 4}, [ST_U8]  = {"U8", 1},
};

// ---------------------------------------------------------------------------------------------
// Reading: the header

static bool read_bytes(const StFile* f, void* out, size_t n, uint64_t offset, TostError* err) {
    const ssize_t got = read_at(f->fd, out, n, offset);
    return got == (ssize_t)n || tost_error(err, "%s: cannot be read at offset %" PRIu64 ": %s", f->path, offset,
                                           got < 0 ? strerror(errno) : "the file was truncated");
}

// Sets count and bytes from dtype and shape; false on overflow.
static bool set_size(StTensor* t) {
    t->count = 1;
    for (int i = 0; i < t->ndim; i++) {
        if (__builtin_mul_overflow(t->count, (uint64_t)t->shape[i], &t->count)) return false;
    }
    return !__builtin_mul_overflow(t->count, (uint64_t)dtypes[t->dtype].size, &t->bytes);
}

static bool parse_dtype(Json* j, StTensor* t) {
    char name[32];
    if (!json_string(j, name, sizeof name, NULL)) return false;
    for (int d = 0; d < ST_DTYPES; d++) {
        if (strcmp(name, dtypes[d].name) == 0) {
            t->dtype = (StDtype)d;
            return true;
        }
    }
    return tost_error(j->err, "dtype '%s' is not supported: use F64, F32, F16, BF16, I64, I32 or U8", name);
}

static bool parse_shape(Json* j, StTensor* t) {
    int more;
    t->ndim = 0;
    if (!json_enter(j, JSON_ARRAY)) return false;
    while ((more = json_next(j)) == 1) {
        uint64_t n;
        if (!json_u64(j, &n)) return false;
        if (n > INT64_MAX) return tost_error(j->err, "a dimension of %" PRIu64 " is over 2^63 - 1", n);
        if (t->ndim == ST_MAX_DIMS) return tost_error(j->err, "more than %d dimensions", ST_MAX_DIMS);
        t->shape[t->ndim++] = (int64_t)n;
    }
    return more == 0;
}

static bool parse_offsets(Json* j, uint64_t offsets[2]) {
    int more = -1, n = 0;
    if (!json_enter(j, JSON_ARRAY)) return false;
    while (n < 2 && (more = json_next(j)) == 1) {
        if (!json_u64(j, &offsets[n++])) return false;
    }
    if (n == 2) more = json_next(j);
    if (more == -1) return false;
    return (n == 2 && more == 0) || tost_error(j->err, "data_offsets: expected two numbers");
}

// {"dtype": …, "shape": […], "data_offsets": [begin, end]}; t->offset is relative to the data, not yet to the file
static bool parse_tensor(Json* j, StTensor* t) {
    static const char* const keys[] = {"dtype", "shape", "data_offsets"};
    bool seen[countof(keys)] = {false};
    uint64_t offsets[2];
    int more;
    if (!json_enter(j, JSON_OBJECT)) return false;
    while ((more = json_next(j)) == 1) {
        char key[ST_NAME_MAX];
        size_t k = 0;
        if (!json_key(j, key, sizeof key, NULL)) return false;
        while (k < countof(keys) && strcmp(key, keys[k]) != 0) k++;
        if (k < countof(keys) && seen[k]) return tost_error(j->err, "%s appears twice", key);
        bool ok = k == 0 ? parse_dtype(j, t) : k == 1 ? parse_shape(j, t) : k == 2 ? parse_offsets(j, offsets)
                : json_skip(j);
        if (!ok) return false;
        if (k < countof(keys)) seen[k] = true;
    }
    if (more < 0) return false;
    for (size_t k = 0; k < countof(keys); k++) {
        if (!seen[k]) return tost_error(j->err, "%s is missing", keys[k]);
    }
    if (!set_size(t)) return tost_error(j->err, "the shape has more bytes than 64 bits can count");
    if (offsets[1] < offsets[0] || offsets[1] - offsets[0] != t->bytes)
        return tost_error(j->err, "data_offsets [%" PRIu64 ", %" PRIu64 "] do not match dtype and shape, which take %"
                          PRIu64 " bytes", offsets[0], offsets[1], t->bytes);
    t->offset = offsets[0];
    return true;
}

// Makes room for one more element; the capacity doubles whenever n is a power of two.
static void* grow(void* array, int n, size_t size) {
    bool full = (n & (n - 1)) == 0;  // also 0: room for 1
    return full ? xrealloc(array, (n ? 2 * (size_t)n : 1) * size) : array;
}

// Metadata contains file names, which may be any bytes. In a JSON string, a byte that is not UTF-8 is U+0000 followed
// by the character with its value, U+0080 to U+00FF; U+0000 is used for nothing else. Decodes n bytes of UTF-8 in place
// and appends a NUL. Returns false if they have another U+0000.
static bool decode_bytes(char* text, size_t n) {
    const unsigned char *p = (const unsigned char*)text, *end = p + n;
    for (; p < end; text++) {
        if (*p) {
            *text = (char)*p++;
            continue;
        }
        if (end - p < 3 || (p[1] != 0xc2 && p[1] != 0xc3)) return false;
        *text = (char)(p[1] << 6 | (p[2] & 0x3f));
        p += 3;
    }
    *text = 0;
    return true;
}

// Reads a string of any length. buffer has room for it, since decoding never lengthens text. free()
static char* parse_text(Json* j, char* buffer, bool key) {
    size_t n, cap = (size_t)(j->end - j->start) + 1;
    if (!(key ? json_key : json_string)(j, buffer, cap, &n)) return NULL;
    if (!decode_bytes(buffer, n)) {
        tost_error(j->err, "__metadata__: a NUL in '%s'", buffer);
        return NULL;
    }
    return xstrdup(buffer);
}

static bool parse_metadata(Json* j, StFile* f, char* buffer) {
    int more;
    if (!json_enter(j, JSON_OBJECT)) return false;
    while ((more = json_next(j)) == 1) {
        StMeta m;
        if (f->n_meta == INT32_MAX / 2) return tost_error(j->err, "__metadata__: too many entries");
        if (!(m.key = parse_text(j, buffer, true))) return false;
        if (!(m.value = parse_text(j, buffer, false))) {
            free(m.key);
            return false;
        }
        f->meta = grow(f->meta, f->n_meta, sizeof m);
        f->meta[f->n_meta++] = m;
    }
    return more == 0;
}

static bool parse_entries(Json* j, StFile* f, char* buffer) {
    bool metadata = false;
    int more;
    if (!json_enter(j, JSON_OBJECT)) return false;
    while ((more = json_next(j)) == 1) {
        StTensor t = {0};
        size_t n;
        if (!json_key(j, t.name, sizeof t.name, &n)) return false;
        if (strlen(t.name) != n) return tost_error(j->err, "a NUL in the name '%s'", t.name);
        if (strcmp(t.name, "__metadata__") == 0) {
            if (metadata) return tost_error(j->err, "__metadata__ appears twice");
            metadata = true;
            if (!parse_metadata(j, f, buffer)) return false;
            continue;
        }
        if (!parse_tensor(j, &t)) return tost_error(j->err, "tensor '%s': %s", t.name, j->err->text);
        f->tensors = grow(f->tensors, f->n_tensors, sizeof t);
        f->tensors[f->n_tensors++] = t;
    }
    return more == 0 && json_at_end(j);
}

// ---------------------------------------------------------------------------------------------
// Reading: consistency of the header

// By offset; an empty tensor comes before another at the same offset.
static int compare_offsets(const void* a, const void* b) {
    const StTensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_tensors(const void* a, const void* b) {
    return strcmp((*(const StTensor* const*)a)->name, (*(const StTensor* const*)b)->name);
}

static int compare_meta(const void* a, const void* b) {
    return strcmp((*(const StMeta* const*)a)->key, (*(const StMeta* const*)b)->key);
}

// Sorts tensors into file order and makes the sorted lists of names and keys. Fails if one appears twice.
static bool sort_entries(StFile* f, TostError* err) {
    if (f->n_tensors) qsort(f->tensors, (size_t)f->n_tensors, sizeof *f->tensors, compare_offsets);
    f->by_name = xmalloc((size_t)f->n_tensors * sizeof *f->by_name);
    f->by_key = xmalloc((size_t)f->n_meta * sizeof *f->by_key);
    for (int i = 0; i < f->n_tensors; i++) f->by_name[i] = &f->tensors[i];
    for (int i = 0; i < f->n_meta; i++) f->by_key[i] = &f->meta[i];
    qsort(f->by_name, (size_t)f->n_tensors, sizeof *f->by_name, compare_tensors);
    qsort(f->by_key, (size_t)f->n_meta, sizeof *f->by_key, compare_meta);
    for (int i = 1; i < f->n_tensors; i++)
        if (compare_tensors(&f->by_name[i - 1], &f->by_name[i]) == 0)
            return tost_error(err, "%s: tensor '%s' appears twice", f->path, f->by_name[i]->name);
    for (int i = 1; i < f->n_meta; i++)
        if (compare_meta(&f->by_key[i - 1], &f->by_key[i]) == 0)
            return tost_error(err, "%s: __metadata__ '%s' appears twice", f->path, f->by_key[i]->key);
    return true;
}

// The tensors must cover the data without gap, overlap or trailing bytes.
static bool check_layout(StFile* f, TostError* err) {
    uint64_t end = 0, data = f->file_size - f->data_start;
    for (int i = 0; i < f->n_tensors; i++) {
        StTensor* t = &f->tensors[i];
        if (t->offset != end)
            return tost_error(err, "%s: tensor '%s' starts at byte %" PRIu64 " of the data, but the one before it "
                              "ends at %" PRIu64 ": %s", f->path, t->name, t->offset, end,
                              t->offset < end ? "overlap" : "gap");
        if (t->bytes > data - end)
            return tost_error(err, "%s: truncated: tensor '%s' has %" PRIu64 " bytes at %" PRIu64 " of the data, "
                              "which has %" PRIu64 ": copy it again, or use another", f->path, t->name, t->bytes,
                              t->offset, data);
        end += t->bytes;
        t->offset += f->data_start;
    }
    if (end == data) return true;
    return tost_error(err, "%s: %" PRIu64 " extra bytes after the last tensor", f->path, data - end);
}

static bool parse_header(StFile* f, TostError* err) {
    size_t n = (size_t)f->data_start - 8;
    char* text = xmalloc(n);
    char* buffer = xmalloc(n + 1);
    bool ok = read_bytes(f, text, n, 8, err);
    if (ok && text[0] != '{') {
        ok = tost_error(err, "%s: not a safetensors file: no '{' at offset 8", f->path);
    } else if (ok) {
        Json j = json_open(text, n, err);
        ok = parse_entries(&j, f, buffer) || tost_error(err, "%s: header: %s", f->path, err->text);
    }
    free(buffer);
    free(text);
    return ok && sort_entries(f, err) && check_layout(f, err);
}

static bool open_checked(StFile* f, TostError* err) {
    struct stat st;
    uint64_t header;
    if (fstat(f->fd, &st) != 0)
        return tost_error(err, "%s: fstat failed: %s", f->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return tost_error(err, "%s: %s, not a safetensors file", f->path,
                          S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    f->file_size = (uint64_t)st.st_size;
    if (f->file_size < 8)
        return tost_error(err, "%s: truncated: %" PRIu64 " bytes, less than the 8 bytes of the header length: copy "
                          "it again, or use another", f->path, f->file_size);
    if (!read_bytes(f, &header, 8, 0, err)) return false;
    if (header < 2 || header > HEADER_MAX)
        return tost_error(err, "%s: not a safetensors file: header of %" PRIu64 " bytes, expected 2 to %d", f->path,
                          header, HEADER_MAX);
    if (header > f->file_size - 8)
        return tost_error(err, "%s: truncated: header of %" PRIu64 " bytes in a file of %" PRIu64 ": copy it "
                          "again, or use another", f->path, header, f->file_size);
    f->data_start = 8 + header;
    return parse_header(f, err);
}

bool st_begins(const char* head, size_t n) {
    uint64_t header;
    if (n <= sizeof header) return false;
    memcpy(&header, head, sizeof header);
    return header >= 2 && header <= HEADER_MAX && head[sizeof header] == '{';
}

bool st_open(StFile* f, const char* path, TostError* err) {
    *f = (StFile){.path = xstrdup(path)};
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);   // do not wait for the writer of a FIFO
    const int why = f->fd < 0 ? errno : 0;
    if (why) tost_error(err, "%s: cannot be opened: %s", f->path, strerror(why));
    else if (open_checked(f, err)) return true;
    st_close(f);
    errno = why;
    return false;
}

void st_free_meta(StMeta* meta, int n) {
    for (int i = 0; i < n; i++) {
        free(meta[i].key);
        free(meta[i].value);
    }
    free(meta);
}

void st_close(StFile* f) {
    if (f->fd >= 0) close(f->fd);
    st_free_meta(f->meta, f->n_meta);
    free(f->by_key);
    free(f->by_name);
    free(f->tensors);
    free(f->path);
    *f = (StFile){.fd = -1};
}

static int compare_name(const void* name, const void* tensor) {
    return strcmp(name, (*(const StTensor* const*)tensor)->name);
}

const StTensor* st_find(const StFile* f, const char* name) {
    const StTensor** found = bsearch(name, f->by_name, (size_t)f->n_tensors, sizeof *f->by_name, compare_name);
    return found ? *found : NULL;
}

static int compare_key(const void* key, const void* meta) {
    return strcmp(key, (*(const StMeta* const*)meta)->key);
}

const char* st_meta(const StFile* f, const char* key) {
    const StMeta** found = bsearch(key, f->by_key, (size_t)f->n_meta, sizeof *f->by_key, compare_key);
    return found ? (*found)->value : NULL;
}

// ---------------------------------------------------------------------------------------------
// Reading: values

static float f32_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// IEEE half: sign, 5 bits of exponent (bias 15), 10 of mantissa
static float f32_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 0) return f32_from_bits(sign | 0x33800000) * (float)mantissa;  // subnormal, in units of 2^-24
    if (exponent == 31) return f32_from_bits(sign | 0x7f800000 | mantissa << 13);  // infinity, NaN
    return f32_from_bits(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

static double element(const unsigned char* raw, StDtype dtype) {
    double f64;
    float f32;
    int64_t i64;
    int32_t i32;
    uint16_t bits;
    switch (dtype) {
        case ST_F64:  memcpy(&f64, raw, 8);  return f64;
        case ST_F32:  memcpy(&f32, raw, 4);  return f32;
        case ST_F16:  memcpy(&bits, raw, 2); return f32_from_f16(bits);
        case ST_BF16: memcpy(&bits, raw, 2); return bf16_to_float(bits);
        case ST_I64:  memcpy(&i64, raw, 8);  return (double)i64;
        case ST_I32:  memcpy(&i32, raw, 4);  return i32;
        default:      return *raw;
    }
}

static bool check_dtype(const StFile* f, const StTensor* t, bool ok, const char* expected, TostError* err) {
    return ok || tost_error(err, "%s: tensor '%s' is %s, expected %s", f->path, t->name, dtypes[t->dtype].name,
                            expected);
}

bool st_check_float(const StFile* f, const StTensor* t, TostError* err) {
    return check_dtype(f, t, t->dtype <= ST_BF16, "F32, F64, F16 or BF16", err);
}

// Converts all elements to the one of the three types whose array is given.
static bool read_elements(const StFile* f, const StTensor* t, float* f32, double* f64, int32_t* i32, TostError* err) {
    unsigned char raw[BLOCK];
    const size_t size = dtypes[t->dtype].size, most = BLOCK / size;
    for (uint64_t i = 0, n; i < t->count; i += n) {
        n = t->count - i < most ? t->count - i : most;
        if (!read_bytes(f, raw, (size_t)n * size, t->offset + i * size, err)) return false;
        for (uint64_t k = 0; k < n; k++) {
            const double x = element(raw + k * size, t->dtype);
            if (f32) f32[i + k] = (float)x;
            else if (f64) f64[i + k] = x;
            else if (x >= INT32_MIN && x <= INT32_MAX) i32[i + k] = (int32_t)x;
            else return tost_error(err, "%s: tensor '%s', element %" PRIu64 " is %.0f: does not fit in 32 bits",
                                   f->path, t->name, i + k, x);
        }
    }
    return true;
}

bool st_read_f32(const StFile* f, const StTensor* t, float* out, TostError* err) {
    if (t->dtype == ST_F32) return read_bytes(f, out, (size_t)t->bytes, t->offset, err);
    return st_check_float(f, t, err) && read_elements(f, t, out, NULL, NULL, err);
}

bool st_read_f64(const StFile* f, const StTensor* t, double* out, TostError* err) {
    return st_check_float(f, t, err) && read_elements(f, t, NULL, out, NULL, err);
}

bool st_read_i32(const StFile* f, const StTensor* t, int32_t* out, TostError* err) {
    return check_dtype(f, t, t->dtype == ST_I32 || t->dtype == ST_I64, "I32 or I64", err)
           && read_elements(f, t, NULL, NULL, out, err);
}

// The element's indices, "3, 5"; truncated to fit.
static void format_index(char* out, size_t cap, const StTensor* t, uint64_t i) {
    size_t n = 0, stride = (size_t)t->count;
    out[0] = 0;
    for (int d = 0; d < t->ndim && n < cap; d++) {
        stride /= (size_t)t->shape[d];
        n += (size_t)snprintf(out + n, cap - n, "%s%zu", d ? ", " : "", (size_t)i / stride);
        i %= stride;
    }
}

bool st_read_finite(const StFile* f, const StTensor* t, float min, float* out, TostError* err) {
    char index[160];
    uint64_t wrong = 0, i = 0;
    if (!st_read_f32(f, t, out, err)) return false;
    for (uint64_t k = 0; k < t->count; k++) wrong += !(out[k] >= min && out[k] <= FLT_MAX);
    if (!wrong) return true;
    while (out[i] >= min && out[i] <= FLT_MAX) i++;
    format_index(index, sizeof index, t, i);
    return tost_error(err, "%s: tensor '%s' has %s%g at [%s], expected a finite number%s: the run had diverged or the "
                      "file is damaged; use another checkpoint", f->path, t->name, out[i] < 0 ? "-" : "", fabs(out[i]),
                      index, min == 0 ? " of at least 0" : "");
}

bool st_crc32(const StFile* f, uint32_t* crc, TostError* err) {
    unsigned char* raw = xmalloc(CRC_BLOCK);
    uint64_t at = f->data_start;
    bool ok = true;
    *crc = 0;
    while (ok && at < f->file_size) {
        const uint64_t left = f->file_size - at;
        const size_t n = left < CRC_BLOCK ? (size_t)left : CRC_BLOCK;
        ok = read_bytes(f, raw, n, at, err);
        if (ok) *crc = crc32_update(*crc, raw, n);
        at += n;
    }
    free(raw);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// Writing

static void put_string(FILE* out, const char* s) { json_write_string(out, s, strlen(s)); }

// The inverse of decode_bytes.
static void put_bytes(FILE* out, const char* s) {
    const char* end = s + strlen(s);
    char *text = xmalloc(3 * (size_t)(end - s) + 1), *p = text;
    while (s < end) {
        const int n = utf8_length(s, end);
        if (n == 0) {
            const unsigned char c = (unsigned char)*s++;
            *p++ = 0;
            *p++ = (char)(0xc0 | c >> 6);
            *p++ = (char)(0x80 | (c & 0x3f));
        }
        for (int i = 0; i < n; i++) *p++ = *s++;
    }
    json_write_string(out, text, (size_t)(p - text));
    free(text);
}

// Writes the JSON header to out. Sets w->crc_at and w->expected.
static bool put_header(StWriter* w, FILE* out, const StTensor* tensors, int n_tensors, const StMeta* meta,
                       int n_meta, TostError* err) {
    fputs("{\"__metadata__\":{", out);
    for (int i = 0; i < n_meta; i++) {
        if (strcmp(meta[i].key, "crc32") == 0) continue;
        put_bytes(out, meta[i].key);
        fputc(':', out);
        put_bytes(out, meta[i].value);
        fputc(',', out);
    }
    fputs("\"crc32\":\"", out);
    w->crc_at = 8 + ftell(out);
    fputs("00000000\"}", out);
    for (int i = 0; i < n_tensors; i++) {
        StTensor t = tensors[i];
        uint64_t begin = w->expected;
        if (!set_size(&t) || __builtin_add_overflow(begin, t.bytes, &w->expected))
            return tost_error(err, "%s: tensor '%s' has more bytes than 64 bits can count", w->path, t.name);
        fputc(',', out);
        put_string(out, t.name);
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtypes[t.dtype].name);
        for (int d = 0; d < t.ndim; d++) fprintf(out, "%s%" PRId64, d ? "," : "", t.shape[d]);
        fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, w->expected);
    }
    fputc('}', out);
    while (ftell(out) % 8) fputc(' ', out);  // align tensor data to 8 bytes
    return true;
}

static bool write_failed(const StWriter* w, TostError* err) {
    return tost_error(err, "%s: cannot be written after %" PRIu64 " bytes of tensors: %s", w->path,
                      w->written, strerror(errno));
}

bool st_begin(StWriter* w, const char* path, const StTensor* tensors, int n_tensors, const StMeta* meta,
              int n_meta, TostError* err) {
    char* header = NULL;
    size_t n = 0;
    *w = (StWriter){.path = xstrdup(path)};
    FILE* memory = open_memstream(&header, &n);
    if (!memory) return tost_error(err, "%s: no memory for the header: %s", w->path, strerror(errno));
    bool ok = put_header(w, memory, tensors, n_tensors, meta, n_meta, err);
    if (fclose(memory) != 0 && ok)
        ok = tost_error(err, "%s: no memory for the header: %s", w->path, strerror(errno));
    if (ok) {
        w->out = fopen(path, "wbe");
        if (!w->out) ok = tost_error(err, "%s: cannot be created: %s", w->path, strerror(errno));
    }
    if (ok) {
        uint64_t length = n;
        ok = fwrite(&length, sizeof length, 1, w->out) == 1 && fwrite(header, 1, n, w->out) == n;
        if (!ok) write_failed(w, err);
    }
    free(header);
    return ok;
}

// Syncs a large file while it is written. Otherwise other ranks would have to wait for a long fsync at its end.
static bool sync_sometimes(StWriter* w) {
    enum { SYNC_BYTES = 128 << 20 };
    if (w->unsynced < SYNC_BYTES) return true;
    w->unsynced = 0;
    return fflush(w->out) == 0 && sync_file(fileno(w->out));
}

bool st_append(StWriter* w, const void* data, size_t bytes, TostError* err) {
    if (bytes > w->expected - w->written)
        return tost_error(err, "%s: %" PRIu64 " bytes of tensors were declared, but %zu follow after %" PRIu64,
                          w->path, w->expected, bytes, w->written);
    w->unsynced += bytes;
    if ((bytes && fwrite(data, 1, bytes, w->out) != bytes) || !sync_sometimes(w)) return write_failed(w, err);
    w->crc = crc32_update(w->crc, data, bytes);
    w->written += bytes;
    return true;
}

static void drop_writer(StWriter* w) {
    free(w->path);
    *w = (StWriter){0};
}

bool st_finish(StWriter* w, TostError* err) {
    bool ok = w->written == w->expected
        || tost_error(err, "%s: %" PRIu64 " bytes of tensors were declared, but %" PRIu64 " written", w->path,
                      w->expected, w->written);
    if (ok) {
        ok = fseek(w->out, w->crc_at, SEEK_SET) == 0 && fprintf(w->out, "%08" PRIx32, w->crc) == 8
            && fflush(w->out) == 0 && sync_file(fileno(w->out));
        if (!ok) write_failed(w, err);
    }
    if (fclose(w->out) != 0 && ok) ok = write_failed(w, err);
    if (!ok) unlink(w->path);
    drop_writer(w);
    return ok;
}

void st_abandon(StWriter* w) {
    if (w->out) {  // otherwise st_begin did not create the file
        fclose(w->out);
        unlink(w->path);
    }
    drop_writer(w);
}
