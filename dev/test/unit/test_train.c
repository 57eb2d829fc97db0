// test_train.c: training runs under failures: losses that are not finite, signals, concurrent runs, full disks, closed
// pipes. Each run is a child process that calls tost_main with the fake engine.
#include <sys/syscall.h>
#include <sys/wait.h>

#include "commands/commands.h"
#include "dev/test/unit/fake_engine.h"
#include "store/checkpoint.h"
#include "store/log.h"

// ---- Runs -----------------------------------------------------------------------------------------------------------

#define SIZES "--layers 1 --heads 1 --channels 4 --block-size 8 --vocab-size 257 --seq 8 " \
              "--order sequential --sample-every 0 --warmup 2 --lr 0.01 --keep 0 "
#define FAKE SIZES "--batch 2 "
#define BASE FAKE "--total-batch 16 "
#define NO_VAL "--val-every 0 "

enum { TOKENS = 16, STEPS = 200 };   // tokens per step, steps per shard

// A shard of raw uint16 with one token `id` in each of the steps first … last, counted from 0.
static void write_shard(const char* path, int id, int first, int last) {
    uint16_t ids[STEPS * TOKENS + 1];
    for (int i = 0; i <= STEPS * TOKENS; i++) {
        const int step = i / TOKENS;
        ids[i] = (uint16_t)(step >= first && step <= last && i % TOKENS == 5 ? id : (i * 37 + i / 7) % 100);
    }
    write_bytes(path, ids, sizeof ids);
}

typedef struct { int status; char *out, *err; } Outcome;   // status: 1000 + signal if killed by one

enum { NO_GPU = 1 << 30 };   // as gpu_bytes: the engine needs a GPU, and there is none
static size_t gpu_bytes;     // 0: the fake engine uses no GPU
static size_t gpu_usable_memory(const TostComm* comm) { return (void)comm, gpu_bytes == NO_GPU ? 0 : gpu_bytes; }
static size_t gpu_memory(const TostConfig* c, const TostEngineOptions* o) {
    (void)c;
    must(gpu_bytes != NO_GPU, "memory without a GPU", NULL);
    return o->max_batch == 7 ? 2000 : (size_t)o->max_batch;   // with more sequences, it can be less
}
static int gpu_fits;         // most sequences for which create finds memory; 0: any
static TostModel* gpu_create(const TostConfig* c, const TostEngineOptions* o, TostError* err) {
    if (!gpu_fits || o->max_batch <= gpu_fits) return fake_create(c, o, err);
    return tost_error(err, "no memory for %d", o->max_batch), NULL;
}
static bool gpu_describe(char* text, size_t cap, const TostEngineOptions* o, TostError* err) {
    return gpu_bytes == NO_GPU ? tost_error(err, "no usable GPU") : fake_describe(text, cap, o, err);
}

static int fake_main(const char* args) {
    TostEngine engine = fake;
    if (gpu_bytes) {
        engine.usable_memory = gpu_usable_memory, engine.memory = gpu_memory;
        engine.describe = gpu_describe, engine.create = gpu_create;
    }
    memset(events, 0, sizeof events);
    char *words = xstrdup(args), *argv[80] = {"train_gpt_tost"};
    int argc = 1;
    for (char* w = strtok(words, " "); w; w = strtok(NULL, " ")) argv[argc++] = w;
    const int status = tost_main(argc, argv, &engine);
    free(words);
    return status;
}

enum { READ = -1, CLOSED = -2 };   // instead of a descriptor for stdout; CLOSED closes stdin, stdout and stderr

