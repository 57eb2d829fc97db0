// ptx_run.cpp: implements the PTX instructions, and runs a thread.
#include "ptx_run.h"

#include <cfenv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include <alloca.h>

#include "dev/test/cuda_on_host/races.h"

namespace {

typedef PtxThread T;
typedef PtxInstruction I;

[[noreturn]] void fail(const T* t, const I& i, const char* format, ...) __attribute__((format(printf, 3, 4)));
void fail(const T* t, const I&, const char* format, ...) {
    char what[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    cuda_on_host_die("thread (%u,%u,%u): %s", (unsigned)t->R[PTX_TID], (unsigned)t->R[PTX_TID + 1],
                     (unsigned)t->R[PTX_TID + 2], what);
}

// ---------------------------------------------------------------------------------------------
// Registers have 64 bits. An instruction reads as many of the low bits as its operand type has.

template <typename V> V get(const T* t, uint16_t r) {
    V v;
    memcpy(&v, &t->R[r], sizeof v);   // little-endian
    return v;
}
template <typename V> void put(T* t, uint16_t r, V v) {
    if constexpr (std::is_signed<V>::value && std::is_integral<V>::value) {
        t->R[r] = (uint64_t)(int64_t)v;
    } else {
        uint64_t bits = 0;
        memcpy(&bits, &v, sizeof v);
        t->R[r] = bits;
    }
}
// Marks the result as undefined if a source is.
void taint(T* t, const I& i, int sources) {
    uint8_t u = 0;
    for (int n = 1; n <= sources; n++) u |= t->U[i.r[n]];
    t->U[i.r[0]] = u;
}

// ---------------------------------------------------------------------------------------------
// Arithmetic

float flush(float x) { return cuda_on_host_flush(x); }

struct Bf16 {
    uint16_t bits;
};
Bf16 to_bf16(float x) { return {__nv_bfloat16(x).x}; }
float from_bf16(Bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }

template <int MANTISSA, int BIAS> uint16_t fp8_pair(float upper, float lower, float largest) {
    return (uint16_t)(cuda_on_host_to_fp8(upper, MANTISSA, BIAS, largest) << 8 |
                      cuda_on_host_to_fp8(lower, MANTISSA, BIAS, largest));
}

float rounded_down(float a, float b, float c) {
    std::fesetround(FE_DOWNWARD);
    const volatile float x = a, y = b, z = c;
    const volatile float sum = fmaf(x, y, z);
    std::fesetround(FE_TONEAREST);
    return sum;
}

template <typename V> V shift_left(V a, uint32_t by) { return by >= 8 * sizeof a ? 0 : (V)(a << by); }
template <typename V> V shift_right(V a, uint32_t by) {
    const uint32_t last = 8 * sizeof a - 1;
    if (by > last) return std::is_signed<V>::value ? (V)(a >> last) : 0;
    return (V)(a >> by);
}

uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int n = 0; n < 4; n++) {
        const uint32_t s = selector >> (4 * n) & 15, byte = (uint32_t)(bytes >> (8 * (s & 7))) & 255;
        d |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * n);
    }
    return d;
}
template <typename V> V bfi(V a, V b, uint32_t at, uint32_t length) {
    const uint32_t width = 8 * sizeof a, c = at & 255, d = length & 255;
    if (c >= width || d == 0) return b;
    const V mask = (V)((d >= width ? ~(V)0 : ((V)1 << d) - 1) << c);
    return (V)((a << c & mask) | (b & ~mask));
}
template <typename V> V bfe(V a, uint32_t at, uint32_t length) {   // unsigned
    const uint32_t c = at & 255, d = length & 255;
    const V shifted = shift_right(a, c);
    return d >= 8 * sizeof a ? shifted : (V)(shifted & (((V)1 << d) - 1));
}
uint32_t funnel_left(uint32_t low, uint32_t high, uint32_t by) {
    return (uint32_t)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}
uint32_t funnel_right(uint32_t low, uint32_t high, uint32_t by) {
    return (uint32_t)(((uint64_t)high << 32 | low) >> (by & 31));
}

// OP1 to OP3(name, D, A, …, expression): add an opcode with 1 to 3 sources a, b, c of types A, B, C, which sets the
// destination, of type D, to the expression.
#define BODY(count, D, expression) \
    put<D>(t, i.r[0], (D)(expression)); \
    taint(t, i, count)
#define OP1(name, D, A, expression) \
    all[name] = {[](T* t, const I& i) { \
        const A a = get<A>(t, i.r[1]); \
        BODY(1, D, expression); \
    }, "ds"}
