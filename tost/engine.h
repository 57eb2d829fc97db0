// engine.h: the seam. The front sees an engine as this table of functions and nothing else; precision, device and
// padding never cross it. Host arrays are float32 or int32, dense, row-major. An engine owns parameters, gradients,
// moments, activations and the recurrent state.
#ifndef TOST_ENGINE_H
#define TOST_ENGINE_H

#include "model.h"

typedef enum { TOST_PARAM, TOST_GRAD, TOST_M, TOST_V } TostState;   // the four arrays shaped like the parameters
typedef enum { TOST_W, TOST_PI, TOST_X } TostActivation;            // what a layer computes: w, Π, and x before it
typedef enum { TOST_FP32, TOST_TF32, TOST_BF16 } TostDtype;

typedef struct {
    int       max_batch, max_seq;   // largest B and T that forward or decode_begin will see
    bool      training;             // gradients, moments and saved activations exist
    bool      recompute;            // with training: backward computes a layer's activations again; the same bits
    TostDtype dtype;                // of matrix products and their operands; the CPU engine knows fp32 alone
    int       threads;              // CPU threads; 0: one for each core
} TostEngineOptions;

typedef struct {
    double lr, beta1, beta2, eps, weight_decay;
    double grad_scale;              // multiplies every gradient: clipping
    int64_t step;                   // counted from 1, for bias correction
} TostAdamW;

typedef struct TostModel TostModel;

typedef struct {
    const char* name;                                     // "cpu", "cuda"
    TostDtype   default_dtype;

    bool (*supports)(TostDtype dtype);
    // One line of text: device, threads, matmul library. Fails where there is no device.
    bool (*describe)(char* text, size_t cap, const TostEngineOptions* o, TostError* err);
    // Bytes that create will take.
    size_t (*memory)(const TostConfig* c, const TostEngineOptions* o);

    // Parameters, moments and gradients start as zero. NULL and *err where memory or a device is missing.
    TostModel* (*create)(const TostConfig* c, const TostEngineOptions* o, TostError* err);
    void (*destroy)(TostModel* m);

    // One tensor of one state, t->size elements, from and to the host.
    void (*put)(TostModel* m, TostState s, const TostTensor* t, const float* src);
    void (*get)(float* dst, const TostModel* m, TostState s, const TostTensor* t);

    // Forward of inputs (B,T), ids in [0, V). With targets (B,T; -1 does not count) their loss is added to the sum that
    // read_loss reads. With grad_scale != 0 (training) the gradient of grad_scale · Σ loss is begun here, chunk by
    // chunk of rows so that (B·T, V) logits never stand whole, and backward finishes it. Gradients accumulate.
    void (*forward)(TostModel* m, const int32_t* inputs, const int32_t* targets, int B, int T, float grad_scale);
    void (*backward)(TostModel* m);
    // Sum of the losses (nats) and number of counted targets since the last call; waits for the device.
    void (*read_loss)(double* sum, int64_t* count, TostModel* m);
    // Logits (B,T,V) of the last forward, which had grad_scale 0.
    void (*logits)(float* dst, TostModel* m);
    // Of layer `layer` in the last forward, with training, no decode since: the projection w (B,T,C), the membership Π
    // (B,NH,T), or the residual stream x (B,T,C) that enters the layer; x of layer n_layer is what leaves the last one.
    // With recompute it is computed again.
    void (*activation)(float* dst, TostModel* m, TostActivation what, int layer);

    void   (*zero_grad)(TostModel* m);
    double (*grad_norm)(TostModel* m);                    // L2 over all gradients
    void   (*update)(TostModel* m, const TostAdamW* a);   // AdamW with decoupled decay

    // Recurrent decode of n sequences in step: begin reads prompts (n,T) by one forward (T = 0: texts not yet begun, no
    // logits) and leaves 2C + nh numbers a layer and sequence behind; step feeds one token each at the next position,
    // below block_size. Both write the logits (n,V) after the last token, begin only where logits is not NULL. forward
    // and backward in between do not disturb the state.
    void (*decode_begin)(float* logits, TostModel* m, const int32_t* prompts, int n, int T);
    void (*decode_step)(float* logits, TostModel* m, const int32_t* tokens);
    // Losses of texts that go on from the states, which stay as they are: tokens (n·copies,T) follow copies of the
    // states, those of one state side by side, n·copies <= max_batch. losses (n·copies,T) in nats; where the target is
    // -1 the loss is 0, and costs no logits.
    void (*decode_score)(double* losses, TostModel* m, const int32_t* tokens, const int32_t* targets, int copies,
                         int T);
} TostEngine;

#endif