// Runs the program in a child process with these descriptors for stdout and stderr. exec: calls exec after fork, which
// is needed if this process has OpenMP threads.
static int run_child(const char* args, int out, int err, bool exec) {
    fflush(stdout);
    const pid_t id = fork();
    must(id >= 0, "fork", NULL);
    if (id == 0) {
        for (int fd = 0; fd <= 2; fd++)
            if (out == CLOSED) close(fd);
        if (out != CLOSED) must(dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0, "dup2", NULL);
        if (exec) execl("/proc/self/exe", "test_train", args, (char*)NULL);
        must(!exec, "execl", NULL);
        exit(fake_main(args));
    }
    int status;
    must(waitpid(id, &status, 0) == id, "waitpid", NULL);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Reads a pipe to its end. free()
static char* drain(int pipe_end[2]) {
    enum { CAP = 1 << 16 };   // capacity of a pipe
    char* text = xcalloc(CAP + 1, 1);
    ssize_t n = 0;
    close(pipe_end[1]);
    for (size_t at = 0; at < CAP && (n = read(pipe_end[0], text + at, CAP - at)) > 0;) at += (size_t)n;
    close(pipe_end[0]);
    return text;
}

// A run whose stdout is `out`. Its output goes to pipes, which a file size limit does not affect.
static Outcome run_into(const char* args, int out) {
    int o[2], e[2];
    must(pipe(o) == 0 && pipe(e) == 0, "pipe", NULL);
    remove("optimizer_steps");
    const int status = run_child(args, out == READ ? o[1] : out, e[1], false);
    memset(hooks, 0, sizeof hooks);
    return (Outcome){status, drain(o), drain(e)};
}

PRINTF_LIKE(1, 2)
static Outcome run(const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char* args = xvasprintf(fmt, ap);
    va_end(ap);
    const Outcome o = run_into(args, READ);
    free(args);
    return o;
}

static void free_outcome(Outcome o) {
    free(o.out);
    free(o.err);
}

static int lines(const char* text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

// Checks the exit status and the number of lines on stderr, and that stderr contains `says` (unless NULL). Frees o.
static void check_run(Checks* c, Outcome o, int status, int err_lines, const char* says, const char* what) {
    check(c, o.status == status, "%s: expected status %d, got %d: %s", what, status, o.status, o.err);
    check(c, lines(o.err) == err_lines, "%s: expected %d lines on stderr: %s", what, err_lines, o.err);
    if (says) check(c, strstr(o.err, says) != NULL, "%s: expected '%s': %s", what, says, o.err);
    free_outcome(o);
}

// Checks that a run succeeds without a line on stderr, and that stdout has `has` but not `lacks` (NULL: not checked).
// Frees o.
static void check_output(Checks* c, Outcome o, const char* has, const char* lacks, const char* what) {
    if (has) check(c, strstr(o.out, has) != NULL, "%s: expected '%s': %s", what, has, o.out);
    if (lacks) check(c, !strstr(o.out, lacks), "%s: unexpected '%s': %s", what, lacks, o.out);
    check_run(c, o, 0, 0, NULL, what);
}

// The log without its time columns. free()
static char* log_without_times(const char* run) {
    char *text = bytes_of(path_in(run, "log.csv").text).data, *to = text;
    int commas = 0;
    for (const char* p = text; *p; p++) {
        commas = *p == '\n' ? 0 : commas + (*p == ',');
        if (commas < 6) *to++ = *p;
    }
    *to = 0;
    return text;
}

static bool same_file(const char* folder, const char* other, const char* name) {
    const Bytes x = bytes_of(path_in(folder, name).text), y = bytes_of(path_in(other, name).text);
    const bool same = x.size == y.size && memcmp(x.data, y.data, x.size) == 0;
    free(x.data), free(y.data);
    return same;
}

// Checks that two runs have the same checkpoint of this step and the same log.
static void check_same(Checks* c, const char* a, const char* b, int step, const char* what) {
    const Path x = checkpoint_name(a, step), y = checkpoint_name(b, step);
    char *first = log_without_times(a), *second = log_without_times(b);
    check(c, same_file(x.text, y.text, MODEL_FILE), "%s: " MODEL_FILE " differs", what);
    check(c, same_file(x.text, y.text, OPTIMIZER_FILE), "%s: " OPTIMIZER_FILE " differs", what);
    check(c, *first && strcmp(first, second) == 0, "%s: logs differ:\n%s\n%s", what, first, second);
    free(first);
    free(second);
}

// Resumes a run, whose last step is `step`; then it must be the same as `whole`.
static void check_resumed(Checks* c, const char* out, const char* whole, int step, const char* what) {
    check_run(c, run("--resume --out %s", out), 0, 0, NULL, what);
    check_same(c, whole, out, step, what);
}

static bool saved(const char* run, int step) { return checkpoint_exists(run, step); }

// The row of a step in a run's log; step -1 if there is none.
static LogRow row_of(const char* run, int step) {
    char *text = bytes_of(path_in(run, "log.csv").text).data, *end = text;
    LogRow row = {.step = -1};
    while (row.step != step && (end = strchr(end, '\n')))
        if (!log_row_parse(&row, ++end)) row.step = -1;
    free(text);
    return row;
}

// ---- Skipped steps --------------------------------------------------------------------------------------------------

static void poison(TostModel* m) { m->state[TOST_PARAM][m->tensors.tensor[5].offset] = NAN; }

static void worsen(TostModel* m) {
    for (size_t i = 0; i < m->tensors.flat_size; i++) m->state[TOST_PARAM][i] += 1;
}

static void test_not_finite(Checks* c) {
    const Schedule cosine = {SCHEDULE_COSINE, 12, 2, 0.01, 0.1, 0};
    char* wanted = xstrdup("");   // the optimizer has no steps 5 and 6, counted from 0
    for (int s = 0, made = 0; s < 12; s++)
        if (s != 5 && s != 6) wanted = append_text(wanted, "%d %.9e\n", ++made, schedule_lr(cosine, s));
    write_shard("bad.bin", BAD, 5, 6);
    Outcome o = run(BASE NO_VAL "--data bad.bin --steps 12 --min-lr-frac 0.1 --save-every 4 --out bad");
    check(c, strstr(o.out, "skipped    2 of 12 steps") != NULL, "the summary must count skipped steps: %s", o.out);
    check(c, strstr(o.err, "step 6 is skipped: loss nan, gradient norm nan") != NULL, "the warning: %s", o.err);
    check_run(c, o, 0, 2, "step 7 is skipped: loss nan", "two bad steps");
    check_file(c, "optimizer_steps", wanted, "optimizer steps");
    free(wanted);
    const LogRow row = row_of("bad", 7);
    check(c, row.step == 7 && isnan(row.train_loss) && isnan(row.grad_norm) && row.lr == 0 && row.tokens == 7 * TOKENS,
          "the row of a skipped step");

    hooks[0] = (Hook){TRAINING, 11, kill_process};
    check_run(c, run(BASE NO_VAL "--data bad.bin --steps 12 --min-lr-frac 0.1 --save-every 4 --out bad2"),
              1000 + SIGKILL, 2, NULL, "killed after bad steps");
    check_resumed(c, "bad2", "bad", 12, "resumed after bad steps");

    check_run(c, run(BASE NO_VAL "--data bad.bin --steps 12 --save-every 3 --max-skipped 0 --out bad4"), 1, 1,
              "train --resume --out bad4 continues from step 3", "--max-skipped 0");
    check_run(c, run("--resume --out bad4 --max-skipped 2"), 0, 3, "step 7 is skipped", "another --max-skipped");
    check(c, !saved("bad4", 6) && saved("bad4", 9), "a save between bad data is postponed");
    hooks[0] = (Hook){TRAINING, 4, poison};
    o = run(BASE NO_VAL "--data bad.bin --steps 12 --save-every 3 --out bad3");
    check(c, saved("bad3", 3) && !saved("bad3", 6), "parameters that are not finite are not saved");
    check_run(c, o, 1, 9 + 1 + 1, "not saved", "a parameter that is not finite");
}

// Half the 95 % interval of the mean loss of n windows of a shard of write_shard("", 99, 0, STEPS).
static double window_error(int n) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        double x = 0;
        for (int t = 0, at = 8 * (400 * i / n); t < 8; t++, at++)
            x += 0.01 * (at % TOKENS == 5 ? 99 : (at * 37 + at / 7) % 100) / 8;
        sum += x;
        squares += x * x;
    }
    return 1.96 * sqrt((squares - sum * sum / n) / (n - 1) / n);
}

