/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of this machine and their pages (report/publish.h), found by /proc alone: the page is a
 * memory file that its process has open, and only a process of the same user lets it be opened. */
#pragma once

#include "report/counters.h"
#include "report/publish.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum process_answer {
    PROCESS_SERVED,     /* it has a page, which is mapped now */
    PROCESS_UNSERVED,   /* it has none: rmmshim serves nothing in it */
    PROCESS_GONE,       /* no process has that number, or it has ended */
    PROCESS_DENIED,     /* it belongs to another user, or may not be looked at */
    PROCESS_UNREADABLE, /* its page is of another version of rmmshim */
};

struct process {
    int number;
    int directory;    /* of the process in /proc: it never becomes another process's; -1: none */
    const void *file; /* the page, RS_PUBLISHED_BYTES long and for reading only; NULL: none */
    uint64_t inode;   /* of the page: tells a process from a later one with its number */
};

/* Maps a page for reading: NULL where the file is none, or cannot be mapped.  munmap of
 * RS_PUBLISHED_BYTES is due. */
const void *process_map_page(int fd, uint64_t *inode);

/* Finds the page of a process and maps it.  process_close is due in any case. */
enum process_answer process_open(int number, struct process *process);
void process_close(struct process *process);

/* What a failure of the search for a file of the process means (-errno of rs_memory_file_find). */
enum process_answer process_answer_of(int failed);

/* True when the process has ended, a zombie included. */
bool process_has_ended(const struct process *process);

/* True when the process has ended, or does so within 2 s: it has closed its files. */
bool process_is_ending(const struct process *process);

/* False when the process has another page than the one that is mapped, or none: it went on as
 * another program. */
bool process_has_its_page(const struct process *process);

/* What to say of an answer, after "process 4711 ": "has ended". */
const char *process_answer_text(enum process_answer answer);

/* The numbers of all processes, ascending, or NULL without memory or /proc.  free() is due. */
int *process_list(size_t *count);

/* Their order, for qsort() and bsearch(), of anything that begins with such a number. */
int process_compare_numbers(const void *one, const void *other);

/* ---- what /proc says of one ----
 *
 * `directory` is the process's in /proc, as "/proc/4711", or by its descriptor (process_path),
 * which cannot be another process's with the same number. */

enum { PROCESS_PATH_BYTES = 64 };

/* Writes the path of a file ("/maps") in the directory of an open process, or for "" its own. */
const char *process_path(const struct process *process, const char *name,
                         char path[PROCESS_PATH_BYTES]);

/* The parent of the process of that number, or by the text of its /proc/PID/stat; 0 where it has
 * none, or /proc does not tell. */
int process_parent(int number);
int process_parent_in(const char *stat);

/* Opens a file of the directory for reading; NULL where that is not possible. */
FILE *process_file(const char *directory, const char *name);

/* The variables with which the process was started, as an array like environ; NULL where they
 * cannot be read.  process_free_environment is due. */
char **process_environment(const char *directory);
void process_free_environment(char **environment);

/* A line of /proc/PID/maps.  All zero at first. */
struct process_mapping {
    uintptr_t begin, end;
    uint64_t offset; /* of its first byte in the file */
    bool has_code;
    const char *name; /* a path, "[stack]" or the like, or empty; valid until the next one */
    char *line;
    size_t room;
};

/* Takes the next mapping out of the file, which may be NULL and is closed behind the last one:
 * false then.  A process that ends meanwhile has the first mappings alone. */
bool process_next_mapping(FILE *maps, struct process_mapping *mapping);

/* ---- its name ----
 *
 * What tells a process from others of its program's name: the script that an interpreter runs, and
 * the user.  Texts are plain (report/plain.h). */

enum { IDENTITY_SCRIPT_BYTES = 256, IDENTITY_USER_BYTES = 64 };

struct identity {
    char script[IDENTITY_SCRIPT_BYTES]; /* "train.py", "-m module"; empty: no interpreter's */
    char user[IDENTITY_USER_BYTES];     /* a name, or the number of one without */
};

/* What /proc tells of the process now.  Not thread safe. */
void identity_read(const struct process *process, struct identity *identity);

/* The script alone, of the process of that number; empty too where the process is gone. */
void identity_script_of(int number, char script[IDENTITY_SCRIPT_BYTES]);

/* What an interpreter with this command line (as /proc/PID/cmdline has it) runs; empty where it is
 * none, or runs no file. */
void identity_script(const char *words, size_t bytes, char script[IDENTITY_SCRIPT_BYTES]);

/* ---- its page ----
 *
 * Read as it is mapped: of a process that runs, or that is gone.  The process may have been
 * anything: each offset is checked before it is used, and texts are plain. */

/* What the page said at one moment.  Its texts live until publication_release. */
struct publication {
    const char *file;
    char program[RS_PUBLISHED_PROGRAM_BYTES];
    char rank[RS_PUBLISHED_RANK_BYTES]; /* empty: none */
    int process;                        /* its number in its own PID namespace */
    struct rs_reported_stack stacks[RS_PUBLISHED_STACKS_MAX];
    size_t count; /* of stacks that have counters */
    uint32_t fields_read;

    struct rs_published_directory *directory; /* a copy, and what lies in it */
    const struct rs_published_stack *from;
    const struct rs_published_counter *counters;
};

/* True when the process has stacks, or had any: it has taken its first memory. */
bool publication_has_directory(const void *file);

/* Reads the mapped file of RS_PUBLISHED_BYTES.  False where it has no counters yet, or they make no
 * sense; publication_release is due in any case. */
bool publication_read(struct publication *page, const void *file);
void publication_release(struct publication *page);

/* What the page says about the stacks of that kind and device: expression and device. */
const struct rs_published_stack *publication_stack(const struct publication *page,
                                                   const struct rs_reported_stack *stack);
