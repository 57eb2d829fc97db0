// test_data.c: valid and invalid shards of all formats; sequential and shuffled samples; the shard writer.
#include <inttypes.h>
#include <sys/uio.h>

#include "base/crc32.h"
#include "base/text.h"
#include "data/dataset.h"
#include "data/shard_writer.h"
#include "data/shards.h"
#include "dev/test/scratch.h"

// Replaces libc's pread, so that reads of shards can fail. Faults need state that outlives the call.
typedef enum { READ_ALL, READ_SLOWLY, READ_UNTIL } Reading;
static struct { Reading how; _Atomic int calls; int last; } reading;   // READ_UNTIL: calls after `last` fail with EIO

// READ_SLOWLY: every third call is interrupted, the others read a few bytes.
ssize_t pread(int fd, void* data, size_t n, off_t at) {
    const int call = ++reading.calls;
    if (reading.how == READ_SLOWLY) n = n < 1000 ? n : 1000;
    errno = reading.how == READ_SLOWLY ? EINTR : EIO;
    if (reading.how == READ_SLOWLY && call % 3 == 0) return -1;
    if (reading.how == READ_UNTIL && call > reading.last) return -1;
    return preadv(fd, &(struct iovec){data, n}, 1, at);
}

static void read_as(Reading how, int last) {
    reading.how = how;
    reading.last = last;
    reading.calls = 0;
}

enum { MAGIC_U16 = SHARD_MAGIC_U16, MAGIC_U32 = SHARD_MAGIC_U32 };

// A shard whose header declares `claims` tokens, followed by n tokens of 2 or 4 bytes, depending on magic.
static void write_shard(const char* path, uint32_t magic, uint32_t version, uint32_t claims,
                        const uint32_t* ids, size_t n) {
    uint32_t header[256] = {magic, version, claims};
    size_t width = magic == MAGIC_U32 ? 4 : 2;
    char* bytes = xmalloc(sizeof header + n * width);
    memcpy(bytes, header, sizeof header);
    for (size_t i = 0; i < n; i++) memcpy(bytes + sizeof header + i * width, &ids[i], width);
    write_bytes(path, bytes, sizeof header + n * width);
    free(bytes);
}

static void make_folder(const char* path) {
    TostError err;
    must(make_dirs(path, &err), path, &err);
}

// A shard of n tokens: first, first + step, …
static void write_ids(const char* path, uint32_t magic, uint32_t first, uint32_t step, size_t n) {
    uint32_t* ids = xmalloc(n * sizeof *ids);
    for (size_t i = 0; i < n; i++) ids[i] = first + step * (uint32_t)i;
    write_shard(path, magic, magic == MAGIC_U32 ? 7 : 1, (uint32_t)n, ids, n);
    free(ids);
}

// Writes DIR/s_0.bin … of the given lengths; token i of shard s is 1000·s + i.
static void write_set(const char* dir, const int* lengths, int n) {
    make_folder(dir);
    for (int s = 0; s < n; s++)
        write_ids(path_text("%s/s_%d.bin", dir, s).text, s % 2 ? MAGIC_U32 : MAGIC_U16, 1000 * (uint32_t)s, 1,
                  (size_t)lengths[s]);
}

// A file of these bytes. error NULL: it is a shard of 16-bit ids without a header
static void check_bytes(Checks* c, const void* bytes, size_t n, const char* error, const char* what) {
    TostError err = {""};
    Shard s = {.fd = -1};
    write_bytes("file.bin", bytes, n);
    const bool ok = shard_open(&s, "file.bin", &err);
    if (error) check_refused(c, ok, &err, error, what);
    else check(c, ok && s.n_tokens == n / 2, "%s, %zu bytes: expected a shard: %s", what, n, err.text);
    shard_close(&s);
}

static void check_set_refused(Checks* c, const StringList* paths, int T, uint32_t vocab, DataOrder order,
                              const char* error) {
    TostError err;
    check_refused(c, data_open(paths, T, vocab, order, 5, &err) != NULL, &err, error, paths->strings[0]);
}

// ---- Shards ---------------------------------------------------------------------------------------------------------

