// train.c: the training loop; commands/train.c calls it. Each step is followed by a log row and, if due, a checkpoint,
// validation and a sample. Data and learning rate of a step depend only on the options, the seed and the step number,
// so a resumed run computes the same bits as an uninterrupted one.
//
//     validate and sample, as a baseline
//     until the last step, a signal or an option that ends the run:
//         for each micro-batch of this rank: forward and backward, which adds to the gradients;
//             after the last one of each part (--parts, ranks/slices.h): read the losses of the part
//         add the gradients of all parts and ranks, in the last backward
//         if loss and gradient norm are finite: clip, update the parameters; otherwise skip the step
//         if due: validate; write a row of the log; if due: save, sample
//     save the last step
//     after the last step: measure the bits per byte of the validation text
//
// Several ranks: run_agree is true if all ranks succeeded. It also tells all ranks of a signal, which run_signal then
// returns. A rank that fails does no more work, but goes on to the next such message, where all stop together.
#include <math.h>

#include "base/clock.h"
#include "base/signals.h"
#include "run/run.h"

typedef enum { NOT_DUE, FAILED, INTERRUPTED, DONE } Outcome;   // INTERRUPTED: by a signal, to be repeated

// ---- One training step ----

// Called if a rank cannot read the data. Logs `row`, unless NULL, saves the completed steps and adds to the error how
// to resume from them.
static Outcome data_failed(Run* r, const LogRow* row, TostError* err) {
    TostError second;
    if (row && !run_log_step(r, row, &second)) run_warn(r, "%s", second.text);
    if (r->info.step > 0 && r->recipe.save_every > 0 && !run_save(r, true, &second)) run_warn(r, "%s", second.text);
    tost_error(err, "%s; stopped after step %lld; %s", err->text, (long long)r->info.step, resume_hint(r).text);
    return FAILED;
}

// Shows the progress of a step, in micro-batches, or of a validation, in windows, with this fraction of the current
// micro-batch.
static void show_work(Run* r, double fraction) {
    const double done = (double)r->work.done + fraction * r->work.current;
    if (r->work.validation)
        progress_show(&r->progress, done / (double)r->work.all, "validation %.6g/%lld", done, (long long)r->work.all);
    else progress_micro_batch(&r->progress, done * comm_size(r->comm));
}

// Chunks.should_stop, which also shows progress. With several ranks, a signal stops the run only between micro-batches:
// in the middle of one, other ranks may already wait for this rank's gradients.
static bool should_stop(void* context, double fraction) {
    Run* r = context;
    if (r->work.all == 0) return false;   // the loss before a save (save.c)
    show_work(r, fraction);
    return comm_size(r->comm) == 1 && signals_received() && fraction < 1;   // 1: the micro-batch is complete
}

// Whether a signal or `failed` ends a step or validation between micro-batches; with MPI, on all ranks at the same one.
// A message of NCCL waits for the kernels before it. To not wait after each micro-batch, ranks with NCCL find out only
// at the end of the step or validation.
static bool must_stop(const Run* r, bool failed) {
    if (r->comm && r->comm->in_order) return false;
    return comm_any(r->comm, failed || signals_received());
}

// Gradients of total_batch tokens, accumulated over this rank's micro-batches. Before the last backward pass, in which
// the ranks exchange gradients, they learn whether one of them failed to read its data.
static Outcome accumulate_gradients(Run* r, TostError* err) {
    const int T = r->recipe.seq;
    const float scale = 1.0f / (float)r->recipe.total_batch;
    const Share share = run_step_share(r);
    int64_t i = 0;
    bool ok = true;
    r->engine->zero_grad(r->model);
    for (; i < share.n; i++) {
        const MicroBatch m = share_micro_batch(&share, i);
        if (i > 0 && must_stop(r, !ok)) break;   // before the first, the loop has checked
        r->work = (RunWork){.done = i, .all = share.n, .current = 1};
        show_work(r, 0);
        ok = ok && data_batch(r->data, r->inputs, r->targets, r->info.data_sample + (uint64_t)m.start, m.rows, err);
        if (m.end == TOST_STEP_ENDS && comm_any(r->comm, !ok)) break;   // else ranks would wait for its gradients
        if (ok && !chunks_train(&r->chunks, r->inputs, r->targets, m.rows, T, scale, m.end)) break;   // by a signal
        if (m.end == TOST_PART_ENDS) r->part_loss[m.part] = run_read_loss(r);
    }
    if (i == share.n) return DONE;
    run_read_loss(r);   // resets the sum
    return run_agree(r, ok, err) ? INTERRUPTED : data_failed(r, NULL, err);
}

