// engines.h: compares two engines: runs the same models on both, records all results, and checks relative L2 errors.
// The emulation's tests (dev/test/cuda) include this header as C++17.
#pragma once

#include "dev/test/check.h"

#ifdef __cplusplus
extern "C" {
#endif
#include "tost/chunks.h"
#include "tost/engine.h"

// ---- A model under test ---------------------------------------------------------------------------------------------

typedef struct {
    const TostEngine* engine;
    TostConfig        config;
    TostTensors       tensors;
    TostModel*        model;
    Chunks            chunks;   // of model
    TostOptimizer     optimizer;
} Subject;

// Exits if ok is false: a file or memory is missing. Without its closing line the test counts as failed.
void require(bool ok, const TostError* err);

TostEngineOptions engine_options(int B, int T, bool training, TostDtype dtype);
Subject subject_open(const TostEngine* engine, TostConfig config, TostEngineOptions o);
void subject_free(Subject* s);
// Random values for every parameter, so that no gradient is zero.
void subject_randomize(Subject* s, uint64_t seed);
// With random parameters
Subject subject_of(const TostEngine* engine, TostConfig config, int B, int T, bool training, TostDtype dtype,
                   uint64_t seed);
const TostTensor* subject_tensor(const Subject* s, const char* name);   // NULL if absent
float* subject_get(const Subject* s, TostArray state, const TostTensor* t);   // free()
float* subject_array(const Subject* s, TostArray array);   // all tensors at their offsets; free()
// Copies parameters and moments between models with the same optimizer; `to` may have fewer layers.
void subject_copy(Subject* to, const Subject* from);

void subject_forward(Subject* s, const int32_t* inputs, int B, int T);
// Starts n sequences with T tokens each. logits (n,V) or NULL
void subject_begin(float* logits, Subject* s, const int32_t* prompts, int n, int T);
float* logits_of(Subject* s, const int32_t* inputs, int B, int T);   // (B,T,V); free()
double mean_loss(Subject* s);
// Clips the gradient and runs AdamW like the training loop. Returns the norm before clipping.
double subject_step(Subject* s, TostUpdate a, double clip);

// ---- Results of an engine -------------------------------------------------------------------------------------------

typedef enum { RESULT_LOGITS, RESULT_GRAD, RESULT_PARAM, RESULT_LOSS, RESULT_KINDS } ResultKind;

typedef struct {
    char       name[TOST_NAME_MAX + 32];
    ResultKind kind;
    size_t     n;
    double*    values;
} Result;

typedef struct {
    Result* result;
    int     count;
} Record;

void record_state(Record* r, const Subject* s, TostArray state, ResultKind kind, const char* prefix);
void record_free(Record* r);

// ---- Comparing two records ------------------------------------------------------------------------------------------

// Limits of the relative L2 error against the CPU engine in the same dtype or golden files, by kind of result: of each
// result, and of the median of a kind. In bf16 both engines round at the same points, so nearly all results agree as
// closely as in float32. But where a sum lies close to the middle between two bf16 numbers, its rounding depends on the
// order of summation, and TSSA amplifies the difference if z is near 0 early in a sequence. The limits are 1.5 to 7
// times the largest error measured on these shapes; a missing rounding exceeds them in several shapes. loose, for bf16:
// with biases, few or faint channels, in which the rounding of LayerNorm's output weighs more.
// The CPU engine has no tf32: there the reference is in float32, and the limits are wide.
typedef struct { double of[RESULT_KINDS], median[RESULT_KINDS]; } Limits;

Limits limits_of(TostDtype dtype, bool loose);
const char* dtype_name(TostDtype dtype);
// |a - b| / |b| over n numbers, or |a| if b is zero. NaN if either contains NaN.
double relative_distance(const double* a, const double* b, size_t n);
// Checks that two runs are bit-identical. run: names the second, as in "run 2"
void records_same(Checks* c, const char* what, const Record* got, const Record* first, const char* run);

// ---- One shape: every function of an engine with one model and batch size -------------------------------------------

// Parameters: random; from init_params; random with faint channels; random, of a model with convolutions, with
// convolutions and memory, with memory, and without positions but with bigrams; random, with memory and high
// temperatures
enum { RANDOM, FRESH, FAINT, CONV, CONV_MEMORY, MEMORY, NO_POSITIONS, SHARP };

typedef struct {
    int layers, heads, channels, block, vocab, bias, membership;
    int B, T;
    int steps, micros;   // optimizer steps; micro-batches per step
    int values;          // one of the above
} Shape;

TostConfig shape_config(const Shape* k);
// Ids of a micro-batch: inputs, then targets. One input in eight is token 3, so that one row of wte sums many
// gradients; one target in five is ignored (-1).
int32_t* shape_ids(const Shape* k, uint64_t seed);   // free()
// chunks_train of this micro-batch
void subject_train(Subject* s, const Shape* k, uint64_t seed, float grad_scale, TostEnd end);

// ---- Comparing two engines ------------------------------------------------------------------------------------------

// The engine under test and the one that it is compared with. Only engines_agree and engines_agree_on_chunks take NULL:
// they then compare the engine with itself, in other runs or chunks.
typedef struct {
    Checks*           c;
    const TostEngine *engine, *reference;
    TostDtype         dtype;
} Comparison;

// Runs of the engine under test. before, if not NULL, is called before each run, to change the thread schedule.
typedef struct {
    int         runs;
    void      (*before)(const void* context, int run);
    const void* context;
} Runs;

// Checks that the engine's results are near the reference engine's, and that all runs are bit-identical.
void engines_agree(Comparison x, const Shape* k, const Runs* runs);

// chunks: lengths of chunks to test, in tokens; a 0 ends the list. For each, compares evaluation, decode, scores and
// gradients with the reference engine's in the same chunks and with the engine's own of whole sequences. In between, a
// sequence of `fits` tokens, which fits in one chunk.
enum { MOST_CHUNKS = 4 };
typedef struct { Shape shape; int fits, chunks[MOST_CHUNKS]; } ChunksTest;
void engines_agree_on_chunks(Comparison x, const ChunksTest* test);
// Lengths of chunks: divisors of T and others, one token, one and several of TSSA's runs.
void engines_agree_on_all_chunks(Comparison x, int run);

// Changing shapes: evaluation and training on batches of several shapes, some repeated; an optimizer step; decode of
// two sequences and of one; scoring with all targets ignored; a second model that continues from the parameters and
// Adam moments of the first.
Record mixed_record(const TostEngine* engine, const void* unused, TostDtype dtype);
void engines_agree_on_mixed_shapes(Comparison x);
// Muon: steps of a model; then one of a second model, which continues from the arrays of the first. Compares how the
// parameters change in these steps, and the moments.
void engines_agree_on_muon(Comparison x, const Shape* k);
// Muon: the update of a matrix whose gradient has rank 1 or 8 must lie in its row and column space, but for rounding.
void engine_keeps_low_rank(Checks* c, const TostEngine* engine, TostDtype dtype);

// After zero_grad and at the start of each part, earlier gradients must have no effect: results must have the same bits
// as if they were zero.
void engine_overwrites_gradients(Checks* c, const TostEngine* engine, TostDtype dtype, int membership);

// ---- Shapes ---------------------------------------------------------------------------------------------------------

// Small shapes at the boundaries of runs, warps and vector loads. CUDA_RUN: TSSA_RUN of the CUDA engine
enum { CUDA_RUN = 32, RAGGED_BLOCK = 8 * CUDA_RUN + 40 };
static const Shape ragged_shapes[] = {
    {2, 3, 60, RAGGED_BLOCK, 257, 1, 0, 1, CUDA_RUN + 1, 10, 2, RANDOM},   // heads of 20 channels
    {2, 3, 60, RAGGED_BLOCK, 257, 1, 0, 3, CUDA_RUN + 1, 2, 2, RANDOM},
    {2, 3, 60, RAGGED_BLOCK, 257, 0, 0, 1, 1, 2, 5, RANDOM},
    {1, 3, 60, RAGGED_BLOCK, 257, 1, 0, 3, CUDA_RUN - 1, 1, 2, RANDOM},
    {1, 3, 60, RAGGED_BLOCK, 257, 0, 0, 1, CUDA_RUN, 1, 2, RANDOM},
    {1, 2, 4, RAGGED_BLOCK, 11, 1, 0, 2, 8 * CUDA_RUN + 37, 1, 2, RANDOM},   // several runs, the last one ragged
    {1, 3, 15, 2 * CUDA_RUN, 29, 1, 0, 3, CUDA_RUN + 5, 1, 2, RANDOM},   // channels not divisible by 4
    {1, 17, 34, 2 * CUDA_RUN, 29, 0, 0, 1, CUDA_RUN + 3, 1, 2, RANDOM},   // more heads than warps
    {1, 95, 95, 2 * CUDA_RUN, 29, 0, 0, 1, CUDA_RUN + 3, 1, 2, RANDOM},   // maximum number of heads
    {1, 4, 136, 2 * CUDA_RUN, 29, 0, 0, 1, CUDA_RUN + 3, 1, 2, RANDOM},   // heads of 34 channels: wider than a warp
    {1, 1, 70, 2 * CUDA_RUN, 29, 0, 0, 1, CUDA_RUN + 3, 1, 2, RANDOM},   // one head, of 70 channels
    {1, 3, 96, 2 * CUDA_RUN, 29, 0, 0, 1, CUDA_RUN + 3, 1, 2, RANDOM},   // heads of 32 channels: one per lane
    {1, 3, 192, 2 * CUDA_RUN, 29, 1, 0, 2, CUDA_RUN + 9, 1, 2, RANDOM},   // heads of 64 channels: two per lane
    {1, 1, 128, 2 * CUDA_RUN + 8, 29, 0, 0, 1, 2 * CUDA_RUN + 6, 1, 2, RANDOM},   // two slices of whole tiles
    {1, 1, 64, 2 * CUDA_RUN + 8, 29, 0, TOST_UNIFORM, 1, 2 * CUDA_RUN + 6, 1, 2, RANDOM},
    {1, 95, 95, 2 * CUDA_RUN, 29, 0, TOST_UNIFORM, 1, CUDA_RUN + 3, 1, 2, RANDOM},
    {1, 3, 60, 2 * CUDA_RUN + 8, 29, 1, 0, 2, 2 * CUDA_RUN + 6, 1, 2, FAINT},
    {1, 3, 192, 2 * CUDA_RUN + 8, 29, 0, 0, 1, 2 * CUDA_RUN, 1, 2, FAINT},
    {1, 3, 129, 2 * CUDA_RUN, 29, 1, 0, 1, 7, 1, 2, RANDOM},   // heads of 43 channels: several warps
    {1, 2, 16, 8, 9001, 0, 0, 1, 5, 1, 2, RANDOM},   // vocabulary larger than a thread block
    {2, 3, 60, RAGGED_BLOCK, 29, 1, 0, 2, CUDA_RUN + 1, 2, 2, CONV},
    {2, 3, 60, 3, 29, 1, 0, 2, CUDA_RUN + 1, 2, 2, NO_POSITIONS},   // T larger than the block
    {2, 3, 60, RAGGED_BLOCK, 29, 1, 0, 2, CUDA_RUN + 1, 2, 2, CONV_MEMORY},
    {1, 3, 129, 3 * CUDA_RUN, 29, 0, TOST_UNIFORM, 1, 2 * CUDA_RUN + 5, 1, 2, CONV_MEMORY},
    {1, 2, 140, 2 * CUDA_RUN, 29, 0, 0, 1, 2 * CUDA_RUN, 1, 2, MEMORY},   // heads of 70 channels
    // heads of 40 channels, of which a block of threads takes 32 on GPUs of up to 140 multiprocessors
    {1, 7, 280, 2 * CUDA_RUN, 29, 0, 0, 5, CUDA_RUN + 1, 1, 1, MEMORY},
    {1, 1, 96, 2 * CUDA_RUN, 29, 0, 0, 1, 2 * CUDA_RUN - 2, 1, 2, MEMORY},    // one head; whole runs of the memory
    {2, 5, 5, 2 * CUDA_RUN, 29, 1, 0, 2, CUDA_RUN + 2, 1, 2, MEMORY},   // heads of one channel
    {2, 3, 15, RAGGED_BLOCK, 29, 0, 0, 3, 2, 1, 2, CONV},   // fewer tokens than the convolution has rows
    {3, 3, 60, RAGGED_BLOCK, 257, 1, TOST_UNIFORM, 2, 3 * CUDA_RUN + 5, 2, 2, RANDOM},
    {4, 3, 60, RAGGED_BLOCK, 29, 0, 0, 2, CUDA_RUN + 5, 3, 3, RANDOM},   // deeper
};

// Shapes for Muon: matrices of less than a SLICE_UNIT, the same in one layer, of several units, and with bigrams
static const Shape muon_shapes[] = {{2, 3, 60, 2 * CUDA_RUN, 29, 1, 0, 2, CUDA_RUN + 1, 3, 1, CONV},
                                    {1, 3, 15, 2 * CUDA_RUN, 29, 0, 0, 3, CUDA_RUN + 1, 3, 1, RANDOM},
                                    {2, 2, 130, 2 * CUDA_RUN, 29, 0, 0, 3, 2 * CUDA_RUN, 2, 1, RANDOM},
                                    {1, 3, 15, 2 * CUDA_RUN, 29, 0, 0, 3, CUDA_RUN + 1, 3, 1, NO_POSITIONS}};

// A sequence of more than 64 runs: three levels of the scan.
static const Shape long_shape = {1, 2, 4, 66 * CUDA_RUN + 8, 7, 0, 0, 1, 66 * CUDA_RUN + 5, 1, 2, RANDOM};
// A sequence in which the memory has several segments on a GPU. Heads of 3 channels
static const Shape long_memory = {1, 2, 6, 66 * CUDA_RUN + 8, 7, 0, 0, 1, 66 * CUDA_RUN + 5, 1, 2, MEMORY};

#ifdef __cplusplus
}
#endif
