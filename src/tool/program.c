/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/program.h"

#include "base/check.h"
#include "tool/objects.h"
#include "tool/tool.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

int program_find(const char *program, char path[PATH_MAX])
{
    const char *directories = getenv("PATH");
    int result = ENOENT;
    struct stat status;

    if (!*program)
        return ENOENT;
    if (strchr(program, '/'))
        directories = NULL;
    else if (!directories)
        directories = "/bin:/usr/bin";
    for (;;) {
        size_t length = directories ? strcspn(directories, ":") : 0;
        snprintf(path, PATH_MAX, "%.*s%s%s", (int)length, directories ? directories : "",
                 length ? "/" : "", program);
        if (stat(path, &status) == 0) {
            if (S_ISREG(status.st_mode) && access(path, X_OK) == 0)
                return 0;
            result = EACCES;
        } else if (errno != ENOENT && errno != ENOTDIR) {
            result = errno;
        }
        if (!directories || !directories[length])
            return result;
        directories += length + 1;
    }
}

char *program_why_not(const char *command, const char *name, int failed)
{
    const char *why = failed == ENOENT ? "not found" : strerror(failed);
    size_t length = strlen(name);
    bool is_python = length > 3 && strcmp(name + length - 3, ".py") == 0;
    struct stat status;

    if (length <= PATH_MAX / 2 && stat(name, &status) == 0 && S_ISREG(status.st_mode) &&
        (is_python || (!strchr(name, '/') && access(name, X_OK) == 0)))
        return tool_format("%s: %s; did you mean 'rmmshim %s %s%s'?", name, why, command,
                           is_python ? "python3 " : "./", name);
    return tool_format("%s: %s", name, why);
}

/* ---- scripts ---- */

/* Linux's bounds: the bytes that are read of a script's first line, and how many scripts may run
 * one another. */
enum { LINE_BYTES = 256, SCRIPTS_MAX = 5 };

/* The program that runs a script. */
struct script {
    char line[LINE_BYTES]; /* the first line; from behind "#!" on it is cut into words */
    const char *interpreter;
    char *rest;            /* the rest of the line, after the interpreter or after `started` */
    const char *started;   /* the program that `env` starts: its first word that is neither an
                              option nor a variable; NULL if the interpreter is not `env` */
    char of_env[PATH_MAX]; /* the path of `started`; empty: not found */
};

/* Reads the first line of a script.  Returns false when the file names no interpreter. */
static bool read_shebang(const char *path, struct script *script)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = fd < 0 ? -1 : pread(fd, script->line, LINE_BYTES - 1, 0);

    if (fd >= 0)
        close(fd);
    script->line[got > 0 ? got : 0] = '\0';
    script->line[strcspn(script->line, "\n")] = '\0';
    script->started = NULL;
    *script->of_env = '\0';
    if (strncmp(script->line, "#!", 2) != 0 ||
        !(script->interpreter = strtok_r(script->line + 2, " \t", &script->rest)))
        return false;
    if (strcmp(basename(script->interpreter), "env") != 0)
        return true;
    do
        script->started = strtok_r(NULL, " \t", &script->rest);
    while (script->started && (script->started[0] == '-' || strchr(script->started, '=')));
    if (script->started && program_find(script->started, script->of_env) != 0)
        *script->of_env = '\0';
    return true;
}

bool program_find_runner(const char *path, char runner[PATH_MAX])
{
    struct script script;
    int scripts = 0;

    snprintf(runner, PATH_MAX, "%s", path);
    for (; scripts < SCRIPTS_MAX && read_shebang(runner, &script); scripts++)
        snprintf(runner, PATH_MAX, "%s", *script.of_env ? script.of_env : script.interpreter);
    return scripts > 0 && access(runner, X_OK) == 0;
}

/* True when the program, or what runs the script, is linked with a shared runtime of
 * AddressSanitizer, as by gcc. */
static bool program_needs_asan(const char *path)
{
    char runner[PATH_MAX], name[ELF_NAME_BYTES];
    struct elf_file elf;
    bool needs = false;

    if (!elf_open(program_find_runner(path, runner) ? runner : path, &elf))
        return false;
    for (size_t at = 0; elf.is_elf && !needs && elf_next_needed(&elf, &at, name);)
        needs = tool_begins(name, "libasan.") || tool_begins(name, "libclang_rt.asan");
    elf_close(&elf);
    return needs;
}

