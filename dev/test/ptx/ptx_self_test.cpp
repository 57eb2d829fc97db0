// ptx_self_test.cpp: tests the interpreter itself with small PTX kernels: the results of single instructions, and the
// errors that it must detect.
#include <cstring>
#include <string>

#include "dev/test/cuda_on_host/emulation_test.h"
#include "ptx_test.h"

// Launched by the tests. The interpreter runs the PTX kernels of the same names instead.
extern "C" {
__global__ void ptx_words(uint32_t*, const uint32_t*) {}
__global__ void ptx_numbers(uint8_t, uint64_t, uint32_t*) {}
}

namespace {

typedef std::vector<uint32_t> Words;

const char HEAD[] = ".version 9.0\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 dynamic[];\n";

// A kernel whose body finds the address of `out` in %rd0, that of `in` in %rd1 and the thread's number in %r0
std::string kernel_of(const std::string& body, const std::string& directives = "") {
    return HEAD + (".visible .entry ptx_words(\n.param .u64 out,\n.param .u64 in\n)\n" + directives) +
           "{\n.reg .pred %p<9>;\n.reg .b16 %rs<9>;\n.reg .b32 %r<20>;\n.reg .f32 %f<20>;\n.reg .b64 %rd<20>;\n"
           ".reg .f64 %fd<9>;\n.shared .align 4 .b8 fixed[64];\n"
           "ld.param.u64 %rd0, [out];\nld.param.u64 %rd1, [in];\nmov.u32 %r0, %tid.x;\n" + body + "\nret;\n}\n";
}

// Runs such a kernel in one block. Returns the 64 words of `out`.
Words run(const std::string& text, const Words& in, unsigned threads = 1, size_t shared_bytes = 0, bool early = false) {
    const PtxModule module(text);
    const Device<uint32_t> on_in(in), out(64);
    ptx_start(&module, false);
    if (early) CUDA_ON_HOST_LAUNCH_EARLY(ptx_words, 1, threads, shared_bytes, nullptr, out.p, on_in.p);
    else CUDA_ON_HOST_LAUNCH(ptx_words, 1, threads, shared_bytes, nullptr, out.p, on_in.p);
    ptx_stop();
    Words words(64);
    cudaMemcpy(words.data(), out.p, words.size() * sizeof words[0], cudaMemcpyDeviceToHost);
    return words;
}

// ---------------------------------------------------------------------------------------------
// Results of instructions. The operands a, b, c are in %r1 to %r3 and, as floats, in %f1 to %f3; the result is in %r4.

struct Case {
    const char* instruction;
    uint32_t a, b, c, want;
};

const Case cases[] = {
    {"add.s32 %r4, %r1, %r2;", 0xffffffff, 2, 0, 1},
    {"mad.lo.s32 %r4, %r1, %r2, %r3;", 0x10001, 0x10001, 5, 0x20006},
    {"mul.wide.s32 %rd4, %r1, %r2; shr.s64 %rd4, %rd4, 16; cvt.u32.u64 %r4, %rd4;", 0xffffffff, 0x10000, 0, 0xffffffff},
    {"mul.wide.u32 %rd4, %r1, %r2; shr.u64 %rd4, %rd4, 32; cvt.u32.u64 %r4, %rd4;", 0xffffffff, 0x10000, 0, 0xffff},
    {"div.s32 %r4, %r1, %r2;", (uint32_t)-7, 2, 0, (uint32_t)-3},
    {"rem.s32 %r4, %r1, %r2;", (uint32_t)-7, 2, 0, (uint32_t)-1},
    {"div.u32 %r4, %r1, %r2;", (uint32_t)-7, 2, 0, 0x7ffffffc},
    {"shl.b32 %r4, %r1, %r2;", 3, 32, 0, 0},
    {"shr.u32 %r4, %r1, %r2;", 0x80000000, 31, 0, 1},
    {"shr.s32 %r4, %r1, %r2;", 0x80000000, 99, 0, 0xffffffff},
    {"clz.b32 %r4, %r1;", 0, 0, 0, 32},
    {"clz.b32 %r4, %r1;", 0x00010000, 0, 0, 15},
    {"prmt.b32 %r4, %r1, %r2, 29712;", 0x33221100, 0x77665544, 0, 0x77441100},
    {"prmt.b32 %r4, %r1, %r2, 8;", 0x00000080, 0, 0, 0x808080ff},
    {"bfi.b32 %r4, %r1, %r2, 8, 4;", 0xffff, 0, 0, 0xf00},
    {"bfi.b32 %r4, %r1, %r2, 24, 8;", 0x12, 0x00ffffff, 0, 0x12ffffff},
    {"min.s32 %r4, %r1, %r2;", 0xffffffff, 1, 0, 0xffffffff},
    {"min.u32 %r4, %r1, %r2;", 0xffffffff, 1, 0, 1},
    {"setp.lt.s32 %p1, %r1, %r2; selp.b32 %r4, %r2, %r3, %p1;", 0xffffffff, 1, 9, 1},
    {"setp.lt.u32 %p1, %r1, %r2; selp.b32 %r4, %r2, %r3, %p1;", 0xffffffff, 1, 9, 9},
    {"setp.ne.f32 %p1, %f1, %f1; selp.b32 %r4, 1, 0, %p1;", 0x7fc00000, 0, 0, 0},
    {"setp.leu.f32 %p1, %f1, %f1; selp.b32 %r4, 1, 0, %p1;", 0x7fc00000, 0, 0, 1},
    {"setp.neu.f32 %p1, %f1, %f1; not.pred %p2, %p1; selp.b32 %r4, 1, 0, %p2;", 0x7fc00000, 0, 0, 0},
    {"mov.b32 {%rs1, %rs2}, %r1; mov.b32 %r4, {%rs2, %rs1};", 0x12345678, 0, 0, 0x56781234},
    {"fma.rn.f32 %f4, %f1, %f2, %f3; mov.b32 %r4, %f4;", 0x3f800001, 0x3f800001, 0xbf800002, 0x28800000},
    {"fma.rm.f32 %f4, %f1, %f2, %f3; mov.b32 %r4, %f4;", 0x3f800000, 0x3f800000, 0x33000000, 0x3f800000},
    {"fma.rm.f32 %f4, %f1, %f2, %f3; mov.b32 %r4, %f4;", 0x3f800000, 0x3f800000, 0xb3000000, 0x3f7fffff},
    {"max.f32 %f4, %f1, %f2; mov.b32 %r4, %f4;", 0x7fc00000, 0xbf800000, 0, 0xbf800000},
    {"cvt.sat.f32.f32 %f4, %f1; mov.b32 %r4, %f4;", 0x40000000, 0, 0, 0x3f800000},
    {"cvt.sat.f32.f32 %f4, %f1; mov.b32 %r4, %f4;", 0x7fc00000, 0, 0, 0},
    {"rcp.approx.ftz.f32 %f4, %f1; mov.b32 %r4, %f4;", 0x00000001, 0, 0, 0x7f800000},   // subnormal operand
    {"rcp.approx.ftz.f32 %f4, %f1; mov.b32 %r4, %f4;", 0xff000000, 0, 0, 0x80000000},   // subnormal result
    {"ex2.approx.ftz.f32 %f4, %f1; mov.b32 %r4, %f4;", 0xc3000000, 0, 0, 0},            // 2^-128
    {"ex2.approx.ftz.f32 %f4, %f1; mov.b32 %r4, %f4;", 0x40400000, 0, 0, 0x41000000},
    {"rsqrt.approx.f32 %f4, %f1; mov.b32 %r4, %f4;", 0x40800000, 0, 0, 0x3f000000},
    {"cvt.rn.bf16.f32 %rs4, %f1; cvt.u32.u16 %r4, %rs4;", 0x3f808000, 0, 0, 0x3f80},    // ties to even
    {"cvt.rn.bf16.f32 %rs4, %f1; cvt.u32.u16 %r4, %rs4;", 0x3f818000, 0, 0, 0x3f82},
    {"cvt.rn.bf16.f32 %rs4, %f1; cvt.u32.u16 %r4, %rs4;", 0xffc00000, 0, 0, 0x7fff},
    {"cvt.u16.u32 %rs1, %r1; cvt.f32.bf16 %f4, %rs1; mov.b32 %r4, %f4;", 0xabcd4049, 0, 0, 0x40490000},
    {"cvt.rn.satfinite.e4m3x2.f32 %rs4, %f1, %f2; cvt.u32.u16 %r4, %rs4;", 0x3f800000, 0xc47a0000, 0, 0x38fe},
    {"cvt.rn.satfinite.e5m2x2.f32 %rs4, %f1, %f2; cvt.u32.u16 %r4, %rs4;", 0x3f800000, 0x7fc00000, 0, 0x3c7f},
    {"cvt.rn.f32.s32 %f4, %r1; mov.b32 %r4, %f4;", (uint32_t)-2, 0, 0, 0xc0000000},
    {"cvt.f64.f32 %fd1, %f1; add.f64 %fd1, %fd1, 0d3FF0000000000000; cvt.rn.f32.f64 %f4, %fd1; mov.b32 %r4, %f4;",
     0x3f800000, 0, 0, 0x40000000},
    {"cvt.s64.s32 %rd4, %r1; shr.u64 %rd4, %rd4, 32; cvt.u32.u64 %r4, %rd4;", 0x80000000, 0, 0, 0xffffffff},
    {"mov.u32 %r4, 0;\n$again:\nadd.s32 %r4, %r4, 3;\nsetp.lt.s32 %p1, %r4, %r1;\n@%p1 bra $again;", 10, 0, 0, 12},
    {"setp.eq.s32 %p1, %r1, 7;\nmov.u32 %r4, 1;\n@!%p1 bra $end;\nmov.u32 %r4, 2;\n$end:", 8, 0, 0, 1},
};

void test_instructions(Checks* c) {
    for (const Case& k : cases) {
        const std::string body = "ld.global.u32 %r1, [%rd1];\nld.global.v2.u32 {%r2, %r3}, [%rd1+8];\n"
                                 "mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nmov.b32 %f3, %r3;\n" +
                                 std::string(k.instruction) +
                                 "\nst.global.u32 [%rd0], %r4;";
        const uint32_t got = run(kernel_of(body), {k.a, 0, k.b, k.c})[0];
        check(c, got == k.want, "%s of %08x, %08x, %08x: %08x, want %08x", k.instruction, k.a, k.b, k.c, got, k.want);
    }
}

// Each lane contributes 100 + its number and stores the shuffle's result.
void test_shuffles(Checks* c) {
    const struct {
        const char* mode;
        int by, clamp;   // operands
        int (*from)(int lane);
    } all[] = {{"bfly", 5, 31, [](int l) { return l ^ 5; }},
               {"up", 3, 0, [](int l) { return l < 3 ? l : l - 3; }},
               {"down", 3, 31, [](int l) { return l > 28 ? l : l + 3; }},
               {"idx", 6, 31, [](int) { return 6; }},
               {"idx", 2, 0x1c1f, [](int l) { return (l & ~3) + 2; }},   // segments of 4 lanes
               {"down", 1, 0x181f, [](int l) { return l % 8 == 7 ? l : l + 1; }}};
    for (const auto& k : all) {
        const std::string body = "add.s32 %r1, %r0, 100;\nshfl.sync." + std::string(k.mode) + ".b32 %r2|%p1, %r1, " +
                                 std::to_string(k.by) + ", " + std::to_string(k.clamp) +
                                 ", -1;\nmul.wide.u32 %rd2, %r0, 4;\nadd.s64 %rd2, %rd0, %rd2;\n"
                                 "st.global.u32 [%rd2], %r2;";
        const Words got = run(kernel_of(body), {0}, 32);
        int wrong = 0;
        for (int l = 0; l < 32; l++) wrong += got[(size_t)l] != 100u + (uint32_t)k.from(l);
        check(c, wrong == 0, "shfl.sync.%s %d, %#x: %d lanes are wrong", k.mode, k.by, k.clamp, wrong);
    }
}

const char ADDRESS[] = "mul.wide.u32 %rd2, %r0, 4;\nadd.s64 %rd3, %rd0, %rd2;\nadd.s64 %rd4, %rd1, %rd2;\n"
                       "shl.b32 %r1, %r0, 2;\nmov.u32 %r2, dynamic;\nadd.s32 %r3, %r2, %r1;\n";

// A kernel whose threads exchange values through dynamic shared memory: out[i] = in[63 - i].
std::string reversed(const char* barrier) {
    return kernel_of(ADDRESS + std::string("ld.global.nc.u32 %r4, [%rd4];\nst.shared.u32 [%r3], %r4;\n") + barrier +
                     "\nsub.s32 %r5, %r2, %r1;\nld.shared.u32 %r6, [%r5+252];\nst.global.u32 [%rd3], %r6;");
}

void test_votes(Checks* c) {
    const auto voted = [](const char* than, const char* kind, const char* result) {
        return run(kernel_of(ADDRESS + std::string("setp.gt.u32 %p1, %r0, ") + than + ";\nvote.sync." + kind +
                             ", %p1, -1;\n" +
                             result + "st.global.u32 [%rd3], %r2;"), {0}, 32)[5];
    };
    const char select[] = "selp.b32 %r2, 1, 0, %p2;\n";
    check(c, voted("29", "ballot.b32 %r2", "") == 3u << 30, "ballot");
    check(c, !voted("0", "all.pred %p2", select) && !voted("31", "any.pred %p2", select) &&
                 voted("30", "any.pred %p2", select), "votes");
}

void test_parameters(Checks* c) {
    const std::string text = HEAD + std::string(
        ".visible .entry ptx_numbers(\n.param .u8 a,\n.param .u64 b,\n.param .u64 out\n)\n{\n.reg .b16 %rs<2>;\n"
        ".reg .b32 %r<2>;\n.reg .b64 %rd<3>;\nld.param.u8 %rs1, [a];\nld.param.u32 %r1, [b+4];\n"
        "ld.param.u64 %rd1, [out];\n"
        "st.global.u16 [%rd1], %rs1;\nst.global.u32 [%rd1+4], %r1;\nret;\n}\n");
    const PtxModule module(text);
    const Device<uint32_t> out(2);
    ptx_start(&module, false);
    CUDA_ON_HOST_LAUNCH(ptx_numbers, 1, 1, 0, nullptr, 200, (uint64_t)77 << 32, out.p);
    ptx_stop();
    check(c, (out.at(0) & 0xffff) == 200 && out.at(1) == 77, "parameters: %u, %u", out.at(0), out.at(1));
}

// ---------------------------------------------------------------------------------------------
// Errors

struct Error {
    const char *what, *body, *message;
    unsigned threads;
    bool early;
};

const Error errors[] = {
    {"a misaligned vector load", "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1+8];", "16 bytes at byte 8", 1, false},
    {"a misaligned vector store", "mov.f32 %f1, 0f00000000;\nst.global.v2.f32 [%rd0+4], {%f1, %f1};", "misaligned", 1,
     false},
    {"a misaligned load of shared memory", "mov.u32 %r1, dynamic;\nld.shared.v2.u32 {%r2, %r3}, [%r1+4];", "misaligned",
     1, false},
    {"a load past the end of an array", "ld.global.u32 %r1, [%rd1+256];", "out of bounds", 1, false},
    {"a store before an array", "mov.u32 %r1, 1;\nst.global.u32 [%rd0+-4], %r1;", "out of bounds", 1, false},
    {"a load past shared memory", "mov.u32 %r1, dynamic;\nld.shared.u32 %r2, [%r1+256];", "out of bounds", 1, false},
    {"a load of shared memory at 0", "ld.shared.u32 %r2, [0];", "out of bounds", 1, false},
    {"a load past the parameters", "ld.param.u32 %r1, [in+8];", "outside of the parameters", 1, false},
    {"an undefined register", "add.s32 %r2, %r1, 1;\nst.global.u32 [%rd0], %r2;", "an undefined value is stored", 1,
     false},
    {"an undefined branch", "setp.eq.s32 %p1, %r1, 1;\n@%p1 bra $end;\n$end:", "the predicate is undefined", 1, false},
    {"an undefined address", "add.s64 %rd2, %rd0, %rd3;\nst.global.u32 [%rd2], %r0;", "the address is undefined", 1,
     false},
    {"shared memory that was not written", "ld.shared.u32 %r1, [fixed+4];\nst.global.u32 [%rd0], %r1;",
     "an undefined value is stored", 1, false},
    {"a lane that does not take part in a shuffle",
     "setp.gt.u32 %p1, %r0, 15;\n@%p1 bra $end;\nshfl.sync.idx.b32 %r1|%p2, %r0, 20, 31, 65535;\n"
     "st.global.u32 [%rd0], %r1;\n$end:", "an undefined value is stored", 32, false},
    {"a shuffle that a lane does not reach", "setp.eq.s32 %p1, %r0, 3;\n@%p1 bra $sync;\n"
     "shfl.sync.bfly.b32 %r1|%p2, %r0, 1, 31, -1;\n$sync:\nbar.sync 0;", "deadlock", 32, false},
    {"threads at two barriers",
     "setp.eq.s32 %p1, %r0, 3;\n@%p1 bra $second;\nbar.sync 0;\nbra.uni $end;\n$second:\nbar.sync 0;\n"
     "$end:", "different __syncthreads", 32, false},
    {"an access before griddepcontrol.wait", "ld.global.u32 %r1, [%rd1];\ngriddepcontrol.wait;",
     "before griddepcontrol.wait", 1, true},
    {"a launch that does not wait", "", "does not wait for the kernels before", 1, true},
    {"ld.global.nc of what was written", "st.global.u32 [%rd0], %r0;\nld.global.nc.u32 %r1, [%rd0];", "read-only", 1,
     false},
    {"a division by zero", "mov.u32 %r1, 0;\ndiv.s32 %r2, %r0, %r1;", "division by zero", 1, false},
    {"an unknown instruction", "add.cc.u32 %r1, %r0, %r0;", "unknown instruction add.cc.u32", 1, false},
    {"an unknown load", "ld.global.L2::128B.u32 %r1, [%rd1];", "unknown instruction", 1, false},
    {"a loop without end", "$again:\nbra.uni $again;", "a loop does not end", 1, false},
    {"more threads than .maxntid", "", "65 threads; 64 at most by its .maxntid", 65, false},
};

void dies(Checks* c, const char* what, const char* message, const std::string& text, unsigned threads, size_t shared,
          bool early) {
    int status = 0;
    const std::string said = child_stderr(c, &status, [&] { run(text, Words(64), threads, shared, early); });
    check(c, status != 0 && said.find(message) != std::string::npos, "%s: status %d, \"%.200s\", want \"%s\"", what,
          status, said.c_str(), message);
}

void test_errors(Checks* c) {
    for (const Error& e : errors)
        dies(c, e.what, e.message, kernel_of(e.body, ".maxntid 64, 1, 1\n"), e.threads, 256, e.early);
    dies(c, "too many threads without .maxntid", "enough registers", kernel_of(""), 257, 0, false);
    dies(c, "too much shared memory", "128 of them static; at most 49152",
         kernel_of(".shared .align 4 .b8 more[64];"), 1, (48 << 10) - 64, false);
    std::string text = kernel_of("");
    text.replace(text.find(".param .u64 in"), 14, ".param .u32 in");
    dies(c, "an argument of another size", "argument 1 has 8 bytes, the parameter 4", text, 1, 0, false);
}

}  // namespace

void test_interpreter(Checks* c) {
    Words in(64), want(64);
    for (size_t i = 0; i < 64; i++) in[i] = want[63 - i] = (uint32_t)(3 * i);
    test_instructions(c);
    test_shuffles(c);
    test_votes(c);
    test_parameters(c);
    check(c, run(reversed("bar.sync 0;"), in, 64, 256) == want, "values exchanged in shared memory are wrong");
    dies(c, "a missing barrier", "an undefined value is stored", reversed(""), 64, 256, false);
    test_errors(c);
}
