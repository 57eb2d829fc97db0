// seeds.c: writes the initial inputs of each fuzz target into FOLDER/TARGET/.
#include <sys/stat.h>

#include "tost/base/error.h"
#include "tost/base/files.h"
#include "tost/base/memory.h"
#include "tost/base/text.h"
#include "fuzz.h"

#include "tost/run/checkpoint.h"
#include "tost/init.h"

extern const TostEngine tost_cpu_engine;

static void seed(const char* root, const char* target, const char* name, const void* data, size_t size) {
    char *folder = path_join(root, target), *path = path_join(folder, name);
    TostError err;
    must_hold(make_dirs(folder, &err), "cannot make the seed folder");
    FILE* f = fopen(path, "wb");
    must_hold(f && fwrite(data, 1, size, f) == size && fclose(f) == 0, "cannot write a seed");
    free(folder);
    free(path);
}

#define SEED(root, target, name, text) seed(root, target, name, text, sizeof(text) - 1)

// Two bytes for vocabulary, order and T, a header of 256 int32 (unless magic is 0), tokens.
static void shard_seed(const char* root, const char* name, uint8_t flags, int32_t magic, int32_t version, int width) {
    enum { TOKENS = 40, HEADER = 256 };
    uint8_t bytes[2 + 4 * HEADER + 4 * TOKENS] = {flags, 7};
    const int32_t head[3] = {magic, version, TOKENS};
    size_t n = 2;
    if (magic) {
        memcpy(bytes + n, head, sizeof head);
        n += 4 * HEADER;
    }
    for (int i = 0; i < TOKENS; i++, n += (size_t)width) bytes[n] = (uint8_t)i;
    seed(root, "shards", name, bytes, n);
}

// A checkpoint of a tiny model for fuzz_checkpoint, and its model file for fuzz_safetensors.
static void checkpoint_seeds(const char* root, int bias, const char* name) {
    const TostConfig config = {.n_layer = 1, .n_head = 1, .n_embd = 2, .block_size = 2, .vocab_size = 3, .bias = bias};
    const TostEngineOptions o = {.max_batch = 1, .max_piece = 1, .training = true, .threads = 1};
    StMeta options[] = {{"lr", "0.001"}, {"data", "a*.bin"}};
    const CheckpointInfo info = {.config = config, .step = 3, .tokens = 6, .data_sample = 3, .seed = 1,
                                 .best_val_loss = 1.5, .tokenizer = "vocab.bpe", .n_options = 2, .options = options};
    TostError err = {0};
    TostTensors tensors = tost_tensors(&config);
    TostModel* m = tost_cpu_engine.create(&config, &o, &err);
    init_params(&tost_cpu_engine, m, &tensors, 1, 1);
    char* run = fuzz_folder();
    const CheckpointModel model = {&tost_cpu_engine, m, &tensors, NULL};
    must_hold(checkpoint_save(run, SAVE_STEP, &info, &model, &err), "cannot save the checkpoint");
    char *dir = path_join(run, "step_00000003"), *file = path_join(dir, "model.safetensors");
    char* optimizer = path_join(dir, "optimizer.safetensors");
    Bytes a, b;
    must_hold(read_file(&a, file, &err) && read_file(&b, optimizer, &err), "cannot read the checkpoint");
    seed(root, "safetensors", name, a.data, a.size);
    uint8_t* both = xmalloc(2 + a.size + b.size);
    both[0] = (uint8_t)a.size;
    both[1] = (uint8_t)(a.size >> 8);
    memcpy(both + 2, a.data, a.size);
    memcpy(both + 2 + a.size, b.data, b.size);
    seed(root, "checkpoint", name, both, 2 + a.size + b.size);
    must_hold(folder_remove(run, &err), "cannot remove the checkpoint");
    tost_cpu_engine.destroy(m);
    tost_tensors_free(&tensors);
    free(a.data), free(b.data), free(both), free(run), free(file), free(dir), free(optimizer);
}

// A file with two byte tensors; the second has `elements` bytes starting at `begin`.
static void tensor_seed(const char* root, const char* name, int elements, int begin) {
    char text[400] = {0};
    const int n = snprintf(text + 8, sizeof text - 8, "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                           "\"b\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}", elements, begin,
                           begin + elements);
    text[0] = (char)n;
    seed(root, "safetensors", name, text, (size_t)(n + 12 + elements));
}

static void text_seeds(const char* root) {
    static const char merges[] = "#version: 0.2\n\xC4\xA0 t\nh e\n\xC4\xA0t he\ni n\n";
    static const char texts[][40] = {"the tin hat\n it's 12 \xC3\xA9t\xC3\xA9", "\xFF\xFE  \t\r\n<|endoftext|>\n the"};
    for (size_t i = 0; i < countof(texts); i++) {
        char both[200], name[8];
        const size_t n = strlen(texts[i]);
        memcpy(both, merges, sizeof merges);   // including its zero byte
        memcpy(both + sizeof merges, texts[i], n);
        snprintf(name, sizeof name, "%zu", i);
        seed(root, "tokenizer", name, both, sizeof merges + n);
    }
    SEED(root, "tokenize", "text", "\0One story.\n<|endoftext|>\nAnother,\r\n<|endoftext|>\r\n\n");
    SEED(root, "tokenize", "lines", "\3{\"text\": \"One \\u00e9 \\ud83d\\ude00\", \"n\": [1, 2.5e3, null]}\n\n"
         "{\"text\":\"x\"}\n");
    SEED(root, "eval", "word", "{\"context\": \"He ate the pie and\", \"choices\": [\" the cake\"], \"answer\": 0}\n\n"
         "{\"context\":\"a \",\"choices\":[\"b\"],\"answer\":0}\n");
    SEED(root, "eval", "choices", "{\"context\": \"<|endoftext|>\\nShe sat\", \"choices\": [\" down.\", \" \\u00e9\"], "
         "\"answer\": 1, \"source_id\": \"a\"}\n");
    SEED(root, "options", "train", "--preset\0tost-base\0--steps=10\0--lr\0" "6e-4\0--batch\0"
         "2\0--data\0a*.bin\0--resume\0--out\0o");
    SEED(root, "options", "sample", "sample\0--prompt\0Once\0--top-k\0" "40\0--temperature=0.8\0--model\0m");
    SEED(root, "options", "eval", "eval\0--task\0f.jsonl\0--json\0o.json\0--batch\0" "4\0--seq=32");
}

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: seeds FOLDER\n");
        return STATUS_USAGE;
    }
    shard_seed(argv[1], "llmc", 1, 20240520, 1, 2);
    shard_seed(argv[1], "wide", 7, 20240801, 7, 4);
    shard_seed(argv[1], "raw", 6, 0, 0, 2);
    checkpoint_seeds(argv[1], 0, "plain");
    checkpoint_seeds(argv[1], 1, "bias");
    tensor_seed(argv[1], "whole", 4, 4);
    tensor_seed(argv[1], "overlap", 4, 2);
    tensor_seed(argv[1], "gap", 4, 5);
    tensor_seed(argv[1], "empty_past_the_end", 0, 90);
    text_seeds(argv[1]);
    return 0;
}