#define OP2(name, D, A, B, expression) \
    all[name] = {[](T* t, const I& i) { \
        const A a = get<A>(t, i.r[1]); \
        const B b = get<B>(t, i.r[2]); \
        BODY(2, D, expression); \
    }, "dss"}
#define OP3(name, D, A, B, C, expression) \
    all[name] = {[](T* t, const I& i) { \
        const A a = get<A>(t, i.r[1]); \
        const B b = get<B>(t, i.r[2]); \
        const C c = get<C>(t, i.r[3]); \
        BODY(3, D, expression); \
    }, "dsss"}

typedef std::unordered_map<std::string, PtxOpcode> Opcodes;

// Bitwise operations, shifts and moves of one width
template <typename U> void add_logic(Opcodes& all, const std::string& b) {
    OP2("and." + b, U, U, U, a & b);
    OP2("or." + b, U, U, U, a | b);
    OP2("xor." + b, U, U, U, a ^ b);
    OP1("not." + b, U, U, ~a);
    OP2("shl." + b, U, U, uint32_t, shift_left(a, b));
    OP2("shr." + b, U, U, uint32_t, shift_right(a, b));
    OP1("mov." + b, U, U, a);
}

template <typename V, typename U> void add_integer(Opcodes& all, const std::string& s) {
    OP2("add." + s, V, U, U, a + b);
    OP2("sub." + s, V, U, U, a - b);
    OP2("mul.lo." + s, V, U, U, (uint64_t)a * (uint64_t)b);
    OP3("mad.lo." + s, V, U, U, U, (uint64_t)a * (uint64_t)b + (uint64_t)c);
    OP2("min." + s, V, V, V, a < b ? a : b);
    OP2("max." + s, V, V, V, a < b ? b : a);
    OP1("neg." + s, V, U, 0 - (uint64_t)a);
    OP1("abs." + s, V, V, a < 0 ? 0 - (uint64_t)(int64_t)a : (uint64_t)a);
    OP2("shr." + s, V, V, uint32_t, shift_right(a, b));
    OP1("mov." + s, V, V, a);
    all["div." + s] = {[](T* t, const I& i) {
        const V a = get<V>(t, i.r[1]), b = get<V>(t, i.r[2]);
        if (b == 0) fail(t, i, "division by zero");
        BODY(2, V, std::is_signed<V>::value && b == (V)-1 ? (V)(0 - (U)a) : (V)(a / b));
    }, "dss"};
    all["rem." + s] = {[](T* t, const I& i) {
        const V a = get<V>(t, i.r[1]), b = get<V>(t, i.r[2]);
        if (b == 0) fail(t, i, "division by zero");
        BODY(2, V, std::is_signed<V>::value && b == (V)-1 ? (V)0 : (V)(a % b));
    }, "dss"};
}

template <typename V, typename W> void add_wide(Opcodes& all, const std::string& s) {
    OP2("mul.wide." + s, W, V, V, (W)a * (W)b);
    OP2("mul.hi." + s, V, V, V, ((W)a * (W)b) >> (8 * sizeof(V)));
    OP3("mad.wide." + s, W, V, V, W, (W)a * (W)b + c);
}

template <typename V> void add_compare(Opcodes& all, const std::string& s) {
    OP2("setp.eq." + s, bool, V, V, a == b);
    OP2("setp.ne." + s, bool, V, V, a < b || a > b);   // ordered
    OP2("setp.lt." + s, bool, V, V, a < b);
    OP2("setp.le." + s, bool, V, V, a <= b);
    OP2("setp.gt." + s, bool, V, V, a > b);
    OP2("setp.ge." + s, bool, V, V, a >= b);
}
template <typename V> void add_unordered(Opcodes& all, const std::string& s) {
    OP2("setp.equ." + s, bool, V, V, !(a < b || a > b));
    OP2("setp.neu." + s, bool, V, V, a != b);
    OP2("setp.ltu." + s, bool, V, V, !(a >= b));
    OP2("setp.leu." + s, bool, V, V, !(a > b));
    OP2("setp.gtu." + s, bool, V, V, !(a <= b));
    OP2("setp.geu." + s, bool, V, V, !(a < b));
    OP2("setp.num." + s, bool, V, V, a == a && b == b);
    OP2("setp.nan." + s, bool, V, V, a != a || b != b);
}

