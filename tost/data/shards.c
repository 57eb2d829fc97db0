// shards.c: reads token shards by pread.
#include "data/shards.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32.h"
#include "base/error.h"
#include "base/files.h"
#include "base/memory.h"
#include "base/platform.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are little-endian and used as read");

// ---------------------------------------------------------------------------------------------
// Formats

typedef struct { uint32_t magic, version; int width; } ShardKind;

static const ShardKind shard_kinds[] = {
    {SHARD_MAGIC_U16, SHARD_VERSION_U16, 2},
    {SHARD_MAGIC_U32, SHARD_VERSION_U32, 4},
};

// The kind of a file that begins with these n bytes; NULL if it has no shard's magic.
static const ShardKind* find_kind(const char* head, size_t n) {
    uint32_t magic;
    if (n < sizeof magic) return NULL;
    memcpy(&magic, head, sizeof magic);
    for (size_t k = 0; k < countof(shard_kinds); k++)
        if (magic == shard_kinds[k].magic) return &shard_kinds[k];
    return NULL;
}

bool shard_begins(const char* head, size_t n) {
    const ShardKind* kind = find_kind(head, n);
    return kind && n >= 8 && memcmp(head + 4, &kind->version, 4) == 0;
}

bool shard_is_named(const char* name, const char* start) {
    const size_t n = strlen(start);
    if (strncmp(name, start, n) != 0) return false;
    const size_t digits = strspn(name + n, "0123456789");
    return digits == SHARD_DIGITS && strcmp(name + n + digits, ".bin") == 0;
}

static bool is_text(unsigned char c) { return (c >= 0x20 && c < 0x7f) || c == '\t' || c == '\n' || c == '\r'; }

// Any file of even size could be a raw shard. Rejects likely mistakes: .npy files of NumPy, and text. The first 32 or
// more real ids never consist of printable bytes only.
static bool raw_is_plausible(const char* path, const char* head, size_t n, TostError* err) {
    static const char npy[] = "\x93NUMPY";
    if (n >= sizeof npy - 1 && memcmp(head, npy, sizeof npy - 1) == 0)
        return tost_error(err, "%s: a NumPy .npy file; write raw uint16 ids with tofile() instead", path);
    size_t printable = 0;
    if (n > 512) n = 512;
    while (printable < n && is_text((unsigned char)head[printable])) printable++;
    return n < 64 || printable < n
        || tost_error(err, "%s: text, not token ids; convert it with `tokenize` first", path);
}

