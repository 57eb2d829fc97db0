// test_run.c: schedule, outlier detector, log.csv, progress, --threads.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sys/ioctl.h>

#include "base/files.h"
#include "base/openmp.h"
#include "dev/test/unit/fake_engine.h"
#include "run/log.h"
#include "run/options.h"
#include "run/outlier.h"
#include "run/progress.h"
#include "run/schedule.h"

// ---------------------------------------------------------------------------------------------
// Schedule

static void test_schedule(Checks* c) {
    enum { COSINE = SCHEDULE_COSINE, WSD = SCHEDULE_WSD, LINEAR = SCHEDULE_LINEAR, CONSTANT = SCHEDULE_CONSTANT };
    static const struct { int kind; int64_t step, steps, warmup; double peak, frac, decay, lr; } cases[] = {
        {COSINE, 0, 110, 10, 1.0, 0.1, 0, 0.0},    {COSINE, 5, 110, 10, 1.0, 0.1, 0, 0.5},
        {COSINE, 9, 110, 10, 2.0, 0.1, 0, 1.8},    {COSINE, 10, 110, 10, 1.0, 0.1, 0, 1.0},
        {COSINE, 60, 110, 10, 1.0, 0.1, 0, 0.55},  {COSINE, 110, 110, 10, 1.0, 0.1, 0, 0.1},
        {COSINE, 35, 110, 10, 1.0, 0.1, 0, 0.868198051533946},   // 0.1 + 0.9 (1 + cos(pi/4)) / 2
        {COSINE, 1000, 110, 10, 3.0, 0.5, 0, 1.5}, {COSINE, 0, 10, 0, 2.0, 0.0, 0, 2.0},
        {COSINE, 10, 10, 10, 1.0, 0.25, 0, 0.25},  {COSINE, 5, 10, 20, 1.0, 0.1, 0, 0.25},
        {COSINE, 0, 0, 0, 1.0, 0.1, 0, 0.1},       {COSINE, 9, 10, 10, 1.0, 0.1, 0, 0.9},
        {LINEAR, 5, 110, 10, 1.0, 0.1, 0, 0.5},    {LINEAR, 10, 110, 10, 1.0, 0.1, 0, 1.0},
        {LINEAR, 35, 110, 10, 1.0, 0.1, 0, 0.775}, {LINEAR, 110, 110, 10, 1.0, 0.1, 0, 0.1},
        {CONSTANT, 5, 110, 10, 1.0, 0.1, 0, 0.5},  {CONSTANT, 500, 110, 10, 1.0, 0.1, 0, 1.0},
        {WSD, 5, 100, 10, 1.0, 0.1, 0.2, 0.5},     {WSD, 10, 100, 10, 1.0, 0.1, 0.2, 1.0},
        {WSD, 80, 100, 10, 1.0, 0.1, 0.2, 1.0},    {WSD, 90, 100, 10, 1.0, 0.1, 0.2, 0.55},
        {WSD, 100, 100, 10, 1.0, 0.1, 0.2, 0.1},   {WSD, 99, 100, 10, 1.0, 0.1, 0.0, 1.0},
        {WSD, 55, 100, 10, 1.0, 0.1, 1.0, 0.55},   // the decay cannot begin before the end of the warm-up
    };
    for (size_t i = 0; i < countof(cases); i++) {
        const Schedule s = {(ScheduleKind)cases[i].kind, cases[i].steps, cases[i].warmup, cases[i].peak, cases[i].frac,
                            cases[i].decay};
        const double lr = schedule_lr(&s, cases[i].step);
        check(c, fabs(lr - cases[i].lr) < 1e-14, "schedule_lr, case %zu: expected %.15g, got %.15g", i,
              cases[i].lr, lr);
    }
}

// ---------------------------------------------------------------------------------------------
// The outlier detector

