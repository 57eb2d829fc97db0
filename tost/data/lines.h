// lines.h: reads a text file line by line, and refuses files that are not text.
#ifndef TOST_LINES_H
#define TOST_LINES_H

#include "base/error.h"
#include "base/files.h"

// Rejects compressed and binary files by their first n bytes, of which it reads at most TEXT_HEAD_BYTES. Returns false
// with an error, or sets *skip to the length of a UTF-8 byte order mark.
enum { TEXT_HEAD_BYTES = 16 };
bool text_check_head(size_t* skip, const char* name, const char* head, size_t n, TostError* err);

// at: the next line; number: of the last one, counted from 1
typedef struct { const char *at, *end; size_t number; } Lines;

// The next line, without its LF or CRLF. False at the end.
bool next_line(const char** text, size_t* n, Lines* l);
bool is_blank(const char* text, size_t n);   // spaces and tabs only
bool named_jsonl(const char* path);          // true if it ends in .jsonl or .JSONL

// Reads a text file, or stdin if the path is "-", and checks its head. free(file->data)
bool read_lines(Bytes* file, Lines* l, const char* path, TostError* err);

#endif
