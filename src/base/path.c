/* SPDX-License-Identifier: Apache-2.0 */
#include "base/path.h"

#include "base/check.h"
#include "base/descriptor.h"
#include "base/file.h"
#include "base/map_zeroed.h"
#include "base/process.h"
#include "base/undisturbed.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXT_BYTES = 256 };

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

/* Appends text.  Always leaves room for the terminating zero. */
static bool put(struct output *output, const char *text, size_t length)
{
    if (length >= output->capacity_bytes - output->length)
        return false;
    memcpy(output->bytes + output->length, text, length);
    output->length += length;
    return true;
}

/* Expands %q{VAR}: *cursor is at the opening brace and moves past the closing one. */
static const char *variable(const char **cursor, char text[TEXT_BYTES], const char **reason)
{
    const char *name = *cursor + 1;
    const char *close = **cursor == '{' ? strchr(name, '}') : NULL;
    const char *value;

    if (!close || close == name || close - name >= TEXT_BYTES) {
        *reason = "expected %q{VARIABLE}";
        return NULL;
    }
    memcpy(text, name, (size_t)(close - name));
    text[close - name] = '\0';
    value = rs_environment_get(text);
    if (!value)
        *reason = "this variable is not set";
    *cursor = close + 1;
    return value;
}

static char directory[PATH_MAX]; /* where relative paths start; empty: they stay relative */

void rs_path_keep_directory(void)
{
    if (!getcwd(directory, sizeof(directory)) || directory[0] != '/')
        directory[0] = '\0'; /* the directory was deleted, or has no path */
}

/* Makes the expanded path absolute if rs_path_keep_directory has stored a directory. */
static bool put_directory(struct output *output)
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

/* Returns the text of the placeholder whose letter is at *cursor, which moves past the
 * placeholder. */
static const char *placeholder(const char **cursor, char text[TEXT_BYTES], const char **reason)
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
        return variable(cursor, text, reason);
    default:
        *reason = "unknown placeholder; known are %p %h %e %t %r %q{VAR} %%";
        return NULL;
    }
}

bool rs_path_expand_variables(const char *begin, const char *end, char *text, size_t text_bytes,
                              const char **at, const char **reason)
{
    struct output output = {text, 0, text_bytes};

    RS_ASSERT(text_bytes > 0);
    while (begin < end) {
        bool expands = end - begin > 1 && begin[0] == '%' && begin[1] == 'q';
        char name[TEXT_BYTES];
        const char *value = begin;

        *at = begin;
        begin += expands ? 2 : 1;
        if (expands && !(value = variable(&begin, name, reason)))
            return false;
        if (!put(&output, value, expands ? strlen(value) : 1)) {
            *reason = "the text is too long";
            return false;
        }
    }
    text[output.length] = '\0';
    return true;
}

bool rs_path_expand(const char *pattern, char *path, size_t path_bytes, const char **at,
                    const char **reason)
{
    struct output output = {path, 0, path_bytes};
    const char *cursor = pattern;

    RS_ASSERT(path_bytes > 0);
    while (*cursor) {
        size_t plain = strcspn(cursor, "%");
        char text[TEXT_BYTES];
        const char *value = cursor;

        *at = cursor;
        if (plain > 0) {
            cursor += plain;
        } else {
            cursor++;
            value = placeholder(&cursor, text, reason);
            if (!value)
                return false;
            plain = strlen(value);
        }
        if (!put(&output, value, plain)) {
            *reason = "the file name is too long";
            return false;
        }
    }
    if (!put_directory(&output)) {
        *at = pattern;
        *reason = "the file name is too long";
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
        *reason = "the file name is too long";
        return false;
    }
    memmove(dot + length, dot, strlen(dot) + 1);
    memcpy(dot, number, length);
    return true;
}

/* Accepts a regular file of this user and a character device.  A FIFO would block the program
 * when its reader is slow or gone.  A file of another user, or one with a second hard link, may
 * be a trap that makes us overwrite it. */
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

static int empty_file(int fd)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return -errno;
    return !S_ISREG(status.st_mode) || ftruncate(fd, 0) == 0 ? 0 : -errno;
}

static int open_file(const char *path, bool *created)
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
static int descriptor_of(const char *path)
{
    if (strcmp(path, "/dev/stdout") == 0)
        return STDOUT_FILENO;
    if (strcmp(path, "/dev/stderr") == 0)
        return STDERR_FILENO;
    return -1;
}

bool rs_path_is_stream(const char *path)
{
    return descriptor_of(path) >= 0;
}

int rs_path_open_untouched(const char *path, bool *created)
{
    int descriptor = descriptor_of(path), result;
    struct rs_uncancelled uncancelled;

    *created = false;
    rs_uncancelled_begin(&uncancelled);
    result = descriptor < 0 ? open_file(path, created) : rs_descriptor_duplicate(descriptor);
    rs_uncancelled_end(&uncancelled);
    return result;
}

int rs_path_open_output(const char *path)
{
    bool created;
    int fd = rs_path_open_untouched(path, &created), result;

    if (fd < 0 || created || rs_path_is_stream(path))
        return fd;
    result = empty_file(fd);
    if (result == 0)
        return fd;
    rs_file_close(fd);
    return result;
}
