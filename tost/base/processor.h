// processor.h: whether the program was built for this processor.
#pragma once

// Prints one line and exits if the processor lacks a feature of BUILT_FOR. Runs before main; tost_main calls it so that
// the linker includes it.
void processor_check(void);

// To append to a line: a vector extension that the processor has and BUILT_FOR lacks, with the fix; or empty
const char* processor_unused(void);
