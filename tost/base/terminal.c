#include "base/terminal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/memory.h"

int terminal_columns(int fd) {
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool terminal_is_live(int fd) {
    const char* term = getenv("TERM");
    return isatty(fd) && term && strcmp(term, "dumb") != 0;
}

// Columns of n bytes of UTF-8: one for each character.
static int columns_of(const char* text, size_t n) {
    int columns = 0;
    for (size_t i = 0; i < n; i++) columns += (text[i] & 0xC0) != 0x80;
    return columns;
}

char* wrap_text(const char* text, int column, int width, const char* indent) {
    const size_t step = strlen(indent) + 1;
    char *wrapped = xmalloc(strlen(text) * (step + 1) + 1), *out = wrapped;
    bool first = true;   // no word on this line yet
    while (*text) {
        const size_t spaces = strspn(text, " "), word = strcspn(text + spaces, " ");
        const int needed = (int)spaces + columns_of(text + spaces, word);
        if (!first && word > 0 && column + needed > width) {
            out += sprintf(out, "\n%s", indent);
            column = columns_of(indent, step - 1) + needed - (int)spaces;
        } else {
            out += sprintf(out, "%.*s", (int)spaces, text);
            column += needed;
        }
        out += sprintf(out, "%.*s", (int)word, text + spaces);
        first = false;
        text += spaces + word;
    }
    *out = 0;
    return wrapped;
}

// A pipe that poll reports as writable takes this many bytes at once (POSIX's smallest PIPE_BUF).
enum { CHUNK = 512 };

// Waits until fd can be written; once more after a signal. An fd that poll does not support, such as a terminal on some
// versions of macOS, counts as writable.
static bool writable(int fd, int timeout) {
    struct pollfd entry = {.fd = fd, .events = POLLOUT};
    int ready = poll(&entry, 1, timeout);
    if (ready < 0 && errno == EINTR) ready = poll(&entry, 1, timeout);
    return ready > 0 || (ready < 0 && errno != EINTR);
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
