/* SPDX-License-Identifier: Apache-2.0 */
/* logging: writes one CSV row per event, byte for byte as RMM's logging_resource_adaptor does, so
 * that RMM's replay benchmark and existing scripts can read the log. */
#include "resource/adaptor/logging.h"

#include "base/lock.h"
#include "base/log.h"
#include "base/output.h"
#include "base/process.h"
#include "resource/resource.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { ROW_BYTES_MAX = 160, MARK_BYTES_MAX = 200 };

static const char marks_header[] = "Thread,Time,Row,Phase\n";
static const char header[] = "Thread,Time,Action,Pointer,Size,Stream\n";

/* A sink: one log file of this process, shared by all stacks whose option names its path.  It stays
 * open to the end, so that a stack that is made again for a new context continues the log.
 *
 * A forked child finds this memory all zero, so that the sink has no owner there.  The child then
 * touches neither the log nor its tail nor the lock. */
struct sink {
    struct sink *next;
    struct rs_mutex lock; /* protects the fields below, except the paths */
    bool on;              /* rows are written; false after an error, and after the log's end */
    pid_t owner;   /* who may write; a forked child finds 0 (before Linux 4.14: its parent) */
    uint64_t rows; /* rows written, without the header */
    int marks_fd;  /* descriptor of the marks' file; -1: not opened */
    time_t second; /* the time for which clock_text was made */
    char clock_text[16];
    /* The rows that are not in the file yet; without a tail each row is written at once. */
    struct rs_file_tail tail;
    char path[PATH_MAX]; /* the path of the option, with its placeholders expanded */
    /* The file that is written; it has another name than `path` if that is another process's. */
    struct rs_output output;
};

struct logging_config {
    const char *path;
    bool auto_flush;
};

struct logging {
    struct rs_mr base;
    struct sink *sink;
    bool auto_flush;
};

/* Protects the list of sinks. */
static struct rs_mutex sinks_lock = RS_MUTEX_INIT(RS_RANK_RESOURCE);
RS_RESET_IN_CHILD(logging, sinks_lock);
static struct sink *sinks;

/* False in a forked child (from Linux 4.14 on). */
static bool has_owner(const struct sink *sink)
{
    return sink->owner != 0;
}

/* ---- writing to a sink; the caller holds its lock ---- */

/* Logs the error, and writes nothing more to this sink.  The program gets no error. */
static void sink_turn_off(struct sink *sink, const char *what, int error)
{
    rs_log("logging: %s: %s: %s; %s", sink->output.path, what, strerror(error),
           sink->on ? "nothing more is written to this log" : "no log is written");
    sink->on = false;
    rs_file_tail_leave(&sink->tail); /* keeps the tail's file, since its rows are nowhere else */
}

/* failed: -errno of a write, or 0.  Turns the log off and returns false if the write failed. */
static bool is_written(struct sink *sink, int failed)
{
    if (failed) {
        sink_turn_off(sink, "the file cannot be written", -failed);
        rs_output_release(&sink->output);
    }
    return !failed;
}

static bool is_writable(struct sink *sink)
{
    if (!sink->on || sink->owner != getpid())
        return false;
    if (rs_descriptor_is_kept(&sink->output.file))
        return true;
    /* The program has closed our descriptors, whose numbers may now stand for files of its own. */
    sink->marks_fd = -1;
    sink_turn_off(sink,
                  "the program closed rmmshim's file descriptor (perhaps in a loop over all "
                  "descriptors)",
                  EBADF);
    return false;
}

static bool sink_flush(struct sink *sink)
{
    if (!sink->tail.text || sink->tail.used_bytes == 0)
        return true;
    return is_writable(sink) &&
           is_written(sink, rs_file_tail_write(&sink->tail, sink->output.file.fd));
}

static void sink_end(struct sink *sink)
{
    if (!sink_flush(sink) || !sink->on || sink->owner != getpid())
        return;
    rs_file_tail_remove(&sink->tail, sink->output.path);
    rs_output_release(&sink->output);
    sink->on = false;
}

static void append(struct sink *sink, const char *text, size_t length)
{
    if (!sink->tail.text) {
        if (is_writable(sink))
            (void)is_written(sink, rs_write_all(sink->output.file.fd, text, length));
        return;
    }
    if (!rs_file_tail_append(&sink->tail, text, length) && sink_flush(sink))
        (void)rs_file_tail_append(&sink->tail, text, length);
}

