// vocab.c: learns a vocabulary by byte-pair encoding (Sennrich et al., 2016). Counts the words of the text and, for
// each pair of adjacent tokens, its occurrences and the words that have it. A merge changes only those words.
#include "data/vocab.h"

#include "base/folder.h"
#include "base/heap.h"
#include "base/openmp.h"
#include "base/signals.h"
#include "base/string_set.h"
#include "base/text.h"

enum { BYTES = VOCAB_MIN_SIZE - 1 };   // tokens of one byte

typedef struct { uint32_t* words; size_t n; } Holders;   // the words that have a pair, or had it

typedef struct {
    const VocabOptions* o;
    VocabResult* result;
    int        threads;
    StringSet* words;        // (threads) how often each occurs; in the end, words[0] has all
    uint32_t*  tokens;       // word w is tokens[first .. first + n) of its String
    char**     pieces;       // (size) the tokens, as written in the file
    StringSet  pairs;        // left << 32 | right; how often each occurs
    Holders*   holders;      // by number of the pair
    size_t     old_pairs;    // number of pairs before the current merge
    Heap       queue;        // ~count and ids of pairs. The count may have decreased since
    FILE*      file;         // in memory
} Learner;

static bool count_words(void* context, const TextPart* parts, size_t n, TostError* err) {
    Learner* l = context;
    (void)err;
    #pragma omp parallel for schedule(dynamic) num_threads(l->threads) if (n > 1)
    for (size_t i = 0; i < n; i++) {
        StringSet* words = l->words + thread_index();
        for (size_t p = 0, end; p < parts[i].n; p = end) {
            end = pattern_end(parts[i].text, p, parts[i].n);
            string_set_add(words, parts[i].text + p, end - p, 1);
        }
    }
    if (l->o->progress) l->o->progress(l->o->in.context, l->result);
    return true;
}

// Adds the words of all threads to words[0]. Their order, which depends on the threads, has no effect.
static void collect_words(Learner* l) {
    for (int t = 1; t < l->threads; t++) {
        StringSet* s = l->words + t;
        for (const String* w = s->strings; w < s->strings + s->n; w++)
            string_set_add(l->words, s->bytes + w->first, w->n, w->count);
        string_set_free(s);
    }
    l->result->words = l->words->n;
}

// ---- Pairs ----

// Counts a pair that the word has now, or (gone) one that it has no more.
static void count_pair(Learner* l, uint32_t left, uint32_t right, uint32_t word, bool gone) {
    const uint64_t count = l->words->strings[word].count, pair = (uint64_t)left << 32 | right;
    const size_t known = l->pairs.n;
    const uint32_t i = string_set_add(&l->pairs, (const char*)&pair, sizeof pair, gone ? -count : count);
    if (i < l->old_pairs) return;   // the word is among its holders
    if (i == known) (l->holders = xgrow(l->holders, i, sizeof *l->holders))[i] = (Holders){0};
    Holders* h = l->holders + i;
    if (h->n && h->words[h->n - 1] == word) return;
    h->words = xgrow(h->words, h->n, sizeof *h->words);
    h->words[h->n++] = word;
}

// Queues the pairs of a new token. Later merges only replace them, so their counts do not increase.
static void queue_pairs(Learner* l) {
    for (; l->old_pairs < l->pairs.n; l->old_pairs++) {
        const String s = l->pairs.strings[l->old_pairs];
        HeapKey key = {.first = ~s.count};
        memcpy(&key.second, l->pairs.bytes + s.first, s.n);
        if (s.count) heap_push(&l->queue, key);
    }
}

// The tokens are the bytes: counts their pairs.
static void begin_with_bytes(Learner* l) {
    uint32_t id[BYTES], n = 0;
    for (uint32_t c = 0; n < BYTES; c++) {
        const int byte = alphabet_byte(c);
        if (byte < 0) continue;
        id[byte] = n;
        utf8_encode(l->pieces[n++] = xcalloc(1, 5), c);
    }
    l->tokens = xmalloc(l->words->used * sizeof *l->tokens);
    for (size_t i = 0; i < l->words->used; i++) l->tokens[i] = id[(uint8_t)l->words->bytes[i]];
    for (size_t w = 0; w < l->words->n && !signals_received(); w++) {
        const String s = l->words->strings[w];
        for (size_t i = s.first; i + 1 < s.first + s.n; i++)
            count_pair(l, l->tokens[i], l->tokens[i + 1], (uint32_t)w, false);
    }
    queue_pairs(l);
}

