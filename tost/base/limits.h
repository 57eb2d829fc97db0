// limits.h: memory of the machine and limits of cgroups, in bytes. UINT64_MAX: unlimited, or unknown, as on systems
// other than Linux.
#pragma once

#include <stdint.h>

// The least memory limit of the process's cgroup and those above it. groups: /proc/self/cgroup; mount: /sys/fs/cgroup
uint64_t cgroup_memory(const char* groups, const char* mount);
uint64_t meminfo_bytes(const char* key);   // a line of /proc/meminfo, such as "MemTotal:"