// Sets width, first and n_tokens of a file of `size` bytes that begins with the n bytes of head.
static bool shard_layout(Shard* s, uint64_t size, const char* head, size_t n, TostError* err) {
    const ShardKind* kind = find_kind(head, n);
    if (!kind) {
        s->width = 2;
        s->first = 0;
        s->n_tokens = size / 2;
        if (size % 2) {
            return tost_error(err, "%s: %" PRIu64 " bytes without a shard header, but a file of raw uint16 "
                              "ids has an even size; copy or make it again", s->path, size);
        }
        return raw_is_plausible(s->path, head, n, err);
    }
    if (size < SHARD_HEADER_BYTES) {
        return tost_error(err, "%s: truncated: %" PRIu64 " bytes, but the header has %d; copy or make it "
                          "again", s->path, size, SHARD_HEADER_BYTES);
    }
    uint32_t version, n_tokens;
    memcpy(&version, head + 4, sizeof version);
    memcpy(&n_tokens, head + 8, sizeof n_tokens);
    s->width = kind->width;
    s->first = SHARD_HEADER_BYTES;
    s->n_tokens = n_tokens;
    if (version != kind->version) {
        return tost_error(err, "%s: version %" PRIu32 " at offset 4, but shards with magic %" PRIu32
                          " have version %" PRIu32, s->path, version, kind->magic, kind->version);
    }
    uint64_t bytes = size - SHARD_HEADER_BYTES, claimed = s->n_tokens * (uint64_t)s->width;
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

// ---------------------------------------------------------------------------------------------
// Reading

enum { SHORT_READ = 1 << 20 };   // instead of an errno; greater than all of them

// Reads tokens without widening them. Returns 0, an errno or SHORT_READ.
static int read_stored(void* out, const Shard* s, uint64_t first, size_t n) {
    const size_t bytes = n * (size_t)s->width;
    const ssize_t got = read_at(s->fd, out, bytes, s->first + first * (uint64_t)s->width);
    return got < 0 ? errno : (size_t)got < bytes ? SHORT_READ : 0;
}

// Reads uint16 ids into the second half of the buffer and widens them block by block; no block overwrites a later one.
static int read_ids(uint32_t* ids, const Shard* s, uint64_t first, size_t n) {
    enum { BLOCK = 1024 };
    uint16_t block[BLOCK];
    if (s->width == 4) return read_stored(ids, s, first, n);
    char* stored = (char*)ids + n * sizeof *block;
    const int why = read_stored(stored, s, first, n);
    for (size_t i = 0, m; !why && i < n; i += m) {
        m = n - i < BLOCK ? n - i : BLOCK;
        memcpy(block, stored + i * sizeof *block, m * sizeof *block);
        for (size_t k = 0; k < m; k++) ids[i + k] = block[k];
    }
    return why;
}

static bool changed(const Shard* s, TostError* err) {
    return tost_error(err, "%s: changed while in use: restore the shard", s->path);
}

// Reports why the tokens from `first` on could not be read.
static bool read_error(const Shard* s, uint64_t first, int why, TostError* err) {
    if (why == SHORT_READ) return changed(s, err);
    return tost_error(err, "%s: reading at byte %" PRIu64 " failed: %s", s->path,
                      s->first + first * (uint64_t)s->width, strerror(why));
}

// Opens the file and gets its status.
static bool open_file(Shard* s, struct stat* st, TostError* err) {
    if (s->fd < 0) s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);   // do not wait on a FIFO
    return (s->fd >= 0 && fstat(s->fd, st) == 0)
        || tost_error(err, "%s: cannot be opened: %s", s->path, strerror(errno));
}

static void close_file(Shard* s) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

// Opens the file if it is closed, and checks that it is the one that shard_open found.
static bool ensure_same(Shard* s, TostError* err) {
    struct stat st;
    if (!open_file(s, &st, err)) return false;
    const bool same = S_ISREG(st.st_mode) && st.st_size == s->bytes && st.st_mtim.tv_sec == s->modified.tv_sec
        && st.st_mtim.tv_nsec == s->modified.tv_nsec;
    return same || changed(s, err);
}

bool shard_read(uint32_t* ids, Shard* s, uint64_t first, size_t n, TostError* err) {
    if (!ensure_same(s, err)) return false;
    const int why = read_ids(ids, s, first, n);
    return !why || read_error(s, first, why, err);
}

static bool read_layout(Shard* s, const struct stat* st, TostError* err) {
    char head[SHARD_HEADER_BYTES];
    if (S_ISDIR(st->st_mode))
        return tost_error(err, "%s: a folder, not a shard; give its files, such as '%s/*.bin'", s->path, s->path);
    if (!S_ISREG(st->st_mode)) return tost_error(err, "%s: not a regular file; a shard must be one", s->path);
    s->bytes = st->st_size;
    s->modified = st->st_mtim;
    if (st->st_size == 0) return tost_error(err, "%s: empty; copy or make it again", s->path);
    const ssize_t n = read_at(s->fd, head, sizeof head, 0);
    if (n < 0) return tost_error(err, "%s: cannot be read: %s", s->path, strerror(errno));
    return shard_layout(s, (uint64_t)st->st_size, head, (size_t)n, err);
}

bool shard_open(Shard* s, const char* path, TostError* err) {
    struct stat st;
    *s = (Shard){.path = xstrdup(path), .fd = -1};
    const bool ok = open_file(s, &st, err) && read_layout(s, &st, err);
    if (!ok) shard_close(s);
    return ok;
}

