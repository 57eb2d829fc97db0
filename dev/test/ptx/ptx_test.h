// ptx_test.h: the tests of the interpreter.
#ifndef PTX_TEST_H
#define PTX_TEST_H

#include "dev/test/check.h"
#include "ptx.h"

void test_interpreter(Checks* c);   // the interpreter itself

#endif
