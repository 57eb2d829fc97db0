// safetensors.c: reads and writes safetensors files. Reads with pread, not mmap, so that truncating a file meanwhile
// gives an error, not SIGBUS.
#include "store/safetensors.h"
#include "base/bf16.h"
#include "base/crc32.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/platform.h"
#include "base/text.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>

enum { HEADER_MAX = 100000000, CRC_BLOCK = 1 << 18 };   // bytes; HEADER_MAX is the format's limit
enum { MAX_META = 1 << 12 };                            // metadata of a file: searches are linear
static const char header_crc[] = "\"header_crc32\":\"";   // followed by the CRC-32 of the header before it

static const struct { const char* name; size_t size; } dtypes[ST_DTYPES] = {
    [ST_F64] = {"F64", 8}, [ST_F32] = {"F32", 4}, [ST_F16] = {"F16", 2}, [ST_BF16] = {"BF16", 2},
    [ST_I64] = {"I64", 8}, [ST_I32] = {"I32", 4}, [ST_U8]  = {"U8", 1},
};

// ---- Reading: the header ----

static bool read_bytes(const StFile* f, void* out, size_t n, uint64_t offset, TostError* err) {
    const ssize_t got = read_at(f->fd, out, n, offset);
    return got == (ssize_t)n || tost_error(err, "%s: cannot be read at offset %" PRIu64 ": %s", f->path, offset,
                                           got < 0 ? strerror(errno) : "the file was truncated");
}

// Sets count and bytes from dtype and shape; false on overflow.
static bool set_size(StTensor* t) {
    t->count = 1;
    for (int i = 0; i < t->ndim; i++)
        if (__builtin_mul_overflow(t->count, (uint64_t)t->shape[i], &t->count)) return false;
    return !__builtin_mul_overflow(t->count, (uint64_t)dtypes[t->dtype].size, &t->bytes);
}

static bool parse_dtype(Json* j, StTensor* t) {
    char name[32];
    if (!json_string(j, name, sizeof name, NULL)) return false;
    for (t->dtype = 0; t->dtype < ST_DTYPES; t->dtype++)
        if (strcmp(name, dtypes[t->dtype].name) == 0) return true;
    return tost_error(j->err, "dtype '%s' is not supported: use F64, F32, F16, BF16, I64, I32 or U8", name);
}

static bool parse_shape(Json* j, StTensor* t) {
    uint64_t n;
    t->ndim = 0;
    json_enter(j, "[]");
    while (json_next(j, "[]")) {
        if (!json_u64(j, &n)) return false;
        if (n > INT64_MAX) return tost_error(j->err, "a dimension of %" PRIu64 " is over 2^63 - 1", n);
        if (t->ndim == ST_MAX_DIMS) return tost_error(j->err, "more than %d dimensions", ST_MAX_DIMS);
        t->shape[t->ndim++] = (int64_t)n;
    }
    return !j->failed;
}

static bool parse_offsets(Json* j, uint64_t offsets[2]) {
    bool ok = json_enter(j, "[]");
    for (int i = 0; ok && i < 2; i++) ok = json_next(j, "[]") && json_u64(j, &offsets[i]);
    return (ok && !json_next(j, "[]") && !j->failed) || tost_error(j->err, "data_offsets: expected two numbers");
}

// {"dtype": …, "shape": […], "data_offsets": [begin, end]}; t->offset is relative to the data, not yet to the file
static bool parse_tensor(Json* j, StTensor* t) {
    uint64_t offsets[2];
    bool dtype = false, shape = false, offset = false, ok;
    char key[ST_NAME_MAX];
    json_enter(j, "{}");
    while (json_field(j, key, sizeof key, NULL)) {
        if (strcmp(key, "dtype") == 0) ok = json_once(j, &dtype, key) && parse_dtype(j, t);
        else if (strcmp(key, "shape") == 0) ok = json_once(j, &shape, key) && parse_shape(j, t);
        else if (strcmp(key, "data_offsets") == 0) ok = json_once(j, &offset, key) && parse_offsets(j, offsets);
        else ok = json_skip(j);
        if (!ok) return false;
    }
    if (j->failed) return false;
    if (!dtype || !shape || !offset) return tost_error(j->err, "dtype, shape or data_offsets is missing");
    if (!set_size(t)) return tost_error(j->err, "the shape has more bytes than 64 bits can count");
    if (offsets[1] < offsets[0] || offsets[1] - offsets[0] != t->bytes)
        return tost_error(j->err, "data_offsets [%" PRIu64 ", %" PRIu64 "] do not match dtype and shape, which take %"
                          PRIu64 " bytes", offsets[0], offsets[1], t->bytes);
    t->offset = offsets[0];
    return true;
}