void shard_close(Shard* s) {
    close_file(s);
    free(s->path);
    *s = (Shard){.fd = -1};
}

// ---------------------------------------------------------------------------------------------
// Checking ids

// A plain loop, so that compilers vectorize it.
static uint32_t largest_of(const uint32_t* ids, size_t n) {
    uint32_t top = 0;
    for (size_t i = 0; i < n; i++) top = ids[i] > top ? ids[i] : top;
    return top;
}

// Reports token i, whose id is invalid; `note` ends the message.
static bool id_error(const Shard* s, uint64_t i, uint32_t id, uint32_t vocab_size, const char* note, TostError* err) {
    return tost_error(err, "%s: token %" PRIu64 " at byte %" PRIu64 " is %" PRIu32 ", but the vocabulary has %" PRIu32
                      " ids; use shards made with the model's tokenizer, or raise --vocab-size; %s", s->path, i,
                      s->first + i * (uint64_t)s->width, id, vocab_size, note);
}

bool shard_check_ids(Shard* s, uint32_t vocab_size, TostError* err) {
    enum { BLOCK = 1 << 16 };
    const int64_t blocks = (int64_t)((s->n_tokens + BLOCK - 1) / BLOCK);
    uint32_t largest = 0, id;
    uint64_t invalid = 0, first = UINT64_MAX, failed_at = UINT64_MAX;   // first: position of the first invalid id
    int why = 0;
    if (!ensure_same(s, err)) return false;
    #pragma omp parallel for schedule(static) if (blocks > 16) reduction(max : largest, why) reduction(+ : invalid) \
        reduction(min : first, failed_at)
    for (int64_t b = 0; b < blocks; b++) {
        const uint64_t at = (uint64_t)b * BLOCK;
        const size_t n = s->n_tokens - at < BLOCK ? (size_t)(s->n_tokens - at) : BLOCK;
        uint32_t* ids = xmalloc(BLOCK * sizeof *ids);   // threads may have small stacks
        const int failed = why > 0 ? why : read_ids(ids, s, at, n);   // a thread's copy starts below 0
        const uint32_t top = failed ? 0 : largest_of(ids, n);
        if (failed) {
            why = failed;
            failed_at = at < failed_at ? at : failed_at;
        }
        largest = top > largest ? top : largest;
        for (size_t i = 0; top >= vocab_size && i < n; i++) {
            if (ids[i] < vocab_size) continue;
            invalid++;
            first = at + i < first ? at + i : first;
        }
        free(ids);
    }
    if (why > 0) return read_error(s, failed_at, why, err);
    s->largest_id = largest;
    if (!invalid) return true;
    char note[64];
    snprintf(note, sizeof note, "invalid ids in this shard: %" PRIu64, invalid);
    return shard_read(&id, s, first, 1, err) && id_error(s, first, id, vocab_size, note, err);
}

// ---------------------------------------------------------------------------------------------
// All shards as one stream

static const int64_t CHECK_BYTES = 1 << 30;   // ids checked when opening

int find_interval(const uint64_t* start, int n, uint64_t x) {
    int lo = 0, hi = n;
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (start[mid] <= x) lo = mid; else hi = mid;
    }
    return lo;
}

// Closes the file of the shard read before, if it is another one.
static Shard* enter_shard(ShardStream* s, int k) {
    if (k != s->current) close_file(&s->shards[s->current]);
    s->current = k;
    return &s->shards[k];
}

// *bytes: of all shards so far
static bool add_shard(ShardStream* s, int64_t* bytes, const char* path, TostError* err) {
    Shard* shard = enter_shard(s, s->count);
    if (!shard_open(shard, path, err)) return false;
    s->count++;
    s->start[s->count] = s->start[s->count - 1] + shard->n_tokens;
    *bytes += shard->bytes;
    return *bytes > CHECK_BYTES || shard_check_ids(shard, s->vocab_size, err);
}

