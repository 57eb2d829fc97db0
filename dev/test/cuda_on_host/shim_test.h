// shim_test.h: the parts of cuda_on_host_test.
#ifndef SHIM_TEST_H
#define SHIM_TEST_H

// check.h is C: its malloc wants a cast here.
#include <cstdlib>
#define malloc(n) static_cast<char*>(malloc(n))
#include "dev/test/check.h"
#undef malloc

void test_shim(Checks* c);     // the host's CUDA itself
void test_kernels(Checks* c);  // launchers of the engine, by themselves

#endif
