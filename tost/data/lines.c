// lines.c: reads text files line by line.
#include "data/lines.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/say.h"
#include "base/text.h"
#include "data/shards.h"

bool text_check_head(size_t* skip, const char* name, const char* head, size_t n, TostError* err) {
    static const char mark[] = "\xef\xbb\xbf";
    if (!check_format(name, head, n, err)) return false;
    if (shard_begins(head, n)) return tost_error(err, "%s: a token shard, not text; use it as --data", name);
    if (n > 8 && head[8] == '{' && memcmp(head + 4, "\0\0\0", 4) == 0)   // after the length of its header
        return tost_error(err, "%s: a safetensors file, not text; give a text file", name);
    *skip = n >= sizeof mark - 1 && memcmp(head, mark, sizeof mark - 1) == 0 ? sizeof mark - 1 : 0;
    return true;
}

uint64_t count_broken(uint64_t* first, const char* text, size_t n) {
    const uint64_t ones = UINT64_MAX / 255, highs = ones << 7;
    const char *p = text, *end = text + n;
    uint64_t count = 0, word;
    for (int bytes; p < end; p += bytes) {
        const uint8_t* u = (const uint8_t*)p;
        bytes = 8;   // all are 1 to 127
        if (end - p >= 8 && u[0] < 0x80 && (memcpy(&word, p, 8), !(((word - ones) | word) & highs))) continue;
        const uint32_t c = utf8_decode(&bytes, p, end);
        if ((c == 0 || c == UTF8_INVALID) && count++ == 0) *first = (uint64_t)(p - text);
    }
    return count;
}

TextLine broken_line(const Broken* b) {
    return text_line("%" PRIu64 " of %" PRIu64 " bytes (%.3g%%) are NUL or not UTF-8, the first at byte %" PRIu64
                     " of %s", b->count, b->bytes, 100 * (double)b->count / (double)b->bytes, b->first, b->name);
}

bool broken_accepted(const Broken* b, uint64_t bytes, TostError* err) {
    return b->count <= bytes / 1000
        || tost_error(err, "%s; text in another encoding, such as LATIN1 or UTF-16: iconv -f LATIN1 -t UTF-8 FILE; to "
                      "drop these bytes: iconv -c -f UTF-8 -t UTF-8 FILE | tr -d '\\000'", broken_line(b).text);
}

bool check_utf8_text(const char* name, uint64_t at, const char* text, size_t n, TostError* err) {
    Broken b = {.bytes = n, .name = name};
    b.count = count_broken(&b.first, text, n);
    b.first += at;
    if (!broken_accepted(&b, n, err)) return false;
    if (b.count) print_warning("%s; they are kept as they are", broken_line(&b).text);
    return true;
}

bool next_line(const char** text, size_t* n, Lines* l) {
    if (l->at == l->end) return false;
    const char* feed = memchr(l->at, '\n', (size_t)(l->end - l->at));
    *text = l->at;
    *n = (size_t)((feed ? feed : l->end) - l->at);
    l->at = feed ? feed + 1 : l->end;
    l->number++;
    if (*n > 0 && (*text)[*n - 1] == '\r') --*n;
    return true;
}

bool is_blank(const char* text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (text[i] != ' ' && text[i] != '\t') return false;
    return true;
}

bool begins_json(const char* p, const char* end, char bracket) {
    while (p < end && memchr(" \t\r\n", *p, 4)) p++;
    if (p == end || *p++ != bracket) return false;
    while (p < end && memchr(" \t\r\n", *p, 4)) p++;
    return p < end && (*p == '"' || *p == (bracket == '{' ? '}' : '{'));
}

bool read_lines(Bytes* file, Lines* l, const char* path, TostError* err) {
    size_t skip = 0;
    if (!read_file(file, path, err)) return false;
    if (!text_check_head(&skip, strcmp(path, "-") == 0 ? "standard input" : path, file->data, file->size, err)) {
        free(file->data);
        *file = (Bytes){0};
        return false;
    }
    *l = (Lines){file->data + skip, file->data + file->size, 0};
    return true;
}
