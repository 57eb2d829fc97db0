// golden.c: reads golden files and compares an engine with them.
#include "dev/test/engine/golden.h"

#include <math.h>
#include <string.h>

#include "tost/base/files.h"
#include "tost/base/memory.h"

double* widen(const float* x, size_t n) {
    double* y = xmalloc(n * sizeof *y);
    for (size_t i = 0; i < n; i++) y[i] = x[i];
    return y;
}

double relative_l2(const float* a, const double* b, size_t n) {
    double* wide = widen(a, n);
    const double error = relative_distance(wide, b, n);
    free(wide);
    return error;
}

// ---- Reading. Exits if a tensor or number is missing. ---------------------------------------------------------------

double meta_number(const StFile* f, const char* key) {
    TostError err;
    const char* value = st_meta(f, key);
    char* end = NULL;
    const double x = value ? strtod(value, &end) : NAN;
    require((end != value && *end == '\0' && fabs(x) < 1e9)
               || tost_error(&err, "%s: metadata %s is not a number", f->path, key), &err);
    return x;
}
int meta_int(const StFile* f, const char* key) { return (int)meta_number(f, key); }

TostConfig meta_config(const StFile* f) {
    return (TostConfig){meta_int(f, "n_layer"), meta_int(f, "n_head"), meta_int(f, "n_embd"),
                        meta_int(f, "block_size"), meta_int(f, "vocab_size"), meta_int(f, "bias"), TOST_LEARNED,
                        st_meta(f, "conv") ? meta_int(f, "conv") : 0, st_meta(f, "memory") ? 1 : 0,
                        st_meta(f, "positions") ? TOST_POSITIONS_NONE : TOST_POSITIONS_LEARNED,
                        st_meta(f, "bigrams") ? meta_int(f, "bigrams") : 0};
}

TostUpdate meta_update(const StFile* f, double lr, int step) {
    return (TostUpdate){lr, meta_number(f, "beta1"), meta_number(f, "beta2"), meta_number(f, "eps"),
                        meta_number(f, "weight_decay"), 1.0, step,
                        st_meta(f, "momentum") ? meta_number(f, "momentum") : 0.95};
}

static const StTensor* golden_tensor(const StFile* f, const char* name, size_t n) {
    TostError err;
    const StTensor* t = st_find(f, name);
    require((t && t->count == n) ||
               tost_error(&err, "%s: %s is missing or does not have %zu elements", f->path, name, n), &err);
    return t;
}

static void* read_as(const StFile* f, const char* name, size_t n, StDtype dtype) {
    TostError err;
    const StTensor* t = golden_tensor(f, name, n);
    void* values = xmalloc((size_t)t->bytes);
    require((t->dtype == dtype || tost_error(&err, "%s: %s has another dtype", f->path, name))
            && st_read(f, t, values, &err), &err);
    return values;
}
double* read_doubles(const StFile* f, const char* name, size_t n) { return read_as(f, name, n, ST_F64); }
static int32_t* read_ids(const StFile* f, const char* name, size_t n) { return read_as(f, name, n, ST_I32); }

void read_params(Subject* s, const StFile* f) {
    TostError err;
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        float* values = xmalloc(t->size * sizeof *values);
        require(st_read_f32(f, golden_tensor(f, t->name, t->size), values, &err), &err);
        s->engine->put(s->model, TOST_PARAM, t, values);
        free(values);
    }
}

// ---- Comparing ------------------------------------------------------------------------------------------------------

void check_tensor(Checks* c, const StFile* expect, const char* prefix, const char* name, const float* got, size_t n,
                  double limit) {
    char full[ST_NAME_MAX];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    double* want = read_doubles(expect, full, n);
    const double error = relative_l2(got, want, n);
    printf("    %-52s %9.2e\n", full, error);
    check(c, error <= limit, "%s: %s: relative L2 error %.3e, limit %.0e", expect->path, full, error, limit);
    free(want);
}

