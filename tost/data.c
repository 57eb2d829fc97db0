// data.c: token shards by mmap, sequential and shuffled samples, and the shard writer.
#include "data.h"
#include "platform.h"
#include "rng.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are little-endian and used as mapped");

// ---------------------------------------------------------------------------------------------
// Shards

typedef struct {
    uint32_t magic, version, n_tokens, unused[253];
} ShardHeader;
_Static_assert(sizeof(ShardHeader) == 1024, "256 int32, as in llm.c");

typedef struct { uint32_t magic, version; int width; } ShardKind;

enum { KIND_U16, KIND_U32, KINDS };
static const ShardKind shard_kinds[KINDS] = {
    [KIND_U16] = {20240520, 1, 2},
    [KIND_U32] = {20240801, 7, 4},
};

// The kind of a file that begins with these n bytes; NULL if it has no shard's magic.
static const ShardKind* find_kind(const void* head, size_t n) {
    uint32_t magic;
    if (n < sizeof magic) return NULL;
    memcpy(&magic, head, sizeof magic);
    for (int k = 0; k < KINDS; k++)
        if (magic == shard_kinds[k].magic) return &shard_kinds[k];
    return NULL;
}

bool shard_begins(const char* head, size_t n) {
    const ShardKind* kind = find_kind(head, n);
    return kind && n >= 8 && memcmp(head + 4, &kind->version, 4) == 0;
}

static bool is_text(uint8_t c) { return (c >= 0x20 && c < 0x7f) || c == '\t' || c == '\n' || c == '\r'; }

// Any file of even size could be a raw shard. Rejects likely mistakes: .npy files of NumPy, and text. The first 32 or
// more real ids never consist of printable bytes only.
static bool raw_is_plausible(const Shard* s, TostError* err) {
    static const char npy[] = "\x93NUMPY";
    size_t n = s->map_bytes < 512 ? (size_t)s->map_bytes : 512;
    if (n >= sizeof npy - 1 && memcmp(s->map, npy, sizeof npy - 1) == 0) {
        return tost_error(err, "%s: a NumPy .npy file; write raw uint16 ids with tofile() instead", s->path);
    }
    size_t printable = 0;
    while (printable < n && is_text(s->map[printable])) printable++;
    if (n >= 64 && printable == n) {
        return tost_error(err, "%s: text, not token ids; convert it with `tokenize` first", s->path);
    }
    return true;
}

static bool shard_layout(Shard* s, TostError* err) {
    const uint64_t size = s->map_bytes;
    const ShardKind* kind = find_kind(s->map, size);
    if (!kind) {
        s->width = 2;
        s->first = 0;
        s->n_tokens = size / 2;
        if (size % 2) {
            return tost_error(err, "%s: %" PRIu64 " bytes without a shard header, but a file of raw uint16 "
                              "ids has an even size; copy or make it again", s->path, size);
        }
        return raw_is_plausible(s, err);
    }
    ShardHeader h;
    if (size < sizeof h) {
        return tost_error(err, "%s: truncated: %" PRIu64 " bytes, but the header has %zu; copy or make it "
                          "again", s->path, size, sizeof h);
    }
    memcpy(&h, s->map, sizeof h);
    s->width = kind->width;
    s->first = sizeof h;
    s->n_tokens = h.n_tokens;
    if (h.version != kind->version) {
        return tost_error(err, "%s: version %" PRIu32 " at offset 4, but shards with magic %" PRIu32
                          " have version %" PRIu32, s->path, h.version, h.magic, kind->version);
    }
    uint64_t bytes = size - sizeof h, claimed = s->n_tokens * (uint64_t)s->width;
    if (bytes < claimed) {
        return tost_error(err, "%s: truncated: offset 8 says %" PRIu64 " tokens, but the file of %" PRIu64
                          " bytes has %" PRIu64 "; copy or make it again", s->path, s->n_tokens, size,
                          bytes / (uint64_t)s->width);
    }
    if (bytes > claimed) {
        return tost_error(err, "%s: too long: offset 8 says %" PRIu64 " tokens, but %" PRIu64 " bytes follow "
                          "them; copy or make it again", s->path, s->n_tokens, bytes - claimed);
    }
    return s->n_tokens > 0 || tost_error(err, "%s: no tokens; copy or make it again", s->path);
}

