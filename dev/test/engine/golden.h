// golden.h: compares an engine with the float64 golden files of dev/reference/golden.py: NAME.params.safetensors with
// parameters, NAME.expect.safetensors with inputs and the expected results of a few optimizer steps.
#pragma once

#include "dev/test/engine/engines.h"
#include "tost/store/safetensors.h"

extern const TostEngine tost_cpu_engine;

// Limits of relative L2 error, float32 against float64.
#define LIMIT_LOGITS 1e-5
#define LIMIT_GRADS  1e-4
#define LIMIT_PARAMS 1e-5
#define LIMIT_LOSS   1e-5   // absolute, nats

// Reading. Exits if a tensor or number is missing.
double meta_number(const StFile* f, const char* key);
int meta_int(const StFile* f, const char* key);
TostConfig meta_config(const StFile* f);
TostUpdate meta_update(const StFile* f, double lr, int step);
double* read_doubles(const StFile* f, const char* name, size_t n);   // free()
void read_params(Subject* s, const StFile* f);

double* widen(const float* x, size_t n);   // free()
// |a - b| / |b| over n elements, see relative_distance.
double relative_l2(const float* a, const double* b, size_t n);
// Compares n numbers with the tensor of the name PREFIX + NAME and prints the error.
void check_tensor(Checks* c, const StFile* expect, const char* prefix, const char* name, const float* got, size_t n,
                  double limit);
// One step of the training loop. Returns the loss; *norm: gradient norm before clipping
double train_step(double* norm, Subject* s, const int32_t* inputs, const int32_t* targets, int B, int T, TostUpdate a,
                  double clip);

// Called after the first forward to check activations.
typedef void GoldenActivations(Checks* c, Subject* s, const StFile* expect, int B, int T);
// Checks the engine against every pair of golden files in a folder.
void test_golden(Checks* c, const TostEngine* engine, const char* dir, GoldenActivations* activations);
