// checkpoint.c: runs, checkpoints and model files. Every change to a run is one rename of a whole folder.
#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char model_name[] = "model.safetensors", optimizer_name[] = "optimizer.safetensors";
static const char wte_name[] = "transformer.wte.weight";
static const char lm_head_name[] = "lm_head.weight";   // some writers store the tied output head as well
static const char option_prefix[] = "option.";
enum { FORMAT_VERSION = 1 };

// ---------------------------------------------------------------------------------------------
// What a run folder holds

typedef struct {
    int64_t step;
    bool    stale;     // "….tmp": being written, replaced or removed when its process ended
    char*   path;
} Entry;

typedef struct { int count; Entry* entry; } Entries;

// "step_" digits, or the same with something that ends in ".tmp"; step is the number that the digits make.
static bool parse_entry(Entry* e, const char* name) {
    if (strncmp(name, "step_", 5) != 0) return false;
    size_t digits = strspn(name + 5, "0123456789");
    if (digits == 0 || digits > 18) return false;
    const char* rest = name + 5 + digits;
    const size_t n = strlen(rest);
    e->step = strtoll(name + 5, NULL, 10);
    e->stale = n >= 4 && strcmp(rest + n - 4, ".tmp") == 0;
    return n == 0 || e->stale;
}

static int compare_entries(const void* a, const void* b) {
    const Entry *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return strcmp(x->path, y->path);
}

static void free_entries(Entries* list) {
    for (int i = 0; i < list->count; i++) free(list->entry[i].path);
    free(list->entry);
}

// All checkpoints of a run, complete or not, by step.
static bool list_entries(Entries* out, const char* run, TostError* err) {
    *out = (Entries){0};
    DIR* dir = opendir(run);
    if (!dir) return tost_error(err, "%s: the folder cannot be opened: %s", run, strerror(errno));
    for (struct dirent* d; (d = readdir(dir));) {
        Entry e;
        if (!parse_entry(&e, d->d_name)) continue;
        e.path = path_join(run, d->d_name);
        out->entry = xrealloc(out->entry, (size_t)(out->count + 1) * sizeof e);
        out->entry[out->count++] = e;
    }
    closedir(dir);
    if (out->count > 0) qsort(out->entry, (size_t)out->count, sizeof *out->entry, compare_entries);
    return true;
}

static bool holds(const char* dir, const char* name) {
    char* path = path_join(dir, name);
    struct stat st;
    bool file = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    free(path);
    return file;
}

static bool is_complete(const Entry* e) {
    return !e->stale && holds(e->path, model_name) && holds(e->path, optimizer_name);
}

// The model file of a run's newest complete checkpoint, or NULL. free()
static char* newest_of_run(const char* run) {
    Entries list;
    TostError ignored;
    if (!list_entries(&list, run, &ignored)) return NULL;
    char* file = NULL;
    for (int i = list.count - 1; i >= 0 && !file; i--)
        if (is_complete(&list.entry[i])) file = path_join(list.entry[i].path, model_name);
    free_entries(&list);
    return file;
}

// ---------------------------------------------------------------------------------------------
// Finding

// Whether the last part of a path is a checkpoint's name, complete or not.
static bool entry_of_path(Entry* e, const char* path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t start = n;
    while (start > 0 && path[start - 1] != '/') start--;
    char* name = xasprintf("%.*s", (int)(n - start), path + start);
    const bool is = parse_entry(e, name);
    free(name);
    return is;
}

static bool is_stale_folder(const char* path) {
    Entry e;
    return entry_of_path(&e, path) && e.stale;
}

bool checkpoint_is_name(const char* path) {
    Entry e;
    return entry_of_path(&e, path);
}

bool checkpoint_is_one(const char* dir) { return holds(dir, model_name); }

bool checkpoint_find(char** file, const char* path, TostError* err) {
    *file = NULL;
    if (!path_exists(path)) return tost_error(err, "%s: cannot be found: %s", path, strerror(errno));
    if (!is_dir(path)) *file = xstrdup(path);
    else if (is_stale_folder(path))
        return tost_error(err, "%s: an unfinished checkpoint; name its run for the newest complete one",
                          path);
    else if (holds(path, model_name)) *file = path_join(path, model_name);
    else if (access(path, R_OK | X_OK) != 0)
        return tost_error(err, "%s: the folder cannot be read: %s", path, strerror(errno));
    else *file = newest_of_run(path);
    return *file || tost_error(err, "%s: no complete checkpoint (step_N/%s and %s) is in this folder", path,
                               model_name, optimizer_name);
}

