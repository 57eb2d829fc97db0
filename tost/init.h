// init.h: the initial values of the parameter table.
#ifndef TOST_INIT_H
#define TOST_INIT_H

#include "engine.h"

// Puts the table's initial values into every parameter. The numbers of a tensor depend on the seed, its name
// and n_layer (the residual rows' deviation) alone: they do not move when a row is added to the table, nor
// with the number of threads.
void init_params(const TostEngine* engine, TostModel* model, const TostTensors* tensors, int n_layer,
                 uint64_t seed);

#endif
