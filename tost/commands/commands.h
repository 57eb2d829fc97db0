// commands.h: the commands of the program. A command returns the exit status of the process; if it fails, it prints one
// line on stderr.
#pragma once

#include "engine.h"

int tost_main(int argc, char** argv, const TostEngine* engine);

#ifndef __cplusplus
#include "base/say.h"
#include "options/options.h"
#include "store/loaded_model.h"

// Prints the page that o->page asks for: the help of o's command, with the usage lines of all commands if none was
// named; or the version.
void print_page(const Options* o, const TostEngine* engine);
int command_train(const Options* o, TostComm* comm, const TostEngine* engine);
int command_sample(const Options* o, const TostEngine* engine);
int command_eval(const Options* o, TostComm* comm, const TostEngine* engine);
int command_vocab(const Options* o);
int command_tokenize(const Options* o);
int command_info(const Options* o);

// Scores every example of o->task, prints the results and writes o->json. The decode state after a context is
// computed once for all its choices. Contexts are truncated on the left to fit --seq.
bool eval_task(LoadedModel* model, const Options* o, TostError* err);

#endif