// Takes `candidate` (or NULL) as the newest if it was written after *file; at the same time: later by name.
static void keep_newer(char** file, struct timespec* when, char* candidate) {
    struct stat st;
    if (!candidate) return;
    bool newer = false;
    if (stat(candidate, &st) == 0) {
        const struct timespec t = st.st_mtim;
        newer = !*file || t.tv_sec > when->tv_sec || (t.tv_sec == when->tv_sec && t.tv_nsec > when->tv_nsec)
             || (t.tv_sec == when->tv_sec && t.tv_nsec == when->tv_nsec && strcmp(candidate, *file) > 0);
    }
    if (newer) {
        free(*file);
        *file = candidate;
        *when = st.st_mtim;
    } else {
        free(candidate);
    }
}

bool checkpoint_newest(char** file, const char* root, TostError* err) {
    struct timespec when = {0};
    *file = NULL;
    DIR* dir = opendir(root);
    for (struct dirent* d; dir && (d = readdir(dir));) {
        if (strcmp(d->d_name, "..") == 0) continue;   // but ".": the root may be a run itself
        char* run = strcmp(d->d_name, ".") == 0 ? xstrdup(root) : path_join(root, d->d_name);
        keep_newer(file, &when, newest_of_run(run));
        free(run);
    }
    if (dir) closedir(dir);
    return *file || tost_error(err, "%s: no run with a complete checkpoint is there: train one first (the "
                               "command train without options makes a small one) or give --model PATH", root);
}

bool checkpoint_is_run(const char* dir) {
    Entries list;
    TostError ignored;
    if (!list_entries(&list, dir, &ignored)) return false;
    bool run = list.count > 0 || holds(dir, "log.csv");
    free_entries(&list);
    return run;
}

// Renamed first, so that an end in the middle leaves no folder that looks like a checkpoint.
static bool remove_entry(const Entry* e, TostError* err) {
    if (e->stale) return remove_tree(e->path, err);
    char* stale = xasprintf("%s.old.tmp", e->path);
    bool ok = remove_tree(stale, err);
    if (ok && rename(e->path, stale) != 0)
        ok = tost_error(err, "%s: cannot be removed: %s", e->path, strerror(errno));
    ok = ok && remove_tree(stale, err);
    free(stale);
    return ok;
}

bool checkpoint_clear(const char* run, TostError* err) {
    Entries list;
    if (!path_exists(run)) return true;
    if (!list_entries(&list, run, err)) return false;
    bool ok = true;
    for (int i = 0; i < list.count && ok; i++) ok = remove_entry(&list.entry[i], err);
    free_entries(&list);
    return ok;
}

bool checkpoint_stands(const char* run, int64_t step) {
    const Entry e = {.step = step, .path = xasprintf("%s/step_%08" PRId64, run, step)};
    const bool stands = is_complete(&e);
    free(e.path);
    return stands;
}

char* checkpoint_next_run(const char* root, const char* preset) {
    const size_t n = strlen(preset);
    long last = 0;
    DIR* dir = opendir(root);
    for (struct dirent* d; dir && (d = readdir(dir));) {
        const char* name = d->d_name;
        if (strncmp(name, preset, n) != 0 || name[n] != '-') continue;
        const size_t digits = strspn(name + n + 1, "0123456789");
        if (digits == 0 || digits > 8 || name[n + 1 + digits] != 0) continue;
        const long number = strtol(name + n + 1, NULL, 10);
        if (number > last) last = number;
    }
    if (dir) closedir(dir);
    char* name = xasprintf("%s-%03ld", preset, last + 1);
    char* path = path_join(root, name);
    free(name);
    return path;
}

// ---------------------------------------------------------------------------------------------
// Metadata

typedef struct { int count; StMeta* entry; } MetaList;

static void add_meta(MetaList* list, const char* key, const char* fmt, ...) PRINTF_LIKE(3, 4);

static void add_meta(MetaList* list, const char* key, const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char* value = xmalloc((size_t)n + 1);
    va_start(ap, fmt);
    vsnprintf(value, (size_t)n + 1, fmt, ap);
    va_end(ap);
    list->entry = xrealloc(list->entry, (size_t)(list->count + 1) * sizeof *list->entry);
    list->entry[list->count++] = (StMeta){xstrdup(key), value};
}