static void test_shard_kinds(Checks* c) {
    static const uint32_t ids[] = {0, 1, 50256, 65535, 7}, high[] = {1, 0xffffffff};
    static const uint16_t raw[] = {0, 1, 50256, 65535, 7};
    static const char path[] = "kind.anything";
    TostError err = {{0}};
    Shard s;
    for (int kind = 0; kind < 3; kind++) {
        if (kind == 0) write_shard(path, MAGIC_U16, 1, 5, ids, 5);
        if (kind == 1) write_shard(path, MAGIC_U32, 7, 5, ids, 5);
        if (kind == 2) write_bytes(path, raw, sizeof raw);
        if (!check(c, shard_open(&s, path, &err), "shard %d: %s", kind, err.text)) continue;
        bool same = s.n_tokens == 5 && s.width == (kind == 1 ? 4 : 2);
        for (uint32_t i = 0, id; same && i < 5; i++) same = shard_read(&id, &s, i, 1, &err) && id == ids[i];
        check(c, same, "shard %d: wrong tokens: %s", kind, err.text);
        check(c, shard_check_ids(&s, 65536, &err), "shard %d: ids below 65536: %s", kind, err.text);
        check_refused(c, shard_check_ids(&s, 65535, &err), &err, " is 65535, but the vocabulary has 65535", path);
        check_refused(c, shard_check_ids(&s, 50257, &err), &err,
                      kind < 2 ? "kind.anything: token 3 at byte 10" : "token 3 at byte 6 is 65535", path);
        shard_close(&s);
    }
    write_shard(path, MAGIC_U32, 7, 2, high, 2);
    must(shard_open(&s, path, &err), path, &err);
    check_refused(c, shard_check_ids(&s, 100277, &err), &err, "token 1 at byte 1028 is 4294967295", "id 2^32 - 1");
    shard_close(&s);
}

static void test_shards_refused(Checks* c) {
    static const struct { uint32_t magic, version, claims; size_t n; const char* error; } cases[] = {
        {MAGIC_U16, 1, 10, 9, "invalid: truncated: offset 8 says 10 tokens, 1044 bytes with the header, but it has 10"},
        {MAGIC_U32, 7, 0xffffffff, 4, "truncated: offset 8 says 4294967295 tokens"},
        {MAGIC_U32, 7, 9, 10, "too long: offset 8 says 9 tokens, 1060 bytes with the header, but it has 1064"},
        {MAGIC_U16, 1, 0, 0, "invalid: no tokens; copy or make it again"},
        {MAGIC_U16, 2, 5, 5, "invalid: version 2 at offset 4, but shards with magic 20240520 have version 1"},
        {MAGIC_U32, 1, 5, 5, "version 1 at offset 4, but shards with magic 20240801 have version 7"},
    };
    static const struct { const char* bytes; size_t n; const char* error; } small[] = {
        {"", 0, "no tokens"}, {"abc", 3, "3 bytes without a shard header, but a file of raw uint16 ids has"},
        {"\x88\xd8\x34\x01", 4, "1024 bytes with the header, but it has 4; copy or make it again"},
        {"It was the best of times, it was the worst of times, it was the a", 64, "text, not token ids"},
        // files of other formats, as in test_tokenizer.c
        {"\x1f\x8b\x08\0\0", 5, "gzip -dc FILE"}, {"\xff\xff\xff\xff\x58\2\0\0", 8, "Arrow file"},
        {"MMIDIDX\0\0\1", 10, "index of a Megatron dataset; its .bin"},
    };
    static const uint32_t ids[10] = {1, 2, 3};
    TostError err;
    Shard s;
    for (size_t i = 0; i < countof(cases); i++) {
        write_shard("invalid", cases[i].magic, cases[i].version, cases[i].claims, ids, cases[i].n);
        check_refused(c, shard_open(&s, "invalid", &err), &err, cases[i].error, "an invalid shard");
    }
    for (size_t i = 0; i < countof(small); i++)
        check_bytes(c, small[i].bytes, small[i].n, small[i].error, "a small file");
    check_refused(c, shard_open(&s, "/dev/zero", &err), &err, "not a regular file", "a device");
    check_refused(c, shard_open(&s, "absent", &err), &err, "absent: cannot be opened", "an absent file");
}

// Raw ids: id(i) of `width` bytes. error: as in check_bytes
static void check_raw(Checks* c, uint64_t (*id)(uint64_t i), int n, size_t width, const char* error) {
    char* bytes = xcalloc((size_t)n, width);
    for (int i = 0; i < n; i++) {
        const uint64_t value = id((uint64_t)i);
        memcpy(bytes + (size_t)i * width, &value, width);
    }
    check_bytes(c, bytes, (size_t)n * width, error, text_line("%d ids of %zu bytes", n, width).text);
    free(bytes);
}

