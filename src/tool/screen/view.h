/* SPDX-License-Identifier: Apache-2.0 */
/* What `top` shows, and how. */
#pragma once

#include "tool/screen/frame.h"
#include "tool/screen/watch.h"

#include <stdbool.h>
#include <stddef.h>

enum view_sort { VIEW_HELD, VIEW_USED, VIEW_PEAK, VIEW_RATE, VIEW_PID, VIEW_SORTS };

extern const char *const view_sort_names[VIEW_SORTS + 1]; /* ended by NULL */

struct view {
    bool is_by_device, is_reversed, is_paused;
    bool shows_help; /* in place of the table */
    enum view_sort sort;
    double interval_seconds;
    size_t first;   /* row that is shown, of those that do not fit */
    size_t visible; /* rows that fitted last time */
    bool has_blocks;
};

/* Sorted rows; free() is due. */
const struct watched **view_rows(const struct view *view, const struct watch *watch, size_t *count);

/* Draws all of it. */
void view_draw(struct view *view, const struct watch *watch, struct frame *frame);
