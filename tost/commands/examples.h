// examples.h: reads the examples of eval --task as token ids: each is a context and the choices that may follow it.
#pragma once

#include "data/tokenizer.h"

enum { MAX_CHOICES = 16 };

typedef struct {
    int       line;                    // 1-based, in the file
    int       answer;                  // index of the correct choice
    int       choices;
    uint32_t* ids;                     // the context, then the choices one after another
    int       context;                 // tokens of the context, at least 1
    int       length[MAX_CHOICES];     // tokens of each choice, at least 1
    bool      inside;                  // a text has <|endoftext|> inside a line: not the token
    int       chars[MAX_CHOICES];      // characters of each choice, without one space at its beginning; at least 1
} Example;

typedef struct { Example* example; size_t count; int choices; } Examples;   // choices: the largest number

// JSONL: each line is {"context": text, "choices": [texts], "answer": index}; other keys are ignored. All examples have
// one choice, or all have several. Lines of <|endoftext|> in a text become that token. As in lm-evaluation-harness, an
// empty context becomes it, too; white space at the end of a context belongs to the choices; and the tokens of a choice
// are those of context and choice together after the tokens of the context. An error names file and line.
bool examples_read(Examples* e, const char* path, const Tokenizer* tokenizer, TostError* err);
void examples_free(Examples* e);
