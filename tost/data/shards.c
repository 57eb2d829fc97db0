// shards.c: opens, checks and reads token shards.
#include "data/shards.h"

#include <errno.h>
#include <inttypes.h>

#include "base/crc32.h"
#include "base/folder.h"
#include "base/memory.h"
#include "base/platform.h"
#include "base/say.h"
#include "data/formats.h"

// ---- Formats ----

// The version of shards with this magic; 0 if it is not a shard's.
static uint32_t version_of(uint32_t magic) {
    return magic == SHARD_MAGIC_U16 ? SHARD_VERSION_U16 : magic == SHARD_MAGIC_U32 ? SHARD_VERSION_U32 : 0;
}

bool shard_begins(const char* head, size_t n) {
    uint32_t header[2] = {0};
    if (n >= sizeof header) memcpy(header, head, sizeof header);
    return header[1] > 0 && header[1] == version_of(header[0]);
}

static bool is_shard_name(const char* name, const char* start) {
    const size_t n = strlen(start);
    if (strncmp(name, start, n) != 0) return false;
    name += n;
    const size_t split = strncmp(name, "train_", 6) == 0 ? 6 : strncmp(name, "val_", 4) == 0 ? 4 : 0;
    return split && strspn(name + split, "0123456789") == SHARD_DIGITS
        && strcmp(name + split + SHARD_DIGITS, ".bin") == 0;
}

bool shard_find(Path* found, const char* folder, const char* start, TostError* err) {
    StringList names;
    const bool ok = folder_list(&names, folder, err);
    *found = (Path){""};
    for (int i = 0; i < names.count && !found->text[0]; i++)
        if (is_shard_name(names.strings[i], start)) *found = path_in(folder, names.strings[i]);
    free_strings(&names);
    return ok;
}

// Any file could be a raw shard. Names likely mistakes by the first n bytes. 32 or more ids never consist of printable
// bytes only.
static bool check_head(const Shard* s, const char* head, size_t n, TostError* err) {
    size_t text = 0;
    if (!check_format(s->path, head, n, err)) return false;
    if (n > 512) n = 512;
    while (text < n && ((head[text] >= ' ' && head[text] <= '~') || memchr("\t\n\r", head[text], 3))) text++;
    return n < 64 || text < n
        || tost_error(err, "%s: text, not token ids; convert it with `tokenize` first", s->path);
}

// Refuses raw ids of 32 or 64 bits. In the 16-bit halfwords of the head and the middle of the file, all but the first
// of each id are 0, or below 16 if ids over 65535 occur, and at least a quarter of the first ones are greater than all
// of these. 16-bit ids do not look like this: at least every second one would have to be so small.
static bool check_width(const Shard* s, uint64_t size, const char* head, size_t bytes, TostError* err) {
    enum { LEAST = 256 };   // bytes of a file
    uint16_t v[SHARD_HEADER_BYTES], most[4] = {0};
    size_t n = bytes / 8 * 4, greater = 0;
    memcpy(v, head, n * sizeof *v);
    const ssize_t more = read_at(s->fd, v + n, bytes, size / 2 & ~(uint64_t)7);
    n += more > 0 ? (size_t)more / 8 * 4 : 0;
    for (size_t i = 0; i < n; i++) most[i % 4] = v[i] > most[i % 4] ? v[i] : most[i % 4];
    const unsigned bits = most[2] || most[3] ? 32 : 64, second = most[1] > most[3] ? most[1] : most[3];
    for (size_t i = 0; i < n; i += 2) greater += v[i] > second;
    const bool large = second > 0, with_large = second < 16 && (most[0] > 32767 || most[2] > 32767);
    if (size < LEAST || size % (bits / 8) || greater < 4 * n / bits || (large && !with_large)) return true;
    return tost_error(err, "%s: %u-bit ids without a header, but such a file must have 16-bit ids; convert it with "
                      "NumPy: a = np.fromfile(F, np.uint%u); np.append(np.pad(np.uint32([20240801, 7, a.size]), "
                      "(0, 253)), a.astype(np.uint32)).tofile(G)", s->path, bits, bits);
}

Path shard_prefix(const char* path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(name);
    for (int fields = 0; fields < 2 && n > 0; fields++)
        while (n > 0 && name[--n] != '_') {}
    return path_text("%.*s", (int)((size_t)(name - path) + n), path);
}

