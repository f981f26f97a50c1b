/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/screen/frame.h"

#include "base/log.h"
#include "tool/tool.h"
#include "tool/view/plain.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 4096 };

static const char *const styles[] = {
    [FRAME_PLAIN] = "",        [FRAME_TITLE] = "\033[7m", [FRAME_CHART] = "\033[36m",
    [FRAME_FAINT] = "\033[2m", [FRAME_WARN] = "\033[33m", [FRAME_ALARM] = "\033[1;31m",
};

static void append(struct frame *frame, const char *text)
{
    size_t bytes = strlen(text);

    if (frame->length + bytes > frame->room) {
        frame->room = 2 * (frame->length + bytes) + PIECE_BYTES;
        frame->text = realloc(frame->text, frame->room);
        if (!frame->text) {
            tool_say("out of memory");
            exit(TOOL_FINDING);
        }
    }
    memcpy(frame->text + frame->length, text, bytes);
    frame->length += bytes;
}

int frame_columns_left(const struct frame *frame)
{
    return frame->columns - frame->used_columns;
}

int frame_lines_left(const struct frame *frame)
{
    return frame->lines ? frame->lines - frame->used_lines : INT_MAX;
}

/* Reverse video is older than colours. */
static bool is_styled(const struct frame *frame, enum frame_style style)
{
    return frame->is_screen && (style == FRAME_TITLE || (frame->has_colors && style));
}

void frame_put(struct frame *frame, enum frame_style style, const char *text)
{
    char fitted[PIECE_BYTES];

    if (frame_columns_left(frame) <= 0)
        return;
    frame->used_columns += plain_fit(fitted, sizeof(fitted), text, frame_columns_left(frame));
    if (is_styled(frame, style))
        append(frame, styles[style]);
    append(frame, fitted);
    if (is_styled(frame, style))
        append(frame, "\033[0m");
}

static void drop_blanks(struct frame *frame)
{
    while (frame->length > 0 && frame->text[frame->length - 1] == ' ')
        frame->length--;
}

void frame_end_line(struct frame *frame)
{
    bool is_last = frame_lines_left(frame) == 1;

    if (!frame->is_screen)
        drop_blanks(frame);
    else if (frame_columns_left(frame) > 0)
        append(frame, "\033[K");
    if (!frame->is_screen || !is_last)
        append(frame, frame->is_screen ? "\r\n" : "\n");
    frame->used_columns = 0;
    frame->used_lines++;
}

/* Between these two a terminal that knows them shows what was there before: no half pictures. */
static const char begin_picture[] = "\033[?2026h\033[H", end_picture[] = "\033[?2026l";

int frame_write(struct frame *frame)
{
    int failed = 0;

    if (frame->is_screen && frame_lines_left(frame) > 0)
        append(frame, "\033[J");
    if (frame->is_screen) {
        append(frame, end_picture);
        failed = rs_write_all(STDOUT_FILENO, begin_picture, strlen(begin_picture));
    }
    if (!failed)
        failed = rs_write_all(STDOUT_FILENO, frame->text, frame->length);
    free(frame->text);
    frame->text = NULL;
    frame->length = frame->room = 0;
    return failed;
}
