// comm_threads.h: ranks as threads of one process, so that the sanitizers see all of them. A message is copied from the
// sender's buffer when the receiver tests for it: a buffer that is used too early gives other results, and a data race.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include "base/memory.h"
#include "ranks/comm.h"

enum { MAX_POSTS = 256, RANKS_MAX = 17 };   // MAX_POSTS: messages under way between two ranks

struct CommRequest { int open[RANKS_MAX]; };   // messages with a rank that are not complete

typedef struct { char* buffer; size_t bytes; int* open; } Post;
typedef struct { Post send[MAX_POSTS], receive[MAX_POSTS]; int sends, receives, done; } Pair;   // from one rank to one

typedef struct World {
    pthread_mutex_t lock;
    int             size;
    Pair*           pair;         // (size, size): from rank, to rank
    int             mismatches;   // messages whose two sides differ in size
} World;

static void post(Post* list, int* n, int done, const void* buffer, size_t bytes, int* open) {
    if (bytes == 0) return;
    if (*n - done >= MAX_POSTS) abort();
    list[(*n)++ % MAX_POSTS] = (Post){(char*)(uintptr_t)buffer, bytes, open};
    ++*open;
}

static CommRequest* threads_start_messages(TostComm* c, const CommMessage* messages) {
    World* w = c->transport;
    CommRequest* request = xcalloc(1, sizeof *request);
    pthread_mutex_lock(&w->lock);
    for (int r = 0; r < w->size; r++) {
        const CommMessage* m = &messages[r];
        Pair *to = &w->pair[c->place.rank * w->size + r], *from = &w->pair[r * w->size + c->place.rank];
        if (r == c->place.rank) continue;
        post(to->send, &to->sends, to->done, m->send, m->send_bytes, &request->open[r]);
        post(from->receive, &from->receives, from->done, m->receive, m->receive_bytes, &request->open[r]);
    }
    pthread_mutex_unlock(&w->lock);
    return request;
}

static bool threads_test(TostComm* c, CommRequest** request, bool* arrived) {
    World* w = c->transport;
    bool done = true;
    pthread_mutex_lock(&w->lock);
    for (int r = 0; r < w->size; r++) {
        Pair* p = &w->pair[r * w->size + c->place.rank];
        for (; p->done < p->sends && p->done < p->receives; p->done++) {
            const Post *from = &p->send[p->done % MAX_POSTS], *to = &p->receive[p->done % MAX_POSTS];
            if (from->bytes == to->bytes) memcpy(to->buffer, from->buffer, from->bytes);
            else w->mismatches++;
            --*from->open;
            --*to->open;
        }
    }
    for (int r = 0; r < w->size; r++) {
        done = done && (*request)->open[r] == 0;
        if (arrived) arrived[r] = (*request)->open[r] == 0;
    }
    pthread_mutex_unlock(&w->lock);
    if (!done) return false;
    free(*request);
    *request = NULL;
    return true;
}

static void threads_abort(TostComm* c, int status) {
    (void)c;
    _exit(status);
}

static void threads_close(TostComm* c) { (void)c; }

typedef size_t RunRank(TostComm* c, void* context);   // returns the number of errors
typedef struct { World* world; int rank; RunRank* run; void* context; size_t errors; } RankThread;

static void* rank_main(void* arg) {
    RankThread* t = arg;
    TostComm* c = xcalloc(1, sizeof *c);
    *c = (TostComm){.place = {.rank = t->rank, .size = t->world->size}, .library = "threads",
                    .transport = t->world, .start = threads_start_messages, .test = threads_test,
                    .abort = threads_abort, .close = threads_close};
    strcpy(c->place.host, c->library);
    comm_find_places(c);
    t->errors = t->run(c, t->context);
    comm_close(c);
    return NULL;
}

// Calls run on `size` ranks; context is shared by all. Returns the sum of their errors and of the messages that were
// sent and not received, or whose two sides differ in size.
static size_t run_ranks(int size, RunRank* run, void* context) {
    const size_t pairs = (size_t)size * size;
    World w = {.size = size, .pair = xcalloc(pairs, sizeof *w.pair)};
    pthread_t thread[RANKS_MAX];
    RankThread rank[RANKS_MAX];
    pthread_mutex_init(&w.lock, NULL);
    for (int r = 0; r < size; r++) {
        rank[r] = (RankThread){&w, r, run, context, 0};
        if (pthread_create(&thread[r], NULL, rank_main, &rank[r]) != 0) abort();
    }
    for (int r = 0; r < size; r++) pthread_join(thread[r], NULL);
    size_t bad = (size_t)w.mismatches;
    for (int r = 0; r < size; r++) bad += rank[r].errors;
    for (size_t i = 0; i < pairs; i++) bad += (size_t)(w.pair[i].sends + w.pair[i].receives - 2 * w.pair[i].done);
    free(w.pair);
    pthread_mutex_destroy(&w.lock);
    return bad;
}
