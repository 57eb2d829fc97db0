// train.c: the command train: trains or continues a run with run/run.h; with --text, after vocab and tokenize.
#include <unistd.h>

#include "base/openmp.h"
#include "base/signals.h"
#include "commands/commands.h"
#include "run/plan.h"
#include "run/run.h"

// Runs vocab, unless size is 0, because there is a tokenizer, and tokenize. Returns their exit status.
static int write_shards(const Run* r, const Path* prefix, Path vocab, const StringList* files, double bytes, int size) {
    static const double VAL_BYTES = 330e3, MOST_FRAC = 0.1;   // to validate on, at most a tenth of the text
    Options o = *r->args;
    int status = 0;
    o.size = size;
    o.files = files->strings;
    o.n_files = files->count;
    o.recipe.seed = tost_presets[0].seed;   // runs with other seeds validate on the same documents
    if (o.init && !o.tokenizer) tokenizer_beside(&vocab, r->weights.text);
    if (size) o.out = vocab.text, status = command_vocab(&o);
    if (!o.tokenizer) o.tokenizer = vocab.text;
    o.out = (char*)prefix->text;
    o.val_frac = VAL_BYTES / bytes < MOST_FRAC ? VAL_BYTES / bytes : MOST_FRAC;
    o.shard_tokens = 100000000;
    if (status == 0 && (status = command_tokenize(&o)) != 0 && o.size) unlink(vocab.text);
    fflush(stdout);   // before the lines of Progress
    return status;
}

// Removes the shards of a run that did not start and the vocabulary that it learned: the command can be given again.
static void remove_shards(const Run* r, bool tokenizer) {
    static const char* const names[] = {"text_train_*.bin", "text_val_*.bin", ("text_" TOKENIZER_FILE)};
    for (size_t i = 0; i < countof(names) - !tokenizer; i++) {
        StringList files = {0};
        char* pattern = xstrdup(path_in(r->out.text, names[i]).text);
        if (expand_glob(&files, &(StringList){1, &pattern}, &(TostError){0}))
            for (int k = 0; k < files.count; k++) unlink(files.strings[k]);
        free_strings(&files);
        free(pattern);
    }
}

// --text: writes shards to the run's folder, on rank 0, and trains on them. *status: of a command that failed and has
// printed why
static bool read_text(int* status, Run* r, TostError* err) {
    StringList files = {0};
    const bool first = comm_rank(r->comm) == 0;
    bool ok = !first || expand_glob(&files, &r->args->text, err);
    double bytes = 0;
    for (int i = 0; ok && i < files.count; i++) {
        struct stat file = {0};
        ok = (stat(files.strings[i], &file) == 0 && S_ISREG(file.st_mode))
            || tost_error(err, "--text %s: not a regular file: run vocab and tokenize, and give --data",
                          files.strings[i]);
        bytes += (double)file.st_size;
    }
    ok = run_agree(r, ok && (!first || run_claim_folder(r, err)), err);
    comm_broadcast(r->comm, &r->out, sizeof r->out, 0);
    const Path prefix = path_in(r->out.text, "text"), vocab = path_in(r->out.text, "text_" TOKENIZER_FILE);
    const bool old = r->args->resume_auto && path_exists(vocab.text);   // a killed start has learned it
    int size = r->args->init || r->args->tokenizer || old ? 0 : r->recipe.config.vocab_size;
    comm_broadcast(r->comm, &size, sizeof size, 0);
    comm_broadcast(r->comm, &bytes, sizeof bytes, 0);
    if (ok && size && !recipe_given(&r->recipe, RECIPE_vocab_size))
        size = run_plan_vocabulary(r, bytes, err), ok = size > 0;
    if (ok && first) *status = write_shards(r, &prefix, vocab, &files, bytes, size);
    comm_broadcast(r->comm, status, sizeof *status, 0);
    free_strings(&files);
    add_string(&r->recipe.data, xasprintf("%s_train_*.bin", prefix.text));
    r->recipe.given |= (uint64_t)1 << RECIPE_data;
    return ok && *status == 0;
}

int command_train(const Options* given, TostComm* comm, const TostEngine* engine) {
    Options args = *given;
    // --resume auto: resumes the run in --out or, if it has no checkpoint, starts it
    args.resume |= args.resume_auto && checkpoint_newest(&(Path){""}, args.out);
    comm_broadcast(comm, &args.resume, sizeof args.resume, 0);
    if (args.resume_auto && args.resume) args.init = NULL, args.text = (StringList){0}, args.run_for = 0;
    if (args.resume_auto) args.overwrite = !args.resume;
    Run r = {.args = &args, .recipe = recipe_copy(&args.recipe), .comm = comm, .engine = engine, .saved_step = -1,
             .progress = progress_new(stdout, args.quiet || comm_rank(comm) != 0)};
    TostError err;
    signals_ignore_write_errors();
    if (r.comm) r.progress.live = false;   // mpirun and srun may pass a terminal, but merge the output of all ranks
    bool ok = run_agree(&r, run_find(&r, &err), &err), finished = ok && run_is_finished(&r);
    const bool existed = r.out.text[0] && is_dir(r.out.text);
    const bool had_tokenizer = existed && path_exists(path_in(r.out.text, "text_" TOKENIZER_FILE).text);
    int text = -1;   // no shards are written
    ok = ok && (args.text.count == 0 || read_text(&text, &r, &err));
    // Rank 0 decides, because ranks may see different folders.
    comm_broadcast(r.comm, &finished, sizeof finished, 0);
    // A process that was killed in its last save left an incomplete folder.
    if (finished && comm_rank(comm) == 0 && !checkpoint_prune(r.out.text, r.info.step, 0, &err))
        run_warn(&r, "%s", err.text);
    if (finished)
        progress_text(&r.progress, "%s is finished: %lld of %lld steps; use a larger --steps to continue", r.out.text,
                      (long long)r.info.step, (long long)r.recipe.steps);
    else ok = ok && options_same(&args, &r.recipe, r.comm, &err) && run_set_up(&r, &err) && run_train(&r, &err);
    const int signal = run_signal(&r);
    const bool out_of_time = r.stopped_by && strcmp(r.stopped_by, "--max-time") == 0 && r.info.step < r.recipe.steps;
    if (args.text.count && !ok && comm_rank(comm) == 0 && r.lock.path.text[0] && !checkpoint_is_run(r.out.text)) {
        if (!text) remove_shards(&r, !had_tokenizer || r.old.text[0]);
        lock_release(&r.lock);
        if (!existed) rmdir(r.out.text);   // fails if it is not empty
    }
    run_free(&r);
    if (text > 0) return text;
    if (!ok) return print_error(&err);
    if (signal) return 128 + signal;
    return out_of_time ? STATUS_RESUMABLE : 0;
}

