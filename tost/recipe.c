// recipe.c: text of settings, and the recipe of a run: presets, checkpoints, differences.
#include "recipe.h"

#include <inttypes.h>
#include <math.h>

#include "chunks.h"

static const char separator[] = "\x1f";   // between the values of a list in a checkpoint

const Setting recipe_table[RECIPE_ROWS] = {
#define ROW(at, option, type, shown, treated, low, high, ...) \
    {.name = option, .kind = type, .field = offsetof(TostRecipe, at), .values = shown, .saved = treated, .min = low, \
     .max = high, __VA_ARGS__},
#define SIZE(at, ...) ROW(config.at, __VA_ARGS__)
    TOST_CONFIG(SIZE)
    TOST_RECIPE(ROW)
#undef SIZE
#undef ROW
};

// ---- Settings ----

static void* field_of(const void* base, const Setting* row) { return (char*)base + row->field; }
static bool is_saved(const Setting* row) { return row->saved == FIXED || row->saved == OVERRIDABLE; }

TextLine choice_name(const char* choices, int n) {
    for (; n > 0 && choices; n--) choices = strchr(choices, '|') ? strchr(choices, '|') + 1 : NULL;
    return choices ? text_line("%.*s", (int)strcspn(choices, "|"), choices) : (TextLine){""};
}

// The shortest text of 15 to 17 digits that parses to the same double
static TextLine real_text(double x) {
    for (int digits = 15;; digits++) {
        const TextLine text = text_line("%.*g", digits, x);
        if (digits == 17 || strtod(text.text, NULL) == x) return text;
    }
}

char* setting_text(const void* base, const Setting* row) {
    const void* field = field_of(base, row);
    const char* text = NULL;
    switch (row->kind) {
        case HELP: break;
        case FLAG: text = is_saved(row) && *(const bool*)field ? "1" : NULL; break;
        case INT: return *(const int*)field < row->min ? NULL : xasprintf("%d", *(const int*)field);
        case INT64: return *(const int64_t*)field < row->min ? NULL : xasprintf("%" PRId64, *(const int64_t*)field);
        case REAL:
        case DURATION: return xstrdup(real_text(*(const double*)field).text);
        case CHOICE:
            return *(const int*)field < row->min ? NULL : xstrdup(choice_name(row->values, *(const int*)field).text);
        case STRING: text = *(const char* const*)field; break;
        case LIST: return ((const StringList*)field)->count ? join_strings(field, *separator) : NULL;
    }
    return text ? xstrdup(text) : NULL;
}

char* shown_value(const char* text) {
    char* shown = xstrdup(text);
    for (char* p = shown; (p = strchr(p, *separator));) *p = ' ';
    return shown;
}

void setting_set(void* base, const Setting* row, double value) {
    if (row->kind == REAL || row->kind == DURATION) *(double*)field_of(base, row) = value;
    else if (row->kind == INT64) *(int64_t*)field_of(base, row) = (int64_t)value;
    else *(int*)field_of(base, row) = (int)value;
}

// A finite number at *text, which is moved behind it
static bool read_number(double* value, const char** text) {
    char* end;
    *value = strtod(*text, &end);
    const bool decimal = end > *text && strspn(*text, "0123456789.eE+-") >= (size_t)(end - *text);   // not nan, 0x1
    *text = end;
    return decimal && fabs(*value) < INFINITY;
}

// An integer or real number; of integers k, M, G (or B) and T are powers of 1000. 0.3M is not exactly 300000 in binary.
static bool parse_count(double* value, const char* text, bool integer) {
    static const char units[] = "kKMGBT";
    static const double factors[] = {1e3, 1e3, 1e6, 1e9, 1e9, 1e12};
    double exact;
    if (!read_number(&exact, &text)) return false;
    const char* unit = integer && *text ? strchr(units, *text) : NULL;
    if (unit) exact *= factors[unit - units], text++;
    *value = integer ? round(exact) : exact;
    return !*text && fabs(exact - *value) <= 1e-12 * fabs(exact);
}

