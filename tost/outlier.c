// outlier.c: whether an update may reach the parameters.
#include "outlier.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A deviation below this share of the mean is what rounding leaves of equal values.
static const double EQUAL = 1e-12;

// The i-th oldest.
static double value_at(const OutlierWindow* w, int i) {
    return w->value[w->count < OUTLIER_WINDOW ? i : (w->next + i) % OUTLIER_WINDOW];
}

static void push(OutlierWindow* w, double x) {
    w->value[w->next] = x;
    w->next = (w->next + 1) % OUTLIER_WINDOW;
    if (w->count < OUTLIER_WINDOW) w->count++;
}

double outlier_z(const OutlierWindow* w, double x) {
    if (w->count < OUTLIER_WINDOW) return 0;
    double sum = 0, squares = 0;
    for (int i = 0; i < w->count; i++) sum += value_at(w, i);
    const double mean = sum / w->count;
    for (int i = 0; i < w->count; i++) squares += (value_at(w, i) - mean) * (value_at(w, i) - mean);
    const double deviation = sqrt(squares / w->count);
    return deviation > EQUAL * fabs(mean) ? (x - mean) / deviation : 0;
}

void outlier_accept(OutlierDetector* g, double loss, double norm) {
    push(&g->loss, loss);
    push(&g->norm, norm);
    g->in_a_row = 0;
}

void outlier_skip(OutlierDetector* g) {
    g->skipped++;
    g->in_a_row++;
}

char* outlier_window_text(const OutlierWindow* w) {
    enum { DIGITS = 32 };   // "-1.7976931348623157e+308 "
    char *text = xmalloc((size_t)w->count * DIGITS + 1), *p = text;
    *p = 0;
    for (int i = 0; i < w->count; i++) p += snprintf(p, DIGITS, "%s%.17g", i ? " " : "", value_at(w, i));
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
