// test_train.c: a run that meets trouble: losses that are no numbers, outliers, signals, second runs, full disks,
// readers that leave. Each run is a child process of tost_main on a toy engine, whose losses follow from the
// tokens, so that the data says when they go wrong; a hook does what it does at a chosen pass or get.
#include "check.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "checkpoint.h"
#include "commands.h"
#include "data.h"
#include "outlier.h"
#include "lock.h"
#include "log.h"
#include "schedule.h"

static void must(bool ok, const char* what) {
    if (ok) return;
    perror(what);
    exit(1);
}

// ---------------------------------------------------------------------------------------------
// The toy engine: a token's loss is a hundredth of its id and a share of the parameters; its gradient falls on
// one of them. Every token BAD makes both NaN, every token SPIKE both large.

enum { BAD = 200, SPIKE = 201, WRONG_TENSOR = 3 };

struct TostModel {
    TostTensors tensors;
    float*      state[4];
    double      loss;
    int64_t     count;
};

typedef enum { TRAINING, EVALUATING, GET, PUT, EVENTS } Event;

typedef struct {
    Event event;
    int   at;                       // from 1
    void (*deed)(TostModel* m);     // NULL: none
} Hook;

static Hook hooks[2];               // of the next child
static int  so_far[EVENTS];         // in this process

static void happens(Event event, const TostModel* m) {
    so_far[event]++;
    for (size_t i = 0; i < countof(hooks); i++)
        if (hooks[i].deed && hooks[i].event == event && hooks[i].at == so_far[event]) hooks[i].deed((TostModel*)m);
}

static bool toy_supports(TostDtype dtype) { return dtype == TOST_FP32; }

static bool toy_describe(char* text, size_t cap, const TostEngineOptions* o, TostError* err) {
    (void)o, (void)err;
    return snprintf(text, cap, "a toy") > 0;
}

static size_t toy_memory(const TostConfig* c, const TostEngineOptions* o) { return (void)c, (void)o, 1; }

static TostModel* toy_create(const TostConfig* c, const TostEngineOptions* o, TostError* err) {
    (void)o, (void)err;
    TostModel* m = xcalloc(1, sizeof *m);
    m->tensors = tost_tensors(c);
    for (int s = 0; s < 4; s++) m->state[s] = xcalloc(m->tensors.flat_size, sizeof(float));
    return m;
}

static void toy_destroy(TostModel* m) {
    for (int s = 0; s < 4; s++) free(m->state[s]);
    tost_tensors_free(&m->tensors);
    free(m);
}

static void toy_put(TostModel* m, TostState s, const TostTensor* t, const float* src) {
    happens(PUT, m);
    memcpy(m->state[s] + t->offset, src, t->size * sizeof *src);
}

static void toy_get(float* dst, const TostModel* m, TostState s, const TostTensor* t) {
    happens(GET, m);
    memcpy(dst, m->state[s] + t->offset, t->size * sizeof *dst);
}

static void toy_losses(TostModel* m, const int32_t* inputs, int B, int T, float scale) {
    const size_t wrong = m->tensors.tensor[WRONG_TENSOR].offset;
    double sum = 0;
    for (size_t i = 0; i < m->tensors.flat_size; i++) sum += 1e-3 * m->state[TOST_PARAM][i];
    for (int i = 0; i < B * T; i++) {
        const int id = inputs[i];
        const double loss = id == BAD ? NAN : id == SPIKE ? 50 : 0.01 * id;
        m->loss += loss + sum;
        float* grad = m->state[TOST_GRAD] + (id == BAD ? wrong : (size_t)id % m->tensors.flat_size);
        *grad += scale * (float)(loss + 0.5 * sum);
    }
    m->count += B * T;
}

static void toy_forward_loss(TostModel* m, const int32_t* inputs, const int32_t* targets, int B, int T) {
    (void)targets;
    happens(EVALUATING, m);
    toy_losses(m, inputs, B, T, 0);
}

static void toy_forward_train(TostModel* m, const int32_t* inputs, const int32_t* targets, int B, int T, float scale) {
    (void)targets;
    happens(TRAINING, m);
    toy_losses(m, inputs, B, T, scale);
}

static void toy_backward(TostModel* m) { (void)m; }

static void toy_read_loss(double* sum, int64_t* count, TostModel* m) {
    *sum = m->loss;
    *count = m->count;
    m->loss = 0;
    m->count = 0;
}

static void toy_zero_grad(TostModel* m) { memset(m->state[TOST_GRAD], 0, m->tensors.flat_size * sizeof(float)); }

static double toy_grad_norm(TostModel* m) {
    double sum = 0;
    for (size_t i = 0; i < m->tensors.flat_size; i++) sum += pow(m->state[TOST_GRAD][i], 2);
    return sqrt(sum);
}

