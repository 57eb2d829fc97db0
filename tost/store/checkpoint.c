// checkpoint.c: loads and saves the tensors of checkpoints.
#include "store/checkpoint.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/folder.h"
#include "base/say.h"
#include "data/tokenizer.h"

static const char wte_name[] = "transformer.wte.weight";
static const char bigram_name[] = "transformer.bigram.weight";
static const char lm_head_name[] = "lm_head.weight";   // tied to wte; some programs store it as well

// ---- Names and shapes ----

static TextLine shape_text(const StTensor* t) {   // "(2304, 256)"
    TextLine text = {"("};
    for (int i = 0; i < t->ndim; i++) text = text_line("%s%s%" PRId64, text.text, i ? ", " : "", t->shape[i]);
    return text_line("%s)", text.text);
}

// Entry k of a checkpoint is tensor k % count in array k / count of the state. A file has the arrays first … end - 1.
typedef struct { const char* name; int first, end; } Contents;
static const Contents model_contents = {MODEL_FILE, TOST_PARAM, TOST_PARAM + 1};
static const Contents optimizer_contents = {OPTIMIZER_FILE, TOST_M, TOST_V + 1};

static size_t stored_size(const TostTensors* tensors, int k, TostOptimizer optimizer) {
    return tost_elements(&tensors->tensor[k % tensors->count], (TostArray)(k / tensors->count), optimizer);
}

static StTensor st_tensor(const TostTensors* tensors, int k, TostOptimizer optimizer) {
    static const char* const prefix[] = {[TOST_PARAM] = "", [TOST_M] = "m.", [TOST_V] = "v."};
    const TostTensor* t = &tensors->tensor[k % tensors->count];
    StTensor x = {.dtype = ST_F32, .ndim = t->ndim};
    snprintf(x.name, sizeof x.name, "%s%s", prefix[k / tensors->count], t->name);
    for (int i = 0; i < t->ndim; i++) x.shape[i] = t->shape[i];
    if (stored_size(tensors, k, optimizer) < t->size) x.shape[1] = 1;   // one v per row, or none stored
    return x;
}

static bool check_tensor(const StFile* f, const StTensor* have, const StTensor* want, TostError* err) {
    if (!have) return tost_error(err, "%s: tensor '%s' is missing", f->path, want->name);
    if (!st_check_float(f, have, err)) return false;
    const size_t bytes = (size_t)want->ndim * sizeof *want->shape;
    if (have->ndim == want->ndim && memcmp(have->shape, want->shape, bytes) == 0) return true;
    return tost_error(err, "%s: tensor '%s' has shape %s, expected %s", f->path, have->name, shape_text(have).text,
                      shape_text(want).text);
}

// Checks that the file has its tensors, with their shapes and a floating-point type, and no others but an lm_head.
static bool check_tensors(const StFile* f, const TostTensors* tensors, const Contents* contents,
                          TostOptimizer optimizer, TostError* err) {
    bool ok = true, *known = xcalloc((size_t)f->n_tensors, sizeof *known);
    for (int k = contents->first * tensors->count; ok && k < contents->end * tensors->count; k++) {
        const StTensor want = st_tensor(tensors, k, optimizer), *have = st_find(f, want.name);
        if (stored_size(tensors, k, optimizer) == 0) continue;
        ok = check_tensor(f, have, &want, err);
        if (ok) known[have - f->tensors] = true;
    }
    const StTensor* head = contents == &model_contents ? st_find(f, lm_head_name) : NULL;
    if (head) known[head - f->tensors] = true;
    ok = ok && (!head || check_tensor(f, head, st_find(f, wte_name), err));
    for (int i = 0; ok && i < f->n_tensors; i++)
        if (!known[i])
            ok = tost_error(err, "%s: tensor '%s' does not belong to this model", f->path, f->tensors[i].name);
    free(known);
    return ok;
}

static bool find_sizes(int sizes[2], const StFile* f, const char* name, TostError* err) {
    const StTensor* t = st_find(f, name);
    if (!t) return tost_error(err, "%s: tensor '%s' is missing: not a ToST model", f->path, name);
    if (t->ndim != 2 || t->shape[0] > INT_MAX || t->shape[1] > INT_MAX)
        return tost_error(err, "%s: tensor '%s' is not a matrix of less than 2^31 rows", f->path, name);
    sizes[0] = (int)t->shape[0];
    sizes[1] = (int)t->shape[1];
    return true;
}

