// say.c: prints errors and warnings.
#include "base/say.h"

#include <unistd.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"

static struct { const char* program; int rank; } self = {"train_gpt_tost", 0};

void say_as(const char* program, int rank) {
    const char* slash = strrchr(program, '/');
    self.program = slash && slash[1] ? slash + 1 : program;
    self.rank = rank;
}

const char* say_program(void) { return self.program; }

static void print_text(const char* text) {
    if (self.rank != 0) return;
    char *program = printable_text(self.program), *line = xasprintf("%s: %s\n", program, text);
    fflush(stdout);
    output_write(STDERR_FILENO, line, strlen(line), OUTPUT_TIMEOUT);
    free(program);
    free(line);
}

int print_error(const TostError* err) {
    print_text(err->text);
    return STATUS_FAILED;
}

void print_warning(const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    print_text(vtext_line(fmt, ap).text);
    va_end(ap);
}
