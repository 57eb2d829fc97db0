// command_info.c: prints the contents of a model file, a checkpoint or a run.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "commands.h"

static void print_file(const char* label, const char* path) {
    struct stat st;
    char size[32];
    if (stat(path, &st) == 0) printf("%-12s%s, %s\n", label, path, human_bytes(size, (double)st.st_size));
}

static void print_model(const LoadedModel* m) {
    const ModelSummary summary = model_summary(&m->info.config, &m->tensors);
    printf("%-12s%s\n", "model", summary.sizes);
    printf("%-12s%s, exactly %zu in %d tensors\n", "parameters", summary.parameters, m->tensors.n_params,
           m->tensors.count);
}

static void print_training(const CheckpointInfo* info) {
    char tokens[32];
    if (info->n_options == 0 && info->step == 0 && info->tokens == 0)
        printf("%-12sunknown: not a checkpoint of this program\n", "trained");
    else
        printf("%-12s%lld steps, %lld tokens (%s)\n", "trained", (long long)info->step, (long long)info->tokens,
               human_count(tokens, (double)info->tokens));
    if (isfinite(info->best_val_loss))
        printf("%-12s%.6f nats/token (best so far)\n", "val loss", info->best_val_loss);
    if (info->tokenizer)
        printf("%-12s%s, CRC-32 %08x\n", "tokenizer", info->tokenizer, (unsigned)info->tokenizer_hash);
    else printf("%-12snone\n", "tokenizer");
    for (int i = 0; i < info->n_options; i++)
        printf("%-12s%-14s %s\n", i == 0 ? "options" : "", info->options[i].key, info->options[i].value);
}

int command_info(const Options* o) {
    TostError err;
    LoadedModel m;
    const bool ok = loaded_model_find(&m, o, NULL, &err);
    if (ok) {
        char* dir = path_dir(m.file);
        char* optimizer = path_join(dir, "optimizer.safetensors");
        char size[32];   // of the open file, which another process may have removed
        printf("%-12s%s, %s\n", "file", m.file, human_bytes(size, (double)m.weights.file_size));
        print_file("optimizer", optimizer);
        print_model(&m);
        print_training(&m.info);
        free(optimizer);
        free(dir);
    }
    loaded_model_free(&m);
    return ok ? 0 : command_failed(o, &err);
}
