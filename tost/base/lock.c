// lock.c: flock on run.lock; on NFS, the lock is on the server and applies to all clients.
#include "base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"

static const char file_name[] = "run.lock";
enum { NOTE_BYTES = 128 };

// Describes the process that has the lock, as it did itself in the file.
static void name_holder(char text[NOTE_BYTES], int fd) {
    const ssize_t n = pread(fd, text, NOTE_BYTES - 1, 0);
    if (n > 0) text[n] = 0;
    else snprintf(text, NOTE_BYTES, "another process");
}

// Writes process id and host, for error messages of other processes. Failure is harmless.
static void write_note(int fd) {
    char host[NOTE_BYTES] = "";
    gethostname(host, sizeof host - 1);
    if (ftruncate(fd, 0) == 0) dprintf(fd, "process %ld on %s", (long)getpid(), host);
}

// False if the file was removed or replaced in the meantime.
static bool same_file(int fd, const char* path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

static LockResult take(Lock* lock, const char* folder, TostError* err) {
    for (;;) {
        lock->fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (lock->fd < 0) {
            tost_error(err, "%s: cannot be created, so the folder cannot be locked: %s", lock->path, strerror(errno));
            return LOCK_FAILED;
        }
        lock->unsupported = flock(lock->fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
        if (lock->unsupported == EWOULDBLOCK) {
            char who[NOTE_BYTES];
            name_holder(who, lock->fd);
            tost_error(err, "%s is in use by %s: wait until it ends, stop it, or give another --out", folder, who);
            close(lock->fd);
            return LOCK_BUSY;
        }
        if (lock->unsupported != EINTR && same_file(lock->fd, lock->path)) return LOCK_TAKEN;
        close(lock->fd);
    }
}

LockResult lock_take(Lock* lock, const char* folder, TostError* err) {
    *lock = (Lock){.path = path_join(folder, file_name)};
    const LockResult result = take(lock, folder, err);
    if (result == LOCK_TAKEN && !lock->unsupported) write_note(lock->fd);
    if (result == LOCK_TAKEN) return result;
    free(lock->path);
    *lock = (Lock){0};
    return result;
}

// Removes the file before unlocking: a process that opened it earlier notices in same_file.
void lock_release(Lock* lock) {
    if (!lock->path) return;
    if (same_file(lock->fd, lock->path)) unlink(lock->path);
    close(lock->fd);
    free(lock->path);
    *lock = (Lock){0};
}