template <typename V> void add_select(Opcodes& all, const std::string& s) {
    all["selp." + s] = {[](T* t, const I& i) {
        const uint16_t from = get<bool>(t, i.r[3]) ? i.r[1] : i.r[2];
        put<V>(t, i.r[0], get<V>(t, from));
        t->U[i.r[0]] = t->U[from] | t->U[i.r[3]];
    }, "dsss"};
}

void add_floats(Opcodes& all) {
    for (const std::string rn : {"", ".rn"}) {
        OP2("add" + rn + ".f32", float, float, float, a + b);
        OP2("sub" + rn + ".f32", float, float, float, a - b);
        OP2("mul" + rn + ".f32", float, float, float, a * b);
        OP2("add" + rn + ".f64", double, double, double, a + b);
        OP2("sub" + rn + ".f64", double, double, double, a - b);
        OP2("mul" + rn + ".f64", double, double, double, a * b);
    }
    OP3("fma.rn.f32", float, float, float, float, fmaf(a, b, c));
    OP3("fma.rm.f32", float, float, float, float, rounded_down(a, b, c));
    OP3("fma.rn.f64", double, double, double, double, fma(a, b, c));
    OP2("div.rn.f32", float, float, float, a / b);
    OP2("div.rn.f64", double, double, double, a / b);
    OP1("rcp.rn.f32", float, float, 1.0f / a);
    OP1("rcp.rn.f64", double, double, 1.0 / a);
    OP1("sqrt.rn.f32", float, float, sqrtf(a));
    OP1("sqrt.rn.f64", double, double, sqrt(a));
    OP1("neg.f32", float, float, -a);
    OP1("neg.f64", double, double, -a);
    OP1("abs.f32", float, float, fabsf(a));
    OP1("abs.f64", double, double, fabs(a));
    OP2("min.f32", float, float, float, fminf(a, b));
    OP2("max.f32", float, float, float, fmaxf(a, b));
    OP2("min.f64", double, double, double, fmin(a, b));
    OP2("max.f64", double, double, double, fmax(a, b));
    OP1("rcp.approx.ftz.f32", float, float, flush(1.0f / flush(a)));
    OP1("ex2.approx.ftz.f32", float, float, flush(exp2f(flush(a))));
    OP1("ex2.approx.f32", float, float, exp2f(a));
    OP1("lg2.approx.f32", float, float, log2f(a));
    OP1("rsqrt.approx.f32", float, float, (float)(1.0 / sqrt((double)a)));
    OP1("mov.f32", float, float, a);
    OP1("mov.f64", double, double, a);
}

void add_conversions(Opcodes& all) {
    OP1("cvt.f64.f32", double, float, a);
    OP1("cvt.rn.f32.f64", float, double, a);
    OP1("cvt.sat.f32.f32", float, float, a != a ? 0.0f : fminf(fmaxf(a, 0.0f), 1.0f));
    OP1("cvt.rn.f32.s32", float, int32_t, a);
    OP1("cvt.rn.f32.u32", float, uint32_t, a);
    OP1("cvt.rn.f32.s64", float, int64_t, a);
    OP1("cvt.rn.f32.u64", float, uint64_t, a);
    OP1("cvt.rn.f64.s32", double, int32_t, a);
    OP1("cvt.rn.f64.u32", double, uint32_t, a);
    OP1("cvt.rn.f64.s64", double, int64_t, a);
    OP1("cvt.rn.f64.u64", double, uint64_t, a);
    OP1("cvt.s64.s32", int64_t, int32_t, a);
    OP1("cvt.s32.s16", int32_t, int16_t, a);
    OP1("cvt.s64.s16", int64_t, int16_t, a);
    OP1("cvt.s32.s8", int32_t, int8_t, a);
    OP1("cvt.s16.s8", int16_t, int8_t, a);
    OP1("cvt.s8.s32", int8_t, int32_t, a);
    OP1("cvt.u64.u32", uint64_t, uint32_t, a);
    OP1("cvt.u64.u16", uint64_t, uint16_t, a);
    OP1("cvt.u32.u64", uint32_t, uint64_t, a);
    OP1("cvt.u32.u16", uint32_t, uint16_t, a);
    OP1("cvt.u16.u32", uint16_t, uint32_t, a);
    OP1("cvt.u16.u64", uint16_t, uint64_t, a);
    OP1("cvt.u32.u8", uint32_t, uint8_t, a);
    OP1("cvt.u16.u8", uint16_t, uint8_t, a);
    OP1("cvt.rn.bf16.f32", Bf16, float, to_bf16(a));
    OP1("cvt.f32.bf16", float, Bf16, from_bf16(a));
    OP2("cvt.rn.bf16x2.f32", uint32_t, float, float, (uint32_t)to_bf16(a).bits << 16 | to_bf16(b).bits);
    OP2("cvt.rn.satfinite.e4m3x2.f32", uint16_t, float, float, (fp8_pair<3, 7>(a, b, 448.0f)));
    OP2("cvt.rn.satfinite.e5m2x2.f32", uint16_t, float, float, (fp8_pair<2, 15>(a, b, 57344.0f)));
}

