// main.c: from the command line to a command, and what the commands share.
#include "commands.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tokenize.h"

// ---------------------------------------------------------------------------------------------
// Errors

static void print_error(const TostError* err) {
    fflush(stdout);
    fprintf(stderr, "train_gpt_tost: %s\n", err->text);
}

int command_failed(const TostError* err) {
    print_error(err);
    return STATUS_FAILED;
}

// ---------------------------------------------------------------------------------------------
// A model

ModelWords model_words(const TostConfig* c, const TostTensors* tensors) {
    const size_t n = tensors->n_params, positions = (size_t)c->block_size * c->n_embd;
    char all[32], without[32];
    ModelWords words;
    snprintf(words.sizes, sizeof words.sizes,
             "%d layers, %d heads, %d channels, block size %d, vocabulary %d, %s bias", c->n_layer, c->n_head,
             c->n_embd, c->block_size, c->vocab_size, c->bias ? "with" : "no");
    snprintf(words.parameters, sizeof words.parameters, "%s (%s without wpe)", human_count(all, (double)n),
             human_count(without, (double)(n - positions)));
    return words;
}

Tokenizer* model_tokenizer(const CheckpointInfo* info, const char* path, bool same, const char* weights,
                           TostError* err) {
    Tokenizer* tokenizer = tokenizer_open(path, err);
    if (!tokenizer) return NULL;
    const uint32_t hash = tokenizer_hash(tokenizer);
    const int size = tokenizer_size(tokenizer), rows = info->config.vocab_size;
    if (same && hash != info->tokenizer_hash)
        tost_error(err, "%s was trained with a tokenizer of CRC-32 %08x, but %s has %08x: give the one it had as "
                   "--tokenizer", weights, (unsigned)info->tokenizer_hash, path, (unsigned)hash);
    else if (size > rows)
        tost_error(err, "the tokenizer %s has %d tokens, more than the vocabulary of %d: %s", path, size, rows,
                   weights ? "give the --tokenizer of the weights" : "raise --vocab-size");
    else return tokenizer;
    tokenizer_free(tokenizer);
    return NULL;
}

bool trained_find(Trained* t, const Options* o, const TostEngine* engine, TostError* err) {
    *t = (Trained){.engine = engine};
    if (!(o->model ? checkpoint_find(&t->file, o->model, err) : checkpoint_newest(&t->file, "out", err))) {
        t->file = NULL;
        return false;
    }
    if (!checkpoint_read_info(&t->info, t->file, err)) {
        t->info = (CheckpointInfo){0};
        return false;
    }
    t->tensors = tost_tensors(&t->info.config);
    return true;
}

bool trained_create(Trained* t, const Options* o, int max_batch, int max_seq, TostError* err) {
    const TostEngineOptions options = {
        .max_batch = max_batch, .max_seq = max_seq, .dtype = (TostDtype)o->dtype, .threads = o->threads};
    t->model = t->engine->create(&t->info.config, &options, err);
    return t->model && checkpoint_load_params(t->engine, t->model, &t->tensors, t->file, err);
}

Tokenizer* trained_tokenizer(const Trained* t, const Options* o, TostError* err) {
    if (!o->tokenizer && !t->info.tokenizer) {
        tost_error(err, "%s names no tokenizer: give --tokenizer FILE, the vocab.bpe it was trained with",
                   t->file);
        return NULL;
    }
    const char* path = o->tokenizer ? o->tokenizer : t->info.tokenizer;
    if (!o->tokenizer && !path_exists(path)) {
        tost_error(err, "%s was trained with the tokenizer %s, which is not there: give --tokenizer FILE",
                   t->file, path);
        return NULL;
    }
    return model_tokenizer(&t->info, path, !o->tokenizer, t->file, err);
}

void trained_free(Trained* t) {
    if (t->model) t->engine->destroy(t->model);
    tost_tensors_free(&t->tensors);
    checkpoint_info_free(&t->info);
    free(t->file);
}

// ---------------------------------------------------------------------------------------------
// Commands

int command_tokenize(const Options* o) {
    const TokenizeOptions options = {
        .tokenizer = o->tokenizer, .out = o->out, .files = o->files, .n_files = o->n_files,
        .val_frac = o->val_frac, .val_required = option_given(o, "val-frac"), .seed = (uint64_t)o->seed,
        .shard_tokens = (uint64_t)o->shard_tokens, .threads = o->threads, .jsonl = o->jsonl,
        .quiet = o->quiet};
    TokenizeResult r;
    TostError err;
    if (!tokenize_files(&options, &r, &err)) return command_failed(&err);
    if (o->quiet) return 0;
    char bytes[32];
    printf("%llu documents, %s: %llu tokens\n", (unsigned long long)r.documents,
           human_bytes(bytes, (double)r.bytes), (unsigned long long)r.tokens);
    printf("%s_train_*.bin: %llu tokens, shards: %d\n", o->out, (unsigned long long)r.train_tokens,
           r.train_shards);
    if (r.val_shards > 0)
        printf("%s_val_*.bin: %llu tokens, shards: %d\n", o->out, (unsigned long long)r.val_tokens,
               r.val_shards);
    else if (o->val_frac > 0)
        printf("no validation shards: of so few documents none fell to --val-frac %g\n", o->val_frac);
    return 0;
}

static int run_command(const Options* o, const TostEngine* engine) {
    switch (o->command) {
        case COMMAND_TRAIN: return command_train(o, engine);
        case COMMAND_SAMPLE: return command_sample(o, engine);
        case COMMAND_EVAL: return command_eval(o, engine);
        case COMMAND_TOKENIZE: return command_tokenize(o);
        case COMMAND_INFO: return command_info(o);
        case COMMANDS: break;
    }
    return STATUS_FAILED;
}

// A standard stream that was closed must not become the number of a file that is opened later: what is printed would
// go into a log or a checkpoint. Read-only, so that writing to it still fails.
static void occupy_streams(void) {
    int fd = 0;
    while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDONLY);
    if (fd > STDERR_FILENO) close(fd);
}

int tost_main(int argc, char** argv, const TostEngine* engine) {
    Options o;
    bool help;
    TostError err;
    int status = 0;
    occupy_streams();
    if (!options_parse(&o, &help, argc, argv, engine, &err)) {
        print_error(&err);
        status = STATUS_USAGE;
    } else if (!help) status = run_command(&o, engine);
    options_free(&o);
    if (status == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        tost_error(&err, "stdout cannot be written: %s", strerror(errno));
        status = command_failed(&err);
    }
    return status;
}
