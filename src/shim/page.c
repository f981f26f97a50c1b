/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/page.h"

#include "base/log.h"
#include "base/path.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void rs_page_vput(struct rs_page *page, const char *format, va_list arguments)
{
    size_t room = page->text_bytes - page->length;
    int added = vsnprintf(page->text + page->length, room, format, arguments);

    if (added > 0)
        page->length += (size_t)added < room ? (size_t)added : room - 1;
}

void rs_page_put(struct rs_page *page, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    rs_page_vput(page, format, arguments);
    va_end(arguments);
}

void rs_page_put_escaped(struct rs_page *page, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '"' || text[i] == '\\')
            rs_page_put(page, "\\%c", text[i]);
        else
            rs_page_put(page, "%c", (unsigned char)text[i] < ' ' ? '?' : text[i]);
    }
}

void rs_page_write(const struct rs_page *page, const char *variable, const char *path)
{
    char expanded[PATH_MAX];
    const char *at, *reason = "";
    int fd = STDERR_FILENO, result;

    if (path) {
        fd = rs_path_expand(path, expanded, sizeof(expanded), &at, &reason)
                 ? rs_path_open_output(expanded)
                 : -EINVAL;
        if (fd < 0) {
            rs_log("%s: %s: %s: no report", variable, path, fd == -EINVAL ? reason : strerror(-fd));
            return;
        }
    }
    result = rs_write_all(fd, page->text, page->length);
    if (result < 0)
        rs_log("%s: %s", variable, strerror(-result));
    if (fd != STDERR_FILENO)
        close(fd);
}
