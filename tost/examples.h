// examples.h: reads LAMBADA, HellaSwag and the Children's Book Test from their original files as token ids: contexts
// and the choices that may continue them.
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
    int       bytes[MAX_CHOICES];      // bytes of its text, without the space before it
} Example;

typedef struct { Example* example; size_t count; } Examples;

const char* task_name(Task task);

// Fails with file and line if a line is not an example of the task or the file has no example.
//   lambada    JSONL {"text"}: the context is all before the last space, the choice is that space and the last word
//   hellaswag  JSONL {"ctx", "endings" (4), "label"}, other keys are skipped: each choice is a space and an ending
//   cbt        twenty lines "N text", then "21 query<tab>answer<tab><tab>candidate|…" (10) and a blank line:
//              lines and query joined by spaces, with each candidate in place of the query's XXXXX. Each of the ten
//              texts is tokenized as a whole; the context is the tokens that all begin with.
bool examples_read(Examples* e, Task task, const char* path, const Tokenizer* tokenizer, TostError* err);
void examples_free(Examples* e);

#endif