/* ---- its names ---- */

static void append_word(char *words, size_t *bytes, const char *word)
{
    size_t length = strlen(word) + 1;

    if (length > RS_PROGRAM_WORDS_BYTES - *bytes)
        return; /* there is no more room, and the first words suffice as names */
    memcpy(words + *bytes, word, length);
    *bytes += length;
}

/* If `path` is a script, changes `process` to the process of its interpreter, and `path` to the
 * interpreter's path.  The new command line has the interpreter, then the rest of the script's
 * first line (one word, which only `env` splits), then the script's path in place of the first
 * word.  Returns false if `path` is no script, or `env` starts nothing. */
static bool put_runner(char path[PATH_MAX], struct rs_program_names *process)
{
    char before[RS_PROGRAM_WORDS_BYTES] = "";
    const char *word, *end = before + process->bytes;
    struct script script;
    size_t bytes = 0, length;

    memcpy(before, process->words, process->bytes);
    if (!read_shebang(path, &script) ||
        (strcmp(basename(script.interpreter), "env") == 0 && !*script.of_env))
        return false;
    append_word(process->words, &bytes, script.started ? script.started : script.interpreter);
    for (length = strlen(script.rest); length > 0 && strchr(" \t", script.rest[length - 1]);)
        script.rest[--length] = '\0';
    word = script.rest + strspn(script.rest, " \t");
    if (script.started)
        word = strtok_r(NULL, " \t", &script.rest);
    for (; word && *word; word = script.started ? strtok_r(NULL, " \t", &script.rest) : NULL)
        append_word(process->words, &bytes, word);
    append_word(process->words, &bytes, path);
    for (word = before + strlen(before) + 1; word < end; word += strlen(word) + 1)
        append_word(process->words, &bytes, word);
    process->bytes = bytes;
    snprintf(path, PATH_MAX, "%s", script.started ? script.of_env : script.interpreter);
    return true;
}

void program_names(const char *name, char *const *arguments, const char *path,
                   struct rs_program_names *process)
{
    char runner[PATH_MAX];

    process->bytes = 0;
    append_word(process->words, &process->bytes, name);
    for (; *arguments; arguments++)
        append_word(process->words, &process->bytes, *arguments);
    snprintf(runner, sizeof(runner), "%s", path);
    for (int scripts = 0; scripts < SCRIPTS_MAX && put_runner(runner, process); scripts++)
        ;
    if (!realpath(runner, process->executable))
        snprintf(process->executable, sizeof(process->executable), "%s", runner);
}

/* ---- whether it loads the library ---- */

/* What the functions below need to know: `started` is the program that the user named; their `path`
 * is this program, or the interpreter that runs it. */
struct question {
    const struct elf_file *library;
    const char *started;
    struct program_refusal *refusal;
};

RS_PRINTF(4, 5)
static bool refuse_program(const struct question *of, const char *path, const char *step,
                           const char *format, ...)
{
    char *why = of->refusal->why;
    size_t bytes = sizeof(of->refusal->why);
    va_list arguments;

    of->refusal->step = step;
    if (strcmp(of->started, path) == 0)
        snprintf(why, bytes, "%s ", path);
    else
        snprintf(why, bytes, "%s is run by %s, which ", of->started, path);
    va_start(arguments, format);
    vsnprintf(why + strlen(why), bytes - strlen(why), format, arguments);
    va_end(arguments);
    return false;
}

/* Refuses programs that the kernel starts with more rights than their parent has (AT_SECURE). */
static bool check_rights(const struct question *of, const char *path)
{
    const char *why = NULL;
    struct stat status;

    if (stat(path, &status) != 0)
        return true;
    if ((status.st_mode & S_ISUID) && status.st_uid != getuid())
        why = "runs as another user (setuid)";
    else if ((status.st_mode & S_ISGID) && (status.st_mode & S_IXGRP) && status.st_gid != getgid())
        why = "runs as another group (setgid)";
    else if (getuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0)
        why = "has file capabilities";
    return !why ||
           refuse_program(
               of, path,
               "start a copy of the program that has no setuid or setgid bit and no capabilities",
               "%s, so the dynamic linker ignores LD_PRELOAD", why);
}

