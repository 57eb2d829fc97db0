// json.c: a pull parser for JSON in memory.
#include "base/json.h"

#include "base/memory.h"
#include "base/text.h"

Json json_open(const char* text, size_t n, TostError* err) {
    return (Json){.start = text, .p = text, .end = text + n, .err = err};
}

static bool expected(Json* j, const char* what) {
    size_t at = (size_t)(j->p - j->start);
    if (j->p == j->end) return tost_error(j->err, "byte %zu: expected %s, found the end", at, what);
    return tost_error(j->err, "byte %zu: expected %s, found '%s'", at, what, (char[2]){*j->p});
}

static void skip_space(Json* j) {
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\t' || *j->p == '\n' || *j->p == '\r')) j->p++;
}

static bool accept_char(Json* j, char c) {
    if (j->p == j->end || *j->p != c) return false;
    j->p++;
    return true;
}

bool json_enter(Json* j, const char brackets[2]) {
    skip_space(j);
    j->failed = !accept_char(j, brackets[0]);
    return !j->failed || expected(j, *brackets == '{' ? "an object" : "an array");
}

bool json_next(Json* j, const char brackets[2]) {
    if (j->failed) return false;
    const bool first = j->p[-1] == brackets[0];   // no value ends in this bracket
    skip_space(j);
    if (accept_char(j, brackets[1])) return false;
    j->failed = !first && !accept_char(j, ',');
    return !j->failed || expected(j, *brackets == '{' ? "',' or '}'" : "',' or ']'");
}

// ---- Strings ----

static bool hex4(Json* j, uint32_t* out) {
    *out = 0;
    for (int i = 0; i < 4; i++, j->p++) {
        char c = j->p < j->end ? *j->p : 0;
        int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
              : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (v < 0) return expected(j, "a hexadecimal digit");
        *out = *out << 4 | (uint32_t)v;
    }
    return true;
}

// Decodes \uXXXX, with j->p after the u, or a surrogate pair of two such escapes.
static bool unicode_escape(Json* j, uint32_t* c) {
    const uint32_t replacement = 0xfffd;
    if (!hex4(j, c)) return false;
    if (*c < 0xd800 || *c > 0xdfff) return true;
    bool high = *c < 0xdc00;
    if (high && j->end - j->p >= 2 && j->p[0] == '\\' && j->p[1] == 'u') {
        const char* before = j->p;
        uint32_t low;
        j->p += 2;
        if (!hex4(j, &low)) return false;
        if (low >= 0xdc00 && low <= 0xdfff) {
            *c = 0x10000 + ((*c - 0xd800) << 10) + (low - 0xdc00);
            return true;
        }
        j->p = before;  // not a pair
    }
    *c = replacement;
    return !j->strict || tost_error(j->err, "byte %zu: an unpaired surrogate", (size_t)(j->p - j->start));
}

// Decodes the escape at j->p, a backslash. Returns the number of bytes, 0 on error.
static int escape(Json* j, char out[4]) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    j->p++;
    if (accept_char(j, 'u')) {
        uint32_t c;
        return unicode_escape(j, &c) ? utf8_encode(out, c) : 0;
    }
    const char* at = j->p < j->end && *j->p ? strchr(from, *j->p) : NULL;
    if (!at) {
        expected(j, "one of \"\\/bfnrtu after a backslash");
        return 0;
    }
    j->p++;
    out[0] = to[at - from];
    return 1;
}

bool json_string(Json* j, char* out, size_t cap, size_t* len) {
    skip_space(j);
    const size_t at = (size_t)(j->p - j->start);
    size_t n = 0;
    if (!accept_char(j, '"')) return expected(j, "a string");
    while (!accept_char(j, '"')) {
        char decoded[4];
        const char* bytes = j->p;
        int m;
        if (j->p == j->end) return expected(j, "the closing quote of a string");
        if ((unsigned char)*j->p < 0x20) return expected(j, "an escape instead of a control character");
        if (*j->p == '\\') {
            m = escape(j, decoded);
            bytes = decoded;
            if (!m) return false;
        } else {
            if (utf8_decode(&m, j->p, j->end) == UTF8_INVALID) return expected(j, "valid UTF-8");
            j->p += m;
        }
        if (n + (size_t)m >= cap) return tost_error(j->err, "byte %zu: a string longer than %zu bytes", at, cap - 1);
        memcpy(out + n, bytes, (size_t)m);
        n += (size_t)m;
    }
    out[n] = 0;
    if (len) *len = n;
    return true;
}

bool json_field(Json* j, char* key, size_t cap, size_t* len) {
    if (!json_next(j, "{}")) return false;
    const bool ok = json_string(j, key, cap, len);
    skip_space(j);
    j->failed = !ok || !(accept_char(j, ':') || expected(j, "':'"));
    return !j->failed;
}

bool json_once(Json* j, bool* seen, const char* key) {
    if (*seen) return tost_error(j->err, "byte %zu: \"%s\" appears twice", (size_t)(j->p - j->start), key);
    return *seen = true;
}

// ---- Numbers and other values ----

