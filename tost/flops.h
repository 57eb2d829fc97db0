// flops.h: model FLOPs utilization (MFU): the rate of the floating-point operations that the model needs, without
// recomputation, divided by the peak rate of the GPUs:   MFU = flops_per_token · tokens/s / (peak rate · ranks)
#pragma once

#include "engine.h"

// Operations of forward and backward for one token:   6 N + 3 L (10 C + 8 NH)
// N = L·10C² + V·C are the weights of matrix products, the tied output head included: 2 operations for each forward, 4
// backward. TSSA takes 10 per channel and 8 per head forward, whatever T is, and twice as many backward.
// Forward also takes 16 per channel with --conv 4. With --memory 1, it takes 4 HS + 7 per channel, HS = C/NH: 2 HS for
// G k, 2 HS for the update e kᵀ, 3 for k, 2 for e and 2 for y. Backward takes twice as many: four products of this size,
// Gᵀ do, do kᵀ, dG k and dGᵀ e. These are the operations of the rule applied token by token: the pairs of keys and the
// triangular systems of runs of tokens do not count, nor does recomputing G in backward.
double flops_per_token(const TostConfig* c);

// Peak rate of dense matrix products of a GPU, from its data sheet, in operations/s; 0: unknown. Also 0 if the device
// has the name of a known GPU but another number of multiprocessors: it is a part of that GPU (MIG) or another model,
// such as the RTX 4090 D.
double flops_peak_of(const char* device, int multiprocessors, TostDtype dtype);
