// engine_memory.h: memory layout for both engines: an arena, which places many arrays in one allocation, and pointers
// to the parameters of one layer. Read by C11 and by CUDA C++17.
#ifndef TOST_ENGINE_MEMORY_H
#define TOST_ENGINE_MEMORY_H

#include "model.h"

// ---------------------------------------------------------------------------------------------
// Arena. With base NULL it only counts: one function first measures the allocation, then fills in the pointers.

typedef struct {
    char*  base;                             // the allocation, or NULL
    size_t used;                             // bytes handed out so far, alignment and red zones included
    size_t alignment;                        // of every array, in bytes
    size_t redzone;                          // bytes after each array that must not be accessed; 0 without a sanitizer
    void (*poison)(void* p, size_t bytes);   // marks a red zone; unused if redzone is 0
} Arena;

// The next `bytes` of the arena; NULL while it only counts. The count saturates far above what any machine has.
static inline void* arena_alloc(Arena* a, size_t bytes) {
    const size_t most = SIZE_MAX / 4;
    if (bytes > most || a->used > most) {
        a->used = most;
        return NULL;
    }
    const size_t size = (bytes + a->alignment - 1) / a->alignment * a->alignment;
    char* p = a->base ? a->base + a->used : NULL;
    if (p && a->redzone) a->poison(p + size, a->redzone);
    a->used += size + a->redzone;
    return p;
}

// ---------------------------------------------------------------------------------------------
// Pointers into one flat array of parameters, gradients or Adam's moments: the tensors outside of the layers and those
// of one layer, one field per row of the table; NULL if this config has no such tensor.

#define X_SET(field, place, name, shape, init, decay, when) { \
        const size_t offset = tost_row_offset(tensors, TOST_ROW_##field, layer); \
        p.field = offset == SIZE_MAX ? NULL : flat + offset; }
#ifdef __cplusplus
#define X(field, place, name, shape, init, decay, when) T* field;
template <typename T> struct TostParams { TOST_PARAMS(X) };
#undef X

template <typename T> static inline TostParams<T> tost_params(const TostTensors* tensors, T* flat, int layer) {
    TostParams<T> p;
    TOST_PARAMS(X_SET)
    return p;
}
#else
#define X(field, place, name, shape, init, decay, when) float* field;
typedef struct { TOST_PARAMS(X) } TostParams;
#undef X

static inline TostParams tost_params(const TostTensors* tensors, float* flat, int layer) {
    TostParams p;
    TOST_PARAMS(X_SET)
    return p;
}
#endif
#undef X_SET

#endif
