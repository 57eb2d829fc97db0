// platform.h: hides differences between Linux, macOS and the BSDs.
#pragma once

#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

// Makes the data of a file, or the entries of a folder, durable. On macOS, fsync does not flush the disk's write cache.
static inline bool sync_file(int fd) {
#ifdef F_FULLFSYNC
    if (fcntl(fd, F_FULLFSYNC) == 0) return true;   // not supported by all file systems
#endif
    return fsync(fd) == 0;
}

#ifdef __APPLE__
#define st_mtim st_mtimespec   // of struct stat
#endif
