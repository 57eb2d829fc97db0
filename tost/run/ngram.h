// ngram.h: the loss of counting models, which shows how hard a text is to predict before anything is trained.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Mean losses, in nats, of the tokens of `val` (m), after counting `text` (n), in windows of 256 tokens without their
// first. Ids are below V.
//   losses[0]   from the frequency of tokens
//   losses[1]   from the token before: what followed it earlier in the window, then in `text`, then frequency
// Each is P(w | context) = (max(count - d, 0) + d · types · P(w | less context)) / all,   d = 0.75
// all: how often a token follows the context; count: how often w does; types: the different ones. If nothing does,
// P(w | less context), the last time 1/V.
void ngram_losses(double losses[2], const int32_t* text, size_t n, const int32_t* val, size_t m, int V);