static void test_outlier_detector(Checks* c) {
    OutlierDetector g = {0};
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        check(c, outlier_z(&g.loss, 1e9) == 0, "z is not 0 before the window is full, at %d", i);
        outlier_accept(&g, i % 2 ? 3 : 1, i);   // mean 2, deviation 1
    }
    check(c, outlier_z(&g.loss, 5) == 3 && outlier_z(&g.loss, -1) == -3, "z of 5: %g", outlier_z(&g.loss, 5));
    // 0 … 127: mean 63.5, variance (128² - 1) / 12
    const double deviation = sqrt((128.0 * 128.0 - 1) / 12);
    check(c, fabs(outlier_z(&g.norm, 200) - (200 - 63.5) / deviation) < 1e-12, "z of 200: %g", outlier_z(&g.norm, 200));
    for (int i = 0; i < 50; i++) outlier_accept(&g, 1.0 / (3 + i), 128 + i);
    // 50 … 177
    check(c, fabs(outlier_z(&g.norm, 200) - (200 - 113.5) / deviation) < 1e-12, "the oldest values are dropped");
    outlier_skip(&g);
    outlier_skip(&g);
    check(c, g.skipped == 2 && g.in_a_row == 2, "two skipped steps");
    outlier_accept(&g, 1, 1);
    check(c, g.skipped == 2 && g.in_a_row == 0, "an accepted step after two skipped ones");
    OutlierWindow read, flat = {0};
    for (int i = 0; i < 1000; i++) outlier_accept(&g, 3 + sin(i) / 3, 1);
    char* text = outlier_window_text(&g.loss);
    check(c, outlier_window_parse(&read, text), "the text of a window is not parsed");
    int differ = 0;   // the z scores must have the same bits, although the ring buffer starts elsewhere
    OutlierDetector resumed = {.loss = read};
    for (int i = 0; i < 300; i++) {
        differ += outlier_z(&resumed.loss, 0.02 * i) != outlier_z(&g.loss, 0.02 * i);
        outlier_accept(&resumed, cos(i), 1);
        outlier_accept(&g, cos(i), 1);
    }
    check(c, differ == 0, "%d of 300 z scores differ after parsing", differ);
    free(text);
    text = outlier_window_text(&flat);
    check(c, !*text && outlier_window_parse(&read, "") && read.count == 0, "an empty window");
    free(text);
    flat.count = OUTLIER_WINDOW;
    check(c, outlier_z(&flat, 1) == 0, "z of a window of zeros is 0");
    for (int i = 0; i < OUTLIER_WINDOW; i++) flat.value[i] = 0.1;   // the mean is rounded
    check(c, outlier_z(&flat, 0.2) == 0, "z of equal values is 0: %g", outlier_z(&flat, 0.2));
    static const char* const wrong[] = {"x", "1 x", "1,2", "nan", "1 inf", "1e999", "1;", " "};
    for (size_t i = 0; i < countof(wrong); i++)
        check(c, !outlier_window_parse(&read, wrong[i]), "'%s' is parsed", wrong[i]);
    char* long_text = xstrdup("");
    for (int i = 0; i <= OUTLIER_WINDOW; i++) long_text = append_text(long_text, "%s1", i ? " " : "");
    check(c, !outlier_window_parse(&read, long_text), "one value too many is parsed");
    free(long_text);
}

// ---------------------------------------------------------------------------------------------
// log.csv

#define HEADER "step,tokens,train_loss,val_loss,lr,grad_norm,ms,tokens_per_s\n"
#define ROW(step) #step ",64,2.500000000,,1.000000000e-03,0.750000000,12.500,5120.0\n"

static LogRow row_of(int64_t step) {
    return (LogRow){.step = step, .tokens = 64, .train_loss = 2.5, .val_loss = NAN, .lr = 1e-3,
                    .grad_norm = 0.75, .ms = 12.5, .tokens_per_s = 5120};
}

static void check_file(Checks* c, const char* path, const char* wanted, const char* what) {
    Bytes is = bytes_of(path);
    check(c, strcmp(is.data, wanted) == 0, "%s: expected\n%s\ngot\n%s", what, wanted, is.data);
    free(is.data);
}

