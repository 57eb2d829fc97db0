// faults.c: a library for LD_PRELOAD that counts the calls by which a program changes files, writes them down, and at
// the one that is asked for ends the program, fails, or does half.
//
//   TORTURE_AT=N         the call, counted from 1; without it nothing is done but writing down
//   TORTURE_ONLY=TEXT    only calls with TEXT in their path are counted for it
//   TORTURE_DO=before    SIGKILL before the call is done       after    … after it
//              half      SIGKILL after half of a write's bytes (another call: before it)
//              fail:E    the call fails with errno E, once     stay:E   … and so do all after it
//              fill:E    half of a write's bytes are written, then as stay
//              short     a write writes half of its bytes and says so
//              signal:S  signal S to itself before the call    twice:S  … two of them
//   TORTURE_JOURNAL=FILE what was done, a record a call: see journal.py
//
// Counted: open for writing, mkdir, rename, unlink, rmdir, and of files opened for writing and folders opened for
// syncing write, fsync, ftruncate and close. Standard output and error are left alone, and so are files only read.
// libc's own streams write without a call that could be interposed: fopen gives a stream of this library here, which
// writes as glibc's does, all that it is given, until one write fails.
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

typedef enum { NOTHING, BEFORE, AFTER, HALF, FAIL, STAY, FILL, SHORT, SIGNAL, TWICE } What;

static const char* const what_names[] = {"", "before", "after", "half", "fail", "stay", "fill", "short", "signal",
                                         "twice"};

// An interposer has no other place for its state than the process.
static struct {
    bool  ready;
    long  at, count;             // the call to act on; calls so far
    const char* only;            // NULL: all calls count for `at`
    long  matched;               // calls so far that do
    bool  acted;
    What  what;
    int   number;                // errno or signal
    int   journal;               // -1: none
    long  opened;                // a number for each opening, since descriptors are used again
    struct { long id; char path[PATH_CAP]; FILE* stream; } fd[FDS];   // id 0: not followed
} self;

// The next definition of a function: libc's.
#define REAL(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

__attribute__((constructor))
static void set_up(void) {
    if (self.ready) return;
    self.ready = true;
    const char *at = getenv("TORTURE_AT"), *what = getenv("TORTURE_DO"), *journal = getenv("TORTURE_JOURNAL");
    self.at = at ? atol(at) : 0;
    self.only = getenv("TORTURE_ONLY");
    for (int w = BEFORE; what && w <= TWICE; w++) {
        const size_t n = strlen(what_names[w]);
        if (strncmp(what, what_names[w], n) != 0 || (what[n] && what[n] != ':')) continue;
        self.what = (What)w;
        self.number = what[n] ? atoi(what + n + 1) : 0;
    }
    self.journal = -1;
    if (!journal) return;
    const int low = REAL(open)(journal, O_WRONLY | O_CREAT | O_APPEND, 0666);
    self.journal = fcntl(low, F_DUPFD_CLOEXEC, FDS);   // out of the way of the program's descriptors
    REAL(close)(low);
}

// ---------------------------------------------------------------------------------------------
// The journal: a line "CALL\tNAME\tID\tPATH\tOTHER\tOFFSET\tBYTES", and after a write its bytes and a line end

static void note(const char* name, long id, const char* path, const char* other, long long offset, const void* data,
                 size_t n) {
    char line[2 * PATH_CAP + 160];
    if (self.journal < 0) return;
    const int saved = errno;
    const int length = snprintf(line, sizeof line, "%ld\t%s\t%ld\t%s\t%s\t%lld\t%zu\n", self.count, name, id, path,
                                other, offset, n);
    bool ok = REAL(write)(self.journal, line, (size_t)length) == length;
    if (n) ok = ok && REAL(write)(self.journal, data, n) == (ssize_t)n && REAL(write)(self.journal, "\n", 1) == 1;
    if (!ok) abort();   // a journal with a gap would prove nothing
    errno = saved;
}

