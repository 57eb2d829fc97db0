// fuzz_safetensors.c: any safetensors file. What is accepted lies inside the file, and reads.
#include "fuzz.h"

#include <math.h>

#include "tost/safetensors.h"

static void read_tensor(const StFile* f, const StTensor* t) {
    TostError err = {0};
    must_hold(t->offset >= f->data_start && t->bytes <= f->file_size && t->offset <= f->file_size - t->bytes,
              "a tensor outside of its file");
    must_hold(t->count <= t->bytes, "more elements than bytes");
    must_hold(st_find(f, t->name) == t, "a tensor that is not found by its name");
    double* x = xmalloc((t->count + 1) * sizeof *x);
    x[t->count] = 0;
    if (!st_read_f64(f, t, x, &err)) must_say(&err);
    if (!st_read_f32(f, t, (float*)x, &err)) must_say(&err);
    if (!st_read_i32(f, t, (int32_t*)x, &err)) must_say(&err);
    free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    TostError err = {0};
    StFile f;
    char* path = fuzz_file("any.safetensors", data, size);
    if (st_open(&f, path, &err)) {
        uint32_t crc;
        for (int i = 0; i < f.n_tensors; i++) {
            const uint64_t begin = i ? f.tensors[i - 1].offset + f.tensors[i - 1].bytes : f.data_start;
            must_hold(f.tensors[i].offset == begin, "tensors that overlap or leave a gap");
            read_tensor(&f, &f.tensors[i]);
        }
        for (int i = 0; i < f.n_meta; i++) must_hold(st_meta(&f, f.meta[i].key) != NULL, "metadata that is not found");
        must_hold(st_crc32(&f, &crc, &err), "a sum over a file that opened");
        st_close(&f);
    } else must_say(&err);
    free(path);
    return 0;
}
