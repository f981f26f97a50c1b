/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim doctor: says whether memory is served, and if not, why.  This file examines the machine,
 * as a program that is started now would find it. */
#include "base/file.h"
#include "base/process.h"
#include "shared/published.h"
#include "tool/doctor/doctor.h"
#include "tool/process.h"
#include "tool/program.h"
#include "tool/tool.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- findings ---- */

void doctor_add(struct doctor *doctor, bool is_problem, const char *topic, const char *step,
                const char *format, ...)
{
    struct rs_node *finding = rs_node_object(doctor->findings, NULL), *said;
    char text[DOCTOR_TEXT_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    finding->line = "[{problem?}  !][{problem!}  -] {topic}: {text}[ -> {step}]\n";
    rs_node_word(finding, "topic", topic);
    rs_node_flag(finding, "problem", is_problem);
    said = rs_node_text(finding, "text", text);
    rs_node_word(finding, "step", step ? step : "");
    if (is_problem && !doctor->has_problem)
        doctor->reason->text = said->text;
    doctor->has_problem |= is_problem;
}

/* ---- settings ---- */

static void add_bad_setting(void *data, const char *line)
{
    doctor_problem(data, "settings",
                   "correct the variable; `rmmshim check` shows what the variables do", "%s", line);
}

unsigned doctor_parse(char *const *environment, struct rs_diagnostics *diagnostics,
                      struct rs_config *config)
{
    char **own = environ;
    unsigned bad;

    environ = (char **)(uintptr_t)environment; /* getenv reads this variable */
    bad = rs_config_parse(environment, diagnostics, config);
    environ = own;
    return bad;
}

bool doctor_settings(struct doctor *doctor, char *const *environment, bool *asks)
{
    struct rs_diagnostics diagnostics = {
        .write = add_bad_setting, .data = doctor, .doubts_are_errors = true};
    struct rs_config config;
    unsigned bad = doctor_parse(environment, &diagnostics, &config);

    *asks = config.anything_set;
    rs_config_free(&config);
    return bad == 0;
}

enum { NAMES_BYTES = 512 };

/* Writes the names of a process.  The executable's name, which comes first, is not written again
 * where the command line has it, usually as the first word. */
static void put_names(const struct rs_program_names *process, char *text, size_t room)
{
    size_t at = 0;
    const char *executable = rs_program_names_next(process, &at), *name;

    snprintf(text, room, "%s", executable);
    while ((name = rs_program_names_next(process, &at)))
        if (strcmp(name, executable) != 0)
            rs_text_add(text, room, ", %s", name);
}

bool doctor_program_filter(struct doctor *doctor, const char *patterns,
                           const struct rs_program_names *process, bool has_arguments)
{
    char names[NAMES_BYTES];

    if (rs_program_filter_serves(patterns, process))
        return true;
    put_names(process, names, sizeof(names));
    doctor->is_unseen = !has_arguments;
    doctor_problem(
        doctor, "only",
        has_arguments
            ? "add its name to RMM_ONLY (`rmmshim run --only`), or unset RMM_ONLY"
            : "give the program's arguments, too, as in `rmmshim doctor python3 train.py`",
        has_arguments
            ? "RMM_ONLY=%s does not match this program (%s): the library does nothing in it"
            : "RMM_ONLY=%s does not match this program (%s), but may match its arguments, which "
              "doctor was not given",
        patterns, names);
    return false;
}

/* ---- the driver in the wrong place ---- */

void doctor_driver_first(struct doctor *doctor, const struct load_order *order)
{
    size_t driver = load_order_find(order, "libcuda.so"),
           ours = load_order_find(order, "librmmshim");

    if (driver < ours && ours < order->count)
        doctor_problem(
            doctor, "preload", "name librmmshim.so first in LD_PRELOAD, or use `rmmshim run`",
            "%s comes before librmmshim.so: what the program allocates by calling the driver "
            "directly is neither served nor limited",
            order->paths[driver]);
}

void doctor_namesake(struct doctor *doctor, bool is_problem, const char *path,
                     const struct namesake *found, const char *when)
{
    doctor_add(
        doctor, is_problem, "names",
        "load that file first: LD_PRELOAD=THAT-FILE:librmmshim.so (`rmmshim run` does so if the "
        "program is linked with it)",
        "%s defines %u global variable%s with the names of driver functions (%s): %sthe program "
        "finds functions of librmmshim.so in place of the variables, and crashes",
        path, found->count, found->count == 1 ? "" : "s", found->names, when);
}

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* since Linux 5.1 */
#endif

/* ---- libraries, loaded by a child process ---- */

/* The longest that loading a library may take; one that takes longer is broken. */
enum { CHILD_SECONDS = 20 };

static const char driver_name[] = "libcuda.so.1";

/* The result of a child process. */
struct answer {
    bool is_loaded, is_refused; /* is_refused: by the dynamic linker */
    bool is_slow;               /* loading it took more than CHILD_SECONDS */
    int version;                /* the driver's version; 0: not known */
    char text[PATH_MAX + 256];  /* the library's path, or why it cannot be loaded */
};

static void try_to_load(const char *name, struct answer *answer)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    int (*get_version)(int *version);
    struct link_map *map = NULL;
    char path[PATH_MAX];

    answer->is_loaded = library != NULL;
    answer->is_refused = !library;
    if (!library) {
        snprintf(answer->text, sizeof(answer->text), "%s", dlerror());
        return;
    }
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && realpath(map->l_name, path))
        snprintf(answer->text, sizeof(answer->text), "%s", path);
    if (name != driver_name)
        return; /* only the driver has a version; librmmshim.so has a function of that name too,
                   which would load the driver */
    get_version = (int (*)(int *))(uintptr_t)dlsym(library, "cuDriverGetVersion");
    if (get_version && get_version(&answer->version) != 0)
        answer->version = 0;
}

