// info.c: prints the contents of a model file, a checkpoint or a run, or checks token shards.
#include <unistd.h>

#include "base/folder.h"
#include "base/json_write.h"
#include "commands/commands.h"
#include "data/formats.h"
#include "data/shards.h"
#include "store/log.h"

static void print_file(const char* label, const char* path) {
    struct stat st;
    if (stat(path, &st) == 0) print_line(stdout, "%-12s%s, %s", label, path, human_bytes((double)st.st_size).text);
}

static void print_training(const CheckpointInfo* info) {
    const bool own = info->options.count > 0;   // else converted: a step or number of tokens that is 0 is not known
    if (own || info->tokens != 0)
        print_line(stdout, "%-12s%lld step%s, %lld token%s (%s)", "trained", (long long)info->step, plural(info->step),
                   (long long)info->tokens, plural(info->tokens), human_count((double)info->tokens).text);
    else if (info->step != 0)
        print_line(stdout, "%-12s%lld step%s", "trained", (long long)info->step, plural(info->step));
    else print_line(stdout, "%-12sunknown: not a checkpoint of this program", "trained");
    if (isfinite(info->val_loss))
        print_line(stdout, "%-12s%.6f nats/token after step %lld", "val loss", info->val_loss,
                   (long long)info->val_step);
    if (isfinite(info->best_val_loss))
        print_line(stdout, "%-12s%.6f nats/token%s", "best", info->best_val_loss, own || info->best_val_step > 0
                   ? text_line(" after step %lld", (long long)info->best_val_step).text : "");
    if (info->tokenizer)
        print_line(stdout, "%-12s%s, CRC-32 %08x", "tokenizer", info->tokenizer, (unsigned)info->tokenizer_hash);
    else print_line(stdout, "%-12snone", "tokenizer");
    for (int i = 0; i < info->options.count; i++) {
        const KeyValue* option = &info->options.entry[i];
        char* value = shown_value(option->value);
        print_line(stdout, "%-12s%-14s %s", i == 0 ? "options" : "", option->key, value);
        free(value);
    }
}

static bool info_model(const Options* o, TostError* err) {
    LoadedModel m;
    if (recipe_given(&o->recipe, RECIPE_vocab_size))
        return tost_error(err, "--vocab-size is for shards: give SHARD files");
    const bool ok = loaded_model_find(&m, o->model, NULL, err);
    if (ok) {
        print_file("file", m.file);
        print_file("optimizer", path_in(path_above(m.file).text, OPTIMIZER_FILE).text);
        if (m.info.program) print_line(stdout, "%-12s%s", "written by", m.info.program);
        print_line(stdout, "%-12s%s", "model", model_sizes(&m.info.config).text);
        print_line(stdout, "%-12s%s, exactly %zu in %d tensors", "parameters",
                   human_count((double)m.tensors.n_params).text, m.tensors.n_params, m.tensors.count);
        print_training(&m.info);
    }
    loaded_model_free(&m);
    return ok;
}

// ---- Several runs ----

typedef struct { char* name; CheckpointInfo info; double seconds; } RunRow;   // of the newest checkpoint

// Seconds of the first `step` training steps in log.csv; NAN if there is no log.csv
static double training_seconds(const char* run, int64_t step) {
    char* line = NULL;
    size_t n = 0;
    FILE* log = fopen(path_in(run, LOG_FILE).text, "r");
    double seconds = log ? 0 : NAN;
    for (LogRow row; log && getline(&line, &n, log) > 0;)
        if (log_row_parse(&row, line) && row.step <= step && row.ms > 0) seconds += 1e-3 * row.ms;
    if (log) fclose(log);
    free(line);
    return seconds;
}

static const char* option_of(const CheckpointInfo* info, const char* key) {
    const char* value = key_values_find(&info->options, key);
    return value ? value : "-";
}

// By validation data, then by loss. Runs without a measured loss (infinity) come last.
static int compare_rows(const void* a, const void* b) {
    const RunRow *x = a, *y = b;
    const double d = x->info.val_loss - y->info.val_loss;
    const int unknown = !isfinite(x->info.val_loss) - !isfinite(y->info.val_loss);
    const int data = strcmp(option_of(&x->info, "val-data"), option_of(&y->info, "val-data"));
    return unknown ? unknown : data ? data : d < 0 ? -1 : d > 0 ? 1 : strcmp(x->name, y->name);
}

// The runs in a folder, sorted. Warns of those that cannot be read.
static RunRow* find_runs(int* count, const char* folder) {
    StringList names;
    TostError why;
    RunRow* rows = NULL;
    if (!folder_list(&names, folder, &why)) return NULL;
    for (int i = 0; i < names.count; i++) {
        const Path run = path_in(folder, names.strings[i]);
        RunRow row = {.name = names.strings[i]};
        StFile f;
        const bool unreadable = is_dir(run.text) && access(run.text, R_OK | X_OK) != 0;
        if (!unreadable && !checkpoint_is_run(run.text)) continue;
        if (checkpoint_open(&f, &row.info, run.text, &why)) {
            st_close(&f);
            row.name = xstrdup(row.name);
            row.seconds = training_seconds(run.text, row.info.step);
            rows = xgrow(rows, (size_t)*count, sizeof row);
            rows[(*count)++] = row;
        } else print_warning("%s", why.text);
    }
    free_strings(&names);
    if (rows) qsort(rows, (size_t)*count, sizeof *rows, compare_rows);
    return rows;
}

