// guard.h: whether an update may reach the parameters: its loss and gradient norm must be finite and, where
// that is asked for, no outliers among the last updates that were made.
#ifndef TOST_GUARD_H
#define TOST_GUARD_H

#include "util.h"

#define GUARD_WINDOW 128   // a macro: --help shows its number

// The last values, oldest first from value[next] once it is full.
typedef struct { int count, next; double value[GUARD_WINDOW]; } GuardWindow;

typedef struct {
    GuardWindow loss, norm;          // of updates that were made
    int64_t     skipped, in_a_row;   // updates that were not: in all, and since the last that was
} Guard;

// (x - mean) / standard deviation of a full window; 0 before it is full, and where all its values are equal.
// The sums are taken oldest first: a resumed run, whose ring begins elsewhere, finds the same bits.
double guard_z(const GuardWindow* w, double x);
void   guard_made(Guard* g, double loss, double norm);   // an update that was made
void   guard_skipped(Guard* g);

// For a checkpoint: the values oldest first, each in 17 digits, with a space between. free()
char* guard_window_text(const GuardWindow* w);
// False where the text is not that.
bool  guard_window_parse(GuardWindow* w, const char* text);

#endif
