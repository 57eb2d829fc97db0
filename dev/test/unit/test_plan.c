// test_plan.c: the law of --for and the counting model, without a clock. The command: cli/test_plan.sh. How good the
// choices are: dev/results/budget.md.
#include <math.h>

#include "dev/test/check.h"
#include "dev/test/scratch.h"
#include "run/ngram.h"
#include "run/plan.h"

static const double LARGE = 1e12;   // unique tokens

static TostRecipe recipe_small(void) {
    TostRecipe r = tost_presets[1];
    r.given = 0;
    return r;
}

// ---- The law --------------------------------------------------------------------------------------------------------

static void test_law(Checks* c) {
    const TostConfig small = {.n_layer = 2, .n_head = 2, .n_embd = 128, .vocab_size = 4096, .block_size = 256};
    TostConfig larger[] = {small, small, small};
    larger[0].n_layer++;
    larger[1].n_embd *= 2;
    larger[2].vocab_size *= 2;
    for (size_t i = 0; i < countof(larger); i++)
        check(c, plan_cost(&larger[i]) > plan_cost(&small), "a larger model costs more: %zu", i);
    for (double tokens = 1e5; tokens < 1e9; tokens *= 4) {
        const double loss = plan_loss(&small, tokens, LARGE);
        check(c, plan_loss(&small, 4 * tokens, LARGE) < loss, "more tokens, lower loss: %g", tokens);
        check(c, plan_loss(&small, 4 * tokens, tokens) > plan_loss(&small, 4 * tokens, LARGE),
              "repeated text teaches less: %g", tokens);
    }
}

// Of more time, a larger model, at least the same.
static void test_sizes(Checks* c) {
    double before = 0;
    int64_t batch = 512;
    for (double seconds = 1; seconds < 1e6; seconds *= 2) {
        TostRecipe r = recipe_small();
        plan_sizes(&r, seconds, 5e9, LARGE);
        const double cost = plan_cost(&r.config);
        check(c, cost >= before, "%g s: %d × %d is smaller than before", seconds, r.config.n_layer, r.config.n_embd);
        check(c, r.total_batch >= batch && r.total_batch <= 8192, "%g s: %d tokens per step", seconds,
              (int)r.total_batch);
        batch = r.total_batch;
        check(c, r.config.n_embd % r.config.n_head == 0, "%g s: %d heads", seconds, r.config.n_head);
        before = cost;
    }
    TostRecipe r = recipe_small();
    plan_sizes(&r, 1e6, 5e9, 3e5);
    const double weights = 10.0 * r.config.n_layer * r.config.n_embd * r.config.n_embd;
    check(c, weights > 2e6 && weights <= 15 * 3e5, "a short text: %g weights in the layers", weights);
    for (double unique = 1e3; unique < 1e5; unique *= 8) {
        TostRecipe tiny = recipe_small();
        plan_sizes(&tiny, 1e6, 5e9, unique);
        check(c, tiny.config.n_layer == 3 && tiny.config.n_embd == 256, "%g tokens: %d × %d", unique,
              tiny.config.n_layer, tiny.config.n_embd);
    }
    TostRecipe heads = recipe_small();   // do not fit the smallest size
    heads.config.n_head = 3;
    heads.given = (uint64_t)1 << RECIPE_n_head;
    plan_sizes(&heads, 60, 5e9, 1000);
    check(c, heads.config.n_embd == 192, "3 heads, a tiny text: %d channels", heads.config.n_embd);
    check(c, batch == 8192, "in a week, %d tokens per step", (int)batch);
    check(c, before > 1e6, "a week has a model of several million parameters");
}