// Clips the gradients and updates the parameters. Returns the learning rate.
static double optimizer_step(Run* r, double norm) {
    const double lr = schedule_lr(schedule_of(&r->recipe), r->info.step);
    const int64_t number = r->info.step + 1 - r->info.skipped + r->info.earlier_updates;   // of the moments
    const TostUpdate update = recipe_update(&r->recipe, lr, norm, number);
    r->engine->update(r->model, &update);
    return lr;
}

// Leaves the parameters unchanged, because loss or gradient norm is not finite. Fails, which ends the run, if too many
// consecutive steps were skipped.
static bool skip_step(Run* r, double loss, double norm, TostError* err) {
    CheckpointInfo* info = &r->info;
    const long long number = (long long)info->step + 1;
    if (info->skipped_in_a_row >= r->recipe.max_skipped)
        return tost_error(err, "step %lld: loss %g, gradient norm %g; stopped without changing the parameters, after "
                          "%lld consecutive skipped steps; %s; a lower --lr or a higher --max-skipped may help", number,
                          plain_nan(loss), plain_nan(norm), (long long)info->skipped_in_a_row, resume_hint(r).text);
    info->skipped++;
    info->skipped_in_a_row++;
    run_warn(r, "step %lld is skipped: loss %g, gradient norm %g (skipped so far: %lld; consecutive: %lld, limit %lld)",
             number, plain_nan(loss), plain_nan(norm), (long long)info->skipped, (long long)info->skipped_in_a_row,
             (long long)r->recipe.max_skipped);
    return true;
}

// A skipped step consumes its data and advances the schedule. Its log row has a learning rate of 0. A signal drops an
// incomplete step, which a resumed run computes.
static Outcome train_step(LogRow* row, Run* r, TostError* err) {
    const TostRecipe* recipe = &r->recipe;
    const double start = now_seconds();
    double lr = 0;
    const Outcome accumulated = accumulate_gradients(r, err);
    if (accumulated != DONE) return accumulated;
    const double norm = r->engine->grad_norm(r->model);
    r->part_loss[run_own_parts(r) - 1] = run_read_loss(r);   // of the last part; waits for the device, as grad_norm
    const LossSum total = run_total_loss(r);
    const double loss = total.sum / (double)total.count;
    if (isfinite(loss) && isfinite(norm)) {
        lr = optimizer_step(r, norm);
        r->info.skipped_in_a_row = 0;
    } else if (!skip_step(r, loss, norm, err)) return FAILED;
    r->info.step++;
    r->info.tokens += recipe->total_batch;
    r->info.data_sample += (uint64_t)(recipe->total_batch / recipe->seq);
    const double seconds = now_seconds() - start;
    *row = (LogRow){.step = r->info.step, .tokens = r->info.tokens, .train_loss = loss, .val_loss = NAN,
                    .lr = lr, .grad_norm = norm, .ms = 1e3 * seconds,
                    .tokens_per_s = (double)recipe->total_batch / seconds};
    return DONE;
}

// ---- Validation ----

// Reads windows i … i + rows - 1 of the n (seq tokens each) that are spread evenly over the validation shards.
static bool validation_batch(Run* r, int64_t i, int rows, int64_t n, TostError* err) {
    const int64_t windows = (int64_t)data_samples(r->val);
    bool ok = true;
    for (int k = 0; ok && k < rows; k++) {
        const size_t at = (size_t)k * (size_t)r->recipe.seq;
        ok = data_batch(r->val, r->inputs + at, r->targets + at, (uint64_t)part_start(windows, i + k, n), 1, err);
    }
    return ok;
}

// Excludes from the loss the targets that are not text: <|endoftext|>, and ids beyond the tokenizer (n = 0). Returns
// the bytes of the others.
static double only_text(Run* r, int rows) {
    double bytes = 0;
    for (size_t i = 0; i < (size_t)rows * (size_t)r->recipe.seq; i++) {
        size_t n;
        tokenizer_piece(r->tokenizer, (uint32_t)r->targets[i], &n);
        if (n == 0 || r->targets[i] == tokenizer_eot(r->tokenizer)) r->targets[i] = -1;
        else bytes += (double)n;
    }
    return bytes;
}

