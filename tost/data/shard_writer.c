// shard_writer.c: writes token shards in a locked folder and renames them when all are complete.
#include "data/shard_writer.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/folder.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/platform.h"
#include "data/shards.h"

enum { MAX_SHARDS = 1000000 };  // SHARD_DIGITS digits, so that name order is token order

struct ShardWriter {
    char*    prefix;
    char*    folder;        // PREFIX.tmp
    Lock     lock;          // on it
    uint32_t vocab_size;
    uint64_t shard_tokens;
    FILE*    out;           // current shard; NULL between shards
    char*    path;          // its name in the folder
    uint64_t in_shard;      // tokens in it
    uint64_t total;         // tokens in all shards
    int      shards;        // shards begun
};

static char* folder_name(const ShardWriter* w, int i) { return xasprintf("%s/%0*d.bin", w->folder, SHARD_DIGITS, i); }
static char* final_name(const ShardWriter* w, int i) { return xasprintf("%s_%0*d.bin", w->prefix, SHARD_DIGITS, i); }

// ---------------------------------------------------------------------------------------------
// The folder

// Fails if shards with this prefix exist: old and new ones would match the same glob.
static bool check_no_shards(const char* prefix, TostError* err) {
    const char* slash = strrchr(prefix, '/');
    char *start = xasprintf("%s_", slash ? slash + 1 : prefix), *dir = path_dir(prefix);
    char* found = NULL;  // the first in name order
    int count = 0;
    DIR* entries = opendir(dir);
    bool ok = entries || tost_error(err, "%s: cannot open the folder: %s", dir, strerror(errno));
    for (struct dirent* e; entries && (e = readdir(entries));) {
        if (!shard_is_named(e->d_name, start)) continue;
        count++;
        if (found && strcmp(found, e->d_name) <= 0) continue;
        free(found);
        found = xstrdup(e->d_name);
    }
    if (entries) closedir(entries);
    if (count == 1) {
        ok = tost_error(err, "%s/%s: exists already; remove it or choose another --out", dir, found);
    } else if (count) {
        ok = tost_error(err, "%s/%s and %d more shards exist already; remove them or choose another --out", dir,
                        found, count - 1);
    }
    free(found);
    free(dir);
    free(start);
    return ok;
}

// Creates and locks the folder. Tries again if another writer, which just ended, removes it in between.
static bool lock_folder(ShardWriter* w, TostError* err) {
    bool made;
    LockResult result = LOCK_FAILED;
    do {
        made = make_dirs(w->folder, err);
        if (made) result = lock_take(&w->lock, w->folder, err);
    } while (made && result == LOCK_FAILED && !path_exists(w->folder));
    if (made && result == LOCK_TAKEN) return true;
    rmdir(w->folder);   // fails if it has files, such as the lock of another process
    return false;
}

static void unlock_folder(ShardWriter* w) {
    lock_release(&w->lock);
    rmdir(w->folder);   // fails if it has other files, or a process has just locked it
}

// Fails before the work if the final names are too long. The names in the folder are shorter.
static bool check_final_name(const ShardWriter* w, TostError* err) {
    char* path = final_name(w, 0);
    const bool ok = access(path, F_OK) == 0 || errno == ENOENT
        || tost_error(err, "%s: cannot be created: %s", path, strerror(errno));
    free(path);
    return ok;
}

// Removes a shard left by a killed process. Without locks, that process may still be running.
static bool remove_stale_shard(const ShardWriter* w, const char* name, TostError* err) {
    char* path = path_join(w->folder, name);
    bool ok = !w->lock.unsupported;
    if (!ok) tost_error(err, "%s: exists already, and the file system has no locks: if no other tokenize is running, "
                        "remove it", path);
    else if (unlink(path) != 0) ok = tost_error(err, "%s: cannot be removed: %s", path, strerror(errno));
    free(path);
    return ok;
}

static bool remove_stale(const ShardWriter* w, TostError* err) {
    DIR* entries = opendir(w->folder);
    if (!entries) return tost_error(err, "%s: cannot open the folder: %s", w->folder, strerror(errno));
    bool ok = true;
    for (struct dirent* e; ok && (e = readdir(entries));)
        ok = !shard_is_named(e->d_name, "") || remove_stale_shard(w, e->d_name, err);
    closedir(entries);
    return ok;
}