void add_bits(Opcodes& all) {
    OP2("and.pred", bool, bool, bool, a && b);
    OP2("or.pred", bool, bool, bool, a || b);
    OP2("xor.pred", bool, bool, bool, a != b);
    OP1("not.pred", bool, bool, !a);
    OP1("mov.pred", bool, bool, a);
    OP1("clz.b32", uint32_t, uint32_t, a == 0 ? 32 : __builtin_clz(a));
    OP1("popc.b32", uint32_t, uint32_t, __builtin_popcount(a));
    OP3("prmt.b32", uint32_t, uint32_t, uint32_t, uint32_t, prmt(a, b, c));
    OP3("bfe.u32", uint32_t, uint32_t, uint32_t, uint32_t, bfe(a, b, c));
    OP3("bfe.u64", uint64_t, uint64_t, uint32_t, uint32_t, bfe(a, b, c));
    OP3("shf.l.wrap.b32", uint32_t, uint32_t, uint32_t, uint32_t, funnel_left(a, b, c));
    OP3("shf.r.wrap.b32", uint32_t, uint32_t, uint32_t, uint32_t, funnel_right(a, b, c));
    all["bfi.b32"] = {[](T* t, const I& i) {
        BODY(4, uint32_t, bfi(get<uint32_t>(t, i.r[1]), get<uint32_t>(t, i.r[2]), get<uint32_t>(t, i.r[3]),
                              get<uint32_t>(t, i.r[4])));
    }, "dssss"};
    all["mov.pack"] = {[](T* t, const I& i) {
        uint64_t bits = 0;
        for (int n = 0; n < i.count; n++)
            bits |= (t->R[i.r[1 + n]] & (~(uint64_t)0 >> (64 - 8 * i.bytes))) << (8 * i.bytes * n);
        t->R[i.r[0]] = bits;
        taint(t, i, i.count);
    }, ""};
    all["mov.unpack"] = {[](T* t, const I& i) {
        const uint64_t bits = t->R[i.r[0]];
        const uint8_t undefined = t->U[i.r[0]];
        for (int n = 0; n < i.count; n++) {
            t->R[i.r[1 + n]] = bits >> (8 * i.bytes * n) & (~(uint64_t)0 >> (64 - 8 * i.bytes));
            t->U[i.r[1 + n]] = undefined;
        }
    }, ""};
}

// ---------------------------------------------------------------------------------------------
// Memory

// Describes an address relative to the array that contains it or, within 4 KiB, is nearest to it.
const char* address_text(char* text, size_t cap, const T* t, uint64_t a) {
    const PtxRange* nearest = nullptr;
    uint64_t least = 4096;
    for (const PtxRange& r : t->launch->ranges) {
        const uint64_t begin = (uint64_t)r.begin, end = (uint64_t)r.end,
                       distance = a < begin ? begin - a : a >= end ? a - end + 1 : 0;
        if (distance < least) least = distance, nearest = &r;
    }
    if (!nearest) snprintf(text, cap, "address 0x%llx", (unsigned long long)a);
    else snprintf(text, cap, "byte %lld of an array of %zu", (long long)(a - (uint64_t)nearest->begin),
                  (size_t)(nearest->end - nearest->begin));
    return text;
}

uint64_t address_of(const T* t, const I& i) {
    if (t->U[i.address]) fail(t, i, "the address is undefined");
    return t->R[i.address] + (uint64_t)i.offset;
}
void check_aligned(const T* t, const I& i, uint64_t a) {
    char text[128];
    const size_t bytes = (size_t)i.count * i.bytes;
    if (a % bytes != 0) fail(t, i, "%zu bytes at %s: misaligned", bytes, address_text(text, sizeof text, t, a));
}

