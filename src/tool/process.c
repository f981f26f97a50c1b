/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/process.h"

#include "base/process.h"
#include "report/publish.h"
#include "report/published_checks.h"
#include "shared/published.h"
#include "tool/publication.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* How long a process may take from closing its files to being gone, on a busy machine: 2 s. */
enum { ENDING_NAP_NS = 5 * 1000 * 1000, ENDING_TURNS = 400 };

/* ---- one process ---- */

/* Reads a small file of the process; the number of bytes, ended by a zero, or -1. */
static ssize_t read_file(int directory, const char *name, char *text, size_t room)
{
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, room - 1);

    if (fd >= 0)
        close(fd);
    if (length >= 0)
        text[length] = '\0';
    return length;
}

ssize_t process_read_file(const struct process *process, const char *name, char *text, size_t room)
{
    return read_file(process->directory, name, text, room);
}

bool process_directory_has_ended(int directory)
{
    char stat[1024];

    return read_file(directory, "stat", stat, sizeof(stat)) <= 0 || rs_process_stat_has_ended(stat);
}

bool process_directory_is_ending(int directory)
{
    const struct timespec turn = {0, ENDING_NAP_NS};
    struct stat status;
    bool has_ended;

    for (int i = 0; !(has_ended = process_directory_has_ended(directory)) && i < ENDING_TURNS;
         i++) {
        /* A process without a program file is about to be a zombie, or is a kernel thread. */
        if (fstatat(directory, "exe", &status, 0) == 0 || errno == EACCES)
            break;
        nanosleep(&turn, NULL);
    }
    return has_ended;
}

int process_own_number(const struct process *process)
{
    char status[8192];

    return read_file(process->directory, "status", status, sizeof(status)) > 0
               ? rs_process_own_number(status)
               : 0;
}

