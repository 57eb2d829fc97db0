// tokenize.c: the commands tokenize and vocab, which run data/tokenize.h and data/vocab.h and print the results.
#include <inttypes.h>

#include "base/clock.h"
#include "base/signals.h"
#include "commands/commands.h"
#include "data/tokenize.h"
#include "data/vocab.h"
#include "run/progress.h"

static void show_tokens(void* context, const TokenizeResult* result) {
    Progress* p = context;
    const double bytes = (double)result->read.bytes;
    progress_show(p, NAN, "%s read, %s tokens, %.1f MB/s", human_bytes(bytes).text,
                  human_count((double)result->tokens).text, 1e-6 * bytes / (now_seconds() - p->started));
}

// The caller frees in->files.
static bool begin(Progress* progress, TextInput* in, const Options* o, TostError* err) {
    Bytes list = {0};
    Lines lines = {0};
    const char* name;
    *in = (TextInput){.jsonl = o->jsonl, .plain = o->plain, .lines = o->lines, .text_field = o->text_field,
                      .skip_bad_lines = o->skip_bad_lines, .threads = o->recipe.threads, .context = progress};
    signals_ignore_write_errors();
    signals_catch("the current batch of text; nothing will be written");
    *progress = progress_new(stderr, o->quiet);
    for (int i = 0; i < o->n_files; i++) add_string(&in->files, xstrdup(o->files[i]));
    if (o->files_from && !read_lines(&list, &lines, o->files_from, err)) return false;
    const bool has_nul = list.data && memchr(list.data, 0, list.size);
    for (size_t n; next_line(&name, &n, &lines);)
        if (n) add_string(&in->files, xasprintf("%.*s", (int)n, name));
    free(list.data);
    if (has_nul) return tost_error(err, "--files-from %s has a NUL: give one name per line (find without -print0)",
                                   o->files_from);
    for (int i = 0; o->files_from && strcmp(o->files_from, "-") == 0 && i < in->files.count; i++)
        if (strcmp(in->files.strings[i], "-") == 0)
            return tost_error(err, "stdin cannot be both the names of --files-from and a text: leave out the file -");
    return in->files.count || !o->files_from || tost_error(err, "--files-from %s names no file", o->files_from);
}

static int failed(const TostError* err) {
    print_error(err);
    return signals_received() ? 128 + signals_received() : STATUS_FAILED;
}

// Many lines, none of them blank: perhaps a document each
static bool has_short_lines(const char* path) {
    enum { SEEN = 1 << 14, MANY = 60 };   // 273 bytes per line on average
    char head[SEEN];
    const char* line;
    Lines lines = {head, head + read_head(head, SEEN, path), 0};
    for (size_t n; next_line(&line, &n, &lines);)
        if (is_blank(line, n)) return false;
    return lines.number >= MANY;
}

// Prints how the files were read, and warnings.
static void print_text_count(const Options* o, const StringList* files, const TextCount* c) {
    if (c->broken.count) print_warning("%s; they are kept as they are", broken_line(&c->broken).text);
    if (c->skipped) print_warning("lines skipped: %" PRIu64 ", the first: %s", c->skipped, c->first_skipped.text);
    if (c->inside)
        print_warning("%s: " END_OF_TEXT " inside lines, read as text: %" PRIu64 "; sed 's/<|endoftext|>/\\n&\\n/g' "
                      "FILE makes separators of them", c->inside_in, c->inside);
    if (!o->lines && files->count && c->documents == (uint64_t)files->count && has_short_lines(files->strings[0]))
        print_warning("%s was read as one document; if each line is a document, give --lines", files->strings[0]);
    if (!o->quiet && files->count)
        printf("files of plain text: %d, of JSONL: %d\n", files->count - c->jsonl_files, c->jsonl_files);
}

