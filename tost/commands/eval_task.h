// eval_task.h: evaluates a trained model on examples.
#ifndef TOST_EVAL_TASK_H
#define TOST_EVAL_TASK_H

#include "base/error.h"
#include "commands/commands.h"

// Scores every example of o->task, prints the results and writes o->json. The recurrent state after a context is
// computed once for all its choices. Contexts are truncated on the left to fit --seq, which is at most block_size.
bool eval_task(LoadedModel* model, const Options* o, TostError* err);

#endif
