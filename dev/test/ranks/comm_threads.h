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

enum { MAX_POSTS = 256 };   // messages under way between two ranks

struct CommRequest { int left; int* open; };   // open (size): messages with a rank that are not complete

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
    request->left++;
    request->open[other]++;
}

static CommRequest* threads_start_messages(TostComm* c, const CommMessage* messages) {
    World* w = c->transport;
    const int rank = c->place.rank;
    CommRequest* request = xcalloc(1, sizeof *request);
    request->open = xcalloc((size_t)w->size, sizeof *request->open);
    pthread_mutex_lock(&w->lock);
    for (int r = 0; r < w->size; r++) {
        if (r == rank) continue;
        post(&w->sends[rank * w->size + r], messages[r].send, messages[r].send_bytes, request, r);
        post(&w->receives[r * w->size + rank], messages[r].receive, messages[r].receive_bytes, request, r);
    }
    pthread_mutex_unlock(&w->lock);
    return request;
}

static void complete(const Post* p) {
    p->request->left--;
    p->request->open[p->other]--;
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
            complete(s);
            complete(d);
        }
    }
    const bool done = own->left == 0;
    for (int r = 0; arrived && r < w->size; r++) arrived[r] = own->open[r] == 0;
    pthread_mutex_unlock(&w->lock);
    if (!done) return false;
    free(own->open);
    free(own);
    *request = NULL;
    return true;
}

static void threads_abort(TostComm* c, int status) {
    fprintf(stderr, "rank %d aborts with status %d\n", c->place.rank, status);
    abort();
}

static void threads_close(TostComm* c) { (void)c; }

typedef struct { World* world; int rank; void (*run)(TostComm* c, void* context); void* context; } RankThread;

static void* rank_main(void* arg) {
    const RankThread* t = arg;
    TostComm* c = xcalloc(1, sizeof *c);
    *c = (TostComm){.place = {.rank = t->rank, .size = t->world->size, .host = "host"},
                    .program = "test", .transport = t->world, .start = threads_start_messages, .test = threads_test,
                    .abort = threads_abort, .close = threads_close};
    snprintf(c->library, sizeof c->library, "threads");
    comm_find_places(c);
    t->run(c, t->context);
    comm_close(c);
    return NULL;
}

// Calls run on `size` ranks; context is shared by all. Returns the number of messages that were sent and not received,
// or whose two sides differ in size.
static int run_ranks(int size, void (*run)(TostComm* c, void* context), void* context) {
    World w = {.size = size};
    const size_t pairs = (size_t)size * size;
    w.sends = xcalloc(pairs, sizeof *w.sends);
    w.receives = xcalloc(pairs, sizeof *w.receives);
    pthread_mutex_init(&w.lock, NULL);
    pthread_t* thread = xmalloc((size_t)size * sizeof *thread);
    RankThread* rank = xmalloc((size_t)size * sizeof *rank);
    for (int r = 0; r < size; r++) {
        rank[r] = (RankThread){&w, r, run, context};
        if (pthread_create(&thread[r], NULL, rank_main, &rank[r]) != 0) abort();
    }
    for (int r = 0; r < size; r++) pthread_join(thread[r], NULL);
    int bad = w.mismatches;
    for (size_t i = 0; i < pairs; i++)
        bad += w.sends[i].end - w.sends[i].first + w.receives[i].end - w.receives[i].first;
    free(w.sends);
    free(w.receives);
    free(thread);
    free(rank);
    pthread_mutex_destroy(&w.lock);
    return bad;
}

#endif
