// fuzz_log.c: a log.csv that a run goes on with. What is accepted is cut once: the same again changes nothing.
#include "fuzz.h"

#include "tost/log.h"

static bool cut(Bytes* after, const char* path, int64_t step, TostError* err) {
    LogFile log = {0};
    const bool ok = log_open(&log, path, step, err);
    TostError closing = {0};
    must_hold(log_close(&log, &closing), "a log that does not close");
    TostError reading = {0};
    must_hold(read_file(after, path, &reading), "a log that is gone");
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const int64_t step = take_byte(&data, &size) % 8;
    TostError err = {0};
    Bytes once = {0}, twice = {0};
    char* path = fuzz_file("log.csv", data, size);
    if (cut(&once, path, step, &err)) {
        must_hold(cut(&twice, path, step, &err), "a log that is refused once it has been cut");
        must_hold(once.size == twice.size && memcmp(once.data, twice.data, once.size) == 0, "a log that is cut twice");
    } else {
        must_say(&err);
        must_hold(once.size == size && memcmp(once.data, data, size) == 0, "a refused log that is touched");
    }
    free(once.data);
    free(twice.data);
    free(path);
    return 0;
}
