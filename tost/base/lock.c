// lock.c: flock on run.lock; on NFS, the lock is on the server and applies to all clients.
#include "base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char file_name[] = "run.lock";
enum { NOTE_BYTES = 128 };

// Writes process id and host, for error messages of other processes. Ignores failures, but returns false if the file
// system does not support random-access writes, as rclone's default mount: the last line writes the first byte again.
static bool write_note(int fd) {
    char host[NOTE_BYTES] = "";
    struct stat st;
    gethostname(host, sizeof host - 1);
    if (fstat(fd, &st) != 0 || st.st_nlink != 1) return true;
    if (ftruncate(fd, 0) == 0) dprintf(fd, "process %ld on %s", (long)getpid(), host);
    return pwrite(fd, "p", 1, 0) == 1 || errno != ESPIPE;
}

// False if the file was removed or replaced in the meantime.
static bool same_file(int fd, const char* path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

LockResult lock_take(Lock* lock, const char* folder, TostError* err) {
    *lock = (Lock){0};
    const Path path = path_in(folder, file_name);
    for (;;) {
        const int fd = open(path.text, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0) {
            tost_error(err, "%s: cannot be created, so the folder cannot be locked: %s", path.text, strerror(errno));
            return LOCK_FAILED;
        }
        const int why = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
        if (why != EWOULDBLOCK && why != EINTR && same_file(fd, path.text)) {
            *lock = (Lock){path, fd, why};
            if (write_note(fd)) return LOCK_TAKEN;
            lock_release(lock);
            tost_error(err, "%s: the file system does not support random-access writes: give a folder on another, or "
                       "mount it with a cache (rclone mount --vfs-cache-mode writes)", path.text);
            return LOCK_FAILED;
        }
        char who[NOTE_BYTES] = "another process";
        const ssize_t n = pread(fd, who, NOTE_BYTES - 1, 0);   // what that process wrote
        if (n > 0) who[n] = 0;
        close(fd);
        if (why != EWOULDBLOCK) continue;   // interrupted, or the file was removed meanwhile
        tost_error(err, "%s is in use by %s: wait until it ends, stop it, or give another --out", folder, who);
        return LOCK_BUSY;
    }
}

void lock_moved(Lock* lock, const char* folder) { lock->path = path_in(folder, file_name); }

// Removes the file before unlocking: a process that opened it earlier notices in same_file.
void lock_release(Lock* lock) {
    if (!lock->path.text[0]) return;
    if (same_file(lock->fd, lock->path.text)) unlink(lock->path.text);
    close(lock->fd);
    *lock = (Lock){0};
}
