// metadata.c: writes and reads __metadata__ of checkpoints.
#include "store/metadata.h"

#include <errno.h>
#include <inttypes.h>

#include "base/version.h"
#include "recipe.h"
#include "store/log.h"

static const char option_prefix[] = "option.";
enum { FORMAT_VERSION = 1 };

static const Setting fields[] = {   // in the order of the file; tokenizer_hash and the options follow
#define X(member, option, type, names, presence, ...) \
    {.name = #member, .kind = type, .field = offsetof(CheckpointInfo, config.member), .values = names, \
     .saved = presence, .min = presence == NOT_0},
    TOST_CONFIG(X)
#undef X
#define X(key, type, presence, member) \
    {.name = key, .kind = type, .field = offsetof(CheckpointInfo, member), .saved = presence},
    X("step", INT64, ALWAYS, step)
    X("tokens", INT64, ALWAYS, tokens)
    X("data_sample", INT64, ALWAYS, data_sample)
    X("seed", INT64, ALWAYS, seed)
    X("val_loss", REAL, NOT_0, val_loss)
    X("val_step", INT64, NOT_0, val_step)
    X("best_val_loss", REAL, ALWAYS, best_val_loss)
    X("best_val_step", INT64, NOT_0, best_val_step)
    X("earlier_updates", INT64, NOT_0, earlier_updates)
    X("skipped", INT64, NOT_0, skipped)
    X("skipped_in_a_row", INT64, NOT_0, skipped_in_a_row)
    X("log_row", STRING, NOT_0, unvalidated_row)
    X("earlier_lr", STRING, NOT_0, earlier_lr)
    X("tokenizer", STRING, NOT_0, tokenizer)
#undef X
};

// ---- Writing ----

KeyValues metadata_list(const CheckpointInfo* info) {
    KeyValues m = {0};
    key_values_add(&m, xstrdup("format"), xstrdup("pt"));   // expected by Python loaders
    key_values_add(&m, xstrdup("program"), xasprintf("train_gpt_tost %s", tost_version()));
    key_values_add(&m, xstrdup("format_version"), xasprintf("%d", FORMAT_VERSION));
    for (size_t i = 0; i < countof(fields); i++) {
        const Setting* field = &fields[i];
        const void* at = (const char*)info + field->field;
        char* text = field->kind == REAL ? xasprintf("%.17g", *(const double*)at) : setting_text(info, field);
        if (text) key_values_add(&m, xstrdup(field->name), text);
    }
    if (info->tokenizer)
        key_values_add(&m, xstrdup("tokenizer_hash"), xasprintf("%08" PRIx32, info->tokenizer_hash));
    for (int i = 0; i < info->options.count; i++) {
        const KeyValue* option = &info->options.entry[i];
        key_values_add(&m, xasprintf("%s%s", option_prefix, option->key), xstrdup(option->value));
    }
    return m;
}

// ---- Reading ----

static bool missing(const StFile* f, const char* key, TostError* err) {
    return tost_error(err, "%s: __metadata__ has no '%s': the file is damaged", f->path, key);
}

static bool malformed(const StFile* f, const char* key, const char* text, TostError* err) {
    return tost_error(err, "%s: __metadata__ '%s' is '%.80s', which is invalid or does not match the tensors or "
                      "other metadata: the file is damaged; use another checkpoint", f->path, key, text);
}

static bool parse_number(uint64_t* out, const char* text, int base, uint64_t max) {
    errno = 0;
    *out = strtoull(text, NULL, base);
    const char* digits = base == 16 ? "0123456789abcdefABCDEF" : "0123456789";
    return text[0] && !text[strspn(text, digits)] && !errno && *out <= max;
}

// False if the text is malformed. Sizes must be those of the tensors; a resumed run adds to numbers of 64 bits; a loss
// may be infinite.
static bool parse_field(CheckpointInfo* info, const Setting* row, const char* text) {
    void* at = (char*)info + row->field;
    uint64_t n;
    char* end;
    if (row->kind == INT) return parse_number(&n, text, 10, INT_MAX) && (int)n == *(int*)at;
    if (row->kind == INT64) return parse_number(at, text, 10, INT64_MAX / 2);
    if (row->kind != REAL) return setting_parse(info, row, text, &(TostError){0});
    *(double*)at = strtod(text, &end);
    return end != text && !*end && !isnan(*(double*)at);
}

bool metadata_check_crc(const StFile* f, TostError* err) {
    const char* text = st_meta(f, "crc32");
    uint64_t stored;
    uint32_t actual;
    if (!text) return !st_meta(f, "format_version") || missing(f, "crc32", err);
    if (!parse_number(&stored, text, 16, UINT32_MAX)) return malformed(f, "crc32", text, err);
    if (!st_crc32(f, &actual, err)) return false;
    return actual == stored
        || tost_error(err, "%s: CRC-32 of the tensors is %08" PRIx32 ", expected %08" PRIx32 ": the file is damaged; "
                      "use another checkpoint", f->path, actual, (uint32_t)stored);
}

bool metadata_read(CheckpointInfo* info, const StFile* f, TostError* err) {
    const size_t prefix = sizeof option_prefix - 1;
    const char* version = st_meta(f, "format_version");   // NULL: of another program, so keys may be absent
    if (version && strtol(version, NULL, 10) != FORMAT_VERSION)
        return tost_error(err, "%s: format_version %.20s, but this program reads %d: use a newer program", f->path,
                          version, FORMAT_VERSION);
    LogRow row;
    uint64_t n;
    info->val_loss = info->best_val_loss = INFINITY;
    for (size_t i = 0; i < countof(fields); i++) {
        const Setting* field = &fields[i];
        const char* text = st_meta(f, field->name);
        if (!text && version && field->saved == ALWAYS) return missing(f, field->name, err);
        if (text && !parse_field(info, field, text)) return malformed(f, field->name, text, err);
    }
    const char* hash = st_meta(f, "tokenizer_hash");
    if (!hash && version && info->tokenizer) return missing(f, "tokenizer_hash", err);
    if (hash && !parse_number(&n, hash, 16, UINT32_MAX)) return malformed(f, "tokenizer_hash", hash, err);
    info->tokenizer_hash = hash ? (uint32_t)n : 0;
    if (info->skipped > info->step) return malformed(f, "skipped", st_meta(f, "skipped"), err);
    if (info->unvalidated_row && !(log_row_parse(&row, info->unvalidated_row) && row.step == info->step))
        return malformed(f, "log_row", info->unvalidated_row, err);
    info->program = st_meta(f, "program") ? xstrdup(st_meta(f, "program")) : NULL;
    for (int i = 0; i < f->meta.count; i++) {
        const KeyValue* m = &f->meta.entry[i];
        if (strncmp(m->key, option_prefix, prefix) != 0) continue;
        key_values_add(&info->options, xstrdup(m->key + prefix), xstrdup(m->value));
    }
    return true;
}

void checkpoint_info_free(CheckpointInfo* info) {
    free(info->tokenizer);
    free(info->program);
    free(info->unvalidated_row);
    free(info->earlier_lr);
    key_values_free(&info->options);
    *info = (CheckpointInfo){0};
}