static void be_child(int to, const char *name)
{
    struct answer answer = {.is_loaded = false};

    tool_let_end(SIGALRM);
    alarm(CHILD_SECONDS);
    try_to_load(name, &answer);
    _exit(write(to, &answer, sizeof(answer)) == (ssize_t)sizeof(answer) ? 0 : 1);
}

/* Has a child process load the library, so that a library that crashes or hangs becomes a finding.
 */
static void ask_child(const char *name, struct answer *answer)
{
    int ends[2], status = 0;
    ssize_t got;
    pid_t child;

    *answer = (struct answer){.is_loaded = false};
    if (pipe(ends) != 0)
        return;
    (void)fflush(stdout);
    child = fork();
    if (child == 0)
        be_child(ends[1], name);
    close(ends[1]);
    got = child < 0 ? -1 : read(ends[0], answer, sizeof(*answer));
    close(ends[0]);
    if (child > 0)
        (void)waitpid(child, &status, 0);
    if (got == (ssize_t)sizeof(*answer))
        return;
    *answer = (struct answer){.is_loaded = false};
    answer->is_slow = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
    if (answer->is_slow)
        snprintf(answer->text, sizeof(answer->text), "loading %s takes more than %d s", name,
                 CHILD_SECONDS);
    else
        snprintf(answer->text, sizeof(answer->text), "loading %s ends the process%s%s", name,
                 WIFSIGNALED(status) ? ": " : "",
                 WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "");
}

bool driver_can_be_loaded(void)
{
    struct answer answer;

    ask_child(driver_name, &answer);
    return answer.is_loaded;
}

static void add_library(struct doctor *doctor)
{
    char path[PATH_MAX], why[LIBRARY_WHY_BYTES];
    struct answer answer;

    if (!library_look(path, why)) {
        doctor_problem(doctor, "library",
                       "install rmmshim, or set RMMSHIM_LIBRARY to the path of librmmshim.so", "%s",
                       why);
        return;
    }
    ask_child(path, &answer);
    if (answer.is_loaded)
        doctor_note(doctor, "library", NULL, "%s can be loaded with this machine's glibc %s", path,
                    gnu_get_libc_version());
    else if (answer.is_refused)
        doctor_problem(
            doctor, "library",
            "build the library on this machine, or use one that is built for this glibc version or "
            "an older one",
            "librmmshim.so cannot be loaded: %s (this machine has glibc %s)", answer.text,
            gnu_get_libc_version());
    else
        doctor_problem(doctor, "library",
                       answer.is_slow
                           ? "install rmmshim on a local disk: the disk of this file may be slow"
                           : "install rmmshim again: the file may be damaged",
                       "%s", answer.text);
}

