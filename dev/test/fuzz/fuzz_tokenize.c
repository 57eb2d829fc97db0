// fuzz_tokenize.c: text and JSONL for the command tokenize. What is accepted makes the same shards however it is read
// in pieces, of as many tokens as are told.
#include "fuzz.h"

#include "tost/data.h"
#include "tost/tokenize.h"

enum { BYTE_VOCABULARY = 257 };

static bool shards_of(Bytes* shard, TokenizeResult* r, const char* folder, const char* input, size_t batch,
                      TostError* err) {
    char *vocab = path_join(folder, "bytes.bpe"), *out = xasprintf("%s/%s_%zu", folder, "out", batch);
    char *file = xasprintf("%s_train_000000.bin", out), *files[] = {(char*)input};
    const TokenizeOptions o = {.tokenizer = vocab, .out = out, .files = files, .n_files = 1, .shard_tokens = 1 << 20,
                               .threads = 1, .batch_bytes = batch, .quiet = true};
    FILE* f = fopen(vocab, "wb");   // no merges: bytes
    must_hold(f && fputs("#version: 0.2\n", f) >= 0 && fclose(f) == 0, "the vocabulary");
    bool ok = tokenize_files(&o, r, err);
    if (ok) {
        Shard s;
        must_hold(shard_open(&s, file, err) && s.n_tokens == r->tokens, "a shard of other tokens than are told");
        must_hold(shard_check_ids(&s, BYTE_VOCABULARY, err), "an id beyond the vocabulary");
        must_hold(shard_token(&s, s.n_tokens - 1) == BYTE_VOCABULARY - 1, "a last document without its end");
        shard_close(&s);
        must_hold(read_file(shard, file, err) && unlink(file) == 0, "a shard that is not there");
    } else must_hold(!path_exists(file), "a refusal that leaves a shard");
    free(vocab);
    free(out);
    free(file);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const uint8_t how = take_byte(&data, &size);
    TostError err = {0}, other = {0};
    TokenizeResult whole, pieces;
    Bytes a = {0}, b = {0};
    char *folder = fuzz_folder(), *input = fuzz_file(how & 1 ? "input.jsonl" : "input.txt", data, size);
    const bool ok = shards_of(&a, &whole, folder, input, 1 << 16, &err);
    if (!ok) must_say(&err);
    else if (size <= 4096) {
        must_hold(shards_of(&b, &pieces, folder, input, 1 + how, &other), "a text that is refused in pieces");
        must_hold(a.size == b.size && memcmp(a.data, b.data, a.size) == 0, "other shards from other pieces");
        must_hold(whole.documents == pieces.documents && whole.bytes == size, "other counts from other pieces");
    }
    free(a.data);
    free(b.data);
    free(folder);
    free(input);
    return 0;
}