static void add_guard(MetaList* m, const OutlierDetector* g) {
    char *loss = outlier_window_text(&g->loss), *norm = outlier_window_text(&g->norm);
    add_meta(m, "skipped", "%" PRId64, g->skipped);
    add_meta(m, "skipped_in_a_row", "%" PRId64, g->in_a_row);
    add_meta(m, "last_losses", "%s", loss);
    add_meta(m, "last_grad_norms", "%s", norm);
    free(loss);
    free(norm);
}

static MetaList metadata(const CheckpointInfo* info) {
    MetaList m = {0};
    add_meta(&m, "format", "pt");   // what Python's loaders look for
    add_meta(&m, "format_version", "%d", FORMAT_VERSION);
    add_meta(&m, "n_layer", "%d", info->config.n_layer);
    add_meta(&m, "n_head", "%d", info->config.n_head);
    add_meta(&m, "n_embd", "%d", info->config.n_embd);
    add_meta(&m, "block_size", "%d", info->config.block_size);
    add_meta(&m, "vocab_size", "%d", info->config.vocab_size);
    add_meta(&m, "bias", "%d", info->config.bias);
    if (info->config.membership == TOST_UNIFORM) add_meta(&m, "membership", "uniform");
    add_meta(&m, "step", "%" PRId64, info->step);
    add_meta(&m, "tokens", "%" PRId64, info->tokens);
    add_meta(&m, "data_sample", "%" PRIu64, info->data_sample);
    add_meta(&m, "seed", "%" PRIu64, info->seed);
    add_meta(&m, "best_val_loss", "%.17g", info->best_val_loss);   // 17 digits: the same double when read
    add_guard(&m, &info->outliers);
    if (info->unvalidated_row) add_meta(&m, "open_row", "%s", info->unvalidated_row);
    if (info->tokenizer) {
        add_meta(&m, "tokenizer", "%s", info->tokenizer);
        add_meta(&m, "tokenizer_hash", "%08" PRIx32, info->tokenizer_hash);
    }
    for (int i = 0; i < info->n_options; i++) {
        char* key = xasprintf("%s%s", option_prefix, info->options[i].key);
        add_meta(&m, key, "%s", info->options[i].value);
        free(key);
    }
    return m;
}

static bool missing_meta(const StFile* f, const char* key, TostError* err) {
    return tost_error(err, "%s: __metadata__ has no '%s': the file is damaged", f->path, key);
}

// A whole number in the given base, at most max, from metadata. Where the key is absent: an error if
// required, else *out stays as it is.
static bool meta_number(uint64_t* out, const StFile* f, const char* key, int base, uint64_t max,
                        bool required, TostError* err) {
    const char* text = st_meta(f, key);
    if (!text) return !required || missing_meta(f, key, err);
    const char* digits = base == 16 ? "0123456789abcdefABCDEF" : "0123456789";
    errno = 0;
    uint64_t value = strtoull(text, NULL, base);
    if (text[0] == 0 || text[strspn(text, digits)] != 0 || errno != 0 || value > max)
        return tost_error(err, "%s: __metadata__ '%s' is '%s': expected a whole number up to %" PRIu64,
                          f->path, key, text, max);
    *out = value;
    return true;
}

static bool meta_loss(double* out, const StFile* f, bool required, TostError* err) {
    const char* text = st_meta(f, "best_val_loss");
    if (!text) return !required || missing_meta(f, "best_val_loss", err);
    char* end;
    *out = strtod(text, &end);
    return (end != text && *end == 0)
        || tost_error(err, "%s: __metadata__ 'best_val_loss' is '%s': expected a number: the file is damaged, take "
                      "another checkpoint", f->path, text);
}

static bool meta_window(OutlierWindow* w, const StFile* f, const char* key, TostError* err) {
    const char* text = st_meta(f, key);
    return !text || outlier_window_parse(w, text)
        || tost_error(err, "%s: __metadata__ '%s' is '%.40s…': expected up to %d numbers: the file is damaged, take "
                      "another checkpoint", f->path, key, text, OUTLIER_WINDOW);
}

