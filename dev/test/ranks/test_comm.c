// test_comm.c: slices and parts, messages between ranks, and training on 1 to 6 ranks, which are threads of this
// process: gradients, norms, parameters and moments must be equal bit for bit.
#define TOST_NO_MAIN
#include "train_gpt_tost.c"

#include <sys/wait.h>

#include "base/crc32.h"
#include "base/rng.h"
#include "comm_threads.h"
#include "dev/test/check.h"
#include "init.h"
#include "recipe.h"

static const TostConfig configs[] = {
    {.n_layer = 3, .n_head = 4, .n_embd = 96, .block_size = 24, .vocab_size = 700},
    {.n_layer = 2, .n_head = 5, .n_embd = 95, .block_size = 19, .vocab_size = 311, .bias = 1, .conv = 4, .memory = 1,
     .bigrams = 500},
    {.n_layer = 1, .n_head = 1, .n_embd = 4, .block_size = 3, .vocab_size = 5},   // below one unit
    {.n_layer = 1, .n_head = 1, .n_embd = 128, .block_size = 8, .vocab_size = 80000},   // wte: several buckets
};

// ---- Slices ---------------------------------------------------------------------------------------------------------

// The slices and gaps of all ranks, sorted by place, are the flat array; a rank's slices are packed in its order.
static void test_slices_of(Checks* c, const TostConfig* config, int ranks) {
    TostTensors tensors = tost_tensors(config);
    Slices s = slices_new(&tensors, ranks);
    const size_t n = tensors.flat_size, largest = (slice_units(n) + (size_t)s.buckets * ranks) / ranks * SLICE_UNIT;
    size_t end = 0, next[RANKS_MAX] = {0};
    bool covered = true, packed = true, limited = true;
    for (int k = s.buckets - 1; k >= 0; k--) {
        for (int r = 0; r < ranks; r++) {
            const Range own = slices_of(&s, r, k);
            covered = covered && own.start == end && (own.end % SLICE_UNIT == 0 || own.end == n);
            packed = packed && slices_packed(&s, r, k) == next[r];
            end = own.end;
            next[r] += range_size(own);
        }
        limited = limited && (ranks == 1 || range_size(s.bucket[k]) <= (size_t)BUCKET_UNITS * SLICE_UNIT);
    }
    for (int r = 0; r < ranks; r++) {
        packed = packed && slices_packed(&s, r, -1) == next[r];
        limited = limited && next[r] <= largest;
    }
    check(c, covered && end == n, "%d ranks, %d channels: slices overlap or leave elements out", ranks, config->n_embd);
    check(c, packed, "%d ranks, %d channels: slices are not packed in order", ranks, config->n_embd);
    check(c, limited, "%d ranks, %d channels: a bucket or a rank has too many elements", ranks, config->n_embd);
    free(s.bucket);
    tost_tensors_free(&tensors);
}

static void test_parts(Checks* c) {
    static const struct { int parts, ranks; bool fits; const char* text; } cases[] = {
        {1, 1, true, ""}, {6, 1, true, ""}, {4, 2, true, ""}, {12, 3, true, ""}, {4, 4, true, ""},
        {1, 2, false, "use --parts 2, or one rank"}, {6, 2, false, "power of two: use --parts 2, or one"},
        {9, 3, false, "use --parts 3, "}, {5, 4, false, "use --parts 4, "},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        TostError err = {""};
        TostRecipe recipe = tost_presets[0];
        recipe.parts = cases[i].parts;
        recipe.given = (uint64_t)1 << RECIPE_parts;
        const bool ok = recipe_derive(&recipe, cases[i].ranks, false, &err);
        check(c, ok == cases[i].fits && strstr(err.text, cases[i].text), "%d parts, %d ranks: %d, %s", cases[i].parts,
              cases[i].ranks, ok, err.text);
    }
    bool right = true;
    for (int i = 0; i < 2 * 40; i++) {   // n samples of 8 parts on 1 or 4 ranks, in micro-batches of 2
        const int n = i / 2, ranks = i % 2 ? 4 : 1;
        int64_t next = 0;
        for (int rank = 0; rank < ranks; rank++) {
            const Share s = share_of(n, 2, 8, rank, ranks);
            for (int64_t k = 0; k < s.n; k++) {
                const MicroBatch m = share_micro_batch(&s, k);
                const int64_t first = part_start(n, s.first_part + m.part, 8), at = k % s.each;
                const int64_t end = part_start(n, s.first_part + m.part + 1, 8), size = end - first;
                const TostEnd then = k + 1 == s.n ? TOST_STEP_ENDS : at + 1 == s.each ? TOST_PART_ENDS : TOST_MORE;
                right = right && m.start == next && first <= next && m.rows >= 0 && m.rows <= 2 && m.end == then;
                right = right && (size == n / 8 || size == n / 8 + 1);
                right = right && (at + 1 < s.each ? next + m.rows <= end : next + m.rows == end);
                next += m.rows;
            }
        }
        right = right && next == n;
    }
    check(c, right, "micro-batches do not cover 0 to 39 samples in order, or end in other places than the parts");
}