// The shard has 400 windows: two for each of 200 steps. --val-windows 4 takes windows 0, 100, 200 and 300. In the steps
// bad_first to bad_last, the first window has a bad token.
static void test_val_windows(Checks* c) {
    static const struct { int n, bad_first, bad_last, status; } cases[] = {
        {4, 1, 49, 0}, {4, 101, 149, 0}, {4, 151, 199, 0}, {4, 50, 50, 1}, {4, 150, 150, 1}, {3, 67, 132, 0},
        {3, 133, 133, 1}, {5, 1, 39, 0}, {5, 120, 120, 1}, {0, 199, 199, 1}, {1000000000, 199, 199, 1},
    };
    write_shard("good.bin", 0, -1, -1);
    for (size_t i = 0; i < countof(cases); i++) {
        write_shard("val.bin", BAD, cases[i].bad_first, cases[i].bad_last);
        const Outcome o = run(BASE "--data good.bin --val-data val.bin --val-every 1 --steps 0 --save-every 0 "
                              "--val-windows %d --out val%zu", cases[i].n, i);
        check(c, o.status == cases[i].status && !strstr(o.err, "validation loss is nan") == !o.status,
              "--val-windows %d, bad %d to %d: %s", cases[i].n, cases[i].bad_first, cases[i].bad_last, o.err);
        free_outcome(o);
    }
    write_shard("val.bin", 99, 0, STEPS);
    double loss[3];   // with micro-batches of 1, 2 and 4 windows
    for (int i = 0; i < 3; i++) {
        check_output(c, run(SIZES "--batch %d --total-batch 32 --data good.bin --val-data val.bin --val-every 1 "
                            "--val-windows 7 --steps 1 --out batch%d", 1 << i, i),
                     text_line(" ± %.4f (95%%), perplexity", window_error(7)).text, NULL, "a micro-batch");
        loss[i] = row_of(text_line("batch%d", i).text, 1).val_loss;
    }
    check(c, loss[0] > 0 && loss[0] == loss[1] && loss[0] == loss[2], "the windows depend on the micro-batch: %g %g %g",
          loss[0], loss[1], loss[2]);
    check_output(c, run(SIZES "--batch 1 --total-batch 32 --chunk 3 --data good.bin --val-data val.bin --val-every 1 "
                        "--val-windows 7 --steps 1 --parts 4 --out chunks"),
                 text_line(" ± %.4f (95%%), perplexity", window_error(7)).text, NULL, "chunks and parts");
    check_output(c, run(BASE "--data good.bin --val-data val.bin --val-windows 1 --val-every 1 --steps 1 --out single"),
                 ", perplexity", "±", "one window");
}

// The default micro-batch on a GPU; gpu_memory counts one byte for a sequence. 0 bytes: on a CPU.
static void test_default_batch(Checks* c) {
    static const struct { size_t bytes; const char *options, *says; } cases[] = {
        {0, "--total-batch 480", "15 micro-batches × 4 sequences"},
        {1000, "--total-batch 480", "1 micro-batch × 60 seq"},
        {7, "--total-batch 480", "10 micro-batches × 6 seq"},
        {1, "--total-batch 480", "60 micro-batches × 1 sequence "},
        {1000, "--total-batch 480 --parts 4", "4 micro-batches × 15 "},
        {1000, "--total-batch 480 --batch 2", "30 micro-batches × 2 "},
        {100000, "--total-batch 131072", "2 micro-batches × 8192 "},
        {100000, "--total-batch 131072 --chunk 4", "1 micro-batch × 16384 "},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        gpu_bytes = cases[i].bytes;
        const Outcome o = run(SIZES NO_VAL "--data good.bin --steps 1 --out device%zu %s", i, cases[i].options);
        const bool chosen = strstr(o.out, "--batch is chosen"), given = strstr(cases[i].options, "--batch");
        check(c, o.status == 0 && strstr(o.out, cases[i].says) && chosen == (gpu_bytes && !given),
              "%zu bytes, %s: expected %s: %s%s", gpu_bytes, cases[i].options, cases[i].says, o.out, o.err);
        free_outcome(o);
    }
    gpu_bytes = 7;
    check_output(c, run("--resume --steps 2 --out device1"), "1 micro-batch × 60 ", NULL, "a resumed run's own");
    check_output(c, run("--init device1 --steps 1 --lr 0.01 --data good.bin " NO_VAL "--sample-every 0 --out tuned"),
                 "10 micro-batches × 6 ", NULL, "--init");
    gpu_bytes = 1000, gpu_fits = 30;
    check_run(c, run(SIZES NO_VAL "--data good.bin --steps 1 --out lowered --total-batch 480"), 0, 1,
              "no memory for --batch 60: continuing with --batch 30", "a failed allocation");
    check_output(c, run("--resume --steps 2 --out lowered"), "2 micro-batches × 30 ", NULL, "the smaller micro-batch");
    gpu_fits = 29;
    check_run(c, run(SIZES NO_VAL "--data good.bin --steps 1 --out two --total-batch 480"), 1, 1, "no memory for 30",
              "two failed allocations");
    check_run(c, run(SIZES NO_VAL "--data good.bin --steps 1 --out given --total-batch 480 --batch 60"), 1, 1,
              "no memory for 60", "a failed allocation with --batch");
    gpu_fits = 0, gpu_bytes = NO_GPU;
    check_run(c, run(SIZES NO_VAL "--data good.bin --steps 1 --out none"), 1, 1, "no usable GPU", "no GPU");
    gpu_bytes = 0;
}

// ---- Signals --------------------------------------------------------------------------------------------------------

static void interrupt(TostModel* m) { (void)m, raise(SIGINT); }
static void terminate(TostModel* m) { (void)m, raise(SIGTERM); }
static void interrupt_and_terminate(TostModel* m) { (void)m, raise(SIGINT), raise(SIGTERM); }
static void preempt(TostModel* m) { (void)m, raise(SIGTERM), raise(SIGTERM); }
static void hang_up(TostModel* m) { (void)m, raise(SIGHUP), raise(SIGHUP); }
static void use_cpu(TostModel* m) { (void)m, raise(SIGXCPU), raise(SIGXCPU); }
static void warn(TostModel* m) { (void)m, raise(SIGUSR1), raise(SIGHUP); }
static void notify(TostModel* m) { (void)m, raise(SIGUSR2); }

// Evaluation passes: one before each save, three per validation: before the first step and after steps 4, 8, 12.
#define VALIDATED BASE "--data good.bin --val-data copy.bin --val-every 4 --val-windows 6 --steps 12 --save-every 6 "