// Sets part_loss to the losses of this rank's share of the val_windows windows (0: of all windows). text: counts only
// targets that are text, and their bytes. row: the log row of the validated step, or NULL; for data_failed
static Outcome validation_losses(Run* r, bool text, const LogRow* row, TostError* err) {
    const int64_t available = (int64_t)data_samples(r->val), wanted = r->recipe.val_windows;
    const Share share = run_share(r, wanted > 0 && wanted < available ? wanted : available);
    double *sums = xmalloc((size_t)share.batch * sizeof *sums), squares = 0, bytes = 0;
    int64_t done = 0;
    bool ok = true;
    for (int64_t i = 0; i < share.n && !must_stop(r, !ok); i++) {
        const MicroBatch m = share_micro_batch(&share, i);
        if (ok && m.rows > 0) {   // 0: the last part may have fewer micro-batches
            r->work = (RunWork){.validation = true, .done = done, .all = share.end - share.start, .current = m.rows};
            show_work(r, 0);
            ok = validation_batch(r, m.start, m.rows, share.all, err);
            if (ok && text) bytes += only_text(r, m.rows);
            if (!ok || !chunks_loss(sums, &r->chunks, r->inputs, r->targets, m.rows, r->recipe.seq)) continue;
            for (int k = 0; k < m.rows; k++) squares += sums[k] * sums[k];
            done += m.rows;
        }
        if (m.end == TOST_MORE) continue;
        const LossSum loss = run_read_loss(r);
        r->part_loss[m.part] = (LossSum){loss.sum, loss.count, squares, bytes};
        squares = bytes = 0;
    }
    free(sums);
    if (!comm_any(r->comm, !ok || done < share.end - share.start)) return DONE;
    run_read_loss(r);   // resets the sum
    return run_agree(r, ok, err) ? INTERRUPTED : data_failed(r, row, err);
}

// Mean loss over val_windows windows of the validation shards, or over all. Its error is half the 95 % interval, if the
// n windows are independent, not finite if n is 1: the variance of the mean is (Σ x²/n - mean²) / (n - 1), where x is
// the mean loss of a window.
static Outcome validate(Run* r, const LogRow* row, TostError* err) {
    progress_start(&r->progress);
    const Outcome measured = validation_losses(r, false, row, err);
    if (measured != DONE) return measured;
    const LossSum total = run_total_loss(r);
    const double T = r->recipe.seq, n = (double)total.count / T, loss = total.sum / (double)total.count;
    if (!isfinite(loss)) {
        tost_error(err, "after step %lld the validation loss is %g: stopped; move the checkpoint of this step away, if "
                   "there is one, and resume with a lower --lr", (long long)r->info.step, plain_nan(loss));
        return FAILED;
    }
    r->val_error = 1.96 * sqrt(fmax(0, total.squares / (n * T * T) - loss * loss) / (n - 1));
    r->info.val_loss = loss;
    r->info.val_step = r->info.step;
    if (r->recipe.stop_at_val > 0 && loss <= r->recipe.stop_at_val && r->info.step > 0) r->stopped_by = "--stop-at-val";
    if (loss < r->info.best_val_loss) {
        r->older_best = r->info.best_val_loss;   // in case that the best cannot be saved
        r->older_best_step = r->info.best_val_step;
        r->info.best_val_loss = loss;
        r->info.best_val_step = r->info.step;
    }
    return DONE;
}

// Bits per byte of the validation text, after the last step
static bool measure_bits(Run* r, TostError* err) {
    if (!r->val || !r->tokenizer || r->info.step < r->recipe.steps || run_signal(r)) return true;
    progress_start(&r->progress);
    const Outcome measured = validation_losses(r, true, NULL, err);
    const LossSum total = run_total_loss(r);
    if (measured == DONE && total.bytes > 0) r->bits_per_byte = total.sum / log(2) / total.bytes;
    return measured != FAILED;
}

// ---- The loop ----

static bool is_due(const Run* r, int64_t every) {
    return every > 0 && (r->info.step % every == 0 || r->info.step == r->recipe.steps);
}

// Validates the model of this step and sets row->val_loss. Saves before, if due, with the log row, so that a killed run
// resumes with the validation.
static Outcome validate_step(Run* r, LogRow* row, bool saves, TostError* err) {
    const bool resumed = r->info.unvalidated_row;   // from a checkpoint that was saved before this validation ended
    if (!r->val || !(resumed || is_due(r, r->recipe.val_every))) return NOT_DUE;
    if (!resumed) r->info.unvalidated_row = log_row_text(row);
    if (!resumed && saves) run_save(r, false, err);   // if it fails, it has warned
    const Outcome validated = validate(r, row, err);
    if (validated == DONE) row->val_loss = r->info.val_loss;
    if (validated == INTERRUPTED)
        progress_text(&r->progress, "validation after step %lld was interrupted", (long long)r->info.step);
    return validated;
}

// Writes the row to the log and shows it.
static bool log_step(Run* r, const LogRow* row, TostError* err) {
    const bool ok = run_log_step(r, row, err);
    if (ok) progress_step(&r->progress, row);
    if (ok && !isnan(row->val_loss)) report_validation(r);
    report_lost_output(r);
    return run_agree(r, ok, err);
}

