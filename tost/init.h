// init.h: parameter initialization.
#ifndef TOST_INIT_H
#define TOST_INIT_H

#include "engine.h"

// Initializes every parameter as specified in the parameter table (model.h). A tensor's values depend only on the seed,
// its name and n_layer (which scales the residual projections), not on other tensors or the number of threads.
void init_params(const TostEngine* engine, TostModel* model, const TostTensors* tensors, int n_layer,
                 uint64_t seed);

// Extends the values of a tensor, in place, to more positions. values: those of `from` on entry and of `to` on return,
// which differ in at most one dimension, the positions. Positions past the last repeat the second half, whose last
// positions are the most frequent in training on long sequences: position t is position half + (t - half) % (n - half)
// of the n positions of `from`, with half = n / 2.
void init_extend(float* values, const TostTensor* to, const TostTensor* from);

#endif
