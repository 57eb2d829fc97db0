// test_run.c: schedule, log.csv, progress.
#include <inttypes.h>
#include <sys/ioctl.h>

#include "dev/test/unit/fake_engine.h"
#include "store/log.h"
#include "run/progress.h"
#include "schedule.h"

// ---- Schedule -------------------------------------------------------------------------------------------------------

static void test_schedule(Checks* c) {
    enum { COSINE = SCHEDULE_COSINE, WSD = SCHEDULE_WSD, LINEAR = SCHEDULE_LINEAR, CONSTANT = SCHEDULE_CONSTANT };
    static const struct { int kind; int64_t step, steps, warmup; double peak, frac, decay, lr; } cases[] = {
        {COSINE, 0, 110, 10, 1.0, 0.1, 0, 0.0},    {COSINE, 5, 110, 10, 1.0, 0.1, 0, 0.5},
        {COSINE, 10, 110, 10, 1.0, 0.1, 0, 1.0},   {COSINE, 111, 110, 10, 3.0, 0.5, 0, 1.5},
        {COSINE, 35, 110, 10, 1.0, 0.1, 0, 0.868198051533946},   // 0.1 + 0.9 (1 + cos(pi/4)) / 2
        {COSINE, 0, 10, 0, 2.0, 0.0, 0, 2.0},      {COSINE, 5, 10, 20, 1.0, 0.1, 0, 0.25},
        {COSINE, 0, 0, 0, 1.0, 0.1, 0, 0.1},       {COSINE, 9, 10, 10, 1.0, 0.1, 0, 0.9},
        {LINEAR, 35, 110, 10, 1.0, 0.1, 0, 0.775}, {CONSTANT, 500, 110, 10, 1.0, 0.1, 0, 1.0},
        {WSD, 80, 100, 10, 1.0, 0.1, 0.2, 1.0},    {WSD, 90, 100, 10, 1.0, 0.1, 0.2, 0.55},
        {WSD, 79, 100, 10, 1.0, 0.1, 0.2, 1.0},    {WSD, 99, 100, 10, 1.0, 0.1, 0.0, 1.0},
        {WSD, 55, 100, 10, 1.0, 0.1, 1.0, 0.55},   // the decay cannot begin before the end of the warm-up
    };
    for (size_t i = 0; i < countof(cases); i++) {
        const Schedule s = {cases[i].kind, cases[i].steps, cases[i].warmup, cases[i].peak, cases[i].frac,
                            cases[i].decay};
        const double lr = schedule_lr(s, cases[i].step);
        check(c, fabs(lr - cases[i].lr) < 1e-14, "schedule_lr, case %zu: expected %.15g, got %.15g", i,
              cases[i].lr, lr);
    }
}

// ---- log.csv --------------------------------------------------------------------------------------------------------

#define HEADER "step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s\n"
#define AFTER_STEP ",64,2.500000000,,1.000000000e-03,0.750000000,12.500,5120.0\n"
#define ROW(step) #step AFTER_STEP
#define FIRST "0,0,,7.750000000,,,,\n"

static LogRow row_of(int64_t step) {
    return (LogRow){.step = step, .tokens = 64, .train_loss = 2.5, .val_loss = NAN, .lr = 1e-3,
                    .grad_norm = 0.75, .ms = 12.5, .tokens_per_s = 5120};
}

static const char path[] = "log.csv";