/* Dynamic linkers of other libcs.  They read LD_PRELOAD too, and refuse to start the program, since
 * the library needs glibc. */
static const struct {
    const char *begins, *libc;
} other_linkers[] = {
    {"ld-musl-", "musl"},
    {"ld-uClibc", "uClibc"},
    {"ld64-uClibc", "uClibc"},
    {"linker64", "Bionic"},
};

static bool check_libc(const struct question *of, const char *path, const struct elf_file *program)
{
    const char *linker = basename(program->interpreter);

    for (size_t i = 0; i < RS_ARRAY_LENGTH(other_linkers); i++)
        if (tool_begins(linker, other_linkers[i].begins))
            return refuse_program(of, path, "use a build of the program that is linked with glibc",
                                  "is linked with %s: librmmshim.so needs glibc",
                                  other_linkers[i].libc);
    return true;
}

static bool check_elf(const struct question *of, const char *path, const struct elf_file *program)
{
    const struct elf_file *library = of->library;

    if (program->class != library->class)
        return refuse_program(
            of, path, "use a build of the program for this machine",
            "is a %d-bit program: the %d-bit librmmshim.so cannot be loaded into it",
            program->class == ELFCLASS32 ? 32 : 64, library->class == ELFCLASS32 ? 32 : 64);
    if (program->machine != library->machine)
        return refuse_program(of, path, "use a build of the program for this machine",
                              "is for another processor than librmmshim.so");
    if (elf_is_static(program))
        return refuse_program(of, path, "link the program dynamically (without -static)",
                              "is linked statically: no library can be loaded into it");
    return check_libc(of, path, program);
}

static bool check_file(const struct question *of, const char *path, int scripts)
{
    struct elf_file program;
    struct script script;
    bool loads = true;

    if (!check_rights(of, path))
        return false;
    if (!elf_open(path, &program))
        return true;
    if (program.is_elf)
        loads = check_elf(of, path, &program);
    elf_close(&program);
    if (program.is_elf || scripts == SCRIPTS_MAX || !read_shebang(path, &script))
        return loads;
    return check_file(of, script.interpreter, scripts + 1) &&
           (!*script.of_env || check_file(of, script.of_env, scripts + 1));
}

static bool refuse_library(const char *library, const char *what, const char *why, const char *step,
                           struct program_refusal *refusal)
{
    refusal->step = step;
    snprintf(refusal->why, sizeof(refusal->why), "%s%s%s", library, what, why);
    return false;
}

bool program_loads(const char *library, const char *path, struct program_refusal *refusal)
{
    struct elf_file shim;
    bool loads;

    if (!elf_open(library, &shim))
        return refuse_library(library, " cannot be read: ", strerror(errno),
                              "let this user read the file, or set RMMSHIM_LIBRARY to a copy that "
                              "this user can read",
                              refusal);
    loads = shim.is_elf ? check_file(&(struct question){&shim, path, refusal}, path, 0)
                        : refuse_library(library, " is not a library", "",
                                         "install rmmshim again, or set RMMSHIM_LIBRARY to the "
                                         "path of another librmmshim.so",
                                         refusal);
    elf_close(&shim);
    return loads;
}

/* ---- the library ---- */

/* Where the library may be, relative to the directory of this command: at the configured place, at
 * usual places of an installation, and in the build tree. */
static const char *const library_places[] = {
    /* NOLINTNEXTLINE(bugprone-suspicious-missing-comma): one path of three pieces */
    "../" RMMSHIM_LIBDIR "/librmmshim.so",
    "../lib/librmmshim.so",
    "../lib64/librmmshim.so",
    "librmmshim.so",
    "../hook/librmmshim.so",
};