// Device memory
char* in_global(T* t, const I& i, uint64_t a) {
    char text[128];
    const size_t bytes = (size_t)i.count * i.bytes;
    const std::vector<PtxRange>& ranges = t->launch->ranges;
    char* p = (char*)a;
    check_aligned(t, i, a);
    if (i.range >= ranges.size() || p < ranges[i.range].begin || p + bytes > ranges[i.range].end) {
        const auto after = std::upper_bound(ranges.begin(), ranges.end(), p,
                                            [](const char* x, const PtxRange& r) { return x < r.begin; });
        if (after == ranges.begin() || p + bytes > (after - 1)->end)
            fail(t, i, "%zu bytes at %s: out of bounds", bytes, address_text(text, sizeof text, t, a));
        i.range = (uint32_t)(after - 1 - ranges.begin());
    }
    if (t->launch->early && !t->waited) fail(t, i, "device memory is accessed before griddepcontrol.wait");
    return p;
}
char* in_shared(T* t, const I& i, uint64_t a) {
    const size_t bytes = (size_t)i.count * i.bytes;
    check_aligned(t, i, a);
    if (a < PTX_SHARED_BASE || a + bytes > PTX_SHARED_BASE + t->launch->shared_bytes)
        fail(t, i, "%zu bytes at offset %lld of %zu bytes of shared memory: out of bounds", bytes,
             (long long)a - PTX_SHARED_BASE, t->launch->shared_bytes);
    return t->shared + (a - PTX_SHARED_BASE);
}
char* in_local(T* t, const I& i, uint64_t a) {
    const size_t bytes = (size_t)i.count * i.bytes;
    check_aligned(t, i, a);
    if (a + bytes > t->launch->kernel->local_bytes)
        fail(t, i, "%zu bytes at offset %llu of %zu bytes of local memory: out of bounds", bytes, (unsigned long long)a,
             t->launch->kernel->local_bytes);
    return t->local + a;
}

// Generic addresses are host addresses. Converts *a to an address in its state space.
enum Space { GLOBAL, SHARED, LOCAL };
Space space_of(const T* t, uint64_t* a) {
    const uint64_t in_shared = *a - (uint64_t)t->shared, in_local = *a - (uint64_t)t->local;
    if (in_shared < t->launch->shared_bytes) return *a = in_shared + PTX_SHARED_BASE, SHARED;
    if (in_local < t->launch->kernel->local_bytes) return *a = in_local, LOCAL;
    return GLOBAL;
}

uint64_t element(const char* p, const I& i) {
    switch (i.bytes) {
    case 1: return i.is_signed ? (uint64_t)(int64_t)*(const int8_t*)p : *(const uint8_t*)p;
    case 2: return i.is_signed ? (uint64_t)(int64_t)*(const int16_t*)p : *(const uint16_t*)p;
    case 4: return i.is_signed ? (uint64_t)(int64_t)*(const int32_t*)p : *(const uint32_t*)p;
    default: return *(const uint64_t*)p;
    }
}
void load(T* t, const I& i, const char* p, const char* undefined) {
    for (int n = 0; n < i.count; n++, p += i.bytes) {
        t->R[i.r[n]] = element(p, i);
        t->U[i.r[n]] = 0;
        for (int k = 0; undefined && k < i.bytes; k++) t->U[i.r[n]] |= *undefined++ != 0;
    }
}
void store(const T* t, const I& i, char* p) {
    for (int n = 0; n < i.count; n++, p += i.bytes) {
        const uint64_t x = t->R[i.r[n]];
        if (i.bytes == 1) *(uint8_t*)p = (uint8_t)x;
        else if (i.bytes == 2) *(uint16_t*)p = (uint16_t)x;
        else if (i.bytes == 4) *(uint32_t*)p = (uint32_t)x;
        else *(uint64_t*)p = x;
    }
}

void load_param(T* t, const I& i) {
    const uint64_t a = address_of(t, i);
    const size_t bytes = (size_t)i.count * i.bytes;
    check_aligned(t, i, a);
    if (a + bytes > t->launch->kernel->param_bytes) fail(t, i, "outside of the parameters");
    load(t, i, t->launch->params.data() + a, nullptr);
}