// Rows that cannot be written, because the file is too large or its handle is stale, are written with the next.
static void test_log_rows(Checks* c) {
    static const char wanted[] = HEADER
        FIRST
        "3,4096,7.742401700,,0.000000000e+00,1.234567890,1234.568,3317.2\n"
        "1,5000000000,0.000000100,3.250000000,2.999600000e-03,1000.000000000,0.500,10000000.0\n"
        "2,1,NaN,inf,1.000000000e+00,NaN,1.000,1.0\n";
    const LogRow rows[] = {
        {.step = 0, .val_loss = 7.75},
        {3, 4096, 7.7424017, NAN, 0, 1.23456789012, 1234.56789, 3317.25},
        {1, 5000000000, 1e-7, 3.25, 2.9996e-3, 1e3, 0.5, 1e7},
        {2, 1, -NAN, INFINITY, 1, NAN, 1, 1},
    };
    static const int failed[countof(rows)] = {EFBIG, 0, ENOSPC, 0};
    TostError err;
    LogFile log = {0};
    signal(SIGXFSZ, SIG_IGN);
    write_text(path, "an old log\n");
    must(log_open(&log, path, -1, &err), "log_open", &err);
    for (size_t i = 0; i < countof(rows); i++) {
        limit_file_size(i == 0 ? sizeof HEADER + 5 : RLIM_INFINITY);
        if (i == 2) must(dup2(open("/dev/full", O_WRONLY), log.fd) == log.fd, "/dev/full", NULL);
        check(c, log_row(&log, &rows[i], &err) && log.failed == failed[i], "row %zu: error %d: %s", i, log.failed,
              err.text);
    }
    check(c, log_sync(&log, &err), "log_sync: %s", err.text);
    check_file(c, path, wanted, "rows of log.csv");
    remove(path);
    check_refused(c, log_row(&log, &rows[0], &err), &err, "log.csv was removed", "a log that was removed");
    log_close(&log);
    log_close(&log);
}

static void test_log_resume(Checks* c) {
    // before: the log; done: the steps before the run resumes; after: the expected log up to row `done`, or NULL for an
    // error, which contains `says` and changes nothing.
    static const struct { const char *what, *before; int64_t done; const char *after, *says; } cases[] = {
        {"cut back", HEADER ROW(1) ROW(2) ROW(3) ROW(4), 2, HEADER ROW(1) ROW(2), NULL},
        {"a cut last line", HEADER ROW(1) ROW(2) "3,64,2.5000", 2, HEADER ROW(1) ROW(2), NULL},
        {"a cut line that is needed", HEADER ROW(1) "2,64,2.500", 2, HEADER ROW(1), NULL},
        {"rows are missing", HEADER ROW(1) ROW(2), 7, HEADER ROW(1) ROW(2), NULL},
        {"rows were missing", HEADER ROW(1) ROW(4), 4, HEADER ROW(1) ROW(4), NULL},
        {"rows around the last are missing", HEADER ROW(1) ROW(4), 3, HEADER ROW(1), NULL},
        {"a row is repeated", HEADER ROW(1) ROW(2) ROW(2) ROW(3), 3, NULL, "line 4 is not the row of a step after 2"},
        {"garbage before the end", HEADER "nonsense\n" ROW(2), 2, NULL, "line 2 is not the row of a step up to 2"},
        {"another first step", HEADER "9" ROW(1) ROW(2) ROW(3), 3, NULL, "line 2 is not the row of a step up to 3"},
        {"no first step", HEADER ",64\n" ROW(2) ROW(3), 3, NULL, "line 2 is not the row of a step up to 3"},
        {"garbage after the end is removed", HEADER ROW(1) ROW(2) ROW(3) "nonsense\n", 2, HEADER ROW(1) ROW(2), NULL},
        {"another file", "a,b,c\n1,2,3\n", 1, NULL, "line 1"},
        {"no rows", HEADER, 7, HEADER, NULL},
        {"a cut header", "step,tok", 7, HEADER, NULL},
        {"started at step 6", HEADER ROW(6) ROW(7) ROW(8), 7, HEADER ROW(6) ROW(7), NULL},
        {"counted from 0", HEADER ROW(0) ROW(1), 1, NULL, "line 2 is not the row of a step up to 1"},
        {"with the first validation", HEADER FIRST ROW(1) ROW(2), 1, HEADER FIRST ROW(1), NULL},
        {"resumed at step 0", HEADER FIRST ROW(1), 0, HEADER, NULL},
        {"no step 1", HEADER FIRST ROW(2), 2, HEADER FIRST ROW(2), NULL},
        {"the first validation again", HEADER ROW(1) FIRST ROW(2), 2, NULL, "line 3 is not the row of a step after 1"},
        {"an empty last column", HEADER "1,64,2.5,,1,1,1,\n" ROW(2), 1, HEADER "1,64,2.5,,1,1,1,\n", NULL},
        {"one column less", HEADER "1,64,2.5,,1,1,1\n" ROW(2), 1, NULL, "line 2 is not the row of a step up to 1"},
        {"one column more", HEADER "1,64,2.5,,1,1,1,,\n" ROW(2), 1, NULL, "line 2 is not the row of a step up to 1"},
        {"absent", NULL, 7, HEADER, NULL},
        {"no rows at step 0", "", 0, HEADER, NULL},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        TostError err;
        LogFile log;
        remove(path);
        if (cases[i].before) write_text(path, cases[i].before);
        bool ok = log_open(&log, path, cases[i].done, &err);
        if (!cases[i].after) {
            check_refused(c, ok, &err, cases[i].says, cases[i].what);
            check_file(c, path, cases[i].before, cases[i].what);
            continue;
        }
        if (!check(c, ok, "%s: %s", cases[i].what, err.text)) continue;
        const LogRow row = row_of(cases[i].done + 1);
        must(log_row(&log, &row, &err), "log_row", &err);
        log_close(&log);
        char* wanted = xasprintf("%s%d" AFTER_STEP, cases[i].after, (int)row.step);
        check_file(c, path, wanted, cases[i].what);
        free(wanted);
    }
}

