// plan.h: the law behind --for: the loss as a function of size and tokens, and the settings that go with it.
// dev/results/budget.md has the measurements.
#pragma once

#include "recipe.h"

// Cost of training on a token, in arbitrary units of time
double plan_cost(const TostConfig* c);
// Expected validation loss, in nats per token, on English Wikipedia with a vocabulary of 4,096 after `tokens` tokens,
// if the text has `unique` ones
double plan_loss(const TostConfig* c, double tokens, double unique);
// The size of the vocabulary for a text of this many bytes and a run of this cost (plan_cost · tokens)
int    plan_vocabulary(double bytes, double cost);
// Sets the sizes, the tokens per step, --bigrams and --positions none, unless given, for that time and speed
// (plan_cost per second). unique: tokens of the text
void   plan_sizes(TostRecipe* r, double seconds, double speed, double unique);
// Sets the steps (at most `most`, fewer if more epochs would not lower the loss) and what is not given: learning rate,
// weight decay, schedule, warm-up, decay rates of AdamW, Muon's momentum, and the intervals of validation, samples and
// checkpoints.
void   plan_steps(TostRecipe* r, double most, double unique);
// At step `step`, changes the steps of a wsd run, without a jump of the learning rate
void   plan_new_steps(TostRecipe* r, int64_t step, int64_t steps);
