// lock.h: one run a folder. The lock is the kernel's, on DIR/run.lock: it ends with its process, however that
// ends. The file alone, which a killed process leaves, holds nobody off.
#ifndef TOST_LOCK_H
#define TOST_LOCK_H

#include "util.h"

typedef struct {
    char* path;          // NULL: none is held
    int   fd;
    int   unsupported;   // errno of a file system that has no locks: nobody is held off; else 0
} Lock;

typedef enum { LOCK_TAKEN, LOCK_BUSY, LOCK_FAILED } LockResult;

// Where it is not taken, one line in *err: LOCK_BUSY names the process that holds it, where that is known;
// LOCK_FAILED: the file cannot be made (a folder that may not be written). Nothing is to be released then.
LockResult lock_take(Lock* lock, const char* dir, TostError* err);
void       lock_release(Lock* lock);   // removes the file; of a lock that is not held (zeroed): nothing

#endif
