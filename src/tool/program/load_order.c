/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/program/load_order.h"

#include "base/check.h"
#include "tool/program/elf_file.h"
#include "tool/program/program.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OBJECTS_MAX = 4096 };

/* The variables that decide what is loaded: by others the linker would run code of objects, or
 * write something else. */
enum { VARIABLES = 2 };

static void choose_variables(char *const *environment, char *chosen[VARIABLES + 1])
{
    static const char *const names[VARIABLES] = {"LD_PRELOAD=", "LD_LIBRARY_PATH="};
    size_t count = 0;

    for (; *environment && count < VARIABLES; environment++)
        for (size_t i = 0; i < VARIABLES && count < VARIABLES; i++)
            if (strncmp(*environment, names[i], strlen(names[i])) == 0)
                chosen[count++] = *environment;
    chosen[count] = NULL;
}

/* Starts `linker --list program`; its output is to be read from *output. */
static bool start(const char *linker, const char *program, char *const *environment, pid_t *lister,
                  int *output)
{
    char *words[] = {(char *)(uintptr_t)linker, (char *)(uintptr_t) "--list",
                     (char *)(uintptr_t)program, NULL};
    char *chosen[VARIABLES + 1];
    posix_spawn_file_actions_t actions;
    int ends[2], failed;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    choose_variables(environment, chosen);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    failed = posix_spawn(lister, linker, &actions, NULL, words, chosen);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed)
        close(ends[0]);
    *output = ends[0];
    return !failed;
}

void load_order_add(struct load_order *order, const char *path)
{
    char **grown = order->count < OBJECTS_MAX
                       ? realloc(order->paths, (order->count + 1) * sizeof(*grown))
                       : NULL;

    if (!grown)
        return;
    order->paths = grown;
    order->paths[order->count] = strdup(path);
    order->count += order->paths[order->count] != NULL;
}

/* "\tNAME => PATH (0x...)", or without a path what has none, or "\tPATH (0x...)". */
static void take_line(struct load_order *order, char *line)
{
    char *path = strstr(line, "=> "), *end = strstr(line, " (0x");

    order->missing += strstr(line, "=> not found") != NULL;
    path = path ? path + strlen("=> ") : line + strspn(line, "\t ");
    if (!end || end < path || *path != '/')
        return;
    *end = '\0';
    load_order_add(order, path);
}

bool load_order_read(const char *program, char *const *environment, struct load_order *order)
{
    struct elf_file own;
    char *line = NULL;
    size_t room = 0;
    FILE *output = NULL;
    pid_t lister;
    int fd;

    *order = (struct load_order){.count = 0};
    if (!elf_open("/proc/self/exe", &own))
        return false;
    elf_close(&own);
    if (!*own.interpreter || !start(own.interpreter, program, environment, &lister, &fd))
        return false;
    output = fdopen(fd, "r");
    while (output && getline(&line, &room, output) > 0)
        take_line(order, line);
    free(line);
    if (output)
        fclose(output);
    else
        close(fd);
    while (waitpid(lister, NULL, 0) < 0 && errno == EINTR)
        ;
    return order->count > 0;
}

void load_order_free(struct load_order *order)
{
    for (size_t i = 0; i < order->count; i++)
        free(order->paths[i]);
    free(order->paths);
    *order = (struct load_order){.count = 0};
}

size_t load_order_find(const struct load_order *order, const char *begin)
{
    size_t i = 0;

    while (i < order->count &&
           strncmp(program_base_name(order->paths[i]), begin, strlen(begin)) != 0)
        i++;
    return i;
}