static void add_driver(struct doctor *doctor)
{
    struct answer answer;

    ask_child(driver_name, &answer);
    if (answer.version)
        doctor_note(doctor, "driver", NULL, "%s, for CUDA %d.%d", answer.text,
                    answer.version / 1000, answer.version % 1000 / 10);
    else
        doctor_problem(
            doctor, "driver",
            answer.is_loaded
                ? "if this file is the stub of the CUDA toolkit, remove its folder from "
                  "LD_LIBRARY_PATH; otherwise install NVIDIA's driver again"
                : "install NVIDIA's driver; in a container: start the container with --gpus all",
            "libcuda.so.1 cannot be used: %s%s",
            answer.is_loaded ? "cuDriverGetVersion fails in " : "",
            *answer.text ? answer.text : "no answer");
}

/* ---- files ---- */

static bool read_first_line(const char *path, char *line, size_t bytes)
{
    bool is_read = rs_file_text(path, line, bytes) > 0;

    line[strcspn(line, "\n")] = '\0';
    return is_read;
}

/* ---- the GPU ---- */

static void add_devices(struct doctor *doctor)
{
    glob_t found;
    char line[256];

    if (read_first_line("/proc/driver/nvidia/version", line, sizeof(line)))
        doctor_note(doctor, "driver", NULL, "kernel module: %s", line);
    if (glob("/dev/nvidia[0-9]*", 0, NULL, &found) != 0) {
        doctor_note(doctor, "device", "in a container: start it with --gpus all",
                    "there is no /dev/nvidia0: this machine has no GPU, its container was started "
                    "without one, or it reaches its GPU without this file, as in WSL");
        return;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        if (access(found.gl_pathv[i], R_OK | W_OK) == 0)
            doctor_note(doctor, "device", NULL, "%s", found.gl_pathv[i]);
        else
            doctor_problem(doctor, "device", "give the user permission to read and write the file",
                           "%s: %s", found.gl_pathv[i], strerror(errno));
    }
    globfree(&found);
}

/* Adds a finding if a device is split by MIG: each instance then has a folder of capabilities. */
static void add_mig(struct doctor *doctor)
{
    glob_t found;

    if (glob("/proc/driver/nvidia/capabilities/gpu*/mig/gi*", 0, NULL, &found) != 0)
        return;
    doctor_note(doctor, "mig", NULL,
                "%zu MIG instance%s: each is a device of its own, and RMM_LIMIT holds for each",
                found.gl_pathc, found.gl_pathc == 1 ? "" : "s");
    globfree(&found);
}

/* Returns the number of the first process whose name begins with `name`; 0: none. */
static int find_process(const char *name)
{
    size_t count;
    int *numbers = process_list(&count), found = 0;
    char comm[RS_PROCESS_TEXT_BYTES];

    if (!numbers)
        tool_say("/proc: %s", strerror(errno));
    for (size_t i = 0; numbers && i < count && !found; i++)
        if (rs_process_read(numbers[i], "comm", comm) && strncmp(comm, name, strlen(name)) == 0)
            found = numbers[i];
    free(numbers);
    return found;
}

static void add_mps(struct doctor *doctor)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    /* The kernel keeps only 15 letters of a process's name. */
    int daemon = find_process("nvidia-cuda-mps");

    if (daemon)
        doctor_note(doctor, "mps", NULL,
                    "MPS is running (process %d): if a limit is set for MPS "
                    "(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT), it applies in addition to RMM_LIMIT",
                    daemon);
    else if (directory && *directory)
        doctor_note(doctor, "mps",
                    "start the MPS daemon with nvidia-cuda-mps-control -d, or unset "
                    "CUDA_MPS_PIPE_DIRECTORY",
                    "CUDA_MPS_PIPE_DIRECTORY=%s, but no MPS daemon is seen here", directory);
}

/* ---- limits of the kernel ---- */