static void test_log_rows(Checks* c) {
    TostError err;
    LogFile log = {0};
    char* dir = new_folder();
    char* path = path_join(dir, "log.csv");
    write_text(path, "an old log\n");
    must(log_open(&log, path, -1, &err), "log_open", &err);
    const LogRow rows[] = {
        {0, 4096, 7.7424017, NAN, 0, 1.23456789012, 1234.56789, 3317.25},
        {1, 5000000000, 1e-7, 3.25, 2.9996e-3, 1e3, 0.5, 1e7},
        {2, 1, -NAN, INFINITY, 1, NAN, 1, 1},
    };
    for (size_t i = 0; i < countof(rows); i++) {
        check(c, log_row(&log, &rows[i], &err), "log_row: %s", err.text);
        Bytes b = bytes_of(path);
        check(c, b.size > 0 && b.data[b.size - 1] == '\n', "log_row: a row must be written immediately");
        free(b.data);
    }
    check(c, log_sync(&log, &err), "log_sync: %s", err.text);
    check(c, log_close(&log, &err) && log_close(&log, &err), "log_close: %s", err.text);
    static const char wanted[] = HEADER
        "0,4096,7.742401700,,0.000000000e+00,1.234567890,1234.568,3317.2\n"
        "1,5000000000,0.000000100,3.250000000,2.999600000e-03,1000.000000000,0.500,10000000.0\n"
        "2,1,nan,inf,1.000000000e+00,nan,1.000,1.0\n";
    check_file(c, path, wanted, "rows of log.csv");
    free(path);
    path = path_join(dir, "absent/log.csv");
    check_refused(c, log_open(&log, path, -1, &err), &err, path, "a log in an absent folder");
    if (access("/dev/full", W_OK) == 0) {
        bool ok = log_open(&log, "/dev/full", 5, &err) && log_row(&log, &rows[0], &err);
        check_refused(c, ok, &err, "/dev/full", "a log on a full disk");
        must(log_close(&log, &err), "log_close", &err);   // rows for a device do not stay pending
    } else {
        skip(c, "/dev/full not found: no log on a full disk");
    }
    free(path);
    drop_folder(dir);
}

// Disks that become full at every byte of a row: rows that did not fit stay pending.
static void test_pending_rows(Checks* c) {
    TostError err;
    LogFile log = {0}, second;
    char *dir = new_folder(), *path = path_join(dir, "log.csv");
    signal(SIGXFSZ, SIG_IGN);
    int bad = 0;
    for (rlim_t room = sizeof HEADER; room < sizeof HEADER + 160; room++) {
        must(log_open(&log, path, -1, &err), "log_open", &err);
        limit_file_size(room);
        for (int64_t step = 0; step < 4; step++) {
            const LogRow row = row_of(step);
            bad += log_row(&log, &row, &err) != (log.n_pending == 0);
        }
        bad += log.n_pending != sizeof HEADER - 1 + 4 * strlen(ROW(0)) - (size_t)room;
        bad += log_sync(&log, &err) || !strstr(err.text, "File too large");
        limit_file_size(RLIM_INFINITY);
        const LogRow row = row_of(4);
        bad += !log_row(&log, &row, &err) || log.n_pending || !log_sync(&log, &err) || !log_close(&log, &err);
        Bytes is = bytes_of(path);
        bad += strcmp(is.data, HEADER ROW(0) ROW(1) ROW(2) ROW(3) ROW(4)) != 0;
        free(is.data);
    }
    check(c, bad == 0, "a full disk: %d errors", bad);
    must(log_open(&log, path, 5, &err), "log_open", &err);
    limit_file_size(1);
    const LogRow row = row_of(5);
    check_refused(c, log_row(&log, &row, &err), &err, "log.csv: cannot be written: File too large", "no room");
    check_refused(c, log_open(&second, path, -1, &err), &err, "is being written by another run", "an open log");
    check_refused(c, log_close(&log, &err), &err, "log.csv: cannot be written", "a row that cannot be written");
    limit_file_size(RLIM_INFINITY);
    check_file(c, path, HEADER ROW(0) ROW(1) ROW(2) ROW(3) ROW(4), "a row that was not written");
    must(log_open(&log, path, 5, &err) && unlink(path) == 0, "log_open", &err);
    check_refused(c, log_row(&log, &row, &err), &err, "log.csv was removed", "a log that was removed");
    log_close(&log, &err);
    signal(SIGXFSZ, SIG_DFL);
    free(path);
    drop_folder(dir);
}

