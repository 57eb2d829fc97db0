// test_tokenizer.c: tokenizer.c against published ids and a simple BPE, and with invalid vocab.bpe files; tokenize.c
// with many batch sizes.
#include <sys/uio.h>

#include "base/crc32.h"
#include "base/rng.h"
#include "base/text.h"
#include "data/shards.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"
#include "dev/test/scratch.h"

// ---- A generated vocabulary and a simple BPE ------------------------------------------------------------------------

enum { MAX_IDS = 640, MAX_PIECE = 33 };

typedef struct {
    int    size;                        // number of ids: 256 bytes, then merges
    int    left[MAX_IDS], right[MAX_IDS];
    char   piece[MAX_IDS][MAX_PIECE];   // in GPT-2's alphabet, as UTF-8
    int    merged[MAX_IDS][MAX_IDS];    // id, or 0 for no merge
} Vocab;

// The byte of an id below 256, in GPT-2's order: '!' to '~', 0xa1 to 0xac, 0xae to 0xff, then the others in ascending
// order.
static int byte_of(int id) {
    if (id < 94) return '!' + id;
    if (id < 106) return 0xa1 + id - 94;
    if (id < 188) return 0xae + id - 106;
    int hidden = id - 188;
    return hidden <= ' ' ? hidden : hidden < 67 ? 0x7f + hidden - 33 : 0xad;
}

static int id_of_byte(char byte) {
    int id = 0;
    while ((char)byte_of(id) != byte) id++;
    return id;
}

static Vocab* vocab_new(void) {
    Vocab* v = xcalloc(1, sizeof *v);
    for (; v->size < 256; v->size++)
        utf8_encode(v->piece[v->size], (uint32_t)(v->size < 188 ? byte_of(v->size) : 0x100 + v->size - 188));
    return v;
}

// Adds a merge, unless its piece exists or is too long.
static void vocab_add(Vocab* v, int left, int right) {
    char piece[2 * MAX_PIECE];
    stpcpy(stpcpy(piece, v->piece[left]), v->piece[right]);
    if (v->size == MAX_IDS || strlen(piece) >= MAX_PIECE) return;
    for (int i = 0; i < v->size; i++)
        if (strcmp(v->piece[i], piece) == 0) return;
    strcpy(v->piece[v->size], piece);
    v->left[v->size] = left;
    v->right[v->size] = right;
    v->merged[left][right] = v->size++;
}

typedef struct { Vocab* v; Tokenizer* t; TokenizerCache* cache; } Bpe;

static const char vocab_file[] = "vocab.bpe";

static Bpe bpe_open(Vocab* v) {
    FILE* f = fopen(vocab_file, "wb");
    must(f != NULL, vocab_file, NULL);
    fprintf(f, "#version: 0.2\n");
    for (int id = 256; id < v->size; id++) fprintf(f, "%s %s\n", v->piece[v->left[id]], v->piece[v->right[id]]);
    fclose(f);
    TostError err;
    Bpe b = {v, tokenizer_open(vocab_file, &err), tokenizer_cache_new()};
    must(b.t != NULL, vocab_file, &err);
    return b;
}

static void bpe_close(Bpe* b) {
    free(b->cache);
    tokenizer_free(b->t);
    free(b->v);
}

