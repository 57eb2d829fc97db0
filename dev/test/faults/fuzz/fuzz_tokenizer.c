// fuzz_tokenizer.c: a vocab.bpe, a zero byte and a text. An accepted vocabulary must encode and
// decode any text.
#include "fuzz.h"

#include "tost/data/documents.h"

static void check_text(const Tokenizer* t, const uint8_t* text, size_t n) {
    uint32_t *ids = xmalloc((n + 1) * sizeof *ids), *other = xmalloc((n + 1) * sizeof *other);
    const size_t count = tokenizer_encode(t, NULL, ids, (const char*)text, n);
    must_hold(decodes_to(t, ids, count, (const char*)text, n), "tokens decode to another text");
    TokenizerCache* cache = tokenizer_cache_new();
    for (int again = 0; again < 2; again++)
        must_hold(tokenizer_encode(t, cache, other, (const char*)text, n) == count
                  && memcmp(ids, other, count * sizeof *ids) == 0, "the cache changes the ids");
    free(cache);
    const size_t cut = tokenizer_last_cut((const char*)text, n);
    if (cut > 0) {
        must_hold(cut < n, "cut outside the text");
        const size_t head = tokenizer_encode(t, NULL, other, (const char*)text, cut);
        must_hold(head + tokenizer_encode(t, NULL, other + head, (const char*)text + cut, n - cut) == count
                  && memcmp(ids, other, count * sizeof *ids) == 0, "splitting at the cut changes the ids");
    }
    must_hold(encode_documents(other, t, (const char*)text, n) <= n, "more tokens than bytes");
    free(ids);
    free(other);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const uint8_t* zero = size ? memchr(data, 0, size) : NULL;
    const size_t n = zero ? (size_t)(zero - data) : size;
    TostError err = {0};
    char* path = fuzz_file("vocab.bpe", data, n);
    Tokenizer* t = tokenizer_open(path, &err);
    if (t) {
        must_hold(tokenizer_size(t) >= 257 && tokenizer_eot(t) < tokenizer_size(t), "missing byte tokens");
        if (zero) check_text(t, zero + 1, size - n - 1);
        tokenizer_free(t);
    } else check_message(&err);
    free(path);
    return 0;
}