// Adam, and what it was asked for as lines "step rate" in the file updates.
static void toy_update(TostModel* m, const TostAdamW* a) {
    FILE* f = fopen("updates", "a");
    must(f && fprintf(f, "%lld %.9e\n", (long long)a->step, a->lr) > 0 && fclose(f) == 0, "updates");
    for (size_t i = 0; i < m->tensors.flat_size; i++) {
        const double g = a->grad_scale * m->state[TOST_GRAD][i];
        const double first = m->state[TOST_M][i] = (float)(a->beta1 * m->state[TOST_M][i] + (1 - a->beta1) * g);
        const double second = m->state[TOST_V][i] = (float)(a->beta2 * m->state[TOST_V][i] + (1 - a->beta2) * g * g);
        const double m_hat = first / (1 - pow(a->beta1, (double)a->step));
        const double v_hat = second / (1 - pow(a->beta2, (double)a->step));
        m->state[TOST_PARAM][i] -= (float)(a->lr * m_hat / (sqrt(v_hat) + a->eps));
    }
}

static const TostEngine toy = {
    .name = "toy", .supports = toy_supports, .describe = toy_describe, .memory = toy_memory, .create = toy_create,
    .destroy = toy_destroy, .put = toy_put, .get = toy_get, .forward_loss = toy_forward_loss,
    .forward_train = toy_forward_train, .backward = toy_backward, .read_loss = toy_read_loss, .zero_grad = toy_zero_grad, .grad_norm = toy_grad_norm, .update = toy_update,
};

// ---------------------------------------------------------------------------------------------
// Runs

#define BASE "--layers 1 --heads 1 --channels 4 --block-size 8 --vocab-size 257 --seq 8 --batch 2 --total-batch 16 " \
             "--order sequential --sample-every 0 --warmup 2 --lr 0.01 --keep 0 "
#define NO_VAL "--val-every 0 "

enum { TOKENS = 16, UPDATES = 200 };   // tokens of an update, updates of a shard

// A shard of raw uint16 in which `id` stands in the updates first … last (from 0).
static void write_shard(const char* path, int id, int first, int last) {
    uint16_t ids[UPDATES * TOKENS + 1];
    for (int i = 0; i <= UPDATES * TOKENS; i++) {
        const int update = i / TOKENS;
        ids[i] = (uint16_t)(update >= first && update <= last && i % TOKENS == 5 ? id : (i * 37 + i / 7) % 100);
    }
    FILE* f = fopen(path, "wb");
    must(f && fwrite(ids, sizeof ids, 1, f) == 1 && fclose(f) == 0, path);
}

typedef struct { int status; char *out, *err; } Outcome;   // status: 1000 + signal where one ended it

static char* text_of(const char* path) {
    TostError err;
    Bytes b;
    return read_file(&b, path, &err) ? b.data : xstrdup("");
}

static int toy_main(const char* args) {
    memset(so_far, 0, sizeof so_far);
    char *words = xstrdup(args), *argv[80] = {"train_gpt_tost"};
    int argc = 1;
    for (char* w = strtok(words, " "); w; w = strtok(NULL, " ")) argv[argc++] = w;
    const int status = tost_main(argc, argv, &toy);
    free(words);
    return status;
}

enum { READ = -1, CLOSED = -2 };   // in place of a descriptor for stdout; the second: all three streams are

