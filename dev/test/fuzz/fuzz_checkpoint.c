// fuzz_checkpoint.c: a checkpoint of this program or of others: two bytes with the length of model.safetensors, that
// file, then optimizer.safetensors. What is accepted makes a model and loads into it.
#include "fuzz.h"

#include "tost/checkpoint.h"

extern const TostEngine tost_cpu_engine;

// A model that a mutated size makes large is not what is looked for here.
static bool is_small(const TostConfig* c) {
    return c->n_layer <= 4 && c->n_embd <= 64 && c->vocab_size <= 512 && c->block_size <= 512;
}

static void load(const TostConfig* c, const char* file) {
    const TostEngineOptions o = {.max_batch = 1, .max_seq = 1, .training = true, .threads = 1};
    TostError err = {0};
    TostTensors tensors = tost_tensors(c);
    TostModel* m = tost_cpu_engine.create(c, &o, &err);
    must_hold(m != NULL, "a small model that cannot be made");
    if (!checkpoint_load_params(&tost_cpu_engine, m, &tensors, file, &err)) must_say(&err);
    else if (!checkpoint_load_moments(&tost_cpu_engine, m, &tensors, file, &err)) must_say(&err);
    tost_cpu_engine.destroy(m);
    tost_tensors_free(&tensors);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    size_t n = take_byte(&data, &size);
    n |= (size_t)take_byte(&data, &size) << 8;
    if (n > size) n = size;
    TostError err = {0};
    CheckpointInfo info;
    char *model = fuzz_file("model.safetensors", data, n);
    char *moments = fuzz_file("optimizer.safetensors", data + n, size - n);
    if (checkpoint_read_info(&info, model, &err)) {
        must_hold(tost_config_check(&info.config, &err), "sizes that are no model's");
        if (is_small(&info.config)) load(&info.config, model);
        checkpoint_info_free(&info);
    } else must_say(&err);
    free(model);
    free(moments);
    return 0;
}
