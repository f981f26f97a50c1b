/* SPDX-License-Identifier: Apache-2.0 */
/* Shows the pages of the manual. */
#pragma once

/* The words of `rmmshim help TOPIC`, ended by NULL. */
extern const char *const manual_topics[];

/* Replaces this process by man(1) with the page of a topic.  Returns only on failure: an exit code
 * after printing the reason, or -1 when there is no such topic. */
int manual_show(const char *topic);