// BPE of one piece by definition: repeatedly merges the leftmost pair with the smallest id.
static size_t slow_bpe(const Vocab* v, uint32_t* ids, const char* piece, size_t n) {
    for (size_t i = 0; i < n; i++) ids[i] = (uint32_t)id_of_byte(piece[i]);
    for (;;) {
        int best = MAX_IDS;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            int id = v->merged[ids[i]][ids[i + 1]];
            if (!id || id >= best) continue;
            best = id;
            at = i;
        }
        if (best == MAX_IDS) return n;
        ids[at] = (uint32_t)best;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static bool same_ids(const uint32_t* a, size_t n_a, const uint32_t* b, size_t n_b) {
    return n_a == n_b && memcmp(a, b, n_a * sizeof *a) == 0;
}

// Encodes a text and checks that the ids are the same with the cache (called twice) and decode to the text. Returns the
// number of ids.
static size_t encode(Checks* c, const Bpe* b, uint32_t* ids, const char* text, size_t n) {
    const size_t count = tokenizer_encode(b->t, NULL, ids, text, n);
    uint32_t* again = xmalloc(n * sizeof *again);
    bool same = true;
    for (int i = 0; i < 2; i++) {
        size_t cached = tokenizer_encode(b->t, b->cache, again, text, n);
        same &= same_ids(ids, count, again, cached);
    }
    int shown = n < 40 ? (int)n : 40;
    check(c, same, "%zu bytes '%.*s': the cache changes the ids", n, shown, text);
    check(c, decodes_to(b->t, ids, count, text, n), "%zu bytes '%.*s' do not decode to themselves", n, shown, text);
    free(again);
    return count;
}

// ---- Published ids --------------------------------------------------------------------------------------------------

static void test_published_text(Checks* c, const char* text_path, const char* ids_path) {
    char *vocab = shared_path("data/gpt2/vocab.bpe"), *text = shared_path(text_path), *truth = shared_path(ids_path);
    TostError err;
    if (vocab && text && truth) {
        Bpe b = {NULL, tokenizer_open(vocab, &err), tokenizer_cache_new()};
        must(b.t != NULL, vocab, &err);
        Bytes in = bytes_of(text), want = bytes_of(truth);
        uint32_t* ids = xmalloc(in.size * sizeof *ids);
        size_t n = encode(c, &b, ids, in.data, in.size), same = 0;
        check(c, tokenizer_size(b.t) == 50257 && tokenizer_eot(b.t) == 50256, "%d ids", tokenizer_size(b.t));
        for (uint16_t id; same < n && same < want.size / 2; same++) {
            memcpy(&id, want.data + 2 * same, 2);
            if (ids[same] != id) break;
        }
        check(c, n == want.size / 2 && same == n, "%s: token %zu of %zu differs", text_path, same, want.size / 2);
        bpe_close(&b);
        free(ids), free(in.data), free(want.data);
    } else skip(c, "%s against %s: not found", text_path, ids_path);
    free(vocab), free(text), free(truth);
}

static void test_published(Checks* c) {
    test_published_text(c, "data/tokens/hostile_a.txt", "data/tokens/hostile_a.u16");
    test_published_text(c, "data/text/shakespeare.txt", "data/tokens/shakespeare.u16");
    test_published_text(c, "data/text/wikitext-2/wiki.valid.tokens", "data/tokens/wikitext2_valid.u16");
}

// ---- The split pattern: texts with | between their pieces -----------------------------------------------------------

static const char* const split_texts[] = {
    // contractions
    "don|'t", "we|'ll|'ve", "I|'m| you|'re| he|'d| it|'s|'", "DON|'|T", "'s|a", "!'|s", " '|s", "''|s",
    "'|r", "'re", "'|x", "x|'", "can|'t|'t|s",
    // letters, numbers, others
    "AZazAZaz|@|azAZaz|[|AZazAZ|`|azAZazAZaz|{|azAZaz", "abc|123|abc", "a| 1|b", "x|²", "1½Ⅷ",
    "straße日本| 日", "e|\u0301|a", " !?|a", "$|1|,|234|.|5", "\U0001f44d\u200d\U0001f469|a", "१२|ह",
    // white space: the last character of a run belongs to the next piece
    "a| b", "a| | b", "a|  | b", "a|\n|b", "a|\n|\n|b", "a| |\n|b", "a| \n| b", "a| ", "a|  ", "\n\n", " ",
    "a|\t|b", "  | !", "a|\r|\n|b", "a|\x0b|b", "a| \t \n| 1",
    // Unicode white space, and similar characters
    "a|\u00a0|b", "a| |\u00a0|b", "a|\u3000| b", "\xc2\x85|\xc2\x85|b", "a|\u2028|!", "\u1680\u2003",
    "a|\u200b|b", "a| \u200b|b", "a| \x1c|b", "a|\u180e|b",
    // invalid UTF-8: stray, truncated
    "a|\xff|b", "a|\xe6\x97|b", " \xff", "a|\xc3| b", "a|\xc2| |\xc2\xa0|b", "\x80\x80|a",
};

// A vocabulary that merges every pair of adjacent bytes in the texts, in random order: a wrong split changes the ids
// for some orders.
static Vocab* pair_vocab(Rng* rng) {
    static int pairs[256 * 256][2];
    int n = 0;
    for (size_t k = 0; k < countof(split_texts); k++) {
        char last = 0;
        for (const char* p = split_texts[k]; *p; p++) {
            if (*p == '|') continue;
            pairs[n][0] = id_of_byte(last);
            pairs[n][1] = id_of_byte(*p);
            n += last != 0;
            last = *p;
        }
    }
    Vocab* v = vocab_new();
    for (; n > 0; n--) {
        int k = (int)rng_below(rng, (uint64_t)n);
        vocab_add(v, pairs[k][0], pairs[k][1]);
        memcpy(pairs[k], pairs[n - 1], sizeof pairs[k]);
    }
    return v;
}

static void test_split(Checks* c) {
    Rng rng = rng_seeded(1, 0);
    for (int order = 0; order < 24; order++) {
        Bpe b = bpe_open(pair_vocab(&rng));
        for (size_t k = 0; k < countof(split_texts); k++) {
            char text[64];
            uint32_t want[64], got[64];
            size_t n = 0, n_want = 0;
            for (const char* p = split_texts[k]; *p;) {
                size_t len = strcspn(p, "|");
                n_want += slow_bpe(b.v, want + n_want, p, len);
                memcpy(text + n, p, len);
                n += len;
                p += len + (p[len] == '|');
            }
            size_t n_got = encode(c, &b, got, text, n);
            check(c, same_ids(want, n_want, got, n_got), "text %zu is not split as '%s'", k, split_texts[k]);
        }
        bpe_close(&b);
    }
}

// ---- Merging, long words, cuts --------------------------------------------------------------------------------------

// Random merges of the letters of an alphabet and of earlier merges.
static Vocab* random_vocab(Rng* rng, const char* alphabet, int merges) {
    Vocab* v = vocab_new();
    size_t n = strlen(alphabet);
    for (int tries = 0; v->size < 256 + merges && tries < 100 * merges; tries++) {
        int part[2];
        for (int i = 0; i < 2; i++) {
            bool byte = v->size == 256 || rng_below(rng, 2);
            part[i] = byte ? id_of_byte(alphabet[rng_below(rng, n)])
                           : 256 + (int)rng_below(rng, (uint64_t)v->size - 256);
        }
        vocab_add(v, part[0], part[1]);
    }
    return v;
}

// Words around the length at which merging switches from scans to a heap, and one of half a megabyte, which would
// take minutes if the time were quadratic.
static void test_merging(Checks* c) {
    enum { SHORT = 400, LONG = 1 << 19 };
    Rng rng = rng_seeded(2, 0);
    uint32_t want[SHORT], *got = xmalloc(LONG * sizeof *got);
    char* word = xmalloc(LONG);
    for (int round = 0; round < 30; round++) {
        Bpe b = bpe_open(random_vocab(&rng, "abc", 10 + round * 8));
        for (size_t i = 0; i < (round == 29 ? LONG : SHORT); i++) word[i] = "abc"[rng_below(&rng, 3)];
        for (size_t n = 1; n < SHORT; n += 1 + n / 40) {
            const size_t n_want = slow_bpe(b.v, want, word, n), n_got = encode(c, &b, got, word, n);
            check(c, same_ids(want, n_want, got, n_got), "word of %zu letters: wrong ids", n);
        }
        if (round == 29) encode(c, &b, got, word, LONG);
        bpe_close(&b);
    }
    free(got), free(word);
}

static const char* const hostile_chars[] = {
    "a", "b", "a", "b", " ", " ", "\n", "\r", "'", "s", "ll", "1", "!", "\t", "<|endoftext|>",
    "é", "日", "\U0001f44d", "\u00a0", "\u3000", "\u2009", "\xc2\x85", "\xff", "\xe3", "\x80", "\xc2",
    "\xe2\x80", "\xf0\x9f", "\x85",
};

static size_t hostile_text(Rng* rng, char* text, size_t n) {
    size_t at = 0;
    while (at < n) {
        const char* s = hostile_chars[rng_below(rng, countof(hostile_chars))];
        for (; *s && at < n; s++) text[at++] = *s;
    }
    return n;
}

static void test_cuts(Checks* c) {
    static const struct { const char* text; size_t cut; } known[] = {
        {"hello world", 5}, {"hello  ", 5}, {"a\nb c", 3}, {"hello", 0}, {" hello", 0}, {"\n\n a", 0},
        {"a\r\nb", 0}, {"a\tb", 0}, {"a\u00a0 b", 0}, {"a\u3000\nb", 0}, {"a\u2009 b", 0}, {"é b", 2},
        {"\x80 b", 1}, {"日\n", 3}, {"", 0},
    };
    for (size_t i = 0; i < countof(known); i++) {
        size_t cut = tokenizer_last_cut(known[i].text, strlen(known[i].text));
        check(c, cut == known[i].cut, "known text %zu: cut at %zu, expected %zu", i, cut, known[i].cut);
    }
    Rng rng = rng_seeded(3, 0);
    Bpe b = bpe_open(random_vocab(&rng, "ab \n'sl1!\xc2\xa0\xe3\x80\x85\xe2\x89\xff", 300));
    int cuts = 0, bad = 0;
    for (int round = 0; round < 4000; round++) {
        char text[100];
        uint32_t whole[100], parts[100];
        size_t n = hostile_text(&rng, text, 1 + rng_below(&rng, 99)), prefix = 1 + rng_below(&rng, n);
        size_t cut = tokenizer_last_cut(text, prefix);
        size_t n_whole = encode(c, &b, whole, text, n), n_parts = tokenizer_encode(b.t, NULL, parts, text, cut);
        n_parts += tokenizer_encode(b.t, NULL, parts + n_parts, text + cut, n - cut);
        bad += cut >= prefix || !same_ids(whole, n_whole, parts, n_parts);
        cuts += cut > 0;
    }
    check(c, bad == 0 && cuts > 1000, "%d of %d cuts change the ids", bad, cuts);
    bpe_close(&b);
}

// ---- Valid and invalid vocab.bpe files ------------------------------------------------------------------------------

static void test_valid_files(Checks* c) {
    static const struct { const char* text; int size; } valid[] = {
        {"", 257}, {"#version: 0.2", 257}, {"#version: 0.2\r\n", 257}, {"#version: 0.2\r\na b\r\nab c\r\n", 259},
        {"a b\nab c", 259}, {"# #\n## #\n", 259}, {"Ġ t\n", 258}, {"#version: 0.2\n# v\n", 258}, {"ÿ Ń\n", 258},
        {"{ \"\n", 258}, {"\xef\xbb\xbf#version: 0.2\na b\n", 258}, {"\xef\xbb\xbf" "a b", 258}, {"\n \r\n", 257},
        {"#version: 0.2\na b\nab c\n\n \t\r\n\n", 259},
    };
    for (size_t k = 0; k < countof(valid); k++) {
        TostError err;
        uint32_t ids[13];
        size_t len;
        write_text(vocab_file, valid[k].text);
        Tokenizer* t = tokenizer_open(vocab_file, &err);
        must(t != NULL, valid[k].text, &err);
        bool order = tokenizer_size(t) == valid[k].size && tokenizer_eot(t) == valid[k].size - 1;
        for (int id = 0; id < 256; id++) {
            const char* piece = tokenizer_piece(t, (uint32_t)id, &len);
            order &= len == 1 && *piece == (char)byte_of(id);
        }
        check(c, order, "valid file %zu: size %d, or byte tokens are not in GPT-2's order", k, tokenizer_size(t));
        check(c, tokenizer_hash(t) == crc32_update(0, valid[k].text, strlen(valid[k].text)), "hash of the file");
        const char* eot = tokenizer_piece(t, (uint32_t)tokenizer_eot(t), &len);
        check(c, len == 13 && memcmp(eot, "<|endoftext|>", 13) == 0, "bytes of <|endoftext|>");
        check(c, !tokenizer_piece(t, (uint32_t)valid[k].size, &len), "ids past the last must have no bytes");
        check(c, tokenizer_encode(t, NULL, ids, "<|endoftext|>", 13) == 13, "<|endoftext|> must be ordinary text");
        check(c, tokenizer_encode(t, NULL, ids, "", 0) == 0, "empty text must have no tokens");
        tokenizer_free(t);
    }
}

static void refused(Checks* c, const char* place, const char* reason) {
    TostError err = {""};
    Tokenizer* t = tokenizer_open(vocab_file, &err);
    check_refused(c, t != NULL, &err, place, vocab_file);
    check_refused(c, t != NULL, &err, reason, vocab_file);
    tokenizer_free(t);
}

static void test_invalid_files(Checks* c) {
    static const struct { const char *text, *place, *reason; } invalid[] = {
        {"#version: 0.2\na b c\n", "line 2:", "two parts"}, {"ab\n", "line 1:", "two parts"},
        {"a \n", "line 1:", "two parts"}, {"a  b\n", "line 1:", "two parts"},
        {"a b\n\nb c\n", "line 2:", "two parts"}, {"#version: 0.2\n#version: 0.2\n", "line 2:", "neither"},
        {"a b\nab cd\n", "line 2:", "'cd' is neither"},
        {"a b\nc d\na b\n", "line 3:", "repeats"}, {"a b\nb c\nab c\na bc\n", "line 4:", "repeats"},
        {"a b\r\na \xc4", "line 2:", "alphabet"}, {"a \xc5\x84\n", "line 1:", "alphabet"},
        {"a \x01\n", "line 1:", "alphabet"}, {"a \xc2\xad\n", "line 1:", "alphabet"},
        {"a b\n\xef\xbb\xbf" "c d\n", "line 2:", "alphabet"},
        {" \n{\n  \"version\": \"1.0\",", "line 1:", "dev/data/vocab.py"}, {"IQ== 0\n", "line 1:", "dev/data/vocab.py"},
        {"\x1f\x8b\x08\x01", "compressed by gzip", "gzip -dc FILE"},
    };
    for (size_t k = 0; k < countof(invalid); k++) {
        write_text(vocab_file, invalid[k].text);
        refused(c, invalid[k].place, invalid[k].reason);
    }
    write_bytes(vocab_file, "a \0\n", 4);
    refused(c, "line 1:", "alphabet");
    if (truncate(vocab_file, 1 << 30) == 0) refused(c, "1073741824 bytes", "at most");
    unlink(vocab_file);
    refused(c, vocab_file, "No such file");
}

// ---- From files to shards -------------------------------------------------------------------------------------------

typedef struct { uint32_t* ids; size_t n; } Ids;

static void append_ids(Ids* to, const uint32_t* ids, size_t n) {
    to->ids = xrealloc(to->ids, (to->n + n + 1) * sizeof *to->ids);
    if (n) memcpy(to->ids + to->n, ids, n * sizeof *ids);
    to->n += n;
}

static Ids read_shards(const char* glob) {
    TostError err;
    ShardStream s;
    Ids all = {xmalloc(1), 0};
    if (stream_open(&s, ONE_PATH(glob), MAX_IDS, &err)) {
        all = (Ids){xrealloc(all.ids, (size_t)stream_tokens(&s) * sizeof *all.ids), (size_t)stream_tokens(&s)};
        must(stream_read((int32_t*)all.ids, &s, 0, all.n, &err), glob, &err);
        stream_close(&s);
    }
    return all;
}

// True if train and val together have the documents of `all`, each in the same order.
static bool is_partition(const Ids* all, const Ids* train, const Ids* val, uint32_t eot) {
    size_t t = 0, v = 0;
    for (size_t i = 0, n; i < all->n; i += n) {
        for (n = 1; all->ids[i + n - 1] != eot;) n++;
        if (n <= train->n - t && memcmp(all->ids + i, train->ids + t, n * sizeof *all->ids) == 0) t += n;
        else if (n <= val->n - v && memcmp(all->ids + i, val->ids + v, n * sizeof *all->ids) == 0) v += n;
        else return false;
    }
    return t == train->n && v == val->n;
}

// Replaces libc's read, so that reads of texts can fail. Faults need state that outlives the call.
static struct { bool slow; int calls, fail_at; } reading;   // fail_at: the call that fails with EIO, or 0

// Slow: two of four calls fail with EINTR or EAGAIN, the others read a few bytes.
ssize_t read(int fd, void* data, size_t n) {
    static const int errors[4] = {EINTR, EAGAIN};
    const int error = ++reading.calls == reading.fail_at ? EIO : reading.slow ? errors[reading.calls % 4] : 0;
    errno = error;
    return error ? -1 : readv(fd, &(struct iovec){data, reading.slow && n > 50 ? 50 : n}, 1);
}

typedef struct { bool ok; TokenizeResult r; TostError err; Ids train, val; } Run;

// Tokenizes the file `path`, or, if it is NULL, o.files, into the folder `run`, which must not remain after an error.
static Run run(Checks* c, TokenizeOptions o, const char* path) {
    Run run = {.err = {""}};
    char* files[] = {(char*)path};
    o.tokenizer = vocab_file;
    o.out = "run/x";
    if (path) o.in.files = (StringList){1, files};
    if (!o.shard_tokens) o.shard_tokens = 1000;
    run.ok = tokenize_files(&o, &run.r, &run.err);
    if (run.ok) {
        run.train = read_shards("run/x_train_*.bin");
        run.val = read_shards("run/x_val_*.bin");
        check(c, run.r.written[SPLIT_TRAIN].tokens == run.train.n && run.r.written[SPLIT_VAL].tokens == run.val.n
              && run.r.tokens == run.train.n + run.val.n, "%s: wrong numbers of tokens", o.in.files.strings[0]);
        remove_tree("run");
    } else check(c, rmdir("run") == 0 || !path_exists("run"), "%s: files remain: %s", o.in.files.strings[0], run.err.text);
    return run;
}

static void run_free(Run* run) { free(run->train.ids), free(run->val.ids); }

// Tokenizes files with many batch sizes and one or two threads: the tokens must always be `want`.
static void check_runs(Checks* c, const Bpe* b, const char* what, char** files, int n_files, const Ids* want) {
    static const struct { size_t batch; int threads; bool slow; } runs[] = {
        {0, 1, false}, {0, 2, false}, {1, 1, false}, {2, 1, false}, {3, 1, true}, {7, 1, false}, {40, 1, false},
        {40, 2, false}, {500, 1, true}, {500, 2, false}, {3000, 2, false}, {0, 1, true},
    };
    Run first = {0};
    for (size_t k = 0; k < countof(runs); k++) {
        const TokenizeOptions o = {.in = {.files = {n_files, files}, .threads = runs[k].threads,
                                          .batch_bytes = runs[k].batch}, .seed = 5, .val_frac = 0.4};
        reading.slow = runs[k].slow;
        Run r = run(c, o, NULL);
        reading.slow = false;
        if (k == 0) first = r;
        check(c, r.ok && is_partition(want, &r.train, &r.val, (uint32_t)tokenizer_eot(b->t)),
              "%s: wrong tokens with batches of %zu bytes: %s", what, o.in.batch_bytes, r.err.text);
        check(c, same_ids(first.val.ids, first.val.n, r.val.ids, r.val.n),
              "%s: validation documents depend on the batch size", what);
        if (k > 0) run_free(&r);
    }
    run_free(&first);
}

// A random document of UTF-8 without separator lines. It does not end in CR, which would join a following LF.
static size_t random_document(Rng* rng, char* text, size_t cap) {
    size_t n = hostile_text(rng, text, rng_below(rng, rng_below(rng, 8) ? 80 : cap));
    for (uint64_t at; count_broken(&at, text, n);) text[at] = '.';
    for (size_t i = 0; i + 13 <= n; i++) {
        if ((i == 0 || text[i - 1] == '\n') && memcmp(text + i, "<|endoftext|>", 13) == 0) text[i] = 'x';
    }
    if (n && text[n - 1] == '\r') text[n - 1] = '.';
    return n;
}

static void append_document(const Bpe* b, Ids* want, const char* text, size_t n) {
    uint32_t* ids = xmalloc((n + 1) * sizeof *ids);
    size_t count = tokenizer_encode(b->t, NULL, ids, text, n);
    ids[count] = (uint32_t)tokenizer_eot(b->t);
    if (n) append_ids(want, ids, count + 1);
    free(ids);
}

static void test_plain_text(Checks* c, const Bpe* b) {
    Rng rng = rng_seeded(6, 0);
    char* files[2] = {"a.txt", "b.txt"};
    Ids want = {0};
    for (int k = 0; k < 2; k++) {
        FILE* file = fopen(files[k], "wb");
        must(file != NULL, files[k], NULL);
        fputs(k ? "<|endoftext|>\n" : "\xef\xbb\xbf", file);   // a byte order mark is not part of the text
        for (int i = 0; i < 60; i++) {
            char text[1500];
            size_t n = random_document(&rng, text, sizeof text);
            const char* feed = rng_below(&rng, 3) ? "\n" : "\r\n";
            fwrite(text, 1, n, file);
            append_document(b, &want, text, n);
            if (k && i == 59) break;
            fprintf(file, "%s<|endoftext|>%s%s", n ? feed : "", rng_below(&rng, 4) ? "" : " \t ", i < 59 ? feed : "");
        }
        fclose(file);
    }
    check_runs(c, b, "plain text", files, 2, &want);
    free(want.ids);
}

static void test_jsonl(Checks* c, const Bpe* b) {
    static const struct { const char *line, *text; } lines[] = {
        {"{\"text\": \"hello world\"}\n", "hello world"},
        {"{\"id\": 7, \"text\":\"tab\\t \\\"q\\\" \\u00e9\\ud83d\\ude00\", \"meta\": {\"text\": \"no\"}}\r\n",
         "tab\t \"q\" é\U0001f600"},
        {"\n", ""}, {" \t \r\n", ""}, {"{\"text\": \"\"}\n", ""},
        {"{\"title\": \"first\", \"text\": \"last\"}\n", "last"},
        {"{\"a key that is longer than the text\": [1, {\"b\": null}], \"text\": \"\\n<|endoftext|>\\n\"}\n",
         "\n<|endoftext|>\n"},
        {"{\"text\":\"no line end\"}", "no line end"},
    };
    char *files[] = {"c.jsonl"}, *file = xstrdup("\xef\xbb\xbf");
    Ids want = {0};
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < countof(lines); i++) {
            file = append_text(file, "%s", lines[i].line);
            append_document(b, &want, lines[i].text, strlen(lines[i].text));
        }
        if (round < 19) file = append_text(file, "\n");
    }
    write_text(files[0], file);
    check_runs(c, b, "JSONL", files, 1, &want);
    free(file), free(want.ids);
}

