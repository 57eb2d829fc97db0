// ngram.h: the loss of counting models, which shows how hard a text is to predict before anything is trained.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Mean losses, in nats, of the tokens of `val` (m), in windows of 256 tokens, after counting `text` (n). The first token
// of a window is not scored. Ids are below V.
//   losses[0]   unigrams of the text
//   losses[1]   bigrams earlier in the window, which back off to bigrams of the text, and these to unigrams
// Absolute discounting: P(w | context) = (max(count - d, 0) + d · types · P(w | shorter context)) / all,   d = 0.75
// all: how often a token follows the context; count: how often w does; types: the different ones. If the context never
// occurred, P(w | shorter context); that of unigrams is 1/V.
void ngram_losses(double losses[2], const int32_t* text, size_t n, const int32_t* val, size_t m, int V);
