// checkpoint_folders.c: finds, names, publishes and removes checkpoints.
#include "store/checkpoint_folders.h"

#include <errno.h>
#include <inttypes.h>

#include "base/folder.h"
#include "base/memory.h"
#include "base/platform.h"
#include "data/tokenizer.h"

// ---- Contents of a run folder ----

typedef struct {
    int64_t step;
    bool    stale;   // "….tmp": left behind by a process that ended while writing, replacing or removing it
    Path    path;
} Entry;

typedef struct { int count; Entry* entry; } Entries;   // ordered by step

Path checkpoint_name(const char* run, int64_t step) { return path_text("%s/step_%08" PRId64, run, step); }

// Parses "step_N", optionally followed by something that ends in ".tmp", or "best." followed by something that ends in
// "tmp".
static bool parse_entry(Entry* e, const char* name) {
    const char* end = strrchr(name, '.');
    e->stale = end && strcmp(end, ".tmp") == 0;
    e->step = 0;
    if (strncmp(name, BEST_FOLDER ".", strlen(BEST_FOLDER ".")) == 0) return e->stale;
    if (strncmp(name, "step_", 5) != 0) return false;
    size_t digits = strspn(name + 5, "0123456789");
    if (digits == 0 || digits > 18) return false;
    e->step = strtoll(name + 5, NULL, 10);
    return !name[5 + digits] || e->stale;
}

static int compare_entries(const void* a, const void* b) {
    const Entry *x = a, *y = b;
    return x->step != y->step ? (x->step < y->step ? -1 : 1) : strcmp(x->path.text, y->path.text);
}

// All checkpoints of a run, complete or not. free(out->entry)
static bool list_entries(Entries* out, const char* run, TostError* err) {
    StringList names;
    *out = (Entries){0};
    if (!folder_list(&names, run, err)) return false;
    for (int i = 0; i < names.count; i++) {
        Entry e;
        if (!parse_entry(&e, names.strings[i])) continue;
        e.path = path_in(run, names.strings[i]);
        out->entry = xgrow(out->entry, (size_t)out->count, sizeof e);
        out->entry[out->count++] = e;
    }
    free_strings(&names);
    if (out->count > 0) qsort(out->entry, (size_t)out->count, sizeof *out->entry, compare_entries);
    return true;
}

static bool has_file(const char* dir, const char* name) { return is_file(path_in(dir, name).text); }

static bool is_complete(const char* path) { return has_file(path, MODEL_FILE) && has_file(path, OPTIMIZER_FILE); }

// ---- Finding ----

bool checkpoint_is_folder(const char* dir) { return has_file(dir, MODEL_FILE); }

bool checkpoint_is_run(const char* run) {
    Entries list;
    if (has_file(run, LOG_FILE) || has_file(path_in(run, BEST_FOLDER).text, MODEL_FILE)) return true;
    if (!list_entries(&list, run, &(TostError){0})) return false;
    free(list.entry);
    return list.count > 0;
}

bool checkpoint_exists(const char* run, int64_t step) { return is_complete(checkpoint_name(run, step).text); }

bool checkpoint_newest(Path* found, const char* run) {
    Entries list;
    if (!list_entries(&list, run, &(TostError){0})) return false;
    int i = list.count - 1;
    while (i >= 0 && (list.entry[i].stale || !is_complete(list.entry[i].path.text))) i--;
    if (i >= 0) *found = list.entry[i].path;
    free(list.entry);
    return i >= 0;
}

