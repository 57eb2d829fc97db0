// ngram.h: the loss of n-gram models with interpolated absolute discounting, which shows how hard a text is to predict
// before anything is trained.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { NGRAM_ORDERS = 3 };

// Mean losses, in nats, of the third and later tokens of `val` (m) after counting tokens, pairs and triples of `text`
// (n): predicted from no, one and two tokens before. Ids are below V; V^3 < 2^64.
//   P(w | context) = (max(count - d, 0) + d · types · P(w | shorter context)) / all,   d = 0.75
// all: how often a token follows the context in `text`; count: how often w does; types: the different ones. An unknown
// context is shortened, the last time to P = 1/V.
void ngram_losses(double losses[NGRAM_ORDERS], const int32_t* text, size_t n, const int32_t* val, size_t m, int V);