// ---- Host messages --------------------------------------------------------------------------------------------------

static size_t message_rank(TostComm* comm, void* context) {
    (void)context;
    const int rank = comm_rank(comm), size = comm_size(comm);
    int all[RANKS_MAX] = {0}, value = 100 + rank;
    TostError err;
    comm_allgather(comm, all, &value, sizeof value);
    bool right = comm->places[size - 1].rank == size - 1 && comm->place.local_rank == rank;
    for (int r = 0; r < size; r++) right = right && all[r] == 100 + r;
    for (int root = 0; root < size; root++) {
        value = rank == root ? 7 * root : -1;
        comm_broadcast(comm, &value, sizeof value, root);
        right = right && value == 7 * root;
    }
    right = right && comm_agree(comm, true, &err);
    tost_error(&err, "no memory");
    right = right && !comm_agree(comm, rank != size - 1, &err);
    char* expected = xasprintf("%sno memory", comm_prefix(&comm->places[size - 1]).text);
    right = right && strcmp(err.text, expected) == 0;
    free(expected);
    return !(right && !comm_any(comm, false) && comm_any(comm, rank == size - 1));
}

static void test_messages(Checks* c) {
    for (int size = 1; size <= 5; size++)
        check(c, run_ranks(size, message_rank, NULL) == 0, "%d ranks: wrong or lost messages", size);
}

// ---- Launchers ------------------------------------------------------------------------------------------------------

static void test_launch(Checks* c) {
    static const struct { char* env[10]; const char* launcher; int rank, size; } cases[] = {
        {{"HOME=/"}, NULL, 0, 1},
        {{"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4"}, "mpirun", 2, 4},
        {{"PMI_RANK=1", "PMI_SIZE=3"}, "mpirun", 1, 3},
        {{"RANK=3", "WORLD_SIZE=5"}, "torchrun", 3, 5},
        {{"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_NTASKS=2"}, "srun", 1, 2},
        // a batch script, and shells of salloc: outside of a step, and in one of its own
        {{"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_LOCALID=0"}, NULL, 0, 1},
        {{"SLURM_NTASKS=4", "SLURM_NNODES=2"}, NULL, 0, 1},
        {{"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=1"}, NULL, 0, 1},
        // srun or mpirun start torchrun once per host
        {{"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "RANK=9", "WORLD_SIZE=16", "LOCAL_RANK=1",
          "LOCAL_WORLD_SIZE=8", "TORCHELASTIC_RUN_ID=none"}, "torchrun", 9, 16},
        {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "RANK=3", "WORLD_SIZE=4",
          "TORCHELASTIC_RUN_ID=none"}, "torchrun", 3, 4},
        // variables that a container or a script sets for another launcher
        {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "RANK=0", "WORLD_SIZE=4"}, "mpirun", 1, 2},
        {{"WORLD_SIZE=4"}, NULL, 0, 1},
        {{"RANK=4", "WORLD_SIZE=4"}, NULL, 0, 1},
    };
    char** before = environ;
    for (size_t i = 0; i < countof(cases); i++) {
        environ = (char**)(uintptr_t)cases[i].env;
        const CommLaunch l = comm_launch();
        environ = before;
        check(c, l.place.rank == cases[i].rank && l.place.size == cases[i].size
                 && (cases[i].launcher ? l.launcher && strcmp(l.launcher, cases[i].launcher) == 0 : !l.launcher),
              "launch %zu: rank %d of %d by %s", i, l.place.rank, l.place.size, l.launcher ? l.launcher : "none");
    }
}

// ---- Training -------------------------------------------------------------------------------------------------------

enum { PARTS_MAX = 6, PER_PART = 2, STEPS = 2, B = 2 };

typedef struct { const char* what; int config; TostDtype dtype; int parts, ranks[3]; TostOptimizer optimizer; } Case;

// Steps first … steps - 1 on some ranks, and what rank 0 has after them. start: continues from there, or NULL
typedef struct Training {
    const Case* of;
    TostTensors tensors;
    int         first, steps;
    const struct Training* start;
    double      norm[STEPS], loss[STEPS];
    float*      array[TOST_ARRAYS];
} Training;

