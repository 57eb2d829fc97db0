// fuzz_tokenize.c: text and JSONL files for tokenize. The shards of an accepted file must not depend on the batch size.
#include "tost/base/error.h"
#include "tost/base/files.h"
#include "tost/base/memory.h"
#include "fuzz.h"

#include "tost/data/shards.h"
#include "tost/data/tokenize.h"

enum { BYTE_VOCABULARY = 257 };

static bool tokenize(Bytes* shard, TokenizeResult* r, const char* folder, const char* input, size_t batch,
                     TostError* err) {
    char *vocab = path_join(folder, "bytes.bpe"), *out = xasprintf("%s/out_%zu", folder, batch);
    char *file = xasprintf("%s_train_000000.bin", out), *files[] = {(char*)input};
    const TokenizeOptions o = {.in = {.files = files, .n_files = 1, .threads = 1, .batch_bytes = batch},
                               .tokenizer = vocab, .out = out, .shard_tokens = 1 << 20};
    FILE* f = fopen(vocab, "wb");   // no merges: a byte tokenizer
    must_hold(f && fputs("#version: 0.2\n", f) >= 0 && fclose(f) == 0, "cannot write the vocabulary");
    bool ok = tokenize_files(&o, r, err);
    if (ok) {
        Shard s;
        must_hold(shard_open(&s, file, err) && s.n_tokens == r->tokens, "wrong number of tokens in the shard");
        must_hold(shard_check_ids(&s, BYTE_VOCABULARY, err), "id outside the vocabulary");
        uint32_t last;
        must_hold(shard_read(&last, &s, s.n_tokens - 1, 1, err) && last == BYTE_VOCABULARY - 1,
                  "last document without <|endoftext|>");
        shard_close(&s);
        must_hold(read_file(shard, file, err) && unlink(file) == 0, "missing shard");
    } else must_hold(!path_exists(file), "shard left behind after an error");
    free(vocab);
    free(out);
    free(file);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const uint8_t flags = take_byte(&data, &size);
    TostError err = {0}, other = {0};
    TokenizeResult large, small;
    Bytes a = {0}, b = {0};
    char *folder = fuzz_folder(), *input = fuzz_file(flags & 1 ? "input.jsonl" : "input.txt", data, size);
    const bool ok = tokenize(&a, &large, folder, input, 1 << 16, &err);
    if (!ok) check_message(&err);
    else if (size <= 4096) {
        must_hold(tokenize(&b, &small, folder, input, 1 + flags, &other), "rejected with another batch size");
        must_hold(a.size == b.size && memcmp(a.data, b.data, a.size) == 0, "shards depend on the batch size");
        must_hold(large.read.documents == small.read.documents && large.read.bytes == size,
                  "counts depend on the batch size");
    }
    free(a.data);
    free(b.data);
    free(folder);
    free(input);
    return 0;
}
