// loaded_model.c: a trained model, for sample, eval and info.
#include "store/loaded_model.h"

#include <math.h>

bool loaded_model_find(LoadedModel* m, const char* model, const TostEngine* engine, TostError* err) {
    *m = (LoadedModel){.engine = engine};
    Path path;
    if (!model && !checkpoint_newest_run(&path, "out", "--model PATH", err)) return false;
    if (!(engine ? checkpoint_open_best : checkpoint_open)(&m->weights, &m->info, model ? model : path.text, err))
        return false;
    m->file = xstrdup(m->weights.path);
    m->tensors = tost_tensors(&m->info.config);
    return true;
}

bool loaded_model_create(LoadedModel* m, const TostRecipe* recipe, int max_batch, int seq, TostError* err) {
    const TostEngineOptions options = recipe_engine(recipe, max_batch, seq, 0, m->comm);
    TostModel* model = m->engine->create(&m->info.config, &options, err);
    m->chunks = (Chunks){.engine = m->engine, .model = model, .max_chunk = options.max_chunk};
    const CheckpointModel loaded = {m->engine, model, &m->tensors, TOST_ADAMW, NULL};
    const bool ok = model && checkpoint_load_params(&loaded, &m->weights, err);
    st_close(&m->weights);
    return ok;
}

bool loaded_model_check_loss(const LoadedModel* m, double loss, TostError* err) {
    return isfinite(loss)
        || tost_error(err, "%s: the loss is not finite; the weights have diverged: use an earlier checkpoint", m->file);
}

Tokenizer* loaded_model_tokenizer(const LoadedModel* m, const char* given, TostError* err) {
    const CheckpointInfo* info = &m->info;
    const uint32_t* hash = !given && info->tokenizer ? &info->tokenizer_hash : NULL;
    Path path = path_text("%s", given ? given : "");
    if (!given && !tokenizer_beside(&path, m->file)) {
        tost_error(err, "%s has no " TOKENIZER_FILE " beside it; give --tokenizer FILE, the one it was trained with",
                   m->file);
        return NULL;
    }
    Tokenizer* tokenizer = model_tokenizer(path.text, info->config.vocab_size, hash, m->file, err);
    if (tokenizer)
        warn_of_tokenizer(tokenizer, m->file, info->config.vocab_size, info->tokenizer, info->tokenizer_hash);
    return tokenizer;
}

void loaded_model_free(LoadedModel* m) {
    if (m->chunks.model) m->engine->destroy(m->chunks.model);
    tost_tensors_free(&m->tensors);
    checkpoint_info_free(&m->info);
    st_close(&m->weights);
    free(m->file);
}
