// test_checkpoint.c: safetensors and checkpoints: writing and reading back, finding, invalid and damaged files.
#include <inttypes.h>

#include "base/crc32.h"
#include "dev/test/unit/fake_engine.h"
#include "recipe.h"
#include "store/checkpoint.h"

// ---- safetensors ----------------------------------------------------------------------------------------------------

// Writes a file: `length` in 8 bytes, the header, `data` zero bytes.
static void make_st(const char* path, const char* header, size_t data, uint64_t length) {
    const size_t n = strlen(header);
    char* bytes = xcalloc(1, 8 + n + data);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, n);
    write_bytes(path, bytes, 8 + n + data);
    free(bytes);
}

#define FIFTY "01234567890123456789012345678901234567890123456789"
#define T_(name, dtype, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" from "," to "]}"

static const struct { const char* header; size_t data; const char* error; } headers[] = {   // error NULL: valid
    {"{}      ", 0, NULL}, {"{\"__metadata__\":{}}", 0, NULL}, {"{" T_("a", "F32", "", "0", "4") "}", 4, NULL},
    {"{\"__metadata__\": null ,\"a\":{\"dtype\":\"U8\",\"shape\":[0,10],\"data_offsets\":[0,0]}}", 0, NULL},
    {"{" T_("\\ud83d\\ude00", "F32", "", "0", "4") "}", 4, NULL},
    {"{" T_("b", "F32", "1", "4", "8") "," T_("a", "I32", "1", "0", "4") "}", 8, NULL},
    {"{" T_("b", "F32", "1", "0", "4") "," T_("a", "I32", "0", "0", "0") "}", 4, NULL},
    {"{\"a\":{\"note\":[1,{}],\"data_offsets\":[0,2],\"shape\":[1,1],\"dtype\":\"BF16\"}}", 2, NULL},
    {"{}x", 0, "byte 2: expected the end of the text"},
    {"{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, "tensor 'a': dtype, shape or data_offsets is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, "is missing"},
    {"{" T_("a", "Q8", "", "0", "4") "}", 4, "tensor 'a': dtype 'Q8'"},
    {"{" T_("\\ud800", "F32", "1", "0", "4") "}", 4, "surrogate"}, {"{\"__metadata__\":nul}", 0, "expected an object"},
    {"{" T_("\\udc00x", "F32", "1", "0", "4") "}", 4, "surrogate"},
    {"{\"__metadata__\":null,\"__metadata__\":{}}", 0, "\"__metadata__\" appears twice"},
    {"{" T_("a", "F32", "1,1,1,1,1,1,1,1,1", "0", "4") "}", 4, "more than 8 dimensions"},
    {"{" T_("a", "F32", "9223372036854775808", "0", "4") "}", 4, "over 2^63 - 1"},
    {"{" T_("a", "F32", "4294967296,4294967296", "0", "4") "}", 4, "more bytes than 64 bits"},
    {"{" T_("a", "F32", "4611686018427387904", "0", "0") "}", 0, "more bytes than 64 bits"},
    {"{" T_("a", "F32", "2", "0", "4") "}", 4, "dtype and shape, which take 8 bytes"},
    {"{" T_("a", "F32", "1", "18446744073709551612", "0") "}", 4, "data_offsets [18446744073709551612, 0]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "expected two numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "expected two numbers"},
    {"{" T_("a", "F32", "2", "0", "8") "}", 4, "truncated: tensor 'a' has 8 bytes at 0 of the data, which has 4"},
    {"{" T_("a", "F32", "1", "0", "4") "}", 5, "1 extra bytes after the last tensor"},
    {"{" T_("a", "F32", "1", "4", "8") "}", 8, "starts at byte 4 of the data, but the one before it ends at 0: gap"},
    {"{" T_("a", "F32", "2", "0", "8") "," T_("b", "F32", "1", "4", "8") "}", 8, "overlap"},
    {"{" T_("a", "F32", "1", "0", "4") "," T_("\\u0061", "F32", "1", "4", "8") "}", 8, "'a' appears twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1]}}", 4, "\"shape\" appears twice"},
    {"{" T_("a\\u0000b", "F32", "", "0", "4") "}", 4, "a NUL in the name 'a'"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "expected a string"},
    {"{\"__metadata__\":{\"header_crc32\":\"\"}}", 0, "CRC-32 of the metadata"},
    {"{\"__metadata__\":{\"k\\u0000\":\"v\"}}", 0, "a NUL in 'k' or its value"},
    {"{\"__metadata__\":{\"k\":\"v\\u0000\\u0100\"}}", 0, "a NUL in 'k' or its value"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "__metadata__ 'k' appears twice"},
    {"{" T_(FIFTY FIFTY FIFTY "0123456789", "F32", "", "0", "4") "}", 4, "longer than 159 bytes"},
};

