// prompts.h: reads the prompts of a file.
#ifndef TOST_PROMPTS_H
#define TOST_PROMPTS_H

#include "base/error.h"

typedef struct { size_t line; char* text; size_t n; } Prompt;   // line: counted from 1; n bytes
typedef struct { Prompt* prompt; size_t count; } Prompts;

// Receives the error of an invalid line; the message has its number.
typedef void (*LineErrors)(void* context, const TostError* line);

// Reads a file, or stdin if the path is "-". Lines end with LF or CRLF. Each is a prompt, which may be empty. If the
// name ends in .jsonl or the text begins with '{', each is an object with a "prompt"; other keys are ignored, and so
// are blank lines. Reports invalid lines and counts them in *bad. Fails if the file cannot be read, is empty, or is
// not text (text_check_head).
bool prompts_read(Prompts* p, size_t* bad, const char* path, LineErrors report, void* context, TostError* err);
void prompts_free(Prompts* p);

#endif
