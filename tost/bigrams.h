// bigrams.h: the rows of pairs of tokens in the table of --bigrams, for both engines. The first V rows are of tokens.
#pragma once

#include "engine.h"

// The row of a token and the one before it (-1: none). Pairs can share a row.
static inline int32_t bigram_row(int32_t before, int32_t token, const TostConfig* c) {
    const uint64_t hash = (uint64_t)(before + 1) * 2654435761u + (uint64_t)token;
    return c->vocab_size + (int32_t)(hash % (uint64_t)c->bigrams);
}

// rows (B,T): those of the tokens of x, which continue state `from`. last (states,most): the last token of each
// sequence in each state; sets those of state `to`.
static inline void bigram_rows(int32_t* rows, int32_t* last, int most, const TostConfig* c, const TostChunk* x,
                               int from, int to) {
    for (int b = 0; b < x->B; b++) {
        int32_t before = from == TOST_NO_STATE ? -1 : last[(size_t)from * most + b];
        for (size_t i = (size_t)b * x->T; i < (size_t)(b + 1) * x->T; i++) {
            rows[i] = bigram_row(before, x->inputs[i], c);
            before = x->inputs[i];
        }
        if (to != TOST_NO_STATE) last[(size_t)to * most + b] = before;
    }
}