void load_global_at(T* t, const I& i, uint64_t a) {
    const char* p = in_global(t, i, a);
    race_access(p, (size_t)i.count * i.bytes, false);
    load(t, i, p, nullptr);
}
void load_global(T* t, const I& i) { load_global_at(t, i, address_of(t, i)); }
// The kernel must not write what it reads through the read-only cache.
void load_read_only(T* t, const I& i) {
    load_global(t, i);
    if (race_written((const char*)address_of(t, i), (size_t)i.count * i.bytes))
        fail(t, i, "this launch has written what it reads as read-only");
}
void store_global_at(T* t, const I& i, uint64_t a) {
    char* p = in_global(t, i, a);
    for (int n = 0; n < i.count; n++)
        if (t->U[i.r[n]]) fail(t, i, "an undefined value is stored");
    race_access(p, (size_t)i.count * i.bytes, true);
    store(t, i, p);
    t->launch->stored[i.range] |= i.type;
}
void store_global(T* t, const I& i) { store_global_at(t, i, address_of(t, i)); }

void load_shared_at(T* t, const I& i, uint64_t a) {
    const char* p = in_shared(t, i, a);
    race_access(p, (size_t)i.count * i.bytes, false);
    load(t, i, p, p + t->launch->shared_bytes);
}
void load_shared(T* t, const I& i) { load_shared_at(t, i, (uint32_t)address_of(t, i)); }
void store_shared_at(T* t, const I& i, uint64_t a) {
    char* p = in_shared(t, i, a);
    race_access(p, (size_t)i.count * i.bytes, true);
    store(t, i, p);
    for (int n = 0; n < i.count; n++) memset(p + t->launch->shared_bytes + n * i.bytes, t->U[i.r[n]], i.bytes);
}
void store_shared(T* t, const I& i) { store_shared_at(t, i, (uint32_t)address_of(t, i)); }

void load_local(T* t, const I& i) { load(t, i, in_local(t, i, address_of(t, i)), nullptr); }
void store_local(T* t, const I& i) { store(t, i, in_local(t, i, address_of(t, i))); }

void load_generic(T* t, const I& i) {
    uint64_t a = address_of(t, i);
    const Space s = space_of(t, &a);
    if (s == GLOBAL) load_global_at(t, i, a);
    else if (s == SHARED) load_shared_at(t, i, a);
    else load(t, i, in_local(t, i, a), nullptr);
}
void store_generic(T* t, const I& i) {
    uint64_t a = address_of(t, i);
    const Space s = space_of(t, &a);
    if (s == GLOBAL) store_global_at(t, i, a);
    else if (s == SHARED) store_shared_at(t, i, a);
    else store(t, i, in_local(t, i, a));
}

int* flag_of(T* t, const I& i) {
    if (i.bytes != 4 || i.count != 1) fail(t, i, "only 32-bit flags are implemented");
    int* p = (int*)in_global(t, i, address_of(t, i));
    t->launch->stored[i.range] |= i.type;
    return p;
}
template <bool ACQUIRE> void load_flag(T* t, const I& i) {
    put<int32_t>(t, i.r[0], cuda_on_host_load(flag_of(t, i), ACQUIRE));
    t->U[i.r[0]] = 0;
}
template <bool RELEASE> void store_flag(T* t, const I& i) {
    if (t->U[i.r[0]]) fail(t, i, "an undefined value is stored");
    cuda_on_host_store(flag_of(t, i), get<int32_t>(t, i.r[0]), RELEASE);
}
void atomic_add(T* t, const I& i) {
    if (t->U[i.r[1]]) fail(t, i, "an undefined value is added");
    char* p = in_global(t, i, address_of(t, i));
    t->launch->stored[i.range] |= i.type;
    t->R[i.r[0]] = cuda_on_host_add(p, i.bytes, t->R[i.r[1]]);
    t->U[i.r[0]] = 0;
}
void atomic_max(T* t, const I& i) {
    if (t->U[i.r[1]]) fail(t, i, "the operand is undefined");
    if (!i.is_signed) fail(t, i, "only .s32 is implemented");
    put<int32_t>(t, i.r[0], cuda_on_host_max(flag_of(t, i), get<int32_t>(t, i.r[1])));
    t->U[i.r[0]] = 0;
}

// ---------------------------------------------------------------------------------------------
// Threads

