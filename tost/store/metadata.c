#include "store/metadata.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "base/version.h"
#include "store/log.h"

static const char option_prefix[] = "option.";
enum { FORMAT_VERSION = 1 };

typedef enum {
    INT,          // as read_config found it; absent if it is 0 and not required
    CHOICE,       // int: the first or the second of two names; absent: the first
    COUNT,        // int64_t or uint64_t, 0 to 2^62 - 1: a resumed run adds to it
    HASH,         // uint32_t of the tokenizer, in hexadecimal
    LOSS,         // double, with 17 digits
    TEXT          // char*; absent: NULL
} Kind;

enum { NOT_0, ALWAYS };
typedef struct { const char* key; Kind kind; bool required; size_t offset; const char* names; } Field;
#define FIELD(key, kind, required, member) {key, kind, required, offsetof(CheckpointInfo, member), NULL}
static const Field fields[] = {   // in the order of the file
#define X(field, option, kind, values, saved, ...) \
    {#field, kind, saved, offsetof(CheckpointInfo, config.field), values},
    TOST_CONFIG(X)
#undef X
    FIELD("step", COUNT, true, step),
    FIELD("tokens", COUNT, true, tokens),
    FIELD("data_sample", COUNT, true, data_sample),
    FIELD("seed", COUNT, true, seed),
    FIELD("val_loss", LOSS, false, val_loss),
    FIELD("val_step", COUNT, false, val_step),
    FIELD("best_val_loss", LOSS, true, best_val_loss),
    FIELD("best_val_step", COUNT, false, best_val_step),
    FIELD("earlier_updates", COUNT, false, earlier_updates),
    FIELD("skipped", COUNT, false, skipped),
    FIELD("skipped_in_a_row", COUNT, false, skipped_in_a_row),
    FIELD("log_row", TEXT, false, row),
    FIELD("earlier_lr", TEXT, false, earlier_lr),
    FIELD("tokenizer", TEXT, false, tokenizer),
    FIELD("tokenizer_hash", HASH, false, tokenizer_hash),
};

// ---- Writing ----

// The text of a field; NULL: it is left out. free()
static char* field_text(const Field* field, const CheckpointInfo* info) {
    const void* at = (const char*)info + field->offset;
    switch (field->kind) {
        case INT:    return field->required || *(const int*)at ? xasprintf("%d", *(const int*)at) : NULL;
        case CHOICE: return *(const int*)at ? xstrdup(strchr(field->names, '|') + 1) : NULL;
        case COUNT:  return xasprintf("%" PRId64, *(const int64_t*)at);
        case HASH:   return info->tokenizer ? xasprintf("%08" PRIx32, *(const uint32_t*)at) : NULL;
        case LOSS:   return xasprintf("%.17g", *(const double*)at);
        case TEXT:   return *(char* const*)at ? xstrdup(*(char* const*)at) : NULL;
    }
    return NULL;
}

KeyValues metadata_list(const CheckpointInfo* info) {
    KeyValues m = {0};
    key_values_add(&m, xstrdup("format"), xstrdup("pt"));   // expected by Python loaders
    key_values_add(&m, xstrdup("program"), xasprintf("train_gpt_tost %s", tost_version()));
    key_values_add(&m, xstrdup("format_version"), xasprintf("%d", FORMAT_VERSION));
    for (size_t i = 0; i < countof(fields); i++) {
        char* text = field_text(&fields[i], info);
        if (text) key_values_add(&m, xstrdup(fields[i].key), text);
    }
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

// False if the text is malformed.
static bool parse_field(CheckpointInfo* info, const Field* field, const char* text) {
    void* at = (char*)info + field->offset;
    uint64_t n;
    char* end;
    switch (field->kind) {
        case INT: return parse_number(&n, text, 10, INT_MAX) && (int)n == *(int*)at;
        case CHOICE:
            n = strcspn(field->names, "|");
            *(int*)at = strcmp(text, field->names + n + 1) == 0;
            return *(int*)at || (strlen(text) == n && memcmp(text, field->names, n) == 0);
        case COUNT: return parse_number(at, text, 10, INT64_MAX / 2);
        case HASH:
            if (!parse_number(&n, text, 16, UINT32_MAX)) return false;
            *(uint32_t*)at = (uint32_t)n;
            return true;
        case LOSS:
            *(double*)at = strtod(text, &end);
            return end != text && !*end && !isnan(*(double*)at);
        case TEXT:
            *(char**)at = xstrdup(text);
            return true;
    }
    return false;
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
    const size_t n = sizeof option_prefix - 1;
    const char* version = st_meta(f, "format_version");   // NULL: of another program, so keys may be absent
    if (version && strtol(version, NULL, 10) != FORMAT_VERSION)
        return tost_error(err, "%s: format_version %.20s, but this program reads %d: use a newer program", f->path,
                          version, FORMAT_VERSION);
    LogRow row;
    info->val_loss = info->best_val_loss = INFINITY;
    for (size_t i = 0; i < countof(fields); i++) {
        const Field* field = &fields[i];
        const char* text = st_meta(f, field->key);
        const bool required = field->kind == HASH ? info->tokenizer != NULL : field->required;
        if (!text && version && required) return missing(f, field->key, err);
        if (text && !parse_field(info, field, text)) return malformed(f, field->key, text, err);
    }
    if (info->skipped > info->step) return malformed(f, "skipped", st_meta(f, "skipped"), err);
    if (info->row && !(log_row_parse(&row, info->row) && row.step == info->step))
        return malformed(f, "log_row", info->row, err);
    info->program = st_meta(f, "program") ? xstrdup(st_meta(f, "program")) : NULL;
    for (int i = 0; i < f->meta.count; i++) {
        const KeyValue* m = &f->meta.entry[i];
        if (strncmp(m->key, option_prefix, n) != 0) continue;
        key_values_add(&info->options, xstrdup(m->key + n), xstrdup(m->value));
    }
    // A run that was saved without the option was trained by AdamW.
    if (st_meta(f, "option.lr") && !st_meta(f, "option.optimizer"))
        key_values_add(&info->options, xstrdup("optimizer"), xstrdup("adamw"));
    return true;
}

void checkpoint_info_free(CheckpointInfo* info) {
    free(info->tokenizer);
    free(info->program);
    free(info->row);
    free(info->earlier_lr);
    key_values_free(&info->options);
    *info = (CheckpointInfo){0};
}
