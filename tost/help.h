// help.h: --help, the man page and the completion for bash, from the table of options.
#ifndef TOST_HELP_H
#define TOST_HELP_H

#include "options.h"

void print_help(const Options* o, bool all_commands);     // of o's command; with usage lines of one or all commands
void print_manual(const TostEngine* engine);              // in roff, for man
void print_completion(const TostEngine* engine);          // a script for bash

#endif
