// fuzz_eval.c: files of examples for eval --task. Accepted examples must be valid.
#include "tost/base/error.h"
#include "fuzz.h"

#include "tost/commands/examples.h"

static void check_example(const Example* e, const Tokenizer* t) {
    must_hold(e->line >= 1 && e->choices >= 1 && e->choices <= MAX_CHOICES, "wrong number of choices");
    must_hold(e->answer >= 0 && e->answer < e->choices, "answer out of range");
    must_hold(e->context >= 1, "empty context");
    size_t n = (size_t)e->context;
    for (int i = 0; i < e->choices; i++) {
        must_hold(e->length[i] >= 1 && e->chars[i] >= 1, "empty choice");
        n += (size_t)e->length[i];
    }
    for (size_t i = 0; i < n; i++) must_hold(e->ids[i] < (uint32_t)tokenizer_size(t), "id outside the vocabulary");
}

// One token per byte. Opened once, because opening takes longer than most inputs.
static const Tokenizer* byte_tokenizer(void) {
    static Tokenizer* t;
    static const char no_merges[] = "#version: 0.2\n";
    if (t) return t;
    TostError err;
    char* path = fuzz_file("bytes.bpe", (const uint8_t*)no_merges, sizeof no_merges - 1);
    t = tokenizer_open(path, &err);
    must_hold(t != NULL, "cannot open the byte tokenizer");
    free(path);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    TostError err = {0};
    Examples examples;
    char* path = fuzz_file("task.jsonl", data, size);
    const Tokenizer* t = byte_tokenizer();
    if (examples_read(&examples, path, t, &err)) {
        must_hold(examples.count >= 1, "accepted a file without an example");
        for (size_t i = 0; i < examples.count; i++) check_example(&examples.example[i], t);
        examples_free(&examples);
    } else check_message(&err);
    free(path);
    return 0;
}