static uint64_t scatter(uint64_t i) { return i * 0x9e3779b97f4a7c15 >> 40; }
static uint64_t small_id(uint64_t i) { return scatter(i) % 2000; }
static uint64_t letter_id(uint64_t i) { return scatter(i) % 65; }
static uint64_t short_id(uint64_t i) { return scatter(i) % 50257; }
static uint64_t large_id(uint64_t i) { return scatter(i) % 128256; }
static uint64_t mostly_zero(uint64_t i) { return scatter(i) % 10 < 9 ? 0 : scatter(i) % 997; }
static uint64_t second_zero(uint64_t i) { return i % 2 && i != 30001 ? 0 : scatter(i) % 997; }
static uint64_t bit_id(uint64_t i) { return scatter(i) % 2; }
static uint64_t one_id(uint64_t i) { return i * 0 + 7; }
static uint64_t zero_id(uint64_t i) { return i * 0; }
static uint64_t late_id(uint64_t i) { return i < 300 ? 0 : small_id(i); }

static void test_widths(Checks* c) {
    static const int sizes[] = {64, 65, 2000, 100003};
    for (size_t k = 0; k < countof(sizes); k++) {
        const int n = sizes[k];
        check_raw(c, small_id, n, 4, "32-bit ids without a header");
        check_raw(c, letter_id, n, 4, "np.fromfile(F, np.uint32); np.append(np.pad");
        check_raw(c, large_id, n, 4, "np.uint32([20240801, 7, a.size])");
        check_raw(c, short_id, n, 8, "64-bit ids without a header");
        check_raw(c, large_id, n, 8, "np.fromfile(F, np.uint64); np.append(np.pad");
        uint64_t (*const shards[])(uint64_t) = {small_id, letter_id, short_id, mostly_zero, bit_id, one_id, zero_id};
        for (size_t j = 0; j < countof(shards); j++) check_raw(c, shards[j], n, 2, NULL);
    }
    check_raw(c, late_id, 2000, 4, "32-bit ids without a header");
    check_raw(c, small_id, 8, 4, NULL);          // too few to decide
    check_raw(c, second_zero, 100001, 2, NULL);  // an odd number
}

// A sparse file of 5 GB: more than 2^31 tokens, zeros except for two ids at the end. Too large for a check of all ids
// when it is opened.
static void test_shard_sparse(Checks* c) {
    const uint64_t tokens = 2500000001u;  // the last sample of T = 64 ends on the last token
    const uint64_t last_sample = (tokens - 1) / 64 - 1;
    const uint32_t header[256] = {MAGIC_U16, 1, (uint32_t)tokens};
    const uint16_t tail[2] = {4321, 1234};
    static const char path[] = "sparse.bin";
    TostError err = {{0}};
    int32_t x[64], y[64];
    write_bytes(path, header, sizeof header);
    const int fd = open(path, O_WRONLY);
    if (pwrite(fd, tail, sizeof tail, (off_t)(1024 + 2 * (tokens - 2))) == sizeof tail) {
        DataSet* d = data_open(ONE_PATH(path), 64, 4322, ORDER_SEQUENTIAL, 0, &err);
        check(c, d && data_batch(d, x, y, last_sample, 1, &err) && y[63] == 1234 && x[63] == 4321 && x[62] == 0,
              "5 GB: the last sample ends in %d, %d: %s", x[63], y[63], err.text);
        data_close(d);
        d = data_open(ONE_PATH(path), INT32_MAX, 4322, ORDER_SHUFFLED, 0, &err);
        check(c, d && data_samples(d) == 1, "5 GB, T = %d: one sample: %s", INT32_MAX, err.text);
        data_close(d);
        d = data_open(ONE_PATH(path), 64, 4321, ORDER_SEQUENTIAL, 0, &err);
        check(c, d && data_batch(d, x, y, last_sample - 1, 1, &err), "5 GB: the sample before the last: %s", err.text);
        check_refused(c, data_batch(d, x, y, last_sample, 1, &err), &err,
                      "sparse.bin: token 2499999999 at byte 5000001022 is 4321", "invalid id at the end");
        data_close(d);
    } else skip(c, "5 GB shard: the folder for temporary files cannot store one");
    close(fd);
    unlink(path);
}

// ---- Shards that change while they are read -------------------------------------------------------------------------

// Changes of s_0.bin between two batches, and the error of the second batch; NULL: none.
typedef enum { REMOVED, TRUNCATED, REPLACED, FIFO, OVERWRITTEN } Change;
static const struct { Change change; const char *error_open, *error_closed; } changes[] = {
    {REMOVED, NULL, "s_0.bin: cannot be opened: No such file"}, {TRUNCATED, "s_0.bin: changed", "s_0.bin: changed"},
    {REPLACED, NULL, "s_0.bin: changed"}, {FIFO, NULL, "s_0.bin: changed"},
    {OVERWRITTEN, "s_0.bin: changed while in use", "s_0.bin: changed"},
};

