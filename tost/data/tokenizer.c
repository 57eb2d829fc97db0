// tokenizer.c: GPT-2's byte-level BPE. GPT-2's pattern splits a document into pieces; the bytes of a piece are merged
// pair by pair, lowest rank first (Sennrich et al., 2016; Radford et al., 2019).
#include "data/tokenizer.h"

#include "base/crc32.h"
#include "base/heap.h"
#include "base/string_set.h"
#include "base/text.h"
#include "data/lines.h"
#include "data/shards.h"
#include "data/unicode_tables.h"

enum {
    BYTES       = 256,        // number of byte tokens
    SHORT_PIECE = 96,         // pieces of up to this many bytes are merged by repeated scans, longer ones with a heap
    NO_TOKEN    = 0x7fffffff, // no merge; greater than every id
};

typedef struct { uint32_t left, right, merged; } Merge;  // merged == NO_TOKEN: free slot

struct Tokenizer {
    char*     path;
    Bytes     file;
    StringSet pieces;            // the bytes of all tokens but the last, <|endoftext|>
    uint32_t  byte_id[BYTES];    // byte -> token
    Merge*    merges;            // hash table (left, right) -> merged
    unsigned  merge_bits;        // 2^merge_bits slots
};

// ---- Text: UTF-8 and GPT-2's pattern ----
//
//     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// The first matching alternative wins. Together they match any text, so the pieces cover it. An invalid UTF-8 byte
// counts as one character that is neither letter, number nor white space.

typedef struct { CharClass class; int bytes; } Char;

static uint8_t unicode_class[UNICODE_LIMIT];   // filled when the first tokenizer is opened

void pattern_prepare(void) {
    if (unicode_class[' '] == CHAR_SPACE) return;
    size_t c = 0;
    for (size_t i = 0; i < countof(unicode_runs); c += unicode_runs[i++] >> 2)
        memset(unicode_class + c, unicode_runs[i] & 3, unicode_runs[i] >> 2);
}

static inline Char char_at(const unsigned char* s, size_t p, size_t n) {
    Char c;
    const uint32_t code = utf8_decode(&c.bytes, (const char*)s + p, (const char*)s + n);
    c.class = code < UNICODE_LIMIT ? (CharClass)unicode_class[code] : CHAR_OTHER;
    return c;
}

// End of the run of characters of one class starting at p.
static size_t run_end(const unsigned char* s, size_t p, size_t n, CharClass class) {
    while (p < n) {
        Char c = char_at(s, p, n);
        if (c.class != class) break;
        p += (size_t)c.bytes;
    }
    return p;
}

// End of a run of ASCII letters, eight bytes at a time (little-endian).
static inline size_t ascii_letters_end(const unsigned char* s, size_t p, size_t n) {
    const uint64_t ones = 0x0101010101010101, tops = 0x80 * ones;
    for (; p + 8 <= n; p += 8) {
        uint64_t v;
        memcpy(&v, s + p, 8);
        uint64_t lower = (v | 0x20 * ones) & ~tops;
        uint64_t from_a = lower + (0x80 - 'a') * ones;        // top bit of a byte: >= 'a'
        uint64_t over_z = lower + (0x80 - 'z' - 1) * ones;    // top bit of a byte: > 'z'
        uint64_t others = ~(from_a & ~over_z & ~v) & tops;
        if (others) return p + (size_t)__builtin_ctzll(others) / 8;
    }
    while (p < n && (unsigned char)((s[p] | 0x20) - 'a') < 26) p++;
    return p;
}