static void test_count_broken(Checks* c) {
    static const struct { const char* text; uint64_t count, first; } known[] = {
        {"", 0, 0}, {"abc\x7f and more than a word", 0, 0}, {"é日\U0001f44d\u0800\ud7ff\ue000\uffff\U0010ffff", 0, 0},
        {"a\xff", 1, 1}, {"12345678\x80" "abcdefgh", 1, 8}, {"1234567\xc3", 1, 7}, {"日\xe6\x97x", 2, 3},
        {"\xe2\x82", 2, 0}, {"\xf0\x9f\x91", 3, 0}, {"\xc0\xaf", 2, 0}, {"\xe0\x9f\x80", 3, 0}, {"\xed\xa0\x80", 3, 0},
        {"\xf0\x8f\x80\x80", 4, 0}, {"é\xf4\x90\x80\x80", 4, 2}, {"\xc3\xa9\xa9 \xe6\x97\xa5\xa5", 2, 2},
    };
    for (size_t i = 0; i < countof(known); i++) {
        uint64_t first = 0;
        const uint64_t count = count_broken(&first, known[i].text, strlen(known[i].text));
        check(c, count == known[i].count && first == known[i].first, "text %zu: %d broken bytes, the first at %d", i,
              (int)count, (int)first);
    }
    uint64_t first = 0;
    check(c, count_broken(&first, "a text with\0a NUL\0", 18) == 2 && first == 11, "NUL: the first at %d", (int)first);
}

