// engine.h: the interface between the trainer in tost/ and an engine (CPU or CUDA). The trainer sees only this table of
// functions, not precision, device or padding. Host arrays are float32 or int32, dense, row-major. An engine owns
// parameters, gradients, the optimizer's moments, activations and states.
//
// All that a layer keeps of earlier tokens is the state: TSSA's running sums S, N and D, 2C + NH numbers per sequence,
// with --conv the last three inputs of each convolution, 6C numbers, and with --memory the matrices G of the heads,
// C²/NH numbers, and the last k, C numbers (on the CPU also the last o). With --bigrams, a state also has the last
// token. A pass works on a chunk of the sequences, continues from one state and leaves another. chunks.h has the loops
// over chunks: long sequences, prompts, decode, scoring.
//
// Several ranks (TostEngineOptions.comm) have the same parameters, but each one the gradients of its own micro-batches
// and the moments of its own slices (slices.h). Collective functions must be called by all ranks in the same order.
#pragma once

#include "model.h"

// Arrays of all tensors: the parameters, their gradients, and the optimizer's moments m and v. Muon's matrices have no
// v; with row-wise RMSProp, the table of bigrams has no m, and one v per row.
typedef enum { TOST_PARAM, TOST_GRAD, TOST_M, TOST_V, TOST_ARRAYS } TostArray;

// Elements of tensor t in an array of a run with this --optimizer
static inline size_t tost_elements(const TostTensor* t, TostArray a, TostOptimizer run) {
    const TostOptimizer optimizer = tost_optimizer(t, run);
    if (optimizer == TOST_ROWWISE && a >= TOST_M) return a == TOST_V ? (size_t)t->shape[0] : 0;
    return optimizer == TOST_MUON && a == TOST_V ? 0 : t->size;
}

typedef enum { TOST_Z, TOST_PI, TOST_X } TostActivation;            // of a layer: z, Π, and its input x
typedef enum { TOST_FP32, TOST_TF32, TOST_BF16 } TostDtype;
// What follows a backward pass: another pass of this part; the next part; or nothing, as the step is complete.
typedef enum { TOST_MORE, TOST_PART_ENDS, TOST_STEP_ENDS } TostEnd;
typedef struct TostComm TostComm;       // comm.h
typedef struct TostModel TostModel;

// T tokens of each of B sequences, at the positions first, first + 1, …
typedef struct {
    const int32_t *inputs, *targets;   // (B,T): ids in [0, V). targets: -1 is not counted; NULL if no loss is wanted
    int            B, T, first;
} TostChunk;

// The matrix products of the CPU engine use one order of summation up to this many tokens in a pass (B·T), and
// another above. On one side of the limit, a token gets the same bits in every pass, whatever other sequences are in
// it. generate.c needs this, so that a text does not depend on those generated with it.
enum { TOST_FEW_ROWS = 64 };

// In place of a state's number. Where a pass reads a state: start from zeros. Where it writes one: do not store it.
enum { TOST_NO_STATE = -1 };

// With --bigrams: the row of a token and the one before it (-1: none) in the table bigram, whose first V rows are of
// tokens. Pairs can share a row.
static inline int32_t bigram_row(int32_t before, int32_t token, const TostConfig* c) {
    const uint64_t hash = (uint64_t)(before + 1) * 2654435761u + (uint64_t)token;
    return c->vocab_size + (int32_t)(hash % (uint64_t)c->bigrams);
}

// rows (B,T): of the pairs of chunk x, which continues state `from`. last (states,max_batch): the last token of each
// sequence in each state; sets those of state `to`.
static inline void bigram_rows(int32_t* rows, int32_t* last, int max_batch, const TostConfig* c, const TostChunk* x,
                               int from, int to) {
    for (int b = 0; b < x->B; b++) {
        int32_t before = from == TOST_NO_STATE ? -1 : last[(size_t)from * max_batch + b];
        for (size_t i = (size_t)b * x->T; i < (size_t)(b + 1) * x->T; i++) {
            rows[i] = bigram_row(before, x->inputs[i], c);
            before = x->inputs[i];
        }
        if (to != TOST_NO_STATE) last[(size_t)to * max_batch + b] = before;
    }
}

typedef struct {
    int       max_batch, max_chunk; // largest B and T of a chunk
    int       states;               // number of states, each of max_batch sequences
    bool      training;             // allocate gradients, moments and every layer's activations
    TostDtype dtype;                // of matrix products and their operands; the CPU engine has no tf32
    int       threads;              // maximum number of CPU threads; 0: one per core
    TostComm* comm;                 // the ranks that train together; NULL: one process
    int       parts;                // parts of a step on this rank (slices.h); 0 is 1
    TostOptimizer optimizer;        // TOST_MUON: for the tensors with this optimizer in the table, which have no v
} TostEngineOptions;

