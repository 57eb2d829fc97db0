// limits.c: reads /proc/meminfo and the memory limits of cgroups.
#include "base/limits.h"

#include <stdlib.h>
#include <string.h>

#include "base/files.h"

// The number after `key` in a file. UINT64_MAX if there is none: the limit "max", no such file.
static uint64_t read_number(const char* path, const char* key) {
    Bytes text;
    uint64_t number = UINT64_MAX;
    if (!read_file(&text, path, &(TostError){0})) return number;
    char *at = strstr(text.data, key), *end = at;
    if (at) number = strtoull(at += strlen(key), &end, 10);
    if (end == at) number = UINT64_MAX;
    free(text.data);
    return number;
}

// The least of `least` and the numbers in the files of this name in the folders from mount/group up to mount.
static uint64_t least_limit(uint64_t least, const char* mount, const char* group, const char* name) {
    Path folder = path_text("%s%s", mount, group);
    for (char* end = strchr(folder.text, 0); end;
         end = strlen(folder.text) > strlen(mount) ? strrchr(folder.text, '/') : NULL) {
        *end = 0;
        const uint64_t limit = read_number(path_in(folder.text, name).text, "");
        least = limit < least ? limit : least;
    }
    return least;
}

// A line is ID:CONTROLLERS:GROUP. Version 1 has a tree of folders for the controller "memory"; version 2 has 0::GROUP.
uint64_t cgroup_memory(const char* groups, const char* mount) {
    uint64_t least = UINT64_MAX;
    Bytes text;
    if (!read_file(&text, groups, &(TostError){0})) return least;
    char* rest = text.data;
    for (char *line, *v1; (line = strsep(&rest, "\n"));) {
        if ((v1 = strstr(line, ":memory:/")))
            least = least_limit(least, path_in(mount, "memory").text, v1 + strlen(":memory:"), "memory.limit_in_bytes");
        else if (strncmp(line, "0::/", 4) == 0) least = least_limit(least, mount, line + 3, "memory.max");
    }
    free(text.data);
    return least;
}

uint64_t meminfo_bytes(const char* key) {
    const uint64_t kib = read_number("/proc/meminfo", key);
    return kib == UINT64_MAX ? kib : 1024 * kib;
}