// Absent in files of others: then zeros. No more can be skipped than there were updates.
static bool read_guard(OutlierDetector* g, const StFile* f, int64_t step, TostError* err) {
    uint64_t skipped = 0, in_a_row = 0;
    if (!meta_number(&skipped, f, "skipped", 10, INT64_MAX, false, err)
        || !meta_number(&in_a_row, f, "skipped_in_a_row", 10, INT64_MAX, false, err)
        || !meta_window(&g->loss, f, "last_losses", err) || !meta_window(&g->norm, f, "last_grad_norms", err))
        return false;
    if (skipped > (uint64_t)step || in_a_row > skipped)
        return tost_error(err, "%s: __metadata__ has %" PRIu64 " updates skipped, %" PRIu64 " in a row, of %" PRId64
                          ": the file is damaged, take another checkpoint", f->path, skipped, in_a_row, step);
    g->skipped = (int64_t)skipped;
    g->in_a_row = (int64_t)in_a_row;
    return true;
}

static void read_options(CheckpointInfo* info, const StFile* f) {
    const size_t n = sizeof option_prefix - 1;
    info->options = xcalloc((size_t)f->n_meta, sizeof *info->options);
    for (int i = 0; i < f->n_meta; i++) {
        const StMeta* m = &f->meta[i];
        if (strncmp(m->key, option_prefix, n) != 0) continue;
        info->options[info->n_options++] = (StMeta){xstrdup(m->key + n), xstrdup(m->value)};
    }
}

// Whether this program wrote the file; then everything has to be there. Fails on a version that is not known.
static bool meta_is_ours(bool* ours, const StFile* f, TostError* err) {
    uint64_t version = 0;
    *ours = st_meta(f, "format_version") != NULL;
    if (!meta_number(&version, f, "format_version", 10, INT_MAX, false, err)) return false;
    if (*ours && version != FORMAT_VERSION)
        return tost_error(err, "%s: format_version %" PRIu64 ", but this program reads %d: take a newer one",
                          f->path, version, FORMAT_VERSION);
    return true;
}

static bool read_metadata(CheckpointInfo* info, const StFile* f, TostError* err) {
    uint64_t step = 0, tokens = 0, hash = 0;
    bool ours;
    info->best_val_loss = INFINITY;
    if (!meta_is_ours(&ours, f, err) || !meta_number(&step, f, "step", 10, INT64_MAX, ours, err)
        || !meta_number(&tokens, f, "tokens", 10, INT64_MAX, ours, err)
        || !meta_number(&info->data_sample, f, "data_sample", 10, UINT64_MAX, ours, err)
        || !meta_number(&info->seed, f, "seed", 10, UINT64_MAX, ours, err)
        || !meta_loss(&info->best_val_loss, f, ours, err) || !read_guard(&info->outliers, f, (int64_t)step, err))
        return false;
    const char* tokenizer = st_meta(f, "tokenizer");
    if (!meta_number(&hash, f, "tokenizer_hash", 16, UINT32_MAX, ours && tokenizer, err)) return false;
    info->step = (int64_t)step;
    info->tokens = (int64_t)tokens;
    info->tokenizer_hash = (uint32_t)hash;
    info->tokenizer = tokenizer ? xstrdup(tokenizer) : NULL;
    info->unvalidated_row = st_meta(f, "open_row") ? xstrdup(st_meta(f, "open_row")) : NULL;
    read_options(info, f);
    return true;
}

void checkpoint_info_free(CheckpointInfo* info) {
    free(info->tokenizer);
    free(info->unvalidated_row);
    st_free_meta(info->options, info->n_options);
    *info = (CheckpointInfo){0};
}

// ---------------------------------------------------------------------------------------------
// Names and shapes