// One step of the optimizer
typedef struct {
    double lr, beta1, beta2, eps, weight_decay;
    double clip;                    // multiplies every gradient: at most 1
    int64_t step;                   // counted from 1, for bias correction
    double momentum;                // of Muon
} TostUpdate;

typedef struct {
    const char* name;                                     // "cpu", "cuda"
    // Bytes that create may allocate on this rank's GPU, 0 without one. NULL: the engine uses the machine's memory.
    size_t (*usable_memory)(const TostComm* comm);

    TostDtype (*default_dtype)(bool training);            // training: for `train`; else for sample and eval
    bool (*supports)(TostDtype dtype);
    // Writes device, threads and matmul library as one line of text. Fails if there is no device.
    bool (*describe)(char* text, size_t cap, const TostEngineOptions* o, TostError* err);
    // Bytes that create will allocate. Needs a device, as create does.
    size_t (*memory)(const TostConfig* c, const TostEngineOptions* o);

    // Parameters, moments and gradients start at zero. Returns NULL and sets *err if memory or a device is missing.
    TostModel* (*create)(const TostConfig* c, const TostEngineOptions* o, TostError* err);
    void (*destroy)(TostModel* model);
    // Returns the peak rate of dense matrix products for the model's device and dtype, in operations/s, from the
    // device's data sheet; 0: unknown. NULL, as for CPUs: unknown.
    double (*peak_flops)(const TostModel* model);

    // Copies one tensor of one array, t->size elements, from or to the host. With several ranks, put stores what this
    // rank has of m and v. get of parameters is not collective; get of another array is, and writes dst only on
    // rank 0. The gradient, after the last backward of a step, is the sum over all ranks.
    void (*put)(TostModel* model, TostArray array, const TostTensor* t, const float* src);
    void (*get)(float* dst, const TostModel* model, TostArray array, const TostTensor* t);

    // Runs the layers over a chunk, starting from state `from`, and stores the final state in `to`; it may be `from`.
    // The chunk's arrays must stay valid until the next pass. Full logits are never materialized, except by `logits`.
    void (*forward)(TostModel* model, const TostChunk* chunk, int from, int to);
    // For i < n: sequence i of state `to` = sequence i / copies of state `from`. to ≠ from
    void (*copy_state)(TostModel* model, int to, int from, int n, int copies);
    // After forward, not between train_forward and train_backward: the logits (B,T,V); those after the last token of
    // each sequence (B,V); the loss of each target in nats (B,T), 0 if the target is -1. losses also adds them to the
    // sum of read_loss; with dst NULL it does only that.
    void (*logits)(float* dst, TostModel* model);
    void (*last_logits)(float* dst, TostModel* model);
    void (*losses)(double* dst, TostModel* model);
    // For tests. An activation of layer `layer`: z (B,T,C), TSSA's projection, the membership Π (B,NH,T), or the
    // residual stream x (B,T,C) that enters the layer (layer n_layer: the input of ln_f). Needs a training model whose
    // parameters have not changed since the pass: the CUDA engine keeps no x and computes it again.
    void (*activation)(float* dst, TostModel* model, TostActivation what, int layer);

    // train_forward is forward, losses(NULL) and the classifier's backward, for the loss grad_scale · Σ loss.
    // train_backward does the rest, and adds to the gradients of the part. State `after` has the gradient with respect
    // to the state after the chunk; state `before`, which may be `after`, receives that with respect to `from`, which
    // must be unchanged. The pass that ends the step adds up the parts of all ranks (collective).
    void (*train_forward)(TostModel* model, const TostChunk* chunk, int from, float grad_scale);
    void (*train_backward)(TostModel* model, int after, int before, TostEnd end);
    // Sum of the losses (nats) and number of counted targets since the last call. Waits for the device.
    void (*read_loss)(double* sum, int64_t* count, TostModel* model);

    void   (*zero_grad)(TostModel* model);
    double (*grad_norm)(TostModel* model);                    // L2 norm over all gradients; collective
    // One step of AdamW, and of Muon and row-wise RMSProp if TostEngineOptions.optimizer is TOST_MUON. May overwrite
    // the gradients; collective.
    void   (*update)(TostModel* model, const TostUpdate* update);

    // Connects the ranks for host messages, in builds without MPI; NULL if the engine cannot. See comm_open.
    bool (*open_comm)(TostComm** comm, TostError* err);
} TostEngine;