// Length of the contraction at s, n bytes left: 's 't 're 've 'm 'll 'd; 0 if there is none.
static size_t contraction(const unsigned char* s, size_t n) {
    if (n < 2 || s[0] != '\'') return 0;
    if (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd') return 2;
    return n > 2 && ((s[2] == 'e' && (s[1] == 'r' || s[1] == 'v')) || (s[2] == 'l' && s[1] == 'l')) ? 3 : 0;
}

// End of the piece of white space starting at p. If other text follows, \s+(?!\S) excludes the last character, which
// then begins the next piece.
static size_t space_end(const unsigned char* s, size_t p, size_t n) {
    size_t end = p, last = p;
    while (end < n) {
        Char c = char_at(s, end, n);
        if (c.class != CHAR_SPACE) return last > p ? last : end;
        last = end;
        end += (size_t)c.bytes;
    }
    return end;
}

size_t pattern_end(const char* text, size_t p, size_t n) {
    const unsigned char* s = (const unsigned char*)text;
    size_t start = p + (s[p] == ' ' && p + 1 < n);
    size_t end = ascii_letters_end(s, start, n);
    if (end > start) return end < n && s[end] >= 0x80 ? run_end(s, end, n, CHAR_LETTER) : end;
    size_t short_form = contraction(s + p, n - p);
    if (short_form) return p + short_form;
    Char c = char_at(s, start, n);
    return c.class == CHAR_SPACE ? space_end(s, p, n) : run_end(s, start + (size_t)c.bytes, n, c.class);
}

// Splitting at c is safe if s[c] is a space or line feed and the character before it is not white space:
//   - no piece spans c: no alternative has white space after another character;
//   - the pieces before c do not change: each depends on its own characters and the next one. A run that reaches c
//     ends there in both cases, no contraction contains white space, and the (?!\S) of earlier white space looks at
//     a character before c. s[c] is ASCII, so no UTF-8 sequence spans c;
//   - the pieces after c do not change: the pattern has no look-behind.
static bool safe_cut(const unsigned char* s, size_t c) {
    if (c == 0 || (s[c] != ' ' && s[c] != '\n')) return false;
    for (size_t len = 1; len <= 3 && len <= c; len++) {   // white space has up to three bytes
        Char before = char_at(s, c - len, c);
        if (before.class == CHAR_SPACE && (size_t)before.bytes == len) return false;
    }
    return true;
}

size_t tokenizer_last_cut(const char* text, size_t n) {
    for (size_t c = n; c-- > 1;)
        if (safe_cut((const unsigned char*)text, c)) return c;
    return 0;
}

// ---- Merging the bytes of a piece. Ids are in rank order: the smallest id is merged first. ----

// The slot of (left, right), or the free one where it belongs: there, merged is NO_TOKEN.
static inline Merge* find_merge(const Tokenizer* t, uint32_t left, uint32_t right) {
    const size_t mask = ((size_t)1 << t->merge_bits) - 1;
    const uint64_t hash = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15;
    for (size_t i = (size_t)(hash >> (64 - t->merge_bits));; i = (i + 1) & mask) {
        Merge* m = t->merges + i;
        if (m->merged == NO_TOKEN || (m->left == left && m->right == right)) return m;
    }
}

// n <= SHORT_PIECE bytes. pair[i] is the token that id[i] and id[i + 1] merge into. GPT-2 merges all equal pairs in one
// pass; merging the leftmost first gives the same, since merges of the new token have higher ids.
static size_t merge_short(const Tokenizer* t, uint32_t* ids, const unsigned char* s, size_t n) {
    uint32_t id[SHORT_PIECE], pair[SHORT_PIECE];
    for (size_t i = 0; i < n; i++) id[i] = t->byte_id[s[i]];
    for (size_t i = 0; i + 1 < n; i++) pair[i] = find_merge(t, id[i], id[i + 1])->merged;
    pair[n - 1] = NO_TOKEN;
    for (;;) {
        size_t at = 0;
        for (size_t i = 1; i < n; i++)
            if (pair[i] < pair[at]) at = i;
        if (pair[at] == NO_TOKEN) break;
        id[at] = pair[at];
        n--;
        memmove(id + at + 1, id + at + 2, (n - at - 1) * sizeof *id);
        memmove(pair + at, pair + at + 1, (n - at) * sizeof *pair);
        if (at + 1 < n) pair[at] = find_merge(t, id[at], id[at + 1])->merged;
        if (at > 0) pair[at - 1] = find_merge(t, id[at - 1], id[at])->merged;
    }
    memcpy(ids, id, n * sizeof *id);
    return n;
}

typedef struct { size_t prev, next; uint32_t id; } Node;  // id NO_TOKEN: merged into a node to the left

static void push_merge(Heap* h, const Tokenizer* t, const Node* nodes, size_t i, size_t n) {
    if (nodes[i].next >= n) return;
    uint32_t id = find_merge(t, nodes[i].id, nodes[nodes[i].next].id)->merged;
    if (id != NO_TOKEN) heap_push(h, (HeapKey){id, i});   // equal merges from left to right
}

// O(n log n): a linked list of tokens and a heap of their merges. Heap entries of pairs that have changed since are
// skipped: no two merges produce the same id, so such a pair no longer merges into its key's id.
static size_t merge_long(const Tokenizer* t, uint32_t* ids, const unsigned char* s, size_t n) {
    Node* nodes = xmalloc(n * sizeof *nodes);
    Heap heap = {0};
    for (size_t i = 0; i < n; i++) nodes[i] = (Node){.prev = i - 1, .next = i + 1, .id = t->byte_id[s[i]]};
    for (size_t i = 0; i < n; i++) push_merge(&heap, t, nodes, i, n);
    while (heap.count) {
        const HeapKey key = heap_pop(&heap);
        const size_t i = key.second, right = nodes[i].next;
        if (nodes[i].id == NO_TOKEN || right >= n) continue;
        if (find_merge(t, nodes[i].id, nodes[right].id)->merged != key.first) continue;
        nodes[i].id = (uint32_t)key.first;
        nodes[i].next = nodes[right].next;
        nodes[right].id = NO_TOKEN;
        if (nodes[i].next < n) nodes[nodes[i].next].prev = i;
        push_merge(&heap, t, nodes, i, n);
        if (i > 0) push_merge(&heap, t, nodes, nodes[i].prev, n);
    }
    size_t count = 0;
    for (size_t i = 0; i < n; i = nodes[i].next) ids[count++] = nodes[i].id;
    free(heap.keys);
    free(nodes);
    return count;
}

// ---- Encoding ----
//
// Most words of a text occur repeatedly. The cache maps pieces of up to 15 bytes to up to 4 ids, each piece in the one
// place that its hash selects; 2^16 places are 2 MiB.

enum { CACHE_BITS = 16, CACHED_BYTES = 15, CACHED_IDS = 4 };

typedef struct {
    uint64_t key[2];             // bytes of the piece, zero padding, length in the last byte (little-endian); 0: empty
    uint32_t ids[CACHED_IDS];    // unused ones are NO_TOKEN
} CachedPiece;

struct TokenizerCache { CachedPiece pieces[1 << CACHE_BITS]; };

TokenizerCache* tokenizer_cache_new(void) { return xcalloc(1, sizeof(TokenizerCache)); }

// key (2) of the len bytes at s; s has `readable` bytes.
static inline void cache_key(uint64_t* key, const unsigned char* s, size_t len, size_t readable) {
    static const unsigned char mask_bytes[32] = {
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
    };
    uint64_t mask[2];
    memcpy(mask, mask_bytes + 16 - len, 16);
    key[0] = key[1] = 0;
    memcpy(key, s, readable >= 16 ? 16 : len);
    key[0] &= mask[0];
    key[1] = (key[1] & mask[1]) | (uint64_t)len << 56;
}

// Encodes a piece that is not in its place, and stores it there if its ids fit.
static size_t cache_miss(const Tokenizer* t, CachedPiece* place, const uint64_t* key, uint32_t* ids,
                         const unsigned char* s, size_t len) {
    size_t count = merge_short(t, ids, s, len);
    if (count > CACHED_IDS) return count;
    *place = (CachedPiece){{key[0], key[1]}, {NO_TOKEN, NO_TOKEN, NO_TOKEN, NO_TOKEN}};
    memcpy(place->ids, ids, count * sizeof *ids);
    return count;
}

size_t tokenizer_encode(const Tokenizer* t, TokenizerCache* cache, uint32_t* ids, const char* text, size_t n) {
    const unsigned char* s = (const unsigned char*)text;
    size_t count = 0;
    for (size_t p = 0, end; p < n; p = end) {
        end = pattern_end(text, p, n);
        size_t len = end - p;
        if (!cache || len > CACHED_BYTES) {
            count += (len <= SHORT_PIECE ? merge_short : merge_long)(t, ids + count, s + p, len);
            continue;
        }
        uint64_t key[2];
        cache_key(key, s + p, len, n - p);
        uint64_t h = (key[0] ^ key[1] * 0xff51afd7ed558ccd) * 0x9e3779b97f4a7c15;
        CachedPiece* hit = cache->pieces + (h >> (64 - CACHE_BITS));
        if (hit->key[0] != key[0] || hit->key[1] != key[1]) {
            count += cache_miss(t, hit, key, ids + count, s + p, len);
            continue;
        }
        unsigned found = 1;
        for (unsigned i = 1; i < CACHED_IDS; i++) found += hit->ids[i] != NO_TOKEN;
        // A token has at least one byte, so count <= p: copying four ids is safe unless the text ends here.
        memcpy(ids + count, hit->ids, (p + CACHED_IDS <= n ? CACHED_IDS : found) * sizeof *ids);
        count += found;
    }
    return count;
}

// ---- Reading vocab.bpe ----

static bool printable(unsigned b) { return (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad && b <= 0xff); }

int alphabet_byte(uint32_t c) {
    if (c < BYTES) return printable(c) ? (int)c : -1;
    for (unsigned b = 0, hidden = 0x100; b < BYTES; b++)
        if (!printable(b) && hidden++ == c) return (int)b;
    return -1;
}

typedef struct {
    Tokenizer*  t;
    TostError*  err;
    Lines       lines;
    char*       piece;      // room for any piece
} Loader;

static bool line_error(const Loader* l, const char* text, size_t n, const char* what) {
    enum { QUOTED = 40 };  // bytes of the text that are shown
    return tost_error(l->err, "%s: line %zu: '%.*s' %s; dev/data/vocab.py downloads GPT-2's vocab.bpe, or makes one of "
                      "a tokenizer.json", l->t->path, l->lines.number, (int)(n < QUOTED ? n : QUOTED), text, what);
}

// The id of one part of a merge. Appends its bytes to the piece, which has *bytes.
static bool read_part(Loader* l, uint32_t* id, size_t* bytes, const char* text, size_t n) {
    const size_t first = *bytes, known = l->t->pieces.n;
    int len;
    for (const char* p = text; p < text + n; p += len) {
        const int byte = alphabet_byte(utf8_decode(&len, p, text + n));
        if (byte < 0) return line_error(l, text, n, "has a character that is not in GPT-2's alphabet of bytes");
        l->piece[(*bytes)++] = (char)byte;
    }
    *id = string_set_add(&l->t->pieces, l->piece + first, *bytes - first, 0);
    return *id < known || line_error(l, text, n, "is neither a byte nor a token of an earlier line");
}

// One line: "left right".
static bool read_merge(Loader* l, const char* text, size_t n) {
    Tokenizer* t = l->t;
    const char* space = memchr(text, ' ', n);
    size_t n_left = space ? (size_t)(space - text) : 0, n_right = space ? n - n_left - 1 : 0;
    if (!n_left || !n_right || memchr(space + 1, ' ', n_right))
        return line_error(l, text, n, "is not two parts separated by one space");
    size_t bytes = 0;
    uint32_t left, right;
    if (!read_part(l, &left, &bytes, text, n_left) || !read_part(l, &right, &bytes, space + 1, n_right)) return false;
    const uint32_t next = (uint32_t)t->pieces.n;
    if (string_set_add(&t->pieces, l->piece, bytes, 0) < next)
        return line_error(l, text, n, "repeats an earlier token");
    *find_merge(t, left, right) = (Merge){left, right, next};
    return true;
}

// Allocates the table of merges for a file of n_lines and adds the byte tokens.
static void prepare(Tokenizer* t, size_t n_lines) {
    t->merge_bits = 10;
    while ((size_t)1 << t->merge_bits < 2 * n_lines) t->merge_bits++;
    size_t slots = (size_t)1 << t->merge_bits;
    t->merges = xmalloc(slots * sizeof *t->merges);
    for (size_t i = 0; i < slots; i++) t->merges[i].merged = NO_TOKEN;
    for (uint32_t c = 0; t->pieces.n < BYTES; c++) {
        const int byte = alphabet_byte(c);
        if (byte >= 0) t->byte_id[byte] = string_set_add(&t->pieces, &(char){(char)byte}, 1, 0);
    }
}

// Ids are in rank order: bytes, merges, <|endoftext|>. The file may end in blank lines.
static bool load(Tokenizer* t, TostError* err) {
    const Bytes* file = &t->file;
    size_t n_lines = 1, skip = 0, n = file->size;
    bool ok = text_check_head(&skip, t->path, file->data, n, err);
    while (n > skip && memchr(" \t\r\n", file->data[n - 1], 4)) n--;
    for (size_t i = 0; i < n; i++) n_lines += file->data[i] == '\n';
    Loader l = {.t = t, .err = err, .lines = {file->data + skip, file->data + n, 0}, .piece = xmalloc(file->size)};
    prepare(t, n_lines);
    const char* line;
    while (ok && next_line(&line, &n, &l.lines))
        ok = (l.lines.number == 1 && strncmp(line, "#version", strlen("#version")) == 0) || read_merge(&l, line, n);
    free(l.piece);
    return ok;
}

// Beside a merges.txt, files of Hugging Face tokenizers have the ids, which may be in another order than the merges.
static bool check_alone(const char* path, TostError* err) {
    static const char merges[] = "merges.txt", *const names[] = {"vocab.json", "tokenizer.json"};
    const int prefix = (int)strlen(path) - (int)strlen(merges);
    for (size_t i = 0; prefix >= 0 && strcmp(path + prefix, merges) == 0 && i < countof(names); i++) {
        const Path beside = path_text("%.*s%s", prefix, path, names[i]);
        if (is_file(beside.text))
            return tost_error(err, "%s: tokens may have other ids in %s beside it, which is not read; to tokenize text "
                              "with ids in the order of merges, copy %s to a vocab.bpe elsewhere; for the ids of a "
                              "tokenizer.json: dev/data/vocab.py --from FILE --out vocab.bpe", path, beside.text, path);
    }
    return true;
}

Tokenizer* tokenizer_open(const char* path, TostError* err) {
    Tokenizer* t = xcalloc(1, sizeof *t);
    t->path = xstrdup(path);
    pattern_prepare();
    const bool fits = read_file(&t->file, path, err) && (t->file.size <= TOKENIZER_MAX_FILE
        || tost_error(err, "%s: %zu bytes, but a vocab.bpe has at most %d", path, t->file.size, TOKENIZER_MAX_FILE));
    if (fits && load(t, err) && check_alone(path, err)) return t;
    tokenizer_free(t);
    return NULL;
}

bool tokenizer_beside(Path* path, const char* file) {
    *path = path_text("%s_" TOKENIZER_FILE, shard_prefix(file).text);
    if (!is_file(path->text)) *path = path_in(path_above(file).text, TOKENIZER_FILE);
    return is_file(path->text);
}

void tokenizer_free(Tokenizer* t) {
    if (!t) return;
    free(t->path);
    free(t->file.data);
    string_set_free(&t->pieces);
    free(t->merges);
    free(t);
}

int tokenizer_size(const Tokenizer* t) { return (int)t->pieces.n + 1; }
int tokenizer_eot(const Tokenizer* t) { return (int)t->pieces.n; }
const char* tokenizer_path(const Tokenizer* t) { return t->path; }
const Bytes* tokenizer_file(const Tokenizer* t) { return &t->file; }
uint32_t tokenizer_hash(const Tokenizer* t) { return crc32_update(0, t->file.data, t->file.size); }

const char* tokenizer_piece(const Tokenizer* t, uint32_t id, size_t* len) {
    const String* s = id < t->pieces.n ? &t->pieces.strings[id] : NULL;
    const bool eot = id == t->pieces.n;
    *len = s ? s->n : eot ? sizeof END_OF_TEXT - 1 : 0;
    return s ? t->pieces.bytes + s->first : eot ? END_OF_TEXT : NULL;
}