static bool shard_map(Shard* s, int fd, TostError* err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return tost_error(err, "%s: cannot read its status: %s", s->path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        return tost_error(err, "%s: a folder, not a shard; give its files, such as '%s/*.bin'", s->path,
                          s->path);
    }
    if (!S_ISREG(st.st_mode)) return tost_error(err, "%s: not a regular file; a shard must be one", s->path);
    if (st.st_size == 0) return tost_error(err, "%s: empty; copy or make it again", s->path);
    s->map_bytes = (uint64_t)st.st_size;
    void* map = mmap(NULL, (size_t)s->map_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        return tost_error(err, "%s: cannot map %" PRIu64 " bytes: %s", s->path, s->map_bytes,
                          strerror(errno));
    }
    s->map = map;
    return shard_layout(s, err);
}

bool shard_open(Shard* s, const char* path, TostError* err) {
    *s = (Shard){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // do not wait on a FIFO
    if (fd < 0) return tost_error(err, "%s: cannot be opened: %s", path, strerror(errno));
    s->path = xstrdup(path);
    bool ok = shard_map(s, fd, err);
    close(fd);
    if (!ok) shard_close(s);
    return ok;
}

void shard_close(Shard* s) {
    if (s->map) munmap((void*)(uintptr_t)s->map, (size_t)s->map_bytes);
    free(s->path);
    *s = (Shard){0};
}

uint32_t shard_token(const Shard* s, uint64_t i) {
    const uint8_t* p = s->map + s->first;
    return s->width == 2 ? ((const uint16_t*)p)[i] : ((const uint32_t*)p)[i];
}

// The largest id of tokens first … first + n - 1. Plain loops, so that compilers vectorize them.
static uint32_t largest_id(const Shard* s, uint64_t first, uint64_t n) {
    const uint8_t* p = s->map + s->first + first * (uint64_t)s->width;
    if (s->width == 2) {
        const uint16_t* ids = (const uint16_t*)p;
        uint16_t top = 0;
        for (uint64_t i = 0; i < n; i++) top = ids[i] > top ? ids[i] : top;
        return top;
    }
    const uint32_t* ids = (const uint32_t*)p;
    uint32_t top = 0;
    for (uint64_t i = 0; i < n; i++) top = ids[i] > top ? ids[i] : top;
    return top;
}

// Reports the first invalid id at or after token i; there must be one.
static bool id_error(const Shard* s, uint64_t i, uint32_t vocab_size, TostError* err) {
    while (shard_token(s, i) < vocab_size) i++;
    return tost_error(err, "%s: token %" PRIu64 " is %" PRIu32 ", but the vocabulary has %" PRIu32 " ids; "
                      "use shards made with the model's tokenizer, or raise --vocab-size", s->path, i,
                      shard_token(s, i), vocab_size);
}

bool shard_check_ids(Shard* s, uint32_t vocab_size, TostError* err) {
    const uint64_t block = 1 << 20;
    int64_t blocks = (int64_t)((s->n_tokens + block - 1) / block);
    uint32_t top = 0;
    #pragma omp parallel for reduction(max : top) schedule(static)
    for (int64_t i = 0; i < blocks; i++) {
        uint64_t first = (uint64_t)i * block, left = s->n_tokens - first;
        uint32_t id = largest_id(s, first, left < block ? left : block);
        top = id > top ? id : top;
    }
    s->largest_id = top;
    return top < vocab_size || id_error(s, 0, vocab_size, err);
}

// ---------------------------------------------------------------------------------------------
// All shards as one stream

static const uint64_t CHECK_BYTES = 1 << 30;  // ids checked when opening

// The last k with start[k] <= x. start (n + 1) is sorted, and start[0] <= x < start[n].
static int find_interval(const uint64_t* start, int n, uint64_t x) {
    int lo = 0, hi = n;
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (start[mid] <= x) lo = mid; else hi = mid;
    }
    return lo;
}

