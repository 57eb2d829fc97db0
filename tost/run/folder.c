// folder.c: the folder of a training run and its log.
#include <errno.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/folder.h"
#include "run/run.h"

bool run_folder_is_new(const Run* r, TostError* err) {
    return !checkpoint_is_run(r->out.text)
        || tost_error(err, "--out %s already contains a run: --resume continues it from its newest checkpoint, "
                      "--overwrite renames it and starts a new one", r->out.text);
}

// --overwrite: renames the folder of the old run to OUT.N.
static bool rename_old(Run* r, TostError* err) {
    char* real = strstr(r->out.text, "/../") ? realpath(r->out.text, NULL) : NULL;   // A/.. vanishes if A is renamed
    r->old = free_name(real ? real : r->out.text, ".", 1);
    free(real);
    if (!rename_synced(r->out.text, r->old.text, err)) {
        if (!path_exists(r->old.text)) r->old.text[0] = 0;
        return tost_error(err, "--overwrite: %s; give another --out", err->text);
    }
    lock_moved(&r->lock, r->old.text);
    lock_release(&r->lock);
    return true;
}

// A default folder gets the next free number, even if two runs start at the same time.
bool run_claim_folder(Run* r, TostError* err) {
    const bool numbered = !r->out.text[0];
    for (;;) {
        if (numbered) r->out = free_name(path_in("out", choice_name(TOST_PRESETS, r->recipe.preset).text).text, "-", 3);
        if (!make_dirs(r->out.text, err)) return false;
        const LockResult lock = r->lock.path.text[0] ? LOCK_TAKEN : lock_take(&r->lock, r->out.text, err);
        if (lock == LOCK_FAILED || (lock == LOCK_BUSY && !numbered)) return false;
        if (lock == LOCK_TAKEN && (r->args->resume || run_folder_is_new(r, err))) return true;
        if (numbered) lock_release(&r->lock);
        else if (!r->args->overwrite || r->old.text[0] || !rename_old(r, err)) return false;
    }
}

// Fails if the disk has no space for a checkpoint.
static bool check_disk(Run* r, TostError* err) {
    const TostRecipe* recipe = &r->recipe;
    struct statvfs fs;
    double size = 0;
    if ((recipe->save_every == 0 && !recipe->keep_best) || statvfs(r->out.text, &fs) != 0 || fs.f_blocks == 0)
        return true;
    for (int i = 0; i < r->tensors.count; i++) {
        const TostTensor* t = &r->tensors.tensor[i];
        for (TostArray a = TOST_PARAM; a < TOST_ARRAYS; a++)
            if (a != TOST_GRAD) size += 4.0 * (double)tost_elements(t, a, (TostOptimizer)recipe->optimizer);
    }
    return size <= (double)fs.f_bavail * (double)fs.f_frsize
        || tost_error(err, "--out %s: %s: a checkpoint needs %s: free more, or give another --out%s", r->out.text,
                      strerror(ENOSPC), human_bytes(size).text, recipe->keep_best ? "" : " or --save-every 0");
}

bool run_open_folder(Run* r, TostError* err) {
    if (comm_rank(r->comm) != 0) return true;
    const bool existed = r->out.text[0] && is_dir(r->out.text);
    bool ok = run_claim_folder(r, err);
    if (ok && r->lock.unsupported)
        run_warn(r, "%s: %s: the file system does not support locks: make sure that no other run writes here",
                 r->lock.path.text, strerror(r->lock.unsupported));
    const char *out = r->out.text, *old = r->old.text;
    const int64_t rows = r->args->resume ? r->info.step - (r->info.unvalidated_row != NULL) : -1;
    ok = ok && check_disk(r, err) && log_open(&r->log, path_in(out, LOG_FILE).text, rows, err);
    if (ok && *old) progress_fact(&r->progress, "overwrite", "the old run is now in %s", old);
    if (ok) progress_fact(&r->progress, "out", "%s", out);
    else {   // remove a new folder, which is empty
        lock_release(&r->lock);
        if (!existed || *old) rmdir(out);   // fails if it is not empty
        if (*old) tost_error(err, "%s; the old run is in %s", err->text, old);
    }
    return ok;
}