// A few broken bytes are counted, wherever batches end; one more than the share is refused.
static void test_broken_bytes(Checks* c) {
    enum { BYTES = 10000, MOST = BYTES / 1000 };
    static const struct { size_t batch; int threads; } runs[] = {{0, 1}, {0, 4}, {1, 2}, {3, 1}, {7, 3}, {600, 2}};
    static const char* const broken[] = {"\xff", "\x80", "\xc3", "\xe2\x82", "\xf0\x9f\x91", "\xed\xa0\x80", "\0"};
    static const char path[] = "broken.txt";
    char text[BYTES];
    for (size_t kind = 0; kind < countof(broken) * 2; kind++) {
        const char* bad = broken[kind / 2];
        const size_t len = *bad ? strlen(bad) : 1, n = MOST / len + kind % 2 * len;
        for (size_t i = 0; i < BYTES; i++) text[i] = "日é  \n"[i % 8];
        for (size_t i = 0; i < n; i++) memcpy(text + 8 * (100 + 13 * i) + 5, bad, len);
        uint64_t first = 0;
        const uint64_t count = count_broken(&first, text, BYTES);
        write_bytes(path, text, BYTES);
        for (size_t k = 0; k < countof(runs); k++) {
            Run r = run(c, (TokenizeOptions){.in = {.batch_bytes = runs[k].batch, .threads = runs[k].threads},
                                                .shard_tokens = 30000}, path);
            if (count > MOST) check_refused(c, r.ok, &r.err, "broken.txt; text in another encoding", bad);
            else check(c, r.ok && r.r.read.broken.count == count && r.r.read.broken.first == first
                       && r.r.read.broken.bytes == BYTES, "kind %zu, batches of %zu: %d broken, the first at %d: %s",
                       kind, runs[k].batch, (int)r.r.read.broken.count, (int)r.r.read.broken.first, r.err.text);
            run_free(&r);
        }
    }
}

