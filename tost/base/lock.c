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

// Describes the process that has the lock, from the note in the file: "process 4711", followed by " on HOST" if that is
// another machine; "another process" if there is no note.
static void name_holder(char text[2 * NOTE_BYTES], int fd) {
    char note[NOTE_BYTES], host[NOTE_BYTES], here[NOTE_BYTES] = "";
    long id;
    const ssize_t n = pread(fd, note, sizeof note - 1, 0);
    note[n > 0 ? n : 0] = 0;
    const int fields = sscanf(note, "%ld %127s", &id, host);
    if (gethostname(here, sizeof here - 1) != 0) here[0] = 0;
    if (fields < 1) snprintf(text, 2 * NOTE_BYTES, "another process");
    else if (fields < 2 || strcmp(host, here) == 0) snprintf(text, 2 * NOTE_BYTES, "process %ld", id);
    else snprintf(text, 2 * NOTE_BYTES, "process %ld on %s", id, host);
}

// Writes process id and host, for error messages of other processes. Failure is harmless.
static void write_note(int fd) {
    char host[NOTE_BYTES] = "";
    if (gethostname(host, sizeof host - 1) != 0) host[0] = 0;
    if (ftruncate(fd, 0) == 0) dprintf(fd, "%ld %s\n", (long)getpid(), host);
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
            char who[2 * NOTE_BYTES];
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