void branch(T* t, const I& i) {
    if ((size_t)i.offset < t->pc && ++t->turns > 1u << 24) fail(t, i, "a loop does not end");
    t->pc = (size_t)i.offset;
}
void barrier(T* t, const I& i) {
    if (t->R[i.r[0]] != 0) fail(t, i, "only barrier 0 is implemented");
    cuda_on_host_sync_threads(i.line);
}
void sync_warp(T* t, const I& i) {
    cuda_on_host_warp(CUDA_OP_SYNC, get<uint32_t>(t, i.r[0]), 0, 0, i.line);
}
enum Vote { BALLOT, ALL, ANY };
template <Vote V> void vote(T* t, const I& i) {
    const uint32_t mask = get<uint32_t>(t, i.r[2]);
    if (t->U[i.r[1]] || t->U[i.r[2]]) fail(t, i, "an operand is undefined");
    const uint32_t lanes = (uint32_t)cuda_on_host_warp(CUDA_OP_BALLOT, mask, get<bool>(t, i.r[1]), 0, i.line);
    t->R[i.r[0]] = V == BALLOT ? lanes : V == ALL ? lanes == mask : lanes != 0;
    t->U[i.r[0]] = 0;
}

enum Shuffle { UP, DOWN, BUTTERFLY, INDEX };
// i.r: result, predicate, value, lane or offset, clamp and segment mask, member mask. Bit 32 of an exchanged value is
// set if the value is undefined.
template <Shuffle S> void shuffle(T* t, const I& i) {
    for (int n = 3; n < 6; n++)
        if (t->U[i.r[n]]) fail(t, i, "an operand is undefined");
    const int lane = cuda_on_host_lane(), by = get<int32_t>(t, i.r[3]) & 31, c = get<int32_t>(t, i.r[4]),
              segment = c >> 8 & 31, clamp = c & 31, first = lane & segment, last = first | (clamp & ~segment);
    int from = S == UP ? lane - by : S == DOWN ? lane + by : S == BUTTERFLY ? lane ^ by : first | (by & ~segment);
    const bool inside = S == UP ? from >= last : from <= last;
    if (!inside) from = lane;
    const uint64_t value = get<uint32_t>(t, i.r[2]) | (uint64_t)t->U[i.r[2]] << 32,
                   got = cuda_on_host_warp(CUDA_OP_SHUFFLE, get<uint32_t>(t, i.r[5]), value, from, i.line);
    t->R[i.r[0]] = (uint32_t)got;
    t->U[i.r[0]] = got >> 32 & 1;
    t->R[i.r[1]] = inside;
    t->U[i.r[1]] = 0;
}

void add_threads(Opcodes& all) {
    all["bar.sync"] = all["barrier.sync"] = {barrier, "s"};
    all["bar.warp.sync"] = {sync_warp, "s"};
    all["vote.sync.ballot.b32"] = {vote<BALLOT>, "dss"};
    all["vote.sync.all.pred"] = {vote<ALL>, "dss"};
    all["vote.sync.any.pred"] = {vote<ANY>, "dss"};
    all["shfl.sync.up.b32"] = {shuffle<UP>, "pssss"};
    all["shfl.sync.down.b32"] = {shuffle<DOWN>, "pssss"};
    all["shfl.sync.bfly.b32"] = {shuffle<BUTTERFLY>, "pssss"};
    all["shfl.sync.idx.b32"] = {shuffle<INDEX>, "pssss"};
    all["membar.gl"] = all["fence.acq_rel.gpu"] = all["fence.sc.gpu"] = {[](T*, const I&) { __threadfence(); }, ""};
    all["griddepcontrol.wait"] = {[](T* t, const I&) {
        t->waited = true;
        cuda_on_host_dependency_wait();
    }, ""};
    all["griddepcontrol.launch_dependents"] = {[](T*, const I&) {}, ""};
    all["ret"] = all["exit"] = {[](T* t, const I&) { t->done = true; }, ""};
    OP1("cvta.to.global.u64", uint64_t, uint64_t, a);
    OP1("cvta.global.u64", uint64_t, uint64_t, a);
    OP1("cvta.shared.u64", uint64_t, uint64_t, a - PTX_SHARED_BASE + (uint64_t)t->shared);
    OP1("cvta.to.shared.u64", uint64_t, uint64_t, a - (uint64_t)t->shared + PTX_SHARED_BASE);
    OP1("cvta.local.u64", uint64_t, uint64_t, a + (uint64_t)t->local);
    OP1("cvta.to.local.u64", uint64_t, uint64_t, a - (uint64_t)t->local);
}

