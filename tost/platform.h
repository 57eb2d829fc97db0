// platform.h: what has another name on macOS and the BSDs than on Linux.
#ifndef TOST_PLATFORM_H
#define TOST_PLATFORM_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// Makes the data of a file, or the entries of a folder, durable. fsync of macOS does not empty the disk's write cache.
static inline bool sync_file(int fd) {
#ifdef F_FULLFSYNC
    if (fcntl(fd, F_FULLFSYNC) == 0) return true;   // not supported by all file systems
#endif
    return fsync(fd) == 0;
}

static inline struct timespec modified_at(const struct stat* st) {
#ifdef __APPLE__
    return st->st_mtimespec;
#else
    return st->st_mtim;
#endif
}

// Exchanges two names atomically. Names are relative to the open folders, which may be AT_FDCWD. False, with errno, if
// the system or the file system cannot do that.
static inline bool exchange_names(int dir_a, const char* a, int dir_b, const char* b) {
#if defined(RENAME_SWAP)
    return renameatx_np(dir_a, a, dir_b, b, RENAME_SWAP) == 0;
#elif defined(RENAME_EXCHANGE)
    return renameat2(dir_a, a, dir_b, b, RENAME_EXCHANGE) == 0;
#else
    (void)dir_a, (void)a, (void)dir_b, (void)b;
    return false;
#endif
}

#endif
