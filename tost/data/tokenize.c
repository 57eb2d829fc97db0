// tokenize.c: tokenizes text files into shards. Input is read in batches; a batch is split into parts that are encoded
// in parallel, and one thread writes the ids in order. Memory is bounded for documents of any size, except for a
// JSONL line, or text without white space, that is longer than a batch.
#include "data/tokenize.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/openmp.h"
#include "base/rng.h"
#include "base/signals.h"
#include "base/text.h"
#include "data/lines.h"
#include "data/tokenizer.h"

enum {
    BATCH_BYTES = 16 << 20,  // input bytes per batch
    BATCH_PARTS = 256,       // parts of a batch that is one long document
};

// A unit of work for one thread: a short document, or a section of a long one between two safe cuts.
typedef struct {
    const char* text;
    size_t      n;          // bytes
    size_t      first_id;   // its position in the batch's ids
    size_t      n_ids;      // set by encode_parts
    bool        ends;       // followed by <|endoftext|>
    bool        val;        // part of a validation document
} Part;

// One line of JSONL and its decoded text.
typedef struct {
    const char* json;
    size_t      n;
    size_t      number;     // 1-based
    char*       text;       // room for n + 1 bytes
    size_t      n_text;
} Line;

typedef struct {
    const TokenizeOptions* o;
    TokenizeResult*  r;
    Tokenizer*       tokenizer;
    size_t           batch_bytes, part_bytes;
    int              threads;
    TokenizerCache** caches;         // (threads)
    ShardWriter*     writer;
    // current batch
    Part*            parts;
    size_t           n_parts;
    Line*            lines;          // of JSONL
    size_t           n_lines;
    char*            text;           // decoded from them
    uint32_t*        ids;            // a part of n bytes gets room for n + 1 ids
    size_t           n_ids, ids_cap;
    bool             in_document;    // the current document has begun
    bool             document_val;   // and goes to the validation shards
} Job;

// A file being read: data[0 .. n) has been read and not yet processed.
typedef struct {
    const char* name;                // for messages
    int         fd;
    mode_t      mode;                // type of the file
    char*       data;
    size_t      n, cap;
    uint64_t    read;                // bytes read so far
    size_t      lines;               // of JSONL, processed so far
    bool        end;                 // end of file reached
} Source;

// ---------------------------------------------------------------------------------------------
// A batch: collecting parts, encoding and writing them

static void add_part(Job* job, const char* text, size_t n, bool ends) {
    job->parts = xgrow(job->parts, job->n_parts, sizeof *job->parts);
    job->parts[job->n_parts++] = (Part){text, n, job->n_ids, 0, ends, job->document_val};
    job->n_ids += n + 1;
}

// Adds the next n bytes of the current document; ends: the document ends after them.
static void add_text(Job* job, const char* text, size_t n, bool ends) {
    if (n && !job->in_document) {
        Rng rng = rng_seeded(job->o->seed, job->r->documents);
        job->document_val = rng_uniform(&rng) < job->o->val_frac && job->r->documents > 0;
        job->in_document = true;
        job->r->documents++;
    }
    if (!job->in_document) return;
    for (size_t want = job->part_bytes; want < n;) {
        size_t cut = tokenizer_last_cut(text, want);
        if (cut) add_part(job, text, cut, false);
        text += cut;
        n -= cut;
        want = cut ? job->part_bytes : want * 2;
    }
    add_part(job, text, n, ends);
    if (ends) job->in_document = false;
}

static void encode_parts(Job* job) {
    if (job->n_ids > job->ids_cap) job->ids = xrealloc(job->ids, (job->ids_cap = job->n_ids) * sizeof *job->ids);
    #pragma omp parallel for schedule(dynamic) num_threads(job->threads) if (job->n_parts > 1)
    for (size_t i = 0; i < job->n_parts; i++) {
        Part* part = job->parts + i;
        uint32_t* ids = job->ids + part->first_id;
        TokenizerCache* cache = job->caches[thread_index()];
        part->n_ids = tokenizer_encode_cached(job->tokenizer, cache, ids, part->text, part->n);
        if (part->ends) ids[part->n_ids++] = (uint32_t)tokenizer_eot(job->tokenizer);
    }
}