int process_parent(int number)
{
    char path[64], stat[1024], *behind_name;
    int parent = 0;

    snprintf(path, sizeof(path), "/proc/%d/stat", number);
    if (read_file(AT_FDCWD, path, stat, sizeof(stat)) <= 0)
        return 0;
    behind_name = strrchr(stat, ')');
    return behind_name && sscanf(behind_name + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

int process_open_file(const struct process *process, const char *name, int flags,
                      bool (*accepts)(int fd, void *data), void *data, enum process_answer *answer)
{
    int fds = openat(process->directory, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd = -1;
    DIR *listing = fds < 0 ? NULL : fdopendir(fds);
    const struct dirent *entry;
    char wanted[64];

    *answer = PROCESS_UNSERVED;
    if (!listing) {
        *answer = errno == EACCES || errno == EPERM ? PROCESS_DENIED : PROCESS_GONE;
        if (fds >= 0)
            close(fds);
        return -1;
    }
    snprintf(wanted, sizeof(wanted), "/memfd:%s (deleted)", name);
    while (fd < 0 && (entry = readdir(listing))) {
        char link[sizeof(wanted)];
        ssize_t length = readlinkat(fds, entry->d_name, link, sizeof(link));
        if (length != (ssize_t)strlen(wanted) || memcmp(link, wanted, (size_t)length) != 0)
            continue;
        fd = openat(fds, entry->d_name, flags | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 && (errno == EACCES || errno == EPERM))
            *answer = PROCESS_DENIED;
        if (fd >= 0 && !accepts(fd, data)) {
            close(fd);
            fd = -1;
        }
    }
    closedir(listing);
    return fd;
}

/* A forked child may have its parent's page open. */
static bool is_page_of(int fd, void *data)
{
    struct process *process = data;
    struct rs_publication head;
    struct stat status;
    int own = process_own_number(process);

    if (!rs_published_check_file(fd) || fstat(fd, &status) != 0 ||
        pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) || (own && head.process != own))
        return false;
    process->inode = (uint64_t)status.st_ino;
    return true;
}

static enum process_answer find_page(struct process *process)
{
    enum process_answer answer;
    int fd = process_open_file(process, "rmmshim", O_RDONLY, is_page_of, process, &answer);
    void *file;

    if (fd < 0)
        return answer;
    file = mmap(NULL, RS_PUBLISHED_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (file == MAP_FAILED)
        return PROCESS_DENIED;
    if (!publication_can_read(file)) {
        munmap(file, RS_PUBLISHED_BYTES);
        return PROCESS_UNREADABLE;
    }
    process->file = file;
    return PROCESS_SERVED;
}

enum process_answer process_open(int number, struct process *process)
{
    enum process_answer answer;
    char path[64];

    *process = (struct process){.number = number};
    snprintf(path, sizeof(path), "/proc/%d", number);
    process->directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (process->directory < 0)
        return errno == EACCES || errno == EPERM ? PROCESS_DENIED : PROCESS_GONE;
    answer = process_directory_has_ended(process->directory) ? PROCESS_GONE : find_page(process);
    if (answer != PROCESS_SERVED)
        close(process->directory);
    return answer;
}

void process_close(struct process *process)
{
    munmap((void *)(uintptr_t)process->file, RS_PUBLISHED_BYTES);
    close(process->directory);
}

bool process_has_ended(const struct process *process)
{
    return process_directory_has_ended(process->directory);
}

static bool is_that_page(int fd, void *data)
{
    const struct process *process = data;
    struct stat status;

    return fstat(fd, &status) == 0 && (uint64_t)status.st_ino == process->inode;
}

bool process_has_its_page(const struct process *process)
{
    struct process copy = *process;
    enum process_answer answer;
    int fd = process_open_file(process, "rmmshim", O_RDONLY, is_that_page, &copy, &answer);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

const char *process_answer_text(enum process_answer answer)
{
    switch (answer) {
    case PROCESS_SERVED:
        return "is served";
    case PROCESS_UNSERVED:
        return "is not served by rmmshim";
    case PROCESS_GONE:
        return "does not exist";
    case PROCESS_DENIED:
        return "belongs to another user";
    case PROCESS_UNREADABLE:
        return "is served by another version of rmmshim";
    }
    return "";
}

/* ---- all processes ---- */

int process_parse(const char *text)
{
    char *end;
    long number;

    if (*text < '0' || *text > '9')
        return 0;
    errno = 0;
    number = strtol(text, &end, 10);
    return *end || errno || number <= 0 || number > INT_MAX ? 0 : (int)number;
}

static int by_number(const void *one, const void *other)
{
    int a = *(const int *)one, b = *(const int *)other;

    return (a > b) - (a < b);
}

int *process_list(size_t *count)
{
    DIR *listing = opendir("/proc");
    const struct dirent *entry;
    size_t room = 1024;
    int *numbers = listing ? malloc(room * sizeof(*numbers)) : NULL;

    *count = 0;
    while (numbers && (entry = readdir(listing))) {
        int number = process_parse(entry->d_name);
        if (!number)
            continue;
        if (*count == room) {
            int *more = realloc(numbers, 2 * room * sizeof(*numbers));
            if (!more)
                break; /* those that there is memory for */
            numbers = more;
            room *= 2;
        }
        numbers[(*count)++] = number;
    }
    if (listing)
        closedir(listing);
    if (numbers)
        qsort(numbers, *count, sizeof(*numbers), by_number);
    return numbers;
}

size_t process_each(bool (*visit)(void *data, const struct process *process), void *data)
{
    size_t count, unreadable = 0;
    int *numbers = process_list(&count);

    for (size_t i = 0; numbers && i < count; i++) {
        struct process process;
        enum process_answer answer = process_open(numbers[i], &process);
        unreadable += answer == PROCESS_UNREADABLE;
        if (answer != PROCESS_SERVED)
            continue;
        unreadable += !visit(data, &process);
        process_close(&process);
    }
    free(numbers);
    return unreadable;
}
