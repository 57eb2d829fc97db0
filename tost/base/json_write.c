// json_write.c: writes JSON files. Each element of the two outer levels is on its own line.
#include "base/json_write.h"

#include <math.h>
#include <sys/stat.h>

#include "base/folder.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"

// True if there is a file with data of another content or program.
static bool has_other_data(const char* path, const char* content) {
    struct stat st;
    char head[64] = "", begin[64];
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0 || standard_stream(path)) return false;
    const int begins = snprintf(begin, sizeof begin, "{\n  \"content\": \"%s\"", content);
    return read_head(head, sizeof head, path) == 0 || strncmp(head, begin, (size_t)begins) != 0;
}

static bool check_path(const char* path, const char* content, TostError* err) {
    if (is_dir(path)) return tost_error(err, "--json %s is a folder: give a file name", path);
    if (!check_writable(path, err)) return tost_error(err, "--json %s", err->text);
    if (has_other_data(path, content))
        return tost_error(err, "--json %s: not written by this command: remove it, or choose another file", path);
    return true;
}

bool json_file_open(JsonFile* j, const char* path, const char* content, TostError* err) {
    *j = (JsonFile){0};
    if (!path) return true;
    if (!check_path(path, content, err)) return false;
    j->path = path_text("%s", path);
    j->file = open_memstream(&j->text, &j->n);
    json_put_open(j, NULL, '{');
    json_put_text(j, "content", content);
    return true;
}

bool json_file_close(JsonFile* j, bool keep, TostError* err) {
    if (!j->file) return true;
    json_put_close(j, '}');
    fputc('\n', j->file);
    fclose(j->file);
    const bool ok = !keep || replace_file(j->path.text, j->text, j->n, err) || tost_error(err, "--json %s", err->text);
    free(j->text);
    *j = (JsonFile){0};
    return ok;
}

// Writes comma, line break and key before a value. Returns false if there is no file.
static bool begin_value(JsonFile* j, const char* key) {
    if (!j->file) return false;
    if (!j->fresh && j->depth > 0) fputs(j->depth > 2 ? ", " : ",", j->file);
    if (j->depth > 0 && j->depth <= 2) fprintf(j->file, "\n%*s", 2 * j->depth, "");
    j->fresh = false;
    if (key) {
        json_write_string(j->file, key, strlen(key));
        fputs(": ", j->file);
    }
    return true;
}

void json_put_open(JsonFile* j, const char* key, char bracket) {
    if (!begin_value(j, key)) return;
    fputc(bracket, j->file);
    j->depth++;
    j->fresh = true;
}

void json_put_close(JsonFile* j, char bracket) {
    if (!j->file) return;
    j->depth--;
    if (!j->fresh && j->depth < 2) fprintf(j->file, "\n%*s", 2 * j->depth, "");
    fputc(bracket, j->file);
    j->fresh = false;
}

void json_put_bytes(JsonFile* j, const char* key, const char* text, size_t n) {
    if (begin_value(j, key)) json_write_string(j->file, text, n);
}

void json_put_text(JsonFile* j, const char* key, const char* text) {
    json_put_bytes(j, key, text, strlen(text));
}

void json_put_int(JsonFile* j, const char* key, int64_t value) {
    if (begin_value(j, key)) fprintf(j->file, "%lld", (long long)value);
}

void json_put_real(JsonFile* j, const char* key, double value) {
    if (!begin_value(j, key)) return;
    if (isfinite(value)) fprintf(j->file, "%.17g", value);
    else fputs("null", j->file);
}

void json_put_bool(JsonFile* j, const char* key, bool value) {
    if (begin_value(j, key)) fputs(value ? "true" : "false", j->file);
}

TextLine json_figure_int(JsonFile* j, const char* key, int64_t value, const char* fmt) {
    json_put_int(j, key, value);
    return text_line(fmt, (long long)value);
}

TextLine json_figure_real(JsonFile* j, const char* key, double value, const char* fmt) {
    json_put_real(j, key, value);
    return isnan(value) ? (TextLine){""} : text_line(fmt, value);
}
