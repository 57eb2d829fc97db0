// tokenize.c: the command tokenize, which runs data/tokenize.h and prints what was written.
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/signals.h"
#include "base/text.h"
#include "commands/commands.h"
#include "data/tokenize.h"
#include "run/progress.h"

static void show_progress(void* context, const TokenizeResult* r) {
    Progress* p = context;
    char bytes[32], tokens[32];
    progress_show(p, NAN, "%s read, %s tokens, %.1f MB/s", human_bytes(bytes, (double)r->read.bytes),
                  human_count(tokens, (double)r->tokens), 1e-6 * (double)r->read.bytes / (now_seconds() - p->started));
}

// Even with --quiet: the user would wait and not know why.
static void show_waiting(void* context, const char* name) {
    progress_erase(context);
    print_line(stderr, "%s: waiting for a process that writes to this FIFO", name);
}

TextInput text_input(const Options* o, Progress* progress) {
    return (TextInput){.files = o->files, .n_files = o->n_files, .jsonl = o->jsonl, .threads = o->threads,
                       .waiting = show_waiting, .context = progress};
}

int command_tokenize(const Options* o) {
    Progress progress = progress_new(stderr, o->quiet);
    const TokenizeOptions options = {
        .in = text_input(o, &progress), .tokenizer = o->tokenizer, .out = o->out, .val_frac = o->val_frac,
        .val_required = option_given(o, "val-frac"), .seed = (uint64_t)o->seed,
        .shard_tokens = (uint64_t)o->shard_tokens, .progress = show_progress};
    TokenizeResult r;
    TostError err;
    signals_ignore_write_errors();
    signals_catch(true);
    const bool ok = tokenize_files(&options, &r, &err);
    progress_erase(&progress);
    if (!ok) {
        print_error(o, &err);
        return signals_received() ? 128 + signals_received() : STATUS_FAILED;
    }
    if (o->quiet) return 0;
    const ShardCount *train = &r.written[SPLIT_TRAIN], *val = &r.written[SPLIT_VAL];
    char bytes[32];
    printf("%llu document%s, %s: %llu tokens\n", (unsigned long long)r.read.documents, r.read.documents == 1 ? "" : "s",
           human_bytes(bytes, (double)r.read.bytes), (unsigned long long)r.tokens);
    print_line(stdout, "%s_train_*.bin: %llu tokens, shards: %d", o->out, (unsigned long long)train->tokens,
               train->shards);
    if (val->shards > 0)
        print_line(stdout, "%s_val_*.bin: %llu tokens, shards: %d", o->out, (unsigned long long)val->tokens,
                   val->shards);
    else if (o->val_frac > 0)
        printf("no validation shards: --val-frac %g selected nothing\n", o->val_frac);
    return 0;
}