// When the newest complete checkpoint of a run was written, in nanoseconds; -1 if there is none.
static int64_t newest_time(const char* run) {
    Path newest;
    struct stat st;
    if (!checkpoint_newest(&newest, run) || stat(path_in(newest.text, MODEL_FILE).text, &st) != 0) return -1;
    return (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
}

bool checkpoint_newest_run(Path* run, const char* root, const char* option, TostError* err) {
    StringList names = {0};
    int64_t newest = newest_time(root);   // root may itself be a run
    *run = path_text("%s", root);
    folder_list(&names, root, &(TostError){0});
    for (int i = 0; i < names.count; i++) {
        const Path path = path_in(root, names.strings[i]);
        const int64_t time = newest_time(path.text);
        if (time < newest || time < 0 || (time == newest && strcmp(path.text, run->text) < 0)) continue;
        *run = path;
        newest = time;
    }
    free_strings(&names);
    return newest >= 0 || tost_error(err, "%s: no run with a complete checkpoint: train one first (train without "
                                     "options makes a small model) or give %s", root, option);
}

// ---- Replacing and removing ----

// Exchanges two names atomically. False if the system or the file system does not support it.
static bool exchange(const char* a, const char* b) {
#ifdef RENAME_EXCHANGE
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0;
#elif defined(RENAME_SWAP)
    return renamex_np(a, b, RENAME_SWAP) == 0;
#else
    (void)a, (void)b;
    return false;
#endif
}

static bool not_removed(const char* path, TostError* err) {
    return tost_error(err, "%s: cannot be removed: %s", path, strerror(errno));
}

// Gives what the user had in the checkpoint a name that no checkpoint has. Always returns false.
static bool keep_rest(const char* path, TostError* err) {
    const size_t dir = (size_t)(strrchr(path, '/') + 1 - path);
    const Path name = path_text("%.*s", (int)(dir + strcspn(path + dir, ".")), path);
    const Path kept = free_name(name.text, ".kept-", 1);
    if (rename(path, kept.text) != 0) return not_removed(path, err);
    return tost_error(err, "%s contained other files, which are now in %s", name.text, kept.text);
}

bool checkpoint_remove(const char* path, TostError* err) {
    static const char* const own[] = {MODEL_FILE, OPTIMIZER_FILE, TOKENIZER_FILE, TOKENIZER_FILE ".tmp"};
    struct stat st;
    if (lstat(path, &st) != 0) return errno == ENOENT || not_removed(path, err);
    if (!S_ISDIR(st.st_mode)) return unlink(path) == 0 || not_removed(path, err);   // a link to a checkpoint
    for (size_t i = 0; i < countof(own); i++) {
        const Path file = path_in(path, own[i]);
        if (unlink(file.text) != 0 && errno != ENOENT) return not_removed(file.text, err);
    }
    if (rmdir(path) == 0) return true;
    return errno == ENOTEMPTY || errno == EEXIST ? keep_rest(path, err) : not_removed(path, err);
}

// Renames to a stale name, so that an interruption leaves no folder that looks complete.
static bool set_aside(Path* stale, const char* path, TostError* err) {
    *stale = path_text("%s.old.tmp", path);
    return (checkpoint_remove(stale->text, err) || !path_exists(stale->text))
           && (rename(path, stale->text) == 0 || not_removed(path, err));
}

bool checkpoint_publish(const char* finished, const char* name, TostError* err) {
    if (rename(finished, name) == 0 || exchange(finished, name)) return true;
    Path aside;
    set_aside(&aside, name, &(TostError){0});   // on failure the next rename fails too and reports it
    if (rename(finished, name) == 0) return true;
    tost_error(err, "%s: cannot be renamed to %s: %s", finished, name, strerror(errno));
    rename(aside.text, name);
    return false;
}

bool checkpoint_prune(const char* run, int64_t step, int keep, TostError* err) {
    Entries list;
    if (!list_entries(&list, run, err)) return false;
    bool ok = true;
    int kept = 1;   // the new one
    for (int i = list.count - 1; i >= 0; i--) {
        const Entry* e = &list.entry[i];
        const bool old = !e->stale && e->step < step && is_complete(e->path.text);
        if (old) kept++;
        if (!e->stale && !(old && keep > 0 && kept > keep)) continue;
        Path stale = e->path;
        ok = (e->stale || set_aside(&stale, e->path.text, err)) && checkpoint_remove(stale.text, err) && ok;
    }
    free(list.entry);
    return ok;
}