// Saves the best model and, if due, the step: again, with its loss, if it was saved before the validation.
static bool save_step(Run* r, bool saves, TostError* err) {
    const bool again = r->saved_step == r->info.step;
    free(r->info.unvalidated_row);
    r->info.unvalidated_row = NULL;
    run_save_best(r);
    if (!saves && !again) return true;
    // If the last step cannot be saved, the run fails. Not with `again`: run_save's `last` would keep the checkpoint.
    return run_save(r, r->info.step == r->recipe.steps && !again, err);
}

// If a signal interrupts the validation, the row in the log has no val_loss, and the checkpoint keeps the row, so that
// a resumed run repeats the validation and replaces the row in the log.
static bool after_step(Run* r, LogRow* row, TostError* err) {
    const int64_t since = r->info.step - r->unsaved_since;   // a failed save is tried again 1, 2, 4, 8, … steps later
    const bool saves = is_due(r, r->recipe.save_every) || (r->unsaved_since > 0 && (since & (since - 1)) == 0);
    const Outcome validated = validate_step(r, row, saves, err);
    if (validated == FAILED || !log_step(r, row, err)) return false;
    if (validated == INTERRUPTED) return true;
    if (!save_step(r, saves, err)) return false;
    return run_agree(r, !is_due(r, r->recipe.sample_every) || report_sample(r, err), err);
}

// Validates and samples the initial model, as a baseline. That of --init is saved as best; random weights are not.
static bool before_first_step(Run* r, TostError* err) {
    const Outcome validated = r->val ? validate(r, NULL, err) : NOT_DUE;
    if (validated == FAILED) return false;
    if (validated == DONE) report_validation(r);
    const bool ok = validated != DONE || run_log_step(r, &(LogRow){.val_loss = r->info.val_loss}, err);
    if (!run_agree(r, ok && report_sample(r, err), err)) return false;
    if (validated == DONE && r->recipe.init_file) run_save_best(r);
    return true;
}

// Whether another step would exceed --max-time, by the clock of rank 0. seconds: of the last step. The next one may
// take as long as the longest usual step: of each kind (with or without validation, sample, save), the shorter of the
// last two, so that one step in which the process was suspended does not count.
static bool is_out_of_time(Run* r, double seconds) {
    if (r->args->max_time == 0) return false;
    double longest = 0, (*last_two)[2] = r->step_seconds;   // [kind]
    const int kind = is_due(r, r->recipe.val_every) + 2 * is_due(r, r->recipe.sample_every)
                     + 4 * is_due(r, r->recipe.save_every);
    last_two[kind][1] = last_two[kind][0] > 0 ? last_two[kind][0] : seconds;   // the first of its kind counts twice
    last_two[kind][0] = seconds;
    for (int k = 0; k < 8; k++) longest = fmax(longest, fmin(last_two[k][0], last_two[k][1]));
    bool out = now_seconds() - r->progress.began + longest > r->args->max_time;
    comm_broadcast(r->comm, &out, sizeof out, 0);
    return out;
}

static bool loop(Run* r, TostError* err) {
    progress_train(&r->progress, r->info.step, r->recipe.steps, run_step_share(r).n * comm_size(r->comm),
                   r->recipe.total_batch);
    LogRow row;
    if (r->info.step == 0 && !before_first_step(r, err)) return false;
    if (r->info.unvalidated_row && log_row_parse(&row, r->info.unvalidated_row) && !after_step(r, &row, err))
        return false;
    while (r->info.step < r->recipe.steps && !run_signal(r) && !r->stopped_by) {
        const double start = now_seconds();
        run_adjust_steps(r);   // --for: may change --steps by the clock; checkpoints have the new value
        const Outcome stepped = train_step(&row, r, err);
        if (stepped == FAILED || (stepped == DONE && !after_step(r, &row, err))) return false;
        if (!r->stopped_by && is_out_of_time(r, now_seconds() - start)) r->stopped_by = "--max-time";
    }
    if (r->recipe.save_every == 0 && r->best_lost)
        return tost_error(err, "the best weights could not be saved, and --save-every is 0");
    return (r->recipe.save_every == 0 || run_save(r, true, err)) && measure_bits(r, err);
}

bool run_train(Run* r, TostError* err) {
    r->chunks.should_stop = should_stop;
    r->chunks.context = r;
    signals_catch(comm_rank(r->comm) != 0 ? NULL : r->recipe.save_every > 0 ? "this micro-batch and a save"
                  : "this micro-batch");   // what a signal's message says the run stops after; NULL: no message
    report_lost_output(r);
    bool ok = loop(r, err);
    progress_end(&r->progress);
    if (comm_rank(r->comm) == 0) ok = log_sync(&r->log, ok ? err : &(TostError){0}) && ok;   // keeps the first error
    report_missing_rows(r);
    ok = run_agree(r, ok, err);
    if (ok) report_end(r);
    report_lost_output(r);
    log_close(&r->log);
    return ok;
}
