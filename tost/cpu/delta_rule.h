// delta_rule.h: the memory of --memory 1 on the CPU. A head's matrix G (HS,HS) predicts the z of the next token from
// the direction k of this one. It starts at 0 and is updated at each token by the delta rule (least mean squares):
//     k[t] = z[t] / √(‖z[t]‖² + 1e-12)
//     e[t] = Π[t] (z[t] - o[t-1]),   G[t] = G[t-1] + e[t] k[t-1]ᵀ      corrects the prediction made at t-1
//     o[t] = G[t] k[t]                                                 predicts z[t+1]
// and y += memory_scale · o, memory_scale (C). The state of a head is G, k and o, all 0 before the first token. This is
// the update of DeltaNet (Schlag et al. 2021, arXiv 2102.11174) with key k[t-1], value z[t], rate Π[t] and query k[t].
#ifndef TOST_DELTA_RULE_H
#define TOST_DELTA_RULE_H

#include <stddef.h>

typedef struct {
    int B, T, C, NH, HS;
    const float *z, *pi;     // (B,T,C), (B,NH,T)
    float  *o;               // (B,T,C)
    float  *G;               // (B,C·HS): G of each head, after these tokens; backward replaces it by that before
                             // them. NULL in inference
    size_t stride;           // from the state of a sequence to the next
    float  *state;           // (B,C·HS+2C): Gᵀ of each head, k and o; before these tokens, then after them
    float  *scratch;         // (threads,3·HS)
    // backward only
    const float* before;     // the state before these tokens; NULL: zeros
    float  *dz;              // (B,T,C): do, then dz
    float  *dpi;             // (B,NH,T): =
    float  *adjoint;         // (B,C·HS+2C): of the state after these tokens, then before them; dG, not transposed
} DeltaRule;

static inline size_t delta_rule_state_size(int C, int HS) { return (size_t)C * HS + 2 * (size_t)C; }
static inline size_t delta_rule_scratch_size(int HS) { return 3 * (size_t)HS; }   // of a thread

// Sets o and G, and moves the state to the end of these tokens.
void delta_rule_forward(const DeltaRule* args);
// From do to dz, in place; sets dΠ; moves the adjoint of the state from the end of these tokens to the start.
void delta_rule_backward(const DeltaRule* args);

#endif