static bool interrupted(TostError* err) { return tost_error(err, "interrupted; no shards were written"); }

// Encodes and writes the parts collected so far.
static bool finish_batch(Job* job, TostError* err) {
    encode_parts(job);
    for (size_t i = 0; i < job->n_parts; i++) {
        const Part* part = job->parts + i;
        const Split split = part->val ? SPLIT_VAL : SPLIT_TRAIN;
        if (!shard_writer_append(job->writer, split, job->ids + part->first_id, part->n_ids, err)) return false;
        job->r->written[split].tokens += part->n_ids;
        job->r->tokens += part->n_ids;
    }
    job->n_parts = job->n_ids = 0;
    if (job->o->progress) job->o->progress(job->o->context, job->r);
    return !signals_received() || interrupted(err);
}

// ---------------------------------------------------------------------------------------------
// Reading

// Does not wait for the writer of a FIFO; wait_for_input does.
static bool source_open(Source* s, const char* path, TostError* err) {
    struct stat st;
    const bool standard = strcmp(path, "-") == 0;
    *s = (Source){.name = standard ? "standard input" : path,
                  .fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (s->fd < 0) return tost_error(err, "%s: cannot be opened: %s", path, strerror(errno));
    s->mode = fstat(s->fd, &st) == 0 ? st.st_mode : 0;
    return true;
}

static void source_close(Source* s) {
    if (s->fd >= 0 && s->fd != STDIN_FILENO) close(s->fd);
    free(s->data);
}

// Waits until a pipe or terminal can be read; false if a signal arrives. poll has a timeout, since the signal may come
// just before it.
static bool wait_for_input(const Source* s) {
    enum { MILLISECONDS = 200 };
    struct pollfd in = {.fd = s->fd, .events = POLLIN};
    int ready = S_ISREG(s->mode);
    while (!ready && !signals_received()) {
        ready = poll(&in, 1, MILLISECONDS);
        if (ready < 0 && (errno == EINTR || errno == EAGAIN)) ready = 0;
    }
    return !signals_received();
}

// Reads n bytes, or fewer at the end of the file: s->end.
static bool source_fill(Source* s, char* to, size_t n, Job* job, TostError* err) {
    bool first = S_ISFIFO(s->mode) && s->read == 0 && s->fd != STDIN_FILENO;
    for (size_t done = 0; done < n && !s->end;) {
        if (!first && !wait_for_input(s)) return interrupted(err);
        const ssize_t got = read(s->fd, to + done, n - done);
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return tost_error(err, "%s: reading failed after %" PRIu64 " bytes: %s", s->name, s->read, strerror(errno));
        if (got == 0 && first && job->o->waiting)   // nothing has opened the FIFO for writing
            job->o->waiting(job->o->context, s->name);
        else s->end = got == 0;
        first = false;
        done += got > 0 ? (size_t)got : 0;
        s->read += got > 0 ? (uint64_t)got : 0;
    }
    return true;
}

// Removes the first `used` bytes and reads at least half a batch more. At first, checks the beginning of the file and
// removes a byte order mark.
static bool source_read(Source* s, size_t used, Job* job, TostError* err) {
    s->n -= used;
    if (s->n) memmove(s->data, s->data + used, s->n);
    if (s->cap - s->n <= job->batch_bytes / 2) {
        s->cap = s->cap * 2 + job->batch_bytes + TEXT_HEAD_BYTES;
        s->data = xrealloc(s->data, s->cap);
    }
    const uint64_t before = s->read;
    if (!source_fill(s, s->data + s->n, s->cap - s->n, job, err)) return false;
    s->n += (size_t)(s->read - before);
    job->r->bytes += s->read - before;
    size_t skip = 0;
    if (before == 0 && !text_check_head(&skip, s->name, s->data, s->n, err)) return false;
    if (skip) memmove(s->data, s->data + skip, s->n -= skip);
    return true;
}

// ---------------------------------------------------------------------------------------------
// Plain text

// Adds the complete documents in s, and the incomplete one after them up to its last safe cut. The rest begins with the
// white space at the cut, so it includes the line end before a separator line. Returns the number of bytes used.
static size_t add_documents(Job* job, const Source* s) {
    size_t p = 0, end, next;
    for (; document_ends(&end, &next, s->data, p, s->n, s->end); p = next)
        add_text(job, s->data + p, end - p, true);
    size_t rest = s->end ? s->n - p : tokenizer_last_cut(s->data + p, s->n - p);
    add_text(job, s->data + p, rest, s->end);
    return p + rest;
}

// ---------------------------------------------------------------------------------------------
// JSONL

// Decodes the lines in parallel. On an error, err is that of the first invalid line.
static bool decode_lines(Job* job, const char* name, TostError* err) {
    size_t bad = SIZE_MAX;
    #pragma omp parallel for schedule(dynamic, 16) num_threads(job->threads) if (job->n_lines > 16)
    for (size_t i = 0; i < job->n_lines; i++) {
        TostError e;
        Line* line = job->lines + i;
        if (json_text_field(line->text, &line->n_text, NULL, line->json, line->n, "text", &e)) continue;
        #pragma omp critical
        if (i < bad) {
            bad = i;
            tost_error(err, "%s: line %zu: %s", name, job->lines[i].number, e.text);
        }
    }
    return bad == SIZE_MAX;
}

// Collects the complete, non-blank lines of s. A line's text will be decoded to the same position in job->text. Returns
// the number of bytes used.
static size_t collect_lines(Job* job, Source* s) {
    const char *end = s->data + s->n, *json;
    while (!s->end && end > s->data && end[-1] != '\n') end--;
    Lines lines = {s->data, end, s->lines};
    job->n_lines = 0;
    job->text = xrealloc(job->text, s->n + 1);
    for (size_t n; next_line(&json, &n, &lines);) {
        if (is_blank(json, n)) continue;
        job->lines = xgrow(job->lines, job->n_lines, sizeof *job->lines);
        job->lines[job->n_lines++] = (Line){json, n, lines.number, job->text + (json - s->data), 0};
    }
    s->lines = lines.number;
    return (size_t)(end - s->data);
}

static bool add_lines(Job* job, const Source* s, TostError* err) {
    if (!decode_lines(job, s->name, err)) return false;
    for (size_t i = 0; i < job->n_lines; i++) add_text(job, job->lines[i].text, job->lines[i].n_text, true);
    return true;
}

// ---------------------------------------------------------------------------------------------
// The command

static bool tokenize_file(Job* job, const char* path, TostError* err) {
    Source s;
    const bool jsonl = job->o->jsonl || named_jsonl(path);
    bool ok = source_open(&s, path, err);
    for (size_t used = 0; ok && !s.end && (ok = source_read(&s, used, job, err));) {
        used = jsonl ? collect_lines(job, &s) : add_documents(job, &s);
        ok = (!jsonl || add_lines(job, &s, err)) && finish_batch(job, err);
    }
    source_close(&s);
    return ok;
}

// Checks an input file before the work begins. The content of pipes and devices is checked when they are read.
static bool check_file(const char* path, TostError* err) {
    Source s;
    char head[TEXT_HEAD_BYTES];
    struct stat st;
    size_t skip;
    bool ok = true;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) return true;
    if (!source_open(&s, path, err)) return false;
    if (S_ISDIR(s.mode)) ok = tost_error(err, "%s: a folder; give the files in it", path);
    else if (S_ISREG(s.mode) && s.fd != STDIN_FILENO) {
        const ssize_t n = read_at(s.fd, head, sizeof head, 0);
        ok = n < 0 ? tost_error(err, "%s: cannot be read: %s", path, strerror(errno))
                   : text_check_head(&skip, path, head, (size_t)n, err);
    }
    source_close(&s);
    return ok;
}