// ---------------------------------------------------------------------------------------------
// Opening and closing

// Frees w and removes its shards; the first `renamed` of them have their final name.
static void discard(ShardWriter* w, int renamed) {
    if (w->out) fclose(w->out);
    for (int i = 0; i < w->shards; i++) {
        char* path = i < renamed ? final_name(w, i) : folder_name(w, i);
        unlink(path);
        free(path);
    }
    if (w->lock.path) unlock_folder(w);
    free(w->folder);
    free(w->path);
    free(w->prefix);
    free(w);
}

ShardWriter* shard_writer_open(const char* prefix, uint32_t vocab_size, uint64_t shard_tokens,
                               TostError* err) {
    size_t n = strlen(prefix);
    if (n == 0 || prefix[n - 1] == '/') {
        tost_error(err, "--out '%s': not a prefix of file names; give one such as data/my for data/my_000000.bin",
                   prefix);
        return NULL;
    }
    if (shard_tokens < 1 || shard_tokens > INT32_MAX) {  // the header's count is an int32
        tost_error(err, "--shard-tokens %" PRIu64 ": out of range; give 1 to %d", shard_tokens, INT32_MAX);
        return NULL;
    }
    ShardWriter* w = xcalloc(1, sizeof *w);
    *w = (ShardWriter){.prefix = xstrdup(prefix), .folder = xasprintf("%s.tmp", prefix), .vocab_size = vocab_size,
                       .shard_tokens = shard_tokens};
    if (lock_folder(w, err) && check_final_name(w, err) && check_no_shards(prefix, err) && remove_stale(w, err))
        return w;
    discard(w, 0);
    return NULL;
}

void shard_writer_abandon(ShardWriter* w) {
    if (w) discard(w, 0);
}

// ---------------------------------------------------------------------------------------------
// Writing

static bool is_wide(const ShardWriter* w) { return w->vocab_size > 65536; }

static bool write_failed(const ShardWriter* w, TostError* err) {
    return tost_error(err, "%s: write failed after %" PRIu64 " tokens: %s", w->path, w->in_shard,
                      strerror(errno));
}

static bool begin_shard(ShardWriter* w, TostError* err) {
    if (w->shards == MAX_SHARDS) {
        return tost_error(err, "%s: more than %d shards; raise --shard-tokens above %" PRIu64, w->prefix,
                          MAX_SHARDS, w->shard_tokens);
    }
    free(w->path);
    w->path = folder_name(w, w->shards);
    w->in_shard = 0;
    w->out = fopen(w->path, "wbx");
    if (!w->out) return tost_error(err, "%s: cannot create the file: %s", w->path, strerror(errno));
    w->shards++;
    static const char blank[SHARD_HEADER_BYTES];  // no magic until complete: an unfinished shard is not valid
    return fwrite(blank, sizeof blank, 1, w->out) == 1 || write_failed(w, err);
}

// Writes the header and syncs the file.
static bool end_shard(ShardWriter* w, TostError* err) {
    const uint32_t header[] = {is_wide(w) ? SHARD_MAGIC_U32 : SHARD_MAGIC_U16,
                               is_wide(w) ? SHARD_VERSION_U32 : SHARD_VERSION_U16, (uint32_t)w->in_shard};
    bool ok = fflush(w->out) == 0 && fseek(w->out, 0, SEEK_SET) == 0
        && fwrite(header, sizeof header, 1, w->out) == 1 && fflush(w->out) == 0 && sync_file(fileno(w->out));
    if (!ok) write_failed(w, err);
    if (fclose(w->out) != 0 && ok) ok = write_failed(w, err);
    w->out = NULL;
    return ok;
}

