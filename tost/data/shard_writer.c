// shard_writer.c: writes token shards in a locked folder and renames them when all are complete.
#include "data/shard_writer.h"

#include <errno.h>
#include <inttypes.h>

#include "base/folder.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/platform.h"
#include "data/shards.h"
#include "data/tokenizer.h"

enum { MAX_SHARDS = 1000000, CHUNK = 4096 };  // SHARD_DIGITS digits, so that name order is token order; tokens

typedef struct {
    FILE*    file;          // current shard; NULL between shards
    Path     path;          // its name in the folder
    uint64_t in_shard;      // tokens in it
    uint64_t total;         // tokens in all shards
    int      shards;        // shards begun
    int      renamed;       // the first ones, which have their final names
} Output;

struct ShardWriter {
    const char* out;        // of the caller
    Path     folder;        // OUT.tmp
    Lock     lock;          // on it
    size_t   width;         // bytes per token
    uint64_t shard_tokens;
    Output   output[SPLITS];
};

static Path shard_name(const ShardWriter* w, Split split, int i, bool final) {
    const char* name = split == SPLIT_VAL ? "val" : "train";
    return path_text("%s%s%s_%0*d.bin", w->out, final ? "_" : ".tmp/", name, SHARD_DIGITS, i);
}

// ---- The folder ----

// Fails if shards with this prefix exist: old and new ones would match the same glob.
static bool check_no_shards(const ShardWriter* w, TostError* err) {
    const char* slash = strrchr(w->out, '/');
    const Path start = path_text("%s_", slash ? slash + 1 : w->out), dir = path_above(w->out);
    Path old;
    return shard_find(&old, dir.text, start.text, err)
        && (!old.text[0] || tost_error(err, "%s: exists already; remove it or choose another --out; with xargs, which "
                                       "may start the command several times, use --files-from instead", old.text));
}

static bool lock_folder(ShardWriter* w, TostError* err) {
    struct stat st;
    const char* folder = w->folder.text;
    if (lstat(folder, &st) == 0 && S_ISLNK(st.st_mode))   // the shards of its target would be removed
        return tost_error(err, "%s is a link: remove it, or choose another --out", folder);
    if (make_dirs(folder, err) && lock_take(&w->lock, folder, err) == LOCK_TAKEN) return true;
    rmdir(folder);   // fails if it has files, such as the lock of another process
    return false;
}

// Removes shards left by a killed process. Without locks, that process may still be running.
static bool remove_stale(const ShardWriter* w, TostError* err) {
    Path old;
    while (shard_find(&old, w->folder.text, "", err)) {
        if (!old.text[0]) return true;
        if (w->lock.unsupported)
            return tost_error(err, "%s has shards, and the file system has no locks: if no other tokenize is running, "
                              "remove this folder", w->folder.text);
        if (unlink(old.text) != 0) return tost_error(err, "%s: cannot be removed: %s", old.text, strerror(errno));
    }
    return false;
}

// ---- Opening and closing ----

void shard_writer_abandon(ShardWriter* w) {
    if (!w) return;
    for (Split s = 0; s < SPLITS; s++) {
        Output* o = &w->output[s];
        if (o->file) fclose(o->file);
        for (int i = 0; i < o->shards; i++) unlink(shard_name(w, s, i, i < o->renamed).text);
    }
    if (w->lock.path.text[0]) {
        lock_release(&w->lock);
        rmdir(w->folder.text);   // fails if it has other files, or a process has just locked it
    }
    free(w);
}

ShardWriter* shard_writer_open(const char* out, uint32_t vocab_size, uint64_t shard_tokens, TostError* err) {
    ShardWriter* w = xcalloc(1, sizeof *w);
    *w = (ShardWriter){.out = out, .folder = path_text("%s.tmp", out), .width = vocab_size > 65536 ? 4 : 2,
                       .shard_tokens = shard_tokens};
    if (lock_folder(w, err) && check_no_shards(w, err) && remove_stale(w, err)) return w;
    shard_writer_abandon(w);
    return NULL;
}

// ---- Writing ----

static bool write_failed(const Output* o, TostError* err) {
    return tost_error(err, "%s: write failed after %" PRIu64 " tokens: %s", o->path.text, o->in_shard, strerror(errno));
}

static bool begin_shard(ShardWriter* w, Split split, TostError* err) {
    static const char blank[SHARD_HEADER_BYTES];  // no magic until complete: an unfinished shard is not valid
    Output* o = &w->output[split];
    if (o->shards == MAX_SHARDS)
        return tost_error(err, "%s: more than %d shards; raise --shard-tokens above %" PRIu64, w->out, MAX_SHARDS,
                          w->shard_tokens);
    o->path = shard_name(w, split, o->shards, false);
    o->in_shard = 0;
    o->file = fopen(o->path.text, "wbx");
    if (!o->file) return tost_error(err, "%s: cannot create the file: %s", o->path.text, strerror(errno));
    o->shards++;
    return fwrite(blank, sizeof blank, 1, o->file) == 1 || write_failed(o, err);
}

