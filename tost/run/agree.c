// agree.c: what the ranks of a training run decide together: whether to stop, whether all succeeded, whether they run
// the same program on the same data, and the mean loss. The messages are those of ranks/comm.h; one process sends none.
#include "base/crc32.h"
#include "base/signals.h"
#include "run/run.h"

int run_signal(const Run* r) { return comm_size(r->comm) > 1 ? r->signal : signals_received(); }

bool run_agree(Run* r, bool ok, TostError* err) {
    const int size = comm_size(r->comm);
    if (size == 1) return ok;
    const int own = signals_received();
    int* all = xmalloc((size_t)size * sizeof *all);
    comm_allgather(r->comm, all, &own, sizeof own);
    for (int i = 0; i < size && !r->signal; i++) r->signal = all[i];
    free(all);
    return comm_agree(r->comm, ok, err);
}

static uint32_t params_crc(const Run* r) {
    uint32_t crc = 0;
    for (int i = 0; i < r->tensors.count; i++) {
        const TostTensor* t = &r->tensors.tensor[i];
        float* values = xmalloc(t->size * sizeof *values);
        r->engine->get(values, r->model, TOST_PARAM, t);
        crc = crc32_update(crc, values, t->size * sizeof *values);
        free(values);
    }
    return crc;
}

static uint32_t program_crc(const Run* r) {
    const char* path = path_exists("/proc/self/exe") ? "/proc/self/exe" : r->args->program;
    Bytes bytes = {0};
    const uint32_t crc = read_file(&bytes, path, &(TostError){0}) ? crc32_update(0, bytes.data, bytes.size) : 0;
    free(bytes.data);
    return crc;
}

bool run_compare(Run* r, TostError* err) {
    TostComm* c = r->comm;
    return !c || (
        comm_same(c, program_crc(r), "the program differs from that of rank 0: run the same build on all hosts", err)
        && comm_same(c, data_crc(r->data) + (r->val ? (uint64_t)data_crc(r->val) << 32 : 0), "the shards of --data or "
                     "--val-data differ from those of rank 0: give all hosts the same files", err)
        && comm_same(c, (uint64_t)r->info.step + ((uint64_t)r->info.best_val_step << 32), "the newest or the best "
                     "checkpoint is of another step than on rank 0: all hosts must see the same run folder", err)
        && comm_same(c, params_crc(r), "the initial parameters differ from those of rank 0: give all hosts the same "
                     "files and the same kind of processor", err));
}

LossSum run_total_loss(const Run* r) {
    LossSum *all = xmalloc((size_t)r->recipe.parts * sizeof *all), total = {0};
    comm_allgather(r->comm, all, r->part_loss, (size_t)run_own_parts(r) * sizeof *all);
    for (int p = 0; p < r->recipe.parts; p++) {
        total.sum += all[p].sum;
        total.count += all[p].count;
        total.squares += all[p].squares;
        total.bytes += all[p].bytes;
    }
    free(all);
    return total;
}