bool stream_open(ShardStream* s, const char* glob, uint32_t vocab_size, TostError* err) {
    PathList list;
    *s = (ShardStream){.vocab_size = vocab_size};
    if (!expand_glob(&list, glob, err)) return false;
    s->shards = xcalloc((size_t)list.count, sizeof *s->shards);
    s->start = xcalloc((size_t)list.count + 1, sizeof *s->start);
    s->dir = path_dir(list.paths[0]);
    uint64_t bytes = 0;
    bool ok = true;
    for (int i = 0; i < list.count && ok; i++) {
        Shard* shard = &s->shards[i];
        ok = shard_open(shard, list.paths[i], err);
        if (!ok) break;
        s->count++;
        s->start[i + 1] = s->start[i] + shard->n_tokens;
        bytes += shard->map_bytes;
        ok = bytes > CHECK_BYTES || shard_check_ids(shard, vocab_size, err);
    }
    free_paths(&list);
    if (!ok) stream_close(s);
    return ok;
}

void stream_close(ShardStream* s) {
    for (int i = 0; i < s->count; i++) shard_close(&s->shards[i]);
    free(s->shards);
    free(s->start);
    free(s->dir);
    *s = (ShardStream){0};
}

uint64_t stream_tokens(const ShardStream* s) { return s->start[s->count]; }

uint32_t stream_largest_id(const ShardStream* s) {
    uint32_t largest = 0;
    for (int i = 0; i < s->count; i++)
        if (s->shards[i].largest_id > largest) largest = s->shards[i].largest_id;
    return largest;
}

static bool copy_ids(int32_t* out, const Shard* s, uint64_t first, uint64_t n, uint32_t vocab_size,
                     TostError* err) {
    if (largest_id(s, first, n) >= vocab_size) return id_error(s, first, vocab_size, err);
    const uint8_t* p = s->map + s->first + first * (uint64_t)s->width;
    if (s->width == 2) {
        for (uint64_t i = 0; i < n; i++) out[i] = ((const uint16_t*)p)[i];
    } else {
        memcpy(out, p, (size_t)n * 4);
    }
    return true;
}

bool stream_read(int32_t* out, const ShardStream* s, uint64_t first, uint64_t n, TostError* err) {
    for (int i = n ? find_interval(s->start, s->count, first) : 0; n; i++) {
        uint64_t left = s->start[i + 1] - first, here = left < n ? left : n;
        if (!copy_ids(out, &s->shards[i], first - s->start[i], here, s->vocab_size, err)) return false;
        out += here;
        first += here;
        n -= here;
    }
    return true;
}

// ---------------------------------------------------------------------------------------------
// The data set

struct DataSet {
    ShardStream stream;
    int       T;
    DataOrder order;
    uint64_t  seed;
    uint64_t  samples;           // per epoch

    // Shuffled order: state of the current epoch and its current shard.
    uint64_t  epoch;             // NO_EPOCH before the first sample
    uint32_t* turn;              // (shards) order of the shards: the k-th one is shard turn[k]
    uint64_t* turn_start;        // (shards + 1) first sample of turn k within the epoch
    int       at;                // the turn of perm and offset, or -1
    uint64_t  offset;            // token where the shard's first sample starts
    uint32_t* perm;              // position within the turn -> sample of the shard
};

static const uint64_t NO_EPOCH = UINT64_MAX;

static uint64_t shard_samples(const DataSet* d, int s) {
    return (d->stream.shards[s].n_tokens - 1) / (uint64_t)d->T;
}

// Counts the samples of an epoch; no samples are an error.
static bool count_samples(DataSet* d, const char* glob, TostError* err) {
    const uint64_t T = (uint64_t)d->T, tokens = stream_tokens(&d->stream);
    uint64_t in_shards = 0;
    for (int s = 0; s < d->stream.count; s++) {
        in_shards += shard_samples(d, s);
        if (d->order == ORDER_SHUFFLED && shard_samples(d, s) > UINT32_MAX) {
            return tost_error(err, "%s: %" PRIu64 " samples of --seq %d, but a shuffled shard has at most %" PRIu32
                              ": use a longer --seq or --order sequential", d->stream.shards[s].path,
                              shard_samples(d, s), d->T, UINT32_MAX);
        }
    }
    if (tokens < T + 1) {
        return tost_error(err, "%s: %" PRIu64 " tokens in %d shard%s, but --seq %d needs at least %" PRIu64,
                          glob, tokens, d->stream.count, d->stream.count == 1 ? "" : "s", d->T, T + 1);
    }
    d->samples = d->order == ORDER_SEQUENTIAL ? (tokens - 1) / T : in_shards;
    return d->samples > 0
        || tost_error(err, "%s: no shard has the %" PRIu64 " tokens that --seq %d needs: use a shorter "
                      "--seq or --order sequential", glob, T + 1, d->T);
}