static void test_row_text(Checks* c) {
    const LogRow rows[] = {row_of(3), {7, 5000000000, NAN, NAN, 0, INFINITY, 1.5, 10}, {1, 2, 3, 4, 5, 6, 7, 8}};
    for (size_t i = 0; i < countof(rows); i++) {
        LogRow row = {0};
        char* text = log_row_text(&rows[i]);
        const bool ok = log_row_parse(&row, text);
        char* again = log_row_text(&row);
        check(c, ok && strcmp(text, again) == 0, "log_row_text: %s becomes %s", text, again);
        for (size_t n = 0; n < strlen(text); n++) {
            again[n] = 0;
            check(c, !log_row_parse(&row, again), "a cut row is parsed: %s", again);
            again[n] = text[n];
        }
        free(again);
        free(text);
    }
    static const char* const wrong[] = {"", "\n", "-1,2,3,,5,6,7,8\n", "1,2,3,,5,6,7\n", "1,2,3,,5,6,7,8,9\n",
                                        "1,x,3,,5,6,7,8\n", "1,2,3,,5,6,7,8\n1", "1,-2,3,,5,6,7,8\n",
                                        "1,1e30,3,,5,6,7,8\n"};
    LogRow row;
    for (size_t i = 0; i < countof(wrong); i++) check(c, !log_row_parse(&row, wrong[i]), "'%s' is parsed", wrong[i]);
}

static void test_log_fresh(Checks* c) {
    // error, overwriting: the error without and with --overwrite; NULL: a new log may be started
    static const struct { const char *what, *before, *error, *overwriting; } cases[] = {
        {"absent", NULL, NULL, NULL},
        {"an empty file", "", NULL, NULL},
        {"a log", HEADER ROW(0), "already exists", NULL},
        {"a log without rows", HEADER, "already exists", NULL},
        {"another file", "precious\n", "already exists", "line 1 is not the header"},
        {"a cut header", "step,tok", "already exists", NULL},
    };
    char* dir = new_folder();
    char* path = path_join(dir, "log.csv");
    for (size_t i = 0; i < countof(cases); i++) {
        for (int overwrite = 0; overwrite < 2; overwrite++) {
            TostError err = {{0}};
            const char* error = overwrite ? cases[i].overwriting : cases[i].error;
            remove(path);
            if (cases[i].before) write_text(path, cases[i].before);
            bool ok = log_check_fresh(path, overwrite, &err);
            if (error) check_refused(c, ok, &err, error, cases[i].what);
            else check(c, ok, "%s: %s", cases[i].what, err.text);
            if (cases[i].before) check_file(c, path, cases[i].before, cases[i].what);
        }
    }
    TostError err = {{0}};
    check(c, log_check_fresh("/dev/null", false, &err), "a device: %s", err.text);
    free(path);
    drop_folder(dir);
}

