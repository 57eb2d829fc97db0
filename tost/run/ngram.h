// ngram.h: the loss of a model that counts, which shows how hard a text is to predict before anything is trained.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Mean loss, in nats, of tokens 2 … m - 1 of `val` (m) after counting the pairs and, for order 3, the triples of `text`
// (n). Ids are below V; V^order < 2^64. P(w | context) = (max(count - d, 0) + d · types · P(w | shorter context)) / all,
// where count, types and all are of the context's continuations: those with w, the different ones, and all; d = 0.75.
double ngram_loss(const int32_t* text, size_t n, const int32_t* val, size_t m, int V, int order);