static void test_signals(Checks* c) {
    // saved: the step of the newest checkpoint; with `says`, its validation was interrupted. Each run is resumed.
    static const struct { const char* what; Hook first, second; int status, saved; const char* says; } cases[] = {
        {"in a step", {TRAINING, 7, interrupt}, {0}, 130, 7, NULL},
        {"before the first step", {EVALUATING, 2, interrupt}, {0}, 130, 0, NULL},
        {"in a validation", {EVALUATING, 5, interrupt}, {0}, 130, 4, "after step 4 was interrupted"},
        {"after a validation", {EVALUATING, 6, interrupt}, {0}, 130, 4, NULL},
        {"in a validation after a save", {EVALUATING, 8, interrupt}, {0}, 130, 8, "after step 8 was interrupted"},
        {"in the last validation", {EVALUATING, 12, interrupt}, {0}, 130, 12, "after step 12 was interrupted"},
        {"in a save", {GET, 3, interrupt}, {0}, 130, 6, NULL},
        {"a terminal that closes", {TRAINING, 7, hang_up}, {0}, 129, 7, NULL},
        {"two signals", {TRAINING, 8, interrupt_and_terminate}, {0}, 143, 6, NULL},
        {"again in a save", {TRAINING, 7, interrupt}, {GET, 60, terminate}, 143, 6, NULL},
        {"SIGTERM twice, as from Slurm", {TRAINING, 7, preempt}, {0}, 143, 7, NULL},
        {"the CPU time limit, twice", {TRAINING, 7, use_cpu}, {0}, 128 + SIGXCPU, 7, NULL},
        {"a warning of the batch system", {TRAINING, 7, warn}, {0}, 128 + SIGUSR1, 7, NULL},
        {"a warning of SGE", {TRAINING, 7, notify}, {0}, 128 + SIGUSR2, 7, NULL},
    };
    write_shard("copy.bin", 0, -1, -1);
    check_run(c, run(VALIDATED "--out reference"), 0, 0, NULL, "the uninterrupted run");
    for (size_t i = 0; i < countof(cases); i++) {
        const char* what = cases[i].what;
        const TextLine out = text_line("signal%zu", i);
        hooks[0] = cases[i].first;
        hooks[1] = cases[i].second;
        Outcome o = run(VALIDATED "--out %s", out.text);
        check(c, o.status == cases[i].status, "%s: expected status %d, got %d", what, cases[i].status, o.status);
        check(c, strstr(o.err, "stopping after this micro-batch and a save; "), "%s: the line: %s", what, o.err);
        check(c, saved(out.text, cases[i].saved), "%s: step %d is not saved: %s", what, cases[i].saved, o.out);
        if (cases[i].says) check(c, strstr(o.out, cases[i].says), "%s: expected '%s': %s", what, cases[i].says, o.out);
        free_outcome(o);
        const LogRow row = row_of(out.text, cases[i].saved);
        if (cases[i].says)
            check(c, row.step == cases[i].saved && isnan(row.val_loss), "%s: the row of step %d", what, cases[i].saved);
        check_resumed(c, out.text, "reference", 12, what);
    }
}

// In both files of a checkpoint.
static void replace_text(const char* folder, const char* from, const char* to) {
    replace_in_file(path_in(folder, MODEL_FILE).text, from, to);
    replace_in_file(path_in(folder, OPTIMIZER_FILE).text, from, to);
}

// ---- Kills in validations and between saves -------------------------------------------------------------------------

#define BEST_EVERY BASE "--data good.bin --val-data copy.bin --val-windows 6 --save-every 4 --keep-best --val-every "
#define BEST BEST_EVERY "4 --steps 12 "

// Kills a run at an event, which leaves its lock file, and resumes it. False if it was not killed. saved: the step that
// must be saved by then, or 0.
static bool kill_at(Checks* c, Event event, int at, int saved_step) {
    hooks[0] = (Hook){event, at, kill_process};
    Outcome o = run(BEST "--out cut");
    const bool killed = o.status == 1000 + SIGKILL;
    check(c, saved_step == 0 || saved("cut", saved_step), "killed at pass %d: step %d is not saved", at, saved_step);
    free_outcome(o);
    if (killed && checkpoint_newest(&(Path){""}, "cut")) {
        check_resumed(c, "cut", "best", 12, "resumed after a kill");
        check(c, same_file("best/best", "cut/best", MODEL_FILE), "event %d, %d: the best differs", (int)event, at);
    }
    remove_tree("cut");
    return killed;
}

// Evaluation passes: three before the first step; then one before each save and three of its validation.
static void test_kills(Checks* c) {
    check_run(c, run(BEST "--out best"), 0, 0, NULL, "the uninterrupted run");
    must(mkdir("best/step_00000012.tmp", 0777) == 0, "mkdir", NULL);   // as after a kill in the last save
    check_output(c, run("--resume --out best"), "best is finished", NULL, "a finished run");
    check(c, !path_exists("best/step_00000012.tmp") && saved("best", 12) && saved("best", 4), "only .tmp is removed");
    for (int pass = 5; pass <= 15; pass++)
        if (pass % 4) check(c, kill_at(c, EVALUATING, pass, pass / 4 * 4), "pass %d", pass);
    int at = 1;
    while (kill_at(c, GET, at, 0)) at += 11;   // before, in and between the saves of best and checkpoint
    check(c, at > 300, "%d kills in saves", at / 11);
}

// The best of a run that was killed before its next checkpoint stays, if the resumed run gets better than its
// checkpoint, but not as good as the best.
static void test_newer_best(Checks* c) {
    hooks[0] = (Hook){TRAINING, 7, kill_process};
    check_run(c, run(BEST_EVERY "1 --steps 12 --out newer"), 1000 + SIGKILL, 0, NULL, "killed after a validation");
    check(c, saved("newer", 4) && !saved("newer", 5), "the newest checkpoint is of step 4");
    must(mkdir("linked", 0777) == 0 && link("newer/best/" MODEL_FILE, "linked/" MODEL_FILE) == 0, "link", NULL);
    check_run(c, run("--resume --lr 1e-4 --out newer"), 0, 0, NULL, "worse");
    check(c, same_file("newer/best", "linked", MODEL_FILE), "the best was replaced");
}