static void test_st_headers(Checks* c) {
    static const struct { uint64_t length; const char* error; } lengths[] = {
        {1, "not a safetensors file"}, {3, "truncated: header of 3 bytes in a file of 10"},
        {100000000, "truncated: header of 100000000"}, {100000001, "not a safetensors file"},
        {UINT64_MAX, "not a safetensors file"},
    };
    TostError err;
    StFile f;
    for (size_t i = 0; i < countof(headers); i++) {
        make_st("header", headers[i].header, headers[i].data, strlen(headers[i].header));
        const bool ok = st_open(&f, "header", &err);
        if (headers[i].error) check_refused(c, ok, &err, headers[i].error, headers[i].header);
        else check(c, ok && (f.n_tensors < 2 || strcmp(f.tensors[0].name, "a") == 0), "%s: %s", headers[i].header,
                   ok ? "not sorted" : err.text);
        check(c, ok || strncmp(err.text, "header: ", 8) == 0, "the error must name the file: %s", err.text);
        if (ok) st_close(&f);
    }
    for (size_t i = 0; i < countof(lengths); i++) {
        make_st("length", "{}", 0, lengths[i].length);
        check_refused(c, st_open(&f, "length", &err), &err, lengths[i].error, "a wrong header length");
    }
    for (size_t n = 0; n < 8; n++) {
        write_bytes("length", "\2\0\0\0\0\0\0\0", n);
        check_refused(c, st_open(&f, "length", &err), &err, "truncated", "a file of less than 8 bytes");
    }
    check_refused(c, st_open(&f, "absent", &err), &err, "absent: cannot be opened", "an absent file");
    check_refused(c, st_open(&f, "/dev/zero", &err), &err, "not a regular file", "a device");
}

static const KeyValues no_meta = {0};

