// formats.h: names files that have neither text nor token ids.
#pragma once

#include "base/error.h"

// Refuses archives, compressed files and others by their first n bytes. FORMAT_HEAD_BYTES are enough.
enum { FORMAT_HEAD_BYTES = 512 };
bool check_format(const char* name, const char* head, size_t n, TostError* err);