// ---- Merges ----

// Replaces a pair in a word, from left to right.
static void merge_in_word(Learner* l, uint32_t left, uint32_t right, uint32_t merged, uint32_t word) {
    String* s = l->words->strings + word;
    uint32_t* t = l->tokens + s->first;
    size_t n = 0;
    for (size_t i = 0; i < s->n; t[n++] = t[i++]) {
        if (i + 1 == s->n || t[i] != left || t[i + 1] != right) continue;
        if (n > 0) {
            count_pair(l, t[n - 1], left, word, true);
            count_pair(l, t[n - 1], merged, word, false);
        }
        if (i + 2 < s->n) {
            count_pair(l, right, t[i + 2], word, true);
            count_pair(l, merged, t[i + 2], word, false);
        }
        t[++i] = merged;
    }
    s->n = n;
}

// Makes a token of a pair. Its bytes are those of no other token: wherever they occur, they were merged alike.
static void merge_pair(Learner* l, uint64_t pair, Holders holders) {
    const uint32_t left = (uint32_t)(pair >> 32), right = (uint32_t)pair;
    const uint32_t merged = BYTES + (uint32_t)l->result->merges++;
    l->pieces[merged] = xasprintf("%s%s", l->pieces[left], l->pieces[right]);
    fprintf(l->file, "%s %s\n", l->pieces[left], l->pieces[right]);
    for (size_t i = 0; i < holders.n; i++) merge_in_word(l, left, right, merged, holders.words[i]);
    queue_pairs(l);
    if (l->o->progress) l->o->progress(l->o->in.context, l->result);
}

static bool learn(Learner* l, TostError* err) {
    pattern_prepare();
    if (l->o->in.files.count && !documents_read(&l->o->in, &l->result->read, count_words, l, err)) return false;
    collect_words(l);
    begin_with_bytes(l);
    fputs("#version: 0.2\n", l->file);
    const long limit = TOKENIZER_MAX_FILE;
    while (l->queue.count && l->result->merges < l->result->wanted && ftell(l->file) <= limit && !signals_received()) {
        const HeapKey key = heap_pop(&l->queue);
        const uint32_t i = string_set_add(&l->pairs, (const char*)&key.second, sizeof key.second, 0);
        const uint64_t count = l->pairs.strings[i].count;
        l->result->frequent += count == ~key.first && count >= VOCAB_FREQUENT;
        if (count == ~key.first) merge_pair(l, key.second, l->holders[i]);
        else if (count) heap_push(&l->queue, (HeapKey){~count, key.second});
    }
    if (signals_received()) return interrupted(err);
    return ftell(l->file) <= limit
        || tost_error(err, "%s: would have more than %ld bytes; give a lower --size", l->o->out, limit);
}

bool vocab_learn(const VocabOptions* o, VocabResult* result, TostError* err) {
    *result = (VocabResult){.wanted = o->size - VOCAB_MIN_SIZE};
    if (path_exists(o->out))
        return tost_error(err, "%s: exists already; remove it or choose another --out", o->out);
    if (!check_writable(o->out, err) || !documents_check(&o->in, err)) return false;
    Learner l = {.o = o, .result = result, .threads = threads_or_max(o->in.threads)};
    Bytes text;
    l.words = xcalloc((size_t)l.threads, sizeof *l.words);
    l.pieces = xcalloc((size_t)o->size, sizeof *l.pieces);
    l.file = open_memstream(&text.data, &text.size);
    bool ok = learn(&l, err);
    fclose(l.file);
    ok = ok && replace_file(o->out, text.data, text.size, err);
    for (int t = 0; t < l.threads; t++) string_set_free(l.words + t);
    for (size_t i = 0; i < l.pairs.n; i++) free(l.holders[i].words);
    for (int i = 0; i < o->size; i++) free(l.pieces[i]);
    string_set_free(&l.pairs);
    free(l.pieces);
    free(l.words);
    free(l.tokens);
    free(l.holders);
    free(l.queue.keys);
    free(text.data);
    return ok;
}
