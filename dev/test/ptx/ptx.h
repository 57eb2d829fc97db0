// ptx.h: runs the PTX that nvcc makes of the kernels, one instruction at a time, in the CUDA emulation, whose fibers,
// barriers, shuffles, atomics and race detector it uses. So the code under test is what a GPU gets, with inline PTX,
// packed loads and conversions, instead of C++ that a host compiler has translated.
//
// Aborts with the PTX line and the source line:
//   memory       a vector or scalar that is not aligned to its size; bytes outside of an array in device memory, of the
//                block's shared memory or of the parameters; ld.global.nc of what the kernel has written; any access to
//                device memory before griddepcontrol.wait
//   undefined    registers and shared memory that were never written, if a branch, an address or device memory depends
//                on them
//   threads      barriers and shuffles that not all threads of the mask reach; races (races.h)
//   launches     more threads than .maxntid, or than registers could suffice for without it; more shared memory,
//                static and dynamic, than every supported GPU has; arguments of other sizes than the parameters
//   unknown      instructions that the interpreter does not implement
//
// .approx operations are rounded correctly, of which a GPU makes 1 to 2 ulp. mul and add without .rn stay separate,
// where ptxas may fuse them.
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

constexpr int PTX_VECTOR = 8;       // most elements of a vector, and operands of an instruction
constexpr uint16_t PTX_ALWAYS = 0;  // guard: register 0 is true

// r: destinations, then sources. A constant is a register that no instruction writes.
struct PtxInstruction {
    PtxRun* run = nullptr;
    uint16_t r[PTX_VECTOR] = {};
    uint16_t guard = PTX_ALWAYS, address = 0;
    bool unless = false;             // the guard is negated
    uint8_t count = 0, bytes = 0;    // loads and stores: elements, bytes of each
    bool is_signed = false;
    uint8_t type = 0;                // of stores: a bit of PtxType
    int64_t offset = 0;              // added to an address; target of a branch
    int line = 0;                    // in the PTX
    int file = 0, source = 0;        // file and line of the source
    int from_file = 0, from = 0;     // if that is in an inlined function: of the call
    const char* opcode = nullptr;
    mutable uint32_t range = 0;      // of device memory, found last
    mutable bool reached = false;
};

// What a store's type tells about an array. PTX_BITS: pairs of bf16 or fp8, or integers
enum PtxType : uint8_t { PTX_F32 = 1, PTX_F64 = 2, PTX_BITS = 4 };

struct PtxParam {
    size_t at, bytes;
};

struct PtxKernel {
    std::string name;
    int line = 0;
    std::vector<PtxParam> params;
    size_t param_bytes = 0, shared_bytes = 0, local_bytes = 0;
    unsigned max_threads = 0;            // 0: no .maxntid
    std::vector<PtxInstruction> code;
    std::vector<uint64_t> registers;     // initial values
    std::vector<uint8_t> undefined;      // of registers: 0 for constants
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
    explicit PtxModule(const std::string& text);   // aborts on what it does not know
};

// An opcode with its modifiers. operands: "d" destination, "s" source, "p" destination and optional predicate "a|p"
struct PtxOpcode {
    PtxRun* run;
    const char* operands;
};
const std::unordered_map<std::string, PtxOpcode>& ptx_opcodes();
// Loads, stores, atomics: space and behavior from the modifiers
PtxRun* ptx_memory_run(const std::string& base, const std::vector<std::string>& modifiers, bool* needs_sources);
PtxRun* ptx_branch_run();

// Runs the emulation's launches with this module. compare: runs the C++ kernels first, from the same memory, and
// records how much the results differ.
struct PtxReport {
    size_t launches = 0, threads = 0, reached = 0, instructions = 0;
    double floats = 0, bits = 0;       // largest relative L2 error of an array of floats or doubles, and of others
    size_t words = 0, different = 0;   // of 4 bytes, written by compared launches
};
void ptx_start(const PtxModule* module, bool compare);
void ptx_stop();
const std::map<std::string, PtxReport>& ptx_reports();       // by kernel
const std::map<std::string, size_t>& ptx_not_interpreted();  // kernels that are not in the module: launches

#endif
