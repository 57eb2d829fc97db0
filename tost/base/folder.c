// folder.c: lists, creates and renames folders; syncs them to disk.
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>

#include "base/memory.h"
#include "base/platform.h"

bool folder_list(StringList* names, const char* path, TostError* err) {
    *names = (StringList){0};
    DIR* dir = opendir(path);
    if (!dir) return tost_error(err, "%s: the folder cannot be opened: %s", path, strerror(errno));
    const struct dirent* e;
    while ((errno = 0, e = readdir(dir))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        add_string(names, xstrdup(e->d_name));
    }
    const int why = errno;
    closedir(dir);
    if (!why) return true;
    free_strings(names);
    return tost_error(err, "%s: the folder cannot be read: %s", path, strerror(why));
}

bool sync_dir(const char* path, TostError* err) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool opened = fd >= 0;
    const bool ok = opened ? sync_file(fd) || errno == EINVAL || errno == EBADF || errno == ENOTSUP : errno == EACCES;
    if (!ok)   // some file systems cannot sync folders
        tost_error(err, "%s: the folder cannot be %s: %s", path, opened ? "synced" : "opened", strerror(errno));
    if (opened) close(fd);
    return ok;
}

bool rename_synced(const char* from, const char* to, TostError* err) {
    if (rename(from, to) == 0) return sync_dir(path_above(to).text, err);
    return tost_error(err, "%s: cannot be renamed to %s: %s", from, to, strerror(errno));
}

FILE* create_file(const char* path) {
    FILE* file = fopen(path, "wbxe");
    return file || errno != EEXIST || unlink(path) != 0 ? file : fopen(path, "wbxe");
}

// True if the file is written itself: a device, pipe or link.
static bool is_direct(const char* path) {
    struct stat st;
    return standard_stream(path) || (lstat(path, &st) == 0 && !S_ISREG(st.st_mode));
}

bool check_writable(const char* path, TostError* err) {
    const Path dir = path_above(path);
    return standard_stream(path) || access(path_exists(path) && is_direct(path) ? path : dir.text, W_OK) == 0
           || tost_error(err, "%s cannot be written: %s", path, strerror(errno));
}

bool replace_file(const char* path, const char* data, size_t n, TostError* err) {
    const bool direct = is_direct(path);
    const int stream = standard_stream(path);   // opening it again would overwrite a redirected file from the start
    const Path tmp = path_text("%s.tmp", path);
    FILE* file = stream ? fdopen(dup(stream), "w") : direct ? fopen(path, "we") : create_file(tmp.text);
    bool ok = file && fwrite(data, 1, n, file) == n && fflush(file) == 0 && (direct || sync_file(fileno(file)));
    if (!ok) tost_error(err, "%s cannot be written: %s", path, strerror(errno));
    if (file && fclose(file) != 0 && ok) ok = tost_error(err, "%s cannot be written: %s", path, strerror(errno));
    ok = ok && (direct || rename_synced(tmp.text, path, err));
    if (!ok && !direct) unlink(tmp.text);
    return ok;
}

Path free_name(const char* path, const char* suffix, int digits) {
    Path name = {""};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    for (int number = 1; !name.text[0] || path_exists(name.text); number++)
        name = path_text("%.*s%s%0*d", (int)n, path, suffix, digits, number);
    return name;
}

bool make_dirs(const char* path, TostError* err) {
    if (is_dir(path)) return true;
    bool ok = make_dirs(path_above(path).text, err);
    const int why = ok && mkdir(path, 0777) != 0 ? errno : 0;
    if (why && !is_dir(path))   // another process may have made it
        ok = tost_error(err, "%s: the folder cannot be created: %s", path,
                        why == EEXIST ? "a file has that name" : strerror(why));
    else if (ok && !why) ok = sync_dir(path_above(path).text, err);
    return ok;
}
