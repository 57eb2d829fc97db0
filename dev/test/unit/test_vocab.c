// test_vocab.c: vocab.c with known merges, against the definition, with several batch sizes and numbers of threads, and
// with invalid input.
#include "dev/test/scratch.h"

#include "base/rng.h"
#include "data/tokenizer.h"
#include "data/vocab.h"

static const char text_file[] = "text.txt", out_file[] = "out.bpe";

typedef struct { bool ok; VocabResult r; TostError err; Bytes file; } Learned;   // the file: NULL on error

// Learns from text_file; the file of an earlier call is removed.
static Learned learn(Checks* c, TextInput in, int size) {
    Learned got = {.err = {""}};
    in.files = (StringList){1, (char*[]){(char*)text_file}};
    unlink(out_file);
    got.ok = vocab_learn(&(VocabOptions){.in = in, .size = size, .out = out_file}, &got.r, &got.err);
    check(c, path_exists(out_file) == got.ok, "a file exists: %d, error '%s'", path_exists(out_file), got.err.text);
    if (got.ok) got.file = bytes_of(out_file);
    return got;
}

static void test_merges(Checks* c) {
    static const struct { const char* text; int size; const char* merges; } known[] = {
        // words: low 1, " low" 4, " lower" 2, " newest" 6, " widest" 3 (Sennrich et al., 2016)
        {"low low low low low lower lower newest newest newest newest newest newest widest widest widest", 265,
         "e s\nes t\nl o\nlo w\ne w\nn ew\nĠ low\nĠ new\n"},
        // equal counts: the lower left id, then the lower right one; new tokens have the highest ids
        {"ba dc", 300, "b a\nd c\nĠ dc\n"}, {"ac\nab", 300, "a b\na c\n"}, {"ab\nabc", 300, "a b\nab c\n"},
        // runs, from left to right
        {"aa", 300, "a a\n"}, {"aaa", 300, "a a\naa a\n"}, {"aaaa", 300, "a a\naa aa\n"},
        {"aaaaa", 300, "a a\naa a\naa aaa\n"}, {"abababab", 300, "a b\nab ab\nabab abab\n"},
        {"aaaa\naaaa\nbb", 258, "a a\n"}, {"aaab\naaab", 300, "a a\na b\naa ab\n"},
        // no pair spans words or documents
        {"a b\n<|endoftext|>\nc", 300, "Ġ b\n"}, {"a\n<|endoftext|>\nb", 300, ""},
        {"a1!", 300, ""}, {"don't", 300, "' t\nd o\ndo n\n"},
        // bytes
        {"é", 300, "Ã ©\n"}, {" \t", 300, "Ġ ĉ\n"},
    };
    for (size_t i = 0; i < countof(known); i++) {
        write_text(text_file, known[i].text);
        Learned got = learn(c, (TextInput){0}, known[i].size);
        char* want = xasprintf("#version: 0.2\n%s", known[i].merges);
        check(c, got.ok && strcmp(got.file.data, want) == 0, "'%s' gives '%s', expected '%s'", known[i].text,
              got.ok ? got.file.data : got.err.text, want);
        free(want), free(got.file.data);
    }
}

// documents: with lines of <|endoftext|>
static char* random_text(Rng* rng, size_t n, bool documents) {
    static const char* const words[] = {"the", " cat", " cats", " 17", "é", "日本", "\n", "\r\n", " ", "'ll", "aaaaaaa",
                                        " other", " others", "ÿ", "ab", "ba", ",\t", "\n<|endoftext|> \n"};
    char *text = xmalloc(n + 32), *end = text;
    while (end < text + n) end = stpcpy(end, words[rng_below(rng, countof(words) - !documents)]);
    return text;
}

