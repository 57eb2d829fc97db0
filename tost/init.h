// init.h: parameter initialization.
#pragma once

#include "engine.h"

// Initializes every parameter as specified in the parameter table (model.h). A tensor's values depend only on the seed,
// its name and n_layer (which scales the residual projections), not on other tensors or the number of threads.
void init_params(const TostEngine* engine, TostModel* model, const TostTensors* tensors, int n_layer,
                 uint64_t seed);

// Extends a tensor in place to more positions. values has the shape of `from` on entry and of `to` on return; these
// shapes may differ only in the dimension of positions. The new positions are copies of the last one, because after
// many tokens TSSA's sums change little from one position to the next.
void init_extend(float* values, const TostTensor* to, const TostTensor* from);
