// fuzz_eval.c: files of LAMBADA, HellaSwag and the Children's Book Test. Accepted examples must be valid.
#include "tost/base/error.h"
#include "fuzz.h"

#include "tost/commands/examples.h"

static void check_example(const Example* e, Task task, const Tokenizer* t) {
    static const int choices[TASKS] = {1, 4, 10};
    must_hold(e->line >= 1 && e->choices == choices[task], "wrong number of choices");
    must_hold(e->label >= 0 && e->label < e->choices, "label out of range");
    must_hold(e->context >= 1 && (e->word != NULL) == (task == TASK_LAMBADA), "empty context or wrong word");
    size_t n = (size_t)e->context;
    for (int i = 0; i < e->choices; i++) {
        must_hold(e->length[i] >= 1, "choice without tokens");
        must_hold(e->chars[i] >= (task == TASK_CBT ? 0 : 1), "empty choice");   // CBT allows an empty candidate
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
    const Task task = (Task)(take_byte(&data, &size) % TASKS);
    TostError err = {0};
    Examples examples;
    char* path = fuzz_file("task.txt", data, size);
    const Tokenizer* t = byte_tokenizer();
    if (examples_read(&examples, task, path, t, &err)) {
        must_hold(examples.count >= 1, "accepted a file without an example");
        const size_t n = examples.count * (size_t)examples.per;
        for (size_t i = 0; i < n; i++) check_example(&examples.example[i], task, t);
        examples_free(&examples);
    } else check_message(&err);
    free(path);
    return 0;
}
