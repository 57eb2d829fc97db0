// lines.h: refuses files that are not text, and reads a text line by line.
#pragma once

#include "base/files.h"
#include "data/formats.h"

// Refuses what check_format does, shards and safetensors files, by their first n bytes; FORMAT_HEAD_BYTES are enough.
// *skip: length of a UTF-8 byte order mark
bool text_check_head(size_t* skip, const char* name, const char* head, size_t n, TostError* err);

// The bytes of a text that are NUL or not UTF-8. Up to 1 in 1,000 are kept as they are, as in a damaged text. More are
// refused: the text is probably in another encoding.
typedef struct { uint64_t count, first, bytes; const char* name; } Broken;   // first: offset; bytes, name: of the text
// Their number in text (n). *first: set if there are any. The sum over parts is that of the text if they end before
// ASCII characters.
uint64_t count_broken(uint64_t* first, const char* text, size_t n);
TextLine broken_line(const Broken* b);
bool broken_accepted(const Broken* b, uint64_t bytes, TostError* err);   // not too many for a text of `bytes`
// The same for a text, or a part of it that begins at byte `at`; warns of a few
bool check_utf8_text(const char* name, uint64_t at, const char* text, size_t n, TostError* err);

// at: the next line; number: of the last one, counted from 1
typedef struct { const char *at, *end; size_t number; } Lines;

// The next line, without its LF or CRLF. False at the end.
bool next_line(const char** text, size_t* n, Lines* l);
bool is_blank(const char* text, size_t n);   // spaces and tabs only
// True if a text begins with this bracket and something that JSON has after it: a quote, } after {, or { after [.
bool begins_json(const char* p, const char* end, char bracket);

// Reads a text file, or stdin if the path is "-", and checks its head. free(file->data)
bool read_lines(Bytes* file, Lines* l, const char* path, TostError* err);
