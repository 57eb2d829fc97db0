// lock.c: flock on run.lock; on NFS, the lock is on the server and applies to all clients.
#include "lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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

// False if the process that had the lock has removed the file in the meantime.
static bool same_file(int fd, const char* path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

LockResult lock_take(Lock* lock, const char* dir, TostError* err) {
    char* path = path_join(dir, "run.lock");
    int fd, unsupported = 0;
    for (;;) {
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0) {
            tost_error(err, "%s: cannot be created, so the folder cannot be locked: %s", path, strerror(errno));
            free(path);
            return LOCK_FAILED;
        }
        unsupported = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
        if (unsupported == EWOULDBLOCK) {
            char who[2 * NOTE_BYTES];
            name_holder(who, fd);
            tost_error(err, "%s is in use by %s: wait until it ends, stop it, or give another --out", dir, who);
            close(fd);
            free(path);
            return LOCK_BUSY;
        }
        if (unsupported != EINTR && same_file(fd, path)) break;
        close(fd);
    }
    if (!unsupported) write_note(fd);
    *lock = (Lock){.path = path, .fd = fd, .unsupported = unsupported};
    return LOCK_TAKEN;
}

// Removes the file before unlocking: a process that opened it earlier notices in same_file.
void lock_release(Lock* lock) {
    if (!lock->path) return;
    unlink(lock->path);
    close(lock->fd);
    free(lock->path);
    *lock = (Lock){0};
}
