// faults.c: a library for LD_PRELOAD that counts and records the calls with which a program changes files. At a chosen
// call it kills the program, makes the call fail, or performs half of it.
//
//   TORTURE_AT=N         the call to act on, counted from 1; without it calls are only recorded
//   TORTURE_ONLY=TEXT    count only calls with TEXT in their path
//   TORTURE_DO=before    SIGKILL before the call             after    SIGKILL after the call
//              half      SIGKILL after half of the bytes of a write (other calls: before)
//              fail:E    the call fails once with errno E    stay:E   this call and all later ones fail
//              fill:E    half of the bytes of a write are written, then like stay
//              short     a write writes half of its bytes and returns that number
//              signal:S  raise signal S before the call      two:S    raise SIGUSR1, then S
//   TORTURE_JOURNAL=FILE a record per call: see journal.py
//
// Counted: open for writing, mkdir, rename, unlink, rmdir, and write, fsync, ftruncate and close of files opened for
// writing; opening and syncing folders. Not counted: stdout, stderr and files opened for reading. The writes of libc's
// streams cannot be interposed; fopen therefore returns a stream of this library, which like glibc's repeats partial
// writes until a write fails.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FDS = 1024, PATH_CAP = 512, STDERR_END = 3 };

// An interposer can keep its state only in global variables.
static struct {
    bool  ready;
    long  at, count;             // the call to act on; number of calls so far
    const char* only;            // "": all calls match
    long  matched;               // number of matching calls so far
    bool  acted;
    char  fault[16];             // TORTURE_DO up to ':'
    int   number;                // errno or signal
    int   journal;               // -1: none
    long  opened;                // numbers openings, because descriptors are reused
    struct { long id; bool folder; char path[PATH_CAP]; FILE* stream; } fd[FDS];   // id 0: not tracked
} self;

// The function of libc
#define REAL(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

__attribute__((constructor))
static void set_up(void) {
    if (self.ready) return;
    self.ready = true;
    const char *at = getenv("TORTURE_AT"), *what = getenv("TORTURE_DO"), *only = getenv("TORTURE_ONLY"),
               *journal = getenv("TORTURE_JOURNAL");
    self.at = at ? atol(at) : 0;
    self.only = only ? only : "";
    if (what) sscanf(what, "%15[a-z]:%d", self.fault, &self.number);
    self.journal = -1;
    if (!journal) return;
    const int low = REAL(open)(journal, O_WRONLY | O_CREAT | O_APPEND, 0666);
    self.journal = fcntl(low, F_DUPFD_CLOEXEC, FDS);   // beyond the program's descriptors
    REAL(close)(low);
}

// ---- The journal: lines "CALL\tNAME\tID\tPATH\tOTHER\tOFFSET\tBYTES"; after a write, its bytes and a newline --------

static void record(const char* name, long id, const char* path, const char* other, long long offset, const void* data,
                   size_t n) {
    char line[2 * PATH_CAP + 160];
    if (self.journal < 0) return;
    const int saved = errno;
    const int length = snprintf(line, sizeof line, "%ld\t%s\t%ld\t%s\t%s\t%lld\t%zu\n", self.count, name, id, path,
                                other, offset, n);
    bool ok = REAL(write)(self.journal, line, (size_t)length) == length;
    if (n) ok = ok && REAL(write)(self.journal, data, n) == (ssize_t)n && REAL(write)(self.journal, "\n", 1) == 1;
    if (!ok) abort();   // a journal with gaps is useless
    errno = saved;
}