static bool digit_ahead(const Json* j) { return j->p < j->end && *j->p >= '0' && *j->p <= '9'; }

bool json_u64(Json* j, uint64_t* out) {
    skip_space(j);
    const size_t at = (size_t)(j->p - j->start);
    if (!digit_ahead(j)) return expected(j, "a non-negative integer");
    if (accept_char(j, '0') && digit_ahead(j)) return expected(j, "no digit after a leading 0");
    for (*out = 0; digit_ahead(j); j->p++) {
        const uint64_t digit = (uint64_t)(*j->p - '0');
        if (__builtin_mul_overflow(*out, (uint64_t)10, out) || __builtin_add_overflow(*out, digit, out))
            return tost_error(j->err, "byte %zu: an integer over 2^64 - 1", at);
    }
    return true;
}

static bool skip_digits(Json* j, const char* what) {
    if (!digit_ahead(j)) return expected(j, what);
    while (digit_ahead(j)) j->p++;
    return true;
}

static bool skip_number(Json* j) {
    accept_char(j, '-');
    if (!accept_char(j, '0') && !skip_digits(j, "a string or a number")) return false;
    if (accept_char(j, '.') && !skip_digits(j, "a digit")) return false;
    if (!accept_char(j, 'e') && !accept_char(j, 'E')) return true;
    if (!accept_char(j, '+')) accept_char(j, '-');
    return skip_digits(j, "a digit");
}

static bool is_one_of(char c, const char* set) { return c && strchr(set, c); }

static bool skip_string(Json* j) {
    for (j->p++; !accept_char(j, '"'); j->p++) {
        if (j->p < j->end && *j->p == '\\') j->p++;
        if (j->p == j->end) return expected(j, "the closing quote of a string");
    }
    return true;
}

// Counts brackets instead of recursing, so no nesting is too deep.
bool json_skip(Json* j) {
    int64_t depth = 0;
    do {
        skip_space(j);
        if (j->p == j->end || (depth == 0 && is_one_of(*j->p, ",:]}"))) return expected(j, "a value");
        const char c = *j->p;
        if (c == '"') {
            if (!skip_string(j)) return false;
        } else if (is_one_of(c, "{}[],:")) {
            depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
            j->p++;
        } else   // a number or a word
            while (j->p < j->end && !is_one_of(*j->p, "{}[],:\" \t\n\r")) j->p++;
    } while (depth > 0);
    return true;
}

bool json_null(Json* j) {
    skip_space(j);
    return j->end - j->p >= 4 && memcmp(j->p, "null", 4) == 0 && (j->p += 4);
}

bool json_at_end(Json* j) {
    skip_space(j);
    return j->p == j->end || expected(j, "the end of the text");
}

// ---- Writing ----

void json_write_string(FILE* out, const char* text, size_t n) {
    static const char short_escapes[] = {['"'] = '"', ['\\'] = '\\', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    const char* end = text + n;
    fputc('"', out);
    while (text < end) {
        int bytes;
        const uint32_t c = utf8_decode(&bytes, text, end);
        if (c < sizeof short_escapes && short_escapes[c]) fprintf(out, "\\%c", short_escapes[c]);
        else if (c < 0x20) fprintf(out, "\\u%04x", (unsigned)c);
        else if (c == UTF8_INVALID) fputs("\xef\xbf\xbd", out);   // U+FFFD
        else fwrite(text, 1, (size_t)bytes, out);
        text += bytes;
    }
    fputc('"', out);
}

// Copies a string or a number as it is written. scratch (cap): memory to decode a string
static bool copy_id(Json* j, char** id, char* scratch, size_t cap) {
    skip_space(j);
    const char* from = j->p;
    const bool string = from < j->end && *from == '"';
    if (string ? !json_string(j, scratch, cap, NULL) : !skip_number(j)) return false;
    *id = xasprintf("%.*s", (int)(j->p - from), from);
    return true;
}

bool json_text_field(char* text, size_t* n_text, char** id, const char* json, size_t n, const char* name,
                     TostError* err) {
    Json j = json_open(json, n, err);
    bool found = false, has_id = false;
    size_t n_key;
    *n_text = 0;
    if (id) *id = NULL;
    json_enter(&j, "{}");
    // Keys are decoded after the text: a decoded string is not longer than its JSON, so n + 1 bytes suffice.
    for (char* key = text; json_field(&j, key, n + 1 - *n_text, &n_key); key = text + *n_text) {
        const bool wanted = n_key == strlen(name) && memcmp(key, name, n_key) == 0;
        const bool is_id = id && n_key == 2 && memcmp(key, "id", 2) == 0;
        if ((wanted && !json_once(&j, &found, name)) || (is_id && !json_once(&j, &has_id, "id"))) return false;
        if (wanted ? !json_string(&j, text, n + 1, n_text) : is_id ? !copy_id(&j, id, key, n + 1 - *n_text)
                   : !json_skip(&j)) return false;
    }
    if (j.failed || !json_at_end(&j)) return false;
    return found || tost_error(err, "the object has no \"%s\"", name);
}
