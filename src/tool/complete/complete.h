/* SPDX-License-Identifier: Apache-2.0 */
/* The words that may come next in a command line, for the completion of shells.  All come from the
 * tables of commands, options, variables and resources. */
#pragma once

/* `words` are those behind the command's name up to the cursor, ended by NULL; the last one, which
 * may be empty, is being written.  Prints a line that says what may stand in its place, and then
 * the words, each with a tab and what it means behind it:
 *   words         one of these
 *   open          one of these, which may go on: no blank is put behind it
 *   files PREFIX  one of these, or PREFIX and a path
 *   programs      one of these, or a program
 *   program N     what stands in a command line that begins with word N, counted from 0 */
int complete(char **words);