DataSet* data_open(const char* glob, int T, uint32_t vocab_size, DataOrder order, uint64_t seed,
                   TostError* err) {
    assert(T > 0);
    DataSet* d = xcalloc(1, sizeof *d);
    *d = (DataSet){.T = T, .order = order, .seed = seed, .epoch = NO_EPOCH, .at = -1};
    if (stream_open(&d->stream, glob, vocab_size, err) && count_samples(d, glob, err)) return d;
    data_close(d);
    return NULL;
}

void data_close(DataSet* d) {
    if (!d) return;
    stream_close(&d->stream);
    free(d->turn);
    free(d->turn_start);
    free(d->perm);
    free(d);
}

int         data_shards(const DataSet* d)     { return d->stream.count; }
uint64_t    data_tokens(const DataSet* d)     { return stream_tokens(&d->stream); }
uint64_t    data_samples(const DataSet* d)    { return d->samples; }
const char* data_dir(const DataSet* d)        { return d->stream.dir; }
uint32_t    data_largest_id(const DataSet* d) { return stream_largest_id(&d->stream); }

uint32_t data_crc(const DataSet* d) {
    uint32_t crc = 0, ids[2 * DATA_CRC_TOKENS];
    for (int s = 0; s < d->stream.count; s++) {
        const Shard* shard = &d->stream.shards[s];
        const uint64_t n = shard->n_tokens, ends = n < 2 * DATA_CRC_TOKENS ? n : 2 * DATA_CRC_TOKENS;
        for (uint64_t i = 0; i < ends; i++) ids[i] = shard_token(shard, i < ends / 2 ? i : n - ends + i);
        crc = crc32_update(crc, &n, sizeof n);
        crc = crc32_update(crc, ids, (size_t)ends * sizeof *ids);
    }
    return crc;
}

// ---------------------------------------------------------------------------------------------
// Samples

static Rng shuffle_rng(const DataSet* d, uint64_t slot) {
    return rng_seeded(d->seed, ((uint64_t)0xda7a << 48) + (d->epoch << 24) + slot);
}

// 0 … n - 1 in random order (Fisher-Yates)
static void permute(uint32_t* out, uint64_t n, Rng* r) {
    for (uint64_t i = 0; i < n; i++) out[i] = (uint32_t)i;
    for (uint64_t i = n; i-- > 1;) {
        uint64_t j = rng_below(r, i + 1);
        uint32_t swap = out[i];
        out[i] = out[j];
        out[j] = swap;
    }
}

static void enter_epoch(DataSet* d, uint64_t epoch) {
    if (d->epoch == epoch) return;
    size_t n = (size_t)d->stream.count;
    d->epoch = epoch;
    d->at = -1;
    d->turn = xrealloc(d->turn, n * sizeof *d->turn);
    d->turn_start = xrealloc(d->turn_start, (n + 1) * sizeof *d->turn_start);
    Rng r = shuffle_rng(d, 0);
    permute(d->turn, n, &r);
    d->turn_start[0] = 0;
    for (size_t k = 0; k < n; k++) {
        d->turn_start[k + 1] = d->turn_start[k] + shard_samples(d, (int)d->turn[k]);
    }
}

static void enter_turn(DataSet* d, int k) {
    if (d->at == k) return;
    uint32_t s = d->turn[k];
    uint64_t samples = shard_samples(d, (int)s);
    d->at = k;
    d->perm = xrealloc(d->perm, (size_t)samples * sizeof *d->perm);
    Rng r = shuffle_rng(d, 1 + (uint64_t)s);
    d->offset = rng_below(&r, d->stream.shards[s].n_tokens - samples * (uint64_t)d->T);
    permute(d->perm, samples, &r);
}