Opcodes all_opcodes() {
    Opcodes all;
    add_logic<uint16_t>(all, "b16");
    add_logic<uint32_t>(all, "b32");
    add_logic<uint64_t>(all, "b64");
    add_integer<int16_t, uint16_t>(all, "s16");
    add_integer<uint16_t, uint16_t>(all, "u16");
    add_integer<int32_t, uint32_t>(all, "s32");
    add_integer<uint32_t, uint32_t>(all, "u32");
    add_integer<int64_t, uint64_t>(all, "s64");
    add_integer<uint64_t, uint64_t>(all, "u64");
    add_wide<int16_t, int32_t>(all, "s16");
    add_wide<uint16_t, uint32_t>(all, "u16");
    add_wide<int32_t, int64_t>(all, "s32");
    add_wide<uint32_t, uint64_t>(all, "u32");
    add_compare<int16_t>(all, "s16");
    add_compare<uint16_t>(all, "u16");
    add_compare<uint16_t>(all, "b16");
    add_compare<int32_t>(all, "s32");
    add_compare<uint32_t>(all, "u32");
    add_compare<uint32_t>(all, "b32");
    add_compare<int64_t>(all, "s64");
    add_compare<uint64_t>(all, "u64");
    add_compare<uint64_t>(all, "b64");
    add_compare<float>(all, "f32");
    add_compare<double>(all, "f64");
    add_unordered<float>(all, "f32");
    add_unordered<double>(all, "f64");
    for (const char* type : {"b16", "u16", "s16"}) add_select<uint16_t>(all, type);
    for (const char* type : {"b32", "u32", "s32", "f32"}) add_select<uint32_t>(all, type);
    for (const char* type : {"b64", "u64", "s64", "f64"}) add_select<uint64_t>(all, type);
    add_floats(all);
    add_conversions(all);
    add_bits(all);
    add_threads(all);
    return all;
}

const Opcodes opcodes = all_opcodes();

const std::map<std::string, PtxRun*> memory_opcodes = {
    {"ld.param", load_param}, {"ld.global", load_global}, {"ld.global.cg", load_global},
    {"ld.volatile.global", load_global}, {"ld.global.nc", load_read_only}, {"ld.shared", load_shared},
    {"ld.volatile.shared", load_shared}, {"ld.local", load_local}, {"ld", load_generic},
    {"ld.relaxed.gpu.global", load_flag<false>}, {"ld.acquire.gpu.global", load_flag<true>},
    {"st.global", store_global}, {"st.volatile.global", store_global}, {"st.shared", store_shared},
    {"st.volatile.shared", store_shared}, {"st.local", store_local}, {"st", store_generic},
    {"st.relaxed.gpu.global", store_flag<false>}, {"st.release.gpu.global", store_flag<true>},
    {"atom.global.add", atomic_add}, {"atom.global.max", atomic_max}};

}  // namespace

const std::unordered_map<std::string, PtxOpcode>& ptx_opcodes() { return opcodes; }

PtxRun* ptx_branch_run() { return branch; }

PtxRun* ptx_memory_run(const std::string& base, const std::vector<std::string>& modifiers, bool* from_registers) {
    std::string name = base;
    for (const std::string& m : modifiers)
        if (m != "v2" && m != "v4") name += "." + m;
    const auto found = memory_opcodes.find(name);
    *from_registers = base == "st";
    return found == memory_opcodes.end() ? nullptr : found->second;
}

void ptx_run_thread(const PtxLaunch* l) {
    const PtxKernel& k = *l->kernel;
    const size_t n = k.registers.size();
    PtxThread t = {};
    t.launch = l;
    t.R = (uint64_t*)alloca(n * sizeof *t.R);
    t.U = (uint8_t*)alloca(n);
    t.local = (char*)alloca(k.local_bytes + 16);
    t.local += -(uintptr_t)t.local & 15;
    t.shared = (char*)cuda_on_host_dynamic_shared();
    memcpy(t.R, k.registers.data(), n * sizeof *t.R);
    memcpy(t.U, k.undefined.data(), n);
    memset(t.local, 0xff, k.local_bytes);
    const unsigned special[] = {threadIdx.x, threadIdx.y, threadIdx.z, blockDim.x, blockDim.y, blockDim.z,
                                blockIdx.x,  blockIdx.y,  blockIdx.z,  gridDim.x,  gridDim.y,  gridDim.z};
    std::copy(special, special + 12, t.R + PTX_TID);
    t.R[PTX_LANE] = (uint64_t)cuda_on_host_lane();
    while (!t.done) {
        if (t.pc >= k.code.size()) cuda_on_host_die("%s runs past its end", k.name.c_str());
        const PtxInstruction& i = k.code[t.pc++];
        l->now = &i;
        if (t.U[i.guard]) fail(&t, i, "the predicate is undefined");
        if ((t.R[i.guard] & 1) == i.unless) continue;
        i.reached = true;
        i.run(&t, i);
    }
}
