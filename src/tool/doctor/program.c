/* SPDX-License-Identifier: Apache-2.0 */
/* `rmmshim doctor PROGRAM`: what a program's file tells before it is run. */
#include "tool/program.h"
#include "tool/doctor/doctor.h"
#include "tool/tool.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the interpreter behind a script ---- */

enum { CHILD_SECONDS = 20 }; /* the longest that a script may take */

/* pyenv and asdf install scripts under the name of Python, which choose an interpreter by settings
 * of their own. If `path` is such a script, runs it to find the interpreter. The options -I and -S
 * keep the interpreter from running any file of the user. */
static bool find_started_python(const char *path, char found[PATH_MAX])
{
    char *words[] = {(char *)(uintptr_t)path,
                     (char *)(uintptr_t) "-I",
                     (char *)(uintptr_t) "-S",
                     (char *)(uintptr_t) "-c",
                     (char *)(uintptr_t) "import sys; print(sys.executable, end='')",
                     NULL};
    char runner[PATH_MAX];
    FILE *output;
    pid_t child;

    *found = '\0';
    if (!tool_begins(basename(path), "python") || !program_find_runner(path, runner))
        return false;
    output = tool_start(words, environ, CHILD_SECONDS, &child);
    if (!output)
        return false;
    found[fread(found, 1, PATH_MAX - 1, output)] = '\0';
    tool_end(output, child);
    return *found == '/' && access(found, X_OK) == 0;
}

/* ---- the file ---- */

/* Adds how the program uses CUDA, as far as its file tells.  A static runtime is recognised by the
 * names of its errors, which stay in a stripped program. */
static void add_way(struct doctor *doctor, const char *path)
{
    char name[ELF_NAME_BYTES];
    bool needs_driver = false, needs_runtime = false, names_driver, has_runtime;
    struct elf_file elf;

    if (!elf_open(path, &elf))
        return;
    for (size_t at = 0; elf.is_elf && elf_next_needed(&elf, &at, name);) {
        bool is_driver = tool_begins(name, "libcuda.so"),
             is_runtime = tool_begins(name, "libcudart");
        if (is_driver || is_runtime)
            doctor_note(doctor, is_driver ? "driver" : "runtime", NULL, "%s needs %s", path, name);
        needs_driver |= is_driver;
        needs_runtime |= is_runtime;
    }
    names_driver = elf.is_elf && elf_contains(&elf, "libcuda.so");
    has_runtime = names_driver && elf_contains(&elf, "cudaErrorMemoryAllocation");
    elf_close(&elf);
    if (has_runtime && !needs_runtime)
        doctor_note(doctor, "runtime", NULL, "%s contains a CUDA runtime (libcudart_static)", path);
    else if (!needs_driver && !needs_runtime && names_driver)
        doctor_note(doctor, "driver", NULL,
                    "%s contains the name libcuda.so, so it may load the driver with dlopen, "
                    "which rmmshim serves as well",
                    path);
    else if (!needs_driver && !needs_runtime)
        doctor_note(doctor, "driver",
                    "run `rmmshim doctor PID` while the program runs, to see what it has loaded",
                    "%s uses neither libcuda nor a CUDA runtime itself; it may load a library "
                    "that does, as Python programs do",
                    path);
}

/* True for a library. A program is searched first anyway, so its variables are safe. */
static bool is_library(const char *path)
{
    struct elf_file elf;

    if (!elf_open(path, &elf))
        return false;
    elf_close(&elf);
    return elf.is_elf && !elf.has_interpreter;
}

static void look_at_names_in(struct doctor *doctor, const char *library, const char *path)
{
    struct namesake found;

    if (namesake_look(library, path, &found))
        doctor_namesake(doctor, false, path, &found,
                        "if librmmshim.so is loaded before that file, ");
}

/* Examines the order of loading as `run` would start the program, or, if LD_PRELOAD already names
 * the library, as it is started now. */
static void look_at_load_order(struct doctor *doctor, const char *library, const char *path)
{
    const char *preload = getenv("LD_PRELOAD");
    struct load_order order;

    if (!(preload && strstr(preload, "librmmshim")) && !library_preload(library))
        return;
    if (load_order_read(path, environ, &order)) {
        doctor_driver_first(doctor, &order);
        for (size_t i = load_order_find(&order, "librmmshim"); i < order.count; i++)
            look_at_names_in(doctor, library, order.paths[i]);
    }
    if (is_library(path))
        look_at_names_in(doctor, library, path);
    load_order_free(&order);
}

/* True for a shell.  A shell script usually starts another program, and its file does not tell
 * which. */
static bool is_shell(const char *runner)
{
    return fnmatch("@(sh|bash|dash|ksh|zsh|busybox)", basename(runner), FNM_EXTMATCH) == 0;
}

static void note_runner(struct doctor *doctor, const char *path, const char *runner)
{
    doctor_note(doctor, "program", NULL, "%s is run by %s", path, runner);
    if (is_shell(runner))
        doctor_note(doctor, "program",
                    "run `rmmshim doctor` with the program that the script starts",
                    "%s is a shell script: the programs that it starts are not examined", path);
}

/* Examines the program's file.  False, with a problem added, if the library is not found or cannot
 * be loaded into the program. */
static bool look_at_file(struct doctor *doctor, const char *path)
{
    char library[PATH_MAX], why[LIBRARY_WHY_BYTES], runner[PATH_MAX], python[PATH_MAX];
    struct program_refusal refusal;

    if (!library_look(library, why)) {
        doctor_problem(doctor, "library",
                       "install rmmshim, or set RMMSHIM_LIBRARY to the path of librmmshim.so", "%s",
                       why);
        return false;
    }
    if (find_started_python(path, python)) {
        doctor_note(doctor, "program", NULL, "%s starts %s", path, python);
        path = python;
    }
    if (!program_loads(library, path, &refusal)) {
        doctor_problem(doctor, "program", refusal.step, "%s", refusal.why);
        return false;
    }
    if (program_find_runner(path, runner)) {
        note_runner(doctor, path, runner);
        path = runner;
    }
    if (access(path, R_OK) != 0)
        doctor_note(doctor, "program", NULL,
                    "this user may execute but not read %s, so its use of CUDA is not known", path);
    else
        add_way(doctor, path);
    look_at_load_order(doctor, library, path);
    return true;
}

static bool look_at_names(struct doctor *doctor, const char *name, char *const *arguments,
                          const char *path)
{
    struct rs_program_names process;

    program_names(name, arguments, path, &process);
    return doctor_program_filter(doctor, getenv(rs_variables[RS_VARIABLE_ONLY].option.name),
                                 &process, *arguments != NULL);
}

static void explain_not_found(struct doctor *doctor, const char *name, int failed)
{
    char *why = program_why_not("doctor", name, failed);

    doctor_problem(doctor, "program", NULL, "%s", why);
    free(why);
}

void doctor_program(struct doctor *doctor, const char *name, char *const *arguments)
{
    char path[PATH_MAX];
    int failed = program_find(name, path);
    bool asks = false;

    doctor->good = "GPU memory would be served under `rmmshim run`";
    if (failed)
        explain_not_found(doctor, name, failed);
    else if (look_at_file(doctor, path) && look_at_names(doctor, name, arguments, path) &&
             doctor_settings(doctor, environ, &asks) && !asks)
        doctor_note(doctor, "settings", "rmmshim run --pool-size 4GiB PROGRAM",
                    "no RMM_ variable of the environment asks for a pool, a limit or a report, so "
                    "`rmmshim run` needs an option that does");
}
