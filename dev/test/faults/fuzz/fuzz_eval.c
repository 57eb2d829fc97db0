// fuzz_eval.c: files of examples for eval --task. Accepted examples must be valid.
#include "tost/base/error.h"
#include "dev/test/scratch.h"
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

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    TostError err = {0};
    Examples examples;
    char* path = fuzz_file("task.jsonl", data, size);
    static const Tokenizer* t;   // opened once, because opening takes longer than most inputs
    if (!t) t = byte_tokenizer();
    if (examples_read(&examples, path, t, &err)) {
        must_hold(examples.count >= 1, "accepted a file without an example");
        for (size_t i = 0; i < examples.count; i++) check_example(&examples.example[i], t);
        examples_free(&examples);
    } else check_message(&err);
    free(path);
    return 0;
}
