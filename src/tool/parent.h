/* SPDX-License-Identifier: Apache-2.0 */
/* `run` as the program's parent: it is as if the program were this process.  Signals that are sent
 * to this process go on to it, a stop stops both, and its end is this process's. */
#pragma once

/* Starts the program and stays until it ends.  Its exit code, or the exit code of `run` after
 * saying why it could not be started; ends this process by the signal that ended the program. */
int parent_run(char **program);

/* Becomes the program, as env does.  Returns only after saying why not: the exit code. */
int parent_become(char **program);
