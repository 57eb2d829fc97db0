// documents.c: reads text files as documents. Input is read in batches. Memory is bounded for documents of any size,
// except for a JSONL line, or text without white space, that is longer than a batch.
#include "data/documents.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/openmp.h"
#include "base/signals.h"

enum {
    BATCH_BYTES = 16 << 20,  // input bytes per batch
    BATCH_PARTS = 256,       // parts of a batch that is one long document
};

// One line of JSONL and its decoded text.
typedef struct {
    const char* json;
    size_t      n;
    size_t      number;     // 1-based
    char*       text;       // room for n + 1 bytes
    size_t      n_text;
} Line;

typedef struct {
    const TextInput* in;
    TextCount* count;
    size_t     batch_bytes;
    // current batch
    TextPart*  parts;
    size_t     n_parts;
    Line*      lines;          // of JSONL
    size_t     n_lines;
    char*      text;           // decoded from them
    bool       in_document;    // the current document has begun
    uint64_t   head;           // its hash, see TextPart
} Reader;

// A file being read: data[0 .. n) has been read and not yet processed.
typedef struct {
    const char* name;                // for messages
    int         fd;
    uint64_t    size;                // of a regular file, or 0
    bool        jsonl;
    char*       data;
    size_t      n;
    uint64_t    read;                // bytes read so far
    size_t      lines;               // of JSONL, processed so far
    Broken      broken;              // of plain text
    bool        end;                 // end of file reached
} InputFile;

// ---- Separators ----

bool document_ends(size_t* end, size_t* next, const char* s, size_t from, size_t n, bool last) {
    const size_t len = sizeof END_OF_TEXT - 1;
    size_t at = from;
    for (const char* hit; (hit = memmem(s + at, n - at, END_OF_TEXT, len)); at = *end + 1) {
        *end = (size_t)(hit - s);
        *next = *end + len;
        if (*end && s[*end - 1] != '\n') continue;
        while (*next < n && (s[*next] == ' ' || s[*next] == '\t' || s[*next] == '\r')) ++*next;
        if (*next == n && !last) return false;
        if (*next < n && s[(*next)++] != '\n') continue;
        if (*end > from && s[*end - 1] == '\n') --*end;
        if (*end > from && s[*end - 1] == '\r') --*end;
        return true;
    }
    *end = n;
    return false;
}

bool end_of_text_inside(const char* text, size_t n) {
    size_t from = 0, end, next, inside = 0;
    for (const char* p = text; (p = memmem(p, n - (size_t)(p - text), END_OF_TEXT, strlen(END_OF_TEXT))); p++) inside++;
    for (; document_ends(&end, &next, text, from, n, true); from = next) inside--;
    return inside > 0;
}

size_t encode_documents(uint32_t* ids, const Tokenizer* t, const char* text, size_t n) {
    size_t n_ids = 0, from = 0, end, next;
    for (; document_ends(&end, &next, text, from, n, true); from = next) {
        n_ids += tokenizer_encode(t, NULL, ids + n_ids, text + from, end - from);
        ids[n_ids++] = (uint32_t)tokenizer_eot(t);
    }
    return n_ids + tokenizer_encode(t, NULL, ids + n_ids, text + from, n - from);
}

bool interrupted(TostError* err) { return tost_error(err, "interrupted; nothing was written"); }

// ---- Reading ----