static double train_step_on(TostModel* m, const Training* t, TostComm* comm, int step) {
    const int parts = t->of->parts, own = parts / comm_size(comm) * PER_PART, T = configs[t->of->config].block_size;
    const uint64_t V = (uint64_t)configs[t->of->config].vocab_size;
    int32_t *inputs = xmalloc((size_t)B * T * sizeof *inputs), *targets = xmalloc((size_t)B * T * sizeof *targets);
    double sums[PARTS_MAX], all[PARTS_MAX], loss = 0;
    int64_t count;
    tost_cpu_engine.zero_grad(m);
    for (int i = 0; i < own; i++) {
        const bool part_ends = i % PER_PART == PER_PART - 1;
        Rng rng = rng_seeded(11, (uint64_t)(step * parts * PER_PART + comm_rank(comm) * own + i));
        for (int k = 0; k < B * T; k++) {
            inputs[k] = (int32_t)rng_below(&rng, V);
            targets[k] = k % 5 == 0 ? -1 : (int32_t)rng_below(&rng, V);
        }
        const TostChunk chunk = {inputs, targets, B, T, 0};
        tost_cpu_engine.train_forward(m, &chunk, TOST_NO_STATE, 1.0f / (float)(parts * PER_PART * B * T));
        tost_cpu_engine.train_backward(m, TOST_NO_STATE, TOST_NO_STATE,
                                 !part_ends ? TOST_MORE : i + 1 < own ? TOST_PART_ENDS : TOST_STEP_ENDS);
        if (part_ends) tost_cpu_engine.read_loss(&sums[i / PER_PART], &count, m);
    }
    comm_allgather(comm, all, sums, (size_t)own / PER_PART * sizeof *sums);
    for (int p = 0; p < parts; p++) loss += all[p];
    free(inputs);
    free(targets);
    return loss;
}

// With Muon, the ranks exchange in the array of gradients.
static bool has_array(const Training* t, int a, int tensor) {
    const bool muon = t->of->optimizer == TOST_MUON;
    return !(muon && a == TOST_GRAD) && tost_elements(&t->tensors.tensor[tensor], (TostArray)a, t->of->optimizer) > 0;
}

static size_t train_rank(TostComm* comm, void* context) {
    Training* t = context;
    const TostEngine* e = &tost_cpu_engine;
    const TostConfig* config = &configs[t->of->config];
    const TostEngineOptions o = {.max_batch = B, .max_chunk = config->block_size, .training = true, .threads = 1,
                                 .dtype = t->of->dtype, .comm = comm, .optimizer = t->of->optimizer,
                                 .parts = t->of->parts / comm_size(comm)};
    const bool root = comm_rank(comm) == 0;
    TostError err;
    TostModel* m = e->create(config, &o, &err);
    if (!m) abort();
    if (!t->start) init_params(e, m, &t->tensors, config->n_layer, 5);
    for (int a = 0; t->start && a < TOST_ARRAYS; a++)
        for (int i = 0; i < t->tensors.count; i++)
            if (has_array(t, a, i))
                e->put(m, (TostArray)a, &t->tensors.tensor[i], t->start->array[a] + t->tensors.tensor[i].offset);
    for (int step = t->first; step < t->steps; step++) {
        const double loss = train_step_on(m, t, comm, step), norm = e->grad_norm(m);
        if (root) t->loss[step] = loss, t->norm[step] = norm;
        const TostUpdate adamw = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
                                  .clip = norm > 1 ? 1 / norm : 1, .step = step + 1, .momentum = 0.9};
        e->update(m, &adamw);
    }
    for (int a = 0; a < TOST_ARRAYS; a++)
        for (int i = 0; i < t->tensors.count; i++) {
            const TostTensor* tensor = &t->tensors.tensor[i];
            float* dst = root ? t->array[a] + tensor->offset : NULL;
            if (has_array(t, a, i) && (root || a != TOST_PARAM)) e->get(dst, m, (TostArray)a, tensor);
        }
    const bool same = comm_same(comm, crc32_update(0, m->array[TOST_PARAM], t->tensors.flat_size * sizeof(float)),
                                "parameters differ", &err);
    const ptrdiff_t moments = (char*)m->array[TOST_V] - (char*)m->array[TOST_M];   // of this rank's slices only
    const bool small = (size_t)moments <= exchange_owned(&m->exchange) * sizeof(float) + 2 * 128;   // padding, red zone
    e->destroy(m);
    return !same + !small;
}

