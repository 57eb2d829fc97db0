// ptx_run.h: the state of a launch of PTX and of one of its threads.
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
    size_t shared_bytes;            // static and dynamic; followed by a flag per byte: 1 if the byte is undefined
    bool early;                     // programmatic dependent launch
    mutable std::vector<uint8_t> stored;   // per range: the PtxTypes of the stores to it
    mutable const PtxInstruction* now;     // the current instruction
};

struct PtxThread {
    const PtxLaunch* launch;
    uint64_t* R;    // registers
    uint8_t* U;     // per register: 1 if its value is undefined
    char *shared, *local;
    size_t pc, turns;    // turns: backward branches taken
    bool waited, done;   // has run griddepcontrol.wait; has returned
};

void ptx_run_thread(const PtxLaunch* l);   // runs the emulation's current thread

#endif