static void end_here(const char* when, const char* name, const char* path) {
    char text[64];
    snprintf(text, sizeof text, "kill-%s-%s", when, name);
    note(text, 0, path, "", 0, NULL, 0);
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

// The number of calls there were, where the program comes to its end.
__attribute__((destructor))
static void sum_up(void) { note("end", 0, "", "", 0, NULL, 0); }

// ---------------------------------------------------------------------------------------------
// What happens at a call

typedef enum { DO, DO_HALF, DO_THEN_END, DO_HALF_THEN_END, REFUSE } Verdict;

// A full disk still lets go of what it holds.
static bool frees(const char* name) {
    const bool full = self.number == ENOSPC || self.number == EDQUOT;
    return full && (strcmp(name, "unlink") == 0 || strcmp(name, "rmdir") == 0 || strcmp(name, "close") == 0);
}

static Verdict judge(const char* name, const char* path) {
    set_up();
    self.count++;
    const bool write = strcmp(name, "write") == 0, matches = !self.only || strstr(path, self.only);
    self.matched += matches;
    const bool here = matches && self.at > 0 && self.matched == self.at;
    if (self.acted && (self.what == STAY || self.what == FILL) && !frees(name)) {
        note("fault", self.number, path, name, 0, NULL, 0);
        errno = self.number;
        return REFUSE;
    }
    if (!here) return DO;
    self.acted = true;
    switch (self.what) {
        case NOTHING: return DO;
        case BEFORE:  end_here("before", name, path); break;
        case AFTER:   return DO_THEN_END;
        case HALF:    if (write) return DO_HALF_THEN_END;
                      end_here("before", name, path); break;
        case SHORT:   note("fault", 0, path, name, 0, NULL, 0); return write ? DO_HALF : DO;
        case FILL:    if (write) return DO_HALF;
                      break;
        case TWICE:   raise(self.number); raise(self.number); return DO;
        case SIGNAL:  raise(self.number); return DO;
        case FAIL:
        case STAY:    break;
    }
    note("fault", self.number, path, name, 0, NULL, 0);
    errno = self.number;
    return REFUSE;
}

// After the call, done with success or not.
static void done(Verdict v, const char* name, const char* path) {
    if (v == DO_THEN_END) end_here("after", name, path);
    if (v == DO_HALF_THEN_END) end_here("half", name, path);
}

static bool followed(int fd) { return fd >= STDERR_END && fd < FDS && self.fd[fd].id > 0; }

// ---------------------------------------------------------------------------------------------
// Calls on descriptors

static int open_counted(const char* path, int flags, mode_t mode) {
    const bool writes = (flags & O_ACCMODE) != O_RDONLY, folder = flags & O_DIRECTORY;
    if (!writes && !folder) return REAL(open)(path, flags, mode);
    const Verdict v = judge("open", path);
    if (v == REFUSE) return -1;
    const int fd = REAL(open)(path, flags, mode);
    if (fd >= STDERR_END && fd < FDS) {
        self.fd[fd].id = ++self.opened;
        self.fd[fd].stream = NULL;
        snprintf(self.fd[fd].path, PATH_CAP, "%s", path);
        const char* how = folder ? "folder" : flags & O_TRUNC ? "new" : flags & O_CREAT ? "append" : "change";
        note(how, self.opened, path, "", 0, NULL, 0);
    }
    done(v, "open", path);
    return fd;
}

static ssize_t write_counted(int fd, const void* data, size_t n, off_t at) {
    const char* path = self.fd[fd].path;
    const Verdict v = judge("write", path);
    if (v == REFUSE) return -1;
    struct stat st;
    const bool append = fcntl(fd, F_GETFL) & O_APPEND;
    const off_t offset = at >= 0 ? at : append && fstat(fd, &st) == 0 ? st.st_size : lseek(fd, 0, SEEK_CUR);
    const size_t wanted = v == DO_HALF || v == DO_HALF_THEN_END ? (n + 1) / 2 : n;
    const ssize_t got = at >= 0 ? REAL(pwrite)(fd, data, wanted, at) : REAL(write)(fd, data, wanted);
    if (got > 0) note("write", self.fd[fd].id, path, "", offset, data, (size_t)got);
    done(v, "write", path);
    return got;
}

ssize_t write(int fd, const void* data, size_t n) {
    return followed(fd) ? write_counted(fd, data, n, -1) : REAL(write)(fd, data, n);
}

ssize_t pwrite(int fd, const void* data, size_t n, off_t at) {
    return followed(fd) ? write_counted(fd, data, n, at) : REAL(pwrite)(fd, data, n, at);
}

static int sync_counted(int fd, int (*sync)(int)) {
    if (!followed(fd)) return sync(fd);
    const Verdict v = judge("fsync", self.fd[fd].path);
    if (v == REFUSE) return -1;
    const int rc = sync(fd);
    if (rc == 0) note("fsync", self.fd[fd].id, self.fd[fd].path, "", 0, NULL, 0);
    done(v, "fsync", self.fd[fd].path);
    return rc;
}

int fsync(int fd) { return sync_counted(fd, REAL(fsync)); }
int fdatasync(int fd) { return sync_counted(fd, REAL(fdatasync)); }

int ftruncate(int fd, off_t size) {
    if (!followed(fd)) return REAL(ftruncate)(fd, size);
    const Verdict v = judge("ftruncate", self.fd[fd].path);
    if (v == REFUSE) return -1;
    const int rc = REAL(ftruncate)(fd, size);
    if (rc == 0) note("truncate", self.fd[fd].id, self.fd[fd].path, "", size, NULL, 0);
    done(v, "ftruncate", self.fd[fd].path);
    return rc;
}

// Where close fails, the descriptor is gone all the same, as on Linux.
int close(int fd) {
    if (!followed(fd)) return REAL(close)(fd);
    const Verdict v = judge("close", self.fd[fd].path);
    const int why = errno;
    self.fd[fd].id = 0;
    const int rc = REAL(close)(fd);
    done(v, "close", self.fd[fd].path);
    if (v == REFUSE) errno = why;
    return v == REFUSE ? -1 : rc;
}

// ---------------------------------------------------------------------------------------------
// Calls on names

static int rename_counted(const char* from, const char* to, unsigned flags) {
    const Verdict v = judge("rename", to);
    if (v == REFUSE) return -1;
    const int rc = flags ? REAL(renameat2)(AT_FDCWD, from, AT_FDCWD, to, flags) : REAL(rename)(from, to);
    if (rc == 0) note(flags & RENAME_EXCHANGE ? "exchange" : "rename", 0, from, to, 0, NULL, 0);
    done(v, "rename", to);
    return rc;
}

int rename(const char* from, const char* to) { return rename_counted(from, to, 0); }

int renameat2(int a, const char* from, int b, const char* to, unsigned flags) {
    if (a != AT_FDCWD || b != AT_FDCWD) abort();   // not known here: better no test than a false one
    return rename_counted(from, to, flags);
}

int mkdir(const char* path, mode_t mode) {
    const Verdict v = judge("mkdir", path);
    if (v == REFUSE) return -1;
    const int rc = REAL(mkdir)(path, mode);
    if (rc == 0) note("mkdir", 0, path, "", 0, NULL, 0);
    done(v, "mkdir", path);
    return rc;
}

static int remove_counted(const char* name, const char* path, int (*call)(const char*)) {
    const Verdict v = judge(name, path);
    if (v == REFUSE) return -1;
    const int rc = call(path);
    if (rc == 0) note(name, 0, path, "", 0, NULL, 0);
    done(v, name, path);
    return rc;
}

int unlink(const char* path) { return remove_counted("unlink", path, REAL(unlink)); }
int rmdir(const char* path) { return remove_counted("rmdir", path, REAL(rmdir)); }

int remove(const char* path) {
    struct stat st;
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) ? rmdir(path) : unlink(path);
}