static void show_run(JsonFile* json, const RunRow* row, int width) {
    const CheckpointInfo* info = &row->info;
    const TextLine sizes = model_sizes(&info->config);
    const TextLine lr = text_line("%s%s", info->earlier_lr ? info->earlier_lr : "", option_of(info, "lr"));
    char* data = shown_value(option_of(info, "val-data"));
    json_put_open(json, NULL, '{');
    json_put_text(json, "run", row->name);
    const TextLine steps = json_figure_int(json, "steps", info->step, "%lld");
    json_put_int(json, "tokens", info->tokens);
    const TextLine loss = json_figure_real(json, "val_loss", info->val_loss, "%.6f"),
                   seconds = json_figure_real(json, "seconds", row->seconds, "%.1f");
    json_put_text(json, "model", sizes.text);
    print_line(stdout, "%-*s %8s %8s %10s %8s %8s %9s  %s; %s", width, row->name, steps.text,
               human_count((double)info->tokens).text, isfinite(info->val_loss) ? loss.text : "-",
               isfinite(row->seconds) ? seconds.text : "-", lr.text, option_of(info, "optimizer"), sizes.text, data);
    free(data);
    json_put_open(json, "options", '{');
    for (int i = 0; i < info->options.count; i++)
        json_put_text(json, info->options.entry[i].key, info->options.entry[i].value);
    json_put_close(json, '}');
    json_put_close(json, '}');
}

static bool info_runs(const Options* o, RunRow* rows, int count, TostError* err) {
    JsonFile json = {0};
    int width = 3;
    const bool ok = json_file_open(&json, o->json, "info", err);
    for (int i = 0; i < count; i++) width = (int)fmax(width, (double)strlen(rows[i].name));
    if (ok)
        printf("val loss: the latest in the newest checkpoint; seconds: time in training steps\n%-*s %8s %8s %10s %8s "
               "%8s %9s  %s\n", width, "run", "steps", "tokens", "val loss", "seconds", "lr", "optimizer",
               "model; validation data");
    json_put_open(&json, "runs", '[');
    for (int i = 0; i < count; i++) {
        if (ok) show_run(&json, &rows[i], width);
        checkpoint_info_free(&rows[i].info);
        free(rows[i].name);
    }
    json_put_close(&json, ']');
    free(rows);
    return json_file_close(&json, ok, err) && ok;
}

// ---- Shards ----

// Number of ids that the shard may have: --vocab-size, or the tokens of the tokenizer next to it; 0: unknown.
static uint32_t vocab_size_of(const Options* o, const char* path) {
    if (recipe_given(&o->recipe, RECIPE_vocab_size)) return (uint32_t)o->recipe.config.vocab_size;
    Path beside;
    Tokenizer* tokenizer = tokenizer_beside(&beside, path) ? tokenizer_open(beside.text, &(TostError){0}) : NULL;
    const uint32_t size = tokenizer ? (uint32_t)tokenizer_size(tokenizer) : 0;
    tokenizer_free(tokenizer);
    return size;
}

// Reads whole shards. Of several, the line of one that cannot be used is its error.
static bool info_shards(const Options* o, TostError* err) {
    uint64_t tokens = 0;
    uint32_t largest = 0;
    int bad = 0;
    for (int i = 0; i < o->n_files; i++) {
        Shard s;
        TostError why;
        const char* path = o->files[i];
        const uint32_t vocab_size = vocab_size_of(o, path);
        const TextLine of = vocab_size ? text_line(" of a vocabulary of %u", (unsigned)vocab_size) : (TextLine){""};
        if (shard_open(&s, path, &why) && shard_check_ids(&s, vocab_size ? vocab_size : UINT32_MAX, &why))
            print_line(stdout, "%s: uint%d%s, %llu token%s, largest id %u%s", path, 8 * s.width,
                       s.first ? "" : " without a header", (unsigned long long)s.n_tokens,
                       plural((int64_t)s.n_tokens), (unsigned)s.largest_id, of.text);
        else {
            if (o->n_files > 1) print_line(stdout, "%s", why.text);
            if (bad++ == 0) *err = why;
        }
        tokens += s.n_tokens;
        largest = s.largest_id > largest ? s.largest_id : largest;
        shard_close(&s);
    }
    if (o->n_files == 1) return bad == 0;
    printf("shards: %d; tokens: %llu (%s); largest id: %u\n", o->n_files, (unsigned long long)tokens,
           human_count((double)tokens).text, (unsigned)largest);
    return bad == 0 || tost_error(err, "%d of %d shards cannot be used; the first: %s", bad, o->n_files, err->text);
}

// A shard has the suffix .bin or begins like one; models are folders and safetensors files.
static bool is_shard(const char* path) {
    char head[16];
    if (is_dir(path)) return false;
    const size_t n = read_head(head, sizeof head, path);
    return !st_begins(head, n) && (has_suffix(path, ".bin") || shard_begins(head, n));
}

static bool info(const Options* o, TostError* err) {
    int count = 0;
    if (o->model && is_dir(o->model) && !checkpoint_is_run(o->model) && !checkpoint_is_folder(o->model)) {
        RunRow* rows = find_runs(&count, o->model);
        if (count) return info_runs(o, rows, count, err);
    }
    if (o->json) return tost_error(err, "--json %s: is only written for a folder of runs: give its PATH", o->json);
    int shards = 0;
    for (int i = 0; i < o->n_files; i++) shards += is_shard(o->files[i]);
    if (o->n_files < 2 && !shards) return info_model(o, err);
    for (int i = 0; i < o->n_files; i++)
        if (!is_shard(o->files[i]))
            return tost_error(err, "%s is not a shard: info takes one PATH, or shards", o->files[i]);
    return info_shards(o, err);
}

int command_info(const Options* o) {
    TostError err;
    return info(o, &err) ? 0 : print_error(&err);
}