// Steps of 4 micro-batches: a signal in one of the first three drops the step; after the fourth the step is completed.
static void test_signals_in_steps(Checks* c) {
#define ACCUMULATED FAKE NO_VAL "--data good.bin --total-batch 64 --steps 6 --save-every 6 "
    check_run(c, run(ACCUMULATED "--out whole"), 0, 0, NULL, "the uninterrupted run");
    for (int at = 1; at <= 12; at++) {
        const TextLine out = text_line("part%d", at);
        hooks[0] = (Hook){TRAINING, at, interrupt};
        const Outcome o = run(ACCUMULATED "--out %s", out.text);
        check(c, o.status == 130 && saved(out.text, at / 4), "at micro-batch %d: status %d: %s", at, o.status, o.out);
        check(c, row_of(out.text, at / 4 + 1).step == -1, "%s: the row of an incomplete step", out.text);
        free_outcome(o);
        check_resumed(c, out.text, "whole", 6, "resumed within a step");
    }
}

// ---- Concurrent runs ------------------------------------------------------------------------------------------------

#define SAVING BASE NO_VAL "--data good.bin --steps 12 --save-every 3 "

static char* second_args;   // of the run that the first one's hook starts

static void run_second(TostModel* m) {
    (void)m;
    const int err = open("second.err", O_WRONLY | O_CREAT | O_TRUNC, 0666), out = open("/dev/null", O_WRONLY);
    const int status = run_child(second_args, out, err, true);
    close(err);
    close(out);
    FILE* f = fopen("second.status", "w");
    must(f && fprintf(f, "%d", status) > 0 && fclose(f) == 0, "second.status", NULL);
}

static void test_lock(Checks* c) {
    static char* const seconds[] = {
        BASE NO_VAL "--data good.bin --steps 3 --out first",
        "--resume --out first",
        BASE NO_VAL "--data good.bin --steps 3 --out first --overwrite",
    };
    check_run(c, run(SAVING "--out alone"), 0, 0, NULL, "a run alone");
    check(c, !path_exists("alone/run.lock"), "the lock file is removed");
    for (size_t i = 0; i < countof(seconds); i++) {
        remove_tree("first");
        second_args = seconds[i];
        hooks[0] = (Hook){TRAINING, 8, run_second};
        check_run(c, run(SAVING "--out first"), 0, 0, NULL, second_args);
        char* status = bytes_of("second.status").data;
        Outcome second = {atoi(status), NULL, bytes_of("second.err").data};
        check_run(c, second, 1, 1, "first is in use by process ", second_args);
        check_same(c, "alone", "first", 12, second_args);
        free(status);
    }
}

static void test_overtaken(Checks* c) {
    second_args = SAVING "--out overtaken";
    hooks[0] = (Hook){PUT, 1, run_second};
    check_run(c, run(SAVING "--seed 5 --out overtaken"), 1, 1, "--out overtaken already contains a run", "overtaken");
    check_same(c, "alone", "overtaken", 12, "overtaken");
}

static void test_default_folders(Checks* c) {
    second_args = BASE NO_VAL "--data good.bin --steps 3 --save-every 1";
    hooks[0] = (Hook){TRAINING, 1, run_second};
    check_run(c, run(BASE NO_VAL "--data good.bin --steps 3 --save-every 1"), 0, 0, NULL, "a default folder");
    check(c, saved("out/starter-001", 3) && saved("out/starter-002", 3), "each run has its own folder");
}

// ---- Folders that are removed, and runs that are replaced -----------------------------------------------------------

static void remove_run(TostModel* m) { (void)m, remove_tree("here"); }

static void test_removed(Checks* c) {
    hooks[0] = (Hook){TRAINING, 8, remove_run};
    check_run(c, run(SAVING "--out here"), 1, 1, "here/log.csv was removed", "removed");
    check(c, !path_exists("here"), "a removed folder is not made again");
}

static void no_room(TostModel* m) { (void)m, limit_file_size(0); }

// --overwrite renames the old run, whole, and the new one is the same as in a new folder.
static void test_overwrite(Checks* c) {
#define NEXT BASE NO_VAL "--data good.bin --steps 8 --save-every 4 --seed 5 "
    check_run(c, run(SAVING "--out old"), 0, 0, NULL, "the old run");
    hooks[0] = (Hook){TRAINING, 1, kill_process};
    check_run(c, run(NEXT "--overwrite --out old/"), 1000 + SIGKILL, 0, NULL, "killed in the first step");
    check_same(c, "alone", "old.1", 12, "killed in the first step");
    check(c, !path_exists("old.1/run.lock"), "the old run is not locked");
    check_run(c, run(NEXT "--out new"), 0, 0, NULL, "the new run alone");
    check_output(c, run(NEXT "--overwrite --out old"), "the old run is now in old.2", NULL, "overwritten");
    check_same(c, "new", "old", 8, "overwritten");
    check_same(c, "alone", "old.1", 12, "overwritten");
    check_output(c, run(NEXT "--overwrite --out new/../new"), "/new.1", NULL, "overwritten through ..");
    check_same(c, "new", "new.1", 8, "overwritten through ..");
    hooks[0] = (Hook){PUT, 1, no_room};
    check_run(c, run(NEXT "--overwrite --out old"), 1, 1, "the old run is in old.3", "a disk without room for a log");
    check_same(c, "new", "old.3", 8, "a disk without room for a log");
#undef NEXT
}

// ---- Full disks -----------------------------------------------------------------------------------------------------

static void fill_disk(TostModel* m) { (void)m, limit_file_size(333); }   // in the middle of a row

static void fill_most(TostModel* m) { (void)m, limit_file_size(1000); }   // a checkpoint is larger
static void empty_disk(TostModel* m) { (void)m, limit_file_size(RLIM_INFINITY); }
static void fill_log(TostModel* m) { (void)m, limit_file_size(15000); }   // a checkpoint is smaller, the log is larger

