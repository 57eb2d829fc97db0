// version.h: the version of the program, set by the Makefile.
#pragma once

// "1.0.0 (bcb4508e1f) AVX512F FMA": the version in CITATION.cff, the git commit, with "+" if files differ from it, and
// vector extensions. Without the commit if the program was not built in a git repository.
const char* tost_version(void);
