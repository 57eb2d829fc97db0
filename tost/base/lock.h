// lock.h: allows one run per folder with a lock on DIR/run.lock. The kernel releases the lock when the process ends for
// any reason; a file left behind by a killed process is not locked.
// A file with several hard links, as after cp -al of the folder, locks all these folders and is not written.
#pragma once

#include "base/files.h"

typedef struct {
    Path  path;          // empty: not locked
    int   fd;
    int   unsupported;   // errno if the file system has no locks: other runs are not excluded; else 0
} Lock;

typedef enum { LOCK_TAKEN, LOCK_BUSY, LOCK_FAILED } LockResult;

// LOCK_BUSY: another process has the lock; *err names it, if known. LOCK_FAILED: the file cannot be created, for
// example in a read-only folder, or has no random-access writes. Both set *err and leave nothing to release.
LockResult lock_take(Lock* lock, const char* folder, TostError* err);
void       lock_moved(Lock* lock, const char* folder);   // after the locked folder was renamed to `folder`
void       lock_release(Lock* lock);   // removes the file; does nothing if not locked or zeroed
