// formats.h: names files that have neither text nor token ids.
#pragma once

#include "base/error.h"

// Refuses archives, compressed files and others by their first n bytes. FORMAT_HEAD_BYTES are enough.
enum { FORMAT_HEAD_BYTES = 512 };
bool check_format(const char* name, const char* head, size_t n, TostError* err);
// Refuses tables by their name, and HTML and XML by their name or by a tag at the beginning of their text.
bool check_markup(const char* name, const char* text, const char* end, TostError* err);
bool has_suffix(const char* name, const char* suffix);   // ignores case
