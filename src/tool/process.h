/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of this machine and their pages (report/publish.h), found by /proc alone: the page is a
 * memory file that its process has open, and only a process of the same user lets it be opened. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
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
    int directory;    /* of the process in /proc: it never becomes another process's */
    const void *file; /* the page, RS_PUBLISHED_BYTES long and for reading only */
    uint64_t inode;   /* of the page: tells a process from a later one with its number */
};

/* Opens a memory file of the process by its name ("rmmshim-commands"), with open()'s flags: the
 * first one for which `accepts` is true.  A descriptor, or -1 with *answer telling why. */
int process_open_file(const struct process *process, const char *name, int flags,
                      bool (*accepts)(int fd, void *data), void *data, enum process_answer *answer);

/* Finds the page of a process and maps it.  After PROCESS_SERVED alone process_close is due. */
enum process_answer process_open(int number, struct process *process);
void process_close(struct process *process);

/* Reads the beginning of a small file of the process in /proc; the number of bytes, ended by a
 * zero, or -1. */
ssize_t process_read_file(const struct process *process, const char *name, char *text, size_t room);

/* The number that the process has in its own PID namespace; 0 where the kernel does not say. */
int process_own_number(const struct process *process);

/* The parent of the process of that number; 0 where it has none, or /proc does not tell. */
int process_parent(int number);

/* True when the process has ended, a zombie included. */
bool process_has_ended(const struct process *process);

/* False when the process has another page than the one that is mapped, or none: it went on as
 * another program. */
bool process_has_its_page(const struct process *process);

/* What to say of an answer, after "process 4711 ": "has ended". */
const char *process_answer_text(enum process_answer answer);

/* The numbers of all processes, ascending, or NULL without memory or /proc.  free() is due. */
int *process_list(size_t *count);

/* Opens each served process of this user in turn; `visit` returns false when its page makes no
 * sense. The number of processes whose pages cannot be read. */
size_t process_each(bool (*visit)(void *data, const struct process *process), void *data);

/* Parses a process number.  0 when the text is none. */
int process_parse(const char *text);

/* True when the process has ended, or does so within 2 s: it has closed its files. */
bool process_directory_is_ending(int directory);

/* The process behind that descriptor of /proc/PID has ended, or is a zombie without threads. */
bool process_directory_has_ended(int directory);
