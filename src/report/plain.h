/* SPDX-License-Identifier: Apache-2.0 */
/* Text that others have chosen, as it may be written to a terminal: the name of a program may hold
 * anything but a zero. */
#pragma once

/* Replaces by '?', in place: control characters, those that change the direction of text or are not
 * seen, and bytes that are not UTF-8. */
void rs_plain_make(char *text);

/* The same of a text of several lines: the ends of lines stay. */
void rs_plain_make_lines(char *text);
