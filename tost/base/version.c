// version.c: the version of the program.
#include "base/version.h"

#ifndef TOST_VERSION
#define TOST_VERSION "unknown"   // not built by the Makefile
#endif

const char* tost_version(void) { return TOST_VERSION; }
