// init.c: random initial values of the parameters.
#include "init.h"

#include <math.h>

#include "base/memory.h"
#include "base/rng.h"

// Normal random numbers are drawn in blocks of 65,536, in parallel, each block from its own random stream. The stream
// number is the 64-bit FNV-1a hash (Fowler, Noll and Vo) of the tensor's name followed by the block's index as eight
// little-endian bytes.
enum { BLOCK = 65536 };

static uint64_t fnv1a(uint64_t hash, uint8_t byte) { return (hash ^ byte) * 0x100000001b3; }

static uint64_t block_stream(const char* name, uint64_t block) {
    uint64_t hash = 0xcbf29ce484222325;
    for (const char* p = name; *p; p++) hash = fnv1a(hash, (uint8_t)*p);
    for (int i = 0; i < 8; i++) hash = fnv1a(hash, (uint8_t)(block >> 8 * i));
    return hash;
}

static void fill_normal(float* out, size_t n, const char* name, double std, uint64_t seed) {
    const int64_t blocks = (int64_t)((n + BLOCK - 1) / BLOCK);
    #pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        Rng rng = rng_seeded(seed, block_stream(name, (uint64_t)b));
        const size_t first = (size_t)b * BLOCK, end = first + BLOCK < n ? first + BLOCK : n;
        for (size_t i = first; i < end; i++) out[i] = (float)(std * rng_normal(&rng));
    }
}

// Element k of a tensor that is not random
static float constant(TostInit init, size_t k) {
    if (init == TOST_IDENTITY) return k % TOST_CONV_WIDTH == TOST_CONV_WIDTH - 1;
    return init == TOST_ONE ? 1.0f : init == TOST_GAMMA ? 1e-5f : 0.0f;
}

void init_params(const TostEngine* engine, TostModel* model, const TostTensors* tensors, int n_layer, uint64_t seed) {
    size_t largest = 0;
    for (int i = 0; i < tensors->count; i++)
        if (tensors->tensor[i].size > largest) largest = tensors->tensor[i].size;
    float* values = xmalloc(largest * sizeof *values);
    const double residual = 0.02 / sqrt(2.0 * n_layer);
    for (int i = 0; i < tensors->count; i++) {
        const TostTensor* t = &tensors->tensor[i];
        if (t->init == TOST_NORMAL) fill_normal(values, t->size, t->name, 0.02, seed);
        else if (t->init == TOST_RESIDUAL) fill_normal(values, t->size, t->name, residual, seed);
        else for (size_t k = 0; k < t->size; k++) values[k] = constant(t->init, k);
        engine->put(model, TOST_PARAM, t, values);
    }
    free(values);
}
