/* SPDX-License-Identifier: Apache-2.0 */
/* Files that commands make of recordings (tool/report/outputs.h). */
#include "base/output.h"
#include "base/file.h"
#include "base/log.h"
#include "report/plain.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OUTPUT "/dev/stdout"

enum { LINKS_MAX = 40 }; /* the kernel follows this many */

bool output_is_same(const char *one, const char *other)
{
    struct stat a, b;

    if (stat(one, &a) != 0 || stat(other, &b) != 0)
        return strcmp(one, other) == 0;
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino && S_ISREG(a.st_mode);
}

bool output_is_input(const char *output, char *const *files)
{
    for (; output && *files; files++)
        if (output_is_same(output, *files)) {
            tool_say("%s is one of the recordings to read: name another file to write to", output);
            return true;
        }
    return false;
}

/* Stores where the symbolic links at `path` lead, so that the links stay when the file is replaced.
 * Returns 0 or an errno: EACCES if a link, or a FIFO to which they lead, belongs neither to this
 * user nor to root. In a folder like /tmp another user may have made a link to a file of this
 * user's. The kernel may refuse to open such links (fs.protected_symlinks), but not to read them.
 */
static int resolve(const char *path, char at[PATH_MAX])
{
    char target[PATH_MAX], whole[2 * PATH_MAX];
    struct stat status;

    if (snprintf(at, PATH_MAX, "%s", path) >= PATH_MAX)
        return ENAMETOOLONG;
    for (int i = 0; i < LINKS_MAX && lstat(at, &status) == 0; i++) {
        bool is_trusted = status.st_uid == geteuid() || status.st_uid == 0;
        ssize_t length = readlink(at, target, sizeof(target));
        if ((S_ISLNK(status.st_mode) || S_ISFIFO(status.st_mode)) && !is_trusted)
            return EACCES;
        if (length < 0)
            return 0; /* `at` is no link */
        snprintf(whole, sizeof(whole), "%.*s%.*s",
                 *target == '/' ? 0 : (int)(rs_file_base_name(at) - at), at, (int)length, target);
        if (snprintf(at, PATH_MAX, "%s", whole) >= PATH_MAX)
            return ENAMETOOLONG;
    }
    if (stat(path, &status) != 0) /* if the last link leads to nothing, the file is made there */
        return errno == ENOENT ? 0 : errno;
    (void)snprintf(at, PATH_MAX, "%s", path); /* the file has no other path; it may be a pipe */
    return 0;
}

/* Opens a new file, `beside`, which is renamed to `path` when it is complete. If `path` exists and
 * is no regular file, opens it instead, and `beside` is empty. */
static int open_beside(const char *path, char beside[PATH_MAX])
{
    struct stat status;
    mode_t mask;
    int fd;

    beside[0] = '\0';
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
        return open(path, O_WRONLY | O_CLOEXEC);
    if (snprintf(beside, PATH_MAX, "%s.XXXXXX", path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(beside, O_CLOEXEC);
    umask(mask = umask(0));
    if (fd >= 0)
        (void)fchmod(fd, 0666 & ~mask);
    return fd;
}

/* Returns 0 or an errno. */
static int write_bytes(const char *path, const char *bytes, size_t length)
{
    char at[PATH_MAX], beside[PATH_MAX];
    int fd, error = resolve(path, at);

    if (rs_path_is_stream(path))
        return -rs_write_all(strcmp(path, OUTPUT) == 0 ? STDOUT_FILENO : STDERR_FILENO, bytes,
                             length);
    if (error)
        return error;
    fd = open_beside(at, beside);
    if (fd < 0)
        return errno;
    error = -rs_write_all(fd, bytes, length);
    if (close(fd) != 0 && !error)
        error = errno;
    if (!error && *beside && rename(beside, at) != 0)
        error = errno;
    if (error && *beside)
        unlink(beside);
    return error;
}

void output_begin(struct output *output)
{
    *output = (struct output){.bytes = NULL};
    output->to = open_memstream(&output->bytes, &output->length);
    if (!output->to)
        tool_end_without_memory();
}

void output_end(struct output *output)
{
    bool is_whole = !ferror(output->to);

    if (fclose(output->to) != 0 || !is_whole)
        tool_end_without_memory();
}

bool output_write(struct output *output, const char *path)
{
    int error;

    output_end(output);
    error = write_bytes(path ? path : OUTPUT, output->bytes, output->length);
    free(output->bytes);
    if (error)
        tool_say("%s: %s", !path || rs_path_is_stream(path) ? "standard output" : path,
                 strerror(error));
    return !error;
}

const char *put_escaped(FILE *to, const char *text, size_t most, bool is_json)
{
    const char *at = text;
    bool is_plain;

    for (size_t bytes; *at && (size_t)(at - text) < most; at += bytes) {
        bytes = rs_plain_next(at, &is_plain);
        if (!is_plain)
            putc('?', to);
        else if (bytes == 1 && strchr("\"\\<>&'", *at))
            fprintf(to, is_json ? "\\u%04x" : "&#%d;", (unsigned char)*at);
        else
            fwrite(at, 1, bytes, to);
    }
    return at;
}
