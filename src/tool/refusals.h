/* SPDX-License-Identifier: Apache-2.0 */
/* The reports of requests that were refused for want of memory, as processes left them in their
 * pages (report/publish.h): printed when the program of a `run` has failed. */
#pragma once

/* Keeps the report of a process that is gone, where its page has one; at most 8 of them. */
void refusals_keep(const void *file);

/* Prints what was kept, and forgets it. */
void refusals_print(void);