static void test_log_resume(Checks* c) {
    // before: the log; at: the step at which the run resumes; after: the expected log before row `at`, or NULL for an
    // error
    static const struct { const char *what, *before; int64_t at; const char *after, *error; } cases[] = {
        {"cut back", HEADER ROW(0) ROW(1) ROW(2) ROW(3), 2, HEADER ROW(0) ROW(1), NULL},
        {"nothing to cut", HEADER ROW(0) ROW(1), 2, HEADER ROW(0) ROW(1), NULL},
        {"a cut last line", HEADER ROW(0) ROW(1) "2,64,2.5000", 2, HEADER ROW(0) ROW(1), NULL},
        {"a cut line that is needed", HEADER ROW(0) "1,64,2.500", 2, NULL, "line 2 is step 0"},
        {"rows are missing", HEADER ROW(0) ROW(1), 3, NULL, "line 3 is step 1"},
        {"garbage before the end", HEADER "nonsense\n" ROW(1), 2, NULL, "line 2 is not a row"},
        {"garbage after the end is removed", HEADER ROW(0) ROW(1) ROW(2) "nonsense\n", 2, HEADER ROW(0) ROW(1), NULL},
        {"another file", "a,b,c\n1,2,3\n", 1, NULL, "line 1"},
        {"no rows", HEADER, 7, HEADER, NULL},
        {"another file, from step 0", "a,b,c\n1,2,3\n", 0, NULL, "line 1"},
        {"an empty file", "", 7, HEADER, NULL},
        {"a cut header", "step,tok", 7, HEADER, NULL},
        {"started at step 5", HEADER ROW(5) ROW(6) ROW(7), 7, HEADER ROW(5) ROW(6), NULL},
        {"absent", NULL, 7, HEADER, NULL},
    };
    char* dir = new_folder();
    char* path = path_join(dir, "log.csv");
    for (size_t i = 0; i < countof(cases); i++) {
        TostError err;
        LogFile log;
        remove(path);
        if (cases[i].before) write_text(path, cases[i].before);
        bool ok = log_open(&log, path, cases[i].at, &err);
        if (!cases[i].after) {
            check_refused(c, ok, &err, cases[i].error, cases[i].what);
            check_file(c, path, cases[i].before, cases[i].what);
            continue;
        }
        if (!check(c, ok, "%s: %s", cases[i].what, err.text)) continue;
        const LogRow row = row_of(cases[i].at);
        must(log_row(&log, &row, &err) && log_close(&log, &err), "log_row", &err);
        const char* line = cases[i].at == 2 ? ROW(2) : ROW(7);
        char* wanted = xasprintf("%s%s", cases[i].after, line);
        check_file(c, path, wanted, cases[i].what);
        free(wanted);
    }
    remove(path);
    PathList left;
    TostError err;
    char* all = path_join(dir, "*");
    check(c, !expand_glob(&left, all, &err), "log_open must not leave other files");
    free(all);
    free(path);
    drop_folder(dir);
}

// ---------------------------------------------------------------------------------------------
// Progress

// The text written to f. free()
static char* text_of(FILE* f) {
    const size_t n = (size_t)lseek(fileno(f), 0, SEEK_END);
    char* text = xcalloc(n + 1, 1);
    must(pread(fileno(f), text, n, 0) == (ssize_t)n, "pread", NULL);
    return text;
}

// MFU 25% in live and plain lines; nothing if the peak is unknown.
static void test_mfu(Checks* c) {
    for (int kind = 0; kind < 4; kind++) {
        FILE* f = tmpfile();
        must(f != NULL, "tmpfile", NULL);
        Progress p = progress_new(f, false);
        const LogRow row = row_of(0);
        p.live = kind % 2;
        p.peak_tokens_per_s = kind < 2 ? 4 * row.tokens_per_s : 0;
        progress_train(&p, 0, 9, 1, 64);
        progress_micro_batch(&p, 0);
        progress_step(&p, &row);
        progress_end(&p);
        char* text = text_of(f);
        check(c, !strstr(text, kind < 2 ? "  25.0% MFU" : "MFU") == (kind >= 2), "kind %d: \"%s\"", kind, text);
        free(text);
        fclose(f);
    }
}

// Makes the next progress line due.
static void let_time_pass(Progress* p) { p->shown = -1e9; }

// The complete output of a progress display of the last `rows` steps. free()
static char* progress_output(bool live, bool quiet, int64_t steps, int rows) {
    FILE* f = tmpfile();
    must(f != NULL, "tmpfile", NULL);
    Progress p = progress_new(f, quiet);
    p.live = live;
    progress_train(&p, steps - rows, steps, 1, 64);
    for (int i = 0; i < rows; i++) {
        LogRow row = row_of(steps - rows + i);
        let_time_pass(&p);
        progress_micro_batch(&p, 0);
        progress_step(&p, &row);
        if (i == 0) progress_text(&p, "val %s", "3.25");
    }
    progress_end(&p);
    char* text = text_of(f);
    fclose(f);
    return text;
}

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