static void check_state(Checks* c, Subject* s, TostArray state, const StFile* expect, const char* prefix,
                        double limit) {
    for (int i = 0; i < s->tensors.count; i++) {
        const TostTensor* t = &s->tensors.tensor[i];
        float* got = subject_get(s, state, t);
        check_tensor(c, expect, prefix, t->name, got, t->size, limit);
        free(got);
    }
}

static void compute_gradient(Subject* s, const int32_t* inputs, const int32_t* targets, int B, int T) {
    int64_t count = 0;
    for (int i = 0; i < B * T; i++) count += targets[i] >= 0;
    s->engine->zero_grad(s->model);
    chunks_train(&s->chunks, inputs, targets, B, T, 1.0f / (float)count, TOST_STEP_ENDS);
}

double train_step(double* norm, Subject* s, const int32_t* inputs, const int32_t* targets, int B, int T, TostUpdate a,
                  double clip) {
    compute_gradient(s, inputs, targets, B, T);
    *norm = subject_step(s, a, clip);
    return mean_loss(s);
}

static void golden_steps(Checks* c, Subject* s, const StFile* expect, GoldenActivations* activations) {
    const int B = meta_int(expect, "B"), T = meta_int(expect, "T"), steps = meta_int(expect, "steps");
    const size_t rows = (size_t)B * T;
    int32_t *inputs = read_ids(expect, "inputs", steps * rows), *targets = read_ids(expect, "targets", steps * rows);
    double *losses = read_doubles(expect, "losses", steps), *norms = read_doubles(expect, "grad_norms", steps);
    float* logits = logits_of(s, inputs, B, T);
    check_tensor(c, expect, "", "logits", logits, rows * s->config.vocab_size, LIMIT_LOGITS);
    activations(c, s, expect, B, T);
    for (int i = 0; i < steps; i++) {
        compute_gradient(s, inputs + i * rows, targets + i * rows, B, T);
        if (i == 0) check_state(c, s, TOST_GRAD, expect, "grad.", LIMIT_GRADS);   // before Muon overwrites it
        const double norm = subject_step(s, meta_update(expect, meta_number(expect, "lr"), i + 1),
                                         meta_number(expect, "grad_clip"));
        const double loss = mean_loss(s);
        check(c, fabs(loss - losses[i]) <= LIMIT_LOSS, "%s: loss of step %d: %.9f, want %.9f", expect->path, i, loss,
              losses[i]);
        check(c, fabs(norm / norms[i] - 1) <= LIMIT_GRADS, "%s: gradient norm of step %d: %.9f, want %.9f",
              expect->path, i, norm, norms[i]);
    }
    check_state(c, s, TOST_PARAM, expect, "after.",
                s->engine == &tost_cpu_engine ? LIMIT_PARAMS : limits_of(TOST_FP32, true).of[RESULT_PARAM]);
    free(logits); free(losses); free(norms); free(inputs); free(targets);
}

void test_golden(Checks* c, const TostEngine* engine, const char* dir, GoldenActivations* activations) {
    static const char suffix[] = ".params.safetensors";
    TostError err;
    StringList list;
    StFile params, expect;
    char* pattern = xasprintf("%s/*%s", dir, suffix);
    const StringList patterns = {1, &pattern};
    require(expand_glob(&list, &patterns, &err), &err);
    for (int i = 0; i < list.count; i++) {
        char* expect_path =
            xasprintf("%.*s.expect.safetensors", (int)(strlen(list.strings[i]) - strlen(suffix)), list.strings[i]);
        require(st_open(&params, list.strings[i], &err) && st_open(&expect, expect_path, &err), &err);
        const TostConfig config = meta_config(&expect);
        printf("golden %s (%s)\n", list.strings[i], engine->name);
        TostEngineOptions o = engine_options(meta_int(&expect, "B"), meta_int(&expect, "T"), true, TOST_FP32);
        o.optimizer = st_meta(&expect, "optimizer") ? TOST_MUON : TOST_ADAMW;
        Subject s = subject_open(engine, config, o);
        read_params(&s, &params);
        golden_steps(c, &s, &expect, activations);
        subject_free(&s);
        st_close(&params);
        st_close(&expect);
        free(expect_path);
    }
    free_strings(&list);
    free(pattern);
}
