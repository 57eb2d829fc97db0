// limits.h: how much memory there is. UINT64_MAX: unknown, as on systems other than Linux, or unlimited.
#ifndef TOST_LIMITS_H
#define TOST_LIMITS_H

#include <stdint.h>

// The least memory limit of the process's cgroup and those above it. groups: /proc/self/cgroup; mount: /sys/fs/cgroup
uint64_t cgroup_memory(const char* groups, const char* mount);
uint64_t meminfo_bytes(const char* key);   // a line of /proc/meminfo, such as "MemTotal:"

#endif