// Sets width, first and n_tokens of a file of `size` bytes that begins with the n bytes of head, which zeros follow.
static bool shard_layout(Shard* s, uint64_t size, const char* head, size_t n, TostError* err) {
    uint32_t header[3];   // magic, version, number of tokens
    memcpy(header, head, sizeof header);
    const uint32_t version = version_of(header[0]);
    if (!version) {
        s->width = 2;
        s->n_tokens = size / 2;
        if (!check_head(s, head, n, err)) return false;
        return size % 2 == 0 ? check_width(s, size, head, n, err)
            : tost_error(err, "%s: %" PRIu64 " bytes without a shard header, but a file of raw uint16 ids has an even "
                         "size; copy or make it again", s->path, size);
    }
    s->width = header[0] == SHARD_MAGIC_U16 ? 2 : 4;
    s->first = SHARD_HEADER_BYTES;
    s->n_tokens = header[2];
    const uint64_t claimed = SHARD_HEADER_BYTES + s->n_tokens * (uint64_t)s->width;
    if (size != claimed)
        return tost_error(err, "%s: %s: offset 8 says %" PRIu64 " tokens, %" PRIu64 " bytes with the header, but it "
                          "has %" PRIu64 "; copy or make it again", s->path, size < claimed ? "truncated" : "too long",
                          s->n_tokens, claimed, size);
    return header[1] == version
        || tost_error(err, "%s: version %" PRIu32 " at offset 4, but shards with magic %" PRIu32
                      " have version %" PRIu32, s->path, header[1], header[0], version);
}

// ---- Reading ----

static bool changed(const Shard* s, TostError* err) {
    return tost_error(err, "%s: changed while in use: restore the shard", s->path);
}

// Reads uint16 ids into the second half of the buffer and widens them; no id overwrites a later one.
static bool read_ids(uint32_t* ids, const Shard* s, uint64_t first, size_t n, TostError* err) {
    const size_t bytes = n * (size_t)s->width;
    char* stored = (char*)(ids + n) - bytes;
    const ssize_t got = read_at(s->fd, stored, bytes, s->first + first * (uint64_t)s->width);
    if (got < 0) return tost_error(err, "%s: cannot be read: %s", s->path, strerror(errno));
    if ((size_t)got < bytes) return changed(s, err);
    for (size_t i = 0; s->width == 2 && i < n; i++) {
        uint16_t id;
        memcpy(&id, stored + 2 * i, 2);
        ids[i] = id;
    }
    return true;
}

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
    const bool same = S_ISREG(st.st_mode) && st.st_size == s->file.st_size
        && st.st_mtim.tv_sec == s->file.st_mtim.tv_sec && st.st_mtim.tv_nsec == s->file.st_mtim.tv_nsec;
    return same || changed(s, err);
}

bool shard_read(uint32_t* ids, Shard* s, uint64_t first, size_t n, TostError* err) {
    return ensure_same(s, err) && read_ids(ids, s, first, n, err);
}

static bool read_layout(Shard* s, TostError* err) {
    char head[SHARD_HEADER_BYTES] = "";
    if (!S_ISREG(s->file.st_mode))
        return tost_error(err, "%s: not a regular file; of a folder, give the files: '%s/*.bin'", s->path, s->path);
    const ssize_t n = read_at(s->fd, head, sizeof head, 0);
    if (n < 0) return tost_error(err, "%s: cannot be read: %s", s->path, strerror(errno));
    return shard_layout(s, (uint64_t)s->file.st_size, head, (size_t)n, err)
        && (s->n_tokens > 0 || tost_error(err, "%s: no tokens; copy or make it again", s->path));
}

bool shard_open(Shard* s, const char* path, TostError* err) {
    *s = (Shard){.path = xstrdup(path), .fd = -1};
    const bool ok = open_file(s, &s->file, err) && read_layout(s, err);
    if (!ok) shard_close(s);
    return ok;
}

void shard_close(Shard* s) {
    close_file(s);
    free(s->path);
    *s = (Shard){.fd = -1};
}

// ---- Checking ids ----

// Reads tokens, all of which must be < vocab_size; raises *largest to the largest.
static bool read_checked(uint32_t* ids, uint32_t* largest, const Shard* s, uint64_t first, size_t n,
                         uint32_t vocab_size, TostError* err) {
    if (!read_ids(ids, s, first, n, err)) return false;
    uint32_t top = 0;
    for (size_t i = 0; i < n; i++) top = ids[i] > top ? ids[i] : top;   // alone, so that compilers vectorize it
    *largest = top > *largest ? top : *largest;
    for (size_t i = 0; top >= vocab_size && i < n; i++)
        if (ids[i] >= vocab_size)
            return tost_error(err, "%s: token %" PRIu64 " at byte %" PRIu64 " is %" PRIu32 ", but the vocabulary has %"
                              PRIu32 " ids; a new model: give the --tokenizer of the shards, or raise --vocab-size; a "
                              "trained one: use shards made with its tokenizer", s->path,
                              first + i, s->first + (first + i) * (uint64_t)s->width, ids[i], vocab_size);
    return true;
}