// "(2304, 256)"; cut short where it does not fit
static void format_shape(char* out, size_t cap, const int64_t* shape, int ndim) {
    size_t n = (size_t)snprintf(out, cap, "(");
    for (int i = 0; i < ndim && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (n < cap) snprintf(out + n, cap - n, ")");
}

static StTensor st_tensor(const TostTensor* t, const char* prefix) {
    StTensor x = {.dtype = ST_F32, .ndim = t->ndim};
    snprintf(x.name, sizeof x.name, "%s%s", prefix, t->name);
    for (int i = 0; i < t->ndim; i++) x.shape[i] = t->shape[i];
    return x;
}

static bool check_tensor(const StFile* f, const StTensor* want, TostError* err) {
    const StTensor* have = st_find(f, want->name);
    if (!have) return tost_error(err, "%s: tensor '%s' is missing", f->path, want->name);
    if (have->dtype != ST_F64 && have->dtype != ST_F32 && have->dtype != ST_F16 && have->dtype != ST_BF16)
        return tost_error(err, "%s: tensor '%s' is of %s: expected F32 (F64, F16 or BF16 will do)", f->path,
                          want->name, st_dtype_name(have->dtype));
    const size_t bytes = (size_t)want->ndim * sizeof *want->shape;
    if (have->ndim == want->ndim && memcmp(have->shape, want->shape, bytes) == 0) return true;
    char is[200], expected[200];
    format_shape(is, sizeof is, have->shape, have->ndim);
    format_shape(expected, sizeof expected, want->shape, want->ndim);
    return tost_error(err, "%s: tensor '%s' has the shape %s, expected %s", f->path, want->name, is,
                      expected);
}

static bool is_known(const TostTensors* tensors, const char* name, bool moments) {
    if (!moments) return tost_tensor_find(tensors, name) || strcmp(name, lm_head_name) == 0;
    return (name[0] == 'm' || name[0] == 'v') && name[1] == '.' && tost_tensor_find(tensors, name + 2);
}

// Exactly the tensors of the table: each there, of its shape and of a float dtype, and no other.
static bool check_tensors(const StFile* f, const TostTensors* tensors, bool moments, TostError* err) {
    for (int i = 0; i < tensors->count; i++) {
        const StTensor first = st_tensor(&tensors->tensor[i], moments ? "m." : "");
        if (!check_tensor(f, &first, err)) return false;
        const StTensor second = st_tensor(&tensors->tensor[i], "v.");
        if (moments && !check_tensor(f, &second, err)) return false;
    }
    // All of the table are there: as many names, each once, leave no room for another.
    const bool has_head = !moments && st_find(f, lm_head_name);
    const bool exact = f->n_tensors == (moments ? 2 : 1) * tensors->count + has_head;
    for (int i = 0; !exact && i < f->n_tensors; i++)
        if (!is_known(tensors, f->tensors[i].name, moments))
            return tost_error(err, "%s: tensor '%s' is none of this model", f->path, f->tensors[i].name);
    StTensor head = st_tensor(tost_tensor_find(tensors, wte_name), "");
    snprintf(head.name, sizeof head.name, "%s", lm_head_name);
    return !has_head || check_tensor(f, &head, err);
}

static bool find_sizes(int sizes[2], const StFile* f, const char* name, TostError* err) {
    const StTensor* t = st_find(f, name);
    if (!t) return tost_error(err, "%s: tensor '%s' is missing: not a ToST model", f->path, name);
    if (t->ndim != 2 || t->shape[0] > INT_MAX || t->shape[1] > INT_MAX) {
        char is[200];
        format_shape(is, sizeof is, t->shape, t->ndim);
        return tost_error(err, "%s: tensor '%s' has the shape %s, expected two sizes", f->path, name, is);
    }
    sizes[0] = (int)t->shape[0];
    sizes[1] = (int)t->shape[1];
    return true;
}

// One more than the highest N of the names "transformer.h.N.…".
static int count_layers(const StFile* f) {
    static const char prefix[] = "transformer.h.";
    int layers = 0;
    for (int i = 0; i < f->n_tensors; i++) {
        const char* name = f->tensors[i].name;
        if (strncmp(name, prefix, sizeof prefix - 1) != 0) continue;
        const char* digits = name + sizeof prefix - 1;
        const size_t n = strspn(digits, "0123456789");
        if (n == 0 || n > 6 || digits[n] != '.') continue;   // no name of ours: found to be foreign later
        const int layer = atoi(digits);
        if (layer >= layers) layers = layer + 1;
    }
    return layers;
}

// Learned where the metadata is silent: no name or shape tells.
static bool read_membership(int* membership, const StFile* f, TostError* err) {
    const char* said = st_meta(f, "membership");
    const bool uniform = said && strcmp(said, "uniform") == 0;
    *membership = uniform ? TOST_UNIFORM : TOST_LEARNED;
    return !said || uniform || strcmp(said, "learned") == 0
        || tost_error(err, "%s: __metadata__ 'membership' is '%.200s': this program knows learned and uniform",
                      f->path, said);
}

// The config by names and shapes, which the metadata, where it speaks, must confirm.
static bool read_config(TostConfig* c, const StFile* f, TostError* err) {
    int wte[2], wpe[2], temp[2];
    if (!find_sizes(wte, f, wte_name, err) || !find_sizes(wpe, f, "transformer.wpe.weight", err)
        || !find_sizes(temp, f, "transformer.h.0.attn.temp", err))
        return false;
    *c = (TostConfig){.n_layer = count_layers(f), .n_head = temp[0], .n_embd = wte[1], .block_size = wpe[0],
                      .vocab_size = wte[0], .bias = st_find(f, "transformer.ln_f.bias") != NULL};
    const struct { const char* key; int value; } sizes[] = {
        {"n_layer", c->n_layer},       {"n_head", c->n_head},         {"n_embd", c->n_embd},
        {"block_size", c->block_size}, {"vocab_size", c->vocab_size}, {"bias", c->bias},
    };
    bool ours;
    if (!meta_is_ours(&ours, f, err)) return false;
    for (size_t i = 0; i < countof(sizes); i++) {
        uint64_t said = (uint64_t)sizes[i].value;
        if (!meta_number(&said, f, sizes[i].key, 10, INT_MAX, ours, err)) return false;
        if (said != (uint64_t)sizes[i].value)
            return tost_error(err, "%s: __metadata__ has %s %" PRIu64 ", but %d by names and shapes: the file is "
                              "damaged", f->path, sizes[i].key, said, sizes[i].value);
    }
    return read_membership(&c->membership, f, err)
        && (tost_config_check(c, err) || tost_error(err, "%s: %s", f->path, err->text));
}

// ---------------------------------------------------------------------------------------------
// Reading

bool checkpoint_read_info(CheckpointInfo* info, const char* model_file, TostError* err) {
    StFile f;
    *info = (CheckpointInfo){0};
    if (!st_open(&f, model_file, err)) return false;
    bool ok = read_config(&info->config, &f, err);
    if (ok) {
        TostTensors tensors = tost_tensors(&info->config);
        ok = check_tensors(&f, &tensors, false, err) && read_metadata(info, &f, err);
        tost_tensors_free(&tensors);
    }
    st_close(&f);
    return ok;
}

static bool check_crc(const StFile* f, TostError* err) {
    uint64_t said = 0;
    uint32_t is;
    bool ours;
    if (!meta_is_ours(&ours, f, err)) return false;
    if (!meta_number(&said, f, "crc32", 16, UINT32_MAX, ours, err)) return false;
    if (!st_meta(f, "crc32")) return true;
    if (!st_crc32(f, &is, err)) return false;
    return is == said
        || tost_error(err, "%s: the tensors' CRC-32 is %08" PRIx32 ", but was %08" PRIx32 " when they were "
                      "written: the file is damaged; take another checkpoint", f->path, is, (uint32_t)said);
}

static size_t largest_tensor(const TostTensors* tensors) {
    size_t most = 0;
    for (int i = 0; i < tensors->count; i++)
        if (tensors->tensor[i].size > most) most = tensors->tensor[i].size;
    return most;
}

static bool check_lm_head(const StFile* f, TostError* err) {
    const StTensor* head = st_find(f, lm_head_name);
    const StTensor* wte = st_find(f, wte_name);
    if (!head) return true;
    float* a = xmalloc(head->count * sizeof *a);
    float* b = xmalloc(wte->count * sizeof *b);
    bool ok = st_read_f32(f, head, a, err) && st_read_f32(f, wte, b, err);
    for (uint64_t i = 0; ok && i < head->count; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            ok = tost_error(err, "%s: tensor '%s' differs from %s at element %" PRIu64 " (%g, %g): the "
                            "output head is tied to it", f->path, lm_head_name, wte_name, i, a[i], b[i]);
    free(a);
    free(b);
    return ok;
}

// Each tensor of one state, read as float32 and put.
static bool put_state(const TostEngine* engine, TostModel* model, TostState state, const TostTensors* tensors,
                      const StFile* f, const char* prefix, TostError* err) {
    float* values = xmalloc(largest_tensor(tensors) * sizeof *values);
    bool ok = true;
    for (int i = 0; ok && i < tensors->count; i++) {
        const TostTensor* t = &tensors->tensor[i];
        const StTensor named = st_tensor(t, prefix);
        ok = st_read_f32(f, st_find(f, named.name), values, err);
        if (ok) engine->put(model, state, t, values);
    }
    free(values);
    return ok;
}

bool checkpoint_load_params(const TostEngine* engine, TostModel* model, const TostTensors* tensors,
                            const char* model_file, TostError* err) {
    StFile f;
    if (!st_open(&f, model_file, err)) return false;
    bool ok = check_tensors(&f, tensors, false, err) && check_crc(&f, err) && check_lm_head(&f, err)
           && put_state(engine, model, TOST_PARAM, tensors, &f, "", err);
    st_close(&f);
    return ok;
}

// Both files of a checkpoint say the same in all but their CRC: what differs is not of one save.
static bool same_metadata(const StFile* a, const StFile* b, TostError* err) {
    for (int i = 0; i < a->n_meta; i++) {
        const char* key = a->meta[i].key;
        const char* other = st_meta(b, key);
        if (strcmp(key, "crc32") == 0 || (other && strcmp(other, a->meta[i].value) == 0)) continue;
        return tost_error(err, "%s: %s is '%s', but '%s' in %s: they are not of one checkpoint", a->path, key,
                          a->meta[i].value, other ? other : "", b->path);
    }
    return true;
}

static bool check_optimizer(const StFile* f, const char* model_file, const TostTensors* tensors,
                            TostError* err) {
    StFile m;
    uint64_t step = 0;
    if (!st_open(&m, model_file, err)) return false;
    bool ok = meta_number(&step, f, "step", 10, INT64_MAX, true, err) && same_metadata(f, &m, err)
           && same_metadata(&m, f, err) && check_tensors(f, tensors, true, err) && check_crc(f, err);
    st_close(&m);
    return ok;
}

// Opens the optimizer.safetensors beside model_file, checked to the CRC.
static bool open_optimizer(StFile* f, const char* model_file, const TostTensors* tensors, TostError* err) {
    char *dir = path_dir(model_file), *path = path_join(dir, optimizer_name);
    bool ok = st_open(f, path, err);
    if (ok && !check_optimizer(f, model_file, tensors, err)) {
        st_close(f);
        ok = false;
    }
    free(path);
    free(dir);
    return ok;
}

bool checkpoint_load_moments(const TostEngine* engine, TostModel* model, const TostTensors* tensors,
                             const char* model_file, TostError* err) {
    StFile f;
    if (!open_optimizer(&f, model_file, tensors, err)) return false;
    const bool ok = put_state(engine, model, TOST_M, tensors, &f, "m.", err)
                    && put_state(engine, model, TOST_V, tensors, &f, "v.", err);
    st_close(&f);
    return ok;
}

// Whether all of a checkpoint can be read, to the CRC; without `moments`, all of its model.
static bool is_whole(const char* model_file, bool moments) {
    CheckpointInfo info;
    StFile f;
    TostError ignored;
    if (!checkpoint_read_info(&info, model_file, &ignored)) return false;
    TostTensors tensors = tost_tensors(&info.config);
    bool whole = st_open(&f, model_file, &ignored);
    if (whole) {
        whole = check_crc(&f, &ignored) && check_lm_head(&f, &ignored);
        st_close(&f);
    }
    if (whole && moments && (whole = open_optimizer(&f, model_file, &tensors, &ignored))) st_close(&f);
    tost_tensors_free(&tensors);
    checkpoint_info_free(&info);
    return whole;
}

// The folder of the newest checkpoint of the same run that is older and whole; NULL: there is none. free()
static char* whole_before(const char* model_file, bool moments) {
    char *dir = path_dir(model_file), *run = path_dir(dir), *found = NULL;
    Entry broken;
    Entries list = {0};
    TostError ignored;
    if (entry_of_path(&broken, dir)) list_entries(&list, run, &ignored);
    for (int i = list.count - 1; i >= 0 && !found; i--) {
        const Entry* e = &list.entry[i];
        char* file = path_join(e->path, model_name);
        if (e->step < broken.step && is_complete(e) && is_whole(file, moments)) found = xstrdup(e->path);
        free(file);
    }
    free_entries(&list);
    free(run);
    free(dir);
    return found;
}

bool checkpoint_name_whole(TostError* err, const char* model_file, const char* option) {
    char* whole = whole_before(model_file, !option);
    if (whole && option) tost_error(err, "%s; an older one is whole: %s %s", err->text, option, whole);
    else if (whole)
        tost_error(err, "%s; %s is whole: move the newer ones away, and --resume goes on from it", err->text, whole);
    free(whole);
    return false;
}

// ---------------------------------------------------------------------------------------------
// Writing

// What goes into the files of a checkpoint.
typedef struct {
    const TostEngine*  engine;
    const TostModel*   model;
    const TostTensors* tensors;
    const MetaList*    meta;
} Source;

typedef struct { TostState state; const char* prefix; } Part;

static bool append_parts(StWriter* w, const Source* s, const Part* parts, int n_parts, TostError* err) {
    float* values = xmalloc(largest_tensor(s->tensors) * sizeof *values);
    bool ok = true;
    for (int p = 0; p < n_parts; p++) {
        for (int i = 0; ok && i < s->tensors->count; i++) {
            const TostTensor* t = &s->tensors->tensor[i];
            s->engine->get(values, s->model, parts[p].state, t);
            ok = st_append(w, values, t->size * sizeof *values, err);
        }
    }
    free(values);
    return ok;
}

// One file in `dir`: the tensors of each part, one part after the other, under the part's prefix.
static bool write_file(const char* dir, const char* name, const Source* s, const Part* parts, int n_parts,
                       TostError* err) {
    const int count = s->tensors->count;
    char* path = path_join(dir, name);
    StTensor* declared = xcalloc((size_t)(n_parts * count), sizeof *declared);
    for (int p = 0; p < n_parts; p++)
        for (int i = 0; i < count; i++)
            declared[p * count + i] = st_tensor(&s->tensors->tensor[i], parts[p].prefix);
    StWriter w;
    bool ok = st_begin(&w, path, declared, n_parts * count, s->meta->entry, s->meta->count, err)
           && append_parts(&w, s, parts, n_parts, err);
    if (!ok) st_abandon(&w);
    ok = ok && st_finish(&w, err);
    free(declared);
    free(path);
    return ok;
}

static bool write_folder(const char* dir, const Source* s, TostError* err) {
    static const Part params[] = {{TOST_PARAM, ""}}, moments[] = {{TOST_M, "m."}, {TOST_V, "v."}};
    if (!remove_tree(dir, err)) return false;
    if (mkdir(dir, 0777) != 0)
        return tost_error(err, "%s: the folder cannot be made: %s", dir, strerror(errno));
    return write_file(dir, model_name, s, params, countof(params), err)
        && write_file(dir, optimizer_name, s, moments, countof(moments), err) && sync_dir(dir, err);
}

// Gives the finished folder its name. Where that name is taken (the same step, saved before), the two change
// places at once if the file system can do that, else the old one is moved out of the way first.
static bool publish(const char* finished, const char* name, TostError* err) {
    if (rename(finished, name) == 0) return true;
#ifdef RENAME_EXCHANGE
    if (renameat2(AT_FDCWD, finished, AT_FDCWD, name, RENAME_EXCHANGE) == 0) return true;
#endif
    char* aside = xasprintf("%s.old.tmp", name);
    bool ok = remove_tree(aside, err);
    if (ok) rename(name, aside);   // if this fails, so does the next, and says why
    if (ok && rename(finished, name) != 0) {
        ok = tost_error(err, "%s: cannot be renamed to %s: %s", finished, name, strerror(errno));
        rename(aside, name);
    }
    free(aside);
    return ok;
}

// Removes what a newer checkpoint of `step` makes superfluous.
static bool prune(const char* run, int64_t step, int keep, TostError* err) {
    Entries list;
    if (!list_entries(&list, run, err)) return false;
    bool ok = true;
    int kept = 1;   // the new one
    for (int i = list.count - 1; i >= 0; i--) {
        const Entry* e = &list.entry[i];
        const bool old = e->step < step && is_complete(e);
        if (old) kept++;
        if (e->stale || (old && keep > 0 && kept > keep)) ok = remove_entry(e, err) && ok;
    }
    free_entries(&list);
    return ok;
}

bool checkpoint_save(const char* run, const CheckpointInfo* info, const TostEngine* engine,
                     const TostModel* model, const TostTensors* tensors, int keep, TostError* err) {
    MetaList meta = metadata(info);
    const Source source = {engine, model, tensors, &meta};
    char* name = xasprintf("%s/step_%08" PRId64, run, info->step);
    char* unfinished = xasprintf("%s.tmp", name);
    bool ok = make_dirs(run, err) && write_folder(unfinished, &source, err) && publish(unfinished, name, err);
    if (!ok) {
        TostError ignored;
        remove_tree(unfinished, &ignored);
        tost_error(err, "%s; step %" PRId64 " is not saved", err->text, info->step);
    } else if (!sync_dir(run, err)) {
        ok = tost_error(err, "%s; %s is saved, but loss of power may undo it", err->text, name);
    } else if (prune(run, info->step, keep, err)) {
        err->text[0] = 0;
    } else {
        tost_error(err, "%s is saved, but what it replaces could not be removed: %s", name, err->text);
    }
    st_free_meta(meta.entry, meta.count);
    free(unfinished);
    free(name);
    return ok;
}