// Position of sample i's first token in the stream.
static uint64_t sample_start(DataSet* d, uint64_t i) {
    const uint64_t T = (uint64_t)d->T, in_epoch = i % d->samples;
    if (d->order == ORDER_SEQUENTIAL) return in_epoch * T;
    enter_epoch(d, i / d->samples);
    int k = find_interval(d->turn_start, d->stream.count, in_epoch);
    enter_turn(d, k);
    return d->stream.start[d->turn[k]] + d->offset + d->perm[in_epoch - d->turn_start[k]] * T;
}

bool data_batch(DataSet* d, int32_t* inputs, int32_t* targets, uint64_t first, int B, TostError* err) {
    const size_t T = (size_t)d->T;
    for (size_t b = 0; b < (size_t)B; b++) {
        const uint64_t start = sample_start(d, first + b);
        if (!stream_read(inputs + b * T, &d->stream, start, T, err)
            || !stream_read(targets + b * T, &d->stream, start + 1, T, err)) return false;
    }
    return true;
}

// ---------------------------------------------------------------------------------------------
// Writing

enum { MAX_SHARDS = 1000000 };  // six digits, so that name order is token order

struct ShardWriter {
    char*    prefix;
    uint32_t vocab_size;
    int      kind;
    uint64_t shard_tokens;
    FILE*    out;           // current shard; NULL between shards
    char*    path;          // its name, ending in .tmp
    uint64_t in_shard;      // tokens in it
    uint64_t total;         // tokens in all shards
    int      shards;        // shards begun
};

static char* shard_name(const ShardWriter* w, int i, bool tmp) {
    return xasprintf("%s_%06d.bin%s", w->prefix, i, tmp ? ".tmp" : "");
}

// True if name is BASE_NNNNNN.bin.
static bool is_shard_of(const char* name, const char* base) {
    size_t n = strlen(base);
    if (strncmp(name, base, n) != 0 || name[n] != '_') return false;
    size_t digits = strspn(name + n + 1, "0123456789");
    return digits == 6 && strcmp(name + n + 1 + digits, ".bin") == 0;
}

// Fails if shards with this prefix exist: old and new ones would match the same glob.
static bool check_no_shards(const char* dir, const char* prefix, TostError* err) {
    const char* slash = strrchr(prefix, '/');
    const char* base = slash ? slash + 1 : prefix;
    DIR* entries = opendir(dir);
    if (!entries) return tost_error(err, "%s: cannot open the folder: %s", dir, strerror(errno));
    char* found = NULL;  // the first in name order
    int count = 0;
    for (struct dirent* e; (e = readdir(entries));) {
        if (!is_shard_of(e->d_name, base)) continue;
        count++;
        if (found && strcmp(found, e->d_name) <= 0) continue;
        free(found);
        found = xstrdup(e->d_name);
    }
    closedir(entries);
    if (count == 1) {
        tost_error(err, "%s/%s: exists already; remove it or choose another --out", dir, found);
    } else if (count) {
        tost_error(err, "%s/%s and %d more shards exist already; remove them or choose another --out", dir,
                   found, count - 1);
    }
    free(found);
    return count == 0;
}

ShardWriter* shard_writer_open(const char* prefix, uint32_t vocab_size, uint64_t shard_tokens,
                               TostError* err) {
    size_t n = strlen(prefix);
    if (n == 0 || prefix[n - 1] == '/') {
        tost_error(err, "--out '%s': not a prefix of file names; give one such as data/my for data/my_000000.bin",
                   prefix);
        return NULL;
    }
    if (shard_tokens < 1 || shard_tokens > INT32_MAX) {  // the header's count is an int32
        tost_error(err, "--shard-tokens %" PRIu64 ": out of range; give 1 to %d", shard_tokens, INT32_MAX);
        return NULL;
    }
    char* dir = path_dir(prefix);
    bool ok = make_dirs(dir, err) && check_no_shards(dir, prefix, err);
    free(dir);
    if (!ok) return NULL;
    ShardWriter* w = xcalloc(1, sizeof *w);
    w->prefix = xstrdup(prefix);
    w->vocab_size = vocab_size;
    w->kind = vocab_size <= 65536 ? KIND_U16 : KIND_U32;
    w->shard_tokens = shard_tokens;
    return w;
}