// Does not wait for the writer of a FIFO; wait_for_input does.
static bool file_open(InputFile* f, const char* path, TostError* err) {
    struct stat st;
    const bool standard = strcmp(path, "-") == 0;
    *f = (InputFile){.name = standard ? "standard input" : path,
                  .fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (f->fd < 0) return tost_error(err, "%s: cannot be opened: %s", path, strerror(errno));
    f->broken.name = f->name;
    f->size = fstat(f->fd, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    return true;
}

static void file_close(InputFile* f) {
    if (f->fd >= 0 && f->fd != STDIN_FILENO) close(f->fd);
    free(f->data);
}

// Waits until a pipe or terminal can be read; false if a signal arrives. poll has a timeout, since the signal may come
// just before it.
static bool wait_for_input(const InputFile* f) {
    enum { MILLISECONDS = 200 };
    struct pollfd in = {.fd = f->fd, .events = POLLIN};
    int ready = 0;
    while (!ready && !signals_received()) {
        ready = poll(&in, 1, MILLISECONDS);
        if (ready < 0 && (errno == EINTR || errno == EAGAIN)) ready = 0;
    }
    return !signals_received();
}

// Reads n bytes, or fewer at the end of the file: f->end.
static bool file_fill(InputFile* f, char* to, size_t n, TostError* err) {
    for (size_t done = 0; done < n && !f->end;) {
        if (!wait_for_input(f)) return interrupted(err);
        const ssize_t got = read(f->fd, to + done, n - done);
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return tost_error(err, "%s: reading failed after %" PRIu64 " bytes: %s", f->name, f->read, strerror(errno));
        f->end = got == 0;
        done += got > 0 ? (size_t)got : 0;
        f->read += got > 0 ? (uint64_t)got : 0;
    }
    return true;
}

// Removes the first `used` bytes and reads a batch more. At first, checks the beginning of the file and removes a byte
// order mark.
static bool file_read(InputFile* f, size_t used, Reader* reader, TostError* err) {
    const uint64_t before = f->read;
    const size_t more = reader->batch_bytes + (before ? 0 : FORMAT_HEAD_BYTES);
    f->n -= used;
    if (f->n) memmove(f->data, f->data + used, f->n);
    f->data = xrealloc(f->data, f->n + more);
    if (!file_fill(f, f->data + f->n, more, err)) return false;
    f->n += (size_t)(f->read - before);
    reader->count->bytes += f->read - before;
    size_t skip = 0;
    if (before == 0 && !text_check_head(&skip, f->name, f->data, f->n, err)) return false;
    if (skip) memmove(f->data, f->data + skip, f->n -= skip);
    return true;
}

static bool find_format(InputFile* f, Reader* reader, TostError* err) {
    if (!file_read(f, 0, reader, err)) return false;
    const TextInput* in = reader->in;
    const char* end = f->data + f->n;
    f->jsonl = in->jsonl || (!in->plain && (has_suffix(f->name, ".jsonl") || begins_json(f->data, end, '{')));
    if (f->jsonl || in->plain) return true;
    if (!begins_json(f->data, end, '[')) return check_markup(f->name, f->data, end, err);
    return tost_error(err, "%s: a JSON array; jq -c '.[]' FILE | ./train_gpt_tost … - reads its objects (jq -c '.[] | "
                      "{text: .}' its strings), --plain reads it as text", f->name);
}

// ---- Parts ----

static void add_part(Reader* reader, const char* text, size_t n, bool ends) {
    reader->parts = xgrow(reader->parts, reader->n_parts, sizeof *reader->parts);
    reader->parts[reader->n_parts++] = (TextPart){text, n, reader->head, ends};
}

// Adds the next n bytes of the current document, at first at least its head; ends: the document ends after them.
static void add_text(Reader* reader, const char* text, size_t n, bool ends) {
    if (n && !reader->in_document) {
        reader->in_document = true;
        reader->count->documents++;
        reader->head = 0xcbf29ce484222325;   // FNV-1a
        for (size_t i = 0; i < n && i < DOCUMENT_HEAD; i++)
            reader->head = (reader->head ^ (uint8_t)text[i]) * 0x100000001b3;
    }
    if (!reader->in_document) return;
    const size_t part = reader->batch_bytes / BATCH_PARTS + 1;
    for (size_t want = part; want < n;) {
        size_t cut = tokenizer_last_cut(text, want);
        if (cut) add_part(reader, text, cut, false);
        text += cut;
        n -= cut;
        want = cut ? part : want * 2;
    }
    add_part(reader, text, n, ends);
    if (ends) reader->in_document = false;
}

// ---- Plain text ----

// Adds the complete documents in f, and the incomplete one after them up to its last safe cut, but not less than its
// head. The rest begins with the white space at the cut, so it includes the line end before a separator line. Returns
// the number of bytes used.
static size_t add_documents(Reader* reader, const InputFile* f) {
    size_t p = 0, end, next;
    for (; document_ends(&end, &next, f->data, p, f->n, f->end); p = next)
        add_text(reader, f->data + p, end - p, true);
    size_t rest = f->end ? f->n - p : tokenizer_last_cut(f->data + p, end - p);
    if (!f->end && !reader->in_document && rest < DOCUMENT_HEAD) rest = 0;
    add_text(reader, f->data + p, rest, f->end);
    return p + rest;
}

// Counts broken bytes and separators inside lines. Fails as soon as a file has too many broken bytes whatever follows.
// A pipe counts as at least 1 GiB until its end.
static bool check_parts(InputFile* f, Reader* reader, TostError* err) {
    const uint64_t size = f->end ? 0 : f->size ? f->size : 1 << 30, base = f->read - f->n;
    uint64_t count = 0, inside = 0, first = UINT64_MAX;
    #pragma omp parallel for reduction(+ : count, inside) reduction(min : first) \
        num_threads(threads_or_max(reader->in->threads)) if (reader->n_parts > 16)
    for (size_t i = 0; i < reader->n_parts; i++) {
        const char *p = reader->parts[i].text, *end = p + reader->parts[i].n;
        uint64_t at = 0;
        const uint64_t broken = count_broken(&at, p, (size_t)(end - p));
        at += base + (uint64_t)(p - f->data);
        if (broken && at < first) first = at;
        count += broken;
        while ((p = memmem(p, (size_t)(end - p), END_OF_TEXT, sizeof END_OF_TEXT - 1))) p++, inside++;
    }
    if (!f->broken.count) f->broken.first = first;
    f->broken.count += count;
    f->broken.bytes = f->read;
    if (inside && !reader->count->inside) reader->count->inside_in = f->name;
    reader->count->inside += inside;
    return broken_accepted(&f->broken, size > f->read ? size : f->read, err);
}

// ---- JSONL ----

// Decodes the lines in parallel and adds their texts. With in->skip_bad_lines, invalid ones are counted and left empty;
// otherwise, fails with the error of the first one.
static bool decode_lines(Reader* reader, const char* name, TostError* err) {
    const TextInput* in = reader->in;
    const char* field = in->text_field ? in->text_field : "text";
    size_t bad = SIZE_MAX;
    uint64_t count = 0;
    TostError first;
    #pragma omp parallel for schedule(dynamic, 16) num_threads(threads_or_max(in->threads)) if (reader->n_lines > 16)
    for (size_t i = 0; i < reader->n_lines; i++) {
        TostError e;
        Line* line = reader->lines + i;
        if (json_text_field(line->text, &line->n_text, NULL, line->json, line->n, field, &e)) continue;
        line->n_text = 0;
        #pragma omp critical
        {
            count++;
            if (i < bad) tost_error(&first, "%s: line %zu: %s", name, reader->lines[bad = i].number, e.text);
        }
    }
    if (count && !in->skip_bad_lines)
        return tost_error(err, "%s; --text-field NAME reads another field, --plain reads plain text, --skip-bad-lines "
                          "skips such lines; jq -c . FILE writes objects on one line each, iconv -f LATIN1 -t UTF-8 "
                          "FILE converts Latin-1", first.text);
    if (count && !reader->count->skipped) reader->count->first_skipped = first;
    reader->count->skipped += count;
    for (size_t i = 0; i < reader->n_lines; i++) add_text(reader, reader->lines[i].text, reader->lines[i].n_text, true);
    return true;
}

// Collects the complete, non-blank lines of JSONL, whose text will be decoded to the same position in reader->text. Of
// plain text, adds them, except separators. Returns the number of bytes used.
static size_t collect_lines(Reader* reader, InputFile* f) {
    const char *end = f->data + f->n, *json;
    while (!f->end && end > f->data && end[-1] != '\n') end--;
    Lines lines = {f->data, end, f->lines};
    reader->n_lines = 0;
    reader->text = xrealloc(reader->text, f->n + 1);
    for (size_t n, at, next; next_line(&json, &n, &lines);) {
        if (is_blank(json, n)) continue;
        if (!f->jsonl && !document_ends(&at, &next, json, 0, n, true)) add_text(reader, json, n, true);
        if (!f->jsonl) continue;
        reader->lines = xgrow(reader->lines, reader->n_lines, sizeof *reader->lines);
        reader->lines[reader->n_lines++] = (Line){json, n, lines.number, reader->text + (json - f->data), 0};
    }
    f->lines = lines.number;
    return (size_t)(end - f->data);
}

// ---- Files ----

static bool read_documents(Reader* reader, const char* path, UseParts* use, void* job, TostError* err) {
    InputFile f;
    TextCount* c = reader->count;
    bool ok = file_open(&f, path, err) && find_format(&f, reader, err);
    for (bool more = true; ok && more;) {
        const size_t used = f.jsonl || reader->in->lines ? collect_lines(reader, &f) : add_documents(reader, &f);
        ok = (f.jsonl ? decode_lines(reader, f.name, err) : check_parts(&f, reader, err))
            && use(job, reader->parts, reader->n_parts, err) && (!signals_received() || interrupted(err));
        reader->n_parts = 0;
        more = !f.end;
        ok = ok && (!more || file_read(&f, used, reader, err));
    }
    c->jsonl_files += f.jsonl;
    if (!c->broken.count) c->broken.first = f.broken.first, c->broken.name = f.name;
    c->broken.count += f.broken.count;
    c->broken.bytes += f.broken.bytes;
    file_close(&f);
    return ok;
}

bool documents_read(const TextInput* in, TextCount* count, UseParts* use, void* job, TostError* err) {
    Reader reader = {.in = in, .count = count, .batch_bytes = in->batch_bytes ? in->batch_bytes : BATCH_BYTES};
    bool ok = true;
    *count = (TextCount){0};
    for (int i = 0; ok && i < in->files.count; i++) ok = read_documents(&reader, in->files.strings[i], use, job, err);
    if (ok && !count->documents)
        ok = tost_error(err, "no document in the %" PRIu64 " bytes of input%s%s", count->bytes,
                        count->skipped ? "; the first line skipped: " : "", count->first_skipped.text);
    free(reader.parts);
    free(reader.lines);
    free(reader.text);
    return ok;
}

// A pipe is not opened, because its writer would begin.
static bool check_file(const char* path, TostError* err) {
    InputFile f;
    char head[FORMAT_HEAD_BYTES];
    size_t skip;
    if (is_dir(path)) return tost_error(err, "%s: a folder; give the files in it", path);
    if (strcmp(path, "-") == 0 || (path_exists(path) && !is_file(path))) return true;
    if (!file_open(&f, path, err)) return false;
    const ssize_t n = read_at(f.fd, head, sizeof head, 0);
    file_close(&f);
    return n < 0 ? tost_error(err, "%s: cannot be read: %s", path, strerror(errno))
                 : text_check_head(&skip, path, head, (size_t)n, err);
}

bool documents_check(const TextInput* in, TostError* err) {
    for (int i = 0; i < in->files.count; i++)
        if (!check_file(in->files.strings[i], err)) return false;
    return true;
}
