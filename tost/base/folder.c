// folder.c: open folders, and folders by path.
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/memory.h"
#include "base/platform.h"

int folder_fd(const Folder* in) { return in ? in->fd : AT_FDCWD; }

char* folder_path(const Folder* in, const char* name) { return in ? path_join(in->path, name) : xstrdup(name); }

bool folder_open(Folder* f, const Folder* in, const char* name, TostError* err) {
    *f = (Folder){.fd = openat(folder_fd(in), name, O_RDONLY | O_DIRECTORY | O_CLOEXEC), .path = folder_path(in, name)};
    if (f->fd >= 0) return true;
    const int why = errno;
    tost_error(err, "%s: the folder cannot be opened: %s", f->path, strerror(why));
    free(f->path);
    *f = (Folder){0};
    errno = why;
    return false;
}

void folder_close(Folder* f) {
    if (f->path) close(f->fd);
    free(f->path);
    *f = (Folder){0};
}

bool folder_sync(const Folder* f, TostError* err) {
    return sync_file(f->fd) || errno == EINVAL || errno == EBADF || errno == ENOTSUP   // some file systems cannot
        || tost_error(err, "%s: the folder cannot be synced: %s", f->path, strerror(errno));
}

bool folder_list(PathList* names, const Folder* f, TostError* err) {
    *names = (PathList){0};
    const int fd = openat(f->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);   // with its own read position
    DIR* dir = fd >= 0 ? fdopendir(fd) : NULL;
    int why = dir ? 0 : errno;
    if (!dir && fd >= 0) close(fd);
    for (int cap = 0; dir;) {
        errno = 0;
        const struct dirent* e = readdir(dir);
        if (!e) {
            why = errno;
            break;
        }
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (names->count == cap)
            names->paths = xrealloc(names->paths, (size_t)(cap = cap ? 2 * cap : 16) * sizeof *names->paths);
        names->paths[names->count++] = xstrdup(e->d_name);
    }
    if (dir) closedir(dir);
    if (!why) return true;
    free_paths(names);
    return tost_error(err, "%s: the folder cannot be read: %s", f->path, strerror(why));
}

// NFS and FUSE keep a removed file that a process has open under such a name in its folder.
static bool is_in_use(const char* name) {
    return strncmp(name, ".nfs", 4) == 0 || strncmp(name, ".fuse_hidden", 12) == 0;
}

static bool cannot_remove(const Folder* in, const char* name, int why, TostError* err) {
    char* path = folder_path(in, name);
    tost_error(err, "%s: cannot be removed: %s", path, strerror(why));
    free(path);
    return false;
}

// Removes the files in a folder that are not in use. *left: the number of those that are.
static bool remove_contents(int* left, const Folder* in, const char* name, TostError* err) {
    Folder f;
    PathList names;
    *left = 0;
    if (!folder_open(&f, in, name, err)) return errno == ENOENT || cannot_remove(in, name, errno, err);
    bool ok = folder_list(&names, &f, err);
    for (int i = 0; ok && i < names.count; i++) {
        const bool in_use = is_in_use(names.paths[i]);
        *left += in_use;
        ok = in_use || folder_remove(&f, names.paths[i], err);
    }
    free_paths(&names);
    folder_close(&f);
    return ok;
}

bool folder_remove(const Folder* in, const char* name, TostError* err) {
    enum { MAX_TRIES = 3 };   // removing a file that is in use leaves one with a hidden name
    struct stat st;
    const int at = folder_fd(in);
    int left = 0, why = 0;
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT || cannot_remove(in, name, errno, err);
    const bool dir = S_ISDIR(st.st_mode);
    for (int tries = 0; tries < MAX_TRIES; tries++) {
        if (dir && !remove_contents(&left, in, name, err)) return false;
        if (unlinkat(at, name, dir ? AT_REMOVEDIR : 0) == 0 || errno == ENOENT) return true;
        why = errno;
        if (!dir || (why != ENOTEMPTY && why != EEXIST)) break;
        if (left > 0) return true;
    }
    return cannot_remove(in, name, why, err);
}

// The path of an open folder, relative if it is below the working directory; NULL if it is unknown. free()
static char* descriptor_path(int fd) {
    char path[PATH_MAX], here[PATH_MAX];
#ifdef F_GETPATH
    if (fcntl(fd, F_GETPATH, path) != 0) return NULL;
#else
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return NULL;
    path[length] = 0;
#endif
    const size_t n = getcwd(here, sizeof here) ? strlen(here) : 0;
    return xstrdup(n > 1 && strncmp(path, here, n) == 0 && path[n] == '/' ? path + n + 1 : path);
}

static bool leads_to(const char* path, const struct stat* folder) {
    struct stat st;
    return stat(path, &st) == 0 && st.st_ino == folder->st_ino && st.st_dev == folder->st_dev;
}

FolderState folder_check(Folder* f) {
    struct stat mine;
    if (fstat(f->fd, &mine) != 0 || leads_to(f->path, &mine)) return FOLDER_SAME;
    if (mine.st_nlink == 0) return FOLDER_REMOVED;
    char* now = descriptor_path(f->fd);
    const bool found = now && leads_to(now, &mine);
    char** unused = found ? &f->path : &now;
    free(*unused);
    if (found) f->path = now;
    return found ? FOLDER_MOVED : FOLDER_SAME;
}

// ---------------------------------------------------------------------------------------------
// Folders by path

bool sync_dir(const char* path, TostError* err) {
    Folder f;
    if (!folder_open(&f, NULL, path, err)) return false;
    const bool ok = folder_sync(&f, err);
    folder_close(&f);
    return ok;
}

// A new folder is durable once its parent is synced. Skips parents that are not readable.
static bool sync_parent(const char* path, TostError* err) {
    char* dir = path_dir(path);
    const bool ok = access(dir, R_OK) != 0 || sync_dir(dir, err);
    free(dir);
    return ok;
}

size_t existing_dirs(const char* path) {
    size_t n = strlen(path);
    char* part = xstrdup(path);
    while (n > 0 && (part[n] = 0, !path_exists(part)))   // one component less
        for (n--; n > 0 && part[n] != '/'; n--) {}
    free(part);
    return n;
}

void remove_new_dirs(const char* path, size_t existing) {
    char* part = xstrdup(path);
    for (size_t n = strlen(part); n > existing; part[n] = 0) {
        rmdir(part);   // fails if it is not empty
        for (n--; n > existing && part[n] != '/'; n--) {}
    }
    free(part);
}

bool make_dirs(const char* path, TostError* err) {
    const size_t existing = existing_dirs(path);
    char* part = xstrdup(path);
    bool ok = true;
    for (size_t i = 1; ok; i++) {
        char c = path[i - 1] ? path[i] : 0;
        if (c != '/' && c != 0) continue;
        part[i] = 0;
        const int why = !part[0] || mkdir(part, 0777) == 0 ? 0 : errno;
        if (why && !is_dir(part))
            ok = tost_error(err, "%s: the folder cannot be created: %s", part,
                            why == EEXIST ? "a file has that name" : strerror(why));
        else if (!why && part[0]) ok = sync_parent(part, err);
        if (c == 0) break;
        part[i] = '/';
    }
    free(part);
    if (!ok) remove_new_dirs(path, existing);
    return ok;
}
