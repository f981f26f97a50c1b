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
#include <unistd.h>

/* Relative to the directory of this command: installed, installed flat, and in the build tree. */
static const char *const library_places[] = {
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

bool library_find(char path[PATH_MAX])
{
    const char *given = getenv("RMMSHIM_LIBRARY");
    char directory[PATH_MAX], candidate[2 * PATH_MAX];

    if (given && *given) {
        if (realpath(given, path))
            return true;
        tool_say("RMMSHIM_LIBRARY=%s: %s", given, strerror(errno));
        return false;
    }
    if (own_directory(directory)) {
        for (size_t i = 0; i < RS_ARRAY_LENGTH(library_places); i++) {
            snprintf(candidate, sizeof(candidate), "%s/%s", directory, library_places[i]);
            if (realpath(candidate, path))
                return true;
        }
    }
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
        return true; /* `rmmshim run rmmshim run` */
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
    bool has_interpreter; /* is linked dynamically */
};

/* Only the header's fields of our own class are looked at closely; the class is checked first. */
static bool read_elf(const char *path, struct elf *elf)
{
    Elf64_Ehdr header = {.e_phnum = 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;

    *elf = (struct elf){.is_elf = false};
    if (fd < 0)
        return false;
    got = pread(fd, &header, sizeof(header), 0);
    if (got >= (ssize_t)sizeof(Elf32_Ehdr) && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0) {
        *elf = (struct elf){true, header.e_ident[EI_CLASS], header.e_machine, header.e_type, false};
        for (unsigned i = 0; elf->class == ELFCLASS64 && i < header.e_phnum; i++) {
            Elf64_Phdr segment;
            off_t offset = (off_t)(header.e_phoff + (uint64_t)i * sizeof(segment));
            if (pread(fd, &segment, sizeof(segment), offset) != (ssize_t)sizeof(segment))
                break;
            elf->has_interpreter = elf->has_interpreter || segment.p_type == PT_INTERP;
        }
    }
    close(fd);
    return true;
}

/* As execvp searches: 0 and the path, ENOENT, or EACCES when all that was found is not executable.
 */
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

static int check_loads(const char *library, const char *path)
{
    struct elf program, shim;
    struct stat status;

    if (stat(path, &status) == 0 && (status.st_mode & S_ISUID) && status.st_uid != getuid()) {
        tool_say("%s runs as another user: the dynamic linker ignores LD_PRELOAD", path);
        return TOOL_RUN_FAILED;
    }
    if (!read_elf(path, &program) || !program.is_elf)
        return 0; /* a script, or one that may be run but not read */
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
    return 0;
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
