#include "data/lines.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"
#include "data/shards.h"

#define PIPE(filter) "pipe it through a filter: " filter " | ./train_gpt_tost … -"
#define DATASET "python3 dev/data/corpus.py own --from "

// UTF-16 or UTF-32, with or without a mark: the highest byte of many characters is 0, the lowest of few. NULL: neither.
static const char* wide_encoding(const char* head, size_t n) {
    size_t zeros[4] = {0};
    for (size_t i = 0; i < n; i++) zeros[i % 4] += head[i] == 0;
    const bool le = zeros[3] > zeros[0];
    const size_t high = zeros[le ? 3 : 0], low = zeros[le ? 0 : 3], other = zeros[le ? 2 : 1];
    if (high >= 2 + n / 64 && low <= high / 8 && other >= n / 4) return le ? "UTF-32LE" : "UTF-32BE";
    if (high >= 2 + n / 64 && low <= high / 8 && other <= high / 8) return le ? "UTF-16LE" : "UTF-16BE";
    return n >= 2 && (memcmp(head, "\xff\xfe", 2) == 0 || memcmp(head, "\xfe\xff", 2) == 0) ? "UTF-16" : NULL;
}

bool text_check_head(size_t* skip, const char* name, const char* head, size_t n, TostError* err) {
    static const char mark[] = "\xef\xbb\xbf";
    static const struct { size_t at; const char *magic, *kind, *way; } kinds[] = {
        {0, "\x1f\x8b", "compressed by gzip", PIPE("gzip -dc FILE")},
        {0, "\xfd" "7zXZ", "compressed by xz", PIPE("xz -dc FILE")},
        {0, "\x28\xb5\x2f\xfd", "compressed by zstd", PIPE("zstd -dc FILE")},
        {0, "\x04\x22\x4d\x18", "compressed by lz4", PIPE("lz4 -dc FILE")},
        {4, "1AY&SY", "compressed by bzip2", PIPE("bzip2 -dc FILE")},
        {0, "PK\x03\x04", "a zip archive", PIPE("unzip -p FILE") ", or pandoc -t plain FILE if it is a .docx or .epub "
         "(.npz and .pt have arrays, not text)"},
        {257, "ustar", "a tar archive", PIPE("tar -xOf FILE")},
        {0, "%PDF-", "a PDF file", PIPE("pdftotext FILE -")},
        {0, "{\\rtf", "an RTF file", PIPE("pandoc -f rtf -t plain FILE")},
        {0, "PAR1\x15", "a Parquet file, not text", DATASET "FILE reads it"},
        {0, "ARROW1", "an Arrow file, not text", DATASET "FOLDER reads a dataset"},
        {0, "\xff\xff\xff\xff", "an Arrow file, not text", DATASET "FOLDER reads a dataset"},
        {0, "\x93NUMPY", "a NumPy array, not text", "give the text that it was made from"},
        {0, "\x7f" "ELF", "a program or library (ELF), not text", "give a text file"},
        {0, "version https://git-lfs.", "the pointer of a Git LFS file", "`git lfs pull` gets the file itself"},
    };
    n = n < TEXT_HEAD_BYTES ? n : TEXT_HEAD_BYTES;
    for (size_t i = 0; i < countof(kinds); i++) {
        const size_t len = strlen(kinds[i].magic);
        if (n >= kinds[i].at + len && memcmp(head + kinds[i].at, kinds[i].magic, len) == 0)
            return tost_error(err, "%s: %s; %s", name, kinds[i].kind, kinds[i].way);
    }
    if (n > 1 && (uint8_t)head[0] == 0x80 && head[1] >= 2 && head[1] <= 5)   // and its version
        return tost_error(err, "%s: a Python pickle, not text; write its text as JSONL first", name);
    if (shard_begins(head, n)) return tost_error(err, "%s: a token shard, not text; use it as --data", name);
    if (n > 8 && head[8] == '{' && memcmp(head + 4, "\0\0\0", 4) == 0)   // after the length of its header
        return tost_error(err, "%s: a safetensors file, not text; give a text file", name);
    const char* wide = wide_encoding(head, n);
    if (wide) return tost_error(err, "%s: %s, not UTF-8; " PIPE("iconv -f %s -t UTF-8 FILE"), name, wide, wide);
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
        bytes = 3;   // e1 to ec: never an overlong character or a surrogate
        if (end - p >= 3 && u[0] > 0xe0 && u[0] < 0xed && u[1] >> 6 == 2 && u[2] >> 6 == 2) continue;
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
        || tost_error(err, "%s; text in another encoding, such as LATIN1 or GB18030: iconv -f LATIN1 -t UTF-8 FILE; to "
                      "drop these bytes: iconv -c -f UTF-8 -t UTF-8 FILE | tr -d '\\000'", broken_line(b).text);
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

bool named_jsonl(const char* path) {
    const size_t n = strlen(path), suffix = strlen(".jsonl");
    return n >= suffix && strcasecmp(path + n - suffix, ".jsonl") == 0;
}

bool read_lines(Bytes* file, Lines* l, const char* path, TostError* err) {
    size_t skip;
    if (!read_file(file, path, err)) return false;
    if (!text_check_head(&skip, strcmp(path, "-") == 0 ? "standard input" : path, file->data, file->size, err)) {
        free(file->data);
        return false;
    }
    *l = (Lines){file->data + skip, file->data + file->size, 0};
    return true;
}
