/* SPDX-License-Identifier: Apache-2.0 */
/* `run` as the program's parent: it is as if the program were this process.  Signals that are sent
 * to this process go on to it, a stop by the terminal stops both, and its end is this process's. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>
#include <sys/wait.h>

/* How the program ended. */
struct parent_result {
    pid_t program;
    int status;          /* as of waitpid */
    bool is_interrupted; /* a signal that ends a job and is not ignored came meanwhile, from the
                          * terminal or for `run` */
};

/* Where the program reads from and writes to. */
enum parent_streams {
    PARENT_STREAMS_OWN,      /* the streams of this process */
    PARENT_STREAMS_NO_INPUT, /* stdin is /dev/null */
    PARENT_STREAMS_MUTE,     /* all three are /dev/null */
};

/* Starts the program and stays until it ends, and with it the job (tool/run/job.h).  False after
 * saying why it could not be started. */
bool parent_run(char **program, enum parent_streams streams, struct parent_result *result);

/* The exit code of a shell for that status: the program's own, or 128 + N after signal N. */
int parent_exit_code(const struct parent_result *result);

/* Ends this process by the signal that ended the program, if one did. */
void parent_end_as(const struct parent_result *result);

/* Becomes the program, as env does.  Returns only after saying why not: the exit code. */
int parent_become(char **program);