static void kill_here(const char* when, const char* name, const char* path) {
    char text[64];
    snprintf(text, sizeof text, "kill-%s-%s", when, name);
    record(text, 0, path, "", 0, NULL, 0);
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

// Records the total number of calls if the program exits by itself.
__attribute__((destructor))
static void record_end(void) { record("end", 0, "", "", 0, NULL, 0); }

// ---- Faults ---------------------------------------------------------------------------------------------------------

typedef enum { DO, DO_HALF, DO_THEN_KILL, DO_HALF_THEN_KILL, FAIL_CALL } Action;

static bool fault_is(const char* name) { return strcmp(self.fault, name) == 0; }

// True for calls that succeed on a full disk, because they free space.
static bool frees_space(const char* name) {
    const bool full = self.number == ENOSPC || self.number == EDQUOT;
    return full && (strcmp(name, "unlink") == 0 || strcmp(name, "rmdir") == 0 || strcmp(name, "close") == 0);
}

static Action next_action(const char* name, const char* path) {
    set_up();
    self.count++;
    const bool write = strcmp(name, "write") == 0, matches = strstr(path, self.only);
    self.matched += matches;
    const bool here = matches && self.matched == self.at;
    if (!here && !(self.acted && (fault_is("stay") || fault_is("fill")) && !frees_space(name))) return DO;
    if (here) {
        self.acted = true;
        if (fault_is("before") || (fault_is("half") && !write)) kill_here("before", name, path);
        if (fault_is("two")) raise(SIGUSR1);
        if (fault_is("signal") || fault_is("two")) raise(self.number);
        if (fault_is("short")) record("fault", 0, path, name, 0, NULL, 0);
        if (fault_is("half")) return DO_HALF_THEN_KILL;
        if (fault_is("after")) return DO_THEN_KILL;
        if (write && (fault_is("short") || fault_is("fill"))) return DO_HALF;
        if (fault_is("short") || fault_is("signal") || fault_is("two")) return DO;
    }
    record("fault", self.number, path, name, 0, NULL, 0);
    errno = self.number;
    return FAIL_CALL;
}

// Called after each call that was performed.
static void finish(Action a, const char* name, const char* path) {
    if (a == DO_THEN_KILL) kill_here("after", name, path);
    if (a == DO_HALF_THEN_KILL) kill_here("half", name, path);
}

static bool tracked(int fd) { return fd >= STDERR_END && fd < FDS && self.fd[fd].id > 0; }

// ---- Calls on descriptors -------------------------------------------------------------------------------------------

// Performs a call unless it must fail. The other arguments record it if it succeeds.
#define COUNTED(name, path, perform, ...)           \
    do {                                            \
        const Action act = next_action(name, path); \
        if (act == FAIL_CALL) return -1;            \
        const int rc = perform;                     \
        if (rc == 0) record(__VA_ARGS__);           \
        finish(act, name, path);                    \
        return rc;                                  \
    } while (0)

static int open_counted(const char* path, int flags, mode_t mode) {
    const bool writes = (flags & O_ACCMODE) != O_RDONLY, folder = flags & O_DIRECTORY;
    if (!writes && !folder) return REAL(open)(path, flags, mode);
    const Action a = next_action("open", path);
    if (a == FAIL_CALL) return -1;
    const int fd = REAL(open)(path, flags, mode);
    if (fd >= STDERR_END && fd < FDS) {
        self.fd[fd].id = ++self.opened;
        self.fd[fd].stream = NULL;
        self.fd[fd].folder = folder;
        snprintf(self.fd[fd].path, PATH_CAP, "%s", path);
        const char* how = folder ? "folder" : flags & O_TRUNC ? "new" : flags & O_CREAT ? "append" : "change";
        record(how, self.opened, path, "", 0, NULL, 0);
    }
    finish(a, "open", path);
    return fd;
}

int open(const char* path, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return open_counted(path, flags, mode);
}

ssize_t write(int fd, const void* data, size_t n) {
    if (!tracked(fd)) return REAL(write)(fd, data, n);
    const char* path = self.fd[fd].path;
    const Action a = next_action("write", path);
    if (a == FAIL_CALL) return -1;
    struct stat st;
    const bool append = fcntl(fd, F_GETFL) & O_APPEND;
    const off_t offset = append && fstat(fd, &st) == 0 ? st.st_size : lseek(fd, 0, SEEK_CUR);
    const ssize_t got = REAL(write)(fd, data, a == DO_HALF || a == DO_HALF_THEN_KILL ? (n + 1) / 2 : n);
    if (got > 0) record("write", self.fd[fd].id, path, "", offset, data, (size_t)got);
    finish(a, "write", path);
    return got;
}

int fsync(int fd) {
    if (!tracked(fd)) return REAL(fsync)(fd);
    COUNTED("fsync", self.fd[fd].path, REAL(fsync)(fd), "fsync", self.fd[fd].id, self.fd[fd].path, "", 0, NULL, 0);
}

int ftruncate(int fd, off_t size) {
    if (!tracked(fd)) return REAL(ftruncate)(fd, size);
    COUNTED("ftruncate", self.fd[fd].path, REAL(ftruncate)(fd, size), "truncate", self.fd[fd].id, self.fd[fd].path, "",
            size, NULL, 0);
}

// If close fails, the descriptor is closed anyway, as on Linux.
int close(int fd) {
    if (!tracked(fd) || self.fd[fd].folder) {
        if (tracked(fd)) self.fd[fd].id = 0;
        return REAL(close)(fd);
    }
    const Action a = next_action("close", self.fd[fd].path);
    const int why = errno;
    self.fd[fd].id = 0;
    const int rc = REAL(close)(fd);
    finish(a, "close", self.fd[fd].path);
    if (a == FAIL_CALL) errno = why;
    return a == FAIL_CALL ? -1 : rc;
}

// ---- Calls on names -------------------------------------------------------------------------------------------------

int rename(const char* from, const char* to) {
    COUNTED("rename", to, REAL(rename)(from, to), "rename", 0, from, to, 0, NULL, 0);
}
int renameat2(int a, const char* from, int b, const char* to, unsigned flags) {
    COUNTED("rename", to, REAL(renameat2)(a, from, b, to, flags), "exchange", 0, from, to, 0, NULL, 0);
}
int mkdir(const char* path, mode_t mode) {
    COUNTED("mkdir", path, REAL(mkdir)(path, mode), "mkdir", 0, path, "", 0, NULL, 0);
}
int unlink(const char* path) { COUNTED("unlink", path, REAL(unlink)(path), "unlink", 0, path, "", 0, NULL, 0); }
int rmdir(const char* path) { COUNTED("rmdir", path, REAL(rmdir)(path), "rmdir", 0, path, "", 0, NULL, 0); }

// ---- Streams --------------------------------------------------------------------------------------------------------

static int fd_of(const void* cookie) { return (int)(intptr_t)cookie; }

static ssize_t stream_read(void* cookie, char* data, size_t n) { return read(fd_of(cookie), data, n); }

static ssize_t stream_write(void* cookie, const char* data, size_t n) {
    size_t sum = 0;
    while (sum < n) {
        const ssize_t got = write(fd_of(cookie), data + sum, n - sum);
        if (got < 0) break;
        sum += (size_t)got;
    }
    return (ssize_t)sum;
}

static int stream_seek(void* cookie, off64_t* at, int whence) {
    const off64_t to = lseek64(fd_of(cookie), *at, whence);
    if (to >= 0) *at = to;
    return to < 0 ? -1 : 0;
}

static int stream_close(void* cookie) { return close(fd_of(cookie)); }

FILE* fdopen(int fd, const char* mode) {
    if (!tracked(fd)) return REAL(fdopen)(fd, mode);
    const cookie_io_functions_t calls = {stream_read, stream_write, stream_seek, stream_close};
    return self.fd[fd].stream = fopencookie((void*)(intptr_t)fd, mode, calls);
}

FILE* fopen(const char* path, const char* mode) {
    const int both = strchr(mode, '+') ? O_RDWR : O_WRONLY;
    if (mode[0] == 'r' && both != O_RDWR) return REAL(fopen)(path, mode);
    const int flags = both | (mode[0] == 'w' ? O_CREAT | O_TRUNC : mode[0] == 'a' ? O_CREAT | O_APPEND : 0)
                      | (strchr(mode, 'x') ? O_EXCL : 0);
    const int fd = open_counted(path, flags, 0666);
    return fd < 0 ? NULL : fdopen(fd, mode);
}

int dprintf(int fd, const char* fmt, ...) {
    char* text = NULL;
    va_list ap;
    va_start(ap, fmt);
    const int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    const int written = n < 0 ? -1 : (int)write(fd, text, (size_t)n);
    free(text);
    return written;
}

int fileno(FILE* stream) {
    for (int fd = STDERR_END; fd < FDS; fd++)
        if (self.fd[fd].id > 0 && self.fd[fd].stream == stream) return fd;
    return REAL(fileno)(stream);
}
