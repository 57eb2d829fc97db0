// delta_rule.h: the memory of --memory 1 on the CPU. A head's matrix G (HS,HS) predicts the z of the next token from
// the direction k of this one. It starts at 0 and is updated at each token by the delta rule (least mean squares):
//     k[t] = z[t] / √(‖z[t]‖² + 1e-12)
//     e[t] = Π[t] (z[t] - o[t-1]),   G[t] = G[t-1] + e[t] k[t-1]ᵀ      corrects the prediction made at t-1
//     o[t] = G[t] k[t]                                                 predicts z[t+1]
// and y += memory_scale · o, memory_scale (C). The state of a head is G, k and o, all 0 before the first token. This is
// the update of DeltaNet (Schlag et al. 2021, arXiv 2102.11174) with key k[t-1], value z[t], rate Π[t] and query k[t].
//
// A chunk of n tokens is computed at once. K[0] is the key of the token before it and K[n] that of its last; O alike. Kw
// and Kr are the rows 0 to n - 1 and 1 to n of K; S = Gᵀ before the chunk, S' after it. Queries are keys one token later,
// so one matrix has all products of keys: B = the lower triangle of Kr Kwᵀ, with its diagonal.
//     O[i] = K[i] S + Σ_{j<i} (K[i]·K[j]) E[j],   E[i] = Π[i] (z[i] - O[i]),   S' = S + Kwᵀ E
// Backward, where dO[n] includes the gradient from the next chunk, and X_r is X without its row 0:
//     dE = Kw dS' + Bᵀ dO_r with dO[i] -= Π[i] dE[i] from the last token to the first,   dΠ[i] = dE[i]·(z[i] - O[i])
//     dK_r += dO_r Sᵀ + Q Kw,   dKw += E dS'ᵀ + Qᵀ Kr,   Q = the lower triangle of dO_r Eᵀ,   dS = dS' + Krᵀ dO_r
//     dz[i] = Π[i] dE[i] + (dk - k (k·dk)) / √(‖z[i]‖² + 1e-12)   with k = K[i+1], dk = dK[i+1]
// dO[0] and dK[0] go to the chunk before. E comes from the stored o, so that backward recovers S as S' - Kwᵀ E. Both
// triangular systems are solved by substitution: the inverse of their matrix would have errors like 1/(1-Π).
#pragma once

#include <stddef.h>

typedef struct {
    int B, T, C, NH, HS;
    const float *z, *pi;     // (B,T,C), (B,NH,T)
    float  *o;               // (B,T,C)
    float  *G;               // (B,C·HS): G of each head, after these tokens. NULL in inference
    size_t stride;           // floats from the state of a sequence to the next
    float  *state;           // (B,C·HS+2C): Gᵀ of each head, k and o; before these tokens, then after them
    float  *scratch;         // (threads,delta_rule_scratch_size)
    // backward only
    const float* before;     // the state before these tokens; NULL: zeros
    const float *d_o;        // (B,T,C): the gradient of o
    float  *dz;              // (B,T,C): =; may be the array d_o
    float  *dpi;             // (B,NH,T): =
    float  *adjoint;         // (B,C·HS+2C): of the state after these tokens, then before them; dG, not transposed
} DeltaRule;

static inline size_t delta_rule_state_size(int C, int HS) { return (size_t)C * HS + 2 * (size_t)C; }
size_t delta_rule_scratch_size(int HS);   // of a thread

// Sets o and G, and moves the state to the end of these tokens.
void delta_rule_forward(const DeltaRule* args);
// Sets dz and dΠ from d_o; moves the adjoint of the state from the end of these tokens to the start.
void delta_rule_backward(const DeltaRule* args);
