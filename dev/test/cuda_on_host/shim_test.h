// shim_test.h: the parts of cuda_on_host_test.
#ifndef SHIM_TEST_H
#define SHIM_TEST_H

#include "dev/test/check.h"

void test_shim(Checks* c);     // the host's CUDA itself
void test_kernels(Checks* c);  // launchers of the engine, by themselves

#endif
