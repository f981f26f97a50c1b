/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of this machine and their pages (report/publish.h), found through /proc alone: a page
 * is a memory file that its process has open, and only the same user (or root) can open it there.
 */
#pragma once

#include "report/counters.h"
#include "report/publish.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum process_answer {
    PROCESS_SERVED,     /* the process has a page, which is mapped now */
    PROCESS_UNSERVED,   /* it has no page: rmmshim does not serve it */
    PROCESS_GONE,       /* no process has that number, or it has ended */
    PROCESS_DENIED,     /* it belongs to another user, or access to it or its page is refused */
    PROCESS_UNREADABLE, /* its page is of another version of rmmshim */
    PROCESS_LACKING,    /* not known, since this process has no descriptor or memory left */
};

struct process {
    int number;
    int directory; /* a descriptor of its directory in /proc, which never leads to a later process
                      with the same number; -1: none */
    const void *file; /* the page, of RS_PUBLISHED_BYTES, mapped for reading; NULL: none */
    uint64_t inode;   /* the page's inode, which a later process with that number does not have */
};

/* Maps a page for reading, and stores its inode.  Returns NULL if the file does not have a page's
 * length, may shrink, or cannot be mapped; the layout is not checked.  The caller unmaps
 * RS_PUBLISHED_BYTES. */
const void *process_map_page(int fd, uint64_t *inode);

/* Finds the page of a process and maps it.  The caller calls process_close in any case. */
enum process_answer process_open(int number, struct process *process);
void process_close(struct process *process);

/* Converts a failure to find a file of the process (-errno of rs_memory_file_find) to an answer. */
enum process_answer process_answer_of(int failed);

/* True when the process has ended, a zombie included. False if that cannot be found out, for want
 * of a descriptor or memory. */
bool process_has_ended(const struct process *process);

/* Finds out, when a file of the process is not found, whether the process is ending and has closed
 * its files.  If it has no program file any more, waits up to 2 s for its end.  Returns true when
 * it has ended. */
bool process_is_ending(const struct process *process);

/* True when the mapped page is still the page of the process, which has no page or another one
 * after it has begun to run another program. True also if that cannot be found out, for want of a
 * descriptor or memory. */
bool process_has_its_page(const struct process *process);

/* Returns the text for an answer, to be printed after "process 4711 ": "does not exist". */
const char *process_answer_text(enum process_answer answer);

/* Returns the numbers of all processes, ascending, which the caller frees.  Returns NULL,
 * and sets errno, without memory or /proc. */
int *process_list(size_t *count);

/* Compares, for qsort() and bsearch(), two objects that begin with a process's number. */
int process_compare_numbers(const void *one, const void *other);

/* ---- what /proc tells about a process ----
 *
 * `directory` is the process's directory in /proc: "/proc/4711", or a path by its descriptor
 * (process_path), which can never mean another process with the same number. */

enum { PROCESS_PATH_BYTES = 64 };

/* Writes the path of a file ("/maps") in the directory of an open process, and returns it; "" is
 * the directory itself. */
const char *process_path(const struct process *process, const char *name,
                         char path[PROCESS_PATH_BYTES]);

/* Both return the parent of a process: process_parent of the process with that number,
 * process_parent_in from the text of its /proc/PID/stat.  0 if it has none or is not found. */
int process_parent(int number);
int process_parent_in(const char *stat);

/* Opens a file ("maps") of the directory for reading; NULL if that fails. */
FILE *process_file(const char *directory, const char *name);

/* Returns the variables with which the process was started, as an array like environ; NULL if they
 * cannot be read.  The caller calls process_free_environment. */
char **process_environment(const char *directory);
void process_free_environment(char **environment);

/* A line of /proc/PID/maps.  All zero at first. */
struct process_mapping {
    uintptr_t begin, end;
    uint64_t offset; /* the offset of the mapping's first byte in the file */
    bool has_code;
    const char *name; /* a path, "[stack]" or the like, or empty; valid until the next call */
    char *line;
    size_t room;
};

/* Reads the next mapping.  After the last one it closes the file and returns false.  With a NULL
 * file it returns false at once.  If the process ends meanwhile, only its first mappings are read.
 */
bool process_next_mapping(FILE *maps, struct process_mapping *mapping);

/* ---- the name of a process ----
 *
 * What tells processes of the same program apart: the script that an interpreter runs, and the
 * user.  Texts are plain (report/plain.h). */

enum { IDENTITY_SCRIPT_BYTES = 256, IDENTITY_USER_BYTES = 64 };

struct identity {
    char script[IDENTITY_SCRIPT_BYTES]; /* "train.py", "-m module"; empty: the program is no
                                           interpreter, or runs no file */
    char user[IDENTITY_USER_BYTES];     /* the effective user's name, or number if there is no
                                           name; empty: not known */
};

/* Reads what /proc tells about the process now.  Not thread safe. */
void identity_read(const struct process *process, struct identity *identity);

/* Reads only the script of the process with that number; empty if the process has ended, too. */
void identity_script_of(int number, char script[IDENTITY_SCRIPT_BYTES]);

/* Finds what an interpreter with this command line (in the form of /proc/PID/cmdline) runs; empty
 * if the program is no interpreter, or runs no file. */
void identity_script(const char *words, size_t bytes, char script[IDENTITY_SCRIPT_BYTES]);

/* ---- the page of a process ----
 *
 * These functions read a mapped page, of a process that runs or that has ended.  The process may be
 * any program, so each offset is checked before it is used, and texts are made plain. */

/* The contents of a page at one moment.  The texts live until publication_release. */
struct publication {
    const char *file;
    char program[RS_PUBLISHED_PROGRAM_BYTES];
    char rank[RS_PUBLISHED_RANK_BYTES]; /* empty: none */
    int process;                        /* the process's number in its own PID namespace */
    struct rs_reported_stack stacks[RS_PUBLISHED_STACKS_MAX];
    size_t count;  /* the number of stacks that have counters */
    bool is_short; /* some of them may be missing, since there was no memory for them */
    uint32_t fields_read;

    struct rs_published_directory *directory; /* a copy of the directory, and pointers into it */
    const struct rs_published_stack *from;
    const struct rs_published_counter *counters;
};

/* True when the process has had a stack, that is, has taken its first memory. */
bool publication_has_directory(const void *file);

/* Reads a mapped page.  Returns false if it has no counters yet, or invalid ones.  The caller calls
 * publication_release in any case. */
bool publication_read(struct publication *page, const void *file);

/* The same, but ends the command if there is no memory for all of it. */
bool publication_read_all(struct publication *page, const void *file);
void publication_release(struct publication *page);

/* Returns what the page says, apart from counters, about the stacks of the kind and device of
 * `stack`; NULL if it has none of them. */
const struct rs_published_stack *publication_stack(const struct publication *page,
                                                   const struct rs_reported_stack *stack);