// The config that follows from names and shapes. The metadata says if there are no positions, and then the block size.
static bool read_config(TostConfig* c, const StFile* f, TostError* err) {
    int wte[2] = {0}, wpe[2] = {0}, temp[2] = {0}, bigrams[2] = {0}, layers = 0;
    const char *positions = st_meta(f, "positions"), *block_size = st_meta(f, "block_size");
    const bool none = positions && strcmp(positions, "none") == 0;
    if (!find_sizes(wte, f, wte_name, err)) return false;
    if (!none && !find_sizes(wpe, f, "transformer.wpe.weight", err)) return false;
    if (!find_sizes(temp, f, "transformer.h.0.attn.temp", err)) return false;
    if (st_find(f, bigram_name) && !find_sizes(bigrams, f, bigram_name, err)) return false;
    if (none) wpe[0] = block_size ? (int)strtol(block_size, NULL, 10) : 0;   // metadata_read checks the text
    while (st_find(f, text_line("transformer.h.%d.attn.temp", layers).text)) layers++;
    *c = (TostConfig){.n_layer = layers, .n_head = temp[0], .n_embd = wte[1], .block_size = wpe[0],
                      .vocab_size = wte[0], .bias = st_find(f, "transformer.ln_f.bias") != NULL,
                      .conv = st_find(f, "transformer.h.0.attn.conv.weight") ? TOST_CONV_WIDTH : 0,
                      .memory = st_find(f, "transformer.h.0.attn.memory_scale") != NULL,
                      .positions = none ? TOST_POSITIONS_NONE : TOST_POSITIONS_LEARNED,
                      .bigrams = bigrams[0] > 0 ? bigrams[0] - wte[0] : 0};
    return true;
}

static bool read_info(CheckpointInfo* info, const StFile* f, TostError* err) {
    if (!read_config(&info->config, f, err) || !metadata_read(info, f, err)) return false;
    TostTensors tensors = tost_tensors(&info->config);
    const bool ok = (tost_config_check(&info->config, err) || tost_error(err, "%s: %s", f->path, err->text))
                    && check_tensors(f, &tensors, &model_contents, TOST_ADAMW, err);
    tost_tensors_free(&tensors);
    return ok;
}

// ---- Opening ----

// The model file that PATH leads to.
static bool find_model(Path* file, const char* path, TostError* err) {
    Path newest;
    *file = path_text("%s", path);
    if (!path_exists(path)) return tost_error(err, "%s: cannot be found: %s", path, strerror(errno));
    if (!is_dir(path)) return true;
    *file = path_in(path, MODEL_FILE);
    if (checkpoint_is_folder(path)) return true;
    if (access(path, R_OK | X_OK) != 0)
        return tost_error(err, "%s: the folder cannot be read: %s", path, strerror(errno));
    if (checkpoint_newest(&newest, path)) {
        *file = path_in(newest.text, MODEL_FILE);
        return true;
    }
    if (path_exists(path_in(path, "config.json").text) || path_exists(path_in(path, MODEL_FILE ".index.json").text))
        return tost_error(err, "%s: a Hugging Face folder: if it has a ToST model, convert it with "
                          "dev/reference/import_hf.py FOLDER OUT", path);
    const Path best = path_in(path, BEST_FOLDER);
    const bool has_best = checkpoint_is_folder(best.text);
    return tost_error(err, "%s: no complete checkpoint (step_N/" MODEL_FILE " and " OPTIMIZER_FILE ") in this "
                      "folder%s%s", path, has_best ? ", only " : "", has_best ? best.text : "");
}

bool checkpoint_open(StFile* model_file, CheckpointInfo* info, const char* path, TostError* err) {
    Path file;
    *info = (CheckpointInfo){0};
    *model_file = (StFile){0};
    if (!find_model(&file, path, err) || !st_open(model_file, file.text, err)) return false;
    // A folder that was renamed would be taken for a newer or older checkpoint of its run.
    const bool newest = is_dir(path) && !checkpoint_is_folder(path);
    if (read_info(info, model_file, err)
        && (!newest || checkpoint_exists(path, info->step)
            || tost_error(err, "%s is the checkpoint of step %" PRId64 ": name its folder %s", file.text, info->step,
                          checkpoint_name(path, info->step).text))) return true;
    checkpoint_info_free(info);
    st_close(model_file);
    return false;
}

