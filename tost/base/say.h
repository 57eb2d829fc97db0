// say.h: errors and warnings, as one line on stderr that begins with the name of the program.
#pragma once

#include "base/error.h"

// Sets the name of the program, from argv[0]. Of several ranks, only rank 0 prints: errors are shared by comm_agree.
void say_as(const char* program, int rank);
const char* say_program(void);                  // its name, without its folder
int  print_error(const TostError* err);         // returns STATUS_FAILED
void print_warning(const char* fmt, ...) PRINTF_LIKE(1, 2);
