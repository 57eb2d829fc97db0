// eval_task.h: LAMBADA, HellaSwag and the Children's Book Test with a trained model.
#ifndef TOST_EVAL_TASK_H
#define TOST_EVAL_TASK_H

#include "commands.h"

// Scores every example of o->files[0], prints the figures and writes o->json. What the endings of an example
// share is read once, by the recurrent state; of a text too long for --seq (the block size) the beginning is
// left out.
bool eval_task(LoadedModel* t, const Options* o, TostError* err);

#endif