// Reads "key": "value", strings of any length. buffer has room for both, since decoding never lengthens text.
static bool parse_metadata(Json* j, StFile* f, char* buffer) {
    const size_t cap = (size_t)(j->end - j->start) + 2;
    size_t n_key, n;
    if (json_null(j)) return true;
    json_enter(j, "{}");
    while (json_field(j, buffer, cap, &n_key)) {
        char* value = buffer + n_key + 1;
        if (!json_string(j, value, cap - n_key - 1, &n)) return false;
        if (strlen(buffer) != n_key || strlen(value) != n)
            return tost_error(j->err, "__metadata__: a NUL in '%s' or its value", buffer);
        if (st_meta(f, buffer)) return tost_error(j->err, "__metadata__ '%s' appears twice", buffer);
        if (f->meta.count == MAX_META) return tost_error(j->err, "more than %d entries in __metadata__", MAX_META);
        key_values_add(&f->meta, xstrdup(buffer), xstrdup(value));
    }
    return !j->failed;
}

static bool parse_entries(Json* j, StFile* f, char* buffer) {
    bool metadata = false;
    size_t n;
    json_enter(j, "{}");
    for (StTensor t = {0}; json_field(j, t.name, sizeof t.name, &n); t = (StTensor){0}) {
        if (strlen(t.name) != n) return tost_error(j->err, "a NUL in the name '%s'", t.name);
        if (strcmp(t.name, "__metadata__") == 0) {
            if (!json_once(j, &metadata, t.name) || !parse_metadata(j, f, buffer)) return false;
            continue;
        }
        if (!parse_tensor(j, &t)) return tost_error(j->err, "tensor '%s': %s", t.name, j->err->text);
        f->tensors = xgrow(f->tensors, (size_t)f->n_tensors, sizeof t);
        f->tensors[f->n_tensors++] = t;
    }
    return !j->failed && json_at_end(j);
}

// ---- Reading: consistency of the header ----