static void test_progress(Checks* c) {
    setenv("LC_ALL", "C.UTF-8", 1);
    char* plain = progress_output(false, false, 800, 2);
    static const char wanted[] =
        "step 799/800  loss  2.500000  |g|   0.7500  lr 1.000e-03      12.5 ms       5120 tok/s  ETA 0s\n"
        "val 3.25\n"
        "step 800/800  loss  2.500000  |g|   0.7500  lr 1.000e-03      12.5 ms       5120 tok/s\n";
    check(c, strcmp(plain, wanted) == 0, "plain lines: got\n%s", plain);
    free(plain);
    plain = progress_output(false, false, 100, 100);
    check(c, strstr(plain, "\nstep   2/100  loss"), "aligned lines: got\n%s", plain);
    free(plain);
    plain = progress_output(true, true, 10, 3);
    check(c, plain[0] == 0, "quiet: got %s", plain);
    free(plain);
    char* live = progress_output(true, false, 800, 2);
    check(c, strncmp(live, "step 799/800 \u2595", 16) == 0, "live line: expected a bar after the step, got %s",
          live);
    check(c, strstr(live, " loss 2.5000  lr 1.0e-03  |g| 0.75  5.1K tok/s  ETA"), "live line: got %s", live);
    check(c, strstr(live, "\r\033[Kval 3.25\nstep 800/800"), "other text must replace the live line: got %s",
          live);
    check(c, live[strlen(live) - 1] == '\n' && live[strlen(live) - 2] != '\n',
          "the last live line must end with a newline: got %s", live);
    free(live);
    live = progress_output(true, false, 800, 700);
    check(c, strstr(live, "|g| 0.75  5.1K tok/s  ETA "), "a live line with all fields");
    check(c, widest(live) == 79 && strstr(live, "\r\033[Kstep 500/800"), "live lines: %d columns of 80",
          widest(live));
    int colors = 0;
    for (const char* at = live; (at = strchr(at, '\033')); at++) colors += strncmp(at, "\033[K", 3) != 0;
    check(c, colors == 0, "NO_COLOR: live lines have %d colors", colors);
    free(live);
    live = progress_output(true, false, 1000000000000000000, 2);
    check(c, widest(live) <= 79, "a live line with long numbers: %d columns of 80", widest(live));
    free(live);
    setenv("LC_ALL", "C", 1);
    live = progress_output(true, false, 800, 400);
    check(c, strstr(live, "step 800/800 [##") && !strstr(live, "\u2588"), "a bar without UTF-8: got %s",
          live);
    free(live);
    unsetenv("LC_ALL");
}