bool checkpoint_open_best(StFile* model_file, CheckpointInfo* info, const char* path, TostError* err) {
    const Path best = path_in(path, BEST_FOLDER);
    CheckpointInfo newest;
    if (!checkpoint_is_folder(best.text)) return checkpoint_open(model_file, info, path, err);
    if (!checkpoint_open(model_file, &newest, path, err)) return false;
    st_close(model_file);
    bool ok = checkpoint_open(model_file, info, best.text, err);
    if (ok && isfinite(newest.val_loss) && info->val_loss < newest.val_loss) {   // else best may be of other data
        print_warning("using %s, validation loss %.6f after step %" PRId64 ", instead of step_%08" PRId64 ", %.6f",
                      best.text, info->val_loss, info->step, newest.step, newest.val_loss);
    } else if (ok) {
        st_close(model_file);
        checkpoint_info_free(info);
        ok = checkpoint_open(model_file, info, path, err);
    }
    checkpoint_info_free(&newest);
    return ok;
}

// ---- Reading ----

static bool check_lm_head(const StFile* f, TostError* err) {
    const StTensor *head = st_find(f, lm_head_name), *wte = st_find(f, wte_name);
    if (!head) return true;
    float *a = xmalloc(head->count * sizeof *a), *b = xmalloc(wte->count * sizeof *b);
    const bool ok = st_read_f32(f, head, a, err) && st_read_f32(f, wte, b, err)
                    && (memcmp(a, b, head->count * sizeof *a) == 0
                        || tost_error(err, "%s: tensor '%s' differs from %s: the output head must equal it", f->path,
                                      lm_head_name, wte_name));
    free(a);
    free(b);
    return ok;
}

// Reads entry k as float32, checks its values and copies them to the engine.
static bool put_tensor(const CheckpointModel* m, int k, const StFile* f, const StTensor* stored, TostError* err) {
    const TostTensor* t = &m->tensors->tensor[k % m->tensors->count];
    const TostArray array = (TostArray)(k / m->tensors->count);
    float* values = xmalloc(t->size * sizeof *values);
    const bool ok = st_read_finite(f, stored, array == TOST_V ? 0 : -FLT_MAX, values, err);
    if (t->row == TOST_ROW_temp && t->init == TOST_ZERO)   // uniform membership: some files have 1
        memset(values, 0, t->size * sizeof *values);
    if (ok) m->engine->put(m->model, array, t, values);
    free(values);
    return ok;
}

// Loads the entries of the model that the file has.
static bool load(const CheckpointModel* m, const Contents* contents, const StFile* f, TostError* err) {
    bool ok = true;
    for (int k = contents->first * m->tensors->count; ok && k < contents->end * m->tensors->count; k++) {
        const StTensor want = st_tensor(m->tensors, k, m->optimizer), *have = st_find(f, want.name);
        if (have) ok = check_tensor(f, have, &want, err) && put_tensor(m, k, f, have, err);
    }
    return ok;
}

bool checkpoint_load_params(const CheckpointModel* m, const StFile* model_file, TostError* err) {
    return metadata_check_crc(model_file, err) && check_lm_head(model_file, err)
           && load(m, &model_contents, model_file, err);
}

// Both files of a checkpoint have the same metadata, except for the CRC.
static bool same_metadata(const StFile* a, const StFile* b, TostError* err) {
    for (int i = 0; i < a->meta.count; i++) {
        const char *key = a->meta.entry[i].key, *value = a->meta.entry[i].value, *other = st_meta(b, key);
        if (strcmp(key, "crc32") == 0 || (other && strcmp(other, value) == 0)) continue;
        return tost_error(err, "%s: %s is '%s', but '%s' in %s: the files belong to different checkpoints, or one is "
                          "damaged; use another checkpoint", a->path, key, value, other ? other : "", b->path);
    }
    return true;
}