// A killed tokenize may leave OUT_train_000000.bin and OUT.tmp/train_000001.bin (shard_writer.c). Checks this for one
// shard.
static bool check_published(const char* path, TostError* err) {
    const char* slash = strrchr(path, '/');
    char* folder = xstrdup(path);
    bool ok = true;
    for (int fields = 0; fields < 2; fields++) {   // removes _NNNNNN.bin and _train or _val
        char* end = strrchr(folder + (slash ? slash - path : 0), '_');
        if (end) *end = 0;
    }
    char* tmp = xasprintf("%s.tmp", folder);
    DIR* entries = opendir(tmp);
    for (struct dirent* e; ok && entries && (e = readdir(entries));)
        ok = (!shard_is_named(e->d_name, "train_") && !shard_is_named(e->d_name, "val_"))
            || tost_error(err, "%s: the shards that follow it are still in %s, because tokenize was killed or is not "
                          "finished: remove both and tokenize again, or only the folder if no shard is missing",
                          path, tmp);
    if (entries) closedir(entries);
    free(tmp);
    free(folder);
    return ok;
}

bool stream_open(ShardStream* s, const char* glob, uint32_t vocab_size, TostError* err) {
    PathList list;
    *s = (ShardStream){.vocab_size = vocab_size};
    if (!expand_glob(&list, glob, err)) return false;
    s->shards = xcalloc((size_t)list.count, sizeof *s->shards);
    s->start = xcalloc((size_t)list.count + 1, sizeof *s->start);
    s->dir = path_dir(list.paths[0]);
    int64_t bytes = 0;
    bool ok = check_published(list.paths[0], err);
    for (int i = 0; i < list.count && ok; i++) ok = add_shard(s, &bytes, list.paths[i], err);
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

// Reports the first invalid id among n ids; there must be one.
static bool stream_id_error(const Shard* s, const uint32_t* ids, uint64_t at, uint32_t vocab_size, TostError* err) {
    size_t i = 0;
    while (ids[i] < vocab_size) i++;
    char note[64];
    snprintf(note, sizeof note, "`info --vocab-size %" PRIu32 " SHARD` checks a whole shard", vocab_size);
    return id_error(s, at + i, ids[i], vocab_size, note, err);
}

bool stream_read(int32_t* out, ShardStream* s, uint64_t first, size_t n, TostError* err) {
    uint32_t* ids = (uint32_t*)out;
    for (int k = n ? find_interval(s->start, s->count, first) : 0; n; k++) {
        const uint64_t left = s->start[k + 1] - first, at = first - s->start[k];
        const size_t here = left < n ? (size_t)left : n;
        Shard* shard = enter_shard(s, k);
        if (!shard_read(ids, shard, at, here, err)) return false;
        if (largest_of(ids, here) >= s->vocab_size) return stream_id_error(shard, ids, at, s->vocab_size, err);
        ids += here;
        first += here;
        n -= here;
    }
    return true;
}

// Updates *crc with the number of tokens and the tokens at both ends.
static bool ends_crc(uint32_t* crc, Shard* s, TostError* err) {
    uint32_t ids[SHARD_CRC_TOKENS];
    const uint64_t n = s->n_tokens, head = n < SHARD_CRC_TOKENS ? n : SHARD_CRC_TOKENS;
    const uint64_t tail = n - head < SHARD_CRC_TOKENS ? n - head : SHARD_CRC_TOKENS;
    *crc = crc32_update(*crc, &n, sizeof n);
    if (!shard_read(ids, s, 0, (size_t)head, err)) return false;
    *crc = crc32_update(*crc, ids, (size_t)head * sizeof *ids);
    if (!shard_read(ids, s, n - tail, (size_t)tail, err)) return false;
    *crc = crc32_update(*crc, ids, (size_t)tail * sizeof *ids);
    return true;
}

bool stream_crc(uint32_t* crc, ShardStream* s, TostError* err) {
    *crc = 0;
    for (int k = 0; k < s->count; k++)
        if (!ends_crc(crc, enter_shard(s, k), err)) return false;
    return true;
}
