// help.h: --help, from the table of options, and --version.
#ifndef TOST_HELP_H
#define TOST_HELP_H

#include "options/options.h"

// Prints the page that o->page asks for: the help of o's command, with the usage lines of all commands if none was
// named; or the version.
void print_page(const Options* o, const TostEngine* engine);

#endif