// By offset; an empty tensor comes before another at the same offset.
static int compare_offsets(const void* a, const void* b) {
    const StTensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

// In file order, the tensors must cover the data without gap, overlap or trailing bytes.
static bool check_layout(StFile* f, TostError* err) {
    uint64_t end = 0, data = f->file_size - f->data_start;
    if (f->n_tensors) qsort(f->tensors, (size_t)f->n_tensors, sizeof *f->tensors, compare_offsets);
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
    return end == data || tost_error(err, "%s: %" PRIu64 " extra bytes after the last tensor", f->path, data - end);
}

static int compare_names(const void* a, const void* b) { return strcmp(a, b); }   // a tensor begins with its name

// Sorts the tensors by name. No name may appear twice.
static bool sort_by_name(StFile* f, TostError* err) {
    if (f->n_tensors) qsort(f->tensors, (size_t)f->n_tensors, sizeof *f->tensors, compare_names);
    for (int i = 1; i < f->n_tensors; i++)
        if (strcmp(f->tensors[i - 1].name, f->tensors[i].name) == 0)
            return tost_error(err, "%s: header: tensor '%s' appears twice", f->path, f->tensors[i].name);
    return true;
}

// Files of other programs and of earlier versions have no checksum of the header.
static bool check_header_crc(const StFile* f, const char* text, size_t n, TostError* err) {
    const char* end = memmem(text, n, header_crc, strlen(header_crc));
    if (!end) return true;
    const TextLine actual = text_line("%08" PRIx32, crc32_update(0, text, (size_t)(end - text)));
    return strncmp(end + strlen(header_crc), actual.text, 8) == 0   // a closing quote ends a shorter one
        || tost_error(err, "%s: CRC-32 of the metadata is %s, not that in the file: the file is damaged, or its "
                      "metadata was changed; use another checkpoint", f->path, actual.text);
}

static bool parse_header(StFile* f, TostError* err) {
    size_t n = (size_t)f->data_start - 8;
    char* text = xmalloc(n);
    char* buffer = xmalloc(n + 2);
    bool ok = read_bytes(f, text, n, 8, err);
    if (ok) {
        Json j = json_open(text, n, err);
        j.strict = true;
        ok = (parse_entries(&j, f, buffer) || tost_error(err, "%s: header: %s", f->path, err->text))
             && check_header_crc(f, text, n, err);
    }
    free(buffer);
    free(text);
    return ok && check_layout(f, err) && sort_by_name(f, err);
}

static bool open_checked(StFile* f, TostError* err) {
    struct stat st;
    uint64_t header;
    if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return tost_error(err, "%s: not a regular file, so not a safetensors file", f->path);
    f->file_size = (uint64_t)st.st_size;
    if (f->file_size < 8)
        return tost_error(err, "%s: truncated: %" PRIu64 " bytes, less than the 8 bytes of the header length: copy "
                          "it again, or use another", f->path, f->file_size);
    if (!read_bytes(f, &header, 8, 0, err)) return false;
    if (header < 2 || header > HEADER_MAX)
        return tost_error(err, memcmp(&header, "version ", 8) ? "%s: not a safetensors file; dev/reference/convert.py "
                          "converts a ckpt.pt, import_hf.py a Hugging Face folder, if the model is ToST, not GPT-2"
                          : "%s: the pointer of a Git LFS file; `git lfs pull` gets the file itself", f->path);
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
    if (f->fd < 0) tost_error(err, "%s: cannot be opened: %s", f->path, strerror(errno));
    else if (open_checked(f, err)) return true;
    st_close(f);
    return false;
}

void st_close(StFile* f) {
    if (!f->path) return;
    if (f->fd >= 0) close(f->fd);
    key_values_free(&f->meta);
    free(f->tensors);
    free(f->path);
    *f = (StFile){0};
}

const StTensor* st_find(const StFile* f, const char* name) {
    return f->n_tensors ? bsearch(name, f->tensors, (size_t)f->n_tensors, sizeof *f->tensors, compare_names) : NULL;
}

const char* st_meta(const StFile* f, const char* key) { return key_values_find(&f->meta, key); }

// ---- Reading: values ----

// IEEE half: sign, 5 bits of exponent (bias 15), 10 of mantissa
static double from_f16(uint16_t h) {
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const double x = exponent == 31 ? (mantissa ? NAN : INFINITY)
                   : exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -x : x;
}

static float element(const unsigned char* raw, StDtype dtype) {
    double f64;
    uint16_t bits;
    if (dtype == ST_F64) {
        memcpy(&f64, raw, sizeof f64);
        return (float)f64;
    }
    memcpy(&bits, raw, sizeof bits);
    return dtype == ST_F16 ? (float)from_f16(bits) : bf16_to_float(bits);
}

bool st_check_float(const StFile* f, const StTensor* t, TostError* err) {
    return t->dtype <= ST_BF16 || tost_error(err, "%s: tensor '%s' is %s, expected F32, F64, F16 or BF16", f->path,
                                             t->name, dtypes[t->dtype].name);
}

bool st_read(const StFile* f, const StTensor* t, void* out, TostError* err) {
    return read_bytes(f, out, (size_t)t->bytes, t->offset, err);
}

bool st_read_f32(const StFile* f, const StTensor* t, float* out, TostError* err) {
    if (!st_check_float(f, t, err)) return false;
    if (t->dtype == ST_F32) return st_read(f, t, out, err);
    unsigned char* raw = xmalloc((size_t)t->bytes);
    const bool ok = st_read(f, t, raw, err);
    for (uint64_t i = 0; ok && i < t->count; i++) out[i] = element(raw + i * dtypes[t->dtype].size, t->dtype);
    free(raw);
    return ok;
}

bool st_read_finite(const StFile* f, const StTensor* t, float min, float* out, TostError* err) {
    if (!st_read_f32(f, t, out, err)) return false;
    for (uint64_t i = 0; i < t->count; i++)
        if (!(out[i] >= min && out[i] <= FLT_MAX))
            return tost_error(err, "%s: tensor '%s' has %s%g at element %" PRIu64 ", expected a finite number%s: the "
                              "run had diverged or the file is damaged; use another checkpoint", f->path, t->name,
                              out[i] < 0 ? "-" : "", fabs(out[i]), i, min == 0 ? " of at least 0" : "");
    return true;
}

bool st_crc32(const StFile* f, uint32_t* crc, TostError* err) {
    unsigned char* raw = xmalloc(CRC_BLOCK);
    bool ok = true;
    *crc = 0;
    for (uint64_t at = f->data_start; ok && at < f->file_size; at += CRC_BLOCK) {
        const size_t n = f->file_size - at < CRC_BLOCK ? (size_t)(f->file_size - at) : CRC_BLOCK;
        ok = read_bytes(f, raw, n, at, err);
        if (ok) *crc = crc32_update(*crc, raw, n);
    }
    free(raw);
    return ok;
}

// ---- Writing ----

// Writes the JSON header to memory. Sets crc_at.
static void put_header(StWriter* w, FILE* out, const StTensor* tensors, int n_tensors, const KeyValues* meta) {
    uint64_t offset = 0;
    fputs("{\"__metadata__\":{", out);
    for (int i = 0; i < meta->count; i++) {
        json_write_string(out, meta->entry[i].key, strlen(meta->entry[i].key));
        fputc(':', out);
        json_write_string(out, meta->entry[i].value, strlen(meta->entry[i].value));
        fputc(',', out);
    }
    fprintf(out, "%s00000000\",\"crc32\":\"", header_crc);
    w->crc_at = (long)sizeof(uint64_t) + ftell(out);
    fputs("00000000\"}", out);
    for (int i = 0; i < n_tensors; i++) {
        StTensor t = tensors[i];
        set_size(&t);
        fputc(',', out);
        json_write_string(out, t.name, strlen(t.name));
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtypes[t.dtype].name);
        for (int d = 0; d < t.ndim; d++) fprintf(out, "%s%" PRId64, d ? "," : "", t.shape[d]);
        fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + t.bytes);
        offset += t.bytes;
    }
    fputc('}', out);
}

