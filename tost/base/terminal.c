// terminal.c: the width of a terminal, whether it shows colors, and text wrapped at words.
#include "base/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

bool terminal_color(void) {
    const char* value = getenv("NO_COLOR");
    return !value || !*value;
}

// Columns of n bytes of UTF-8, by the first byte of each character: two for U+3000 to U+DFFF and from U+10000 on,
// which are mostly East Asian characters and emoji, and one for all others.
static int columns_of(const char* text, size_t n) {
    int columns = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        columns += (c & 0xC0) == 0x80 ? 0 : (c >= 0xE3 && c <= 0xED) || c >= 0xF0 ? 2 : 1;
    }
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
