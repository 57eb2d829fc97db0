// ptx_run.h: the state of a thread that runs PTX, and of its launch.
#ifndef PTX_RUN_H
#define PTX_RUN_H

#include <algorithm>

#include "ptx.h"

struct PtxRange {
    char *begin, *end;
};

struct PtxLaunch {
    const PtxModule* module;
    const PtxKernel* kernel;
    std::vector<char> params;
    std::vector<PtxRange> ranges;   // device memory, in increasing order
    size_t shared_bytes;            // static and dynamic; as many bytes after them tell which are undefined
    bool early;
    mutable std::vector<uint8_t> stored;   // by range: types of the stores
    mutable const PtxInstruction* now;     // that runs
};

struct PtxThread {
    const PtxLaunch* launch;
    uint64_t* R;    // registers
    uint8_t* U;     // 1: undefined
    char *shared, *local;
    size_t pc, turns;
    bool waited, done;   // has run griddepcontrol.wait; has returned
};

void ptx_run_thread(const PtxLaunch* l);   // the emulation's current thread

#endif