// Seconds: a number, or several with units, as in 1h30m
static bool parse_time(double* seconds, const char* text) {
    static const struct { const char* name; double factor; } units[] = {
        {"s", 1}, {"min", 60}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    const char* p = text;
    double value;
    *seconds = 0;
    do {
        size_t i = 0;
        const bool first = p == text;
        if (!read_number(&value, &p) || value < 0) return false;
        if (!*p && first) return *seconds = value, true;
        while (i < countof(units) && strncmp(p, units[i].name, strlen(units[i].name)) != 0) i++;
        if (i == countof(units)) return false;
        *seconds += value * units[i].factor;
        p += strlen(units[i].name);
    } while (*p);
    return true;
}

static bool parse_number(void* base, const Setting* row, const char* text, TostError* err) {
    static const char time[] = "a time such as 90m or 1h30m, or a number of seconds";
    const char* what = row->kind == DURATION ? time : row->kind == REAL ? "a number" : "an integer";
    double value;
    const bool ok = row->kind == DURATION ? parse_time(&value, text) : parse_count(&value, text, row->kind != REAL);
    if (ok && value >= row->min && value <= row->max) {
        setting_set(base, row, value);
        return true;
    }
    return tost_error(err, "--%s '%.200s' is not %s from %s to %s", row->name, text, what, real_text(row->min).text,
                      real_text(row->max).text);
}

static bool parse_choice(void* base, const Setting* row, const char* text, TostError* err) {
    TextLine name;
    if (strcmp(text, "bfloat16") == 0) text = "bf16";
    for (int i = 0; (name = choice_name(row->values, i)).text[0]; i++) {
        if (strcmp(text, name.text) != 0) continue;
        setting_set(base, row, i);
        return true;
    }
    return tost_error(err, "--%s '%.200s' is not one of %s", row->name, text, row->values);
}

bool setting_parse(void* base, const Setting* row, const char* text, TostError* err) {
    switch (row->kind) {
        case HELP: return true;
        case FLAG: *(bool*)field_of(base, row) = true; return true;
        case INT:
        case INT64:
        case REAL:
        case DURATION: return parse_number(base, row, text, err);
        case CHOICE: return parse_choice(base, row, text, err);
        case STRING:
        case LIST: break;
    }
    if (!*text) return tost_error(err, "--%s is empty: give a value, or leave it out", row->name);
    if (row->kind == LIST) add_string(field_of(base, row), xstrdup(text));
    else {
        setting_clear(base, row);
        *(char**)field_of(base, row) = xstrdup(text);
    }
    return true;
}

void setting_clear(void* base, const Setting* row) {
    if (row->kind == LIST) free_strings(field_of(base, row));
    if (row->kind != STRING) return;
    char** text = field_of(base, row);
    free(*text);
    *text = NULL;
}

// ---- Presets ----

// starter: data/starter, in half a minute on two cores. small: a fixed size for measurements; --for chooses better
// ones. tost-*: the published models, trained for 600,000 steps of 480 × 1,024 tokens.

#define COMMON .order = ORDER_SHUFFLED, .min_lr_frac = 0.1, .decay_frac = 0.2, .momentum = 0.95, .beta1 = 0.9, \
    .beta2 = 0.95, .eps = 1e-8, .grad_clip = 1.0, .max_skipped = 10, .seed = 1337, .val_windows = 480, \
    .sample_tokens = 128, .keep = 3, .temperature = 0.8, .top_p = 0.95, .parts = 1
#define PUBLISHED COMMON, .lr = 6e-4, .warmup = 2000, .steps = 600000, .batch = 1, .seq = 1024, \
    .total_batch = 480 * 1024, .val_every = 1000, .sample_every = 1000, .save_every = 1000
#define MUON COMMON, .optimizer = TOST_MUON, .weight_decay = 0.1

const TostRecipe tost_presets[] = {
    {.preset = 0, MUON, .lr = 2e-2, .warmup = 40, .steps = 800,
     .config = {.n_layer = 2, .n_head = 2, .n_embd = 128, .block_size = 256, .vocab_size = 2304, .conv = 4,
                .memory = 1},
     .batch = 4, .seq = 256, .total_batch = 1024, .val_every = 200, .sample_every = 400, .save_every = 400},
    {.preset = 1, MUON, .lr = 1.2e-2, .warmup = 40, .steps = 400,
     .config = {.n_layer = 6, .n_head = 8, .n_embd = 256, .block_size = 256, .vocab_size = 4096, .conv = 4,
                .memory = 1},
     .batch = 16, .seq = 256, .total_batch = 8192, .val_every = 100, .sample_every = 100, .save_every = 100},
    {.preset = 2, PUBLISHED, .weight_decay = 0.01,
     .config = {.n_layer = 12, .n_head = 12, .n_embd = 768, .block_size = 1024, .vocab_size = 50304, .bias = 0}},
    {.preset = 3, PUBLISHED, .weight_decay = 0.1,
     .config = {.n_layer = 24, .n_head = 16, .n_embd = 1024, .block_size = 1024, .vocab_size = 50304, .bias = 0}},
    {.preset = 4, PUBLISHED, .weight_decay = 0.1,
     .config = {.n_layer = 36, .n_head = 20, .n_embd = 1280, .block_size = 1024, .vocab_size = 50304, .bias = 0}},
};

// ---- Checkpoints ----

void recipe_free(TostRecipe* recipe) {
    for (int i = 0; i < RECIPE_ROWS; i++) setting_clear(recipe, &recipe_table[i]);
}

void recipe_fill(TostRecipe* recipe, const TostRecipe* preset) {
    static const size_t size[] = {
        [FLAG] = sizeof(bool), [INT] = sizeof(int), [CHOICE] = sizeof(int), [INT64] = sizeof(int64_t),
        [REAL] = sizeof(double), [STRING] = sizeof(char*), [LIST] = sizeof(StringList)};
    for (int i = 0; i < RECIPE_ROWS; i++) {
        const Setting* row = &recipe_table[i];
        if (!recipe_given(recipe, (RecipeRow)i)) memcpy(field_of(recipe, row), field_of(preset, row), size[row->kind]);
    }
}

TostRecipe recipe_copy(const TostRecipe* recipe) {
    TostRecipe copy = *recipe;
    for (const Setting* row = recipe_table; row < recipe_table + RECIPE_ROWS; row++) {
        void* field = field_of(&copy, row);
        if (row->kind == STRING && *(char**)field) *(char**)field = xstrdup(*(char**)field);
        if (row->kind != LIST) continue;
        const StringList list = *(StringList*)field;
        *(StringList*)field = (StringList){0};
        for (int i = 0; i < list.count; i++) add_string(field, xstrdup(list.strings[i]));
    }
    return copy;
}

// The row of a setting that is saved under this key, or RECIPE_ROWS.
static int saved_row(const char* key) {
    int i = 0;
    while (i < RECIPE_ROWS && !(is_saved(&recipe_table[i]) && strcmp(recipe_table[i].name, key) == 0)) i++;
    return i;
}

KeyValues recipe_write(const TostRecipe* recipe) {
    KeyValues saved = {0};
    for (int i = 0; i < RECIPE_ROWS; i++) {
        char* value = is_saved(&recipe_table[i]) ? setting_text(recipe, &recipe_table[i]) : NULL;
        if (value) key_values_add(&saved, xstrdup(recipe_table[i].name), value);
    }
    return saved;
}

// Fails if the value of a setting differs from that of a file or run.
static bool check_same(const TostRecipe* recipe, int i, const char* loaded, const char* where, TostError* err) {
    const Setting* row = &recipe_table[i];
    char* value = setting_text(recipe, row);
    const bool same = strcmp(value, loaded) == 0;
    if (!same)
        tost_error(err, "--%s %.200s differs from %.200s in %.500s: leave it out%s%s", row->name, value, loaded, where,
                   row->saved == FIXED ? ", or start a new run from its weights with --init" : "",
                   row->saved == FIXED && i != RECIPE_optimizer ? " and --keep-optimizer" : "");
    free(value);
    return same;
}

// Sets a setting to its saved text; false if that is malformed.
static bool read_setting(TostRecipe* recipe, const Setting* row, const char* saved, TostError* err) {
    char *copy = xstrdup(saved), *rest = copy;
    bool ok = true;
    setting_clear(recipe, row);
    if (row->kind == FLAG && strcmp(saved, "1") != 0) ok = tost_error(err, "--%s '%.200s' is not 1", row->name, saved);
    else if (row->kind == LIST) for (char* value; ok && (value = strsep(&rest, separator));)
        ok = setting_parse(recipe, row, value, err);
    else ok = setting_parse(recipe, row, saved, err);
    free(copy);
    return ok;
}

bool recipe_read(TostRecipe* recipe, const KeyValues* saved, const char* file, TostError* err) {
    for (const KeyValue* e = saved->entry; e < saved->entry + saved->count; e++) {
        const int i = saved_row(e->key);
        if (i == RECIPE_ROWS) continue;
        const Setting* row = &recipe_table[i];
        const bool given = recipe_given(recipe, (RecipeRow)i);
        if (given && row->saved == FIXED && !check_same(recipe, i, e->value, file, err)) return false;
        if (!given && !read_setting(recipe, row, e->value, err))
            return tost_error(err, "%s: __metadata__ 'option.%s': %s: the file is damaged; use another checkpoint",
                              file, e->key, err->text);
        recipe->given |= (uint64_t)1 << i;
    }
    return true;
}

TextLine recipe_changed(const TostRecipe* recipe, const KeyValues* saved) {
    TextLine all = {""};
    for (const KeyValue* e = saved->entry; e < saved->entry + saved->count; e++) {
        const int i = saved_row(e->key);
        const Setting* row = i < RECIPE_ROWS ? &recipe_table[i] : NULL;
        char* value = row && row->saved == OVERRIDABLE ? setting_text(recipe, row) : NULL;
        if (value ? strcmp(value, e->value) != 0 : !row && !strstr(e->key, "-crc")) {
            char *before = shown_value(e->value), *now = shown_value(value ? value : e->value);
            all = text_line("%s%s--%s %s %s%s", all.text, all.text[0] ? ", " : "", e->key, now,
                            value ? "instead of " : "(not in this version)", value ? before : "");
            free(before);
            free(now);
        }
        free(value);
    }
    return all;
}

// ---- Sizes ----

bool recipe_check_pass(int batch, int seq, int chunk, TostError* err) {
    const int length = chunk > 0 && chunk < seq ? chunk : seq;
    const int64_t pass = (int64_t)batch * length;
    return pass <= INT_MAX || tost_error(err, "--batch %d × %d tokens is %lld tokens per pass, the limit is %d: lower "
                                         "--batch, --seq or --chunk", batch, length, (long long)pass, INT_MAX);
}

TostEngineOptions recipe_engine(const TostRecipe* recipe, int max_batch, int seq, int parts, TostComm* comm) {
    const bool training = parts > 0;
    const int max_chunk = recipe->chunk && recipe->chunk < seq ? recipe->chunk : seq;
    return (TostEngineOptions){.max_batch = max_batch, .max_chunk = max_chunk, .training = training,
                               .states = chunks_states(seq, max_chunk, training), .dtype = (TostDtype)recipe->dtype,
                               .threads = recipe->threads, .comm = comm, .parts = parts,
                               .optimizer = training ? (TostOptimizer)recipe->optimizer : TOST_ADAMW};
}

TostUpdate recipe_update(const TostRecipe* r, double lr, double norm, int64_t number) {
    const double factor = r->grad_clip / (norm + TOST_CLIP_EPS);
    return (TostUpdate){lr, r->beta1, r->beta2, r->eps, r->weight_decay, r->grad_clip > 0 && factor < 1 ? factor : 1,
                        number, r->momentum};
}

// The parts of each rank are a power of two, so that their sum is a subtree of that of one rank (ranks/slices.h).
static bool check_parts(int parts, int ranks, TostError* err) {
    const int each = parts / ranks;
    return ranks == 1 || (parts % ranks == 0 && (each & (each - 1)) == 0)
        || tost_error(err, "--parts %d on %d ranks: the parts of each rank must be a power of two: use --parts %d, or "
                      "one rank", parts, ranks, ranks);
}

bool recipe_derive(TostRecipe* recipe, int ranks, bool resumed, TostError* err) {
    const TostRecipe* preset = &tost_presets[recipe->preset];
    const int block = recipe->config.block_size;
    if (!recipe_given(recipe, RECIPE_seq)) recipe->seq = block == preset->config.block_size ? preset->seq : block;
    if (recipe->seq > block) return tost_error(err, "--seq %d is longer than the block size %d", recipe->seq, block);

    // A checkpoint without the option is of one part.
    if (!recipe_given(recipe, RECIPE_parts)) recipe->parts = resumed ? 1 : ranks;
    if (!check_parts(recipe->parts, ranks, err)) return false;
    const bool total_given = recipe_given(recipe, RECIPE_total_batch);   // otherwise, total_batch is a default
    const int64_t part_seq = (int64_t)recipe->seq * recipe->parts;
    int64_t wanted = recipe->total_batch;
    if (!recipe_given(recipe, RECIPE_batch) && (total_given || recipe->parts > 1 || wanted != preset->total_batch)) {
        if (!total_given && recipe->parts > 1) wanted = (wanted + part_seq - 1) / part_seq * part_seq;
        while (wanted % part_seq == 0 && wanted / part_seq % recipe->batch != 0) recipe->batch--;
    }
    if (!recipe_check_pass(recipe->batch, recipe->seq, 0, err)) return false;
    const int64_t pass = recipe->batch * part_seq, passes = wanted / pass, rest = wanted % pass;
    if (!total_given) recipe->total_batch = (passes + (rest > 0)) * pass;
    else if (rest != 0)
        return tost_error(err, "--total-batch %lld is not a multiple of batch × seq × parts = %d × %d × %d: %s",
                          (long long)wanted, recipe->batch, recipe->seq, recipe->parts,
                          resumed ? "leave out --batch and --parts"
                                  : text_line("use %lld", (long long)((passes + 1) * pass)).text);
    return true;
}

bool recipe_set_config(TostRecipe* recipe, const TostConfig* config, int ranks, bool resumed, const char* file,
                        TostError* err) {
    const TostRecipe before = *recipe;
    bool same = true;
    recipe->config = *config;
    if (!resumed && !config->conv && recipe_given(recipe, RECIPE_conv)) recipe->config.conv = before.config.conv;
    if (!resumed && !config->memory && recipe_given(recipe, RECIPE_memory))
        recipe->config.memory = before.config.memory;
    if (!resumed && !config->bigrams && recipe_given(recipe, RECIPE_bigrams))
        recipe->config.bigrams = before.config.bigrams;
    for (int i = 0; i < RECIPE_SIZES && same; i++) {
        if (!recipe_given(recipe, (RecipeRow)i)) continue;
        char* loaded = setting_text(recipe, &recipe_table[i]);
        same = check_same(&before, i, loaded, file, err);
        free(loaded);
    }
    return same && (recipe_derive(recipe, ranks, resumed, err)
                    || tost_error(err, "%s; defaults are from %s", err->text, file));
}

void recipe_set_samples(TostRecipe* recipe, uint64_t samples) {
    const int64_t usual = tost_presets[recipe->preset].warmup;
    const double tokens = recipe->epochs * (double)samples * recipe->seq;
    if (recipe->epochs > 0) recipe->steps = (int64_t)fmin(TOST_MAX_COUNT, ceil(tokens / (double)recipe->total_batch));
    if (!recipe_given(recipe, RECIPE_warmup)) recipe->warmup = usual < recipe->steps / 10 ? usual : recipe->steps / 10;
}
