// documents.h: reads text files as documents (lines of JSONL, or texts between <|endoftext|>), streaming, in batches.
#pragma once

#include "data/lines.h"
#include "data/tokenizer.h"

typedef struct {
    bool         jsonl, plain;   // read every input as JSONL or as plain text; neither: see documents_read
    bool         lines;          // every line of plain text is a document
    StringList   files;          // "-" is standard input
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

enum { DOCUMENT_HEAD = 1024 };

// A short document, or a section of a long one between two safe cuts (tokenizer_last_cut).
typedef struct {
    const char* text;
    size_t      n;           // bytes
    uint64_t    head;        // hash of the document's first DOCUMENT_HEAD bytes, or of all if it has fewer
    bool        ends;        // the document ends here
} TextPart;

// Uses the parts of a batch, in the order of the text.
typedef bool UseParts(void* job, const TextPart* parts, size_t n, TostError* err);

// An input is JSONL if it is named *.jsonl or *.JSONL or begins with a JSON object: an object per line, with a document
// in the text field; blank lines are skipped. A JSON array is rejected. Other inputs are plain text with documents
// separated by lines of <|endoftext|> (document_ends) or, with in->lines, one per line. A document ends at the end
// of its file. Empty documents are skipped. See lines.h for what is not text.
// Stops with an error if `use` fails or a signal (signals.h) arrives, or if there is no document.
bool documents_read(const TextInput* in, TextCount* count, UseParts* use, void* job, TostError* err);

// Checks the files before the work begins. The content of pipes and devices is checked when they are read.
bool documents_check(const TextInput* in, TostError* err);

// The error of a signal. Always false.
bool interrupted(TostError* err);

// Documents of plain text are separated by lines of <|endoftext|>, perhaps with spaces, tabs and CR after it. Neither
// that line nor the line end before it belongs to a document. Finds the first separator in s[from .. n), where s begins
// a line: the document is s[from .. *end), the next one begins at *next. Returns false if there is none; then *end is n,
// or where an incomplete last line begins that may be a separator. `last`: s[n - 1] ends the input.
bool document_ends(size_t* end, size_t* next, const char* s, size_t from, size_t n, bool last);
bool end_of_text_inside(const char* text, size_t n);   // true if <|endoftext|> is inside a line, where it is text
#define INSIDE_LINE END_OF_TEXT " inside other text, where it is not the token: for the token, put it on its own line"

// Encodes text with separator lines; each becomes the id of <|endoftext|>. At most n ids.
size_t encode_documents(uint32_t* ids, const Tokenizer* t, const char* text, size_t n);