static bool write_failed(const ShardWriter* w, TostError* err) {
    return tost_error(err, "%s: write failed after %" PRIu64 " tokens: %s", w->path, w->in_shard,
                      strerror(errno));
}

static bool begin_shard(ShardWriter* w, TostError* err) {
    if (w->shards == MAX_SHARDS) {
        return tost_error(err, "%s: more than %d shards; raise --shard-tokens above %" PRIu64, w->prefix,
                          MAX_SHARDS, w->shard_tokens);
    }
    free(w->path);
    w->path = shard_name(w, w->shards, true);
    w->in_shard = 0;
    w->out = fopen(w->path, "wb");
    if (!w->out) return tost_error(err, "%s: cannot create the file: %s", w->path, strerror(errno));
    w->shards++;
    ShardHeader blank = {0};  // no magic until complete: an unfinished shard is not valid
    return fwrite(&blank, sizeof blank, 1, w->out) == 1 || write_failed(w, err);
}

// Writes the header and syncs the file.
static bool end_shard(ShardWriter* w, TostError* err) {
    const ShardKind* kind = &shard_kinds[w->kind];
    ShardHeader h = {.magic = kind->magic, .version = kind->version, .n_tokens = (uint32_t)w->in_shard};
    bool ok = fflush(w->out) == 0 && fseek(w->out, 0, SEEK_SET) == 0 && fwrite(&h, sizeof h, 1, w->out) == 1
        && fflush(w->out) == 0 && sync_file(fileno(w->out));
    if (!ok) write_failed(w, err);
    if (fclose(w->out) != 0 && ok) ok = write_failed(w, err);
    w->out = NULL;
    return ok;
}

bool shard_writer_append(ShardWriter* w, const uint32_t* ids, size_t n, TostError* err) {
    enum { CHUNK = 4096 };
    int width = shard_kinds[w->kind].width;
    while (n) {
        if (!w->out && !begin_shard(w, err)) return false;
        uint8_t bytes[CHUNK * 4];
        uint64_t room = w->shard_tokens - w->in_shard;
        size_t m = n < CHUNK ? n : CHUNK;
        if (m > room) m = (size_t)room;
        for (size_t i = 0; i < m; i++) {
            assert(ids[i] < w->vocab_size);
            memcpy(bytes + i * (size_t)width, &ids[i], (size_t)width);  // little-endian: the low bytes
        }
        if (fwrite(bytes, (size_t)width, m, w->out) != m) return write_failed(w, err);
        w->in_shard += m;
        w->total += m;
        ids += m;
        n -= m;
        if (w->in_shard == w->shard_tokens && !end_shard(w, err)) return false;
    }
    return true;
}

// Frees w and removes its shards; the first `renamed` of them no longer end in .tmp.
static void discard(ShardWriter* w, int renamed) {
    if (w->out) fclose(w->out);
    for (int i = 0; i < w->shards; i++) {
        char* path = shard_name(w, i, i >= renamed);
        unlink(path);
        free(path);
    }
    free(w->path);
    free(w->prefix);
    free(w);
}

void shard_writer_abandon(ShardWriter* w) {
    if (w) discard(w, 0);
}

static bool rename_shard(const ShardWriter* w, int i, TostError* err) {
    char* from = shard_name(w, i, true);
    char* to = shard_name(w, i, false);
    bool ok = rename(from, to) == 0
        || tost_error(err, "%s: cannot rename it to %s: %s", from, to, strerror(errno));
    free(from);
    free(to);
    return ok;
}

bool shard_writer_close(ShardWriter* w, uint64_t* tokens, int* shards, TostError* err) {
    int renamed = 0;
    bool ok = !w->out || end_shard(w, err);
    while (ok && renamed < w->shards) {
        ok = rename_shard(w, renamed, err);
        renamed += ok;
    }
    char* dir = path_dir(w->prefix);
    ok = ok && sync_dir(dir, err);
    free(dir);
    *tokens = w->total;
    *shards = w->shards;
    if (ok) w->shards = 0;  // nothing to remove
    discard(w, renamed);
    return ok;
}