static bool write_failed(const StWriter* w, TostError* err) {
    return tost_error(err, "%s: cannot be written after %" PRIu64 " bytes of tensors: %s", w->path.text, w->written,
                      strerror(errno));
}

bool st_begin(StWriter* w, const char* path, const StTensor* tensors, int n_tensors, const KeyValues* meta,
              TostError* err) {
    char* text;
    size_t n;
    *w = (StWriter){.path = path_text("%s", path), .out = create_file(path)};
    if (!w->out) return tost_error(err, "%s: cannot be created: %s", path, strerror(errno));
    FILE* header = open_memstream(&text, &n);
    put_header(w, header, tensors, n_tensors, meta);
    fclose(header);
    char* end = strstr(text, header_crc);
    memcpy(end + strlen(header_crc), text_line("%08" PRIx32, crc32_update(0, text, (size_t)(end - text))).text, 8);
    const uint64_t length = (n + 7) / 8 * 8;   // aligns tensor data to 8 bytes
    const bool ok = fwrite(&length, sizeof length, 1, w->out) == 1 && fprintf(w->out, "%-*s", (int)length, text) >= 0;
    free(text);
    return ok || write_failed(w, err);
}

bool st_append(StWriter* w, const void* data, size_t bytes, TostError* err) {
    enum { SYNC_BYTES = 128 << 20 };   // between two syncs: other ranks would wait for one long sync at the end
    const bool syncs = w->written / SYNC_BYTES != (w->written + bytes) / SYNC_BYTES;
    if ((bytes && fwrite(data, 1, bytes, w->out) != bytes)
        || (syncs && !(fflush(w->out) == 0 && sync_file(fileno(w->out))))) return write_failed(w, err);
    w->crc = crc32_update(w->crc, data, bytes);
    w->written += bytes;
    return true;
}

bool st_end(StWriter* w, bool ok, TostError* err) {
    if (!w->out) return false;   // st_begin failed
    if (ok)
        ok = (fseek(w->out, w->crc_at, SEEK_SET) == 0 && fprintf(w->out, "%08" PRIx32, w->crc) == 8
              && fflush(w->out) == 0 && sync_file(fileno(w->out))) || write_failed(w, err);
    if (fclose(w->out) != 0 && ok) ok = write_failed(w, err);
    if (!ok) unlink(w->path.text);
    return ok;
}