// Runs the program in a child with these for stdout and stderr. `afresh`: as a new program, since a process that has
// threads cannot go on after fork.
static int run_child(const char* args, int out, int err, bool afresh) {
    fflush(stdout);
    const pid_t id = fork();
    must(id >= 0, "fork");
    if (id == 0) {
        for (int fd = 0; fd <= 2; fd++)
            if (out == CLOSED) close(fd);
        if (out != CLOSED) must(dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0, "dup2");
        if (afresh) execl("/proc/self/exe", "test_train", args, (char*)NULL);
        must(!afresh, "execl");
        exit(toy_main(args));
    }
    int status;
    must(waitpid(id, &status, 0) == id, "waitpid");
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

// What a pipe holds once nobody writes to it any more. free()
static char* drain(int pipe_end[2]) {
    enum { MOST = 1 << 16 };   // what a pipe holds
    char* text = xcalloc(MOST + 1, 1);
    ssize_t n = 0;
    close(pipe_end[1]);
    for (size_t at = 0; at < MOST && (n = read(pipe_end[0], text + at, MOST - at)) > 0;) at += (size_t)n;
    close(pipe_end[0]);
    return text;
}

// A run whose stdout is `out`. Pipes: a limit on the size of files leaves them alone.
static Outcome run_into(const char* args, int out) {
    int o[2], e[2];
    must(pipe(o) == 0 && pipe(e) == 0, "pipe");
    remove("updates");
    const int status = run_child(args, out == READ ? o[1] : out, e[1], false);
    memset(hooks, 0, sizeof hooks);
    return (Outcome){status, drain(o), drain(e)};
}

static Outcome run(const char* args) { return run_into(args, READ); }

static int lines(const char* text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

// Checks status, that stderr has that many lines, and what it says (NULL: nothing in particular). Frees the outcome.
static void check_run(Checks* c, Outcome o, int status, int err_lines, const char* says, const char* what) {
    check(c, o.status == status, "%s: status %d wanted, %d came: %s", what, status, o.status, o.err);
    check(c, lines(o.err) == err_lines, "%s: %d lines on stderr wanted: %s", what, err_lines, o.err);
    if (says) check(c, strstr(o.err, says) != NULL, "%s: '%s' wanted: %s", what, says, o.err);
    free(o.out);
    free(o.err);
}

// The log without the columns that tell the time. free()
static char* timeless(const char* run) {
    char* path = path_join(run, "log.csv");
    char *text = text_of(path), *to = text;
    int commas = 0;
    for (const char* p = text; *p; p++) {
        commas = *p == '\n' ? 0 : commas + (*p == ',');
        if (commas < 6) *to++ = *p;
    }
    *to = 0;
    free(path);
    return text;
}

static bool same_file(const char* a, const char* b, int step, const char* name) {
    TostError err;
    char *first = xasprintf("%s/step_%08d/%s", a, step, name), *second = xasprintf("%s/step_%08d/%s", b, step, name);
    Bytes x = {0}, y = {0};
    const bool same = read_file(&x, first, &err) && read_file(&y, second, &err) && x.size == y.size
                      && memcmp(x.data, y.data, x.size) == 0;
    free(x.data);
    free(y.data);
    free(first);
    free(second);
    return same;
}

// Two runs that must have come to the same end.
static void check_same(Checks* c, const char* a, const char* b, int step, const char* what) {
    char *first = timeless(a), *second = timeless(b);
    check(c, same_file(a, b, step, "model.safetensors"), "%s: other parameters or another account of them", what);
    check(c, same_file(a, b, step, "optimizer.safetensors"), "%s: other moments", what);
    check(c, *first && strcmp(first, second) == 0, "%s: logs differ:\n%s\n%s", what, first, second);
    free(first);
    free(second);
}

static bool stands(const char* run, int step) { return checkpoint_exists(run, step); }

// Row `step` of a run's log.
static LogRow row_of(const char* run, int step) {
    char* path = path_join(run, "log.csv");
    char *text = text_of(path), *line = text;
    LogRow row = {.step = -1};
    for (int i = 0; i <= step && line; i++) line = (line = strchr(line, '\n')) ? line + 1 : NULL;
    char* end = line ? strchr(line, '\n') : NULL;
    if (end) {
        end[1] = 0;
        log_row_parse(&row, line);
    }
    free(text);
    free(path);
    return row;
}

// ---------------------------------------------------------------------------------------------
// The guard by itself

static void test_guard(Checks* c) {
    OutlierDetector g = {0};
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        check(c, outlier_z(&g.loss, 1e9) == 0, "a verdict before the window is full, at %d", i);
        outlier_accept(&g, i % 2 ? 3 : 1, i);   // mean 2, deviation 1
    }
    check(c, outlier_z(&g.loss, 5) == 3 && outlier_z(&g.loss, -1) == -3, "z of 5: %g", outlier_z(&g.loss, 5));
    // 0 … 127: mean 63.5, variance (128² - 1) / 12
    const double deviation = sqrt((128.0 * 128.0 - 1) / 12);
    check(c, fabs(outlier_z(&g.norm, 200) - (200 - 63.5) / deviation) < 1e-12, "z of 200: %g", outlier_z(&g.norm, 200));
    for (int i = 0; i < 50; i++) outlier_accept(&g, 1.0 / (3 + i), 128 + i);
    // 50 … 177
    check(c, fabs(outlier_z(&g.norm, 200) - (200 - 113.5) / deviation) < 1e-12, "the oldest are left out");
    outlier_skip(&g);
    outlier_skip(&g);
    check(c, g.skipped == 2 && g.in_a_row == 2, "two skipped");
    outlier_accept(&g, 1, 1);
    check(c, g.skipped == 2 && g.in_a_row == 0, "one made after them");
    OutlierWindow read, flat = {0};
    for (int i = 0; i < 1000; i++) outlier_accept(&g, 3 + sin(i) / 3, 1);
    char* text = outlier_window_text(&g.loss);
    check(c, outlier_window_parse(&read, text), "its own text is not read");
    int others = 0;   // to the bit, though the ring begins elsewhere
    OutlierDetector resumed = {.loss = read};
    for (int i = 0; i < 300; i++) {
        others += outlier_z(&resumed.loss, 0.02 * i) != outlier_z(&g.loss, 0.02 * i);
        outlier_accept(&resumed, cos(i), 1);
        outlier_accept(&g, cos(i), 1);
    }
    check(c, others == 0, "%d of 300 z differ after reading", others);
    free(text);
    text = outlier_window_text(&flat);
    check(c, !*text && outlier_window_parse(&read, "") && read.count == 0, "an empty window");
    free(text);
    flat.count = OUTLIER_WINDOW;
    check(c, outlier_z(&flat, 1) == 0, "no deviation, no verdict");
    for (int i = 0; i < OUTLIER_WINDOW; i++) flat.value[i] = 0.1;   // whose mean is rounded
    check(c, outlier_z(&flat, 0.2) == 0, "equal values, no verdict: %g", outlier_z(&flat, 0.2));
    static const char* const wrong[] = {"x", "1 x", "1,2", "nan", "1 inf", "1e999", "1;", " "};
    for (size_t i = 0; i < countof(wrong); i++)
        check(c, !outlier_window_parse(&read, wrong[i]), "'%s' is read", wrong[i]);
    char* long_text = xstrdup("");
    for (int i = 0; i <= OUTLIER_WINDOW; i++) {
        char* longer = xasprintf("%s%s1", long_text, i ? " " : "");
        free(long_text);
        long_text = longer;
    }
    check(c, !outlier_window_parse(&read, long_text), "a value too many is read");
    free(long_text);
}

// ---------------------------------------------------------------------------------------------
// Updates that are skipped

static void check_updates(Checks* c, const char* what, int first_left_out, int left_out, int steps) {
    char *is = text_of("updates"), *wanted = xstrdup("");
    for (int s = 0, made = 0; s < steps; s++) {
        if (s >= first_left_out && s < first_left_out + left_out) continue;
        char* longer = xasprintf("%s%d %.9e\n", wanted, ++made, schedule_lr(s, steps, 2, 0.01, 0.1));
        free(wanted);
        wanted = longer;
    }
    size_t same = 0;
    while (is[same] && is[same] == wanted[same]) same++;
    check(c, strcmp(is, wanted) == 0, "%s: other updates from '%.20s' on, '%.20s' wanted", what, is + same,
          wanted + same);
    free(is);
    free(wanted);
}

static void poison(TostModel* m) { m->state[TOST_PARAM][m->tensors.tensor[5].offset] = NAN; }

static void kill_it(TostModel* m) {
    (void)m;
    raise(SIGKILL);
}

static void test_not_finite(Checks* c) {
    write_shard("bad.bin", BAD, 5, 6);
    Outcome o = run(BASE NO_VAL "--data bad.bin --steps 12 --min-lr-frac 0.1 --save-every 4 --out bad");
    check(c, strstr(o.out, "skipped    2 updates of 12") != NULL, "the end tells of it: %s", o.out);
    check(c, strstr(o.err, "update 6 is skipped: loss nan, gradient norm nan, first in the gradient of "
                           "transformer.h.0.") != NULL, "the first tensor that went wrong: %s", o.err);
    check_run(c, o, 0, 2, "update 7 is skipped: loss nan", "two bad updates");
    check_updates(c, "two bad updates", 5, 2, 12);
    const LogRow row = row_of("bad", 6), next = row_of("bad", 7);
    check(c, row.step == 6 && isnan(row.train_loss) && isnan(row.grad_norm) && row.lr == 0 && row.tokens == 7 * TOKENS,
          "the row of a skipped update");
    check(c, next.step == 7 && next.train_loss > 0 && next.lr > 0, "the row after it");

    hooks[0] = (Hook){TRAINING, 11, kill_it};
    check_run(c, run(BASE NO_VAL "--data bad.bin --steps 12 --min-lr-frac 0.1 --save-every 4 --out bad2"),
              1000 + SIGKILL, 2, NULL, "killed after bad updates");
    check_run(c, run("--resume --out bad2"), 0, 0, NULL, "resumed after bad updates");
    check_same(c, "bad", "bad2", 12, "resumed after bad updates");

    const char* args = BASE NO_VAL "--data bad.bin --steps 12 --save-every 5 --max-skipped 1 --out bad3";
    check_run(c, run(args), 1, 2,
              "update 7: loss nan, gradient norm nan, first in the gradient of transformer.h.0.",
              "one too many in a row");
    check(c, stands("bad3", 5), "bad data alone does not stand in the way of a save");
    check_run(c, run(BASE NO_VAL "--data bad.bin --steps 12 --save-every 3 --max-skipped 0 --out bad4"), 1, 1,
              "train --resume --out bad4 goes on from step 3", "--max-skipped 0");
    check_run(c, run("--resume --out bad4 --max-skipped 2"), 0, 3, "update 7 is skipped", "--max-skipped anew");
    check(c, !stands("bad4", 6) && stands("bad4", 9), "a save between bad data is put off");
    write_shard("next.bin", BAD, 12, 12);
    check_run(c, run(BASE NO_VAL "--data next.bin --steps 12 --save-every 3 --out bad6"), 0, 0, NULL,
              "bad data after the end");
    hooks[0] = (Hook){TRAINING, 4, poison};
    o = run(BASE NO_VAL "--data bad.bin --steps 12 --save-every 3 --out bad5");
    check(c, strstr(o.err, "stopped before it reached the parameters, after 10 skipped in a row") == NULL
             || strstr(o.err, "first in the parameter ") != NULL, "the parameter that went wrong: %s", o.err);
    check(c, stands("bad5", 3) && !stands("bad5", 6), "parameters that went wrong are not saved");
    check_run(c, o, 1, 9 + 2 + 1, "and not saved", "a parameter that went wrong");
}

static void test_outliers(Checks* c) {
#define WINDOWED BASE NO_VAL "--data spike.bin --steps 150 --save-every 50 "
    write_shard("spike.bin", SPIKE, 140, 141);
    check_run(c, run(WINDOWED "--out plain"), 0, 0, NULL, "off by default");
    check_run(c, run(WINDOWED "--skip-loss-z 6 --out loss"), 0, 2, "update 142 is skipped: loss ", "--skip-loss-z");
    check_updates(c, "--skip-loss-z", 140, 2, 150);
    check(c, row_of("loss", 140).lr == 0 && row_of("loss", 140).train_loss > 1, "the row of an outlier");
    check_run(c, run(WINDOWED "--skip-grad-z 6 --out norm"), 0, 2, "update 141 is skipped: gradient norm ",
              "--skip-grad-z");
    hooks[0] = (Hook){TRAINING, 142, kill_it};
    check_run(c, run(WINDOWED "--skip-loss-z 6 --out loss2"), 1000 + SIGKILL, 1, NULL, "killed after an outlier");
    check_run(c, run("--resume --out loss2"), 0, 2, "update 142 is skipped", "the window is resumed");
    check_same(c, "loss", "loss2", 150, "the window is resumed");
    write_shard("spike.bin", SPIKE, 127, 127);
    check_run(c, run(WINDOWED "--skip-loss-z 6 --out early"), 0, 0, NULL, "no verdict before 128 updates");
    write_shard("spike.bin", SPIKE, 128, 199);
    check_run(c, run(WINDOWED "--skip-loss-z 6 --max-skipped 3 --out many"), 1, 4,
              "update 132: loss ", "outliers in a row");
    check_run(c, run("--resume --out many --max-skipped 3 --skip-loss-z 0"), 0, 0, NULL, "the guard is switched off");
#undef WINDOWED
}

// What a checkpoint has of the last updates is what the log has of those that were made.
static void test_window_saved(Checks* c) {
    TostError err;
    CheckpointInfo info;
    if (!check(c, checkpoint_read_info(&info, "bad/step_00000012/model.safetensors", &err), "%s", err.text)) return;
    const OutlierDetector* g = &info.outliers;
    check(c, g->loss.count == 10 && g->norm.count == 10 && g->skipped == 2 && g->in_a_row == 0, "counts of the guard");
    for (int step = 0, i = 0; step < 12; step++) {
        const LogRow row = row_of("bad", step);
        if (step == 5 || step == 6) continue;
        check(c, fabs(g->loss.value[i] - row.train_loss) < 1e-9 && fabs(g->norm.value[i] - row.grad_norm) < 1e-9,
              "step %d: loss %g, norm %g are kept", step, g->loss.value[i], g->norm.value[i]);
        i++;
    }
    checkpoint_info_free(&info);
}

// ---------------------------------------------------------------------------------------------
// Signals

static void interrupt(TostModel* m) {
    (void)m;
    raise(SIGINT);
}

static void terminate_twice(TostModel* m) {
    (void)m;
    raise(SIGINT);
    raise(SIGTERM);
}

static void hang_up(TostModel* m) {
    (void)m;
    raise(SIGHUP);
    raise(SIGHUP);
}

// Passes of RUN: one evaluating before a save, three a validation: 3 before the first update, 3 after updates 4, 8 …
#define VALIDATED BASE "--data good.bin --val-data good.bin --val-every 4 --val-batches 3 --steps 12 --save-every 6 "

static void test_signals(Checks* c) {
    // hooks, and what then stands; each is resumed until it ends
    static const struct { const char* what; Hook first, second; int status, saved; const char* says; } cases[] = {
        {"in an update", {TRAINING, 7, interrupt}, {0}, 130, 7, NULL},
        {"before the first update", {EVALUATING, 2, interrupt}, {0}, 130, 0, NULL},
        {"in a validation", {EVALUATING, 5, interrupt}, {0}, 130, 4, "after update 4 is left to --resume"},
        {"after a validation", {EVALUATING, 6, interrupt}, {0}, 130, 4, NULL},
        {"in a validation after a save", {EVALUATING, 8, interrupt}, {0}, 130, 8, "after update 8 is left"},
        {"in the last validation", {EVALUATING, 12, interrupt}, {0}, 130, 12, "after update 12 is left"},
        {"in a save", {GET, 3, interrupt}, {0}, 130, 6, NULL},
        {"a terminal that goes", {TRAINING, 7, hang_up}, {0}, 129, 7, NULL},
        {"twice", {TRAINING, 8, terminate_twice}, {0}, 143, 6, NULL},
        {"and again in a save", {TRAINING, 7, interrupt}, {GET, 60, interrupt}, 130, 6, NULL},
    };
    write_shard("good.bin", 0, -1, -1);
    check_run(c, run(VALIDATED "--out straight"), 0, 0, NULL, "the straight run");
    for (size_t i = 0; i < countof(cases); i++) {
        const char* what = cases[i].what;
        char* out = xasprintf("signal%d", (int)i);
        char *args = xasprintf(VALIDATED "--out %s", out), *resume = xasprintf("--resume --out %s", out);
        hooks[0] = cases[i].first;
        hooks[1] = cases[i].second;
        Outcome o = run(args);
        check(c, o.status == cases[i].status, "%s: status %d wanted, %d came", what, cases[i].status, o.status);
        check(c, stands(out, cases[i].saved), "%s: step %d is not saved: %s", what, cases[i].saved, o.out);
        if (cases[i].says) check(c, strstr(o.out, cases[i].says), "%s: '%s' wanted: %s", what, cases[i].says, o.out);
        free(o.out);
        free(o.err);
        if (cases[i].says) {   // once more, in the validation that is made up for
            hooks[0] = (Hook){EVALUATING, 2, interrupt};
            o = run(resume);
            check(c, o.status == 130 && strstr(o.out, cases[i].says), "%s, twice: %d %s", what, o.status, o.out);
            free(o.out);
            free(o.err);
            hooks[0] = (Hook){EVALUATING, 3, kill_it};
            check_run(c, run(resume), 1000 + SIGKILL, 0, NULL, what);
        }
        check_run(c, run(resume), 0, 0, NULL, what);
        check_same(c, "straight", out, 12, what);
        free(out);
        free(args);
        free(resume);
    }
}

// A checkpoint whose open row is none of its last update is damaged, whoever did that.
static void test_open_row_damaged(Checks* c) {
    static char* const rows[] = {"", "x", "4,80,1,,1,1,1,1\n", "5,96,1,,1,1,1\n", "5,96,1,,1,1,1,1"};
    TostError err;
    CheckpointInfo info;
    const char* file = "straight/step_00000006/model.safetensors";
    must(checkpoint_read_info(&info, file, &err), "checkpoint_read_info");
    TostModel* m = toy_create(&info.config, NULL, &err);
    must(checkpoint_load_params(&toy, m, &m->tensors, file, &err), "checkpoint_load_params");
    for (size_t i = 0; i < countof(rows); i++) {
        info.open_row = rows[i];
        must(checkpoint_save("odd", &info, &toy, m, &m->tensors, 0, &err), "checkpoint_save");
        check_run(c, run("--resume --out odd"), 1, 1, "__metadata__ 'open_row' is no row of step 5", rows[i]);
    }
    info.open_row = NULL;
    checkpoint_info_free(&info);
    toy_destroy(m);
}

// ---------------------------------------------------------------------------------------------
// Second runs

#define SAVING BASE NO_VAL "--data good.bin --steps 12 --save-every 3 "

static char* second_args;   // of the run that the first one's hook starts

static void run_second(TostModel* m) {
    (void)m;
    const int err = open("second.err", O_WRONLY | O_CREAT | O_TRUNC, 0666), out = open("/dev/null", O_WRONLY);
    const int status = run_child(second_args, out, err, true);
    close(err);
    close(out);
    FILE* f = fopen("second.status", "w");
    must(f && fprintf(f, "%d", status) > 0 && fclose(f) == 0, "second.status");
}

static void test_lock(Checks* c) {
    static const char in_use[] = "first is in use by process ";
    static const struct { const char *what, *args; int status; const char* says; } cases[] = {
        {"plain", BASE NO_VAL "--data good.bin --steps 3 --out first", 1, in_use},
        {"resume", "--resume --out first", 1, in_use},
        {"overwrite", BASE NO_VAL "--data good.bin --steps 3 --out first --overwrite", 1, in_use},
        {"the same log", BASE NO_VAL "--data good.bin --steps 3 --out other --log first/log.csv", 1,
         "is there already"},
        {"the same log, to overwrite",
         BASE NO_VAL "--data good.bin --steps 3 --out other --overwrite --log first/log.csv", 1,
         "first/log.csv is being written by another run: give another --log"},
        {"info", "info first", 0, NULL},
        {"another folder", BASE NO_VAL "--data good.bin --steps 3 --out other", 0, NULL},
    };
    check_run(c, run(SAVING "--out alone"), 0, 0, NULL, "a run alone");
    check(c, !path_exists("alone/run.lock"), "no lock is left");
    for (size_t i = 0; i < countof(cases); i++) {
        TostError err;
        must(remove_tree("first", &err) && remove_tree("other", &err), "remove_tree");
        second_args = (char*)cases[i].args;
        hooks[0] = (Hook){TRAINING, 8, run_second};
        check_run(c, run(SAVING "--out first"), 0, 0, NULL, cases[i].what);
        char* status = text_of("second.status");
        Outcome second = {atoi(status), NULL, text_of("second.err")};
        if (cases[i].says) check(c, strstr(second.err, cases[i].says), "%s: %s", cases[i].what, second.err);
        check_run(c, second, cases[i].status, cases[i].status, NULL, cases[i].what);
        check_same(c, "alone", "first", 12, cases[i].what);
        free(status);
    }
    hooks[0] = (Hook){TRAINING, 8, kill_it};
    check_run(c, run(SAVING "--out killed"), 1000 + SIGKILL, 0, NULL, "killed");
    check(c, path_exists("killed/run.lock"), "its lock's file is left");
    check_run(c, run("--resume --out killed"), 0, 0, NULL, "and holds nobody off");
    check_same(c, "alone", "killed", 12, "resumed after a kill");

    Lock lock = {0};
    TostError err;
    check(c, lock_take(&lock, "nowhere", &err) == LOCK_FAILED && strstr(err.text, "nowhere/run.lock"), "no folder");
    lock_release(&lock);
    must(mkdir("linked", 0777) == 0 && symlink("../good.bin", "linked/run.lock") == 0, "symlink");
    check(c, lock_take(&lock, "linked", &err) == LOCK_FAILED, "a link is not followed");
}

// What a second process is told of the first, by the note in the file.
static void test_lock_notes(Checks* c) {
    static const struct { const char *note, *says; } cases[] = {
        {"77 elsewhere\n", "noted is in use by process 77 on elsewhere: wait"},
        {"77", "noted is in use by process 77: wait"},
        {"", "noted is in use by another process: wait"},
        {"nonsense\n", "noted is in use by another process: wait"},
        {"77 \033[2Jx", "noted is in use by process 77 on ?[2Jx: wait"},
    };
    must(mkdir("noted", 0777) == 0, "noted");
    for (size_t i = 0; i < countof(cases); i++) {
        Lock lock = {0};
        TostError err;
        const int fd = open("noted/run.lock", O_RDWR | O_CREAT | O_TRUNC, 0666);
        const ssize_t n = (ssize_t)strlen(cases[i].note);
        must(fd >= 0 && flock(fd, LOCK_EX) == 0 && write(fd, cases[i].note, (size_t)n) == n, "noted/run.lock");
        const bool busy = lock_take(&lock, "noted", &err) == LOCK_BUSY;
        check(c, busy && strstr(err.text, cases[i].says), "a lock with the note '%s': %s", cases[i].note, err.text);
        close(fd);
        check(c, lock_take(&lock, "noted", &err) == LOCK_TAKEN, "a lock that nobody holds: %s", err.text);
        lock_release(&lock);
        check(c, !path_exists("noted/run.lock"), "a lock that was released is left");
    }
}

// A run that another begins and ends while this one is set up stands.
static void test_overtaken(Checks* c) {
    second_args = SAVING "--out overtaken";
    hooks[0] = (Hook){PUT, 1, run_second};
    check_run(c, run(SAVING "--seed 5 --out overtaken"), 1, 1, "--out overtaken holds a run already", "overtaken");
    check_same(c, "alone", "overtaken", 12, "overtaken");
}

// Default folders: a run that begins while another has taken its number gets the next.
static void test_default_folders(Checks* c) {
    second_args = BASE NO_VAL "--data good.bin --steps 2 --save-every 1";
    hooks[0] = (Hook){TRAINING, 1, run_second};
    check_run(c, run(BASE NO_VAL "--data good.bin --steps 2 --save-every 1"), 0, 0, NULL, "a default folder");
    check(c, stands("out/starter-001", 2) && stands("out/starter-002", 2), "each run has its own");
}

// ---------------------------------------------------------------------------------------------
// Full disks

static void fill_disk(TostModel* m) {
    (void)m;
    struct rlimit limit;
    must(getrlimit(RLIMIT_FSIZE, &limit) == 0, "getrlimit");
    limit.rlim_cur = 333;   // in the middle of a row
    must(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
}

static void make_room(TostModel* m) {
    (void)m;
    struct rlimit limit;
    must(getrlimit(RLIMIT_FSIZE, &limit) == 0, "getrlimit");
    limit.rlim_cur = limit.rlim_max;
    must(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
}

static void test_full_disk(Checks* c) {
    check_run(c, run(SAVING "--on-save-error continue --out roomy"), 0, 0, NULL, "a disk with room");
    hooks[0] = (Hook){TRAINING, 5, fill_disk};
    check_run(c, run(SAVING "--on-save-error stop --out full"), 1, 1,
              "full/log.csv: cannot be written: File too large; stopped; train --resume --out full goes on from step 3",
              "stop");
    check(c, stands("full", 3) && !path_exists("full/step_00000006.tmp"), "the good checkpoint stands");
    check_run(c, run("--resume --out full --on-save-error continue"), 0, 0, NULL, "resumed with room");
    check_same(c, "roomy", "full", 12, "resumed with room");

    hooks[0] = (Hook){TRAINING, 5, fill_disk};
    hooks[1] = (Hook){TRAINING, 9, make_room};
    Outcome o = run(SAVING "--on-save-error continue --out spell");
    check(c, strstr(o.err, "training goes on, the next save tries again (saves that failed: 1)"), "continue: %s",
          o.err);
    check_run(c, o, 0, 3, "spell/log.csv is written again, with the ", "continue, until there is room");
    check(c, !stands("spell", 6) && stands("spell", 9), "the save that failed, and the next");
    check_same(c, "roomy", "spell", 12, "continue, until there is room");

    hooks[0] = (Hook){TRAINING, 8, fill_disk};
    check_run(c, run(SAVING "--on-save-error continue --out last"), 1, 3,
              "saves that failed: 2; train --resume --out last goes on from step 6", "continue, to the end");
    check_run(c, run("--resume --out last"), 0, 0, NULL, "resumed after the end");
    check_same(c, "roomy", "last", 12, "resumed after the end");
}

// ---------------------------------------------------------------------------------------------
// Readers that leave

static void test_lost_output(Checks* c) {
    int ends[2];
    must(pipe(ends) == 0 && close(ends[0]) == 0, "pipe");
    check_run(c, run_into(SAVING "--on-save-error continue --out unread", ends[1]), 0, 1,
              "stdout cannot be written: Broken pipe; the run goes on", "a reader that left");
    close(ends[1]);
    check_same(c, "roomy", "unread", 12, "a reader that left");
    // the note of the signal and the progress must not come to be in the files that are opened
    hooks[0] = (Hook){TRAINING, 7, interrupt};
    check_run(c, run_into(SAVING "--on-save-error continue --out closed", CLOSED), 130, 0, NULL, "closed streams");
    check_run(c, run("--resume --out closed"), 0, 0, NULL, "closed streams");
    check_same(c, "roomy", "closed", 12, "closed streams");
    const int full = open("/dev/full", O_WRONLY);
    if (full < 0) {
        skip(c, "/dev/full is not there");
        return;
    }
    check_run(c, run_into(SAVING "--out unread2", full), 0, 1,
              "stdout cannot be written: No space left on device", "a full disk under stdout");
    close(full);
}

// ---------------------------------------------------------------------------------------------
// Resuming with other options and other data

static void test_changes(Checks* c) {
    write_shard("same.bin", 0, -1, -1);
    check_run(c, run(BASE NO_VAL "--data same.bin --steps 3 --save-every 3 --out changed"), 0, 0, NULL, "as it was");
    Outcome o = run("--resume --out changed --steps 6 --keep 2 --threads 1");
    check(c, strstr(o.out, "--steps 6 instead of 3\n"), "--steps: %s", o.out);
    check(c, strstr(o.out, "--keep 2 instead of 0\n"), "--keep: %s", o.out);
    check(c, strstr(o.out, "--threads 1 instead of 0\n"), "--threads: %s", o.out);
    check_run(c, o, 0, 0, NULL, "changes are told");
    o = run("--resume --out changed --steps 7");
    check(c, !strstr(o.out, "--keep"), "what was changed before is the run's: %s", o.out);
    check_run(c, o, 0, 0, NULL, "what was changed before");
    write_shard("same.bin", 33, 3, 3);
    check_run(c, run("--resume --out changed --steps 9"), 1, 1,
              "--data same.bin holds as many tokens as the run in changed was trained on, but others: resume with the "
              "same shards", "another shard of the same size");
    write_shard("moved.bin", 0, -1, -1);
    check_run(c, run("--resume --out changed --steps 9 --data moved.bin"), 0, 0, NULL, "the same shard elsewhere");
}

int main(int argc, char** argv) {
    signal(SIGHUP, SIG_DFL);   // as outside of nohup
    if (argc > 1) return toy_main(argv[1]);   // a second run
    Checks c = {.suite = "train"};
    const char* base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    char* dir = xasprintf("%s/tost_train_XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : base);
    must(mkdtemp(dir) && chdir(dir) == 0, "mkdtemp");
    setenv("TERM", "dumb", 1);
    test_guard(&c);
    test_not_finite(&c);
    test_window_saved(&c);
    test_outliers(&c);
    test_signals(&c);
    test_open_row_damaged(&c);
    test_lock(&c);
    test_lock_notes(&c);
    test_overtaken(&c);
    test_default_folders(&c);
    test_full_disk(&c);
    test_lost_output(&c);
    test_changes(&c);
    TostError err;
    if (!remove_tree(dir, &err)) printf("train: %s\n", err.text);
    free(dir);
    return checks_verdict(&c);
}