static void apply_change(Change change, const char* path) {
    const struct timespec later[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    if (change == TRUNCATED) must(truncate(path, 6000) == 0, path, NULL);
    else if (change != OVERWRITTEN) unlink(path);
    if (change == FIFO) must(mkfifo(path, 0600) == 0, path, NULL);
    if (change != REPLACED && change != OVERWRITTEN) return;
    write_ids(path, MAGIC_U16, 6, 0, 5000);
    must(utimensat(AT_FDCWD, path, later, 0) == 0, path, NULL);
}

// Reads a sample of s_0.bin, changes the file, and reads it again. closed: a sample of s_1.bin is read in between,
// which closes the file.
static void test_change(Checks* c, size_t i, bool closed) {
    static const char path[] = "changed/s_0.bin";
    const char* error = closed ? changes[i].error_closed : changes[i].error_open;
    int32_t x[999], y[999], again[999];
    TostError err = {{0}};
    unlink(path);
    write_ids(path, MAGIC_U16, 5, 0, 5000);
    write_ids("changed/s_1.bin", MAGIC_U16, 5, 0, 5000);
    DataSet* d = data_open(ONE_PATH("changed/s_*.bin"), 999, 500, ORDER_SEQUENTIAL, 0, &err);
    must(d && data_batch(d, x, y, 2, 1, &err) && (!closed || data_batch(d, again, y, 6, 1, &err)), path, &err);
    apply_change(changes[i].change, path);
    const bool ok = data_batch(d, again, y, 2, 1, &err);
    if (error) check_refused(c, ok, &err, error, "changed shard");
    else check(c, ok && memcmp(x, again, sizeof x) == 0, "change %zu: other tokens: %s", i, err.text);
    data_close(d);
}

static void test_changes(Checks* c) {
    make_folder("changed");
    for (size_t i = 0; i < 2 * countof(changes); i++) test_change(c, i / 2, i % 2);
}

static int open_files(void) {
    int n = 0;
    for (int fd = 0; fd < 4096; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static bool read_samples(int32_t* x, Reading how, int last, TostError* err) {
    int32_t y[3 * 999];
    read_as(how, last);
    DataSet* d = data_open(ONE_PATH("reads/s_*.bin"), 999, 6000, ORDER_SHUFFLED, 0, err);
    const bool ok = d && data_batch(d, x, y, 0, 3, err);
    data_close(d);
    read_as(READ_ALL, 0);
    return ok;
}

static void test_reads(Checks* c) {
    static const int lengths[] = {5000, 700};
    int32_t x[3 * 999], slow[3 * 999];
    TostError err = {{0}};
    write_set("reads", lengths, 2);
    const int before = open_files();
    check(c, read_samples(x, READ_ALL, 0, &err) && read_samples(slow, READ_SLOWLY, 0, &err)
          && memcmp(x, slow, sizeof x) == 0, "short reads give other tokens: %s", err.text);
    int failed = 0;
    for (; failed < 99 && !read_samples(x, READ_UNTIL, failed, &err); failed++)
        check(c, strstr(err.text, "/s_") && strstr(err.text, strerror(EIO)), "call %d fails: %s", failed + 1, err.text);
    check(c, failed > 5 && failed < 99, "%d calls failed", failed);
    check(c, open_files() == before, "a failed read leaves a file open");
}

// A shard that several threads check: the first of its invalid ids
static void test_check_ids(Checks* c) {
    enum { N = 3000000, FIRST = 1200007, SECOND = 2999999 };
    static const char path[] = "large.bin";
    uint32_t* ids = xcalloc(N, sizeof *ids);
    TostError err = {{0}};
    Shard s;
    ids[FIRST] = ids[SECOND] = 300;
    ids[5] = 256;
    write_shard(path, MAGIC_U16, 1, N, ids, N);
    if (check(c, shard_open(&s, path, &err), "%s", err.text)) {
        check(c, shard_check_ids(&s, 301, &err) && s.largest_id == 300, "the largest id is 300: %s", err.text);
        check_refused(c, shard_check_ids(&s, 300, &err), &err, "token 1200007 at byte 2401038 is 300",
                      "two invalid ids");
        shard_close(&s);
    }
    unlink(path);
    free(ids);
}

// ---- Samples --------------------------------------------------------------------------------------------------------

static void test_sequential(Checks* c) {
    static const int lengths[] = {10, 3, 1, 25, 14};
    enum { N = countof(lengths), TOTAL = 53, LONGEST = 52 };
    const StringList* glob = ONE_PATH("sequential/s_*.bin");
    int32_t stream[TOTAL], n = 0;
    for (int s = 0; s < N; s++) {
        for (int i = 0; i < lengths[s]; i++) stream[n++] = 1000 * s + i;
    }
    write_set("sequential", lengths, N);
    const int before = open_files();
    for (int T = 1; T <= LONGEST; T++) {
        TostError err = {{0}};
        DataSet* d = data_open(glob, T, 5000, ORDER_SEQUENTIAL, 0, &err);
        if (!check(c, d != NULL, "T %d: %s", T, err.text)) continue;
        const uint64_t samples = (TOTAL - 1) / (uint64_t)T;
        const ShardStream* s = &d->source[0].stream;
        check(c, d->source[0].unused == 0, "sequential: %d shards are unused", d->source[0].unused);
        check(c, s->count == N && stream_tokens(s) == TOTAL && data_samples(d) == samples,
              "T %d: %d shards, %" PRIu64 " tokens, %" PRIu64 " samples", T, s->count, stream_tokens(s),
              data_samples(d));
        int32_t x[2 * LONGEST], y[2 * LONGEST];
        size_t wrong = 0;
        for (uint64_t i = 0; i < 2 * samples + 3; i++) {
            if (!check(c, data_batch(d, x, y, i, 2, &err), "T %d: %s", T, err.text)) break;
            for (int k = 0; k < 2 * T; k++) {
                const int32_t* at = stream + (i + (uint64_t)(k / T)) % samples * (uint64_t)T + k % T;
                wrong += x[k] != at[0] || y[k] != at[1];
            }
        }
        check(c, wrong == 0, "sequential, T %d: %zu ids are wrong", T, wrong);
        check(c, open_files() == before + 1, "%d shards are open", open_files() - before);
        data_close(d);
    }
    check_set_refused(c, glob, 53, 5000, ORDER_SEQUENTIAL, "53 tokens in 5 shards, but --seq 53 needs at least 54");
    check_set_refused(c, glob, 30, 5000, ORDER_SHUFFLED, "but --seq 30 needs at least 31 in one of them");
}

// The order defined in dataset.h, computed by an independent program: the first token of each sample, 1000·shard + token
static void test_shuffled_golden(Checks* c) {
    static const int lengths[] = {23, 4, 50, 31};
    static const int32_t all[28] = {
        3016, 3009, 3023, 3002, 8, 15, 1, 2021, 2000, 2007, 2035, 2028, 2014, 2042,
        8, 15, 1, 2042, 2014, 2035, 2021, 2007, 2000, 2028, 3023, 3002, 3009, 3016,
    };
    static const int32_t one[15] = {17, 5, 13, 1, 9, 5, 13, 1, 17, 9, 6, 10, 18, 2, 14};
    static const struct { const char* glob; int T; uint64_t seed, epoch, n; const int32_t* order; } cases[] = {
        {"golden/s_*.bin", 7, 99, 14, countof(all), all}, {"golden/s_0.bin", 4, 7, 5, countof(one), one}};
    write_set("golden", lengths, countof(lengths));
    for (size_t i = 0; i < countof(cases); i++) {
        TostError err = {{0}};
        const int T = cases[i].T;
        DataSet* d = data_open(ONE_PATH(cases[i].glob), T, 5000, ORDER_SHUFFLED, cases[i].seed, &err);
        must(d && data_samples(d) == cases[i].epoch, cases[i].glob, &err);
        for (uint64_t k = 0; k < cases[i].n; k++) {
            int32_t x[16], y[16], first = cases[i].order[k];
            bool ok = data_batch(d, x, y, k, 1, &err);
            for (int t = 0; t < T; t++) ok = ok && x[t] == first + t && y[t] == first + t + 1;
            check(c, ok, "shuffled sample %" PRIu64 ": expected %d …, got %d …", k, first, x[0]);
        }
        data_close(d);
    }
}

// Every epoch has every sample once, in another order; a batch at any position has the samples of sequential reading.
static void test_shuffled(Checks* c) {
    static const int lengths[] = {500, 9, 333, 990, 10};
    static const int starts[] = {0, 1, 54, 55, 200, 201, 202, 400, 600, 700, 3, 996};
    enum { N = countof(lengths), T = 9, EPOCHS = 5, SAMPLES = 55 + 0 + 36 + 109 + 1 };
    TostError err = {{0}};
    write_set("shuffled", lengths, N);
    DataSet* d = data_open(ONE_PATH("shuffled/s_*.bin"), T, 5000, ORDER_SHUFFLED, 1, &err);
    must(d && data_samples(d) == SAMPLES, "shuffled", &err);
    check(c, d->source[0].unused == 1, "one of the shards has no sample: %d", d->source[0].unused);
    int32_t x[EPOCHS * SAMPLES][T], y[T], batch[8][T], targets[8][T];
    int seen[EPOCHS][N][1000] = {{{0}}}, twice = 0, moved = 0;
    bool ok = true;
    for (int i = 0; i < EPOCHS * SAMPLES; i++) {
        ok = ok && data_batch(d, x[i], y, (uint64_t)i, 1, &err);
        for (int k = 0; ok && k < T; k++) ok = x[i][k] == x[i][0] + k && y[k] == x[i][k] + 1;
        for (int k = 0; ok && k < T; k++) twice += seen[i / SAMPLES][x[i][k] / 1000][x[i][k] % 1000]++;
        moved += i >= SAMPLES && x[i][0] != x[i - SAMPLES][0];
    }
    check(c, ok && twice == 0, "shuffled samples are not runs of tokens, or %d appear twice: %s", twice, err.text);
    check(c, moved > EPOCHS * SAMPLES / 2, "other epochs: only %d samples differ", moved);
    for (size_t i = 0; i < countof(starts); i++) {  // also backwards and across shards and epochs
        ok = data_batch(d, batch[0], targets[0], (uint64_t)starts[i], 8, &err);
        check(c, ok && memcmp(batch, x[starts[i]], sizeof batch) == 0,
              "the batch at sample %d differs from sequential reading", starts[i]);
    }
    data_close(d);
}

// Every sample of a mixture is the next one of its source, and after any number of samples, each source has its share.
static void test_mixture(Checks* c) {
    enum { T = 8, SAMPLES = 3000, N = 3, V = 50000 };
    static const double share[N] = {0.5, 0.3, 0.2};
    static const size_t lengths[N] = {803, 5000, 97};
    static char *globs[N] = {"s0:0.5", "s1:0.3", "s2:0.2"}, *scaled[N] = {"s0:10", "s1:6", "s2:4"},
                *plain[N] = {"s0", "s1", "s2"};
    TostError err = {""};
    DataSet* alone[N];
    int32_t x[T], y[T], want[T], target[T], batch[8 * T], targets[8 * T], (*all)[T] = xmalloc(SAMPLES * sizeof *all);
    uint64_t seen[N] = {0};
    for (int k = 0; k < N; k++) {
        write_ids(plain[k], MAGIC_U32, (uint32_t)(10000 * k), 1, lengths[k]);
        alone[k] = data_open(ONE_PATH(plain[k]), T, V, ORDER_SHUFFLED, 5, &err);
        must(alone[k] != NULL, plain[k], &err);
    }
    DataSet* d = data_open(&(StringList){N, globs}, T, V, ORDER_SHUFFLED, 5, &err);
    must(d != NULL, "mixture", &err);
    check(c, d->n == N && alone[0]->n == 1, "%d sources", d->n);
    int wrong = 0;
    double most = 0;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        must(data_batch(d, x, y, i, 1, &err), "data_batch", &err);
        const int k = x[0] / 10000;
        must(k < N && data_batch(alone[k], want, target, seen[k]++, 1, &err), "data_batch", &err);
        wrong += memcmp(x, want, sizeof x) != 0 || memcmp(y, target, sizeof y) != 0;
        memcpy(all[i], x, sizeof x);
        for (int s = 0; s < N; s++) {
            const double off = (double)seen[s] - share[s] * (double)(i + 1);
            most = off > most ? off : -off > most ? -off : most;
        }
    }
    check(c, wrong == 0, "%d samples are not the next of their source", wrong);
    check(c, most <= 1.01, "a source is %g samples off its share", most);
    for (uint64_t i = 2900; i > 300; i -= 271)   // as a rank or a resumed run reads them
        check(c, data_batch(d, batch, targets, i, 8, &err) && memcmp(batch, all[i], sizeof batch) == 0,
              "the batch at sample %" PRIu64 " differs", i);
    DataSet* same = data_open(&(StringList){N, scaled}, T, V, ORDER_SHUFFLED, 5, &err);
    DataSet* other = data_open(&(StringList){2, scaled}, T, V, ORDER_SHUFFLED, 5, &err);
    DataSet* one = data_open(ONE_PATH(globs[1]), T, V, ORDER_SHUFFLED, 5, &err);
    check(c, same && data_crc(same) == data_crc(d), "the sum of the weights matters");
    check(c, other && data_crc(other) != data_crc(d), "the CRC of another mixture");
    check(c, one && one->n == 1 && data_crc(one) == data_crc(alone[1]), "a single source");
    const uint64_t far = (uint64_t)1 << 40;   // of 2^40 samples, exactly 2^39 are of source 0
    must(data_batch(d, batch, targets, far, 8, &err), "data_batch", &err);
    for (uint64_t i = 0, next = far / 2; i < 8; i++) {
        if (batch[i * T] >= 10000) continue;
        must(data_batch(alone[0], want, target, next++, 1, &err), "data_batch", &err);
        check(c, memcmp(batch + i * T, want, sizeof want) == 0, "sample 2^40 + %" PRIu64, i);
    }
    check_set_refused(c, ONE_PATH("s0:0"), T, V, ORDER_SHUFFLED, "s0:0: no file");
    write_text("x:0.5", "x");
    StringList names = data_globs(NULL, ONE_PATH("x:0.5"));
    check(c, names.count == 1 && strcmp(names.strings[0], "x:0.5") == 0, "a file named x:0.5: %s", names.strings[0]);
    free_strings(&names);
    for (int k = 0; k < N; k++) data_close(alone[k]);
    data_close(d), data_close(same), data_close(other), data_close(one);
    free(all);
}

// ---- Fingerprints ---------------------------------------------------------------------------------------------------

// The fingerprint of a shard with n tokens, all of them 7 except those from `at` to before `end`.
static uint32_t crc_of(int n, int at, int end) {
    TostError err;
    uint32_t* ids = xmalloc((size_t)n * sizeof *ids);
    for (int i = 0; i < n; i++) ids[i] = i >= at && i < end ? 8 : 7;
    write_shard("crc.bin", MAGIC_U16, 1, (uint32_t)n, ids, (size_t)n);
    free(ids);
    DataSet* d = data_open(ONE_PATH("crc.bin"), 1, 9, ORDER_SHUFFLED, 0, &err);
    must(d != NULL, "crc.bin", &err);
    const uint32_t crc = data_crc(d);
    data_close(d);
    return crc;
}

static void test_fingerprints(Checks* c) {
    static const int sizes[] = {2, 2048, 2049, 9999, 64 * 2048};
    for (size_t k = 0; k < countof(sizes); k++) {   // up to 64 blocks, each token counts once
        const uint64_t n = (uint64_t)sizes[k];
        uint32_t want = crc32_update(0, &n, sizeof n);
        for (uint64_t i = 0; i < n; i++) want = crc32_update(want, &(uint32_t){7}, sizeof(uint32_t));
        check(c, crc_of(sizes[k], 0, 0) == want, "%d tokens", sizes[k]);
    }
    const int small = 64 * 2048, large = 1000000, part = large / 63;
    const uint32_t of_small = crc_of(small, 0, 0), of_large = crc_of(large, 0, 0);
    for (int at = 0; at < small; at += at < 20000 ? 401 : 13007)
        check(c, crc_of(small, at, at + 1) != of_small, "token %d of %d changes the CRC", at, small);
    for (int at = 0; at <= large - part; at += part / 3)
        check(c, crc_of(large, at, at + part) != of_large, "%d tokens from %d of %d change it", part, at, large);
}

// ---- The writer -----------------------------------------------------------------------------------------------------

static void check_written(Checks* c, const char* glob, uint32_t vocab, uint64_t shard_tokens, const uint32_t* ids,
                          uint64_t n) {
    int32_t* got = xmalloc((size_t)(n + 1) * sizeof *got);
    TostError err = {{0}};
    ShardStream s;
    bool ok = stream_open(&s, ONE_PATH(glob), vocab, &err) == (n > 0);
    if (ok && n > 0) {
        ok = stream_tokens(&s) == n && stream_read(got, &s, 0, (size_t)n, &err)
             && memcmp(got, ids, n * sizeof *got) == 0;
        for (int k = 0; ok && k < s.count; k++)
            ok = s.shards[k].width == (vocab > 65536 ? 4 : 2)
                && (s.shards[k].n_tokens == shard_tokens || k == s.count - 1);
        stream_close(&s);
    }
    check(c, ok, "%s: wrong shards: %s", glob, err.text);
    free(got);
}

// Files in a folder, without those that begin with a dot
static int count_files(const char* dir) {
    TostError err;
    StringList list = {0};
    const int n = expand_glob(&list, ONE_PATH(path_in(dir, "*").text), &err) ? list.count : 0;
    free_strings(&list);
    return n;
}

// The last `moved` tokens become validation tokens.
static void test_writer(Checks* c) {
    static const struct { uint32_t vocab; uint64_t shard_tokens; int n, moved, train, val; } cases[] = {
        {50257, 100, 0, 0, 0, 0}, {50257, 100, 99, 0, 1, 0}, {50257, 100, 100, 0, 1, 0}, {50257, 100, 101, 0, 2, 0},
        {50257, 100, 101, 101, 0, 2}, {65536, 7, 20, 6, 2, 1}, {65537, 7, 21, 10, 2, 2},
        {100277, 5000, 20001, 9000, 3, 2}, {257, 100000, 20001, 0, 1, 0},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        const int n = cases[i].n, moved = cases[i].moved;
        const uint32_t vocab = cases[i].vocab;
        TostError err = {{0}};
        uint32_t* ids = xmalloc((size_t)(n + 1) * sizeof *ids);
        for (int k = 0; k < n; k++) ids[k] = (uint32_t)(((uint64_t)k * 2654435761u + 12345) % vocab);
        if (n) ids[n - 1] = vocab - 1;
        ShardWriter* w = shard_writer_open("written/my", vocab, cases[i].shard_tokens, &err);
        bool ok = w != NULL;
        for (int k = 0, m = 1; ok && k < n; k += m, m = m * 2 + 1) {
            if (m > n - k) m = n - k;
            ok = shard_writer_append(w, SPLIT_TRAIN, ids + k, (size_t)m, &err);
        }
        ShardCount got[SPLITS] = {{0}};
        ok = ok && (!moved || shard_writer_move_tail(w, (uint64_t)moved, &err))
             && shard_writer_close(w, NULL, got, &err);
        check(c, ok && got[SPLIT_TRAIN].tokens == (uint64_t)(n - moved) && got[SPLIT_VAL].tokens == (uint64_t)moved
              && got[SPLIT_TRAIN].shards == cases[i].train && got[SPLIT_VAL].shards == cases[i].val,
              "writer %zu: %s", i, err.text);
        check_written(c, "written/my_train_*.bin", vocab, cases[i].shard_tokens, ids, (uint64_t)(n - moved));
        check_written(c, "written/my_val_*.bin", vocab, cases[i].shard_tokens, ids + n - moved, (uint64_t)moved);
        check(c, count_files("written") == cases[i].train + cases[i].val, "writer %zu: a .tmp folder remains", i);
        remove_tree("written");
        free(ids);
    }
}

static const uint32_t ten_ids[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};

// A writer with three training shards of ten_ids, the last of them incomplete, and one validation shard.
static ShardWriter* four_shards(Checks* c, const char* out) {
    TostError err = {{0}};
    ShardWriter* w = shard_writer_open(out, 50257, 4, &err);
    check(c, w && shard_writer_append(w, SPLIT_TRAIN, ten_ids, 10, &err)
          && shard_writer_append(w, SPLIT_VAL, ten_ids, 3, &err), "%s", err.text);
    return w;
}

static void test_writer_fails(Checks* c) {
    TostError err;
    ShardCount written[SPLITS];
    make_folder("failed");
    write_text("failed/a_000000.bin", "x");
    ShardWriter* w = four_shards(c, "failed/a");
    check(c, count_files("failed") == 2 && count_files("failed/a.tmp") == 5,
          "expected four shards and a lock in a.tmp, got %d files", count_files("failed/a.tmp"));
    shard_writer_abandon(w);
    check(c, count_files("failed") == 1 && path_exists("failed/a_000000.bin"),
          "shard_writer_abandon must remove exactly the files it wrote");

    w = four_shards(c, "failed/a");
    make_folder("failed/a_train_000002.bin");   // the name of the last shard
    check_refused(c, shard_writer_close(w, NULL, written, &err), &err, "cannot rename", "name in use");
    check(c, count_files("failed") == 2, "failed close: no file must remain, got %d", count_files("failed") - 2);
}

// What a killed writer leaves, and files of others in its folder.
static void test_writer_again(Checks* c) {
    static const char first[] = "again/b_train_000000.bin", left[] = "again/b.tmp/val_123456.bin";
    static const char note[] = "again/b.tmp/note.bin";
    TostError err;
    ShardCount written[SPLITS];
    make_folder("again/b.tmp");
    write_text(left, "left by a killed process");
    write_text(note, "of someone else");
    ShardWriter* w = four_shards(c, "again/b");
    check_refused(c, shard_writer_open("again/b", 50257, 4, &err), &err, "b.tmp is in use by process", "second writer");
    check(c, !path_exists(left) && path_exists(note), "only shards of a killed process must be removed");
    check(c, shard_writer_close(w, NULL, written, &err) && written[SPLIT_TRAIN].shards == 3, "%s", err.text);
    check(c, count_files("again/b.tmp") == 1 && count_files("again") == 5, "want 4 shards and b.tmp, got %d",
          count_files("again"));
    DataSet* d = data_open(ONE_PATH(first), 3, 50257, ORDER_SEQUENTIAL, 0, &err);
    check(c, d != NULL, "files of others in b.tmp: %s", err.text);
    data_close(d);
}

int main(void) {
    return RUN_TESTS("data", test_shard_kinds, test_shards_refused, test_widths, test_shard_sparse,
                         test_changes, test_reads, test_check_ids, test_sequential, test_shuffled_golden, test_shuffled,
                         test_mixture, test_fingerprints, test_writer, test_writer_fails, test_writer_again);
}