/* Returns the local time of day as RMM prints it.  The conversion takes as long as all the rest of
 * a row, so it is done once per second. */
static const char *clock_text(struct sink *sink, const struct timespec *now)
{
    struct tm parts;

    if (now->tv_sec != sink->second || !sink->clock_text[0]) {
        localtime_r(&now->tv_sec, &parts);
        strftime(sink->clock_text, sizeof(sink->clock_text), "%H:%M:%S", &parts);
        sink->second = now->tv_sec;
    }
    return sink->clock_text;
}

/* A row that is being composed.  snprintf would take 3200 instructions a row. */
struct row {
    char *end;
    char text[ROW_BYTES_MAX];
};

static inline void put_bytes(struct row *row, const char *bytes, size_t length)
{
    memcpy(row->end, bytes, length);
    row->end += length;
}

static inline void put_byte(struct row *row, char byte)
{
    *row->end++ = byte;
}

/* Appends a decimal number, padded with zeros to at least digits_min digits. */
static inline void put_decimal(struct row *row, uint64_t number, unsigned digits_min)
{
    char digits[24], *const end = digits + sizeof(digits), *begin = end;

    for (; number >= 100; number /= 100) {
        begin -= 2;
        memcpy(begin,
               &"00010203040506070809101112131415161718192021222324252627282930313233343536"
                "37383940414243444546474849505152535455565758596061626364656667686970717273"
                "7475767778798081828384858687888990919293949596979899"[number % 100 * 2],
               2);
    }
    *--begin = (char)('0' + number % 10);
    if (number >= 10)
        *--begin = (char)('0' + number / 10);
    while ((size_t)(end - begin) < digits_min)
        *--begin = '0';
    put_bytes(row, begin, (size_t)(end - begin));
}

/* Appends a number as "%p" prints a pointer. */
static void put_pointer(struct row *row, uint64_t number)
{
    int shift;

    if (number == 0) {
        put_bytes(row, "(nil)", 5);
        return;
    }
    put_bytes(row, "0x", 2);
    for (shift = (63 - __builtin_clzll(number)) & ~3; shift >= 0; shift -= 4)
        put_byte(row, "0123456789abcdef"[number >> shift & 15]);
}

static void put_now(struct row *row, struct sink *sink)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    put_bytes(row, clock_text(sink, &now), sizeof("HH:MM:SS") - 1);
    put_byte(row, '.');
    put_decimal(row, (uint64_t)now.tv_nsec / 1000, 6);
}

static void sink_write_row(struct sink *sink, const char *action, CUdeviceptr address,
                           size_t size_bytes, CUstream stream, bool flush)
{
    static _Thread_local int thread;
    struct row row;

    if (!sink->on)
        return;
    if (thread == 0)
        thread = (int)rs_process_thread();
    row.end = row.text;
    put_decimal(&row, (uint64_t)thread, 1);
    put_byte(&row, ',');
    put_now(&row, sink);
    put_byte(&row, ',');
    put_bytes(&row, action, strlen(action));
    put_byte(&row, ',');
    put_pointer(&row, address);
    put_byte(&row, ',');
    put_decimal(&row, size_bytes, 1);
    put_byte(&row, ',');
    if (stream)
        put_pointer(&row, (uintptr_t)stream);
    else
        put_byte(&row, '0');
    put_byte(&row, '\n');
    RS_ASSERT(row.end <= row.text + sizeof(row.text));
    append(sink, row.text, (size_t)(row.end - row.text));
    sink->rows++;
    if (flush)
        (void)sink_flush(sink);
}

/* ---- opening and ending logs ---- */

/* Tries to open the log by name number `name` (rs_output_try).  If its tail, PATH.part, exists, the
 * log is left alone: the process that made the tail was killed, or it still writes and file locks
 * do not work.  Returns 0, -EBUSY when another process has the log, -EEXIST when there is a tail,
 * or another -errno. */
static int try_name(struct sink *sink, unsigned name)
{
    int result = rs_output_try(&sink->output, sink->path, name);

    if (result != 0 || !sink->output.is_regular)
        return result;
    result = rs_file_tail_make(&sink->tail, sink->output.path);
    if (result == -EEXIST) {
        rs_output_drop(&sink->output);
        return result;
    }
    /* If no tail can be made, the log is written without one. */
    result = rs_output_empty(&sink->output);
    if (result != 0) {
        rs_file_tail_remove(&sink->tail, sink->output.path);
        rs_output_release(&sink->output);
    }
    return result;
}

