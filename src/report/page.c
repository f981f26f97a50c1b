/* SPDX-License-Identifier: Apache-2.0 */
/* Pages: buffers that write a report in whole lines to a file or to stderr. */
#include "report/page.h"

#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "report/plain.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void claim_file(struct rs_page_file *file, const char *path)
{
    RS_PATH_BUFFER(expanded);
    const char *at, *reason = "out of host memory";
    int result = expanded ? -EINVAL : -ENOMEM;

    if (expanded && rs_path_expand(path, expanded, PATH_MAX, &at, &reason)) {
        result = rs_output_claim(&file->output, expanded);
        reason = strerror(-result);
    }
    file->state = result == 0 ? RS_PAGE_FILE_CLAIMED : RS_PAGE_FILE_NONE;
    file->error = result;
    if (result != 0)
        rs_log("%s: %s: %s: no report is written", file->variable, path, reason);
    else if (strcmp(expanded, file->output.path) != 0)
        rs_log("%s: another process writes to %s, so this process writes to %s", file->variable,
               expanded, file->output.path);
}

void rs_page_claim(struct rs_page_file *file, const char *path)
{
    if (path && file->state == RS_PAGE_FILE_UNKNOWN)
        claim_file(file, path);
}

void rs_page_begin(struct rs_page *page, struct rs_page_file *file, const char *path)
{
    page->file = file;
    page->path = path;
    page->length = 0;
    page->fd = STDERR_FILENO;
    page->is_open = !path;
    page->is_off = false;
    page->is_kept = false;
}

void rs_page_begin_text(struct rs_page *page)
{
    page->length = 0;
    page->text[0] = '\0';
    page->is_off = false;
    page->is_kept = true;
}

static void say_failed(struct rs_page *page, int failed)
{
    if (!failed)
        return;
    if (page->path || page->fd == STDERR_FILENO)
        rs_log("%s: the report cannot be written to %s: %s", page->file->variable,
               page->path ? page->file->output.path : "stderr", strerror(-failed));
    else /* the command's own output, which the name says */
        rs_log("%s: %s", page->file->variable, strerror(-failed));
    page->file->error = failed;
    page->is_off = true;
}

static void open_page_file(struct rs_page *page)
{
    struct rs_page_file *file = page->file;

    /* A page without a path goes to stderr, which is open from the start. */
    RS_ASSERT(page->path && !page->is_off);
    if (file->state == RS_PAGE_FILE_CLAIMED && !rs_descriptor_is_kept(&file->output.file))
        file->state = RS_PAGE_FILE_UNKNOWN; /* the program has closed the file's descriptor */
    rs_page_claim(file, page->path);
    page->is_open = file->state == RS_PAGE_FILE_CLAIMED;
    page->is_off = !page->is_open;
    if (page->is_off)
        return;
    page->fd = file->output.file.fd;
    say_failed(page, rs_output_empty(&file->output));
}

static void write_out(struct rs_page *page, size_t length)
{
    RS_ASSERT(length <= page->length && page->length < sizeof(page->text));
    if (!page->is_open && !page->is_off)
        open_page_file(page);
    if (!page->is_off)
        say_failed(page, rs_write_all(page->fd, page->text, length));
    page->length -= length;
    memmove(page->text, page->text + length, page->length);
}

/* Writes the buffer out, up to its last complete line, or all of it if no line is complete. */
static void make_room_on_page(struct rs_page *page)
{
    const char *end = memrchr(page->text, '\n', page->length);

    write_out(page, end ? (size_t)(end - page->text) + 1 : page->length);
}

/* Adds formatted text. Returns false when it does not fit; page->length is then unchanged. */
static bool try_put(struct rs_page *page, const char *format, va_list arguments) RS_PRINTF(2, 0);

static bool try_put(struct rs_page *page, const char *format, va_list arguments)
{
    size_t room = sizeof(page->text) - page->length;
    int added = vsnprintf(page->text + page->length, room, format, arguments);

    RS_ASSERT(page->length < sizeof(page->text));
    if (added < 0 || (size_t)added >= room)
        return false;
    page->length += (size_t)added;
    return true;
}

void rs_page_put(struct rs_page *page, const char *format, ...)
{
    va_list arguments;
    bool fits;

    if (page->is_kept && page->is_off)
        return;
    for (;;) {
        va_start(arguments, format);
        fits = try_put(page, format, arguments);
        va_end(arguments);
        if (fits)
            return;
        if (page->is_kept || page->length == 0)
            break;
        make_room_on_page(page);
    }
    if (page->is_kept) {
        page->text[page->length] = '\0';
        page->is_off = true;
    } else { /* the piece is longer than the buffer and is cut off */
        page->length = strlen(page->text);
    }
}

int rs_page_put_plain(struct rs_page *page, const char *text, const char *escaped)
{
    int characters = 0;
    bool is_plain;

    for (size_t bytes; *text; text += bytes, characters++) {
        bytes = rs_plain_next(text, &is_plain);
        rs_page_put(page, "%s%.*s", strchr(escaped, *text) ? "\\" : "", is_plain ? (int)bytes : 1,
                    is_plain ? text : "?");
    }
    return characters;
}

void rs_page_flush(struct rs_page *page)
{
    if (page->length > 0)
        write_out(page, page->length);
}

void rs_page_end(struct rs_page *page)
{
    rs_page_flush(page);
    if (page->file->state == RS_PAGE_FILE_CLAIMED)
        rs_output_drop(&page->file->output);
    page->file->state = RS_PAGE_FILE_NONE;
}
