// fuzz_shards.c: token shards in all three formats. Batches of accepted shards must be reproducible and have valid ids.
#include "fuzz.h"

#include "tost/data/dataset.h"

enum { B = 3, T_MAX = 64 };

static void check_batch(DataSet* d, uint32_t vocab, int T, uint64_t first) {
    int32_t inputs[B * T_MAX], targets[B * T_MAX], again[B * T_MAX];
    TostError err = {0};
    if (!data_batch(d, inputs, targets, first, B, &err)) {
        check_message(&err);
        return;
    }
    must_hold(data_batch(d, again, targets, first, B, &err) && memcmp(inputs, again, sizeof *again * B * T) == 0,
              "reading a batch again gives other tokens");
    for (int i = 0; i < B * T; i++) {
        must_hold(inputs[i] >= 0 && (uint32_t)inputs[i] < vocab && targets[i] >= 0 && (uint32_t)targets[i] < vocab,
                  "id outside the vocabulary");
        must_hold((i + 1) % T == 0 || targets[i] == inputs[i + 1], "targets are not the following inputs");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const uint32_t vocabs[] = {2, 257, 50257, 70000};
    const uint8_t flags = take_byte(&data, &size);
    const uint32_t vocab = vocabs[flags & 3];
    const int T = 1 + take_byte(&data, &size) % T_MAX;
    TostError err = {0};
    char* path = fuzz_file("shard.bin", data, size);
    DataSet* d = data_open(ONE_PATH(path), T, vocab, flags & 4 ? ORDER_SHUFFLED : ORDER_SEQUENTIAL, flags, &err);
    if (d) {
        const uint64_t samples = data_samples(d), tokens = stream_tokens(&d->source[0].stream);
        must_hold(samples >= 1 && tokens > (uint64_t)T && tokens <= size / 2,
                  "wrong number of samples or tokens");
        check_batch(d, vocab, T, 0);
        check_batch(d, vocab, T, samples - 1);
        check_batch(d, vocab, T, UINT64_MAX / 4);
        data_crc(d);
        data_close(d);
    } else check_message(&err);
    free(path);
    return 0;
}
