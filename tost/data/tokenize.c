// tokenize.c: tokenizes text files into shards. The parts of a batch are encoded in parallel, and one thread writes the
// ids in order.
#include "data/tokenize.h"

#include "base/memory.h"
#include "base/openmp.h"
#include "base/rng.h"

typedef struct { size_t first, n; } Ids;   // of a part, in the batch's ids

typedef struct {
    const TokenizeOptions* o;
    TokenizeResult*  result;
    Tokenizer*       tokenizer;
    int              threads;
    uint64_t         first;          // head of the first document
    bool             validates;      // a document went to the validation shards
    TokenizerCache** caches;         // (threads)
    ShardWriter*     writer;
    // current batch
    Ids*             parts;          // a part of n bytes has room for n + 1 ids
    uint32_t*        ids;
} Job;

// ---- A batch ----

static void encode_parts(Job* job, const TextPart* parts, size_t n) {
    size_t room = 0;
    job->parts = xrealloc(job->parts, n * sizeof *job->parts);
    for (size_t i = 0; i < n; room += parts[i++].n + 1) job->parts[i].first = room;
    job->ids = xrealloc(job->ids, room * sizeof *job->ids);
    #pragma omp parallel for schedule(dynamic) num_threads(job->threads) if (n > 1)
    for (size_t i = 0; i < n; i++) {
        Ids* part = job->parts + i;
        uint32_t* ids = job->ids + part->first;
        TokenizerCache* cache = job->caches[thread_index()];
        part->n = tokenizer_encode(job->tokenizer, cache, ids, parts[i].text, parts[i].n);
        if (parts[i].ends) ids[part->n++] = (uint32_t)tokenizer_eot(job->tokenizer);
    }
}

static Split split_of(const Job* job, uint64_t head) {
    Rng rng = rng_seeded(job->o->seed, head);
    return rng_uniform(&rng) < job->o->val_frac && head != job->first ? SPLIT_VAL : SPLIT_TRAIN;
}

// Encodes and writes the parts of a batch.
static bool write_batch(void* context, const TextPart* parts, size_t n, TostError* err) {
    Job* job = context;
    encode_parts(job, parts, n);
    if (n && job->result->tokens == 0) job->first = parts[0].head;
    for (size_t i = 0; i < n; i++) {
        const Ids* part = job->parts + i;
        const Split split = split_of(job, parts[i].head);
        job->validates |= split == SPLIT_VAL;
        if (!shard_writer_append(job->writer, split, job->ids + part->first, part->n, err)) return false;
        job->result->tokens += part->n;
    }
    if (job->o->progress) job->o->progress(job->o->in.context, job->result);
    return true;
}

// ---- The command ----

// OUT_vocab.bpe will be written: fails if it is another tokenizer.
static bool check_tokenizer(const Job* job, TostError* err) {
    const Path path = path_text("%s_" TOKENIZER_FILE, job->o->out);
    Tokenizer* old = tokenizer_open(path.text, &(TostError){0});
    const bool ok = old ? tokenizer_hash(old) == tokenizer_hash(job->tokenizer) : !path_exists(path.text);
    tokenizer_free(old);
    return ok || tost_error(err, "%s: exists already and is not --tokenizer; remove it or choose another --out",
                            path.text);
}

static bool run_job(Job* job, TostError* err) {
    const TokenizeOptions* o = job->o;
    job->tokenizer = tokenizer_open(o->tokenizer, err);
    if (!job->tokenizer) return false;
    job->writer = shard_writer_open(o->out, (uint32_t)tokenizer_size(job->tokenizer), o->shard_tokens, err);
    if (!job->writer || !check_tokenizer(job, err)) return false;
    job->threads = threads_or_max(o->in.threads);
    job->caches = xmalloc((size_t)job->threads * sizeof *job->caches);
    for (int i = 0; i < job->threads; i++) job->caches[i] = tokenizer_cache_new();
    if (!documents_read(&o->in, &job->result->read, write_batch, job, err)) return false;
    // Of few documents, all may be in the training shards: moves the last tokens to the validation shards.
    const uint64_t tail = job->validates ? 0 : (uint64_t)(o->val_frac * (double)job->result->tokens);
    if (tail > 0 && !shard_writer_move_tail(job->writer, tail, err)) return false;
    ShardWriter* w = job->writer;
    job->writer = NULL;
    return shard_writer_close(w, tokenizer_file(job->tokenizer), job->result->written, err);
}

bool tokenize_files(const TokenizeOptions* o, TokenizeResult* result, TostError* err) {
    *result = (TokenizeResult){0};
    if (!documents_check(&o->in, err)) return false;
    Job job = {.o = o, .result = result};
    const bool ok = run_job(&job, err);
    shard_writer_abandon(job.writer);
    for (int i = 0; job.caches && i < job.threads; i++) free(job.caches[i]);
    free(job.caches);
    free(job.parts);
    free(job.ids);
    tokenizer_free(job.tokenizer);
    return ok;
}
