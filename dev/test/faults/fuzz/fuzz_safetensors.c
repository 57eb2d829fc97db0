// fuzz_safetensors.c: safetensors files. Accepted tensors must lie inside the file and be readable.
#include "fuzz.h"

#include "tost/store/safetensors.h"

static void read_tensor(const StFile* f, const StTensor* t) {
    TostError err = {0};
    must_hold(t->offset >= f->data_start && t->bytes <= f->file_size && t->offset <= f->file_size - t->bytes,
              "tensor outside the file");
    must_hold(t->count <= t->bytes, "more elements than bytes");
    must_hold(st_find(f, t->name) == t, "tensor not found by name");
    float* x = xmalloc((t->count + 1) * sizeof *x);
    x[t->count] = 0;
    if (!st_read_f32(f, t, x, &err)) check_message(&err);
    free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    TostError err = {0};
    StFile f;
    char* path = fuzz_file("any.safetensors", data, size);
    if (st_open(&f, path, &err)) {
        uint32_t crc;
        uint64_t end = f.data_start;
        for (int i = 0; i < f.n_tensors; i++) {
            end += f.tensors[i].bytes;
            read_tensor(&f, &f.tensors[i]);
        }
        must_hold(end == f.file_size, "overlap or gap between tensors");
        for (int i = 0; i < f.meta.count; i++)
            must_hold(st_meta(&f, f.meta.entry[i].key) != NULL, "metadata not found by key");
        must_hold(st_crc32(&f, &crc, &err), "CRC of an accepted file failed");
        st_close(&f);
    } else check_message(&err);
    free(path);
    return 0;
}