// Plain lines of a run of 9 steps of 4 micro-batches: the first and last step, and what is due between them.
static void test_progress_plain(Checks* c) {
    FILE* f = tmpfile();
    must(f != NULL, "tmpfile", NULL);
    Progress p = progress_new(f, false);
    check(c, !p.live && p.interval == 5, "a file: live %d, a line each %g s", p.live, p.interval);
    p.interval = 1e9;
    progress_train(&p, 0, 9, 4, 64);
    for (int step = 0; step < 9; step++) {
        const LogRow row = row_of(step);
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
    const char* within = strstr(text, "step 6/9  micro-batch 3/4  1.6 tok/s  step ETA 10s  run ETA 1m");
    const char *time = strstr(text, "time       about 4m4"), *last = strstr(text, "step 9/9  loss");
    check(c, text == first && first < due && due < time && time < within && within < last, "plain lines: got\n%s",
          text);
    int lines = 0;
    for (const char* at = text; *at; at++) lines += *at == '\n';
    check(c, lines == 5 && strstr(text, "tok/s  ETA "), "a line of every step is written:\n%s", text);
    free(text);
    fclose(f);
}

// A reader that stops: the first line waits and later ones are dropped at once; a note says how many are missing.
static void test_progress_stopped(Checks* c) {
    int ends[2];
    must(pipe(ends) == 0, "pipe", NULL);
    fill_pipe(ends[1]);
    FILE* f = fdopen(ends[1], "w");
    Progress p = progress_new(f, false);
    progress_text(&p, "first");
    progress_text(&p, "second");
    check(c, p.failed == EAGAIN && p.stopped && p.missing == 2 && !p.quiet, "two lines: %d missing, errno %d",
          (int)p.missing, p.failed);
    empty_pipe(ends[0]);
    progress_text(&p, "third");
    progress_text(&p, "fourth");
    char text[256] = "";
    check(c, read(ends[0], text, sizeof text - 1) > 0
             && strcmp(text, "(2 lines are missing here: the output was not read)\nthird\nfourth\n") == 0,
          "after the reader continues: %s", text);
    close(ends[0]);
    signal(SIGPIPE, SIG_IGN);
    progress_text(&p, "fifth");
    check(c, p.failed == EPIPE && p.quiet, "a closed pipe: errno %d", p.failed);
    signal(SIGPIPE, SIG_DFL);
    fclose(f);
}

// The output of one line of progress_text. free()
static char* styled_text(ProgressStyle style, bool live, const char* text) {
    FILE* f = tmpfile();
    must(f != NULL, "tmpfile", NULL);
    Progress p = progress_new(f, false);
    p.live = live;
    p.style = style;
    progress_text(&p, "%s", text);
    char* shown = text_of(f);
    fclose(f);
    return shown;
}

// Facts are dim, results bold; text that is wrapped has all its words, in lines that fit.
static void test_progress_styles(Checks* c) {
    static const char fact[] = "data       shards/with/a/name_*.bin: 12 shards, 1.2G tokens, 0.12 epochs of them, "
                               "shuffled";
    for (int color = 0; color < 2; color++) {
        setenv("NO_COLOR", color ? "" : "1", 1);
        char *plain = styled_text(PROGRESS_FACT, false, fact), *live = styled_text(PROGRESS_FACT, true, fact);
        char *result = styled_text(PROGRESS_RESULT, true, "loss 2"), *command = styled_text(PROGRESS_PLAIN, true, fact);
        check(c, strncmp(plain, fact, sizeof fact - 1) == 0, "a fact in a file: %s", plain);
        check(c, strncmp(command, fact, sizeof fact - 1) == 0, "a command is not wrapped: %s", command);
        check(c, strstr(live, "\n           them, shuffled"), "a fact continues below its first word: %s", live);
        check(c, (strncmp(live, "\033[2mdata", 8) == 0) == color && (strstr(live, "\033[0m\n") != NULL) == color,
              "a fact on a terminal, color %d: %s", color, live);
        check(c, strcmp(result, color ? "\033[1mloss 2\033[0m\n" : "loss 2\n") == 0, "color %d: %s", color, result);
        free(plain), free(live), free(result), free(command);
    }
    setenv("NO_COLOR", "1", 1);
}

// Live lines must be narrower than the terminal, at every width.
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
    must(out != NULL, "fdopen", NULL);
    Progress p = progress_new(out, false);
    p.live = true;
    p.announced = true;   // a text line may wrap
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

// ---------------------------------------------------------------------------------------------
// Options that depend on the build

static void test_threads(Checks* c) {
    static const struct { char* n; bool many; } cases[] = {{"0", false}, {"1", false}, {"2", true}};
    for (size_t i = 0; i < countof(cases); i++) {
        char* argv[] = {"train_gpt_tost", "sample", "--threads", cases[i].n, NULL};
        Options o;
        TostError err = {{0}};
        const bool ok = options_parse(&o, 4, argv, &fake, NULL, &err);
        if (cases[i].many && !THREADS_MANY)
            check_refused(c, ok, &err, "built without OpenMP", "more than one thread");
        else check(c, ok, "--threads %s: %s", cases[i].n, err.text);
        options_free(&o);
    }
}

int main(void) {
    Checks c = {.suite = "run"};
    test_schedule(&c);
    test_outlier_detector(&c);
    test_log_rows(&c);
    test_pending_rows(&c);
    test_row_text(&c);
    test_log_fresh(&c);
    test_log_resume(&c);
    test_mfu(&c);
    test_progress(&c);
    test_progress_plain(&c);
    test_progress_stopped(&c);
    test_progress_styles(&c);
    test_progress_width(&c);
    test_threads(&c);
    return checks_verdict(&c);
}