// ---- Progress -------------------------------------------------------------------------------------------------------

// A display that writes to *f, a temporary file unless it is open already.
static Progress display(FILE** f, bool live) {
    if (!*f) *f = tmpfile();
    must(*f != NULL, "tmpfile", NULL);
    Progress p = progress_new(*f, false);
    p.live = live;
    return p;
}

// The text written to f, which is closed. free()
static char* text_of(FILE* f) {
    const size_t n = (size_t)lseek(fileno(f), 0, SEEK_END);
    char* text = xcalloc(n + 1, 1);
    must(pread(fileno(f), text, n, 0) == (ssize_t)n, "pread", NULL);
    fclose(f);
    return text;
}

static void let_time_pass(Progress* p) { p->shown = -1e9; }

// Columns of the widest line. A carriage return starts a new line; escape sequences have no width, UTF-8 characters one
// column.
static int widest(const char* text) {
    int most = 0, columns = 0;
    for (const char* p = text; *p; p++) {
        if (*p == '\r' || *p == '\n') columns = 0;
        else if (*p == '\033') p += 2;
        else if ((*p & 0xc0) != 0x80) columns++;
        if (columns > most) most = columns;
    }
    return most;
}

#define PLAIN "  loss 2.500000  ETA 0s  5.1K tok/s  12.5 ms  lr 1.000e-03  |g| 0.7500"

// The output of a display of the last `rows` steps.
static void test_progress(Checks* c) {
    static const struct { bool live; int peak; int64_t steps; int rows; const char *has, *also; } cases[] = {
        {false, 0, 800, 2, "step 799/800" PLAIN "\nval 3.25\nstep 800/800" PLAIN "\n", ""},
        {false, 0, 100, 100, "\nstep 2/100  loss", ""},
        {false, 20480, 9, 2, "tok/s  25.0% MFU", ""},
        {true, 0, 800, 2, "step 799/800 [##", "\r\033[Kval 3.25\nstep 800/800"},
        {true, 0, 800, 700, "  loss 2.500000  ETA ", "  5.1K tok/s  12.5 ms  lr "},
        {true, 0, 1000000000000000000, 2, "step 1000000000000000000/1000000000000000000", ""},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        const int64_t first = cases[i].steps - cases[i].rows;
        FILE* f = NULL;
        Progress p = display(&f, cases[i].live);
        p.peak_tokens_per_s = cases[i].peak;
        progress_train(&p, first, cases[i].steps, 1, 64);
        for (int k = 0; k < cases[i].rows; k++) {
            const LogRow row = row_of(first + k + 1);
            let_time_pass(&p);
            progress_micro_batch(&p, 0);
            progress_step(&p, &row);
            if (k == 0) progress_text(&p, "val %s", "3.25");
        }
        progress_end(&p);
        char* text = text_of(f);
        check(c, strstr(text, cases[i].has) && strstr(text, cases[i].also), "case %zu: want %s … %s, got %s", i,
              cases[i].has, cases[i].also, text);
        if (cases[i].live)
            check(c, widest(text) <= 79 && text[strlen(text) - 1] == '\n', "case %zu: %d columns", i, widest(text));
        check(c, (strstr(text, "MFU") != NULL) == (cases[i].peak > 0), "case %zu: MFU without a peak", i);
        free(text);
    }
}