// The first line decides, unless an option or the name does.
static void test_formats(Checks* c) {
    static const char two[] = "\n \t\n {\"text\": \"one\", \"content\": \"x\"}\n"
                              "{\"text\": null, \"content\": \"y\"}\nbad\n";
    static const char accents[] = "{\"\u00e9日日日日日日\": 1, \"text\": \"a\"}";
    static const struct {
        const char *name, *text; TextInput in; bool jsonl; uint64_t documents, skipped, inside;
    } cases[] = {
        {"a.txt", "{\"text\": \"one\"}\n\n{\"text\": \"two\"}", {0}, true, 2, 0, 0},
        {"a.txt", "{}\n{\"text\": \"two\"}\n", {.skip_bad_lines = true}, true, 1, 1, 0},
        {"a.txt", accents, {0}, true, 1, 0, 0}, {"a.txt", accents, {.plain = true}, false, 1, 0, 0},
        {"a.txt", two, {.skip_bad_lines = true}, true, 1, 2, 0},
        {"a.txt", two, {.skip_bad_lines = true, .text_field = "content"}, true, 2, 1, 0},
        {"a.jsonl", two, {.plain = true}, false, 1, 0, 0},
        {"a.jsonl", "one\n{\"text\": \"two\"}\n", {.skip_bad_lines = true}, true, 1, 1, 0},
        {"a.txt", "one\n{\"text\": \"two\"}\n", {.jsonl = true, .skip_bad_lines = true}, true, 1, 1, 0},
        {"a.txt", "{not JSON}\n", {0}, false, 1, 0, 0}, {"a.htm", "<p>text", {.plain = true}, false, 1, 0, 0},
        {"a.txt", "[1] A note", {0}, false, 1, 0, 0}, {"a.txt", "[] to do", {0}, false, 1, 0, 0},
        {"a.txt", "[\"Hello\" she said]", {.plain = true}, false, 1, 0, 0}, {"a.txt", "{", {0}, false, 1, 0, 0},
        {"a.txt", "a<|endoftext|> \n<|endoftext|> \t\r\nb\n<|endoftext|>\r\r\nc\n<|endoftext|> d\n<|endoftext|>  ", {0},
         false, 3, 0, 2},
        {"a.txt", "a<|endoftext|>b", {.plain = true}, false, 1, 0, 1},
        // texts that only resemble markup
        {"a.txt", "<html> is a tag\n", {0}, false, 1, 0, 0}, {"a.txt", "</html>\n", {0}, false, 1, 0, 0},
        {"a.txt", "a<html>\n</html>\n", {0}, false, 1, 0, 0}, {"a.txt", "<p>Once\nupon</p>\n", {0}, false, 1, 0, 0},
    };
    static const size_t batches[] = {0, 1, 5, 100};
    for (size_t i = 0; i < countof(cases) * countof(batches); i++) {
        const size_t k = i / countof(batches);
        TextInput in = cases[k].in;
        in.batch_bytes = batches[i % countof(batches)];
        write_text(cases[k].name, cases[k].text);
        Run r = run(c, (TokenizeOptions){.in = in}, cases[k].name);
        const TextCount* got = &r.r.read;
        check(c, r.ok && got->jsonl_files == cases[k].jsonl && got->documents == cases[k].documents
              && got->skipped == cases[k].skipped && got->inside == cases[k].inside, "format %zu, batches of %zu: "
              "JSONL %d, %d documents, %d skipped, %d inside: %s", k, in.batch_bytes, got->jsonl_files,
              (int)got->documents, (int)got->skipped, (int)got->inside, r.err.text);
        run_free(&r);
    }
}

