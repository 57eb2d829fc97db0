// fuzz_shards.c: token shards of three kinds. What is accepted deals out ids below the vocabulary's size, the same
// each time.
#include "fuzz.h"

#include "tost/data.h"

enum { B = 3, T_MAX = 64 };

static void deal(DataSet* d, uint32_t vocab, int T, uint64_t first) {
    int32_t inputs[B * T_MAX], targets[B * T_MAX], again[B * T_MAX];
    TostError err = {0};
    if (!data_batch(d, inputs, targets, first, B, &err)) {
        must_say(&err);
        return;
    }
    must_hold(data_batch(d, again, targets, first, B, &err) && memcmp(inputs, again, sizeof *again * B * T) == 0,
              "a batch that is another when dealt again");
    for (int i = 0; i < B * T; i++) {
        must_hold(inputs[i] >= 0 && (uint32_t)inputs[i] < vocab && targets[i] >= 0 && (uint32_t)targets[i] < vocab,
                  "an id beyond the vocabulary");
        must_hold((i + 1) % T == 0 || targets[i] == inputs[i + 1], "targets that are not the inputs one further on");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const uint32_t vocabs[] = {2, 257, 50257, 70000};
    const uint8_t how = take_byte(&data, &size);
    const uint32_t vocab = vocabs[how & 3];
    const int T = 1 + take_byte(&data, &size) % T_MAX;
    TostError err = {0};
    char* path = fuzz_file("shard.bin", data, size);
    DataSet* d = data_open(path, T, vocab, how & 4 ? ORDER_SHUFFLED : ORDER_SEQUENTIAL, how, &err);
    if (d) {
        const uint64_t samples = data_samples(d);
        must_hold(samples >= 1 && data_tokens(d) > (uint64_t)T && data_tokens(d) <= size / 2,
                  "more samples than bytes");
        deal(d, vocab, T, 0);
        deal(d, vocab, T, samples - 1);
        deal(d, vocab, T, UINT64_MAX / 4);
        data_crc(d);
        data_close(d);
    } else must_say(&err);
    free(path);
    return 0;
}
