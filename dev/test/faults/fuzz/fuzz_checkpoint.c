// fuzz_checkpoint.c: checkpoints. Input: the size of model.safetensors in two bytes, that file, then
// optimizer.safetensors. If the metadata is accepted, loading the model must not crash.
#include "fuzz.h"

#include "tost/store/checkpoint.h"

extern const TostEngine tost_cpu_engine;

// False if mutated sizes make the model too large for fuzzing.
static bool is_small(const TostConfig* c) {
    return c->n_layer <= 4 && c->n_embd <= 64 && c->vocab_size <= 512 && c->block_size <= 512;
}

static void load(const TostConfig* c, const StFile* file) {
    const TostEngineOptions o = {.max_batch = 1, .max_chunk = 1, .training = true, .threads = 1};
    TostError err = {0};
    TostTensors tensors = tost_tensors(c);
    TostModel* m = tost_cpu_engine.create(c, &o, &err);
    must_hold(m != NULL, "cannot create a small model");
    const CheckpointModel model = {&tost_cpu_engine, m, &tensors, TOST_ADAMW, NULL};
    if (!checkpoint_load_params(&model, file, &err) || !checkpoint_load_moments(&model, file, &err))
        check_message(&err);
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
    char *optimizer = fuzz_file("optimizer.safetensors", data + n, size - n);
    StFile file;
    if (checkpoint_open(&file, &info, model, &err)) {
        must_hold(tost_config_check(&info.config, &err), "accepted an invalid config");
        if (is_small(&info.config)) load(&info.config, &file);
        st_close(&file);
        checkpoint_info_free(&info);
    } else check_message(&err);
    free(model);
    free(optimizer);
    return 0;
}
