// checkpoint.c: runs, checkpoints and model files. A checkpoint is written to a .tmp folder that is renamed when it is
// complete, and is renamed to .tmp again before it is removed.
#include "run/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/memory.h"
#include "base/platform.h"
#include "base/version.h"
#include "init.h"

static const char model_name[] = "model.safetensors", optimizer_name[] = "optimizer.safetensors";
static const char average_name[] = "ema.safetensors";
static const char wte_name[] = "transformer.wte.weight";
static const char lm_head_name[] = "lm_head.weight";   // tied to wte; some programs store it as well
static const char option_prefix[] = "option.";
static const char best_name[] = "best", best_unfinished[] = "best.tmp";
enum { FORMAT_VERSION = 1 };

// ---------------------------------------------------------------------------------------------
// Contents of a run folder

typedef enum {
    STALE,        // "….tmp": left behind by a process that ended while writing, replacing or removing it
    NORMAL,
    REPLACEMENT   // "….new": replaces all others
} EntryKind;

typedef struct {
    int64_t   step;   // of the name; after read_steps, of the metadata
    EntryKind kind;
    char*     name;
} Entry;

typedef struct { int count; Entry* entry; } Entries;   // ordered by kind, then by step

static char* entry_name(int64_t step, const char* suffix) { return xasprintf("step_%08" PRId64 "%s", step, suffix); }

// Parses "step_N", optionally followed by ".new" or by something that ends in ".tmp".
static bool parse_entry(Entry* e, const char* name) {
    if (strncmp(name, "step_", 5) != 0) return false;
    size_t digits = strspn(name + 5, "0123456789");
    if (digits == 0 || digits > 18) return false;
    const char* rest = name + 5 + digits;
    const size_t n = strlen(rest);
    e->step = strtoll(name + 5, NULL, 10);
    e->kind = n >= 4 && strcmp(rest + n - 4, ".tmp") == 0 ? STALE : strcmp(rest, ".new") == 0 ? REPLACEMENT : NORMAL;
    return n == 0 || e->kind != NORMAL;
}