static void test_full_disk(Checks* c) {
    static const char lost[] = "full/log.csv: cannot be written: File too large; training continues",
        unsaved[] = "saving step 6 failed; training continues";
    hooks[0] = (Hook){TRAINING, 5, fill_disk};
    Outcome o = run(SAVING "--out full");
    check(c, strstr(o.err, lost) && strstr(o.err, unsaved) && strstr(o.err, "log.csv: rows from step 5 on could not"),
          "a full disk: %s", o.err);
    check_run(c, o, 1, 4, "saving step 12 failed; stopped; train_gpt_tost train --resume --out full "
              "continues from step 3", "a full disk");
    check(c, saved("full", 3) && !path_exists("full/step_00000006.tmp"), "the good checkpoint is kept");
    check_resumed(c, "full", "alone", 12, "resumed with room");

    hooks[0] = (Hook){TRAINING, 5, fill_disk};
    hooks[1] = (Hook){TRAINING, 8, empty_disk};
    o = run(SAVING "--out full --overwrite");
    check(c, strstr(o.err, lost) && strstr(o.err, unsaved), "a full disk for a while: %s", o.err);
    check_run(c, o, 0, 2, NULL, "a full disk for a while");
    check(c, saved("full", 8), "the save is tried again");
    check_same(c, "alone", "full", 12, "a full disk for a while");

    hooks[0] = (Hook){EVALUATING, 14, fill_most};
    check_run(c, run(VALIDATED "--out full --overwrite"), 1, 2, "--out full continues from step 12",
              "the save after the last validation");
}

// A run without its log can be saved, and resumed with a new log.
static void test_full_log(Checks* c) {
    hooks[0] = (Hook){TRAINING, 1, fill_log};
    check_run(c, run(BASE NO_VAL "--data good.bin --steps 250 --save-every 250 --out rows"), 0, 2,
              " on could not be written: File too large", "a full log");
    check_run(c, run("--resume --steps 252 --out rows"), 0, 1, " to 250", "rows are missing");
    check(c, row_of("rows", 251).step == 251, "the log continues with the next step");
    check_run(c, run("--resume --steps 254 --out rows"), 0, 0, NULL, "a log with a gap");
    hooks[0] = (Hook){TRAINING, 1, fill_most};
    check_run(c, run(BASE NO_VAL "--data good.bin --steps 40 --save-every 0 --out rows0"), 0, 2,
              " on could not be written: File too large\n", "nothing to save");
}

static void empty_disk_and_worsen(TostModel* m) { empty_disk(m), worsen(m); }

// The validation loss of weights that could not be saved is not the best.
static void test_lost_best(Checks* c) {
#define BEST_ONLY BASE "--data good.bin --val-data copy.bin --val-windows 6 --val-every 1 --keep-best --save-every 0 "
    hooks[0] = (Hook){TRAINING, 3, fill_most};
    hooks[1] = (Hook){TRAINING, 4, empty_disk_and_worsen};
    Outcome o = run(BEST_ONLY "--steps 4 --out lost");
    const char* last = strstr(o.out, "validation after step 4: ");
    const TextLine best = text_line(", best %.6f after step 2", row_of("lost", 2).val_loss);
    check(c, last && strstr(last, best.text), "the best that was saved: %s", o.out);
    check_run(c, o, 1, 2, "best was not updated; training continues", "a best that could not be saved");
    hooks[0] = (Hook){TRAINING, 3, fill_most};
    hooks[1] = (Hook){TRAINING, 4, empty_disk};
    check_run(c, run(BEST_ONLY "--steps 4 --out lost2"), 0, 1, "/best.tmp/", "a later one");
}

// ---- Shards that change during a run --------------------------------------------------------------------------------

// Writes an invalid id to changing.bin, in the data of step 8, counted from 1.
static void spoil_data(TostModel* m) {
    const uint16_t id = 60000;
    FILE* f = fopen("changing.bin", "r+");
    (void)m;
    must(f && fseek(f, 2 * (7 * TOKENS + 5), SEEK_SET) == 0 && fwrite(&id, 2, 1, f) == 1 && fclose(f) == 0,
         "changing.bin", NULL);
}

static void shrink_data(TostModel* m) { (void)m, must(truncate("changing.bin", 2 * 100) == 0, "truncate", NULL); }

// If the data cannot be read, the steps before are saved, and the run continues once the shard is repaired. data_batch
// may read ahead, so the step is not known.
static void test_bad_data(Checks* c) {
#define CHANGING BASE NO_VAL "--data changing.bin --steps 12 --save-every 10 "
    static void (*const spoils[])(TostModel*) = {spoil_data, shrink_data};
    write_shard("changing.bin", 0, -1, -1);
    check_run(c, run(CHANGING "--out intact"), 0, 0, NULL, "an intact shard");
    for (int i = 0; i < 2; i++) {
        const char *what = i ? "a shard that becomes shorter" : "a bad id", *out = i ? "spoiled1" : "spoiled0";
        hooks[0] = (Hook){TRAINING, 3, spoils[i]};
        check_run(c, run(CHANGING "--out %s", out), 1, 1, " train --resume --out spoiled", what);
        check_run(c, run("--resume --out %s", out), 1, 1, "changing.bin", what);
        write_shard("changing.bin", 0, -1, -1);
        check_resumed(c, out, "intact", 12, what);
    }
}

// ---- Output to closed pipes and streams -----------------------------------------------------------------------------

static int full[2];   // a pipe; for a hook

static void read_pipe(TostModel* m) { (void)m, empty_pipe(full[0]); }

// Output is dropped until the reader continues.
static void test_unread_output(Checks* c) {
    must(pipe(full) == 0, "pipe", NULL);
    fill_pipe(full[1]);
    hooks[0] = (Hook){TRAINING, 7, interrupt};
    hooks[1] = (Hook){TRAINING, 5, read_pipe};
    check_run(c, run_into(BASE NO_VAL "--data good.bin --steps 12 --save-every 12 --out unread", full[1]), 130, 3,
              "stdout is not read; training continues", "a full pipe for stdout");
    check(c, saved("unread", 7), "a full pipe for stdout: the last step is not saved");
    char* text = drain(full);
    check(c, strstr(text, "--resume --out unread"), "after a full pipe was read: got '%s'", text);
    free(text);
}

static void test_lost_output(Checks* c) {
    int ends[2];
    must(pipe(ends) == 0 && close(ends[0]) == 0, "pipe", NULL);
    check_run(c, run_into(SAVING "--out broken", ends[1]), 0, 1,
              "stdout cannot be written: Broken pipe; training continues", "a closed pipe");
    close(ends[1]);
    check_same(c, "alone", "broken", 12, "a closed pipe");
    // with stdout and stderr closed, messages must not be written into files that get their descriptors
    hooks[0] = (Hook){TRAINING, 7, interrupt};
    check_run(c, run_into(SAVING "--out closed", CLOSED), 130, 0, NULL, "closed streams");
    check_resumed(c, "closed", "alone", 12, "closed streams");
}

