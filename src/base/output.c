/* SPDX-License-Identifier: Apache-2.0 */
#include "base/output.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names ---- */

enum { TEXT_BYTES = 256 };

static const char too_long[] = "the file name is too long";

char *rs_path_buffer_take(void)
{
    return rs_map_zeroed(PATH_MAX);
}

void rs_path_buffer_give(char *const *buffer)
{
    if (*buffer)
        munmap(*buffer, PATH_MAX);
}

struct output {
    char *bytes;
    size_t length, capacity_bytes;
};

/* Appends text, and leaves room for a terminating zero byte.  Returns false, with nothing appended,
 * when there is not so much room. */
static bool put_piece(struct output *output, const char *text, size_t length)
{
    if (length >= output->capacity_bytes - output->length)
        return false;
    memcpy(output->bytes + output->length, text, length);
    output->length += length;
    return true;
}

/* Returns the value of VAR for %q{VAR}, or NULL with *reason when the variable is not set or the
 * form is wrong.  The opening brace must be at *cursor, which moves past the closing brace. */
static const char *variable_value(const char **cursor, const char *end, char text[TEXT_BYTES],
                                  const char **reason)
{
    const char *name = *cursor + 1;
    const char *close =
        *cursor < end && **cursor == '{' ? memchr(name, '}', (size_t)(end - name)) : NULL;
    const char *value;

    if (!close || close == name || close - name >= TEXT_BYTES) {
        *reason = "expected %q{VARIABLE}";
        return NULL;
    }
    memcpy(text, name, (size_t)(close - name));
    text[close - name] = '\0';
    value = rs_environment_get(text);
    if (!value)
        *reason = "%q{...} names an environment variable that is not set";
    *cursor = close + 1;
    return value;
}

static char directory[PATH_MAX]; /* where relative paths start; empty: they stay relative */

void rs_path_keep_directory(void)
{
    if (!getcwd(directory, sizeof(directory)) || directory[0] != '/')
        directory[0] = '\0'; /* the directory was deleted, or has no path */
}

/* Makes the expanded path absolute if rs_path_keep_directory has stored a directory.  Returns false
 * when the absolute path does not fit. */
static bool put_working_directory(struct output *output)
{
    size_t length = strlen(directory);

    if (length == 0 || output->length == 0 || output->bytes[0] == '/')
        return true;
    if (output->length + length + 1 >= output->capacity_bytes)
        return false;
    memmove(output->bytes + length + 1, output->bytes, output->length);
    memcpy(output->bytes, directory, length);
    output->bytes[length] = '/';
    output->length += length + 1;
    return true;
}

/* Returns the text that replaces the placeholder whose letter is at *cursor; NULL with *reason when
 * it cannot be replaced. *cursor moves past the placeholder.  `text` may hold the result. */
static const char *placeholder(const char **cursor, const char *end, char text[TEXT_BYTES],
                               const char **reason)
{
    switch (*(*cursor)++) {
    case '%':
        return "%";
    case 'p':
        snprintf(text, TEXT_BYTES, "%d", (int)getpid());
        return text;
    case 'h':
        if (gethostname(text, TEXT_BYTES) != 0)
            snprintf(text, TEXT_BYTES, "localhost");
        text[TEXT_BYTES - 1] = '\0';
        return text;
    case 'e':
        snprintf(text, TEXT_BYTES, "%s", program_invocation_short_name);
        for (char *slash = text; (slash = strchr(slash, '/')) != NULL;)
            *slash = '_'; /* a program may set its name to any text */
        return text;
    case 't':
        snprintf(text, TEXT_BYTES, "%lld", rs_process_start_seconds());
        return text;
    case 'r':
        return *rs_process_rank() ? rs_process_rank() : "0";
    case 'q':
        return variable_value(cursor, end, text, reason);
    default:
        *reason = "unknown placeholder; the possible placeholders are %p %h %e %t %r %q{VAR} %%";
        return NULL;
    }
}

/* Expands all placeholders, or only %q{VAR} if only_variables is set.  Returns false with *at and
 * *reason as rs_path_expand does. */