// If there is only one document, all of it is in the training shards: moves its last tokens to the validation shards.
static bool split_document(Job* job, TostError* err) {
    ShardCount* written = job->r->written;
    const uint64_t n = (uint64_t)(job->o->val_frac * (double)written[SPLIT_TRAIN].tokens);
    if (job->r->documents != 1 || n == 0) return true;
    written[SPLIT_TRAIN].tokens -= n;
    written[SPLIT_VAL].tokens += n;
    return shard_writer_move_tail(job->writer, n, err);
}

static bool check_result(const Job* job, TostError* err) {
    const TokenizeResult* r = job->r;
    const double frac = job->o->val_frac;
    if (!r->documents) return tost_error(err, "no document in the %" PRIu64 " bytes of input", r->bytes);
    if (job->o->val_required && frac > 0 && !r->written[SPLIT_VAL].tokens) {
        return tost_error(err, "--val-frac %g: none of %" PRIu64 " documents went to the validation shards; separate "
                          "documents by lines of " END_OF_TEXT ", or change --val-frac (0: no validation) or --seed",
                          frac, r->documents);
    }
    return true;
}

// OUT_vocab.bpe will be written: fails if it is another tokenizer.
static bool check_vocabulary(const Job* job, TostError* err) {
    char* path = xasprintf("%s_" TOKENIZER_FILE, job->o->out);
    TostError ignored;
    Tokenizer* old = tokenizer_open(path, &ignored);
    const bool ok = old ? tokenizer_hash(old) == tokenizer_hash(job->tokenizer) : !path_exists(path);
    if (!ok) tost_error(err, "%s: exists already and is not --tokenizer; remove it or choose another --out", path);
    tokenizer_free(old);
    free(path);
    return ok;
}

