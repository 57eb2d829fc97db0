// help.h: --help, --version and the completion for bash, from the table of options.
#ifndef TOST_HELP_H
#define TOST_HELP_H

#include "run/options.h"

// Prints the page that o->page asks for: the help of o's command, with the usage lines of all commands if none was
// named; the version; or a completion script for bash.
void print_page(const Options* o, const TostEngine* engine);

#endif
