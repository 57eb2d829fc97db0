// documents.h: reads text files as documents (lines of JSONL, or texts between <|endoftext|>), streaming, in batches.
#pragma once

#include "data/lines.h"

typedef struct {
    char* const* files;          // "-" is standard input
    int          n_files;
    bool         jsonl, plain;   // read every input as JSONL or as plain text; neither: see documents_read
    const char*  text_field;     // of JSONL; NULL: "text"
    bool         skip_bad_lines; // of JSONL
    int          threads;        // 0: OpenMP's default
    size_t       batch_bytes;    // input bytes read at a time, 0: 16 MiB; does not affect the documents
    void*        context;        // of `progress`, see tokenize.h and vocab.h
} TextInput;

typedef struct {
    uint64_t bytes, documents;       // read so far
    int      jsonl_files;
    uint64_t skipped;                // lines
    TextLine first_skipped;
    Broken   broken;                 // of plain text; first and name: of the first file with such bytes
    uint64_t inside;                 // <|endoftext|> of plain text that is not a line of its own
    const char* inside_in;           // the first file with such
} TextCount;

// A short document, or a section of a long one between two safe cuts (tokenizer_last_cut).
typedef struct {
    const char* text;
    size_t      n;           // bytes
    uint64_t    document;    // its number, from 0
    bool        ends;        // the document ends here
} TextPart;

// Uses the parts of a batch, in the order of the text.
typedef bool UseParts(void* job, const TextPart* parts, size_t n, TostError* err);

// An input is JSONL if it is named *.jsonl or *.JSONL or begins with a JSON object: an object per line, with a document
// in the text field; blank lines are skipped. A JSON array is rejected. Other inputs are plain text with documents
// separated by lines of <|endoftext|> (document_ends). A document ends at the end of its file. Empty documents are
// skipped. See lines.h for what is not text.
// Stops with an error if `use` fails or a signal (signals.h) arrives, or if there is no document.
bool documents_read(const TextInput* in, TextCount* count, UseParts* use, void* job, TostError* err);

// Checks the files before the work begins. The content of pipes and devices is checked when they are read.
bool documents_check(const TextInput* in, TostError* err);

// The error of a signal. Always false.
bool interrupted(TostError* err);