static bool run_job(Job* job, TostError* err) {
    const TokenizeOptions* o = job->o;
    job->tokenizer = tokenizer_open(o->tokenizer, err);
    if (!job->tokenizer) return false;
    job->writer = shard_writer_open(o->out, (uint32_t)tokenizer_size(job->tokenizer), o->shard_tokens, err);
    if (!job->writer || !check_vocabulary(job, err)) return false;
    job->threads = o->threads > 0 ? o->threads : threads_max();
    job->caches = xmalloc((size_t)job->threads * sizeof *job->caches);
    for (int i = 0; i < job->threads; i++) job->caches[i] = tokenizer_cache_new();
    for (int i = 0; i < o->n_files; i++)
        if (!tokenize_file(job, o->files[i], err)) return false;
    if (!split_document(job, err) || !check_result(job, err)) return false;
    ShardWriter* w = job->writer;
    job->writer = NULL;
    return shard_writer_close(w, tokenizer_file(job->tokenizer), job->r->written, err);
}

bool tokenize_files(const TokenizeOptions* o, TokenizeResult* r, TostError* err) {
    *r = (TokenizeResult){0};
    for (int i = 0; i < o->n_files; i++)
        if (!check_file(o->files[i], err)) return false;
    Job job = {.o = o, .r = r, .batch_bytes = o->batch_bytes ? o->batch_bytes : BATCH_BYTES};
    job.part_bytes = job.batch_bytes / BATCH_PARTS + 1;
    char* dir = path_dir(o->out);
    const bool dir_existed = path_exists(dir);
    const bool ok = run_job(&job, err);
    shard_writer_abandon(job.writer);
    if (!ok && !dir_existed) rmdir(dir);
    for (int i = 0; job.caches && i < job.threads; i++) tokenizer_cache_free(job.caches[i]);
    free(job.caches);
    free(job.parts);
    free(job.lines);
    free(job.text);
    free(job.ids);
    free(dir);
    tokenizer_free(job.tokenizer);
    return ok;
}