// ---- Resuming with other options and other data ---------------------------------------------------------------------

// Other options, and shards of the same size: elsewhere, and with other tokens. A checkpoint of an earlier version has
// only the number of tokens.
static void test_changes(Checks* c) {
    static const char other[] = ", but the run in changed was trained on 3201 (";
    write_shard("same.bin", 0, -1, -1);
    write_shard("moved.bin", 0, -1, -1);
    check_run(c, run(BASE NO_VAL "--data same.bin --steps 3 --save-every 3 --out changed"), 0, 0, NULL, "first run");
    check_output(c, run("--resume --out changed --steps 6 --keep 2"), " --steps 6 instead of 3, --keep 2 instead of 0",
                 NULL, "changed options");
    write_shard("same.bin", 33, 3, 3);
    check_run(c, run("--resume --out changed --steps 9"), 1, 1, other, "another shard of the same size");
    check_run(c, run("--resume --out changed --steps 9 --data moved.bin"), 0, 0, NULL, "the same shard elsewhere");
    replace_text("changed/step_00000009", "\"option.data-blocks-crc\"", "\"option.data-crc\"       ");
    check_output(c, run("--resume --out changed --steps 12 --data same.bin"), NULL, "data-crc", "no CRC to compare");
    check_run(c, run("--resume --out changed --steps 15 --data moved.bin"), 1, 1, other, "the new CRC");
    check_run(c, run("--resume --out changed --steps 15 --val-data good.bin moved.bin"), 0, 0, NULL, "two files");
    check_output(c, run("--resume --out changed --steps 18 --val-data moved.bin"),
                 " --val-data moved.bin instead of good.bin moved.bin, ", NULL, "a list of files");
}

// The clock of the program, which hooks set forward.
static double skipped;
int clock_gettime(clockid_t clock, struct timespec* t) {
    const int result = (int)syscall(SYS_clock_gettime, clock, t);
    t->tv_sec += (time_t)skipped;
    return result;
}
static void take_an_hour(TostModel* m) { (void)m, skipped += 3600; }

// A run that was suspended for an hour does not expect another hour, but one whose saves take an hour does.
static void test_max_time(Checks* c) {
    hooks[0] = (Hook){TRAINING, 5, take_an_hour};
    check_run(c, run(SAVING "--max-time 1.5h --out suspended"), 0, 0, NULL, "suspended for an hour");
    hooks[0] = (Hook){TRAINING, 3, take_an_hour};
    hooks[1] = (Hook){TRAINING, 6, take_an_hour};
    check_run(c, run(SAVING "--max-time 2.9h --out saves"), 75, 0, NULL, "two saves of an hour each");
    check(c, saved("saves", 6), "the third save would exceed the time");
}

// The loss rises after step 20. Steps have ten micro-batches; 20 read the shard once.
static void test_rise(Checks* c) {
#define RISING FAKE "--total-batch 160 --data good.bin --val-data copy.bin --val-windows 6 --val-every 20 "
    static const char rose[] = "overfit    the validation loss rose after step 20: ", *advice = "continue   ";
    const Hook worse = {TRAINING, 250, worsen};
    check_output(c, run(RISING "--steps 40 --out falls"), advice, rose, "a loss that falls");
    hooks[0] = worse;
    check_output(c, run(RISING "--steps 40 --out rises"),
                 text_line("%s--steps 20 or --keep-best would have given a better model", rose).text, advice, "rises");
    hooks[0] = worse;
    static const char reset[] = "best       reset: the best weights were not saved";
    check_output(c, run("--resume --steps 41 --keep-best --out rises"), reset, rose, "a best that is lost");
    check(c, path_exists("rises/best"), "the best of the later steps is kept");
    free_outcome(run(RISING "--steps 40 --out cut"));
    Outcome cut = run("--resume --steps 60 --keep-best --max-time 0.001 --out cut");
    check(c, strstr(cut.out, reset) && !strstr(cut.out, "best inf"), "a reset: %s", cut.out);
    free_outcome(cut);
    hooks[0] = worse;
    check_output(c, run(RISING "--steps 40 --keep-best --out rises3"), text_line("%suse rises3/best, ", rose).text,
                 advice, "rises, with --keep-best");
    hooks[0] = worse;
    hooks[1] = (Hook){TRAINING, 405, interrupt};
    Outcome o = run(RISING "--steps 60 --out rises2");
    check(c, strstr(o.out, rose) && strstr(o.out, "continue   train_gpt_tost train --resume --out rises2\n"),
          "stopped after a rise: %s", o.out);
    check_run(c, o, 130, 2, NULL, "stopped");
}