#define X64 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

static void test_failures(Checks* c) {
    static const struct { const char *name, *text, *error; } cases[] = {
        {"absent.txt", NULL, "absent.txt: cannot be opened"}, {"empty.txt", "", "no document"},
        {"separators.txt", "<|endoftext|>\n<|endoftext|>\r\n\n<|endoftext|>", "no document"},
        {"blank.jsonl", "\n \n", "no document"},
        {"none.jsonl", "{\"text\": \"good\"}\n\n{\"title\": \"text\"}\n",
         "none.jsonl: line 3: the object has no \"text\""},
        {"number.jsonl", "{\"text\": \"good\"}\n{\"text\": 1}\n{", "line 2: byte 9: expected a string"},
        {"left.jsonl", "{\"text\": \"good\"} x\n", "line 1: byte 17"},
        {"array.jsonl", "[1]\n", "array.jsonl: line 1: byte 0: expected an object, found '['; --text-field NAME"},
        {"prose.jsonl", "Some text\n", "line 1: byte 0: expected an object, found 'S'; --text-field NAME reads another "
         "field, --plain reads plain text"},
        {"pretty.txt", "\n{\n \"text\": \"a\"\n}\n", "line 2: byte 1: expected a string, found the end"},
        {"keys.txt", "{\"content\": \"a\", \"id\": [1, 2]}\n",
         "line 1: the object has no \"text\"; --text-field NAME"},
        {"objects.txt", " [\n {\"text\": \"a\"}]", "objects.txt: a JSON array; jq -c '.[]' FILE |"},
        {"strings.txt", "[\"a text\", \"b\"]", "strings.txt: a JSON array; jq"},
        {"a.pdf", "%PDF-1.7\n", "a.pdf: a PDF file; pdftotext FILE - converts it"},
        {"a.rtf", "{\\rtf1 text}", "pandoc"}, {"a.pkl", "\x80\4\x95", "are NUL or not UTF-8"},
        {"a.lfs", "version https://git-lfs.github.com/spec/v1\n", "the pointer of a Git LFS file; `git lfs pull`"},
        {"a.npy", "\x93NUMPY\1", "a NumPy .npy file"}, {"a.arrow", "ARROW1", "corpus.py own --from FOLDER"},
        {"a.gz", "\x1f\x8b\x08 and more", "a.gz: compressed by gzip; gzip -dc FILE"},
        {"a.xz", "\xfd" "7zXZ", "xz -dc FILE"}, {"a.jsonl.zst", "\x28\xb5\x2f\xfd and", "zstd -dc FILE"},
        {"a.bz2", "BZh91AY&SY", "bzip2 -dc FILE"}, {"a.zip", "PK\x03\x04 and more", "unzip FILE"},
        {"x.txt", X64 X64 X64 X64 "xustar", "x.txt: a tar archive; tar -xf FILE"},
        {"x.txt", "PAR1\x15\4", "corpus.py own --from FILE"},
        {"x.txt", "\xfe\xff\x4e\x2d\x65\x87", "3 of 6 bytes (50%) are NUL or not UTF-8, the first at byte 0 of x.txt"},
        // tables by their name, markup also by its text
        {"rows.CSV", "id,text\n1,a\n", "rows.CSV: a table; in Python, pandas.read_csv(FILE, sep=',')"},
        {"a.tsv", "", "sep='\\t')"},
        {"t", "\n<!DOCTYPE html>\n<html></html>", "HTML; pandoc -f html -t plain FILE"},
        {"t", "<HTML lang=en><head></head>", "HTML"}, {"a.htm", "<p>text", "--plain reads it as text"},
        {"t", "<mediawiki xmlns=\"x\"><page></page>", "XML; WikiExtractor"},
        {"t", "<?xml version=\"1.0\"?><a></a>", "XML"},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        if (cases[i].text) write_text(cases[i].name, cases[i].text);
        const TokenizeOptions o = {.in = {.batch_bytes = 8, .threads = 2}, .shard_tokens = 2};
        Run r = run(c, o, cases[i].name);
        check_refused(c, r.ok, &r.err, cases[i].error, cases[i].name);
        run_free(&r);
    }
}

