// fuzz_eval.c: files of LAMBADA, HellaSwag and the Children's Book Test. What is accepted are examples that can be
// scored.
#include "fuzz.h"

#include "tost/examples.h"

static void must_be_sound(const Example* p, Task task, const Tokenizer* t) {
    static const int endings[TASKS] = {1, 4, 10};
    must_hold(p->line >= 1 && p->endings == endings[task], "endings that are not those of the task");
    must_hold(p->label >= 0 && p->label < p->endings, "a label that names no ending");
    must_hold(p->shared >= 1 && (p->word != NULL) == (task == TASK_LAMBADA), "a text without a beginning, or its word");
    size_t n = (size_t)p->shared;
    for (int i = 0; i < p->endings; i++) {
        must_hold(p->length[i] >= 1, "an ending without tokens");
        must_hold(p->bytes[i] >= (task == TASK_CBT ? 0 : 1), "an ending without bytes");   // CBT: a hole left empty
        n += (size_t)p->length[i];
    }
    for (size_t i = 0; i < n; i++) must_hold(p->ids[i] < (uint32_t)tokenizer_size(t), "an id beyond the vocabulary");
}

// A token for each byte; opened once, since that takes longer than most inputs.
static const Tokenizer* byte_tokenizer(void) {
    static Tokenizer* t;
    static const char no_merges[] = "#version: 0.2\n";
    if (t) return t;
    TostError err;
    char* path = fuzz_file("bytes.bpe", (const uint8_t*)no_merges, sizeof no_merges - 1);
    t = tokenizer_open(path, &err);
    must_hold(t != NULL, "the vocabulary of bytes");
    free(path);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const Task task = (Task)(take_byte(&data, &size) % TASKS);
    TostError err = {0};
    Examples p;
    char* path = fuzz_file("task.txt", data, size);
    const Tokenizer* t = byte_tokenizer();
    if (examples_read(&p, task, path, t, &err)) {
        must_hold(p.count >= 1, "a file without an example");
        for (size_t i = 0; i < p.count; i++) must_be_sound(&p.passage[i], task, t);
        examples_free(&p);
    } else must_say(&err);
    free(path);
    return 0;
}
