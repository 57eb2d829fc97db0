// examples.h: reads the original files of LAMBADA, HellaSwag and the Children's Book Test as token ids: each example is
// a context and one or more choices that may follow it.
#ifndef TOST_EXAMPLES_H
#define TOST_EXAMPLES_H

#include "tokenizer.h"

typedef enum { TASK_LAMBADA, TASK_HELLASWAG, TASK_CBT, TASKS } Task;

enum { MAX_CHOICES = 10 };

typedef struct {
    int       line;                    // 1-based line of the file where the example begins
    int       label;                   // the correct choice
    int       choices;                 // number of choices: 1, 4 or 10
    char*     word;                    // LAMBADA: the last word; else NULL
    uint32_t* ids;                     // the context, then the choices one after another
    int       context;                 // tokens of the context, at least 1
    int       length[MAX_CHOICES];     // tokens of each choice, at least 1
    int       bytes[MAX_CHOICES];      // bytes of each choice, without the space before it
} Example;

typedef struct {
    Example* example;
    size_t   count;
    bool     mark;   // the file begins with a byte order mark, which was skipped
} Examples;

const char* task_name(Task task);

// Fails if a line is not an example of the task (the error states file and line) or if there are no examples.
//   lambada    JSONL {"text"}: the context is the text before the last space, the choice is that space and the last
//   word hellaswag  JSONL {"ctx", "endings" (4), "label"}, other keys are ignored: each choice is a space and an ending
//   cbt        twenty lines "N text", then "21 query<tab>answer<tab><tab>candidate|…" (10) and a blank line:
//              the lines and the query are joined by spaces, and each candidate is substituted for XXXXX in the query.
//              The ten texts are tokenized as a whole; the context is their common token prefix.
bool examples_read(Examples* e, Task task, const char* path, const Tokenizer* tokenizer, TostError* err);
void examples_free(Examples* e);

#endif
