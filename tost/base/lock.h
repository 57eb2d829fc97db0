// lock.h: allows one run per folder with a lock on DIR/run.lock. The kernel releases the lock when the process ends for
// any reason; a file left behind by a killed process is not locked.
#ifndef TOST_LOCK_H
#define TOST_LOCK_H

#include "base/error.h"
#include "base/folder.h"

typedef struct {
    char* path;          // NULL: not locked
    int   fd;
    const Folder* in;
    int   unsupported;   // errno if the file system has no locks: other runs are not excluded; else 0
} Lock;

typedef enum { LOCK_TAKEN, LOCK_BUSY, LOCK_FAILED } LockResult;

// LOCK_BUSY: another process has the lock; *err names it, if known. LOCK_FAILED: the file cannot be created, for
// example in a read-only folder. Both set *err and leave nothing to release.
LockResult lock_take(Lock* lock, const Folder* in, TostError* err);   // in: must outlive the lock
// If the file was removed in the meantime, locks the folder again. False if another process has it.
bool       lock_keep(Lock* lock, TostError* err);
void       lock_release(Lock* lock);   // removes the file; does nothing if not locked or zeroed

#endif
