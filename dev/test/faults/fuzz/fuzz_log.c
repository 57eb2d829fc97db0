// fuzz_log.c: log.csv at --resume. Truncating an accepted log a second time must not change it.
#include "tost/base/error.h"
#include "tost/base/files.h"
#include "fuzz.h"

#include "tost/run/log.h"

static bool truncate_log(Bytes* after, const char* path, int64_t step, TostError* err) {
    LogFile log = {0};
    const bool ok = log_open(&log, path, step, err);
    TostError closing = {0};
    must_hold(log_close(&log, &closing), "cannot close the log");
    TostError reading = {0};
    must_hold(read_file(after, path, &reading), "the log is missing");
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const int64_t step = take_byte(&data, &size) % 8;
    TostError err = {0};
    Bytes once = {0}, twice = {0};
    char* path = fuzz_file("log.csv", data, size);
    if (truncate_log(&once, path, step, &err)) {
        must_hold(truncate_log(&twice, path, step, &err), "truncated log is rejected");
        must_hold(once.size == twice.size && memcmp(once.data, twice.data, once.size) == 0,
                  "second truncation changed the log");
    } else {
        check_message(&err);
        must_hold(once.size == size && memcmp(once.data, data, size) == 0, "rejected log was modified");
    }
    free(once.data);
    free(twice.data);
    free(path);
    return 0;
}
