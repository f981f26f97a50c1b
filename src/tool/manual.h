/* SPDX-License-Identifier: Apache-2.0 */
/* The manual's pages. */
#pragma once

/* The words of `rmmshim help TOPIC`, ended by NULL. */
extern const char *const manual_topics[];

/* Becomes man(1) on a topic's page.  Returns only where that fails, after saying why: the exit
 * code; or -1 for no topic. */
int manual_show(const char *topic);