bool library_find_beside(const char *const *places, size_t count, char path[PATH_MAX])
{
    char own[PATH_MAX], candidate[2 * PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
    const char *slash;

    own[length > 0 ? length : 0] = '\0';
    slash = strrchr(own, '/');
    for (size_t i = 0; slash && i < count; i++) {
        snprintf(candidate, sizeof(candidate), "%.*s/%s", (int)(slash - own), own, places[i]);
        if (realpath(candidate, path))
            return true;
    }
    return false;
}

bool library_look(char path[PATH_MAX], char why[LIBRARY_WHY_BYTES])
{
    const char *given = getenv("RMMSHIM_LIBRARY");

    if (given && *given) {
        if (realpath(given, path))
            return true;
        snprintf(why, LIBRARY_WHY_BYTES, "RMMSHIM_LIBRARY=%s: %s", given, strerror(errno));
        return false;
    }
    if (library_find_beside(library_places, RS_ARRAY_LENGTH(library_places), path))
        return true;
    snprintf(why, LIBRARY_WHY_BYTES, "librmmshim.so is not beside this command");
    return false;
}

bool library_find(char path[PATH_MAX])
{
    char why[LIBRARY_WHY_BYTES];

    if (library_look(path, why))
        return true;
    tool_say("%s; set RMMSHIM_LIBRARY to the path of librmmshim.so", why);
    return false;
}

bool library_preload(const char *path)
{
    return tool_set_first("LD_PRELOAD", path, ": ");
}

bool library_inject_nvtx(const char *path)
{
    /* The variable that names the one library to which NVTX passes its calls, in a 64-bit process.
     */
    static const char name[] = "NVTX_INJECTION64_PATH";
    const char *before = getenv(name);

    if (!before || !*before || strcmp(before, path) == 0)
        return tool_set(name, path);
    tool_say(
        "%s=%s: NVTX ranges go to that tool alone, so RMM_PHASES=nvtx has no effect; unset %s to "
        "make phases of them",
        name, before, name);
    return true;
}

/* ---- preparing a program for it ---- */

/* Sets the option by which a runtime of AddressSanitizer lets the library be loaded before itself,
 * unless ASAN_OPTIONS already has that option.  The library gives the same default (hook/load.c),
 * but the runtime does not use it if the program defines defaults of its own. */
static bool let_asan_start(void)
{
    static const char any_order[] = "verify_asan_link_order";
    const char *before = getenv("ASAN_OPTIONS");
    char *options;
    bool is_set;

    if (before && strstr(before, any_order))
        return true;
    options =
        tool_format("%s%s%s=0", before ? before : "", before && *before ? ":" : "", any_order);
    is_set = tool_set("ASAN_OPTIONS", options);
    free(options);
    return is_set;
}

int library_check_program(const char *library, const char *program)
{
    struct program_refusal refusal;
    char path[PATH_MAX], *why;
    int failed = program_find(program, path);

    if (failed) {
        why = program_why_not("run", program, failed);
        tool_say("%s", why);
        free(why);
        return failed == ENOENT ? TOOL_RUN_NOT_FOUND : TOOL_RUN_NOT_EXECUTABLE;
    }
    if (program_loads(library, path, &refusal))
        return program_needs_asan(path) && !let_asan_start() ? TOOL_RUN_FAILED : 0;
    tool_say("%s -> %s", refusal.why, refusal.step);
    return TOOL_RUN_FAILED;
}

/* Puts the object in front of LD_PRELOAD, which names the library already.  The program may start
 * other programs, which must be able to load the object too; so this is tried with this command.
 * Returns false, with nothing changed, if any of that fails. */
static bool preload_first(const char *path)
{
    char *before = tool_format("%s", getenv("LD_PRELOAD")), own[PATH_MAX];
    struct load_order order = {.count = 0};
    bool done = realpath("/proc/self/exe", own) && !strpbrk(path, ": ") && library_preload(path) &&
                load_order_read(own, environ, &order) && order.missing == 0;

    load_order_free(&order);
    if (!done)
        (void)tool_set("LD_PRELOAD", before);
    free(before);
    return done;
}

void library_make_way(const char *library, const char *program)
{
    char path[PATH_MAX], runner[PATH_MAX];
    struct load_order order;
    struct namesake found;

    if (program_find(program, path) != 0)
        return;
    (void)load_order_read(program_find_runner(path, runner) ? runner : path, environ, &order);
    for (size_t i = load_order_find(&order, "librmmshim"); i < order.count; i++)
        if (namesake_look(library, order.paths[i], &found))
            tool_say("%s defines %u global variable%s with the names of driver functions (%s): %s",
                     order.paths[i], found.count, found.count == 1 ? "" : "s", found.names,
                     preload_first(order.paths[i])
                         ? "`rmmshim run` has put that file first in LD_PRELOAD, so the program "
                           "does not crash; nothing else needs to be done"
                         : "functions of librmmshim.so take their place, and the program will "
                           "crash: run it without rmmshim");
    load_order_free(&order);
}