static void test_epochs(Checks* c) {
#define REPEATED FAKE "--total-batch 160 --data good.bin --val-data copy.bin --val-windows 6 --val-every 40 "
    static const char kept[] = "best       kept, as with --keep-best: the run reads data more than 4 times";
    check_output(c, run(REPEATED "--steps 80 --out four"), ", 4.00 epochs, seq", kept, "4 epochs");
    check(c, !path_exists("four/best"), "4 epochs: best is not kept");
    check_output(c, run(REPEATED "--steps 81 --out repeated"), kept, NULL, "more than 4 epochs");
    const Bytes best = bytes_of("repeated/best/model.safetensors");
    check(c, memmem(best.data, best.size, "\"option.keep-best\":\"1\"", 22), "the option is saved");
    free(best.data);
    check_output(c, run("--resume --steps 82 --out repeated"), " --steps 82 instead of 81", "keep-best", "resumed");
    check_output(c, run("--resume --steps 120 --out four"), " --steps 120 instead of 80", kept, "extended");
    check_output(c, run(REPEATED "--steps 81 --save-every 0 --out nothing"), NULL, kept, "--save-every 0");
    check_output(c, run(FAKE NO_VAL "--total-batch 160 --data good.bin --steps 81 --out blind"), NULL, kept, "no loss");
    check_output(c, run(REPEATED "--steps 200 --out ten"), ", 10.00 epochs, ", "warning", "10 epochs");
    check_output(c, run(REPEATED "--steps 240 --out often"),
                 "warning    12 epochs of 3.2K tokens will probably overfit: --steps 80 makes 4", NULL, "12 epochs");
    check_output(c, run(FAKE NO_VAL "--data good.bin:1 copy.bin:9 --total-batch 160 --steps 240 --out mixed"),
                 "warning    11 epochs of 3.2K tokens will probably overfit: --steps 88 makes 4", NULL, "a source");
    for (int i = 0; i < 5; i++) write_shard(text_line("many%d.bin", i).text, 0, -1, -1);
    check_output(c, run(FAKE NO_VAL "--total-batch 160 --data many*.bin --steps 1010 --out many"), ", 10.10 epochs, ",
                 "warning", "a small model");
    for (int i = 0; i < 12; i++) write_shard(text_line("part%02d.bin", i).text, 0, -1, -1);
    check_output(c, run(BASE NO_VAL "--data part*.bin --out part"),
                 ", 0.33 epochs, sequential\n           --epochs 1 reads all of it: 2401 steps\n", NULL, "a part");
    check_output(c, run(BASE NO_VAL "--data part0[0-7].bin --out half"), ", 0.50 epochs, ", "--epochs", "half");
    check_output(c, run(BASE NO_VAL "--data good.bin --steps 20 --out given"), ", 0.10 epochs, ", "--epochs", "given");
}

// A best loss that was measured on other validation data does not count.
static void test_other_validation(Checks* c) {
    static const char reset[] = "best       reset: the validation data or the number of windows changed";
    write_shard("high.bin", 150, 0, STEPS);
    check_run(c, run(BEST_EVERY "4 --steps 4 --out judged"), 0, 0, NULL, "first run");
    check_output(c, run("--resume --steps 8 --out judged"), NULL, reset, "the same validation");
    Outcome o = run("--resume --steps 12 --out judged --val-data high.bin");
    check(c, strstr(o.out, "--val-data high.bin instead of copy.bin") && strstr(o.out, "after step 12 (best)"),
          "other data: %s", o.out);
    check_output(c, o, reset, NULL, "other data");
    o = run("--resume --steps 16 --out judged --val-windows 4");
    check(c, strstr(o.out, "--val-windows 4 instead of 6"), "other windows: %s", o.out);
    check_output(c, o, reset, NULL, "other windows");
    replace_text("judged/best", "val-windows", "val-batches");   // as in checkpoints of older versions
    replace_text("judged/step_00000016", "val-windows", "val-batches");
    o = run("--resume --steps 20 --out judged");
    check(c, strstr(o.out, "--val-batches 4 (not in this version)") != NULL, "another version: %s", o.out);
    check_output(c, o, reset, NULL, "windows of another version");
    write_shard("twin.bin", 150, 0, STEPS);
    check_output(c, run("--resume --steps 24 --out judged --val-data twin.bin"), "twin.bin instead", reset, "a copy");
    write_shard("twin.bin", 0, 0, STEPS);
    hooks[0] = (Hook){TRAINING, 2, interrupt};
    o = run("--resume --steps 40 --out judged");
    check(c, strstr(o.out, reset) && !strstr(o.out, "val loss"), "other data, same name: %s", o.out);
    check_run(c, o, 130, 2, NULL, "interrupted before a validation");
    o = run("--resume --steps 26 --val-every 0 --out judged");
    check(c, !strstr(o.out, "val loss"), "the old loss is not shown later: %s", o.out);
    check_output(c, o, NULL, reset, "nothing to reset");
}

// A rate that rises after the decay, and the option with which it does not.
static void test_rising_rate(Checks* c) {
#define DECAY BASE NO_VAL "--data good.bin --schedule wsd --steps 10 --decay-frac 0.2 --min-lr-frac 0.1 --out "
    check_run(c, run(DECAY "rising"), 0, 0, NULL, "with a decay");
    check_run(c, run(DECAY "kept"), 0, 0, NULL, "with a decay");
    check_output(c, run("--resume --steps 20 --out rising"),
                 "instead of 10; the learning rate rises from 0.0055 to 0.01: --lr 0.0055 keeps it", NULL, "extended");
    check_output(c, run("--resume --steps 20 --lr 0.0055 --out kept"), NULL, "rises", "extended, with its rate");
    const double kept = row_of("kept", 11).lr, rising = row_of("rising", 11).lr;
    check(c, kept == 0.0055 && rising == 0.01, "step 11: the rates are %g and %g", kept, rising);
    free_outcome(run(DECAY "early --save-every 5 --max-time 0.001"));
    check_output(c, run("--resume --steps 40 --out early"), "--steps 40", "rises", "before the decay");
}

// The options of a checkpoint that this version lacks are named.
static void test_other_version(Checks* c) {
    check_run(c, run(BASE NO_VAL "--data good.bin --steps 2 --max-skipped 0 --out version"), 0, 0, NULL, "first run");
    check_output(c, run("--resume --steps 3 --out version"), "version    ", "may differ", "the same version");
    replace_text("version/step_00000003", "\"option.max-skipped\":\"0\"", "\"option.skip-loss-z\":\"3\"");
    replace_text("version/step_00000003", "train_gpt_tost 1", "train_gpt_tost 0");
    Outcome o = run("--resume --steps 4 --out version");
    check(c, strstr(o.out, "may differ in the last bits from those of 0."), "another version: %s", o.out);
    check_output(c, o, "--skip-loss-z 3 (not in this version)", NULL, "an option of another version");
}

int main(int argc, char** argv) {
    signal(SIGHUP, SIG_DFL);   // nohup ignores it
    if (argc > 1) return fake_main(argv[1]);   // as run_second does
    setenv("TERM", "dumb", 1);
    return RUN_TESTS("train", test_not_finite, test_val_windows, test_default_batch, test_signals,
                         test_signals_in_steps, test_lock, test_overtaken, test_removed, test_overwrite,
                         test_default_folders, test_full_disk, test_full_log, test_lost_best, test_bad_data,
                         test_unread_output, test_lost_output, test_changes, test_kills, test_newer_best, test_max_time,
                         test_rise, test_epochs, test_other_validation, test_rising_rate, test_other_version);
}
