// processor.h: whether the program was built for this processor.
#pragma once

// Prints one line and exits if the processor lacks a feature of BUILT_FOR. Runs before main; tost_main calls it so that
// the linker includes it.
void processor_check(void);

// The end of a line about the processor: vectors that it has and BUILT_FOR lacks, with the fix; or empty
const char* processor_unused(void);
