// lines.c: reads a text file line by line, and refuses files that are not text.
#include "data/lines.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "data/shards.h"

bool text_check_head(size_t* skip, const char* name, const char* head, size_t n, TostError* err) {
    static const char mark[] = "\xef\xbb\xbf";
    static const struct { const char *magic, *kind, *filter; } kinds[] = {
        {"\x1f\x8b", "compressed by gzip", "gzip -dc"},
        {"\xfd" "7zXZ", "compressed by xz", "xz -dc"},
        {"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -dc"},
        {"\x04\x22\x4d\x18", "compressed by lz4", "lz4 -dc"},
        {"BZh91AY", "compressed by bzip2", "bzip2 -dc"},
        {"PK\x03\x04", "a zip archive", "unzip -p"},
        {"\xff\xfe", "UTF-16 instead of UTF-8", "iconv -f UTF-16 -t UTF-8"},
        {"\xfe\xff", "UTF-16 instead of UTF-8", "iconv -f UTF-16 -t UTF-8"},
    };
    for (size_t i = 0; i < countof(kinds); i++) {
        const size_t len = strlen(kinds[i].magic);
        if (n >= len && memcmp(head, kinds[i].magic, len) == 0)
            return tost_error(err, "%s: %s; pipe it through a filter: %s FILE | … -", name, kinds[i].kind,
                              kinds[i].filter);
    }
    if (n >= 5 && memcmp(head, "PAR1\x15", 5) == 0)
        return tost_error(err, "%s: a Parquet file, not text; write its text as JSONL first", name);
    if (shard_begins(head, n)) return tost_error(err, "%s: a token shard, not text; use it as --data", name);
    if (n > 8 && head[8] == '{' && memcmp(head + 4, "\0\0\0", 4) == 0)   // after the length of its header
        return tost_error(err, "%s: a safetensors file, not text; give a text file", name);
    if (n >= 24 && memcmp(head, "version https://git-lfs.", 24) == 0)
        return tost_error(err, "%s: the pointer of a Git LFS file; `git lfs pull` gets the file itself", name);
    *skip = n >= sizeof mark - 1 && memcmp(head, mark, sizeof mark - 1) == 0 ? sizeof mark - 1 : 0;
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