// Of few validation tokens, n. The standard error of a loss is about 6/√n nats per token: 0.009 was measured with
// n = 491,520 (dev/data/README.md).
static void warn_of_validation(double val_frac, double n, double tokens) {
    enum { SEQ = 256, FEW = 10000 };
    const double larger = fmin(0.9, ceil(100 * (SEQ + 1) * fmax(val_frac / fmax(n, 1), 1 / tokens)) / 100);
    if (n < 2)
        print_warning("--val-frac %g: no validation tokens: give a larger one, such as %g", val_frac, larger);
    else if (n <= SEQ)
        print_warning("--val-frac %g: %g validation tokens: train with --seq %g or less, or give a larger --val-frac, "
                      "such as %g, for --seq %d", val_frac, n, n - 1, larger, SEQ);
    else if (n < FEW)
        print_warning("--val-frac %g: %g validation tokens, whose loss has a standard error of about %.1g nats per "
                      "token", val_frac, n, 6 / sqrt(n));
}

int command_tokenize(const Options* o) {
    Progress progress;
    Path tokenizer = path_text("%s", o->tokenizer);
    if (checkpoint_newest(&tokenizer, o->tokenizer) || is_dir(o->tokenizer))   // a run or a checkpoint
        tokenizer = path_in(tokenizer.text, TOKENIZER_FILE);
    TokenizeOptions options = {
        .tokenizer = tokenizer.text, .out = o->out, .val_frac = o->val_frac,
        .seed = (uint64_t)o->recipe.seed, .shard_tokens = (uint64_t)o->shard_tokens, .progress = show_tokens};
    TokenizeResult result;
    TostError err;
    const bool ok = begin(&progress, &options.in, o, &err) && tokenize_files(&options, &result, &err);
    progress_erase(&progress);
    if (ok && !o->size) print_text_count(o, &options.in.files, &result.read);   // train: vocab has printed it
    free_strings(&options.in.files);
    if (!ok) return failed(&err);
    if (o->val_frac > 0)
        warn_of_validation(o->val_frac, (double)result.written[SPLIT_VAL].tokens, (double)result.tokens);
    if (o->quiet) return 0;
    const ShardCount *train = &result.written[SPLIT_TRAIN], *val = &result.written[SPLIT_VAL];
    printf("%llu document%s, %s: %llu tokens\n", (unsigned long long)result.read.documents,
           plural((int64_t)result.read.documents), human_bytes((double)result.read.bytes).text,
           (unsigned long long)result.tokens);
    print_line(stdout, "%s_train_*.bin: %llu tokens, shards: %d", o->out, (unsigned long long)train->tokens,
               train->shards);
    if (val->shards > 0)
        print_line(stdout, "%s_val_*.bin: %llu tokens, shards: %d, %.3g%% of the tokens", o->out,
                   (unsigned long long)val->tokens, val->shards, 100 * (double)val->tokens / (double)result.tokens);
    return 0;
}

static void show_merges(void* context, const VocabResult* result) {
    if (!result->words) progress_show(context, NAN, "%s read", human_bytes((double)result->read.bytes).text);
    else progress_show(context, NAN, "%d of %d merges", result->merges, result->wanted);   // the first are slow: no ETA
}

int command_vocab(const Options* o) {
    Progress progress;
    VocabOptions options = {.size = o->size, .out = o->out, .progress = show_merges};
    VocabResult result;
    TostError err;
    const bool ok = begin(&progress, &options.in, o, &err) && vocab_learn(&options, &result, &err);
    progress_erase(&progress);
    if (ok) print_text_count(o, &options.in.files, &result.read);
    free_strings(&options.in.files);
    if (!ok) return failed(&err);
    if (result.frequent < result.wanted)
        print_warning("--size %d: merges that occur %d times or more in the text: %d; give --size %d, or more text",
                      o->size, VOCAB_FREQUENT, result.frequent, VOCAB_MIN_SIZE + result.frequent);
    if (!o->quiet)
        print_line(stdout, "%s: %d tokens, from %s, documents: %" PRIu64 ", different words: %" PRIu64, o->out,
                   VOCAB_MIN_SIZE + result.merges, human_bytes((double)result.read.bytes).text, result.read.documents,
                   result.words);
    return 0;
}