static bool expand(const char *begin, const char *end, bool only_variables, struct output *output,
                   const char **at, const char **reason)
{
    RS_ASSERT(output->capacity_bytes > 0);
    while (begin < end) {
        bool expands = *begin == '%' && (!only_variables || (end - begin > 1 && begin[1] == 'q'));
        const char *value = begin;
        char text[TEXT_BYTES];

        *at = begin++;
        if (expands && !(value = placeholder(&begin, end, text, reason)))
            return false;
        if (!put_piece(output, value, expands ? strlen(value) : 1)) {
            *reason = only_variables ? "the value is too long once %q{...} is replaced" : too_long;
            return false;
        }
    }
    return true;
}

bool rs_path_expand_variables(const char *begin, const char *end, char *text, size_t text_bytes,
                              const char **at, const char **reason)
{
    struct output output = {text, 0, text_bytes};

    if (!expand(begin, end, true, &output, at, reason))
        return false;
    text[output.length] = '\0';
    return true;
}

bool rs_path_expand(const char *pattern, char *path, size_t path_bytes, const char **at,
                    const char **reason)
{
    struct output output = {path, 0, path_bytes};

    if (!expand(pattern, pattern + strlen(pattern), false, &output, at, reason))
        return false;
    if (!put_working_directory(&output)) {
        *at = pattern;
        *reason = too_long;
        return false;
    }
    path[output.length] = '\0';
    return true;
}

bool rs_path_expand_for_device(const char *pattern, int device, char *path, size_t path_bytes,
                               const char **at, const char **reason)
{
    char number[TEXT_BYTES];
    char *dot, *slash;
    size_t length;

    if (!rs_path_expand(pattern, path, path_bytes, at, reason))
        return false;
    if (device <= 0 || strncmp(path, "/dev/", 5) == 0)
        return true;
    dot = strrchr(path, '.');
    slash = strrchr(path, '/');
    if (!dot || (slash && dot < slash + 2) || dot == path)
        dot = path + strlen(path);
    length = (size_t)snprintf(number, sizeof(number), ".dev%d", device);
    if (strlen(path) + length >= path_bytes) {
        *at = pattern;
        *reason = too_long;
        return false;
    }
    memmove(dot + length, dot, strlen(dot) + 1);
    memcpy(dot, number, length);
    return true;
}

/* Returns 0 for a character device, for a file that was just created, and for a regular file of
 * this user with a single link; else -errno.  A FIFO would block the program when its reader is
 * slow or gone.  A file of another user, or one with a second hard link, may have been planted to
 * make us overwrite it. */
static int check_output(int fd, bool created)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return -errno;
    if (S_ISCHR(status.st_mode) || created)
        return 0;
    if (!S_ISREG(status.st_mode))
        return -EINVAL;
    if (status.st_uid != geteuid())
        return -EPERM;
    return status.st_nlink > 1 ? -EMLINK : 0;
}

static int open_output(const char *path, bool *created)
{
    /* O_NONBLOCK, since opening a FIFO waits for its reader otherwise. */
    int flags = O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK;
    int fd = open(path, flags | O_CREAT | O_EXCL, 0600);
    int result;

    *created = fd >= 0;
    if (!*created && errno == EEXIST)
        fd = open(path, flags);
    if (fd < 0)
        return errno == ENXIO ? -EINVAL : -errno; /* a FIFO without a reader, or a socket */
    result = check_output(fd, *created);
    if (result == 0) {
        (void)fcntl(fd, F_SETFL, O_WRONLY);
        result = rs_descriptor_duplicate(fd);
    }
    close(fd);
    return result;
}

/* Returns the descriptor that /dev/stdout or /dev/stderr names, or -1 for other paths.  Both are
 * links; opening their target would truncate a file that the program writes to. */
static int stream_named(const char *path)
{
    if (strcmp(path, "/dev/stdout") == 0)
        return STDOUT_FILENO;
    if (strcmp(path, "/dev/stderr") == 0)
        return STDERR_FILENO;
    return -1;
}

bool rs_path_is_stream(const char *path)
{
    return stream_named(path) >= 0;
}

