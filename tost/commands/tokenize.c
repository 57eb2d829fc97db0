// tokenize.c: tokenizes text files into shards and prints what was written.
#include <stdio.h>

#include "base/error.h"
#include "base/signals.h"
#include "base/text.h"
#include "commands/commands.h"
#include "data/tokenize.h"

int command_tokenize(const Options* o) {
    const TokenizeOptions options = {
        .tokenizer = o->tokenizer, .out = o->out, .files = o->files, .n_files = o->n_files,
        .val_frac = o->val_frac, .val_required = option_given(o, "val-frac"), .seed = (uint64_t)o->seed,
        .shard_tokens = (uint64_t)o->shard_tokens, .threads = o->threads, .jsonl = o->jsonl,
        .quiet = o->quiet};
    TokenizeResult r;
    TostError err;
    signals_ignore_write_errors();
    signals_catch(true);
    if (!tokenize_files(&options, &r, &err)) {
        print_error(o, &err);
        return signals_received() ? 128 + signals_received() : STATUS_FAILED;
    }
    if (o->quiet) return 0;
    char bytes[32];
    printf("%llu document%s, %s: %llu tokens\n", (unsigned long long)r.documents, r.documents == 1 ? "" : "s",
           human_bytes(bytes, (double)r.bytes), (unsigned long long)r.tokens);
    print_line(stdout, "%s_train_*.bin: %llu tokens, shards: %d", o->out, (unsigned long long)r.train_tokens,
               r.train_shards);
    if (r.val_shards > 0)
        print_line(stdout, "%s_val_*.bin: %llu tokens, shards: %d", o->out, (unsigned long long)r.val_tokens,
                   r.val_shards);
    else if (o->val_frac > 0)
        printf("no validation shards: --val-frac %g selected nothing\n", o->val_frac);
    return 0;
}