static Training train(Checks* c, const Case* of, int ranks, int first, int steps, const Training* start) {
    Training t = {.of = of, .tensors = tost_tensors(&configs[of->config]), .first = first, .steps = steps,
                  .start = start};
    for (int a = 0; a < TOST_ARRAYS; a++) t.array[a] = xcalloc(t.tensors.flat_size, sizeof(float));
    check(c, run_ranks(ranks, train_rank, &t) == 0, "%s, %d ranks: other parameters, moments of other ranks, or lost "
          "messages", of->what, ranks);
    return t;
}

static void training_free(Training* t) {
    for (int a = 0; a < TOST_ARRAYS; a++) free(t->array[a]);
    tost_tensors_free(&t->tensors);
}

// Frees b.
static void compare(Checks* c, const Training* one, Training* b, int ranks) {
    static const char* const names[] = {"parameters", "gradients", "m", "v"};
    for (int i = 0; i < TOST_ARRAYS; i++)
        check(c, memcmp(one->array[i], b->array[i], one->tensors.flat_size * sizeof(float)) == 0,
              "%s, %d ranks: %s differ from one rank", one->of->what, ranks, names[i]);
    for (int step = b->first; step < b->steps; step++)
        check(c, one->norm[step] == b->norm[step] && one->loss[step] == b->loss[step],
              "%s, %d ranks, step %d: norm %.17g, loss %.17g; one rank: %.17g, %.17g", one->of->what, ranks, step,
              b->norm[step], b->loss[step], one->norm[step], one->loss[step]);
    training_free(b);
}

static void test_training(Checks* c) {
    static const Case cases[] = {
        {"bf16", 0, TOST_BF16, 4, {4, 2}, TOST_ADAMW},
        {"odd sizes, biases", 1, TOST_FP32, 6, {6, 3}, TOST_ADAMW},
        {"below one unit", 2, TOST_FP32, 5, {5}, TOST_ADAMW},
        {"Muon", 1, TOST_FP32, 6, {6, 3}, TOST_MUON},
        {"Muon, bf16", 0, TOST_BF16, 4, {4, 2}, TOST_MUON},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        const Case* k = &cases[i];
        Training one = train(c, k, 1, 0, STEPS, NULL), half = train(c, k, k->ranks[0], 0, STEPS / 2, NULL);
        for (int r = 0; k->ranks[r]; r++) {
            Training all = train(c, k, k->ranks[r], 0, STEPS, NULL);
            compare(c, &one, &all, k->ranks[r]);
            Training rest = train(c, k, k->ranks[r + 1] ? k->ranks[r + 1] : 1, STEPS / 2, STEPS, &half);
            compare(c, &one, &rest, k->ranks[r]);
        }
        check(c, one.norm[0] > 0 && one.loss[STEPS - 1] != one.loss[0], "%s: nothing is trained", k->what);
        training_free(&half);
        training_free(&one);
    }
}

// ---- Ranks that do not respond --------------------------------------------------------------------------------------

typedef struct { const char* what; double timeout, late; const char* want; } Silence;

// The ranks wait for rank 2 of four, which is late.
static size_t wait_for_rank_2(TostComm* c, void* context) {
    const Silence* s = context;
    int all[4];
    c->timeout = s->timeout;
    if (c->place.rank == 2) nanosleep(&(struct timespec){(time_t)s->late, (long)(s->late * 1e9) % 1000000000}, NULL);
    comm_allgather(c, all, &c->place.rank, sizeof *all);
    return 0;
}

static void test_silence(Checks* c) {
    static Silence cases[] = {
        {"a silent rank", 0.3, 600, "train_gpt_tost: rank 2 on threads did not respond for 0.3 s (--rank-timeout)\n"},
        {"a late rank", 5, 0.5, ""},
        {"no timeout", 0, 0.5, ""},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        int fd[2], status = 0;
        char text[512] = "";
        if (!check(c, pipe(fd) == 0, "pipe")) return;
        const pid_t child = fork();
        if (child == 0) {
            dup2(fd[1], STDERR_FILENO);
            run_ranks(4, wait_for_rank_2, &cases[i]);
            _exit(0);
        }
        close(fd[1]);
        const ssize_t n = read(fd[0], text, sizeof text - 1);
        close(fd[0]);
        waitpid(child, &status, 0);
        check(c, n >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == (n > 0 ? STATUS_RESUMABLE : 0)
                 && strcmp(text, cases[i].want) == 0, "%s: status %d, '%s'", cases[i].what, status, text);
    }
}

int main(void) {
    Checks c = {.suite = "test_comm"};
    test_silence(&c);
    for (size_t i = 0; i < countof(configs); i++)
        for (int ranks = 1; ranks <= RANKS_MAX; ranks++) test_slices_of(&c, &configs[i], ranks);
    test_parts(&c);
    test_messages(&c);
    test_launch(&c);
    test_training(&c);
    return checks_verdict(&c);
}
