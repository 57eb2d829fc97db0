// comm_threads.h: ranks as threads of one process, so that the sanitizers see all of them. A message is copied from the
// sender's buffer when the receiver tests for it: a buffer that is used too early gives other results, and a data race.
#ifndef COMM_THREADS_H
#define COMM_THREADS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "ranks/comm.h"

enum { MAX_POSTS = 256, RANKS_MAX = 17 };   // MAX_POSTS: messages under way between two ranks

struct CommRequest { int open[RANKS_MAX]; };   // messages with a rank that are not complete

typedef struct { void* buffer; size_t bytes; CommRequest* request; int other; } Post;
typedef struct { Post post[MAX_POSTS]; int first, end; } PostList;

typedef struct World {
    pthread_mutex_t lock;
    int             size;
    PostList        *sends, *receives;   // (size,size): from rank, to rank
    int             mismatches;          // messages whose two sides differ in size
} World;

static void post(PostList* list, const void* buffer, size_t bytes, CommRequest* request, int other) {
    if (bytes == 0) return;
    if (list->end - list->first >= MAX_POSTS) abort();
    list->post[list->end++ % MAX_POSTS] = (Post){(void*)(uintptr_t)buffer, bytes, request, other};
    request->open[other]++;
}

static CommRequest* threads_start_messages(TostComm* c, const CommMessage* messages) {
    World* w = c->transport;
    const int rank = c->place.rank;
    CommRequest* request = xcalloc(1, sizeof *request);
    pthread_mutex_lock(&w->lock);
    for (int r = 0; r < w->size; r++) {
        if (r == rank) continue;
        post(&w->sends[rank * w->size + r], messages[r].send, messages[r].send_bytes, request, r);
        post(&w->receives[r * w->size + rank], messages[r].receive, messages[r].receive_bytes, request, r);
    }
    pthread_mutex_unlock(&w->lock);
    return request;
}

static bool threads_test(TostComm* c, CommRequest** request, bool* arrived) {
    World* w = c->transport;
    CommRequest* own = *request;
    pthread_mutex_lock(&w->lock);
    for (int r = 0; r < w->size; r++) {
        PostList *from = &w->sends[r * w->size + c->place.rank], *to = &w->receives[r * w->size + c->place.rank];
        for (; from->first < from->end && to->first < to->end; from->first++, to->first++) {
            const Post *s = &from->post[from->first % MAX_POSTS], *d = &to->post[to->first % MAX_POSTS];
            if (s->bytes == d->bytes) memcpy(d->buffer, s->buffer, s->bytes);
            else w->mismatches++;
            s->request->open[s->other]--;
            d->request->open[d->other]--;
        }
    }
    bool done = true;
    for (int r = 0; r < w->size; r++) {
        done = done && own->open[r] == 0;
        if (arrived) arrived[r] = own->open[r] == 0;
    }
    pthread_mutex_unlock(&w->lock);
    if (!done) return false;
    free(own);
    *request = NULL;
    return true;
}

static void threads_abort(TostComm* c, int status) {
    fprintf(stderr, "rank %d aborts with status %d\n", c->place.rank, status);
    abort();
}

static void threads_close(TostComm* c) { (void)c; }

typedef size_t RunRank(TostComm* c, void* context);   // returns the number of errors
typedef struct { World* world; int rank; RunRank* run; void* context; size_t errors; } RankThread;

static void* rank_main(void* arg) {
    RankThread* t = arg;
    TostComm* c = xcalloc(1, sizeof *c);
    *c = (TostComm){.place = {.rank = t->rank, .size = t->world->size, .host = "host"}, .library = "threads",
                    .program = "test", .transport = t->world, .start = threads_start_messages, .test = threads_test,
                    .abort = threads_abort, .close = threads_close};
    comm_find_places(c);
    t->errors = t->run(c, t->context);
    comm_close(c);
    return NULL;
}

// Calls run on `size` ranks; context is shared by all. Returns the sum of their errors and of the messages that were
// sent and not received, or whose two sides differ in size.
static size_t run_ranks(int size, RunRank* run, void* context) {
    const size_t pairs = (size_t)size * size;
    World w = {.size = size, .sends = xcalloc(pairs, sizeof *w.sends), .receives = xcalloc(pairs, sizeof *w.receives)};
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
    for (size_t i = 0; i < pairs; i++)
        bad += (size_t)(w.sends[i].end - w.sends[i].first + w.receives[i].end - w.receives[i].first);
    free(w.sends);
    free(w.receives);
    pthread_mutex_destroy(&w.lock);
    return bad;
}

#endif
