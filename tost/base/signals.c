// signals.c: remembers signals until the trainer asks for them.
#include "base/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/terminal.h"

static const struct { int number; const char* name; } handled[] = {
    {SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"},
    {SIGXCPU, "SIGXCPU"},
};

// Global, because a signal handler has no arguments of its own.
static volatile sig_atomic_t received, received_at;
static char note[128];

// SIGINT and SIGTERM are requests: a second one quits immediately, and they are caught even if ignored, as SIGINT is in
// a background job. The same one within a second is a repetition: Slurm sends SIGTERM twice, milliseconds apart, when
// it preempts a job without GraceTime. The others report an event, which may repeat: kernel and shell both send SIGHUP
// when a terminal closes, and SIGXCPU comes every second. They stay ignored if they were, as SIGHUP is under nohup.
static bool is_request(int number) { return number == SIGINT || number == SIGTERM; }

static void on_signal(int number) {
    const int saved_errno = errno, now = (int)(10 * now_seconds());   // tenths of a second
    if (received && (!is_request(number) || (number == received && now - received_at < 10))) return;
    if (received) _exit(128 + number);
    received_at = now;
    received = number;
    output_write(STDERR_FILENO, note, strlen(note), 0);
    errno = saved_errno;
}

void signals_catch(const char* last) {
    if (last) snprintf(note, sizeof note, "\nstopping after %s; a second signal quits immediately\n", last);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < countof(handled); i++) {
        const int number = handled[i].number;
        if (is_request(number) || (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_IGN))
            sigaction(number, &action, NULL);
    }
}

int signals_received(void) { return received; }

const char* signals_name(int number) {
    for (size_t i = 0; i < countof(handled); i++)
        if (handled[i].number == number) return handled[i].name;
    return NULL;
}

void signals_ignore_write_errors(void) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}
