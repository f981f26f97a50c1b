/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/library.h"

#include "base/check.h"
#include "tool/tool.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Relative to the directory of this command: installed, installed without a prefix, and in the
 * build tree. */
static const char *const library_places[] = {
    /* NOLINTNEXTLINE(bugprone-suspicious-missing-comma): one path of three pieces */
    "../" RMMSHIM_LIBDIR "/librmmshim.so",
    "../lib/librmmshim.so",
    "../lib64/librmmshim.so",
    "librmmshim.so",
    "../hook/librmmshim.so",
};

/* ---- the library ---- */

static bool own_directory(char path[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    char *slash;

    if (length <= 0)
        return false;
    path[length] = '\0';
    slash = strrchr(path, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

bool library_find_beside(const char *const *places, size_t count, char path[PATH_MAX])
{
    char directory[PATH_MAX], candidate[2 * PATH_MAX];

    if (!own_directory(directory))
        return false;
    for (size_t i = 0; i < count; i++) {
        snprintf(candidate, sizeof(candidate), "%s/%s", directory, places[i]);
        if (realpath(candidate, path))
            return true;
    }
    return false;
}

bool library_find(char path[PATH_MAX])
{
    const char *given = getenv("RMMSHIM_LIBRARY");

    if (given && *given) {
        if (realpath(given, path))
            return true;
        tool_say("RMMSHIM_LIBRARY=%s: %s", given, strerror(errno));
        return false;
    }
    if (library_find_beside(library_places, RS_ARRAY_LENGTH(library_places), path))
        return true;
    tool_say("librmmshim.so is not beside this command; set RMMSHIM_LIBRARY to its path");
    return false;
}

static bool set_preload(const char *value)
{
    if (setenv("LD_PRELOAD", value, 1) == 0)
        return true;
    tool_say("LD_PRELOAD: %s", strerror(errno));
    return false;
}

bool library_preload(const char *path)
{
    const char *before = getenv("LD_PRELOAD");
    size_t length = strlen(path);
    char *joined;
    bool done;

    if (strpbrk(path, ": ")) {
        tool_say("%s: LD_PRELOAD cannot hold a path with a blank or a colon", path);
        return false;
    }
    if (!before || !*before)
        return set_preload(path);
    if (strncmp(before, path, length) == 0 && strchr(": ", before[length]))
        return true; /* it is there already, as in `rmmshim run rmmshim run` */
    if (asprintf(&joined, "%s:%s", path, before) < 0) {
        tool_say("out of memory");
        return false;
    }
    done = set_preload(joined);
    free(joined);
    return done;
}

/* ---- the program ---- */

struct elf {
    bool is_elf;
    unsigned char class; /* ELFCLASS64 */
    unsigned machine, type;
    bool has_interpreter;       /* the program is linked dynamically */
    char interpreter[PATH_MAX]; /* path of its dynamic linker; "" where it cannot be read */
};

static bool read_interpreter(int fd, const Elf64_Phdr *segment, char path[PATH_MAX])
{
    size_t bytes = segment->p_filesz < PATH_MAX ? segment->p_filesz : PATH_MAX - 1;
    ssize_t got = pread(fd, path, bytes, (off_t)segment->p_offset);

    path[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/* Reads the ELF header.  Program headers are read for 64-bit files only; the fields used of a
 * 32-bit header lie at the same offsets. */
static bool read_elf(const char *path, struct elf *elf)
{
    Elf64_Ehdr header = {.e_phnum = 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got;

    *elf = (struct elf){.is_elf = false};
    if (fd < 0)
        return false;
    got = pread(fd, &header, sizeof(header), 0);
    if (got >= (ssize_t)sizeof(Elf32_Ehdr) && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0) {
        *elf = (struct elf){true, header.e_ident[EI_CLASS], header.e_machine, header.e_type, false,
                            ""};
        for (unsigned i = 0; elf->class == ELFCLASS64 && i < header.e_phnum; i++) {
            Elf64_Phdr segment;
            off_t offset = (off_t)(header.e_phoff + (uint64_t)i * sizeof(segment));
            if (pread(fd, &segment, sizeof(segment), offset) != (ssize_t)sizeof(segment))
                break;
            if (segment.p_type != PT_INTERP)
                continue;
            elf->has_interpreter = true;
            if (!read_interpreter(fd, &segment, elf->interpreter))
                break;
        }
    }
    close(fd);
    return true;
}

/* Searches as execvp does.  Returns 0 and the path; ENOENT; or EACCES when a file was found but
 * none is executable. */
static int find_program(const char *program, char path[PATH_MAX])
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

/* ---- its libc ---- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* Dynamic linkers of other libcs.  They read LD_PRELOAD and end the program because the library
 * needs glibc. */
static const struct {
    const char *begins, *libc;
} other_linkers[] = {
    {"ld-musl-", "musl"},
    {"ld-uClibc", "uClibc"},
    {"ld64-uClibc", "uClibc"},
    {"linker64", "Bionic"},
};

/* Returns the name of the libc that the program is linked with where that is not glibc, else NULL.
 */
static const char *other_libc(const struct elf *program)
{
    const char *linker = base_name(program->interpreter);

    for (size_t i = 0; i < RS_ARRAY_LENGTH(other_linkers); i++)
        if (strncmp(linker, other_linkers[i].begins, strlen(other_linkers[i].begins)) == 0)
            return other_linkers[i].libc;
    return NULL;
}

/* As Linux: bytes read of a script, and scripts that run one another. */
enum { LINE_BYTES = 256, SCRIPTS_MAX = 5 };

/* Reads the first line of a script behind its "#!".  False when the file is no script. */
static bool read_script_line(const char *path, char line[LINE_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got;

    if (fd < 0)
        return false;
    got = pread(fd, line, LINE_BYTES - 1, 0);
    close(fd);
    if (got < 2 || line[0] != '#' || line[1] != '!')
        return false;
    line[got] = '\0';
    line[strcspn(line, "\n")] = '\0';
    memmove(line, line + 2, strlen(line + 2) + 1);
    return true;
}

/* Returns the program that `env` starts: its first word that is no option and no variable; NULL:
 * none. */
static const char *program_of_env(char **rest)
{
    for (char *word; (word = strtok_r(NULL, " \t", rest));)
        if (word[0] != '-' && !strchr(word, '='))
            return word;
    return NULL;
}

static int refuse_other_libc(const char *started, const char *path, const char *libc)
{
    if (strcmp(started, path) == 0)
        tool_say("%s is linked with %s: the library needs glibc", path, libc);
    else
        tool_say("%s is run by %s, which is linked with %s: the library needs glibc", started, path,
                 libc);
    return TOOL_RUN_FAILED;
}

/* Checks the libc of `path` or, where it is a script, of the programs that run it; `started` is the
 * program that the user asked for.  Files that cannot be found or read are left to execvp. */
static int check_libc(const char *started, const char *path, int scripts)
{
    char line[LINE_BYTES], found[PATH_MAX], *rest;
    const char *interpreter, *program;
    struct elf elf;
    int failed;

    if (!read_elf(path, &elf))
        return 0;
    if (elf.is_elf)
        return other_libc(&elf) ? refuse_other_libc(started, path, other_libc(&elf)) : 0;
    if (scripts == SCRIPTS_MAX || !read_script_line(path, line))
        return 0;
    interpreter = strtok_r(line, " \t", &rest);
    failed = interpreter ? check_libc(started, interpreter, scripts + 1) : 0;
    if (failed || !interpreter || strcmp(base_name(interpreter), "env") != 0)
        return failed;
    program = program_of_env(&rest);
    return program && find_program(program, found) == 0 ? check_libc(started, found, scripts + 1)
                                                        : 0;
}

/* ---- whether it loads the library ---- */

static int check_loads(const char *library, const char *path)
{
    struct elf program, shim;
    struct stat status;

    if (stat(path, &status) == 0 && (status.st_mode & S_ISUID) && status.st_uid != getuid()) {
        tool_say("%s runs as another user: the dynamic linker ignores LD_PRELOAD", path);
        return TOOL_RUN_FAILED;
    }
    if (!read_elf(path, &program) || !program.is_elf)
        /* A script, or a program that may be executed but not read. */
        return check_libc(path, path, 0);
    if (!read_elf(library, &shim) || !shim.is_elf) {
        tool_say("%s is not a library", library);
        return TOOL_RUN_FAILED;
    }
    if (program.class != shim.class) {
        tool_say("%s is a %d-bit program: the %d-bit library cannot be loaded into it", path,
                 program.class == ELFCLASS32 ? 32 : 64, shim.class == ELFCLASS32 ? 32 : 64);
        return TOOL_RUN_FAILED;
    }
    if (program.machine != shim.machine) {
        tool_say("%s is for another processor than the library", path);
        return TOOL_RUN_FAILED;
    }
    if (program.type == ET_EXEC && !program.has_interpreter) {
        tool_say("%s is linked statically: no library can be loaded into it", path);
        return TOOL_RUN_FAILED;
    }
    return check_libc(path, path, 0);
}

int library_check_program(const char *library, const char *program)
{
    char path[PATH_MAX];
    int failed = find_program(program, path);

    if (failed) {
        tool_say("%s: %s", program, failed == ENOENT ? "not found" : strerror(failed));
        return failed == ENOENT ? TOOL_RUN_NOT_FOUND : TOOL_RUN_NOT_EXECUTABLE;
    }
    return check_loads(library, path);
}

const char *library_why_ignored(const char *program)
{
    char path[PATH_MAX];
    struct elf elf;
    struct stat status;

    if (find_program(program, path) != 0 || stat(path, &status) != 0)
        return NULL;
    if (((status.st_mode & S_ISGID) && status.st_gid != getgid()) ||
        getxattr(path, "security.capability", NULL, 0) > 0)
        return "the program has more rights than its user: the dynamic linker ignores LD_PRELOAD";
    if (read_elf(path, &elf) && elf.is_elf && !elf.has_interpreter)
        return "the program is linked statically: no library can be loaded into it";
    return NULL;
}