// Plain lines of a run of 9 steps of 4 micro-batches: the first and last step, and what is due between them.
static void test_progress_plain(Checks* c) {
    FILE* f = NULL;
    Progress p = display(&f, false);
    p.interval = 1e9;
    progress_train(&p, 0, 9, 4, 64);
    for (int step = 0; step < 9; step++) {
        const LogRow row = row_of(step + 1);
        for (int done = 0; done < 4; done++) {
            if (step == 5 && done == 3) {   // a long step
                let_time_pass(&p);
                p.step_started -= 30;
                p.run_started -= 180;
            }
            progress_micro_batch(&p, done);
        }
        if (step == 2) let_time_pass(&p);
        progress_step(&p, &row);
    }
    char* text = text_of(f);
    const char *first = strstr(text, "step 1/9  loss"), *due = strstr(text, "step 3/9  loss");
    const char* within = strstr(text, "step 6/9  micro-batch 3/4  loss 2.5000  step ETA 10s  run ETA 1m");
    const char* last = strstr(text, "step 9/9  loss");
    int lines = 0;
    for (const char* at = text; *at; at++) lines += *at == '\n';
    check(c, text == first && first < due && due < within && within < last && lines == 4, "plain lines: got\n%s", text);
    free(text);
}

static void test_progress_width(Checks* c) {
    const int master = posix_openpt(O_RDWR | O_NOCTTY);
    const bool ready = master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0;
    const int slave = ready ? open(ptsname(master), O_RDWR | O_NOCTTY) : -1;
    if (slave < 0) {
        skip(c, "no pseudo-terminal: live lines of other widths not tested");
        if (master >= 0) close(master);
        return;
    }
    FILE* out = fdopen(slave, "w");
    Progress p = display(&out, true);
    progress_train(&p, 0, 100000, 4, 64);
    for (unsigned short width = 2; width < 200; width++) {
        struct winsize size = {.ws_row = 24, .ws_col = width};
        must(ioctl(slave, TIOCSWINSZ, &size) == 0, "TIOCSWINSZ", NULL);
        for (int kind = 0; kind < 3; kind++) {
            char text[4096];
            const LogRow row = row_of(1000 + width);
            let_time_pass(&p);
            if (kind == 0) progress_step(&p, &row);
            if (kind == 1) progress_micro_batch(&p, 0), p.step_started -= 10, progress_micro_batch(&p, 3);
            if (kind == 2) progress_show(&p, 0.25, "validation %d/%d", 5, 20);
            const ssize_t n = read(master, text, sizeof text - 1);
            must(n > 0, "read of a pseudo-terminal", NULL);
            text[n] = 0;
            check(c, widest(text) < width, "a live line of %d columns on a terminal of %d: %s", widest(text),
                  width, text);
        }
    }
    fclose(out);
    close(master);
}

int main(void) {
    return RUN_TESTS("run", test_schedule, test_log_rows, test_log_resume, test_progress, test_progress_plain,
                         test_progress_width);
}