static int compare_entries(const void* a, const void* b) {
    const Entry *x = a, *y = b;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void sort_entries(Entries* list) {
    if (list->count > 0) qsort(list->entry, (size_t)list->count, sizeof *list->entry, compare_entries);
}

static void free_entries(Entries* list) {
    for (int i = 0; i < list->count; i++) free(list->entry[i].name);
    free(list->entry);
    *list = (Entries){0};
}

// All checkpoints of a run, complete or not.
static bool list_entries(Entries* out, const Folder* run, TostError* err) {
    PathList names;
    *out = (Entries){0};
    if (!folder_list(&names, run, err)) return false;
    out->entry = xcalloc((size_t)names.count, sizeof *out->entry);
    for (int i = 0; i < names.count; i++) {
        Entry e;
        if (!parse_entry(&e, names.paths[i])) continue;
        e.name = xstrdup(names.paths[i]);
        out->entry[out->count++] = e;
    }
    free_paths(&names);
    sort_entries(out);
    return true;
}

static bool has_file(const Folder* in, const char* dir, const char* name) {
    char* path = path_join(dir, name);
    struct stat st;
    const bool exists = fstatat(folder_fd(in), path, &st, 0) == 0 && S_ISREG(st.st_mode);
    free(path);
    return exists;
}

static bool is_complete(const Folder* run, const Entry* e) {
    return e->kind != STALE && has_file(run, e->name, model_name) && has_file(run, e->name, optimizer_name);
}

// ---------------------------------------------------------------------------------------------
// Finding

// Parses the last component of a path as the name of a checkpoint, complete or not.
static bool entry_of_path(Entry* e, const char* path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t start = n;
    while (start > 0 && path[start - 1] != '/') start--;
    char* name = xasprintf("%.*s", (int)(n - start), path + start);
    const bool ok = parse_entry(e, name);
    free(name);
    return ok;
}

bool checkpoint_is_name(const char* path) {
    Entry e;
    return entry_of_path(&e, path);
}

bool checkpoint_is_folder(const char* dir) { return has_file(NULL, dir, model_name); }

bool checkpoint_is_run(bool* is_run, const Folder* run, TostError* err) {
    Entries list;
    *is_run = false;
    if (!run->path) return true;
    if (!list_entries(&list, run, err)) return false;
    *is_run = list.count > 0 || has_file(run, best_name, model_name) || has_file(run, ".", "log.csv");
    free_entries(&list);
    return true;
}

bool checkpoint_is_complete(const Folder* run) {
    Entries list;
    TostError ignored;
    bool complete = false;
    if (!list_entries(&list, run, &ignored)) return false;
    for (int i = 0; i < list.count && !complete; i++) complete = is_complete(run, &list.entry[i]);
    free_entries(&list);
    return complete;
}

bool checkpoint_exists(const Folder* run, int64_t step) {
    const Entry e = {.step = step, .kind = NORMAL, .name = entry_name(step, "")};
    const bool exists = is_complete(run, &e);
    free(e.name);
    return exists;
}

static uint64_t stored_step(const StFile* f, uint64_t absent);

// Sets the steps to those in the metadata and sorts again: a checkpoint's folder may have been renamed or copied. A
// checkpoint that cannot be read keeps the step of its name. *note warns of the first difference.
static void read_steps(Entries* list, const Folder* run, TostError* note) {
    for (int i = 0; i < list->count; i++) {
        Entry* e = &list->entry[i];
        StFile f;
        TostError ignored;
        char* file = path_join(e->name, model_name);
        if (e->kind != STALE && st_open_in(&f, run, file, &ignored)) {
            const int64_t step = (int64_t)stored_step(&f, (uint64_t)e->step);
            if (step != e->step && !note->text[0])
                tost_error(note, "%s/%s contains step %" PRId64 " and is used as such: rename it to step_%08" PRId64,
                           run->path, e->name, step, step);
            e->step = step;
            st_close(&f);
        }
        free(file);
    }
    sort_entries(list);
}

// Opens the folder of e if it is a complete checkpoint: *found. *changed: set if it was renamed or removed since it was
// listed.
static bool open_complete(bool* found, bool* changed, Folder* dir, const Folder* run, const Entry* e, TostError* err) {
    struct stat opened, named;
    if (e->kind == STALE) {
        *changed |= fstatat(run->fd, e->name, &named, 0) != 0;
        return true;
    }
    if (!folder_open(dir, run, e->name, err)) {
        *changed |= errno == ENOENT;
        return errno == ENOENT || errno == ENOTDIR;
    }
    *found = has_file(dir, ".", model_name) && has_file(dir, ".", optimizer_name);
    if (*found) return true;
    *changed |= fstat(dir->fd, &opened) != 0 || fstatat(run->fd, e->name, &named, 0) != 0
                || opened.st_ino != named.st_ino || opened.st_dev != named.st_dev;
    folder_close(dir);
    return true;
}

enum { MAX_TRIES = 100 };   // to open a checkpoint while another process saves and removes checkpoints

// Opens the folder of the newest complete checkpoint, by the steps in the metadata or, without `note`, by name: *found.
static bool open_newest(bool* found, Folder* dir, const Folder* run, TostError* note, TostError* err) {
    bool ok = true, changed = true;
    *found = false;
    for (int tries = 0; ok && changed && !*found && tries < MAX_TRIES; tries++) {
        Entries list;
        changed = false;
        if (!list_entries(&list, run, err)) return false;
        if (note) read_steps(&list, run, note);
        for (int i = list.count - 1; ok && i >= 0 && !*found; i--)
            ok = open_complete(found, &changed, dir, run, &list.entry[i], err);
        free_entries(&list);
    }
    return ok;
}

// When the newest complete checkpoint of a run was written. False if there is none.
static bool newest_time(struct timespec* time, const char* path) {
    Folder run, dir;
    TostError ignored;
    bool known = false, found = folder_open(&run, NULL, path, &ignored);
    for (int tries = 0; found && !known && tries < MAX_TRIES; tries++) {
        struct stat st;
        if (!open_newest(&found, &dir, &run, NULL, &ignored) || !found) break;
        known = fstatat(dir.fd, model_name, &st, 0) == 0;
        if (known) *time = st.st_mtim;
        folder_close(&dir);
    }
    folder_close(&run);
    return known;
}

static bool is_later(const struct timespec* a, const struct timespec* b) {
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

bool checkpoint_newest_run(char** run, const char* root, const char* option, TostError* err) {
    PathList names = {0};
    Folder folder;
    TostError ignored;
    struct timespec newest, time;
    *run = newest_time(&newest, root) ? xstrdup(root) : NULL;   // root may itself be a run
    if (folder_open(&folder, NULL, root, &ignored)) folder_list(&names, &folder, &ignored);
    for (int i = 0; i < names.count; i++) {
        char* path = path_join(root, names.paths[i]);
        const bool later = newest_time(&time, path)
                           && (!*run || is_later(&time, &newest)
                               || (!is_later(&newest, &time) && strcmp(path, *run) > 0));   // equal: by name
        free(later ? *run : path);
        if (later) {
            *run = path;
            newest = time;
        }
    }
    free_paths(&names);
    folder_close(&folder);
    return *run || tost_error(err, "%s: no run with a complete checkpoint: train one first (train without options "
                              "makes a small model) or give %s", root, option);
}

char* checkpoint_next_run(const char* root, const char* preset) {
    enum { MAX_DIGITS = 15 };   // this program gives no run a longer number
    const size_t n = strlen(preset);
    PathList names = {0};
    Folder folder;
    TostError ignored;
    int64_t number = 0;
    if (folder_open(&folder, NULL, root, &ignored)) folder_list(&names, &folder, &ignored);
    for (int i = 0; i < names.count; i++) {
        const char* name = names.paths[i];
        if (strncmp(name, preset, n) != 0 || name[n] != '-') continue;
        const size_t digits = strspn(name + n + 1, "0123456789");
        if (digits == 0 || digits > MAX_DIGITS || name[n + 1 + digits] != 0) continue;
        const int64_t other = strtoll(name + n + 1, NULL, 10);
        if (other > number) number = other;
    }
    free_paths(&names);
    folder_close(&folder);
    for (;;) {
        char* path = xasprintf("%s/%s-%03" PRId64, root, preset, ++number);
        if (!path_exists(path)) return path;
        free(path);
    }
}

// ---------------------------------------------------------------------------------------------
// Metadata

typedef struct { int count; StMeta* entry; } MetaList;

// Takes ownership of value.
static void add_meta(MetaList* list, const char* key, char* value) {
    list->entry = xrealloc(list->entry, (size_t)(list->count + 1) * sizeof *list->entry);
    list->entry[list->count++] = (StMeta){xstrdup(key), value};
}

static void add_int(MetaList* list, const char* key, int64_t value) {
    add_meta(list, key, xasprintf("%" PRId64, value));
}

// Fields of the config that are stored in the metadata.
typedef struct { const char* key; size_t offset; } SizeKey;
static const SizeKey size_keys[] = {
    {"n_layer", offsetof(TostConfig, n_layer)},       {"n_head", offsetof(TostConfig, n_head)},
    {"n_embd", offsetof(TostConfig, n_embd)},         {"block_size", offsetof(TostConfig, block_size)},
    {"vocab_size", offsetof(TostConfig, vocab_size)}, {"bias", offsetof(TostConfig, bias)},
};
static int config_size(const TostConfig* c, const SizeKey* key) { return *(const int*)((const char*)c + key->offset); }

static MetaList metadata(const CheckpointInfo* info) {
    MetaList m = {0};
    add_meta(&m, "format", xstrdup("pt"));   // expected by Python loaders
    add_meta(&m, "program", xasprintf("train_gpt_tost %s", tost_version()));
    add_int(&m, "format_version", FORMAT_VERSION);
    for (size_t i = 0; i < countof(size_keys); i++)
        add_int(&m, size_keys[i].key, config_size(&info->config, &size_keys[i]));
    if (info->config.membership == TOST_UNIFORM) add_meta(&m, "membership", xstrdup("uniform"));
    add_int(&m, "step", info->step);
    add_int(&m, "tokens", info->tokens);
    add_meta(&m, "data_sample", xasprintf("%" PRIu64, info->data_sample));
    add_meta(&m, "seed", xasprintf("%" PRIu64, info->seed));
    add_meta(&m, "val_loss", xasprintf("%.17g", info->val_loss));   // 17 digits: exact
    add_int(&m, "val_step", info->val_step);
    add_meta(&m, "best_val_loss", xasprintf("%.17g", info->best_val_loss));
    add_int(&m, "best_val_step", info->best_val_step);
    add_int(&m, "skipped", info->outliers.skipped);
    add_int(&m, "skipped_in_a_row", info->outliers.in_a_row);
    add_meta(&m, "last_losses", outlier_window_text(&info->outliers.loss));
    add_meta(&m, "last_grad_norms", outlier_window_text(&info->outliers.norm));
    if (info->unvalidated_row) add_meta(&m, "open_row", xstrdup(info->unvalidated_row));
    if (info->tokenizer) {
        add_meta(&m, "tokenizer", xstrdup(info->tokenizer));
        add_meta(&m, "tokenizer_hash", xasprintf("%08" PRIx32, info->tokenizer_hash));
    }
    for (int i = 0; i < info->n_options; i++) {
        char* key = xasprintf("%s%s", option_prefix, info->options[i].key);
        add_meta(&m, key, xstrdup(info->options[i].value));
        free(key);
    }
    return m;
}

static bool missing_meta(const StFile* f, const char* key, TostError* err) {
    return tost_error(err, "%s: __metadata__ has no '%s': the file is damaged", f->path, key);
}

// Reads an integer of the given base, at most max. If the key is absent: an error if required, else *out is unchanged.
static bool meta_number(uint64_t* out, const StFile* f, const char* key, int base, uint64_t max,
                        bool required, TostError* err) {
    const char* text = st_meta(f, key);
    if (!text) return !required || missing_meta(f, key, err);
    const char* digits = base == 16 ? "0123456789abcdefABCDEF" : "0123456789";
    errno = 0;
    uint64_t value = strtoull(text, NULL, base);
    if (text[0] == 0 || text[strspn(text, digits)] != 0 || errno != 0 || value > max)
        return tost_error(err, base == 16 ? "%s: __metadata__ '%s' is '%s': expected hexadecimal digits, up to %" PRIx64
                                          : "%s: __metadata__ '%s' is '%s': expected an integer up to %" PRIu64,
                          f->path, key, text, max);
    *out = value;
    return true;
}

// The step in the metadata; `absent` if there is none or it is not a number.
static uint64_t stored_step(const StFile* f, uint64_t absent) {
    TostError ignored;
    uint64_t step = absent;
    meta_number(&step, f, "step", 10, INT64_MAX, false, &ignored);
    return step;
}

static bool meta_loss(double* out, const StFile* f, const char* key, bool required, TostError* err) {
    const char* text = st_meta(f, key);
    if (!text) return !required || missing_meta(f, key, err);
    char* end;
    *out = strtod(text, &end);
    return (end != text && *end == 0)
        || tost_error(err, "%s: __metadata__ '%s' is '%s': expected a number: the file is damaged; use another "
                      "checkpoint", f->path, key, text);
}

static bool meta_window(OutlierWindow* w, const StFile* f, const char* key, TostError* err) {
    const char* text = st_meta(f, key);
    return !text || outlier_window_parse(w, text)
        || tost_error(err, "%s: __metadata__ '%s' is '%.40s…': expected up to %d numbers: the file is damaged; use "
                      "another checkpoint", f->path, key, text, OUTLIER_WINDOW);
}

// Files from other programs have none of these keys. step: the steps done, which include the skipped ones.
static bool read_outliers(OutlierDetector* d, const StFile* f, int64_t step, TostError* err) {
    uint64_t skipped = 0, in_a_row = 0;
    if (!meta_number(&skipped, f, "skipped", 10, INT64_MAX, false, err)
        || !meta_number(&in_a_row, f, "skipped_in_a_row", 10, INT64_MAX, false, err)
        || !meta_window(&d->loss, f, "last_losses", err) || !meta_window(&d->norm, f, "last_grad_norms", err))
        return false;
    if (skipped > (uint64_t)step || in_a_row > skipped)
        return tost_error(err, "%s: __metadata__ has %" PRIu64 " steps skipped, %" PRIu64 " in a row, of %" PRId64
                          ": the file is damaged; use another checkpoint", f->path, skipped, in_a_row, step);
    d->skipped = (int64_t)skipped;
    d->in_a_row = (int64_t)in_a_row;
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

// Sets *ours to true if this program wrote the file; then no required key may be absent. Fails on an unknown version.
static bool meta_is_ours(bool* ours, const StFile* f, TostError* err) {
    uint64_t version = 0;
    *ours = st_meta(f, "format_version") != NULL;
    if (!meta_number(&version, f, "format_version", 10, INT_MAX, false, err)) return false;
    if (*ours && version != FORMAT_VERSION)
        return tost_error(err, "%s: format_version %" PRIu64 ", but this program reads %d: use a newer program",
                          f->path, version, FORMAT_VERSION);
    return true;
}

static bool read_metadata(CheckpointInfo* info, const StFile* f, TostError* err) {
    uint64_t step = 0, tokens = 0, hash = 0, val_step = 0, best_val_step = 0;
    bool ours;
    info->val_loss = info->best_val_loss = INFINITY;
    if (!meta_is_ours(&ours, f, err) || !meta_number(&step, f, "step", 10, INT64_MAX, ours, err)
        || !meta_number(&tokens, f, "tokens", 10, INT64_MAX, ours, err)
        || !meta_number(&info->data_sample, f, "data_sample", 10, UINT64_MAX, ours, err)
        || !meta_number(&info->seed, f, "seed", 10, UINT64_MAX, ours, err)
        || !meta_loss(&info->val_loss, f, "val_loss", false, err)
        || !meta_number(&val_step, f, "val_step", 10, step, false, err)
        || !meta_loss(&info->best_val_loss, f, "best_val_loss", ours, err)
        || !meta_number(&best_val_step, f, "best_val_step", 10, step, false, err)
        || !read_outliers(&info->outliers, f, (int64_t)step, err))
        return false;
    const char* tokenizer = st_meta(f, "tokenizer");
    if (!meta_number(&hash, f, "tokenizer_hash", 16, UINT32_MAX, ours && tokenizer, err)) return false;
    info->step = (int64_t)step;
    info->tokens = (int64_t)tokens;
    info->val_step = (int64_t)val_step;
    info->best_val_step = (int64_t)best_val_step;
    info->tokenizer_hash = (uint32_t)hash;
    info->tokenizer = tokenizer ? xstrdup(tokenizer) : NULL;
    info->program = st_meta(f, "program") ? xstrdup(st_meta(f, "program")) : NULL;
    info->unvalidated_row = st_meta(f, "open_row") ? xstrdup(st_meta(f, "open_row")) : NULL;
    read_options(info, f);
    return true;
}

void checkpoint_info_free(CheckpointInfo* info) {
    free(info->tokenizer);
    free(info->program);
    free(info->unvalidated_row);
    st_free_meta(info->options, info->n_options);
    *info = (CheckpointInfo){0};
}

// ---------------------------------------------------------------------------------------------
// Names and shapes

// "(2304, 256)", truncated to fit
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

// Sets the element of `known`, which is in the order of f->tensors, for the tensor.
static bool check_tensor(bool* known, const StFile* f, const StTensor* want, TostError* err) {
    const StTensor* have = st_find(f, want->name);
    if (!have) return tost_error(err, "%s: tensor '%s' is missing", f->path, want->name);
    if (have->dtype != ST_F64 && have->dtype != ST_F32 && have->dtype != ST_F16 && have->dtype != ST_BF16)
        return tost_error(err, "%s: tensor '%s' is %s, expected F32, F64, F16 or BF16", f->path, want->name,
                          st_dtype_name(have->dtype));
    known[have - f->tensors] = true;
    const size_t bytes = (size_t)want->ndim * sizeof *want->shape;
    if (have->ndim == want->ndim && memcmp(have->shape, want->shape, bytes) == 0) return true;
    char actual[200], expected[200];
    format_shape(actual, sizeof actual, have->shape, have->ndim);
    format_shape(expected, sizeof expected, want->shape, want->ndim);
    return tost_error(err, "%s: tensor '%s' has shape %s, expected %s", f->path, want->name, actual, expected);
}

// Checks that the file has the tensors of the model, with their shapes and a floating-point type, and no others.
static bool check_tensors(const StFile* f, const TostTensors* tensors, bool moments, TostError* err) {
    bool ok = true, *known = xcalloc((size_t)f->n_tensors, sizeof *known);
    for (int i = 0; ok && i < tensors->count; i++) {
        const StTensor first = st_tensor(&tensors->tensor[i], moments ? "m." : "");
        const StTensor second = st_tensor(&tensors->tensor[i], "v.");
        ok = check_tensor(known, f, &first, err) && (!moments || check_tensor(known, f, &second, err));
    }
    if (ok && !moments && st_find(f, lm_head_name)) {
        StTensor head = st_tensor(tost_tensor_find(tensors, wte_name), "");
        snprintf(head.name, sizeof head.name, "%s", lm_head_name);
        ok = check_tensor(known, f, &head, err);
    }
    for (int i = 0; ok && i < f->n_tensors; i++)
        if (!known[i])
            ok = tost_error(err, "%s: tensor '%s' does not belong to this model", f->path, f->tensors[i].name);
    free(known);
    return ok;
}

static bool find_sizes(int sizes[2], const StFile* f, const char* name, TostError* err) {
    const StTensor* t = st_find(f, name);
    if (!t) return tost_error(err, "%s: tensor '%s' is missing: not a ToST model", f->path, name);
    if (t->ndim != 2 || t->shape[0] > INT_MAX || t->shape[1] > INT_MAX) {
        char shape[200];
        format_shape(shape, sizeof shape, t->shape, t->ndim);
        return tost_error(err, "%s: tensor '%s' has shape %s, expected two dimensions", f->path, name, shape);
    }
    sizes[0] = (int)t->shape[0];
    sizes[1] = (int)t->shape[1];
    return true;
}

// 1 + the largest N in the names "transformer.h.N.…".
static int count_layers(const StFile* f) {
    static const char prefix[] = "transformer.h.";
    int layers = 0;
    for (int i = 0; i < f->n_tensors; i++) {
        const char* name = f->tensors[i].name;
        if (strncmp(name, prefix, sizeof prefix - 1) != 0) continue;
        const char* digits = name + sizeof prefix - 1;
        const size_t n = strspn(digits, "0123456789");
        if (n == 0 || n > 6 || digits[n] != '.') continue;   // check_tensors reports it
        const int layer = atoi(digits);
        if (layer >= layers) layers = layer + 1;
    }
    return layers;
}

static bool read_membership(int* membership, const StFile* f, TostError* err) {
    const char* name = st_meta(f, "membership");   // absent: learned
    const bool uniform = name && strcmp(name, "uniform") == 0;
    *membership = uniform ? TOST_UNIFORM : TOST_LEARNED;
    return !name || uniform || strcmp(name, "learned") == 0
        || tost_error(err, "%s: __metadata__ 'membership' is '%.200s': expected learned or uniform", f->path, name);
}

// Derives the config from names and shapes; metadata, if present, must agree.
static bool read_config(TostConfig* c, const StFile* f, TostError* err) {
    int wte[2], wpe[2], temp[2];
    if (!find_sizes(wte, f, wte_name, err) || !find_sizes(wpe, f, "transformer.wpe.weight", err)
        || !find_sizes(temp, f, "transformer.h.0.attn.temp", err))
        return false;
    *c = (TostConfig){.n_layer = count_layers(f), .n_head = temp[0], .n_embd = wte[1], .block_size = wpe[0],
                      .vocab_size = wte[0], .bias = st_find(f, "transformer.ln_f.bias") != NULL};
    bool ours;
    if (!meta_is_ours(&ours, f, err)) return false;
    for (size_t i = 0; i < countof(size_keys); i++) {
        const int size = config_size(c, &size_keys[i]);
        uint64_t stored = (uint64_t)size;
        if (!meta_number(&stored, f, size_keys[i].key, 10, INT_MAX, ours, err)) return false;
        if (stored != (uint64_t)size)
            return tost_error(err, "%s: __metadata__ has %s %" PRIu64 ", but the tensors have %d: the file is damaged",
                              f->path, size_keys[i].key, stored, size);
    }
    if (st_meta(f, "document_token"))
        return tost_error(err, "%s: trained with --mask-across-documents, which this version does not support", f->path);
    return read_membership(&c->membership, f, err)
        && (tost_config_check(c, err) || tost_error(err, "%s: %s", f->path, err->text));
}

// ---------------------------------------------------------------------------------------------
// Reading

static bool read_info(CheckpointInfo* info, const StFile* f, TostError* err) {
    *info = (CheckpointInfo){0};
    if (!read_config(&info->config, f, err)) return false;
    TostTensors tensors = tost_tensors(&info->config);
    const bool ok = check_tensors(f, &tensors, false, err) && read_metadata(info, f, err);
    tost_tensors_free(&tensors);
    if (!ok) *info = (CheckpointInfo){0};
    return ok;
}

static bool nothing_found(const Folder* run, TostError* err) {
    tost_error(err, "%s: no complete checkpoint (step_N/%s and %s) in this folder", run->path, model_name,
               optimizer_name);
    return !has_file(run, best_name, model_name)
           || tost_error(err, "%s, only %s: give %s/%s as --model or --init", err->text, best_name, run->path,
                         best_name);
}

// Opens the model file of a run's newest complete checkpoint. *file: see open_model.
static bool open_run(StFile* f, char** file, const char* path, TostError* note, TostError* err) {
    Folder run, dir;
    bool ok = false, again = true, found;
    if (!folder_open(&run, NULL, path, err)) return false;
    for (int tries = 0; again && tries < MAX_TRIES; tries++) {
        again = false;
        if (!open_newest(&found, &dir, &run, note, err)) break;
        if (!found) {
            nothing_found(&run, err);
            break;
        }
        ok = st_open_in(f, &dir, model_name, err);
        again = !ok && errno == ENOENT;   // it was just removed
        free(*file);
        *file = path_join(dir.path, model_name);
        folder_close(&dir);
    }
    folder_close(&run);
    return ok;
}

// Opens the model file that PATH leads to. *file: its path, even if it cannot be opened, or NULL if none was found.
// free()
static bool open_model(StFile* f, char** file, const char* path, TostError* note, TostError* err) {
    Entry e;
    *file = NULL;
    if (!path_exists(path)) return tost_error(err, "%s: cannot be found: %s", path, strerror(errno));
    if (is_dir(path) && entry_of_path(&e, path) && e.kind == STALE)
        return tost_error(err, "%s: incomplete checkpoint; give its run folder to use the newest complete one", path);
    if (is_dir(path) && !has_file(NULL, path, model_name)) {
        if (access(path, R_OK | X_OK) == 0) return open_run(f, file, path, note, err);
        return tost_error(err, "%s: the folder cannot be read: %s", path, strerror(errno));
    }
    *file = is_dir(path) ? path_join(path, model_name) : xstrdup(path);
    return st_open(f, *file, err);
}

bool checkpoint_open(StFile* model_file, CheckpointInfo* info, const char* path, const char* option, TostError* err) {
    TostError note = {""};
    char* file;
    bool ok = open_model(model_file, &file, path, &note, err);
    if (ok && !read_info(info, model_file, err)) {
        st_close(model_file);
        ok = false;
    }
    if (ok) *err = note;
    else {
        *info = (CheckpointInfo){0};
        *model_file = (StFile){0};
        if (file) checkpoint_suggest_older(err, file, option);
        else if (!option) tost_error(err, "%s; --overwrite starts the run over", err->text);
    }
    free(file);
    return ok;
}

static bool check_crc(const StFile* f, TostError* err) {
    uint64_t stored = 0;
    uint32_t actual;
    bool ours;
    if (!meta_is_ours(&ours, f, err)) return false;
    if (!meta_number(&stored, f, "crc32", 16, UINT32_MAX, ours, err)) return false;
    if (!st_meta(f, "crc32")) return true;
    if (!st_crc32(f, &actual, err)) return false;
    return actual == stored
        || tost_error(err, "%s: CRC-32 of the tensors is %08" PRIx32 ", expected %08" PRIx32 ": the file is damaged; "
                      "use another checkpoint", f->path, actual, (uint32_t)stored);
}

static size_t largest_tensor(const TostTensors* tensors) {
    size_t largest = 0;
    for (int i = 0; i < tensors->count; i++)
        if (tensors->tensor[i].size > largest) largest = tensors->tensor[i].size;
    return largest;
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
                            "output head must equal it", f->path, lm_head_name, wte_name, i, a[i], b[i]);
    free(a);
    free(b);
    return ok;
}

// Reads all tensors of one state as float32, checks their values and copies them to the engine, unless it is NULL.
// stored: the tensors in the file, which may have fewer positions.
static bool put_state(const TostEngine* engine, TostModel* model, TostState state, const TostTensors* tensors,
                      const TostTensors* stored, const StFile* f, const char* prefix, TostError* err) {
    float* values = xmalloc(largest_tensor(tensors) * sizeof *values);
    bool ok = true;
    for (int i = 0; ok && i < tensors->count; i++) {
        const TostTensor* t = &tensors->tensor[i];
        const StTensor named = st_tensor(t, prefix);
        ok = st_read_finite(f, st_find(f, named.name), state == TOST_V ? 0 : -FLT_MAX, values, err);
        if (!ok || !engine) continue;
        init_extend(values, t, &stored->tensor[i]);
        if (t->row == TOST_ROW_temp && t->init == TOST_ZERO)   // uniform membership: older files have 1
            memset(values, 0, t->size * sizeof *values);
        engine->put(model, state, t, values);
    }
    free(values);
    return ok;
}

bool checkpoint_load_params(const TostEngine* engine, TostModel* model, const TostTensors* tensors,
                            const StFile* model_file, TostError* err) {
    return checkpoint_load_extended(engine, model, tensors, tensors, model_file, err);
}

bool checkpoint_load_extended(const TostEngine* engine, TostModel* model, const TostTensors* tensors,
                              const TostTensors* stored, const StFile* model_file, TostError* err) {
    return check_tensors(model_file, stored, false, err) && check_crc(model_file, err)
           && check_lm_head(model_file, err)
           && put_state(engine, model, TOST_PARAM, tensors, stored, model_file, "", err);
}

// Both files of a checkpoint have the same metadata, except for the CRC.
static bool same_metadata(const StFile* a, const StFile* b, TostError* err) {
    for (int i = 0; i < a->n_meta; i++) {
        const char* key = a->meta[i].key;
        const char* other = st_meta(b, key);
        if (strcmp(key, "crc32") == 0 || (other && strcmp(other, a->meta[i].value) == 0)) continue;
        return tost_error(err, "%s: %s is '%s', but '%s' in %s: the files belong to different checkpoints", a->path,
                          key, a->meta[i].value, other ? other : "", b->path);
    }
    return true;
}

static bool check_optimizer(const StFile* f, const StFile* model_file, const TostTensors* tensors, TostError* err) {
    uint64_t step = 0;
    return meta_number(&step, f, "step", 10, INT64_MAX, true, err) && same_metadata(f, model_file, err)
           && same_metadata(model_file, f, err) && check_tensors(f, tensors, true, err) && check_crc(f, err);
}

// Opens the optimizer.safetensors next to model_file and checks it completely.
static bool open_optimizer(StFile* f, const StFile* model_file, const TostTensors* tensors, TostError* err) {
    char *dir = path_dir(model_file->path), *path = path_join(dir, optimizer_name);
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
                             const StFile* model_file, TostError* err) {
    StFile f;
    if (!open_optimizer(&f, model_file, tensors, err)) return false;
    const bool ok = put_state(engine, model, TOST_M, tensors, tensors, &f, "m.", err)
                    && put_state(engine, model, TOST_V, tensors, tensors, &f, "v.", err);
    st_close(&f);
    return ok;
}

// Opens the ema.safetensors next to model_file.
static bool open_average(bool* exists, StFile* f, const StFile* model_file, TostError* err) {
    char *dir = path_dir(model_file->path), *path = path_join(dir, average_name);
    *exists = path_exists(path);
    const bool ok = !*exists || (st_open(f, path, err) && same_metadata(f, model_file, err));
    free(path);
    free(dir);
    return ok;
}

bool checkpoint_load_average(bool* exists, const TostEngine* engine, TostModel* model, const TostTensors* tensors,
                             const StFile* model_file, TostError* err) {
    StFile f = {0};
    bool ok = open_average(exists, &f, model_file, err);
    if (*exists) ok = ok && check_tensors(&f, tensors, false, err) && check_crc(&f, err)
                      && put_state(engine, model, TOST_EMA, tensors, tensors, &f, "", err);
    if (f.path) st_close(&f);
    return ok;
}

bool checkpoint_open_average(StFile* model_file, TostError* err) {
    StFile f = {0};
    bool exists, ok = open_average(&exists, &f, model_file, err);
    if (!exists)
        ok = tost_error(err, "%s: there is no %s next to it: leave out --weights ema, or train with --ema",
                        model_file->path, average_name);
    if (ok) {
        st_close(model_file);
        *model_file = f;
    } else if (f.path) st_close(&f);
    return ok;
}

// True if the model file and, with `moments`, the optimizer file next to it can be read without errors.
static bool is_intact(const char* model_file, bool moments) {
    CheckpointInfo info;
    StFile f;
    TostError ignored;
    if (!st_open(&f, model_file, &ignored)) return false;
    bool intact = read_info(&info, &f, &ignored);
    if (intact) {
        TostTensors tensors = tost_tensors(&info.config);
        intact = checkpoint_load_params(NULL, NULL, &tensors, &f, &ignored)
                 && (!moments || checkpoint_load_moments(NULL, NULL, &tensors, &f, &ignored));
        tost_tensors_free(&tensors);
        checkpoint_info_free(&info);
    }
    st_close(&f);
    return intact;
}

// Folder of the newest older intact checkpoint of the same run, or NULL. free()
static char* older_intact(const char* model_file, bool moments) {
    char *dir = path_dir(model_file), *path = path_dir(dir), *found = NULL;
    Entry broken;
    Entries list = {0};
    Folder run = {0};
    TostError note = {""}, ignored;
    if (entry_of_path(&broken, dir) && folder_open(&run, NULL, path, &ignored)) list_entries(&list, &run, &ignored);
    read_steps(&list, &run, &note);
    for (int i = list.count - 1; i >= 0 && !found; i--) {
        const Entry* e = &list.entry[i];
        char *folder = path_join(path, e->name), *file = path_join(folder, model_name);
        if (e->step < broken.step && is_complete(&run, e) && is_intact(file, moments)) found = xstrdup(folder);
        free(file);
        free(folder);
    }
    free_entries(&list);
    folder_close(&run);
    free(path);
    free(dir);
    return found;
}

bool checkpoint_suggest_older(TostError* err, const char* model_file, const char* option) {
    char* older = older_intact(model_file, !option);
    if (older && option) tost_error(err, "%s; an older checkpoint is intact: %s %s", err->text, option, older);
    else if (older)
        tost_error(err, "%s; %s is intact: move the newer checkpoints away to resume from it", err->text, older);
    free(older);
    return false;
}

// ---------------------------------------------------------------------------------------------
// Writing

typedef struct {
    const TostEngine*  engine;
    const TostModel*   model;
    const TostTensors* tensors;
    const MetaList*    meta;
    TostComm*          comm;
    bool               average;
} Source;

typedef struct { TostState state; const char* prefix; } Part;

// Tells the other ranks which tensor rank 0 gets next; index -1: the save ends. Also sent for parameters, although the
// other ranks have nothing to send: each request ends a wait, so the timeout applies to a tensor, not to a file.
typedef struct { int32_t state, index; } GetRequest;

static void get_tensor(float* values, const Source* s, TostState state, int i) {
    GetRequest request = {(int32_t)state, i};
    comm_broadcast(s->comm, &request, sizeof request, 0);   // mutant: parameters_not_told
    s->engine->get(values, s->model, state, &s->tensors->tensor[i]);
}

void checkpoint_send_moments(TostComm* comm, const TostEngine* engine, const TostModel* model,
                             const TostTensors* tensors) {
    for (;;) {
        GetRequest request;
        comm_broadcast(comm, &request, sizeof request, 0);
        if (request.index < 0) return;
        if (request.state != TOST_PARAM)
            engine->get(NULL, model, (TostState)request.state, &tensors->tensor[request.index]);
    }
}

void checkpoint_end_save(TostComm* comm) {
    GetRequest end = {.index = -1};
    comm_broadcast(comm, &end, sizeof end, 0);
}

static bool append_parts(StWriter* w, const Source* s, const Part* parts, int n_parts, TostError* err) {
    float* values = xmalloc(largest_tensor(s->tensors) * sizeof *values);
    bool ok = true;
    for (int p = 0; p < n_parts; p++) {
        for (int i = 0; ok && i < s->tensors->count; i++) {
            const TostTensor* t = &s->tensors->tensor[i];
            get_tensor(values, s, parts[p].state, i);
            ok = st_append(w, values, t->size * sizeof *values, err);
        }
    }
    free(values);
    return ok;
}

// Writes the file `name` with the tensors of all parts; each tensor's name begins with its part's prefix.
static bool write_file(const Folder* dir, const char* name, const Source* s, const Part* parts, int n_parts,
                       TostError* err) {
    const int count = s->tensors->count;
    StTensor* declared = xcalloc((size_t)(n_parts * count), sizeof *declared);
    for (int p = 0; p < n_parts; p++)
        for (int i = 0; i < count; i++)
            declared[p * count + i] = st_tensor(&s->tensors->tensor[i], parts[p].prefix);
    StWriter w;
    bool ok = st_begin_in(&w, dir, name, declared, n_parts * count, s->meta->entry, s->meta->count, err)
           && append_parts(&w, s, parts, n_parts, err);
    if (!ok) st_abandon(&w);
    ok = ok && st_finish(&w, err);
    free(declared);
    return ok;
}

static bool entry_failed(const Folder* run, const char* name, const char* what, TostError* err) {
    return tost_error(err, "%s/%s: %s: %s", run->path, name, what, strerror(errno));
}

static bool write_folder(const Folder* run, const char* name, const Source* s, TostError* err) {
    static const Part params[] = {{TOST_PARAM, ""}}, moments[] = {{TOST_M, "m."}, {TOST_V, "v."}};
    static const Part average[] = {{TOST_EMA, ""}};
    Folder dir;
    if (!folder_remove(run, name, err)) return false;
    if (mkdirat(run->fd, name, 0777) != 0 && errno != EEXIST)   // it exists if NFS keeps a removed file in it
        return entry_failed(run, name, "the folder cannot be created", err);
    if (!folder_open(&dir, run, name, err)) return false;
    const bool ok = write_file(&dir, model_name, s, params, countof(params), err)
                    && write_file(&dir, optimizer_name, s, moments, countof(moments), err)
                    && (!s->average || write_file(&dir, average_name, s, average, countof(average), err))
                    && folder_sync(&dir, err);
    folder_close(&dir);
    return ok;
}

// Exchanges two names atomically. False if the system or the file system does not support it.
static bool exchange(const Folder* in, const char* a, const char* b) {
#ifdef RENAME_EXCHANGE
    return renameat2(in->fd, a, in->fd, b, RENAME_EXCHANGE) == 0;
#elif defined(RENAME_SWAP)
    return renameatx_np(in->fd, a, in->fd, b, RENAME_SWAP) == 0;
#else
    (void)in, (void)a, (void)b;
    return false;
#endif
}

// Renames to a stale name, so that an interruption leaves no folder that looks complete. free(*stale)
static bool set_aside(char** stale, const Folder* run, const char* name, TostError* err) {
    *stale = xasprintf("%s.old.tmp", name);
    return folder_remove(run, *stale, err)
           && (renameat(run->fd, name, run->fd, *stale) == 0 || entry_failed(run, name, "cannot be removed", err));
}

static bool remove_entry(const Folder* run, const Entry* e, TostError* err) {
    if (e->kind == STALE) return folder_remove(run, e->name, err);
    char* stale;
    const bool ok = set_aside(&stale, run, e->name, err) && folder_remove(run, stale, err);
    free(stale);
    return ok;
}

// Renames the finished folder. If the name already exists (the same step was saved before), exchanges the two folders,
// or, if that is not supported, sets the old one aside first.
static bool publish(const Folder* run, const char* finished, const char* name, TostError* err) {
    const int at = run->fd;
    if (renameat(at, finished, at, name) == 0 || exchange(run, finished, name)) return true;
    TostError ignored;
    char* aside;
    set_aside(&aside, run, name, &ignored);   // on failure the next rename fails too and reports it
    bool ok = renameat(at, finished, at, name) == 0;
    if (!ok) {
        tost_error(err, "%s/%s: cannot be renamed to %s: %s", run->path, finished, name, strerror(errno));
        renameat(at, aside, at, name);
    }
    free(aside);
    return ok;
}

// After saving `step`, removes stale folders and all but the newest `keep` checkpoints.
static bool prune(const Folder* run, int64_t step, int keep, TostError* err) {
    Entries list;
    TostError note = {""};
    if (!list_entries(&list, run, err)) return false;
    if (keep > 0) read_steps(&list, run, &note);
    bool ok = true;
    int kept = 1;   // the new one
    for (int i = list.count - 1; i >= 0; i--) {
        const Entry* e = &list.entry[i];
        const bool old = e->step < step && is_complete(run, e);
        if (old) kept++;
        if (e->kind == STALE || (old && keep > 0 && kept > keep)) ok = remove_entry(run, e, err) && ok;
    }
    free_entries(&list);
    return ok;
}

// Removes the folder best, or one left by an interruption, if it is a checkpoint.
static bool remove_best(const Folder* run, TostError* err) {
    return (!has_file(run, best_name, model_name) || folder_remove(run, best_name, err))
           && folder_remove(run, best_unfinished, err);
}

bool checkpoint_clear(const Folder* run, TostError* err) {
    Entries list;
    if (!list_entries(&list, run, err)) return false;
    bool ok = remove_best(run, err);
    for (int i = 0; i < list.count && ok; i++) ok = remove_entry(run, &list.entry[i], err);
    free_entries(&list);
    return ok;
}

// If another checkpoint was renamed to this name, renames it back to its own, so that it is not replaced.
static void restore_own_name(const Folder* run, const char* name, int64_t step) {
    StFile f;
    TostError ignored;
    char* file = path_join(name, model_name);
    const bool exists = st_open_in(&f, run, file, &ignored);
    const int64_t stored = exists ? (int64_t)stored_step(&f, (uint64_t)step) : step;
    char* own_name = entry_name(stored, "");
    if (exists) st_close(&f);
    if (stored != step) renameat(run->fd, name, run->fd, own_name);   // fails if that is taken
    free(own_name);
    free(file);
}

// Writes the folder `unfinished` and renames it.
static bool save_named(const Folder* run, const char* name, const char* unfinished, int64_t step, const Source* source,
                       TostError* err) {
    bool ok = write_folder(run, unfinished, source, err) && publish(run, unfinished, name, err);
    if (!ok) {
        TostError ignored;
        folder_remove(run, unfinished, &ignored);
        tost_error(err, "%s; step %" PRId64 " is not saved", err->text, step);
    } else if (!folder_sync(run, err)) {
        ok = tost_error(err, "%s; %s/%s is saved, but may be lost on a power failure", err->text, run->path, name);
    }
    return ok;
}

// Saves a checkpoint as step_N + suffix.
static bool save_as(const Folder* run, const char* suffix, int64_t step, const Source* source, TostError* err) {
    char *name = entry_name(step, suffix), *unfinished = entry_name(step, ".tmp");
    restore_own_name(run, name, step);
    const bool ok = save_named(run, name, unfinished, step, source, err);
    free(unfinished);
    free(name);
    return ok;
}

bool checkpoint_save_best(const Folder* run, const CheckpointInfo* info, const TostEngine* engine,
                          const TostModel* model, const TostTensors* tensors, TostError* err) {
    MetaList meta = metadata(info);
    const Source source = {engine, model, tensors, &meta, info->comm, info->average};
    const bool ok = save_named(run, best_name, best_unfinished, info->step, &source, err)
                    && folder_remove(run, best_unfinished, err);   // the one before, if the names were exchanged
    st_free_meta(meta.entry, meta.count);
    return ok;
}

bool checkpoint_save(const Folder* run, const CheckpointInfo* info, const TostEngine* engine,
                     const TostModel* model, const TostTensors* tensors, int keep, TostError* err) {
    MetaList meta = metadata(info);
    const Source source = {engine, model, tensors, &meta, info->comm, info->average};
    const bool ok = save_as(run, "", info->step, &source, err);
    st_free_meta(meta.entry, meta.count);
    if (!ok) return false;
    if (prune(run, info->step, keep, err)) err->text[0] = 0;
    else
        tost_error(err, "%s/step_%08" PRId64 " is saved, but older files could not be removed: %s", run->path,
                   info->step, err->text);
    return true;
}

bool checkpoint_save_replacement(const Folder* run, const CheckpointInfo* info, const TostEngine* engine,
                                 const TostModel* model, const TostTensors* tensors, TostError* err) {
    MetaList meta = metadata(info);
    const Source source = {engine, model, tensors, &meta, info->comm, info->average};
    const bool ok = save_as(run, ".new", info->step, &source, err);
    st_free_meta(meta.entry, meta.count);
    return ok;
}

bool checkpoint_has_replacement(bool* has, const Folder* run, TostError* err) {
    Entries list;
    if (!list_entries(&list, run, err)) return false;
    *has = list.count > 0 && list.entry[list.count - 1].kind == REPLACEMENT;
    free_entries(&list);
    return true;
}

bool checkpoint_finish_replacement(const Folder* run, TostError* err) {
    Entries list;
    if (!list_entries(&list, run, err)) return false;
    const Entry* last = list.count > 0 ? &list.entry[list.count - 1] : NULL;
    bool ok = true;
    if (last && last->kind == REPLACEMENT) {
        char *name = entry_name(last->step, ""), *stale;
        ok = remove_best(run, err);
        for (int i = 0; ok && i < list.count - 1; i++) {
            if (list.entry[i].kind == STALE) continue;
            ok = set_aside(&stale, run, list.entry[i].name, err);
            free(stale);
        }
        ok = ok && (renameat(run->fd, last->name, run->fd, name) == 0
                    || entry_failed(run, last->name, "cannot be renamed", err)) && folder_sync(run, err);
        TostError ignored;
        if (ok) prune(run, last->step, 0, &ignored);   // the next save repeats it and reports a failure
        free(name);
    }
    free_entries(&list);
    return ok;
}