/* Adds the limits of one cgroup, from its file dmem.max, whose lines are "REGION BYTES|max". */
static void add_dmem_of(struct doctor *doctor, const char *directory)
{
    char path[PATH_MAX + 64], region[256], limit[32];
    FILE *file;

    snprintf(path, sizeof(path), "%s/dmem.max", directory);
    file = fopen(path, "re");
    while (file && fscanf(file, "%255s %31s", region, limit) == 2)
        if (strcmp(limit, "max") != 0)
            doctor_note(doctor, "cgroup",
                        "set RMM_LIMIT below this limit, so that rmmshim gives back unused memory "
                        "before the kernel refuses an allocation",
                        "the kernel limits this cgroup's device memory %s to %s (%s)", region,
                        tool_bytes(strtoull(limit, NULL, 10)), path);
    if (file)
        (void)fclose(file);
}

/* Adds the limits of this process's cgroup and of the cgroups around it. */
static void add_dmem(struct doctor *doctor)
{
    static const char root[] = "/sys/fs/cgroup";
    char line[PATH_MAX], directory[PATH_MAX + sizeof(root)], *slash;

    if (!read_first_line("/proc/self/cgroup", line, sizeof(line)) || strncmp(line, "0::/", 4) != 0)
        return;
    snprintf(directory, sizeof(directory), "%s%s", root, line + strlen("0::"));
    while (strlen(directory) >= strlen(root)) {
        add_dmem_of(doctor, directory);
        slash = strrchr(directory, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
}

static bool can_seal(void)
{
    int fd = memfd_create("rmmshim-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool can = fd >= 0 && ftruncate(fd, 1) == 0 &&
               fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE) == 0;

    if (fd >= 0)
        close(fd);
    return can;
}

enum { FILES_NEEDED = 64 };

static void add_page_limits(struct doctor *doctor)
{
    struct rlimit files;

    if (!can_seal())
        doctor_note(doctor, "counters", "use Linux 5.1 or later",
                    "memory is served, but this kernel cannot protect the counters that a process "
                    "publishes: other processes of this user can change them");
    if (getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur < RS_PUBLISHED_BYTES)
        doctor_note(doctor, "counters", "set `ulimit -f unlimited`",
                    "memory is served, but commands can neither show nor control a process: it "
                    "publishes its counters in a file of %d MiB, and the limit on file sizes is "
                    "lower",
                    RS_PUBLISHED_BYTES >> 20);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < FILES_NEEDED) {
        doctor->is_unseen = !doctor->has_problem;
        doctor_problem(
            doctor, "files", "set `ulimit -n 1024`",
            "the limit on open files is %llu, which may be too low: the driver and the library "
            "keep files open",
            (unsigned long long)files.rlim_cur);
    }
}

/* ---- all of it ---- */

static void add_environment(struct doctor *doctor)
{
    const char *preload = getenv("LD_PRELOAD");
    const char *only = getenv(rs_variables[RS_VARIABLE_ONLY].option.name);
    bool asks = false;

    if (preload && *preload)
        doctor_note(doctor, "preload", NULL, "LD_PRELOAD=%s", preload);
    if (only && *only)
        doctor_note(doctor, "only",
                    "`rmmshim doctor PROGRAM` tells whether RMM_ONLY matches PROGRAM",
                    "RMM_ONLY=%s: the library does nothing in programs with other names", only);
    if (doctor_settings(doctor, environ, &asks))
        doctor_note(doctor, "settings", asks ? NULL : "rmmshim run --pool-size 4GiB PROGRAM",
                    asks ? "the RMM_ variables of the environment are valid"
                         : "no RMM_ variable asks for a pool, a limit or a report");
}

static void look_at_machine(struct doctor *doctor)
{
    doctor->good = "rmmshim can be used on this machine: start programs with `rmmshim run`";
    add_library(doctor);
    add_driver(doctor);
    add_devices(doctor);
    add_mig(doctor);
    add_mps(doctor);
    add_dmem(doctor);
    add_environment(doctor);
    add_page_limits(doctor);
}

/* ---- a diagnosis ---- */

static void begin_diagnosis(struct doctor *doctor, const char *kind, const char *subject)
{
    struct rs_node *root = &doctor->document.root;

    rs_document_begin(&doctor->document);
    rs_node_count(root, "schema", 1);
    rs_node_word(root, "kind", kind);
    rs_node_word(root, "subject", subject);
    doctor->verdict = rs_node_word(root, "verdict", "served");
    doctor->reason = rs_node_word(root, "reason", "");
    doctor->findings = rs_node_list(root, "findings");
}

/* Derives the verdict from the findings, and the first line of the text, which says it. */
static void judge_findings(struct doctor *doctor)
{
    struct rs_node *root = &doctor->document.root;

    if (!doctor->has_problem) {
        root->line = rs_document_format(&doctor->document, "%s\n", doctor->good);
        return;
    }
    doctor->verdict->text = doctor->is_unseen ? "unknown" : doctor->is_served ? "partly" : "not";
    root->line = doctor->is_unseen   ? "it is not known whether GPU memory is served: {reason}\n"
                 : doctor->is_served ? "GPU memory is served only in part: {reason}\n"
                                     : "GPU memory is not served: {reason}\n";
}

static int examine_subject(const char *subject, char *const *arguments, bool as_json)
{
    static struct doctor doctor;
    bool is_printed;

    if (!subject) {
        begin_diagnosis(&doctor, "machine", "");
        look_at_machine(&doctor);
    } else if (rs_process_parse(subject)) {
        begin_diagnosis(&doctor, "process", subject);
        doctor_process(&doctor, rs_process_parse(subject));
    } else {
        begin_diagnosis(&doctor, "program", subject);
        doctor_program(&doctor, subject, arguments);
    }
    judge_findings(&doctor);
    is_printed = tool_show(&doctor.document.root, as_json);
    rs_document_release(&doctor.document);
    return doctor.has_problem || !is_printed ? TOOL_FINDING : TOOL_OK;
}

/* ---- the command ---- */

/* Words after a program are arguments of the program, except `--json` as the last one. */
static int doctor_command(char **arguments)
{
    const char *subject;
    bool as_json = false;
    const struct tool_option options[] = {{.name = "--json", .flag = &as_json}, {.name = NULL}};
    size_t count = 0;

    arguments = tool_take_leading_options(arguments, options);
    if (!arguments)
        return TOOL_USAGE;
    subject = *arguments;
    if (!subject)
        return examine_subject(NULL, NULL, as_json);
    if (!*subject) {
        tool_say("the program's name is empty");
        return TOOL_USAGE;
    }
    for (arguments++; arguments[count]; count++)
        ;
    if (count > 0 && strcmp(arguments[count - 1], "--json") == 0) {
        as_json = true;
        arguments[--count] = NULL;
    }
    if (rs_process_parse(subject) && !tool_has_no_more(arguments))
        return TOOL_USAGE;
    return examine_subject(subject, arguments, as_json);
}

const struct tool_command tool_doctor = {
    .name = "doctor",
    .arguments = "[--json] [PID|PROGRAM] [ARGUMENTS...]",
    .summary = "Says whether rmmshim works for a process, for a program or on this machine, and if "
               "not, why",
    .run = doctor_command,
    .help =
        "The first line says whether rmmshim serves GPU memory and, if not, why. Each line\n"
        "after it tells one fact: '!' marks a fact that keeps memory from being served, and\n"
        "'->' is followed by the setting or step that would change the fact.\n\n"
        "  PID      a running process: shows what it has loaded, and which memory rmmshim does\n"
        "           not serve\n"
        "  PROGRAM  a program that is not started yet, and its arguments: checks whether the\n"
        "           library can be loaded into the program\n"
        "  (none)   this machine: library, driver, devices, MIG, MPS, limits, RMM_ variables\n"
        "  --json   print JSON; give it before PID or PROGRAM, or as the last word\n\n"
        "A program whose name is a number is given with a slash: ./4711.  If the command\n"
        "python is a script, as under pyenv, doctor runs the script to find out which interpreter\n"
        "it starts.\n\n"
        "exit codes: 0 memory is served, or would be; 1 it is not, only in part, or that is\n"
        "not known; 2 wrong usage\n\n"
        "example: rmmshim doctor python3 train.py",
};