bool shard_check_ids(Shard* s, uint32_t vocab_size, TostError* err) {
    enum { BLOCK = 1 << 16 };
    const int64_t blocks = (int64_t)((s->n_tokens + BLOCK - 1) / BLOCK);
    int64_t bad = blocks;   // the first block with an error
    uint32_t largest = 0;
    if (!ensure_same(s, err)) return false;
    #pragma omp parallel for schedule(static) if (blocks > 16) reduction(max : largest)
    for (int64_t b = 0; b < blocks; b++) {
        const uint64_t at = (uint64_t)b * BLOCK, left = s->n_tokens - at;
        uint32_t* ids = xmalloc(BLOCK * sizeof *ids);   // threads may have small stacks
        TostError e;
        const bool ok = read_checked(ids, &largest, s, at, left < BLOCK ? (size_t)left : BLOCK, vocab_size, &e);
        free(ids);
        if (ok) continue;
        #pragma omp critical
        if (b < bad) {
            bad = b;
            *err = e;
        }
    }
    s->largest_id = largest;
    return bad == blocks;
}

// ---- All shards as one stream ----

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
    for (const Shard* old = s->shards; old < shard && s->count < 1000; old++)   // of more shards, it would take long
        if (old->file.st_dev == shard->file.st_dev && old->file.st_ino == shard->file.st_ino)
            print_warning("%s and %s are the same file: its tokens count twice", old->path, path);
    s->count++;
    s->start[s->count] = s->start[s->count - 1] + shard->n_tokens;
    *bytes += shard->file.st_size;
    if (*bytes > CHECK_BYTES) return true;
    if (!shard_check_ids(shard, s->vocab_size, err)) return false;
    if (shard->largest_id > s->largest_id) s->largest_id = shard->largest_id;
    return true;
}

// A killed tokenize may leave OUT_train_000000.bin and OUT.tmp/train_000001.bin (shard_writer.c). Checks this for one
// shard.
static bool check_published(const char* path, TostError* err) {
    const Path tmp = path_text("%s.tmp", shard_prefix(path).text);
    Path left;
    shard_find(&left, tmp.text, "", &(TostError){0});
    return !left.text[0]
        || tost_error(err, "%s: the shards that follow it are still in %s, because tokenize was killed or is not "
                      "finished: remove both and tokenize again, or only the folder if no shard is missing",
                      path, tmp.text);
}

bool stream_open(ShardStream* s, const StringList* globs, uint32_t vocab_size, TostError* err) {
    StringList list;
    *s = (ShardStream){.vocab_size = vocab_size};
    if (!expand_glob(&list, globs, err)) return false;
    s->shards = xcalloc((size_t)list.count, sizeof *s->shards);
    s->start = xcalloc((size_t)list.count + 1, sizeof *s->start);
    int64_t bytes = 0;
    bool ok = true;
    for (int i = 0; i < list.count && ok; i++)
        ok = check_published(list.strings[i], err) && add_shard(s, &bytes, list.strings[i], err);
    free_strings(&list);
    if (!ok) stream_close(s);
    return ok;
}

void stream_close(ShardStream* s) {
    for (int i = 0; i < s->count; i++) shard_close(&s->shards[i]);
    free(s->shards);
    free(s->start);
    *s = (ShardStream){0};
}

uint64_t stream_tokens(const ShardStream* s) { return s->start[s->count]; }

bool stream_read(int32_t* out, ShardStream* s, uint64_t first, size_t n, TostError* err) {
    uint32_t *ids = (uint32_t*)out, largest = 0;
    for (int k = n ? find_interval(s->start, s->count, first) : 0; n; k++) {
        const uint64_t left = s->start[k + 1] - first, at = first - s->start[k];
        const size_t here = left < n ? (size_t)left : n;
        Shard* shard = enter_shard(s, k);
        if (!ensure_same(shard, err) || !read_checked(ids, &largest, shard, at, here, s->vocab_size, err)) return false;
        ids += here;
        first += here;
        n -= here;
    }
    return true;
}

bool stream_pairs(int32_t* inputs, int32_t* targets, ShardStream* s, uint64_t first, size_t n, TostError* err) {
    if (n == 0) return true;
    if (!stream_read(inputs, s, first, 1, err) || !stream_read(targets, s, first + 1, n, err)) return false;
    memcpy(inputs + 1, targets, (n - 1) * sizeof *inputs);
    return true;
}

// Updates *crc with the number of tokens and with the blocks, without the tokens that the block before also has.
static bool blocks_crc(uint32_t* crc, Shard* s, TostError* err) {
    uint32_t ids[SHARD_CRC_TOKENS];
    const uint64_t n = s->n_tokens, length = n < SHARD_CRC_TOKENS ? n : SHARD_CRC_TOKENS;
    *crc = crc32_update(*crc, &n, sizeof n);
    for (uint64_t k = 0, end = 0; k < SHARD_CRC_BLOCKS; k++) {
        const uint64_t at = (n - length) * k / (SHARD_CRC_BLOCKS - 1), first = at > end ? at : end;
        end = at + length;
        const size_t count = (size_t)(end - first);
        if (!shard_read(ids, s, first, count, err)) return false;
        *crc = crc32_update(*crc, ids, count * sizeof *ids);
    }
    return true;
}

bool stream_crc(uint32_t* crc, ShardStream* s, TostError* err) {
    *crc = 0;
    for (int k = 0; k < s->count; k++)
        if (!blocks_crc(crc, enter_shard(s, k), err)) return false;
    return true;
}