static void test_st_round_trip(Checks* c) {
    static const uint16_t half[] = {0x0000, 0x3c00, 0xc000, 0x3555, 0x7bff, 0x0400, 0x03ff, 0x0001, 0x8001, 0x7c00,
                                    0xfc00, 0x7e00};
    static const float half_values[] = {0, 1, -2, 0.333251953125f, 65504, 0x1p-14f, 1023 * 0x1p-24f, 0x1p-24f,
                                        -0x1p-24f, INFINITY, -INFINITY, NAN};
    static const uint16_t brain[] = {0x0000, 0x3f80, 0xc000, 0x3eab, 0x7f7f, 0x0001, 0x7f80};
    static const float brain_values[] = {0, 1, -2, 0.333984375f, 0x1.fep127f, 0x1p-133f, INFINITY};
    static const int64_t wide = INT32_MIN;
    static const double third[2] = {1.0 / 3, -2};
    static char* const nasty = "\"quote\" \\ \n\t\x01 \xc3\xa9 \xf0\x9f\x98\x80";
    static const float values[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
    static const int32_t id = -7;
    KeyValue meta[] = {{"step", "12"}, {"nasty \"key\"", nasty}, {"bad", "a\xff"}};
    const KeyValues list = {countof(meta), meta};
    const StTensor tensors[] = {
        {.name = "transformer.wte.weight", .dtype = ST_F32, .ndim = 2, .shape = {2, 3}},
        {.name = "sc\"alar", .dtype = ST_I32, .ndim = 0},
        {.name = "half", .dtype = ST_F16, .ndim = 1, .shape = {countof(half)}},
        {.name = "brain", .dtype = ST_BF16, .ndim = 1, .shape = {countof(brain)}},
        {.name = "wide", .dtype = ST_I64, .ndim = 1, .shape = {1}},
        {.name = "none", .dtype = ST_F32, .ndim = 2, .shape = {0, 5}},
        {.name = "double", .dtype = ST_F64, .ndim = 2, .shape = {1, 2}},
    };
    const struct { const void* data; size_t size; } parts[] = {
        {values, 8}, {values + 2, 16}, {&id, sizeof id}, {half, sizeof half}, {brain, sizeof brain},
        {&wide, sizeof wide}, {third, sizeof third},
    };
    TostError err;
    StWriter w;
    StFile f;
    uint32_t crc = 0, direct = 0;
    bool written = st_begin(&w, "round", tensors, countof(tensors), &list, &err);
    for (size_t i = 0; i < countof(parts); i++) {
        written = written && st_append(&w, parts[i].data, parts[i].size, &err);
        direct = crc32_update(direct, parts[i].data, parts[i].size);
    }
    must(st_end(&w, written, &err) && st_open(&f, "round", &err), "round trip", &err);
    float v[countof(half)];
    int32_t id_back = 0;
    check(c, f.data_start % 8 == 0, "tensor data starts at %" PRIu64 ", not at a multiple of 8", f.data_start);
    const StTensor* t = st_find(&f, "transformer.wte.weight");
    check(c, t && t->ndim == 2 && t->shape[0] == 2 && t->shape[1] == 3 && t->count == 6 && t->bytes == 24, "shape");
    check(c, t && st_read_f32(&f, t, v, &err) && memcmp(v, values, sizeof values) == 0, "values: %s", err.text);
    t = st_find(&f, "sc\"alar");
    check(c, t && t->ndim == 0 && st_read(&f, t, &id_back, &err) && id_back == id, "scalar: got %d", id_back);
    must(st_read_f32(&f, st_find(&f, "half"), v, &err), "half", &err);
    for (size_t i = 0; i < countof(half); i++)
        check(c, v[i] == half_values[i] || (isnan(v[i]) && isnan(half_values[i])), "F16 %04x: got %g", half[i], v[i]);
    must(st_read_f32(&f, st_find(&f, "brain"), v, &err), "brain", &err);
    for (size_t i = 0; i < countof(brain); i++) check(c, v[i] == brain_values[i], "BF16 %04x: got %g", brain[i], v[i]);
    check(c, st_read_f32(&f, st_find(&f, "double"), v, &err) && v[0] == 1.0f / 3 && v[1] == -2, "F64: %g", v[0]);
    check(c, st_read_f32(&f, st_find(&f, "none"), NULL, &err), "an empty tensor: %s", err.text);
    check_refused(c, st_read_f32(&f, st_find(&f, "wide"), v, &err), &err, "'wide' is I64", "I64 as parameters");
    check(c, !st_find(&f, "absent") && !st_meta(&f, "absent"), "absent names are not found");
    check(c, strcmp(st_meta(&f, "step"), "12") == 0 && strcmp(st_meta(&f, meta[1].key), nasty) == 0
             && strcmp(st_meta(&f, "bad"), "a\xef\xbf\xbd") == 0, "metadata");
    const TextLine digits = text_line("%08" PRIx32, direct);
    check(c, st_crc32(&f, &crc, &err) && crc == direct && strcmp(st_meta(&f, "crc32"), digits.text) == 0,
          "crc32: expected %s, in the file %s, computed %08" PRIx32, digits.text, st_meta(&f, "crc32"), crc);
    must(truncate("round", (off_t)f.file_size - 8) == 0, "truncate", NULL);
    check_refused(c, st_read_f32(&f, st_find(&f, "double"), v, &err), &err, "the file was truncated", "truncated");
    check_refused(c, st_crc32(&f, &crc, &err), &err, "the file was truncated", "the CRC of a truncated file");
    st_close(&f);
}

// ---- Checkpoints: round trip and finding ----------------------------------------------------------------------------

static const TostConfig tiny = {.n_layer = 2, .n_head = 2, .n_embd = 4, .block_size = 3, .vocab_size = 7, .bias = 1};

static TostModel* new_model(TostConfig config) { return fake_create(&config, NULL, NULL); }

// All its states have different numbers.
static TostModel* filled_model(float salt) {
    TostModel* m = new_model(tiny);
    for (int s = 0; s < TOST_ARRAYS; s++)
        for (size_t k = 0; k < m->tensors.flat_size; k++) m->state[s][k] = salt + (float)s + 0.001f * (float)k;
    return m;
}

static bool same_state(const TostModel* a, const TostModel* b, TostArray s) {
    for (int i = 0; i < a->tensors.count; i++) {
        const TostTensor* t = &a->tensors.tensor[i];
        if (memcmp(a->state[s] + t->offset, b->state[s] + t->offset, t->size * sizeof(float)) != 0) return false;
    }
    return true;
}

static KeyValue some_options[] = {{"lr", "0.003"}, {"data", "a \"b\"/*.bin"}, {"optimizer", "adamw"}};

static CheckpointInfo info_of(int64_t step) {
    return (CheckpointInfo){
        .config = tiny, .step = step, .tokens = step * 4096, .data_sample = INT64_MAX / 2, .seed = 42,
        .best_val_loss = 3.1415926535897931, .tokenizer = "data/starter/vocab.bpe",
        .skipped = step, .skipped_in_a_row = step / 2,
        .tokenizer_hash = 0x00c0ffee,
        .options = {countof(some_options), some_options},
    };
}

static CheckpointModel model_of(TostModel* m) { return (CheckpointModel){&fake, m, &m->tensors, TOST_ADAMW, NULL}; }

static CheckpointModel muon_of(TostModel* m) { return (CheckpointModel){&fake, m, &m->tensors, TOST_MUON, NULL}; }

static bool save_info(const char* run, const CheckpointInfo* info, CheckpointModel m, int keep, TostError* err) {
    return make_dirs(run, err) && checkpoint_save(run, false, info, &m, err)
           && checkpoint_prune(run, info->step, keep, err);
}

static void save(const char* run, TostModel* m, int64_t step, int keep) {
    TostError err;
    const CheckpointInfo info = info_of(step);
    must(save_info(run, &info, model_of(m), keep, &err), "checkpoint_save", &err);
}

// The stages of loading: "info", "params", "moments"; NULL if all succeed. info: NULL if it is not wanted
static const char* load(CheckpointModel m, CheckpointInfo* info, const char* path, TostError* err) {
    StFile f;
    CheckpointInfo unwanted;
    if (!checkpoint_open(&f, info ? info : &unwanted, path, err)) return "info";
    const char* failed = !checkpoint_load_params(&m, &f, err) ? "params"
                         : !checkpoint_load_moments(&m, &f, err) ? "moments" : NULL;
    st_close(&f);
    if (!info) checkpoint_info_free(&unwanted);
    return failed;
}

// Checks that `path` leads to the checkpoint of that step, and that it loads what was saved.
static void check_found(Checks* c, const char* path, int64_t step, const TostModel* saved, const char* what) {
    TostError err;
    CheckpointInfo info;
    TostModel* m = new_model(tiny);
    const char* failed = load(model_of(m), &info, path, &err);
    if (check(c, !failed, "%s: expected step %d, got: %s", what, (int)step, err.text))
        check(c, info.step == step && same_state(m, saved, TOST_PARAM) && same_state(m, saved, TOST_M)
              && same_state(m, saved, TOST_V),
              "%s: expected step %d, got %d, or the values differ", what, (int)step, (int)info.step);
    checkpoint_info_free(&info);
    fake_destroy(m);
}

static void test_round_trip(Checks* c) {
    const CheckpointInfo bare = {.config = tiny, .step = 1001, .best_val_loss = INFINITY};
    const CheckpointInfo saved[] = {info_of(1000), bare};
    TostModel* m = filled_model(1);
    for (size_t i = 0; i < countof(saved); i++) {
        TostError err;
        StFile f;
        CheckpointInfo is;
        events[GET] = 0;
        must(save_info("made/when/needed", &saved[i], model_of(m), 0, &err), "checkpoint_save", &err);
        check(c, events[GET] == 3 * m->tensors.count, "a save must read each tensor once: %d gets", events[GET]);
        check_found(c, "made/when/needed", saved[i].step, m, "round trip");
        must(checkpoint_open(&f, &is, "made/when/needed", &err), "checkpoint_open", &err);
        KeyValues wrote = metadata_list(&saved[i]), read = metadata_list(&is);
        bool same = wrote.count == read.count && f.n_tensors == m->tensors.count && is.seed == saved[i].seed;
        for (int k = 0; same && k < wrote.count; k++)
            same = strcmp(wrote.entry[k].key, read.entry[k].key) == 0
                   && strcmp(wrote.entry[k].value, read.entry[k].value) == 0;
        uint64_t end = f.data_start;
        for (int k = 0; same && k < f.n_tensors; k++) {
            const StTensor* t = st_find(&f, m->tensors.tensor[k].name);
            same = t && t->offset == end && t->dtype == ST_F32;
            if (same) end += t->bytes;
        }
        check(c, same && strcmp(st_meta(&f, "format"), "pt") == 0, "metadata %zu or the tensors differ", i);
        key_values_free(&wrote);
        key_values_free(&read);
        checkpoint_info_free(&is);
        st_close(&f);
    }
    fake_destroy(m);
}

// A checkpoint of Muon has no v of its tensors. The moments of another optimizer are refused.
static void test_muon(Checks* c) {
    static const char v[] = "v.transformer.h.0.attn.c_attn.weight";
    TostError err = {""};
    TostModel *m = filled_model(1), *is = new_model(tiny);
    const CheckpointInfo info = info_of(1);
    must(save_info("muon", &info, muon_of(m), 0, &err), "checkpoint_save", &err);
    save("adamw", m, 1, 0);
    check(c, !load(muon_of(is), NULL, "muon", &err) && same_state(is, m, TOST_M), "Muon: m differs: %s", err.text);
    for (int i = 0; i < m->tensors.count; i++) {
        const TostTensor* t = &m->tensors.tensor[i];
        const bool is_matrix = strstr(t->name, "c_attn.weight") || strstr(t->name, "c_proj.weight")
                               || strstr(t->name, "c_fc.weight");
        const float* second = is->state[TOST_V] + t->offset;
        check(c, is_matrix ? second[0] == 0
                           : memcmp(second, m->state[TOST_V] + t->offset, t->size * sizeof *second) == 0,
              "Muon: v of %s", t->name);
    }
    check_refused(c, !load(model_of(is), NULL, "muon", &err), &err, text_line("'%s' is missing", v).text,
                  "moments of Muon for AdamW");
    check_refused(c, !load(muon_of(is), NULL, "adamw", &err), &err, text_line("'%s' does not belong", v).text,
                  "moments of AdamW for Muon");
    fake_destroy(m);
    fake_destroy(is);
}

static void test_find(Checks* c) {
    TostError err;
    TostModel* m = filled_model(2);
    must(make_dirs("find", &err), "make_dirs", &err);
    check(c, !checkpoint_is_run("find") && !checkpoint_is_run("absent"), "an empty folder is not a run");
    save("find", m, 300, 0);
    must(rename("find/step_00000300", "find/step_00000300.tmp") == 0, "rename", NULL);
    check_refused(c, !load(model_of(m), NULL, "find", &err), &err, "no complete checkpoint", "an unfinished one");
    check(c, checkpoint_is_run("find"), "a folder with an unfinished checkpoint is a run");
    save("find", m, 100000000, 0);
    check(c, !path_exists("find/step_00000300.tmp"), "a save must remove unfinished folders");
    save("find", m, 99999999, 0);
    check_found(c, "find", 100000000, m, "steps are compared as numbers");
    must(remove("find/step_100000000/optimizer.safetensors") == 0, "remove", NULL);
    check_found(c, "find", 99999999, m, "a folder that lacks a file is ignored");
    check_found(c, "find/step_99999999/", 99999999, m, "a checkpoint folder");
    check_found(c, "find/step_99999999/model.safetensors", 99999999, m, "the file itself");
    must(make_dirs("log", &err), "make_dirs", &err);
    write_text("log/log.csv", "");
    check(c, checkpoint_is_run("log"), "a folder with a log is a run");
    fake_destroy(m);
}

static void test_newest_run(Checks* c) {
    TostError err;
    Path found;
    TostModel* m = new_model(tiny);
    static const struct { const char* name; int64_t step; time_t s; long ns; const char* newest; } runs[] = {
        {"all/b-001", 10, 5000, 7, "all/b-001"},  {"all/a-002", 500, 5000, 9, "all/a-002"},
        {"all/c-003", 700, 4000, 999, "all/a-002"}, {"all/d-004", 9, 5000, 9, "all/d-004"},   // equal: the later name
    };
    for (size_t i = 0; i < countof(runs); i++) {
        const struct timespec time[2] = {{runs[i].s, runs[i].ns}, {runs[i].s, runs[i].ns}};
        save(runs[i].name, m, runs[i].step, 0);
        const Path folder = checkpoint_name(runs[i].name, runs[i].step);
        must(utimensat(AT_FDCWD, path_in(folder.text, MODEL_FILE).text, time, 0) == 0, "utimensat", NULL);
        check(c, checkpoint_newest_run(&found, "all", "--model PATH", &err) && strcmp(found.text, runs[i].newest) == 0,
              "newest of %zu runs: expected %s, got %s", i + 1, runs[i].newest, found.text);
    }
    const Path next = free_name("all/b", "-", 3);
    check(c, strcmp(next.text, "all/b-002") == 0, "next run: got %s", next.text);
    fake_destroy(m);
}

// ---- Checkpoints: saving --------------------------------------------------------------------------------------------

// The entries of a folder must be `wanted`, "name name … ", sorted.
static void check_listing(Checks* c, const char* dir, const char* wanted, const char* what) {
    TostError err;
    StringList list;
    char* is = xstrdup("");
    if (expand_glob(&list, ONE_PATH(path_in(dir, "*").text), &err)) {
        for (int i = 0; i < list.count; i++) is = append_text(is, "%s ", strrchr(list.strings[i], '/') + 1);
        free_strings(&list);
    }
    check(c, strcmp(is, wanted) == 0, "%s: expected %s, got %s", what, wanted, is);
    free(is);
}

static void test_keep(Checks* c) {
    TostError err;
    TostModel *m = new_model(tiny), *other = filled_model(9);
    must(make_dirs("keep", &err), "make_dirs", &err);
    write_text("keep/step_note.txt", "mine");
    for (int64_t step = 1; step <= 4; step++) save("keep", m, step, 0);
    check_listing(c, "keep", "step_00000001 step_00000002 step_00000003 step_00000004 step_note.txt ", "keep 0");
    save("keep", m, 5, 3);
    check_listing(c, "keep", "step_00000003 step_00000004 step_00000005 step_note.txt ", "keep 3");
    save("keep", m, 4, 1);
    check_listing(c, "keep", "step_00000004 step_00000005 step_note.txt ", "keep 1 removes older ones only");
    save("keep", other, 5, 2);
    check_listing(c, "keep", "step_00000004 step_00000005 step_note.txt ", "a step saved twice");
    check_found(c, "keep", 5, other, "the second save of a step replaces the first");
    fake_destroy(m);
    fake_destroy(other);
}

static void test_users_files(Checks* c) {
    TostError err;
    TostModel* m = filled_model(1);
    save("elsewhere", m, 1, 0);
    save("own", m, 2, 0);
    must(symlink("../elsewhere/step_00000001", "own/step_00000001") == 0, "symlink", NULL);
    write_text("own/step_00000002/notes.txt", "mine");
    const CheckpointInfo info = info_of(3);
    check_refused(c, save_info("own", &info, model_of(m), 1, &err), &err, "own/step_00000002.kept-1", "a user's file");
    save("own", m, 4, 1);   // this time nothing is left to say
    check_listing(c, "own", "step_00000002.kept-1 step_00000004 ", "a user's file");
    check_listing(c, "own/step_00000002.kept-1", "notes.txt ", "a user's file");
    check_found(c, "elsewhere", 1, m, "a link to a checkpoint");
    fake_destroy(m);
}

// ---- Checkpoints: damage --------------------------------------------------------------------------------------------

// In one of the files, `to`, of the same length, replaces the text `from`.
static const struct { const char *what, *file, *from, *to, *error; } damages[] = {
    {"no wte", MODEL_FILE, "transformer.wte.", "transformer.wtf.", "wte.weight' is missing"},
    {"a missing layer", MODEL_FILE, "h.1.attn.temp", "h.2.attn.temp", "'n_layer' is '2'"},
    {"a wrong shape", MODEL_FILE, "[16,4]", "[4,16]", "has shape (4, 16), expected (16, 4)"},
    {"integers", MODEL_FILE, "temp\":{\"dtype\":\"F32\"", "temp\":{\"dtype\":\"I32\"", "is I32"},
    {"a newer format", MODEL_FILE, "format_version\":\"1", "format_version\":\"2", "format_version 2"},
    {"no step", MODEL_FILE, "\"step\"", "\"stop\"", "no 'step'"},
    {"a negative step", MODEL_FILE, "\"step\":\"77\"", "\"step\":\"-7\"", "'step' is '-7'"},
    {"a count over 2^62 - 1", MODEL_FILE, "4611686018427387903", "4611686018427387904", "'data_sample' is '46"},
    {"no loss", MODEL_FILE, "loss\":\"3.1415", "loss\":\"low...", "'best_val_loss' is 'low"},
    {"a loss that is not a number", MODEL_FILE, "3.1415926535897931", "nan(1234567890123)", "is 'nan("},
    {"more skipped than done", MODEL_FILE, "\"skipped\":\"77\"", "\"skipped\":\"99\"", "'skipped' is '99'"},
    {"a malformed hash", MODEL_FILE, "00c0ffee", "00c0ffez", "'tokenizer_hash'"},
    {"an option missing in one file", OPTIMIZER_FILE, "option.lr", "nottin.lr", "different checkpoints"},
    {"moments with another CRC-32", OPTIMIZER_FILE, "\x31\x08\xe0\x40", "\x32\x08\xe0\x40", "CRC-32"},   // 7.001
    {"no m of a tensor", OPTIMIZER_FILE, "m.transformer.h.0.gamma1", "n.transformer.h.0.gamma1", ".gamma1' is missing"},
};

static void test_damage(Checks* c) {
    static const char folder[] = "damaged/step_00000077";
    TostError err = {""};
    TostModel *m = filled_model(5), *into = new_model(tiny);
    for (size_t i = 0; i < countof(damages); i++) {
        save("damaged", m, 77, 0);
        const char* what = damages[i].what;
        replace_in_file(path_in(folder, damages[i].file).text, damages[i].from, damages[i].to);
        const char* failed = load(model_of(into), NULL, folder, &err);
        const char* stage = strcmp(damages[i].file, MODEL_FILE) == 0 ? "info" : "moments";
        check(c, failed && strcmp(failed, stage) == 0, "%s: loading must fail at %s, not at %s", what, stage,
              failed ? failed : "no stage");
        check_refused(c, !failed, &err, damages[i].error, what);
    }
    const size_t element = m->tensors.tensor[0].offset + 3;
    const float weight = m->state[TOST_PARAM][element];
    m->state[TOST_PARAM][element] = NAN;
    save("damaged", m, 77, 0);
    check_refused(c, !load(model_of(into), NULL, folder, &err), &err,
                  "'transformer.wte.weight' has nan at element 3, expected a finite number", "a weight that is NaN");
    m->state[TOST_PARAM][element] = weight;
    m->state[TOST_V][element] = -1e-30f;
    save("damaged", m, 77, 0);
    check_refused(c, !load(model_of(into), NULL, folder, &err), &err,
                  "has -1e-30 at element 3, expected a finite number of at least 0", "a negative second moment");
    fake_destroy(m);
    fake_destroy(into);
}

// Writes a model file as another program does: without metadata; with an lm_head, whose element 27 is wte's plus `off`.
static void write_foreign(TostModel* m, float off) {
    const TostTensor* wte = &m->tensors.tensor[0];
    const int n = m->tensors.count;
    StTensor* t = xcalloc((size_t)n + 1, sizeof *t);
    TostError err;
    StWriter w;
    for (int i = 0; i <= n; i++) {
        const TostTensor* from = i < n ? &m->tensors.tensor[i] : wte;
        t[i] = (StTensor){.dtype = ST_F32, .ndim = from->ndim};
        strcpy(t[i].name, i < n ? from->name : "lm_head.weight");
        for (int d = 0; d < from->ndim; d++) t[i].shape[d] = from->shape[d];
    }
    bool ok = st_begin(&w, "foreign", t, n + 1, &no_meta, &err);
    for (int i = 0; ok && i < n; i++) {
        const TostTensor* from = &m->tensors.tensor[i];
        ok = st_append(&w, m->state[TOST_PARAM] + from->offset, from->size * sizeof(float), &err);
    }
    float *head = m->state[TOST_PARAM] + wte->offset, before = head[27];
    head[27] += off;
    ok = ok && st_append(&w, head, wte->size * sizeof *head, &err);
    head[27] = before;
    must(st_end(&w, ok, &err), "foreign", &err);
    free(t);
}

static void test_foreign_files(Checks* c) {
    TostError err;
    CheckpointInfo info;
    TostModel *m = filled_model(6), *is = new_model(tiny);
    write_foreign(m, 0);
    const char* failed = load(model_of(is), &info, "foreign", &err);
    check(c, failed && strcmp(failed, "moments") == 0 && same_state(is, m, TOST_PARAM), "parameters: %s", err.text);
    check(c, memcmp(&info.config, &tiny, sizeof tiny) == 0 && info.step == 0 && info.tokens == 0 && !info.tokenizer
             && info.options.count == 0 && isinf(info.best_val_loss), "the config follows from names and shapes");
    checkpoint_info_free(&info);
    write_foreign(m, 1);
    events[PUT] = 0;
    check_refused(c, !load(model_of(is), NULL, "foreign", &err), &err, "differs from transformer.wte.weight",
                  "an untied lm_head");
    check(c, events[PUT] == 0, "an untied lm_head: %d tensors were loaded", events[PUT]);
    fake_destroy(m);
    fake_destroy(is);
}

// Flips one bit in each byte of the file, then truncates it: the file must be rejected or loaded with the same values.
static void test_every_byte(Checks* c) {
    static const char file[] = "bytes/step_00000007/model.safetensors";
    TostError err;
    CheckpointInfo info;
    TostModel *m = filled_model(7), *into = new_model(tiny);
    save("bytes", m, 7, 0);
    const Bytes good = bytes_of(file);
    int wrong = 0, accepted = 0;
    for (size_t i = 0; i < good.size + good.size / 13; i++) {
        const bool flip = i < good.size;
        if (flip) good.data[i] ^= 1 << i % 7;
        write_bytes(file, good.data, flip ? good.size : (i - good.size) * 13);
        if (flip) good.data[i] ^= 1 << i % 7;
        const char* failed = load(model_of(into), &info, file, &err);
        const bool ok = !failed || strcmp(failed, "moments") == 0;   // those are of another file
        accepted += ok;
        wrong += ok ? !flip || memcmp(&info.config, &tiny, sizeof tiny) != 0 || !same_state(into, m, TOST_PARAM)
                    : !err.text[0] || strchr(err.text, '\n');
        checkpoint_info_free(&info);
    }
    check(c, wrong == 0 && accepted > 0 && accepted < 30, "%d of %zu changed files misread, %d accepted", wrong,
          good.size, accepted);
    free(good.data);
    fake_destroy(m);
    fake_destroy(into);
}

// Every key=value of a checkpoint that version 1.0.0 wrote.
static const char old_metadata[] =
    "format=pt|program=train_gpt_tost 1.0.0|format_version=1|n_layer=2|n_head=4|n_embd=64|block_size=256|"
    "vocab_size=2304|bias=0|memory=1|positions=none|step=6|tokens=12288|data_sample=96|seed=7|"
    "val_loss=5.7834063212538229|val_step=6|best_val_loss=5.7834063212538229|best_val_step=6|earlier_updates=0|"
    "skipped=0|skipped_in_a_row=0|tokenizer=data/starter/vocab.bpe|tokenizer_hash=38a184b8|option.preset=starter|"
    "option.data=data/starter/starter_train_*.bin:2\x1f""data/starter/starter_train_000000.bin:1|"
    "option.val-data=data/starter/starter_val_*.bin|option.order=shuffled|option.steps=6|option.batch=8|"
    "option.seq=128|option.chunk=0|option.total-batch=2048|option.optimizer=adamw|option.lr=0.02|option.schedule=wsd|"
    "option.decay-frac=0.5|option.warmup=2|option.min-lr-frac=0.1|option.weight-decay=0.1|option.beta1=0.9|"
    "option.beta2=0.95|option.eps=1e-08|option.grad-clip=1|option.max-skipped=3|option.seed=7|option.val-every=2|"
    "option.val-batches=20|option.sample-every=100|option.sample-tokens=128|option.save-every=4|option.keep=2|"
    "option.keep-best=1|option.stop-at-val=0.1|option.temperature=0.5|option.top-k=5|option.top-p=0.95|"
    "option.dtype=bf16|option.threads=0|option.parts=1|option.data-tokens=2008486|option.data-crc=3682669983|"
    "crc32=ad53fad8|";

// All keys and values of an old checkpoint that exist in this version are written with the same text in the same order.
static void test_old_metadata(Checks* c) {
    static const char changed[] = " program option.val-batches option.data-crc crc32 ";
    static const TostConfig config = {   // what the tensors have
        .n_layer = 2, .n_head = 4, .n_embd = 64, .block_size = 256, .vocab_size = 2304, .memory = 1};
    StFile f = {.path = (char*)"old"};
    TostError err = {""};
    CheckpointInfo info = {.config = config};
    TostRecipe recipe = recipe_copy(&tost_presets[0]);
    char *text = xstrdup(old_metadata), *rest = text;
    for (char* line; (line = strsep(&rest, "|")) && *line;) {
        const size_t key = strcspn(line, "=");
        key_values_add(&f.meta, xasprintf("%.*s", (int)key, line), xstrdup(line + key + 1));
    }
    check(c, f.meta.count == 63, "old metadata: %d keys", f.meta.count);
    check(c, metadata_read(&info, &f, &err) && recipe_read(&recipe, &info.options, "old", &err), "%s", err.text);
    key_values_free(&info.options);
    info.options = recipe_write(&recipe);
    KeyValues m = metadata_list(&info);
    int i = 0;   // of the new metadata
    for (const KeyValue* e = f.meta.entry; e < f.meta.entry + f.meta.count; e++) {
        if (strstr(changed, text_line(" %s ", e->key).text)) continue;
        while (i < m.count && strcmp(m.entry[i].key, e->key) != 0) i++;
        if (!check(c, i < m.count, "%s: not written, or too early", e->key)) break;
        const char* is = m.entry[i].value;
        check(c, strcmp(is, e->value) == 0, "%s: expected %s, got %s", e->key, e->value, is);
    }
    key_values_free(&m);
    key_values_free(&f.meta);
    free(text);
    recipe_free(&recipe);
    checkpoint_info_free(&info);
}

int main(void) {
    return RUN_TESTS("checkpoint", test_st_headers, test_st_round_trip, test_round_trip, test_muon, test_find,
                         test_newest_run, test_keep, test_users_files, test_damage, test_foreign_files,
                         test_every_byte, test_old_metadata);
}
