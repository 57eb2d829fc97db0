// save.c: writes the log rows and checkpoints of a run.
#include "run/run.h"

// Appends to the error how to resume the run.
static bool run_failed(const Run* r, TostError* err) {
    return tost_error(err, "%s; stopped; %s", err->text, resume_hint(r).text);
}

// Loss of the next micro-batch with the current parameters, checked before a save so that diverged parameters do not
// replace a good checkpoint.
static double probe_loss(Run* r) {
    const size_t bytes = (size_t)r->recipe.batch * (size_t)r->recipe.seq * sizeof *r->inputs;
    if (!data_batch(r->data, r->inputs, r->targets, r->info.data_sample, r->recipe.batch, &(TostError){0})) {
        memset(r->inputs, 0, bytes);   // use token 0
        memset(r->targets, 0, bytes);
    }
    r->work = (RunWork){0};
    chunks_loss(NULL, &r->chunks, r->inputs, r->targets, r->recipe.batch, r->recipe.seq);
    const LossSum loss = run_read_loss(r);
    return loss.sum / (double)loss.count;
}

// On rank 0 only: see run_save and run_save_best. A failure to remove older files is a warning, and the next save tries
// again.
static bool save(Run* r, const CheckpointModel* m, bool best, TostError* err) {
    const long long step = (long long)r->info.step;
    const double loss = best || r->saved_step == step ? 0 : probe_loss(r);   // 0: it was checked before
    if (!isfinite(loss))
        return tost_error(err, "after step %lld the loss is %g: not saved; a lower --lr may help", step, plain_nan(loss));
    const bool ok = (best || log_sync(&r->log, err)) && checkpoint_save(r->out.text, best, &r->info, m, err);
    if (ok && !checkpoint_prune(r->out.text, step, best ? 0 : (int)r->recipe.keep, err))
        run_warn(r, "step %lld is saved, but older files could not be removed: %s", step, err->text);
    // A failed save may still have completed the checkpoint.
    if (!best && (ok || checkpoint_exists(r->out.text, step))) r->saved_step = step;
    return ok;
}

void run_share_saved(Run* r) {
    if (!r->comm) return;
    comm_broadcast(r->comm, &r->saved_step, sizeof r->saved_step, 0);
    r->comm->hint = resume_hint(r);
}

// Saves on rank 0, to which the other ranks send their moments.
static bool save_together(Run* r, bool best, TostError* err) {
    const CheckpointModel m = {r->engine, r->model, &r->tensors, (TostOptimizer)r->recipe.optimizer, r->comm};
    bool ok = true;
    if (comm_rank(r->comm) == 0) {
        ok = save(r, &m, best, err);
        checkpoint_end_save(r->comm);
    } else checkpoint_send_moments(&m);
    run_share_saved(r);
    return run_agree(r, ok, err);
}

bool run_save(Run* r, bool last, TostError* err) {
    if (last && r->saved_step == r->info.step && r->unsaved_since == 0) return true;
    const bool ok = save_together(r, false, err);
    if (!ok && !last && r->unsaved_since == 0)
        run_warn(r, "%s; training continues, and later steps try again", err->text);
    r->unsaved_since = ok ? 0 : r->unsaved_since > 0 ? r->unsaved_since : r->info.step;
    return ok || !last || run_failed(r, err);
}

void run_save_best(Run* r) {
    TostError err;
    const bool is_best = r->info.best_val_step == r->info.step && r->info.best_val_loss == r->info.val_loss;
    if (!r->recipe.keep_best || !is_best) return;
    r->best_lost = !save_together(r, true, &err);
    if (!r->best_lost) return;
    run_warn(r, "%s; best was not updated; training continues", err.text);
    r->info.best_val_loss = r->older_best;
    r->info.best_val_step = r->older_best_step;
}

bool run_log_step(Run* r, const LogRow* row, TostError* err) {
    return comm_rank(r->comm) != 0 || log_row(&r->log, row, err) || run_failed(r, err);
}
