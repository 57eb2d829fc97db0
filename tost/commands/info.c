// info.c: prints the contents of a model file, a checkpoint or a run, or checks token shards.
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "commands/commands.h"
#include "data/shards.h"

static void print_file(const char* label, const char* path) {
    struct stat st;
    char size[32];
    if (stat(path, &st) == 0) print_line(stdout, "%-12s%s, %s", label, path, human_bytes(size, (double)st.st_size));
}

static void print_model(const LoadedModel* m) {
    const TostConfig* c = &m->info.config;
    print_line(stdout, "%-12s%s", "model", model_sizes(c).text);
    print_line(stdout, "%-12s%s, exactly %zu in %d tensors", "parameters", model_parameters(c, &m->tensors).text,
               m->tensors.n_params, m->tensors.count);
}

static void print_training(const CheckpointInfo* info) {
    char tokens[32];
    if (info->options.count == 0 && info->step == 0 && info->tokens == 0)
        print_line(stdout, "%-12sunknown: not a checkpoint of this program", "trained");
    else
        print_line(stdout, "%-12s%lld steps, %lld tokens (%s)", "trained", (long long)info->step,
                   (long long)info->tokens, human_count(tokens, (double)info->tokens));
    if (isfinite(info->val_loss))
        print_line(stdout, "%-12s%.6f nats/token after step %lld", "val loss", info->val_loss,
                   (long long)info->val_step);
    if (isfinite(info->best_val_loss))
        print_line(stdout, "%-12s%.6f nats/token after step %lld", "best", info->best_val_loss,
                   (long long)info->best_val_step);
    if (info->tokenizer)
        print_line(stdout, "%-12s%s, CRC-32 %08x", "tokenizer", info->tokenizer, (unsigned)info->tokenizer_hash);
    else print_line(stdout, "%-12snone", "tokenizer");
    for (int i = 0; i < info->options.count; i++) {
        const StMeta* option = &info->options.entry[i];
        print_line(stdout, "%-12s%-14s %s", i == 0 ? "options" : "", option->key, option->value);
    }
}

static bool info_model(const Options* o, const TostEngine* engine, TostError* err) {
    LoadedModel m;
    if (option_given(o, "vocab-size")) return tost_error(err, "--vocab-size is for shards: give SHARD files");
    bool ok = loaded_model_find(&m, o, NULL, err);
    if (ok && o->print_config) {
        Options run = options_default(engine);
        run.tokenizer = m.info.tokenizer;
        ok = options_resume(&run, &m.info.options, m.file, err);
        run.config = m.info.config;
        if (ok) options_print(&run);
        options_free(&run);
    } else if (ok) {
        char* dir = path_dir(m.file);
        char *optimizer = path_join(dir, OPTIMIZER_FILE), *average = path_join(dir, AVERAGE_FILE);
        char size[32];   // of the open file, which another process may have removed
        print_line(stdout, "%-12s%s, %s", "file", m.file, human_bytes(size, (double)m.weights.file_size));
        print_file("optimizer", optimizer);
        print_file("average", average);
        if (m.info.program) print_line(stdout, "%-12s%s", "written by", m.info.program);
        print_model(&m);
        print_training(&m.info);
        free(optimizer);
        free(average);
        free(dir);
    }
    loaded_model_free(&m);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// Shards

typedef struct { int bad; uint64_t tokens; uint32_t largest; } ShardTotals;

// Number of ids that the shard may have: --vocab-size, or the tokens of the tokenizer next to it; 0: unknown.
static uint32_t vocabulary_of(const Options* o, const char* path) {
    if (option_given(o, "vocab-size")) return (uint32_t)o->config.vocab_size;
    char* beside = tokenizer_beside(path);
    TostError ignored;
    Tokenizer* tokenizer = beside ? tokenizer_open(beside, &ignored) : NULL;
    const uint32_t size = tokenizer ? (uint32_t)tokenizer_size(tokenizer) : 0;
    tokenizer_free(tokenizer);
    free(beside);
    return size;
}

// Reads a whole shard. *line describes it, or is the error.
static bool check_shard(TextLine* line, ShardTotals* t, const Options* o, const char* path) {
    Shard s;
    char of[48] = "";
    const uint32_t vocabulary = vocabulary_of(o, path);
    if (!shard_open(&s, path, line)) return false;
    const bool ok = shard_check_ids(&s, vocabulary ? vocabulary : UINT32_MAX, line);
    if (vocabulary) snprintf(of, sizeof of, " of a vocabulary of %u", (unsigned)vocabulary);
    if (ok)
        *line = text_line("%s: uint%d%s, %llu tokens, largest id %u%s", path, 8 * s.width,
                          s.first ? "" : " without a header", (unsigned long long)s.n_tokens, (unsigned)s.largest_id,
                          of);
    t->tokens += s.n_tokens;
    t->largest = s.largest_id > t->largest ? s.largest_id : t->largest;
    shard_close(&s);
    return ok;
}

static bool info_shards(const Options* o, char* const* paths, int n, TostError* err) {
    ShardTotals t = {0};
    for (int i = 0; i < n; i++) {
        TextLine line;
        const bool ok = check_shard(&line, &t, o, paths[i]);
        if (ok || n > 1) printf("%s\n", line.text);
        if (!ok && t.bad++ == 0) *err = line;
    }
    if (n == 1) return t.bad == 0;
    char tokens[32];
    printf("shards: %d; tokens: %llu (%s); largest id: %u\n", n, (unsigned long long)t.tokens,
           human_count(tokens, (double)t.tokens), (unsigned)t.largest);
    return t.bad == 0 || tost_error(err, "%d of %d shards cannot be used; the first: %s", t.bad, n, err->text);
}

typedef enum { MODEL, SHARD, UNKNOWN } FileKind;

// A folder or safetensors file is a model; a file that begins like a shard, or has its suffix, is a shard.
static FileKind file_kind(const char* path) {
    char head[16];
    const size_t n = strlen(path);
    if (is_dir(path)) return MODEL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t got = fd < 0 ? -1 : read(fd, head, sizeof head);
    if (fd >= 0) close(fd);
    if (got >= 0 && st_begins(head, (size_t)got)) return MODEL;
    const bool named = n > 4 && strcmp(path + n - 4, ".bin") == 0;
    return got >= 0 && (named || shard_begins(head, (size_t)got)) ? SHARD : UNKNOWN;
}

static bool info(const Options* o, const TostEngine* engine, TostError* err) {
    if (o->n_files == 0 || (o->n_files == 1 && file_kind(o->files[0]) != SHARD)) return info_model(o, engine, err);
    for (int i = 0; i < o->n_files; i++)
        if (file_kind(o->files[i]) == MODEL)
            return tost_error(err, "%s is not a shard: info takes one PATH, or shards", o->files[i]);
    return info_shards(o, o->files, o->n_files, err);
}

int command_info(const Options* o, const TostEngine* engine) {
    TostError err;
    return info(o, engine, &err) ? 0 : print_error(o, &err);
}
