// formats.h: names files that have neither text nor token ids.
#pragma once

#include "base/error.h"

// Refuses archives, compressed files and others by their first n bytes. FORMAT_HEAD_BYTES are enough.
enum { FORMAT_HEAD_BYTES = 512 };
bool check_format(const char* name, const char* head, size_t n, TostError* err);
// Refuses markup and tables by their name or by the beginning of their text: a tag of HTML or XML, with an end tag
// later; or a line of two or more column names, and at least two records with as many fields.
bool check_markup(const char* name, const char* text, const char* end, TostError* err);
bool has_suffix(const char* name, const char* suffix);   // .jsonl is also .JSONL
