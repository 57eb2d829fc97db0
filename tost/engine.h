// engine.h: the interface between the trainer in tost/ and an engine (CPU or CUDA). The trainer sees only this table of
// functions, not precision, device or padding. Host arrays are float32 or int32, dense, row-major. An engine owns
// parameters, gradients, Adam's moments, activations and the decode state.
//
// Several ranks (TostEngineOptions.comm) have the same parameters, but each one the gradients of its own micro-batches
// and the moments of its own slices (slices.h). Collective functions must be called by all ranks in the same order.
#ifndef TOST_ENGINE_H
#define TOST_ENGINE_H

#include "base/error.h"
#include "model.h"

// The arrays shaped like the parameters: they, their gradients, Adam's moments, and the average of the parameters.
typedef enum { TOST_PARAM, TOST_GRAD, TOST_M, TOST_V, TOST_EMA, TOST_STATES } TostState;
typedef enum { TOST_W, TOST_PI, TOST_X } TostActivation;            // of a layer: w, Π, and its input x
typedef enum { TOST_FP32, TOST_TF32, TOST_BF16 } TostDtype;
// What follows a backward pass: more micro-batches of this part; the next part; or nothing, as the step is complete.
typedef enum { TOST_MORE, TOST_PART_ENDS, TOST_STEP_ENDS } TostEnd;
typedef struct TostComm TostComm;       // comm.h
typedef struct TostModel TostModel;

typedef struct {
    int       max_batch, max_seq;   // largest B and T of any call
    bool      training;             // allocate gradients, moments and every layer's activations
    bool      recompute;            // activation checkpointing: backward recomputes each layer's forward; same bits
    TostDtype dtype;                // of matrix products and their operands; the CPU engine has no tf32
    int       threads;              // maximum number of CPU threads; 0: one per core
    TostComm* comm;                 // the ranks that train together; NULL: one process
    int       parts;                // parts of a step on this rank (slices.h); 0 is 1
    int       chunk;                // tokens of a sequence in memory at a time, 0: max_seq; see forward_loss
    // If T > chunk: called after each chunk with the part of the pass that is done, 0 to 1, unless NULL. If it returns
    // true, the pass is abandoned: losses and gradients are undefined until read_loss and zero_grad.
    bool    (*chunk_done)(void* context, double part);
    void*     context;
    bool      fast_reduce;          // CUDA: NCCL adds the ranks' gradients, in an order that depends on their number
    bool      ema;                  // TOST_EMA exists: update keeps an average of the parameters
} TostEngineOptions;

typedef struct {
    double lr, beta1, beta2, eps, weight_decay;
    double grad_scale;              // multiplies every gradient, to clip it
    int64_t step;                   // counted from 1, for bias correction
    double  ema_rate;               // with TostEngineOptions.ema: ema += ema_rate · (parameter - ema) after the update
} TostAdamW;

typedef struct {
    const char* name;                                     // "cpu", "cuda"
    TostDtype   default_dtype;

    bool (*supports)(TostDtype dtype);
    // Writes device, threads and matmul library as one line of text. Fails if there is no device.
    bool (*describe)(char* text, size_t cap, const TostEngineOptions* o, TostError* err);
    // Bytes that create will allocate.
    size_t (*memory)(const TostConfig* c, const TostEngineOptions* o);

    // Parameters, moments and gradients start at zero. Returns NULL and sets *err if memory or a device is missing.
    TostModel* (*create)(const TostConfig* c, const TostEngineOptions* o, TostError* err);
    void (*destroy)(TostModel* m);
    // Returns the peak rate of dense matrix products for the model's device and dtype, in operations/s; 0: unknown.
    // Sets *measured: true if the rate was measured, false if it is from the data sheet.
    double (*peak_flops)(TostModel* m, bool* measured);

    // Copies one tensor of one state, t->size elements, from or to the host. With several ranks, put stores what this
    // rank has of m, v and ema. get of parameters is not collective; get of another state is, and writes dst only on
    // rank 0. The gradient, after the last backward of a step, is the sum over all ranks.
    void (*put)(TostModel* m, TostState s, const TostTensor* t, const float* src);
    void (*get)(float* dst, const TostModel* m, TostState s, const TostTensor* t);

    // The three forwards take inputs (B,T), ids in [0, V). forward computes the activations, for logits and activation.
    // forward_loss also adds the losses of targets (B,T; -1 is not counted) to the sum that read_loss returns.
    // forward_train (a training model) does that and starts the gradient of grad_scale · Σ loss; backward completes it
    // and adds it to the gradients of the part; the pass that ends the step adds up the parts of all ranks
    // (collective). The classifier works on chunks of rows: full logits are never materialized.
    // If T > chunk, forward_loss, forward_train, backward, decode_begin and decode_score pass over the sequences chunk
    // by chunk, with the memory of one: TSSA's running sums continue from chunk to chunk. forward_train only computes
    // the sums before each chunk; backward goes from the last chunk to the first and recomputes each one's forward.
    // inputs and targets must stay valid until it returns.
    void (*forward)(TostModel* m, const int32_t* inputs, int B, int T);
    void (*forward_loss)(TostModel* m, const int32_t* inputs, const int32_t* targets, int B, int T);
    void (*forward_train)(TostModel* m, const int32_t* inputs, const int32_t* targets, int B, int T, float grad_scale);
    void (*backward)(TostModel* m, TostEnd end);
    // Sum of the losses (nats) and number of counted targets since the last call. Waits for the device.
    void (*read_loss)(double* sum, int64_t* count, TostModel* m);
    // Logits (B,T,V) after forward.
    void (*logits)(float* dst, TostModel* m);
    // An activation of layer `layer` in the last forward: the projection w (B,T,C), the membership Π (B,NH,T), or the
    // residual stream x (B,T,C) that enters the layer (layer n_layer: the output of the last layer). Needs a training
    // model and no decode since that forward.
    void (*activation)(float* dst, TostModel* m, TostActivation what, int layer);

    void   (*zero_grad)(TostModel* m);
    double (*grad_norm)(TostModel* m);                    // L2 norm over all gradients; collective
    void   (*update)(TostModel* m, const TostAdamW* a);   // AdamW with decoupled decay; collective

    // Recurrent decode of n sequences together. decode_begin reads prompts (n,T) in one forward and keeps 2C + nh
    // numbers per layer and sequence as the decode state; T = 0 starts empty sequences. decode_step feeds one token to
    // each at the next position, below block_size. Both write the logits (n,V) after the last token; decode_begin
    // writes none if logits is NULL or T is 0. Forward and backward passes in between do not change the decode state.
    void (*decode_begin)(float* logits, TostModel* m, const int32_t* prompts, int n, int T);
    void (*decode_step)(float* logits, TostModel* m, const int32_t* tokens);
    // Scores continuations without changing the decode state. tokens (n·copies,T): `copies` continuations of each
    // state, those of one state in adjacent rows; n·copies <= max_batch. losses (n·copies,T) in nats. If the target is
    // -1, the loss is 0 and no logits are computed.
    void (*decode_score)(double* losses, TostModel* m, const int32_t* tokens, const int32_t* targets,
                         int copies, int T);
    // Scores tokens (n,T), T <= chunk, as decode_score does with one copy, and advances the decode state: the next call
    // continues after them. Sequences of any length can be scored in the memory of one call.
    void (*decode_advance)(double* losses, TostModel* m, const int32_t* tokens, const int32_t* targets, int T);

    // Connects the ranks for host messages, in builds without MPI; NULL if the engine cannot. See comm_open.
    bool (*open_comm)(TostComm** comm, TostError* err);
} TostEngine;

#endif