// Checks the merges by definition: each is the pair with the highest count in the text, divided by pattern_end and
// encoded with the merges before it.
static void check_merges(Checks* c, const Tokenizer* whole, const char* text, int size) {
    enum { MOST = 1024 };
    static int counts[MOST][MOST];
    must(tokenizer_size(whole) <= MOST, "too many tokens", NULL);
    const Bytes* file = tokenizer_file(whole);
    const size_t n = strlen(text);
    uint32_t* ids = xmalloc(n * sizeof *ids);
    TostError err;
    for (const char* end = file->data; (end = strchr(end, '\n')); end++) {
        write_bytes("part.bpe", file->data, (size_t)(end + 1 - file->data));
        Tokenizer* t = tokenizer_open("part.bpe", &err);
        must(t != NULL, "part.bpe", &err);
        memset(counts, 0, sizeof counts);
        for (size_t p = 0, next; p < n; p = next) {
            next = pattern_end(text, p, n);
            const size_t tokens = tokenizer_encode(t, NULL, ids, text + p, next - p);
            for (size_t i = 1; i < tokens; i++) counts[ids[i - 1]][ids[i]]++;
        }
        int best = 0;   // of equal ones, the lower left id, then the lower right one
        for (int i = 0; i < MOST * tokenizer_size(t); i++)
            if (counts[i / MOST][i % MOST] > counts[best / MOST][best % MOST]) best = i;
        const bool more = counts[best / MOST][best % MOST] > 0 && tokenizer_size(t) < size;
        size_t len, left, right;
        const char* is = tokenizer_piece(whole, (uint32_t)tokenizer_eot(t), &len);
        const char *a = tokenizer_piece(t, (uint32_t)(best / MOST), &left),
                   *b = tokenizer_piece(t, (uint32_t)(best % MOST), &right);
        char *want = more ? xasprintf("%.*s%.*s", (int)left, a, (int)right, b) : xstrdup("<|endoftext|>");
        check(c, strlen(want) == len && memcmp(is, want, len) == 0, "token %d of %d is '%.*s', expected '%s'",
              tokenizer_eot(t), size, (int)len, is, want);
        free(want);
        tokenizer_free(t);
    }
    free(ids);
}

// Whatever the threads and batches, the bytes are the same. The tokenizer accepts them, so no token appears twice.
static void test_same_bytes(Checks* c) {
    static const int threads[] = {1, 2, 4};
    static const size_t batches[] = {0, 7, 100, 5000};
    Rng rng = rng_seeded(8, 0);
    TostError err;
    for (int round = 0; round < 8; round++) {
        char* text = random_text(&rng, round ? 3000 : 20000, round % 2);
        write_text(text_file, text);
        const int size = round ? 300 + 30 * round : 600;
        Learned first = learn(c, (TextInput){.threads = 1}, size);
        Tokenizer* t = tokenizer_open(out_file, &err);
        check(c, t && tokenizer_size(t) == VOCAB_MIN_SIZE + first.r.merges, "size %d: %s", size, t ? "less" : err.text);
        if (t && round % 2 == 0) check_merges(c, t, text, size);
        for (size_t i = 0; i < countof(threads) * countof(batches); i++) {
            const TextInput in = {.threads = threads[i % countof(threads)],
                                  .batch_bytes = batches[i / countof(threads)]};
            Learned again = learn(c, in, size);
            check(c, again.ok && again.file.size == first.file.size && again.r.words == first.r.words
                  && memcmp(again.file.data, first.file.data, first.file.size) == 0,
                  "size %d: %d threads and batches of %zu bytes change the result", size, in.threads, in.batch_bytes);
            free(again.file.data);
        }
        tokenizer_free(t);
        free(text), free(first.file.data);
    }
}

static void test_counts(Checks* c) {
    write_text(text_file, "one two two\n<|endoftext|>\none");
    Learned got = learn(c, (TextInput){0}, 4000);
    check(c, got.ok && got.r.read.documents == 2 && got.r.read.bytes == 29 && got.r.words == 2,
          "%d documents, %d bytes, %d words", (int)got.r.read.documents, (int)got.r.read.bytes, (int)got.r.words);
    free(got.file.data);
}

static void test_failures(Checks* c) {
    write_text(text_file, "");
    Learned got = learn(c, (TextInput){0}, 300);
    check_refused(c, got.ok, &got.err, "no document in the 0 bytes", "an empty text");
    const size_t n = 1 << 23;
    char* word = memset(xmalloc(n), 'a', n);
    write_bytes(text_file, word, n);
    got = learn(c, (TextInput){0}, 4000);
    check_refused(c, got.ok, &got.err, "would have more than 16777216 bytes", "one long word");
    free(word);
}

int main(void) {
    return RUN_TESTS("vocab_learn", test_merges, test_same_bytes, test_counts, test_failures);
}