// How often a document, with its <|endoftext|>, is in the shards.
static int copies_in(const Ids* ids, const Ids* document) {
    const uint32_t eot = document->ids[document->n - 1];
    int copies = 0;
    for (size_t i = 0; i + document->n <= ids->n; i++)
        copies += (i == 0 || ids->ids[i - 1] == eot)
                  && memcmp(ids->ids + i, document->ids, document->n * sizeof *ids->ids) == 0;
    return copies;
}

// All copies of a document go to the same split, those of the first to training. Documents 1 and 2 have the same first
// DOCUMENT_HEAD bytes; 3 differs from them in the last of these.
static void test_copies(Checks* c, const Bpe* b) {
    enum { DOCUMENTS = 20, COPIES = 3, SEEDS = 8 };
    static const size_t batches[] = {0, 1, 40, 1500};
    static const char path[] = "copies.txt";
    char *all = xstrdup(""), text[2 * DOCUMENT_HEAD];
    Ids want[DOCUMENTS] = {0};
    for (int i = 0; i < DOCUMENTS * COPIES; i++) {
        const int k = i % DOCUMENTS, n = k == 0 ? 1 : k < 4 ? DOCUMENT_HEAD + 50 : k * 60;
        for (int p = 0; p < n; p++) text[p] = p % 8 == 7 ? ' ' : 'a';
        if (k > 3) text[0] = (char)('A' + k);
        if (k == 2) text[DOCUMENT_HEAD] = 'b';
        if (k == 3) text[DOCUMENT_HEAD - 1] = 'b';
        all = append_text(all, "%.*s\n<|endoftext|>\n", n, text);
        if (i < DOCUMENTS) append_document(b, &want[k], text, (size_t)n);
    }
    write_text(path, all);
    int in_val = 0, differ = 0;
    for (size_t i = 0; i < SEEDS * countof(batches); i++) {
        const TextInput in = {.batch_bytes = batches[i % countof(batches)], .threads = 2};
        Run r = run(c, (TokenizeOptions){.in = in, .val_frac = 0.4, .seed = i / countof(batches)}, path);
        int val[DOCUMENTS];
        for (int k = 0; k < DOCUMENTS; k++) {
            val[k] = copies_in(&r.val, &want[k]);
            in_val += val[k] > 0;
            check(c, val[k] % COPIES == 0 && val[k] + copies_in(&r.train, &want[k]) == COPIES,
                  "batches of %zu bytes: %d of %d copies of document %d are in validation", in.batch_bytes, val[k],
                  COPIES, k);
        }
        check(c, val[0] == 0, "the first document must be in training");
        check(c, val[1] == val[2], "the first %d bytes must decide", DOCUMENT_HEAD);
        differ += val[1] != val[3];
        run_free(&r);
    }
    const double share = (double)in_val / (DOCUMENTS * SEEDS * countof(batches));
    check(c, share > 0.2 && share < 0.6, "--val-frac 0.4: %.2f of the documents", share);
    check(c, differ > 0, "byte %d must count", DOCUMENT_HEAD - 1);
    for (int k = 0; k < DOCUMENTS; k++) free(want[k].ids);
    free(all);
}

