// ptx.h: an interpreter for the PTX that nvcc generates for the kernels. It runs in the CUDA emulation and uses its
// fibers, barriers, shuffles, atomics and race detector. It tests nvcc's output, including inline PTX, packed loads and
// conversions, where the emulation tests the C++ source as compiled by a host compiler.
//
// Aborts, with the PTX line and the source line, on:
//   memory       a vector or scalar that is not aligned to its size; an access outside of an array in device memory,
//                of the block's shared memory or of the parameters; ld.global.nc of what the kernel has written; any
//                access to device memory before griddepcontrol.wait
//   undefined    a branch, an address or a value stored to device memory that depends on a register or on shared memory
//                that was never written
//   threads      barriers and shuffles that not all threads of the mask reach; races (races.h)
//   launches     more threads than .maxntid or, without it, more than the register file is sure to have registers for;
//                more static and dynamic shared memory than all supported GPUs have; arguments whose sizes differ from
//                those of the parameters
//   unknown      instructions that the interpreter does not implement
//
// .approx operations are rounded correctly; on a GPU they have errors of 1 to 2 ulp. mul and add without .rn are never
// fused; ptxas may fuse them.
#ifndef PTX_H
#define PTX_H

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "dev/test/cuda_on_host/cuda_on_host.h"

struct PtxThread;
struct PtxInstruction;
typedef void PtxRun(PtxThread* t, const PtxInstruction& i);

constexpr int PTX_VECTOR = 8;       // maximum operands of an instruction, elements of vectors included
constexpr uint16_t PTX_ALWAYS = 0;  // guard: register 0 is true

// r: registers of the destinations, then of the sources. A constant is a register that no instruction writes.
struct PtxInstruction {
    PtxRun* run = nullptr;
    uint16_t r[PTX_VECTOR] = {};
    uint16_t guard = PTX_ALWAYS, address = 0;
    bool unless = false;             // the guard is negated
    uint8_t count = 0, bytes = 0;    // loads and stores: elements, bytes of each
    bool is_signed = false;
    uint8_t type = 0;                // of loads, stores and atomics: a PtxType
    int64_t offset = 0;              // added to an address; target of a branch
    int line = 0;                    // in the PTX
    int file = 0, source = 0;        // file and line in the source
    int from_file = 0, from = 0;     // of the call, if the source is in an inlined function
    const char* opcode = nullptr;
    mutable uint32_t range = 0;      // index of the device memory range of the last access
    mutable bool reached = false;    // has run
};

// The element type that a store's type implies for an array. PTX_BITS: bf16, fp8 or integers
enum PtxType : uint8_t { PTX_F32 = 1, PTX_F64 = 2, PTX_BITS = 4 };

struct PtxParam {
    size_t at, bytes;
};

struct PtxKernel {
    std::string name;
    int line = 0;
    std::vector<PtxParam> params;
    size_t param_bytes = 0, shared_bytes = 0, local_bytes = 0;   // shared_bytes: static
    unsigned max_threads = 0;            // 0: no .maxntid
    std::vector<PtxInstruction> code;
    std::vector<uint64_t> registers;     // initial values
    std::vector<uint8_t> undefined;      // per register: 1 if it has no initial value
};

// Static shared memory starts here, so that address 0 is invalid.
constexpr uint32_t PTX_SHARED_BASE = 1024;

// Registers with fixed numbers
enum PtxSpecial : uint16_t {
    PTX_TRUE, PTX_ZERO, PTX_TID, PTX_NTID = PTX_TID + 3, PTX_CTAID = PTX_NTID + 3, PTX_NCTAID = PTX_CTAID + 3,
    PTX_LANE = PTX_NCTAID + 3, PTX_DYNAMIC, PTX_SPECIALS   // PTX_DYNAMIC: address of dynamic shared memory
};

struct PtxModule {
    int target = 0;                             // compute capability, e.g. 90
    std::map<std::string, PtxKernel> kernels;   // by mangled name
    std::map<int, std::string> files;           // of .loc
    std::set<std::string> opcodes;
    std::string source_of(const PtxInstruction& i) const;   // FILE:LINE, not in the toolkit's headers
    explicit PtxModule(const std::string& text);   // aborts on unknown syntax or instructions
};

// How to run an opcode with its modifiers. operands: one letter each; "d": destination; "s": source; "p": destination
// with an optional predicate, "a|p"
struct PtxOpcode {
    PtxRun* run;
    const char* operands;
};
const std::unordered_map<std::string, PtxOpcode>& ptx_opcodes();
// For loads, stores and atomics: selects the function by the state space and the other modifiers. Sets the last
// argument to true if the operation is a store. Returns null if the combination is not implemented.
PtxRun* ptx_memory_run(const std::string& base, const std::vector<std::string>& modifiers, bool* from_registers);
PtxRun* ptx_branch_run();

// After ptx_start, the emulation's launches run the kernels of this module. compare: runs each C++ kernel first, from
// the same memory, and records how much the results differ.
struct PtxReport {
    size_t launches = 0, threads = 0, reached = 0, instructions = 0;
    double floats = 0, bits = 0;       // largest relative L2 error: of arrays of floats or doubles; of other arrays
    size_t words = 0, different = 0;   // 4-byte words that compared launches wrote; those that differ
};
void ptx_start(const PtxModule* module, bool compare);
void ptx_stop();
const std::map<std::string, PtxReport>& ptx_reports();       // by kernel
const std::map<std::string, size_t>& ptx_not_interpreted();  // launches of kernels that are not in the module

#endif
