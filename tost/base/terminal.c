// terminal.c: the width of a terminal, and writes that do not block.
#include "base/terminal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int terminal_columns(int fd) {
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool terminal_is_live(int fd) {
    const char* term = getenv("TERM");
    return isatty(fd) && term && strcmp(term, "dumb") != 0;
}

// A pipe that poll reports as writable takes this many bytes at once (POSIX's smallest PIPE_BUF).
enum { CHUNK = 512 };

// Waits until fd can be written. An fd that poll does not support, such as a terminal on some versions of macOS, counts
// as writable.
static bool writable(int fd, int timeout) {
    struct pollfd entry = {.fd = fd, .events = POLLOUT};
    int ready;
    do ready = poll(&entry, 1, timeout); while (ready < 0 && errno == EINTR);
    return ready != 0;
}

size_t output_write(int fd, const char* bytes, size_t n, int timeout) {
    size_t done = 0;
    while (done < n) {
        if (!writable(fd, timeout)) {
            errno = EAGAIN;
            break;
        }
        const ssize_t k = write(fd, bytes + done, n - done < CHUNK ? n - done : CHUNK);
        if (k < 0 && errno != EINTR) break;
        if (k > 0) done += (size_t)k;
    }
    return done;
}
