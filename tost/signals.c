// signals.c: handlers that ask a run to stop.
#include "signals.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t received;   // global, because a signal handler has no arguments of its own

static void on_signal(int number) {
    static const char note[] = "\nstopping after this step; a second signal quits immediately\n";
    const int saved_errno = errno;
    if (received && number == SIGHUP) return;   // kernel and shell both send it when a terminal closes
    if (received) _exit(128 + number);
    received = number;
    const ssize_t written = write(STDERR_FILENO, note, sizeof note - 1);
    (void)written;   // a failed write is ignored
    errno = saved_errno;
}

void signals_catch(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)   // nohup ignores it
        sigaction(SIGHUP, &action, NULL);
}

int signals_received(void) { return received; }

void signals_ignore_write_errors(void) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}
