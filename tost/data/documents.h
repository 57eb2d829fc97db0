// documents.h: reads text files as documents (lines of JSONL, or texts between <|endoftext|>), streaming, in batches.
#ifndef TOST_DOCUMENTS_H
#define TOST_DOCUMENTS_H

#include "base/error.h"

typedef struct {
    char* const* files;          // "-" is standard input
    int          n_files;
    bool         jsonl;          // read every input as JSONL, for any file name
    int          threads;        // 0: OpenMP's default
    size_t       batch_bytes;    // input bytes read at a time, 0: 16 MiB; does not affect the documents
    void       (*waiting)(void* context, const char* name);   // unless NULL, called when nothing writes to a FIFO
    void*        context;
} TextInput;

typedef struct { uint64_t bytes, documents; } TextCount;   // read so far

// A short document, or a section of a long one between two safe cuts (tokenizer_last_cut).
typedef struct {
    const char* text;
    size_t      n;           // bytes
    uint64_t    document;    // its number, from 0
    bool        ends;        // the document ends here
} TextPart;

// Uses the parts of a batch, in the order of the text.
typedef bool UseParts(void* job, const TextPart* parts, size_t n, TostError* err);

// Input files are plain text with documents separated by lines of <|endoftext|> (see document_ends), or, if named
// *.jsonl or *.JSONL, JSON objects, one per line, with the document in "text"; blank lines are skipped. A document ends
// at the end of its file. Empty documents are skipped. See text_check_head for what is rejected.
// Stops with an error if `use` fails or a signal (signals.h) arrives, or if there is no document.
bool documents_read(const TextInput* in, TextCount* count, UseParts* use, void* job, TostError* err);

// Checks the files before the work begins. The content of pipes and devices is checked when they are read.
bool documents_check(const TextInput* in, TostError* err);

// The error of a signal. Always false.
bool interrupted(TostError* err);

#endif