static int sink_claim(struct sink *sink)
{
    int first = try_name(sink, 0), result = first;

    for (unsigned name = 1; name < RS_OUTPUT_NAMES && (result == -EBUSY || result == -EEXIST);
         name++)
        result = try_name(sink, name);
    if (result != 0 || first == 0)
        return result;
    if (first == -EBUSY)
        rs_log("logging: another process writes to %s, so this one writes to %s", sink->path,
               sink->output.path);
    else
        rs_log("logging: %s was not ended by the process that wrote it, whose last rows are in "
               "%s.part; both files are kept, and this process "
               "writes to %s",
               sink->path, sink->path, sink->output.path);
    return 0;
}

/* Makes a sink for the path.  If the path cannot be written, the sink is off, so that the error is
 * reported only once.  Its memory comes from mmap, so that a forked child finds it all zero. */
static struct sink *sink_open(const char *path)
{
    struct sink *sink =
        mmap(NULL, sizeof(*sink), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int result;

    if (sink == MAP_FAILED)
        return NULL;
    (void)madvise(sink, sizeof(*sink), MADV_WIPEONFORK);
    rs_mutex_init(&sink->lock, RS_RANK_RESOURCE_PART);
    snprintf(sink->path, sizeof(sink->path), "%s", path);
    sink->owner = getpid();
    sink->marks_fd = -1;
    result = sink_claim(sink);
    if (result != 0) {
        sink_turn_off(sink, "the file cannot be opened", -result);
        return sink;
    }
    sink->on = true;
    append(sink, header, sizeof(header) - 1);
    (void)sink_flush(sink); /* so that whoever reads the file finds the header */
    return sink;
}

static struct sink *sink_get(const char *path)
{
    RS_MUTEX_GUARD(&sinks_lock);
    struct sink *sink = sinks;

    while (sink && strcmp(sink->path, path) != 0)
        sink = sink->next;
    if (!sink && (sink = sink_open(path))) {
        sink->next = sinks;
        sinks = sink;
    }
    return sink;
}

void rs_logging_end(void)
{
    if (!rs_mutex_lock_bounded(&sinks_lock, "logging"))
        return;
    for (struct sink *sink = sinks; sink; sink = sink->next) {
        if (!has_owner(sink) || !rs_mutex_lock_bounded(&sink->lock, sink->path))
            continue;
        sink_end(sink);
        rs_mutex_unlock(&sink->lock);
    }
    rs_mutex_unlock(&sinks_lock);
}

/* ---- marks ---- */

static int open_marks(struct sink *sink)
{
    RS_PATH_BUFFER(path);
    int length, result;

    if (!path)
        return -ENOMEM;
    if (!sink->output.is_regular || strncmp(sink->path, "/dev/", 5) == 0)
        return -ENOTSUP; /* no file can be made beside a device file */
    length = snprintf(path, PATH_MAX, "%s.marks", sink->output.path);
    if (length >= PATH_MAX)
        return -ENAMETOOLONG;
    sink->marks_fd = rs_path_open_output(path);
    if (sink->marks_fd < 0) {
        result = sink->marks_fd;
        sink->marks_fd = -1;
        return result;
    }
    return rs_write_all(sink->marks_fd, marks_header, sizeof(marks_header) - 1);
}

static int write_mark(struct sink *sink, const char *text)
{
    char row[ROW_BYTES_MAX + MARK_BYTES_MAX];
    struct timespec now;
    int length, result = sink->marks_fd < 0 ? open_marks(sink) : 0;

    if (result != 0)
        return result;
    /* If the program has closed the log's descriptor, it has closed that of the marks too, which
     * may now stand for another file. */
    if (!rs_descriptor_is_kept(&sink->output.file))
        return -EBADF;
    clock_gettime(CLOCK_REALTIME, &now);
    length = snprintf(row, sizeof(row), "%d,%s.%06ld,%llu,%.*s\n", (int)rs_process_thread(),
                      clock_text(sink, &now), now.tv_nsec / 1000, (unsigned long long)sink->rows,
                      MARK_BYTES_MAX, text);
    for (int i = 0; i < length - 1; i++)
        if ((unsigned char)row[i] < ' ')
            row[i] = ' ';
    return rs_write_all(sink->marks_fd, row, (size_t)length);
}

int rs_logging_mark(const char *text)
{
    RS_MUTEX_GUARD(&sinks_lock);
    int first = 0, result;
    bool any = false;

    for (struct sink *sink = sinks; sink && has_owner(sink); sink = sink->next) {
        RS_MUTEX_GUARD(&sink->lock);
        if (!sink->on)
            continue;
        any = true;
        result = write_mark(sink, text);
        first = first ? first : result;
    }
    return any ? first : -ENOENT;
}

/* ---- the resource ---- */

static void log_row(struct rs_mr *mr, const char *action, CUdeviceptr address, size_t size_bytes,
                    CUstream stream)
{
    struct logging *logging = RS_MR_AS(logging, mr);

    if (!has_owner(logging->sink))
        return;
    RS_MUTEX_GUARD(&logging->sink->lock);
    sink_write_row(logging->sink, action, address, size_bytes, stream, logging->auto_flush);
}

/* Allocates from upstream, and logs the result.  CUDA_ERROR_NOT_READY is not logged: the caller
 * asks again with more effort. */
static CUresult logging_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                 enum rs_effort effort, struct rs_allocation *out)
{
    CUresult result = rs_mr_allocate_with(mr->upstream[0], size_bytes, stream, effort, out);

    if (result == CUDA_SUCCESS)
        log_row(mr, "allocate", out->address, size_bytes, stream);
    else if (result != CUDA_ERROR_NOT_READY)
        log_row(mr, "allocate failure", 0, size_bytes, stream);
    return result;
}

