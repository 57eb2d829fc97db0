// init.h: parameter initialization.
#pragma once

#include "engine.h"

// Initializes every parameter as specified in the parameter table (model.h). A tensor's values depend only on the seed,
// its name and n_layer (which scales the residual projections), not on other tensors or the number of threads.
void init_params(const TostEngine* engine, TostModel* model, const TostTensors* tensors, int n_layer, uint64_t seed);