bool checkpoint_load_moments(const CheckpointModel* m, const StFile* model_file, TostError* err) {
    StFile f;
    if (!st_open(&f, path_in(path_above(model_file->path).text, OPTIMIZER_FILE).text, err)) return false;
    const bool ok = same_metadata(&f, model_file, err) && same_metadata(model_file, &f, err)
                    && (check_tensors(&f, m->tensors, &optimizer_contents, m->optimizer, err)
                        || tost_error(err, "%s; if an earlier version wrote it, give --init to start from its weights",
                                      err->text))
                    && metadata_check_crc(&f, err) && load(m, &optimizer_contents, &f, err);
    st_close(&f);
    return ok;
}

// ---- Writing ----

static void get_tensor(float* values, const CheckpointModel* m, int k) {
    const int n = m->tensors->count;
    m->engine->get(values, m->model, (TostArray)(k / n), &m->tensors->tensor[k % n]);
}

// Before rank 0 gets an entry, it tells the other ranks its number; -1: the save ends. It also does so for parameters,
// although the others have nothing to send: each number ends a wait, so the timeout applies to a tensor, not to a file.
static bool append_tensor(StWriter* w, const CheckpointModel* m, int k, TostError* err) {
    const size_t size = stored_size(m->tensors, k, m->optimizer);
    float* values = xmalloc(size * sizeof *values);
    comm_broadcast(m->comm, &k, sizeof k, 0);
    get_tensor(values, m, k);
    const bool ok = st_append(w, values, size * sizeof *values, err);
    free(values);
    return ok;
}

void checkpoint_send_moments(const CheckpointModel* m) {
    for (int k = 0; comm_broadcast(m->comm, &k, sizeof k, 0), k >= 0;)
        if (k / m->tensors->count != TOST_PARAM) get_tensor(NULL, m, k);
}

void checkpoint_end_save(TostComm* comm) { comm_broadcast(comm, &(int){-1}, sizeof(int), 0); }

static bool write_contents(const char* dir, const Contents* contents, const CheckpointModel* m, const KeyValues* meta,
                           TostError* err) {
    const int first = contents->first * m->tensors->count, end = contents->end * m->tensors->count;
    StTensor* declared = xcalloc((size_t)(end - first), sizeof *declared);
    StWriter w;
    int n = 0;
    for (int k = first; k < end; k++)
        if (stored_size(m->tensors, k, m->optimizer) > 0) declared[n++] = st_tensor(m->tensors, k, m->optimizer);
    bool ok = st_begin(&w, path_in(dir, contents->name).text, declared, n, meta, err);
    for (int k = first; ok && k < end; k++)
        if (stored_size(m->tensors, k, m->optimizer) > 0) ok = append_tensor(&w, m, k, err);
    ok = st_end(&w, ok, err);
    free(declared);
    return ok;
}

static bool write_folder(const char* dir, const CheckpointInfo* info, const CheckpointModel* m, TostError* err) {
    if (!checkpoint_remove(dir, err) && path_exists(dir)) return false;
    if (mkdir(dir, 0777) != 0) return tost_error(err, "%s: the folder cannot be created: %s", dir, strerror(errno));
    KeyValues meta = metadata_list(info);
    const Bytes* file = info->tokenizer_file;
    const bool ok = write_contents(dir, &model_contents, m, &meta, err)
                    && write_contents(dir, &optimizer_contents, m, &meta, err)
                    && (!file || replace_file(path_in(dir, TOKENIZER_FILE).text, file->data, file->size, err))
                    && sync_dir(dir, err);
    key_values_free(&meta);
    return ok;
}

bool checkpoint_save(const char* run, bool best, const CheckpointInfo* info, const CheckpointModel* m, TostError* err) {
    const Path name = best ? path_in(run, BEST_FOLDER) : checkpoint_name(run, info->step);
    const Path unfinished = path_text("%s.tmp", name.text);
    if (write_folder(unfinished.text, info, m, err) && checkpoint_publish(unfinished.text, name.text, err)
        && sync_dir(run, err)) return true;
    tost_error(err, "%s; saving step %" PRId64 " failed", err->text, info->step);
    checkpoint_remove(unfinished.text, &(TostError){0});
    return false;
}
