// vocab.c: the command vocab, which runs data/vocab.h and prints what was learned.
#include "data/vocab.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/signals.h"
#include "base/text.h"
#include "commands/commands.h"

static void show_progress(void* context, const VocabResult* r) {
    char bytes[32];
    if (!r->words) progress_show(context, NAN, "%s read", human_bytes(bytes, (double)r->read.bytes));
    else progress_show(context, NAN, "%d of %d merges", r->merges, r->wanted);   // the first take longest: no ETA
}

int command_vocab(const Options* o) {
    Progress progress = progress_new(stderr, o->quiet);
    const VocabOptions options = {text_input(o, &progress), o->size, o->out, show_progress};
    VocabResult r;
    TostError err;
    char bytes[32];
    signals_ignore_write_errors();
    signals_catch(true);
    const bool ok = vocab_learn(&options, &r, &err);
    progress_erase(&progress);
    if (!ok) print_error(o, &err);
    if (!ok) return signals_received() ? 128 + signals_received() : STATUS_FAILED;
    print_text_count(o, &r.read);
    if (r.merges < r.wanted) print_warning(o, "--size %d: the text has only %d merges", o->size, r.merges);
    if (!o->quiet)
        print_line(stdout, "%s: %d tokens, from %s, documents: %" PRIu64 ", different words: %" PRIu64, o->out,
                   VOCAB_MIN_SIZE + r.merges, human_bytes(bytes, (double)r.read.bytes), r.read.documents, r.words);
    return 0;
}
