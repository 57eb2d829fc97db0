#include "outlier.h"

#include <math.h>
#include <stdio.h>

#include "base/memory.h"

// A standard deviation below this fraction of the mean is the rounding error of equal values.
static const double ROUNDING = 1e-12;

// Drops the oldest value of a full window.
static void push(OutlierWindow* w, double x) {
    if (w->count == OUTLIER_WINDOW) memmove(w->value, w->value + 1, (size_t)--w->count * sizeof *w->value);
    w->value[w->count++] = x;
}

double outlier_z(const OutlierWindow* w, double x) {
    if (w->count < OUTLIER_WINDOW) return 0;
    double sum = 0, squares = 0;
    for (int i = 0; i < w->count; i++) sum += w->value[i];
    const double mean = sum / w->count;
    for (int i = 0; i < w->count; i++) squares += (w->value[i] - mean) * (w->value[i] - mean);
    const double deviation = sqrt(squares / w->count);
    return deviation > ROUNDING * fabs(mean) ? (x - mean) / deviation : 0;
}

void outlier_accept(OutlierDetector* d, double loss, double norm) {
    push(&d->loss, loss);
    push(&d->norm, norm);
    d->in_a_row = 0;
}

void outlier_skip(OutlierDetector* d) {
    d->skipped++;
    d->in_a_row++;
}

char* outlier_window_text(const OutlierWindow* w) {
    enum { DIGITS = 32 };   // "-1.7976931348623157e+308 "
    char *text = xmalloc((size_t)w->count * DIGITS + 1), *p = text;
    *p = 0;
    for (int i = 0; i < w->count; i++) p += snprintf(p, DIGITS, "%s%.17g", i ? " " : "", w->value[i]);
    return text;
}

bool outlier_window_parse(OutlierWindow* w, const char* text) {
    *w = (OutlierWindow){0};
    for (const char* p = text; *p;) {
        char* end;
        const double x = strtod(p, &end);
        if (end == p || !isfinite(x) || w->count == OUTLIER_WINDOW || (*end && *end != ' ')) return false;
        push(w, x);
        p = end + (*end == ' ');
    }
    return true;
}