int rs_path_open_untouched(const char *path, bool *created)
{
    int descriptor = stream_named(path);
    RS_UNCANCELLED_GUARD();

    *created = false;
    return descriptor < 0 ? open_output(path, created) : rs_descriptor_duplicate(descriptor);
}

int rs_path_open_output(const char *path)
{
    bool created;
    int fd = rs_path_open_untouched(path, &created), result;
    struct stat status;

    if (fd < 0 || created || rs_path_is_stream(path) ||
        (fstat(fd, &status) == 0 && (!S_ISREG(status.st_mode) || ftruncate(fd, 0) == 0)))
        return fd;
    result = -errno;
    rs_file_close(fd);
    return result;
}

/* ---- files of one process ---- */

enum { TIMES_MAX = 8 }; /* attempts to open a file that other processes keep removing */

static bool put_name(struct rs_output *output, const char *path, unsigned name)
{
    char process[16] = "", number[16] = "";

    if (name > 0)
        snprintf(process, sizeof(process), ".%d", (int)getpid());
    if (name > 1)
        snprintf(number, sizeof(number), ".%u", name);
    return snprintf(output->path, sizeof(output->path), "%s%s%s", path, process, number) <
           (int)sizeof(output->path);
}

/* Locks a regular file by flock: a record lock would be lost when the program closes any descriptor
 * of the file.  Forked children share the lock, so it would outlive the process if
 * rs_output_release did not end it.  Returns 0; -EBUSY when another process has the lock; -EAGAIN
 * when the file was deleted before the lock was taken; or another -errno. */
static int lock(struct rs_output *output, int fd)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return -errno;
    output->is_regular = S_ISREG(status.st_mode) && !rs_path_is_stream(output->path);
    if (!output->is_regular)
        return 0;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return -EBUSY; /* after other errors the file is used without a lock: its file system has
                          none */
    if (fstat(fd, &status) != 0)
        return -errno;
    return status.st_nlink == 0 ? -EAGAIN : 0;
}

static int try_once(struct rs_output *output)
{
    int fd = rs_path_open_untouched(output->path, &output->is_new);
    int result = fd < 0 ? fd : lock(output, fd);

    if (fd >= 0 && result != 0)
        rs_file_close(fd);
    if (result != 0)
        return result;
    return rs_descriptor_keep(&output->file, fd) ? 0 : -EMFILE;
}

int rs_output_try(struct rs_output *output, const char *path, unsigned name)
{
    int result = -EAGAIN;

    if (!put_name(output, path, name))
        return -ENAMETOOLONG;
    for (int times = 0; times < TIMES_MAX && result == -EAGAIN; times++)
        result = try_once(output);
    return result;
}

int rs_output_claim(struct rs_output *output, const char *path)
{
    int result = -EBUSY;

    for (unsigned name = 0; name < RS_OUTPUT_NAMES && result == -EBUSY; name++)
        result = rs_output_try(output, path, name);
    return result;
}

int rs_output_empty(struct rs_output *output)
{
    if (!output->is_regular)
        return 0;
    return ftruncate(output->file.fd, 0) == 0 ? 0 : -errno;
}

void rs_output_release(struct rs_output *output)
{
    if (!rs_descriptor_is_kept(&output->file))
        return;
    if (output->is_regular)
        (void)flock(output->file.fd, LOCK_UN);
    rs_file_close(output->file.fd);
}

void rs_output_drop(struct rs_output *output)
{
    struct stat status;

    if (output->is_new && rs_descriptor_is_kept(&output->file) &&
        stat(output->path, &status) == 0 && status.st_size == 0 &&
        status.st_dev == output->file.device && status.st_ino == output->file.inode)
        (void)unlink(output->path);
    rs_output_release(output);
}

/* ---- tails ---- */

enum { TAIL_TEXT_BYTES = RS_FILE_TAIL_BYTES - RS_FILE_TAIL_MARK_BYTES };

static bool put_path(char part[PATH_MAX], const char *path)
{
    return snprintf(part, PATH_MAX, "%s.part", path) < PATH_MAX;
}

/* Allocates the blocks of FILE.part, so that no later store into the mapping raises SIGBUS.
 * Returns 0 or -errno; -EOPNOTSUPP on a file system where that is not possible. */