bool shard_writer_append(ShardWriter* w, const uint32_t* ids, size_t n, TostError* err) {
    enum { CHUNK = 4096 };
    const size_t width = is_wide(w) ? 4 : 2;
    while (n) {
        if (!w->out && !begin_shard(w, err)) return false;
        uint8_t bytes[CHUNK * 4];
        uint64_t room = w->shard_tokens - w->in_shard;
        size_t m = n < CHUNK ? n : CHUNK;
        if (m > room) m = (size_t)room;
        for (size_t i = 0; i < m; i++) {
            assert(ids[i] < w->vocab_size);
            memcpy(bytes + i * width, &ids[i], width);  // little-endian: the low bytes
        }
        if (fwrite(bytes, width, m, w->out) != m) return write_failed(w, err);
        w->in_shard += m;
        w->total += m;
        ids += m;
        n -= m;
        if (w->in_shard == w->shard_tokens && !end_shard(w, err)) return false;
    }
    return true;
}

// Appends the tokens of from's shard i, except for the first `skip`, to `to`.
static bool copy_shard(ShardWriter* to, const ShardWriter* from, int i, uint64_t skip, TostError* err) {
    enum { CHUNK = 4096 };
    const size_t width = is_wide(from) ? 4 : 2;
    uint8_t bytes[CHUNK * 4];
    uint32_t ids[CHUNK] = {0};
    char* path = folder_name(from, i);
    FILE* f = fopen(path, "rb");
    bool appended = true, ok = f && fseeko(f, (off_t)(SHARD_HEADER_BYTES + skip * width), SEEK_SET) == 0;
    for (size_t n = CHUNK; ok && appended && n == CHUNK;) {
        n = fread(bytes, width, CHUNK, f);
        for (size_t k = 0; k < n; k++) memcpy(&ids[k], bytes + k * width, width);   // the upper bytes stay 0
        if (ferror(f)) break;
        appended = shard_writer_append(to, ids, n, err);
    }
    if (appended && (!ok || ferror(f))) ok = tost_error(err, "%s: cannot be read: %s", path, strerror(errno));
    if (f) fclose(f);
    free(path);
    return ok && appended;
}

// Cuts the shards to the first n tokens.
static bool cut(ShardWriter* w, uint64_t n, TostError* err) {
    const int keep = (int)((n + w->shard_tokens - 1) / w->shard_tokens);
    for (; w->shards > keep; w->shards--) {
        char* path = folder_name(w, w->shards - 1);
        const bool ok = unlink(path) == 0 || tost_error(err, "%s: cannot be removed: %s", path, strerror(errno));
        free(path);
        if (!ok) return false;
    }
    w->total = n;
    if (n % w->shard_tokens == 0) return true;
    free(w->path);
    w->path = folder_name(w, keep - 1);
    w->in_shard = n % w->shard_tokens;
    w->out = fopen(w->path, "r+b");
    const off_t bytes = (off_t)(SHARD_HEADER_BYTES + w->in_shard * (is_wide(w) ? 4 : 2));
    if (!w->out || ftruncate(fileno(w->out), bytes) != 0) return write_failed(w, err);
    return end_shard(w, err);
}

bool shard_writer_move_tail(ShardWriter* to, ShardWriter* from, uint64_t n, TostError* err) {
    const uint64_t first = from->total - n;
    if (from->out && !end_shard(from, err)) return false;
    for (int i = (int)(first / from->shard_tokens); i < from->shards; i++) {
        const uint64_t begin = (uint64_t)i * from->shard_tokens;
        if (!copy_shard(to, from, i, first > begin ? first - begin : 0, err)) return false;
    }
    return cut(from, first, err);
}

static bool rename_shard(const ShardWriter* w, int i, TostError* err) {
    char *from = folder_name(w, i), *to = final_name(w, i);
    bool ok = rename(from, to) == 0
        || tost_error(err, "%s: cannot rename it to %s: %s", from, to, strerror(errno));
    free(from);
    free(to);
    return ok;
}

bool shard_writer_close(ShardWriter* w, uint64_t* tokens, int* shards, TostError* err) {
    int renamed = 0;
    bool ok = !w->out || end_shard(w, err);
    while (ok && renamed < w->shards) {
        ok = rename_shard(w, renamed, err);
        renamed += ok;
    }
    ok = ok && sync_parent(w->prefix, err);
    *tokens = w->total;
    *shards = w->shards;
    if (ok) w->shards = 0;  // nothing to remove
    discard(w, renamed);
    return ok;
}
