/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server of `rmmshim serve`: libmicrohttpd.  Its headers are needed where rmmshim is
 * built, and the library is loaded by this command alone, since it brings ten more libraries, which
 * would make every start of the command 2 ms longer and impossible where one is missing. */
#pragma once

#include <stdbool.h>

/* Loads the library.  False after a line that says why there is no HTTP server. */
bool http_load(void);

/* Answers requests at the listening socket, in a thread that serves one at a time, until http_end.
 * `has_counters` as for subjects_write_metrics.  Takes the socket over.  False where that fails,
 * with errno. */
bool http_begin(int socket, bool has_counters);

/* Closes connections that have lasted too long, whatever they send or take meanwhile.  The caller
 * calls this once a second or so, from any thread. */
void http_close_slow(void);
void http_end(void);