// What is given stands.
static void test_given(Checks* c) {
    TostRecipe r = recipe_small();
    r.config.n_layer = 5;
    r.config.n_head = 3;
    r.total_batch = 512;
    r.lr = 0.5;
    r.warmup = 7;
    r.given = (uint64_t)1 << RECIPE_n_layer | (uint64_t)1 << RECIPE_n_head | (uint64_t)1 << RECIPE_total_batch
            | (uint64_t)1 << RECIPE_lr | (uint64_t)1 << RECIPE_warmup;
    plan_sizes(&r, 60, 5e9, LARGE);
    plan_steps(&r, 1000, LARGE);
    check(c, r.config.n_layer == 5 && r.config.n_head == 3 && r.config.n_embd % 3 == 0,
          "%d layers, %d heads, %d channels", r.config.n_layer, r.config.n_head, r.config.n_embd);
    check(c, r.config.positions == TOST_POSITIONS_NONE && r.config.bigrams > 0 && r.momentum == 0.9,
          "positions, bigrams and momentum are chosen");
    TostRecipe named = recipe_small();
    named.given = (uint64_t)1 << RECIPE_preset;
    plan_sizes(&named, 60, 5e9, LARGE);
    check(c, memcmp(&named.config, &tost_presets[1].config, sizeof named.config) == 0, "--preset gives the sizes");
    check(c, r.total_batch == 512 && r.lr == 0.5 && r.warmup == 7 && r.steps == 1000, "batch %d, lr %g, warm-up %d",
          (int)r.total_batch, r.lr, (int)r.warmup);
}

// For any number of steps, the schedule is valid: warm-up, then a constant rate, then the decay.
static void test_steps(Checks* c) {
    for (double most = 1; most < 1e7; most = most * 3 + 1) {
        TostRecipe r = recipe_small();
        plan_steps(&r, most, LARGE);
        const Schedule s = schedule_of(&r);
        check(c, r.steps == (int64_t)most && r.warmup < r.steps && schedule_decay_start(s) >= r.warmup,
              "%g steps: %d, %d of warm-up", most, (int)r.steps, (int)r.warmup);
        const double decay = r.lr * r.weight_decay;
        check(c, fabs(4 * decay - 1) < 1e-9 || fabs(3 * decay * (double)r.steps - 1.75) < 1e-9,
              "%g steps of a long text: weight decay %g", most, r.weight_decay);
        check(c, r.lr > 0 && r.lr < 0.1 && r.val_every > 0 && r.val_every <= r.steps && r.val_windows > 0,
              "%g steps: lr %g, validation every %d", most, r.lr, (int)r.val_every);
    }
    for (int i = 0; i < 8; i++) {   // the weight decay of a short text is one that --weight-decay accepts
        TostRecipe r = recipe_small();
        r.optimizer = i % 2 ? TOST_MUON : TOST_ADAMW;
        r.lr = i < 2 ? 0 : pow(10, -i / 2);
        r.given = (uint64_t)1 << RECIPE_lr;
        plan_steps(&r, 1e9, 5000);
        check(c, r.weight_decay <= (i % 2 ? 100 : 1) && r.lr * r.weight_decay <= 0.25, "lr %g: weight decay %g", r.lr,
              r.weight_decay);
    }
    TostRecipe twice = recipe_small();
    plan_steps(&twice, 200, 100 * (double)twice.total_batch);
    check(c, fabs(twice.lr * twice.weight_decay * 150 - 1.75) < 1e-9, "2 epochs: weight decay %g", twice.weight_decay);
    for (double unique = 1e4, before = 1; unique < 1e9; unique *= 10) {
        TostRecipe r = recipe_small();
        r.total_batch = 512;
        plan_steps(&r, 1e9, unique);
        const double epochs = (double)(r.steps * r.total_batch) / unique;
        check(c, epochs >= before && epochs > 4 && epochs < 50, "a text of %g tokens is read %g times", unique, epochs);
        const double decay = 1 - pow(1 - r.lr * r.weight_decay, unique / (double)r.total_batch / 1.75);
        check(c, unique < 2e4 || fabs(decay - 0.632) < 0.02,
              "in 1/1.75 of %g tokens, the decay %g removes %g of the weights", unique, r.weight_decay, decay);
        before = epochs;
    }
}