// ---------------------------------------------------------------------------------------------
// open in all its names

#define OPEN(name)                                              \
    int name(const char* path, int flags, ...) {                \
        va_list ap;                                             \
        va_start(ap, flags);                                    \
        const mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0; \
        va_end(ap);                                             \
        return open_counted(path, flags, mode);                 \
    }
OPEN(open)
OPEN(open64)

// ---------------------------------------------------------------------------------------------
// Streams

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
    if (!followed(fd)) return REAL(fdopen)(fd, mode);
    const cookie_io_functions_t calls = {stream_read, stream_write, stream_seek, stream_close};
    return self.fd[fd].stream = fopencookie((void*)(intptr_t)fd, mode, calls);
}

FILE* fopen(const char* path, const char* mode) {
    const int both = strchr(mode, '+') ? O_RDWR : O_WRONLY;
    if (mode[0] == 'r' && both != O_RDWR) return REAL(fopen)(path, mode);
    const int flags = both | (mode[0] == 'w' ? O_CREAT | O_TRUNC : mode[0] == 'a' ? O_CREAT | O_APPEND : 0);
    const int fd = open_counted(path, flags, 0666);
    return fd < 0 ? NULL : fdopen(fd, mode);
}
FILE* fopen64(const char* path, const char* mode) { return fopen(path, mode); }

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
