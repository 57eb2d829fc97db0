// prompts.h: reads the prompts of the command sample.
#pragma once

#include "options/options.h"

typedef struct {
    size_t    line;       // counted from 1
    size_t    place;      // among all prompts, counted from 0
    char*     text;       // n bytes, then a NUL
    size_t    n;
    char*     id;         // JSON to be repeated with the results, or NULL
    // set by sample.c
    uint32_t* ids;
    size_t    n_ids;
    int64_t   next;       // the first sample that is not generated yet
    Bytes     output;     // of samples not printed yet
} Prompt;
typedef struct {
    Prompt* prompt;
    size_t  count, lines, bytes, read;   // lines, bytes and prompts read so far
    bool    jsonl, end;           // end: no prompts follow
} Prompts;

// Reads the next prompts into *p, which is zero before the first call. o->prompt is one: TEXT, @FILE, or "-" for stdin;
// without it, an empty one. Of a file o->prompts, each line is one; blank lines are skipped. "-" waits for a line of
// stdin and takes those that have arrived. If the name ends in .jsonl or the text begins with a JSON object, each is an
// object with a "prompt" and perhaps an "id"; other keys are ignored. Fails if the file cannot be read, is empty, or is
// not text (lines.h), or if a line is invalid. prompts_free in any case
bool prompts_read(Prompts* p, const Options* o, TostError* err);
void prompts_free(Prompts* p);