static void test_reads(Checks* c) {
    static const char path[] = "read.txt";
    write_text(path, "\xef\xbb\xbf" "a text that is longer than one batch, and has a byte order mark");
    for (int fail_at = 0; fail_at < 5; fail_at++) {
        reading.calls = 0;
        reading.fail_at = fail_at;
        Run r = run(c, (TokenizeOptions){.in = {.threads = 1, .batch_bytes = 8}}, path);
        if (fail_at) check_refused(c, r.ok, &r.err, strerror(EIO), "a read that fails");
        else check(c, r.ok && r.r.read.bytes == 66 && r.r.tokens <= 64 && r.r.read.documents == 1, "%s", r.err.text);
        run_free(&r);
    }
    reading.fail_at = 0;
}

static void test_tokenize(Checks* c) {
    Rng rng = rng_seeded(7, 0);
    Bpe b = bpe_open(random_vocab(&rng, "ab \n'sl1!\xc2\xa0\xe3\x80\x85\xe2\x89\xff", 300));
    test_plain_text(c, &b);
    test_jsonl(c, &b);
    test_failures(c);
    test_count_broken(c);
    test_broken_bytes(c);
    test_formats(c);
    test_copies(c, &b);
    test_reads(c);
    bpe_close(&b);
}

int main(void) {
    char *given = getenv("TOST_SHARED"), *shared = realpath(given ? given : "../shared", NULL);
    if (shared) setenv("TOST_SHARED", shared, 1);   // a test runs in another folder
    free(shared);
    return RUN_TESTS("tokenizer", test_published, test_split, test_merging, test_cuts, test_valid_files,
                     test_invalid_files, test_tokenize);
}
