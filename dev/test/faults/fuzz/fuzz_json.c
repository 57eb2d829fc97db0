// fuzz_json.c: JSON. Reading all values and skipping them must accept the same texts; strings must be UTF-8.
#include "tost/base/error.h"
#include "tost/base/memory.h"
#include "tost/base/text.h"
#include "fuzz.h"

#include "tost/base/json.h"

static bool walk(Json* j);

static void must_be_utf8(const char* text, size_t n) {
    for (size_t at = 0; at < n;) {
        const int bytes = utf8_length(text + at, text + n);
        must_hold(bytes > 0, "string is not UTF-8");
        at += (size_t)bytes;
    }
}

static bool walk_string(Json* j, bool key) {
    const size_t cap = (size_t)(j->end - j->start) + 1;
    char* text = xmalloc(cap);
    size_t len = 0;
    const bool ok = key ? json_key(j, text, cap, &len) : json_string(j, text, cap, &len);
    if (ok) must_be_utf8(text, len);
    free(text);
    return ok;
}

static bool walk_inside(Json* j, JsonKind kind) {
    int next;
    if (!json_enter(j, kind)) return false;
    while ((next = json_next(j)) == 1)
        if ((kind == JSON_OBJECT && !walk_string(j, true)) || !walk(j)) return false;
    return next == 0;
}

static bool walk(Json* j) {
    const JsonKind kind = json_peek(j);
    if (kind == JSON_OBJECT || kind == JSON_ARRAY) return walk_inside(j, kind);
    if (kind == JSON_STRING) return walk_string(j, false);
    return json_skip(j);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    char* text = xmalloc(size + 1);   // exact size, so that reading past the end is detected
    memcpy(text, data, size);
    TostError walked = {0}, skipped = {0};
    Json j = json_open(text, size, &walked), k = json_open(text, size, &skipped);
    const bool a = walk(&j) && json_at_end(&j), b = json_skip(&k) && json_at_end(&k);
    if (!a) check_message(&walked);
    if (!b) check_message(&skipped);
    must_hold(a == b, "reading and skipping disagree");
    free(text);
    return 0;
}