// At any step after the warm-up, a new end leaves the learning rate as it is; then it falls to the last rate.
static void test_new_steps(Checks* c) {
    for (int64_t step = 40; step < 1000; step += 49) {
        for (int64_t steps = step + 1; steps < 4000; steps = steps * 3 / 2 + 1) {
            TostRecipe r = recipe_small();
            plan_steps(&r, 1000, LARGE);
            r.min_lr_frac = 0.01;
            const Schedule before = schedule_of(&r);
            plan_new_steps(&r, step, steps);
            const Schedule after = schedule_of(&r);
            const double now = schedule_lr(after, step) / schedule_lr(before, step);
            const double last = schedule_lr(after, steps) / schedule_lr(before, 1000);
            check(c, r.steps == steps && fabs(now - 1) < 1e-9 && fabs(last - 1) < 1e-9,
                  "from step %d, end after %d: rate × %.12f, last × %.12f", (int)step, (int)steps, now, last);
            check(c, schedule_decay_start(after) <= (step > steps / 4 ? step : steps / 4 + 1),
                  "from step %d, end after %d: decay from %d", (int)step, (int)steps, (int)schedule_decay_start(after));
        }
    }
}

// Between the sizes that the program can learn, more for more text and time
static void test_vocabulary(Checks* c) {
    for (double bytes = 1, before = 0; bytes < 1e13; bytes *= 10) {
        const int size = plan_vocabulary(bytes, INFINITY);
        check(c, size >= before && size > 257 && size <= 8192, "%g bytes: a vocabulary of %d", bytes, size);
        check(c, plan_vocabulary(bytes, 1e10) <= plan_vocabulary(bytes, 6e11), "%g bytes, a longer run", bytes);
        before = size;
    }
    check(c, plan_vocabulary(1e9, 3e11) < 4096 && plan_vocabulary(1e9, 5e13) == 8192, "a short and a long run");
}

// ---- The counting model ---------------------------------------------------------------------------------------------

static void test_ngram(Checks* c) {
    static const int32_t text[] = {0, 1, 0, 1, 0, 2};
    // By hand, with d = 0.75: P(1) = (2 - d + d · 3 · 1/3) / 6, P(1 | 0) = (2 - d + d · 2 · P(1)) / 3, nothing follows 2.
    // In the window 2 0 1 2 0 2 0 2 0 1, after 0: 1, 2 and 2.
    const double p0 = 3.0 / 6, p1 = 2.0 / 6, after[] = {p0, (1.25 + 1.5 * p1) / 3};
    static const int32_t ends[][10] = {{2, 0}, {0, 1}, {2, 0, 1, 2, 0, 2, 0, 2, 0, 1}};
    const double window = (0.25 + 1.5 * after[1]) / 3;
    double losses[2], before[2];
    for (int k = 0; k < 2; k++) {
        ngram_losses(losses, text, 6, ends[k], 2, 3);
        check(c, fabs(losses[0] + log(k ? p1 : p0)) < 1e-12 && fabs(losses[1] + log(after[k])) < 1e-12,
              "losses %.15f and %.15f, expected P = %g", losses[0], losses[1], after[k]);
    }
    ngram_losses(before, text, 6, ends[2], 9, 3);
    ngram_losses(losses, text, 6, ends[2], 10, 3);
    check(c, fabs(8 * before[1] - 9 * losses[1] - log(window)) < 1e-12, "the last token has P = %.15f, expected %.15f",
          exp(8 * before[1] - 9 * losses[1]), window);
    check(c, fabs(8 * before[0] - 9 * losses[0] - log(p1)) < 1e-12, "its frequency");
    for (int context = 0; context < 64; context++) {   // of three tokens, in a window
        double sum[2] = {0};
        for (int32_t w = 0; w < 4; w++) {
            const int32_t ids[] = {context / 16, context / 4 % 4, context % 4, w};
            ngram_losses(before, text, 6, ids, 3, 4);
            ngram_losses(losses, text, 6, ids, 4, 4);
            for (int k = 0; k < 2; k++) sum[k] += exp(2 * before[k] - 3 * losses[k]);
        }
        for (int k = 0; k < 2; k++)
            check(c, fabs(sum[k] - 1) < 1e-12, "context %d: probabilities add up to %.15f", context, sum[k]);
    }
}

int main(void) {
    return RUN_TESTS("plan", test_law, test_sizes, test_given, test_steps, test_new_steps, test_vocabulary, test_ngram);
}
