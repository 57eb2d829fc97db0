// examples.h: the examples of LAMBADA, HellaSwag and the Children's Book Test, read from their original files
// as tokens: a text, and the ways in which it may go on.
#ifndef TOST_EXAMPLES_H
#define TOST_EXAMPLES_H

#include "tokenizer.h"

typedef enum { TASK_LAMBADA, TASK_HELLASWAG, TASK_CBT, TASKS } Task;

enum { MAX_CHOICES = 10 };

typedef struct {
    int       line;                    // of the file, from 1, where the example begins
    int       label;                   // the right ending
    int       endings;                 // 1, 4 or 10
    char*     word;                    // LAMBADA: the last word; else NULL
    uint32_t* ids;                     // what all endings share, then the endings one after another
    int       shared;                  // tokens, at least 1
    int       length[MAX_CHOICES];     // tokens of each ending, at least 1
    int       bytes[MAX_CHOICES];      // of its text, without the space before it
} Example;

typedef struct { Example* passage; size_t count; } Examples;

const char* task_name(Task task);

// Fails, naming file and line, on anything that is not an example of the task, and on a file without one.
//   lambada    JSONL {"text"}: all before the last space is shared; the ending is that space and the word
//   hellaswag  JSONL {"ctx", "endings" (4), "label"}, other keys skipped: the ctx; a space and each ending
//   cbt        twenty lines "N text", then "21 query<tab>answer<tab><tab>candidate|…" (10) and a blank line:
//              lines and query joined by spaces, XXXXX in the query replaced by each candidate. The ten
//              passages are encoded whole; shared is what their tokens have in common from the start.
bool examples_read(Examples* p, Task task, const char* path, const Tokenizer* tokenizer, TostError* err);
void examples_free(Examples* p);

#endif