// Writes the header and syncs the file.
static bool end_shard(const ShardWriter* w, Output* o, TostError* err) {
    const bool wide = w->width == 4;
    const uint32_t header[] = {wide ? SHARD_MAGIC_U32 : SHARD_MAGIC_U16, wide ? SHARD_VERSION_U32 : SHARD_VERSION_U16,
                               (uint32_t)o->in_shard};
    if (!o->file) return true;
    bool ok = fflush(o->file) == 0 && fseek(o->file, 0, SEEK_SET) == 0
        && fwrite(header, sizeof header, 1, o->file) == 1 && fflush(o->file) == 0 && sync_file(fileno(o->file));
    if (!ok) write_failed(o, err);
    if (fclose(o->file) != 0 && ok) ok = write_failed(o, err);
    o->file = NULL;
    return ok;
}

bool shard_writer_append(ShardWriter* w, Split split, const uint32_t* ids, size_t n, TostError* err) {
    Output* o = &w->output[split];
    const size_t width = w->width == 4 ? 4 : 2;   // so that gcc copies without a call
    while (n) {
        if (!o->file && !begin_shard(w, split, err)) return false;
        uint8_t bytes[CHUNK * 4];
        const uint64_t room = w->shard_tokens - o->in_shard;
        size_t m = n < CHUNK ? n : CHUNK;
        if (m > room) m = (size_t)room;
        for (size_t i = 0; i < m; i++) memcpy(bytes + i * width, &ids[i], width);   // little-endian: the low bytes
        if (fwrite(bytes, width, m, o->file) != m) return write_failed(o, err);
        o->in_shard += m;
        o->total += m;
        ids += m;
        n -= m;
        if (o->in_shard == w->shard_tokens && !end_shard(w, o, err)) return false;
    }
    return true;
}

// Moves the tokens of training shard i, except for the first `keep`, to the validation shards.
static bool move_from(ShardWriter* w, int i, uint64_t keep, TostError* err) {
    Output* o = &w->output[SPLIT_TRAIN];
    uint32_t ids[CHUNK];
    Shard from;
    o->path = shard_name(w, SPLIT_TRAIN, i, false);
    bool ok = shard_open(&from, o->path.text, err);
    for (uint64_t at = keep; ok && at < from.n_tokens; at += CHUNK) {
        const size_t n = from.n_tokens - at < CHUNK ? (size_t)(from.n_tokens - at) : CHUNK;
        ok = shard_read(ids, &from, at, n, err) && shard_writer_append(w, SPLIT_VAL, ids, n, err);
    }
    shard_close(&from);
    if (!ok) return false;
    if (keep == 0)
        return unlink(o->path.text) == 0
               || tost_error(err, "%s: cannot be removed: %s", o->path.text, strerror(errno));
    o->in_shard = keep;
    o->file = fopen(o->path.text, "r+b");
    if (!o->file || ftruncate(fileno(o->file), (off_t)(SHARD_HEADER_BYTES + keep * w->width)) != 0)
        return write_failed(o, err);
    return end_shard(w, o, err);
}

bool shard_writer_move_tail(ShardWriter* w, uint64_t n, TostError* err) {
    Output* o = &w->output[SPLIT_TRAIN];
    const uint64_t left = o->total - n, keep = left % w->shard_tokens;   // keep: of the first shard with moved tokens
    const int first = (int)(left / w->shard_tokens);
    if (!end_shard(w, o, err)) return false;
    for (int i = first; i < o->shards; i++)
        if (!move_from(w, i, i == first ? keep : 0, err)) return false;
    o->shards = first + (keep > 0);
    o->total = left;
    return true;
}

static bool publish(ShardWriter* w, Split split, TostError* err) {
    Output* o = &w->output[split];
    for (; o->renamed < o->shards; o->renamed++) {
        const Path from = shard_name(w, split, o->renamed, false), to = shard_name(w, split, o->renamed, true);
        if (rename(from.text, to.text) != 0)
            return tost_error(err, "%s: cannot rename it to %s: %s", from.text, to.text, strerror(errno));
    }
    return true;
}

bool shard_writer_close(ShardWriter* w, const Bytes* tokenizer, ShardCount written[SPLITS], TostError* err) {
    const Path path = path_text("%s_" TOKENIZER_FILE, w->out);
    const bool adds = tokenizer && !path_exists(path.text);   // an existing one is the same
    const bool ok = end_shard(w, &w->output[SPLIT_TRAIN], err) && end_shard(w, &w->output[SPLIT_VAL], err)
        && (!adds || replace_file(path.text, tokenizer->data, tokenizer->size, err))
        && publish(w, SPLIT_VAL, err) && publish(w, SPLIT_TRAIN, err) && sync_dir(path_above(w->out).text, err);
    if (!ok && adds) unlink(path.text);
    for (Split s = 0; s < SPLITS; s++) {
        written[s] = (ShardCount){w->output[s].total, w->output[s].shards};
        if (ok) w->output[s].shards = 0;  // nothing to remove
    }
    shard_writer_abandon(w);
    return ok;
}
