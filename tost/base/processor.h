// processor.h: refuses to run on a processor that lacks instructions for which the program was built.
#pragma once

// Prints one line and exits if the processor lacks a feature of BUILT_FOR. Runs before main; tost_main calls it so that
// the linker includes it.
void processor_check(void);