/* Logs before upstream frees: the next allocation of the address must come later in the log. */
static CUresult logging_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                   CUstream stream)
{
    log_row(mr, "free", allocation->address, allocation->size_bytes, stream);
    return rs_mr_deallocate(mr->upstream[0], allocation, stream);
}

static void logging_end(struct rs_mr *mr, bool memory_is_gone)
{
    struct sink *sink = RS_MR_AS(logging, mr)->sink;

    (void)memory_is_gone;
    if (!sink || !has_owner(sink))
        return;
    RS_MUTEX_GUARD(&sink->lock);
    (void)sink_flush(sink);
}

static const struct rs_mr_ops logging_ops = {
    .allocate = logging_allocate,
    .deallocate = logging_deallocate,
    .end = logging_end,
};

static int logging_init(struct rs_mr *mr, const void *config)
{
    const struct logging_config *settings = config;
    struct logging *logging = RS_MR_AS(logging, mr);
    RS_PATH_BUFFER(path);
    const char *at, *reason;

    if (!path)
        return -ENOMEM;
    /* Each device gets a log of its own, since RMM's rows do not tell the device. */
    if (!rs_path_expand_for_device(settings->path, mr->environment->device, path, PATH_MAX, &at,
                                   &reason)) {
        /* The path was valid when it was parsed, so a variable in it has been unset since. */
        rs_log("logging: %s: %s", settings->path, reason);
        return -EINVAL;
    }
    logging->sink = sink_get(path);
    logging->auto_flush = settings->auto_flush;
    return logging->sink ? 0 : -ENOMEM;
}

static bool logging_validate(const void *config, const struct rs_validation *of)
{
    const struct logging_config *settings = config;
    RS_PATH_BUFFER(path);
    const char *at, *reason;

    if (!settings->path || !*settings->path)
        return RS_REFUSE(of, "'logging' needs a path, as in path=app.csv");
    /* Without memory for `path` nothing is checked here; logging_init then fails. */
    return !path ||
           rs_path_expand_for_device(settings->path, of->environment ? of->environment->device : 0,
                                     path, PATH_MAX, &at, &reason) ||
           RS_REFUSE(of, "path '%s': %s", settings->path, reason);
}

static const struct rs_option logging_options[] = {
    RS_OPTION_TEXT_ROW(struct logging_config, path, "",
                       "path of the file to write, which may contain %p %h %e %t %r %q{VAR} as in "
                       "RMM_LOG; required",
                       .aliases = {{"log_file_name", RS_OPTION_TEXT}}),
    RS_OPTION_BOOLEAN_ROW(
        struct logging_config, auto_flush, "0",
        "1: each row is written to the file at once; 0: rows are written 64 KiB at a time"),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_logging = {
    .name = "logging",
    .summary = "writes a log in RMM's CSV format, with one row for each allocation and each free",
    .upstream_count = 1,
    .frees = RS_FREE_AS_UPSTREAM,
    .config_bytes = sizeof(struct logging_config),
    .options = logging_options,
    .validate = logging_validate,
};

RS_MR_CLASS(logging, struct logging, logging_ops, logging_init);
