// pieces.c: loops over pieces of sequences.
#include "pieces.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

// The states of an engine: that of decoding, and the one between two pieces or, in backward, its gradient. Training in
// pieces also has the state before each piece but the first.
enum { DECODE, PASS, BEFORE_SECOND };

// Work of a pass over a piece, in units of a forward pass: backward takes twice the time of forward.
enum { FORWARD = 1, TRAIN = 3 };

static int pieces_of(int T, int max_piece) { return T / max_piece + (T % max_piece != 0); }

int pieces_states(int seq, int max_piece, bool training) {
    const int pieces = pieces_of(seq, max_piece);
    return training && pieces > 1 ? BEFORE_SECOND + pieces - 1 : PASS + 1;
}

// Whole sequences (B,T) and the copies (B,max_piece) of their columns in a piece.
typedef struct { const int32_t *inputs, *targets; int B, T, first; int32_t *input_columns, *target_columns; } Sequences;

static Sequences sequences_new(const Pieces* p, const int32_t* inputs, const int32_t* targets, int B, int T,
                               int first) {
    Sequences s = {inputs, targets, B, T, first, NULL, NULL};
    if (T <= p->max_piece) return s;
    s.input_columns = xmalloc((size_t)B * p->max_piece * sizeof(int32_t));
    s.target_columns = xmalloc((size_t)B * p->max_piece * sizeof(int32_t));
    return s;
}

static void sequences_free(Sequences* s) {
    free(s->input_columns);
    free(s->target_columns);
}

// Columns [start,start+n) of an array (B,T), as an array (B,n)
static const int32_t* columns(int32_t* copy, const int32_t* rows, int B, int T, int start, int n) {
    if (!rows || n == T) return rows;
    for (int b = 0; b < B; b++) memcpy(copy + (size_t)b * n, rows + (size_t)b * T + start, n * sizeof *copy);
    return copy;
}

// Piece k of the sequences, valid until the next call.
static TostPiece piece(const Pieces* p, const Sequences* s, int k) {
    const int start = k * p->max_piece, n = s->T - start < p->max_piece ? s->T - start : p->max_piece;
    return (TostPiece){columns(s->input_columns, s->inputs, s->B, s->T, start, n),
                       columns(s->target_columns, s->targets, s->B, s->T, start, n), s->B, n, s->first + start};
}

static bool abandoned(const Pieces* p, int work, int all) {
    return p->done && p->done(p->context, (double)work / all);
}

bool pieces_loss(Pieces* p, const int32_t* inputs, const int32_t* targets, int B, int T) {
    Sequences s = sequences_new(p, inputs, targets, B, T, 0);
    const int pieces = pieces_of(T, p->max_piece);
    bool ok = true;
    for (int k = 0; k < pieces && ok; k++) {
        const TostPiece next = piece(p, &s, k);
        p->engine->forward(p->model, &next, k > 0 ? PASS : TOST_NO_STATE, k + 1 < pieces ? PASS : TOST_NO_STATE);
        p->engine->add_losses(p->model);
        ok = k + 1 == pieces || !abandoned(p, k + 1, pieces);
    }
    sequences_free(&s);
    return ok;
}

static int state_before(int k) { return k == 0 ? TOST_NO_STATE : BEFORE_SECOND + k - 1; }

bool pieces_train(Pieces* p, const int32_t* inputs, const int32_t* targets, int B, int T, float grad_scale,
                  TostEnd end) {
    Sequences s = sequences_new(p, inputs, targets, B, T, 0);
    const int pieces = pieces_of(T, p->max_piece), all = (pieces - 1) * FORWARD + pieces * TRAIN;
    int work = 0;
    bool ok = true;
    for (int k = 0; k + 1 < pieces && ok; k++) {
        const TostPiece next = piece(p, &s, k);
        p->engine->forward(p->model, &next, state_before(k), state_before(k + 1));
        ok = !abandoned(p, work += FORWARD, all);
    }
    for (int k = pieces - 1; k >= 0 && ok; k--) {
        const TostPiece next = piece(p, &s, k);
        const int right = k + 1 < pieces ? PASS : TOST_NO_STATE, left = k > 0 ? PASS : TOST_NO_STATE;
        p->engine->train(p->model, &next, state_before(k), grad_scale);
        p->engine->backward(p->model, right, left, k > 0 ? TOST_MORE : end);
        ok = k == 0 || !abandoned(p, work += TRAIN, all);
    }
    sequences_free(&s);
    return ok;
}

void pieces_begin(Pieces* p, int n) {
    p->n = n;
    p->position = 0;
}

// Continues the decode state by T tokens per sequence.
static void read_piece(Pieces* p, const int32_t* tokens, const int32_t* targets, int T) {
    const TostPiece next = {tokens, targets, p->n, T, p->position};
    p->engine->forward(p->model, &next, p->position > 0 ? DECODE : TOST_NO_STATE, DECODE);
    p->position += T;
}

void pieces_read(float* logits, Pieces* p, const int32_t* tokens, int T) {
    Sequences s = sequences_new(p, tokens, NULL, p->n, T, p->position);
    for (int k = 0; k < pieces_of(T, p->max_piece); k++) {
        const TostPiece next = piece(p, &s, k);
        read_piece(p, next.inputs, NULL, next.T);
    }
    if (logits) p->engine->last_logits(logits, p->model);
    sequences_free(&s);
}

void pieces_read_losses(double* losses, Pieces* p, const int32_t* tokens, const int32_t* targets, int T) {
    read_piece(p, tokens, targets, T);
    p->engine->losses(losses, p->model);
}

void pieces_score(double* losses, Pieces* p, const int32_t* tokens, const int32_t* targets, int copies, int T) {
    const int B = p->n * copies, pieces = pieces_of(T, p->max_piece);
    Sequences s = sequences_new(p, tokens, targets, B, T, p->position);
    double* of_piece = pieces > 1 ? xmalloc((size_t)B * p->max_piece * sizeof *of_piece) : losses;
    if (p->position > 0) p->engine->copy_state(p->model, PASS, DECODE, B, copies);
    for (int k = 0; k < pieces; k++) {
        const TostPiece next = piece(p, &s, k);
        p->engine->forward(p->model, &next, k > 0 || p->position > 0 ? PASS : TOST_NO_STATE,
                           k + 1 < pieces ? PASS : TOST_NO_STATE);
        p->engine->losses(of_piece, p->model);
        for (int b = 0; b < B && pieces > 1; b++)
            memcpy(losses + (size_t)b * T + (size_t)k * p->max_piece, of_piece + (size_t)b * next.T,
                   next.T * sizeof *losses);
    }
    if (pieces > 1) free(of_piece);
    sequences_free(&s);
}