static int allocate_tail(int fd)
{
    return rs_file_is_copied_on_write(fd) ? -EOPNOTSUPP : rs_file_allocate(fd, RS_FILE_TAIL_BYTES);
}

static void put_mark(struct rs_file_tail *tail)
{
    char mark[RS_FILE_TAIL_MARK_BYTES + 1];
    int length = snprintf(mark, sizeof(mark), "%0*llu\n", RS_FILE_TAIL_MARK_BYTES - 1,
                          (unsigned long long)tail->written_bytes);

    RS_ASSERT(
        length ==
        RS_FILE_TAIL_MARK_BYTES); /* a reader finds the mark by its distance from the file's end */
    (void)length;
    memcpy(tail->text + TAIL_TEXT_BYTES, mark, RS_FILE_TAIL_MARK_BYTES);
}

static int map_tail(struct rs_file_tail *tail, int fd)
{
    struct stat status;
    int result = fstat(fd, &status) == 0 ? allocate_tail(fd) : -errno;
    void *text;

    if (result != 0)
        return result;
    text = mmap(NULL, RS_FILE_TAIL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (text == MAP_FAILED)
        return -errno;
    *tail = (struct rs_file_tail){
        .text = text,
        .device = status.st_dev,
        .inode = status.st_ino,
    };
    put_mark(tail);
    return 0;
}

static int make_tail(struct rs_file_tail *tail, const char *part)
{
    int fd = open(part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600), result;

    if (fd < 0)
        return -errno;
    result = map_tail(tail, fd);
    if (result != 0)
        (void)unlink(part);
    close(fd);
    return result;
}

int rs_file_tail_make(struct rs_file_tail *tail, const char *path)
{
    RS_PATH_BUFFER(part);
    RS_UNCANCELLED_GUARD();

    *tail = (struct rs_file_tail){.text = NULL};
    if (!part)
        return -ENOMEM;
    if (!put_path(part, path))
        return -ENAMETOOLONG;
    return make_tail(tail, part);
}

/* Stores one byte that takes effect after all earlier stores and before all later ones.  The
 * file is read after the process has ended, so only the compiler could break the order. */
static void commit(char *at, char value)
{
    atomic_signal_fence(memory_order_seq_cst);
    *(volatile char *)at = value;
    atomic_signal_fence(memory_order_seq_cst);
}

/* Stores the first byte last.  Until then a zero byte precedes the new text, so a reader does not
 * count that text.  No assertion looks at the bytes of the mapping, since other processes of the
 * user may change them. */
bool rs_file_tail_append(struct rs_file_tail *tail, const char *text, size_t length_bytes)
{
    char *at = tail->text + tail->used_bytes;

    RS_ASSERT(tail->used_bytes <= TAIL_TEXT_BYTES);
    if (length_bytes > TAIL_TEXT_BYTES - tail->used_bytes)
        return false;
    if (length_bytes == 0)
        return true;
    RS_ASSERT(text[0] != '\0'); /* the text ends at the first zero byte */
    memcpy(at + 1, text + 1, length_bytes - 1);
    commit(at, text[0]);
    tail->used_bytes += length_bytes;
    return true;
}

int rs_file_tail_write(struct rs_file_tail *tail, int fd)
{
    int result = rs_write_all(fd, tail->text, tail->used_bytes);

    if (result != 0 || tail->used_bytes == 0)
        return result;
    commit(tail->text, '\0'); /* now the tail has no text */
    memset(tail->text + 1, 0, tail->used_bytes - 1);
    tail->written_bytes += tail->used_bytes;
    tail->used_bytes = 0;
    put_mark(tail);
    return 0;
}

void rs_file_tail_leave(struct rs_file_tail *tail)
{
    if (tail->text)
        munmap(tail->text, RS_FILE_TAIL_BYTES);
    tail->text = NULL;
}

void rs_file_tail_remove(struct rs_file_tail *tail, const char *path)
{
    RS_PATH_BUFFER(part);
    struct stat status;

    if (tail->text && part && put_path(part, path) && lstat(part, &status) == 0 &&
        status.st_dev == tail->device && status.st_ino == tail->inode)
        (void)unlink(part);
    rs_file_tail_leave(tail);
}
