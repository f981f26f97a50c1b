/* SPDX-License-Identifier: Apache-2.0 */
/* `rmmshim doctor PID`: what a running process has loaded, and what the counters show that it
 * publishes in memory (its page, shared/published.h). */
#include "tool/process.h"
#include "base/file.h"
#include "shared/published.h"
#include "tool/advice.h"
#include "tool/doctor/doctor.h"
#include "tool/program.h"
#include "tool/tool.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* The process that is examined. */
struct target_process {
    struct doctor *doctor;
    struct process process;
    char directory[PROCESS_PATH_BYTES]; /* its directory in /proc, by process.directory */
    char **environment; /* the variables with which it was started, as an array like environ; NULL:
                           unreadable */
    bool has_library, has_driver, has_torch;
    struct load_order files; /* the files that are mapped with code */
};

static const char start_step[] =
    "start the program with `rmmshim run` and an option such as --pool-size";

/* ---- what /proc says ---- */

/* Returns the value of a variable of the process; NULL: not set, or not readable. */
static const char *variable_of(void *target, const char *name)
{
    return tool_variable(((const struct target_process *)target)->environment, name);
}

/* True when the kernel started the process with more rights than its parent has (AT_SECURE). */
static bool is_secure(const struct target_process *target)
{
    Elf64_auxv_t entries[64] = {{.a_type = AT_NULL}};
    const Elf64_auxv_t *entry = entries;
    char path[PROCESS_PATH_BYTES];

    (void)rs_file_text(process_path(&target->process, "/auxv", path), (char *)entries,
                       sizeof(entries) - sizeof(*entry));
    while (entry->a_type != AT_NULL && entry->a_type != AT_SECURE)
        entry++;
    return entry->a_type == AT_SECURE && entry->a_un.a_val;
}

static bool read_executable(const struct process *process, char path[PATH_MAX])
{
    ssize_t length = readlinkat(process->directory, "exe", path, PATH_MAX - 1);

    path[length > 0 ? length : 0] = '\0';
    return length > 0;
}

/* ---- its libraries ---- */

/* True for a CUDA runtime inside a Python package, which only that package uses. */
static bool is_bundled(const char *path)
{
    return strstr(path, "/site-packages/") || strstr(path, "/dist-packages/") ||
           strstr(path, "/torch/lib/");
}

static void note_library(struct target_process *target, const char *path)
{
    static const char host_memory[] = ", which is harmless: it serves host memory, not GPU memory";
    const char *name = basename(path), *step = NULL;
    bool is_deleted = strstr(name, "(deleted)");
    const struct {
        const char *begin, *topic, *more;
        bool *has;
    } rows[] = {
        {"librmmshim", "library", is_deleted ? ", but its file was replaced or removed" : "",
         &target->has_library},
        {"libcuda.so", "driver", "", &target->has_driver},
        {"libcudart", "runtime",
         is_bundled(path) ? ", which belongs to a Python package and is served like any other" : "",
         NULL},
        {"libtorch_cuda", "framework", "", &target->has_torch},
        {"libc10_cuda", "framework", "", &target->has_torch},
        {"libjemalloc", "preload", host_memory, NULL},
        {"libtcmalloc", "preload", host_memory, NULL},
        {"libmimalloc", "preload", host_memory, NULL},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(rows); i++) {
        if (!tool_begins(name, rows[i].begin))
            continue;
        if (rows[i].has)
            *rows[i].has = true;
        if (rows[i].has == &target->has_library && is_deleted)
            step = "start the program again to use the new file";
        doctor_note(target->doctor, rows[i].topic, step, "%s is loaded%s", path, rows[i].more);
        return;
    }
}

/* Notes the libraries that matter to GPU memory by their paths, which show their versions. */
static void read_libraries(struct target_process *target)
{
    FILE *maps = process_file(target->directory, "maps");
    struct process_mapping mapping = {.line = NULL};
    char *last = NULL; /* the segments of one library are on consecutive lines */

    while (process_next_mapping(maps, &mapping)) {
        if (*mapping.name != '/')
            continue;
        if (!last || strcmp(mapping.name, last) != 0) {
            free(last);
            last = tool_format("%s", mapping.name);
            note_library(target, mapping.name);
        }
        if (mapping.has_code)
            load_order_add(&target->files, mapping.name);
    }
    free(last);
}

/* ---- preloaded libraries ---- */

/* Adds a finding about each entry before the library in LD_PRELOAD, and copies the library's own
 * entry to `ours`.  False, with an empty copy, if LD_PRELOAD does not name the library. */
static bool find_in_preload(struct target_process *target, char ours[PATH_MAX])
{
    const char *list = variable_of(target, "LD_PRELOAD");
    char word[PATH_MAX];

    *ours = '\0';
    for (; list && *list; list += strcspn(list, ": ")) {
        const char *name;
        list += strspn(list, ": ");
        if (!*list)
            break;
        snprintf(word, sizeof(word), "%.*s", (int)strcspn(list, ": "), list);
        name = basename(word);
        if (tool_begins(name, "librmmshim")) {
            snprintf(ours, PATH_MAX, "%s", word);
            return true;
        }
        if (fnmatch("lib@(a|t|l|ub|m)san*", name, FNM_EXTMATCH) == 0)
            doctor_note(target->doctor, "preload", NULL,
                        "%s comes before librmmshim.so, which is right for a sanitizer's runtime",
                        name);
        else
            doctor_note(target->doctor, "preload",
                        "put librmmshim.so first in LD_PRELOAD if rmmshim misses calls",
                        "%s is loaded before librmmshim.so: of two functions with the same name, "
                        "the program calls the one that is loaded first",
                        word);
    }
    return false;
}

/* ---- why the library is not loaded ---- */

static void explain_not_loaded(struct target_process *target)
{
    struct doctor *doctor = target->doctor;
    char library[PATH_MAX], path[PATH_MAX], why[LIBRARY_WHY_BYTES], ours[PATH_MAX];
    struct program_refusal refusal;
    bool is_named = find_in_preload(target, ours);

    if (is_secure(target))
        doctor_problem(
            doctor, "loader",
            "start the program as an ordinary user, without setuid, setgid or capabilities",
            "the process runs with elevated privileges, so the dynamic linker ignores LD_PRELOAD");
    if (library_look(library, why) && read_executable(&target->process, path) &&
        !program_loads(library, path, &refusal))
        doctor_problem(doctor, "loader", refusal.step, "%s", refusal.why);
    if (!is_named && !target->environment)
        doctor_problem(
            doctor, "preload", start_step,
            "librmmshim.so is not loaded; why is not known, because the environment of the process "
            "cannot be read");
    else if (!is_named)
        doctor_problem(doctor, "preload", start_step,
                       "the process was started without the library: its LD_PRELOAD does not name "
                       "librmmshim.so");
    else if (access(ours, R_OK) != 0 && *ours == '/')
        doctor_problem(doctor, "preload",
                       "correct LD_PRELOAD (`rmmshim path` prints the library's path), or start "
                       "the program with `rmmshim run`",
                       "LD_PRELOAD names %s: %s", ours, strerror(errno));
    else
        doctor_problem(doctor, "preload",
                       "run the program with LD_DEBUG=libs to see what the dynamic linker does",
                       "LD_PRELOAD names %s, but the library is not loaded", ours);
}

/* ---- what is in the wrong place ---- */

/* True when one of the first `count` objects is that file, possibly by a link. */
static bool is_among(const struct load_order *order, size_t count, const char *path)
{
    char real[PATH_MAX];

    for (size_t i = 0; i < count && i < order->count; i++)
        if (realpath(order->paths[i], real) && strcmp(real, path) == 0)
            return true;
    return false;
}

/* Reads the order in which the process's objects were loaded at its start.  False if its
 * environment or program file cannot be read, or if that file is not the one that this command sees
 * at the same path, as for a process in a container. */
static bool read_order(struct target_process *target, struct load_order *order)
{
    char path[PATH_MAX];
    struct stat its, ours;

    *order = (struct load_order){.count = 0};
    return target->environment && read_executable(&target->process, path) &&
           fstatat(target->process.directory, "exe", &its, 0) == 0 && stat(path, &ours) == 0 &&
           its.st_dev == ours.st_dev && its.st_ino == ours.st_ino &&
           load_order_read(path, target->environment, order);
}

/* Judges the objects that the linker searches after the library: those that it lists there, and all
 * that were loaded later. The executable is left out, since it is searched first. */
static void look_at_loaded_objects(struct target_process *target)
{
    const struct load_order *files = &target->files;
    size_t library = load_order_find(files, "librmmshim"), ours;
    char executable[PATH_MAX];
    struct load_order order;
    struct namesake found;

    if (library == files->count || !read_order(target, &order))
        return;
    ours = load_order_find(&order, "librmmshim");
    doctor_driver_first(target->doctor, &order);
    (void)read_executable(&target->process, executable);
    for (size_t i = 0; i < files->count; i++)
        if (i != library && strcmp(files->paths[i], executable) != 0 &&
            !is_among(&order, ours, files->paths[i]) &&
            namesake_look(files->paths[library], files->paths[i], &found))
            doctor_namesake(target->doctor, true, files->paths[i], &found, "");
    load_order_free(&order);
}

/* ---- why a loaded library does not serve ---- */

static bool is_served(int number, const char *executable)
{
    struct process process;
    char path[PATH_MAX];
    bool is_same;

    is_same = process_open(number, &process) == PROCESS_SERVED && read_executable(&process, path) &&
              strcmp(path, executable) == 0;
    process_close(&process);
    return is_same;
}

/* True when the process's limit on file sizes is too small for the page of its counters. */
static bool limits_files(struct target_process *target)
{
    struct rlimit limit;

    return prlimit(target->process.number, RLIMIT_FSIZE, NULL, &limit) == 0 &&
           limit.rlim_cur < RS_PUBLISHED_BYTES;
}

/* Explains why it cannot be seen whether memory is served: the library also serves without a page.
 */
static void explain_unseen(struct doctor *doctor)
{
    doctor->is_unseen = true;
    doctor_problem(
        doctor, "counters", "set `ulimit -f unlimited` before the program is started",
        "the process may not write files of %d MiB (ulimit -f), so it cannot publish its "
        "counters, and this command cannot examine it",
        RS_PUBLISHED_BYTES >> 20);
}

/* Judges RMM_ONLY for the process, and returns false if it leaves the process out.  In a process
 * with elevated privileges the library reads no variable, so nothing is judged. */
static bool passes_program_filter(struct target_process *target)
{
    struct rs_program_names process;

    rs_program_names_read(&process, target->directory);
    return is_secure(target) ||
           doctor_program_filter(target->doctor,
                                 variable_of(target, rs_variables[RS_VARIABLE_ONLY].option.name),
                                 &process, true);
}

static void explain_not_served(struct target_process *target)
{
    struct doctor *doctor = target->doctor;
    int parent = process_parent(target->process.number);
    char path[PATH_MAX];
    bool asks = false;

    if (!target->environment) {
        doctor_problem(doctor, "settings", "run this command as root",
                       "the environment of the process cannot be read, so its RMM_ variables are "
                       "not known");
        return;
    }
    if (!passes_program_filter(target) || !doctor_settings(doctor, target->environment, &asks))
        return;
    if (!asks)
        doctor_problem(
            doctor, "settings", start_step,
            "librmmshim.so is loaded, but no RMM_ variable asks for a pool, a limit or a report: "
            "each call goes to the driver");
    else if (is_secure(target))
        doctor_problem(
            doctor, "loader",
            "start the program as an ordinary user, without setuid, setgid or capabilities",
            "the process runs with elevated privileges, so librmmshim.so ignores RMM_ variables");
    else if (target->has_driver && limits_files(target))
        explain_unseen(doctor);
    else if (read_executable(&target->process, path) && is_served(parent, path))
        doctor_problem(
            doctor, "process",
            "use CUDA in newly started processes instead (Python: start method spawn)",
            "the process was forked by process %d: CUDA does not work in a forked child of a "
            "process that has used it, so rmmshim serves only the parent",
            parent);
    else if (!target->has_driver)
        doctor_problem(doctor, "driver", "run `rmmshim doctor` again when the process uses the GPU",
                       "librmmshim.so is loaded, but libcuda is not: the process has made no CUDA "
                       "call yet");
    else
        doctor_problem(doctor, "driver",
                       "run `rmmshim doctor` again when the process has allocated",
                       "libcuda is loaded, but librmmshim.so has seen no allocation yet (it never "
                       "sees those of libraries that were loaded with RTLD_DEEPBIND or dlmopen)");
}

/* ---- what its page counts ---- */

/* Memory that is charged beside the stacks (context/limit.c), and the setting that would have
 * stacks serve it. */
static const struct {
    const char *counter, *what, *step;
} paths[] = {
    {"driver", "it was allocated by the driver's cuMemAlloc",
     "set RMM_POOL_SIZE or RMM_RESOURCE; if RMM_HOOKS is set, add `device` to it"},
    {"managed", "it was allocated by the driver's cuMemAllocManaged",
     "set RMM_MANAGED_POOL_SIZE or RMM_MANAGED_RESOURCE"},
    {"arrays", "it lies in CUDA arrays, which only the driver can allocate",
     "nothing needs to be done: a limit counts this memory, too"},
    {"vmm", "the program created it with cuMemCreate",
     "for PyTorch set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"},
    {"stream_ordered", "it lies in stream-ordered pools of the driver (cudaMallocAsync)",
     "set RMM_HOOKS=all, so that rmmshim serves cudaMallocAsync"},
    {"graphs", "it lies in memory nodes of CUDA graphs, which only the driver can allocate",
     "nothing needs to be done: a limit counts this memory, too"},
};

static void add_stack_counters(struct doctor *doctor, const struct rs_reported_stack *stack)
{
    const struct rs_report *report = &stack->report;
    uint64_t limit_bytes = rs_report_value(report, "account", "limit", 0);

    doctor_note(doctor, "stack", NULL, "device %d, %s memory: %s", stack->device,
                rs_kind_names[stack->kind], stack->expression);
    if (rs_report_value(report, "account", "charged_peak", 0) || limit_bytes)
        doctor_note(doctor, "memory", NULL,
                    "device %d: %s taken from the driver to serve the program, limit %s",
                    stack->device, tool_bytes(rs_report_value(report, "account", "served", 0)),
                    limit_bytes ? tool_bytes(limit_bytes) : "none");
    for (size_t i = 0; i < RS_ARRAY_LENGTH(paths); i++) {
        uint64_t bytes = rs_report_value(report, "account", paths[i].counter, 0);
        if (bytes)
            doctor_problem(doctor, "memory", paths[i].step,
                           "device %d: %s not served by rmmshim: %s", stack->device,
                           tool_bytes(bytes), paths[i].what);
    }
}

static void add_counters(struct target_process *target)
{
    static struct publication page;
    struct doctor *doctor = target->doctor;
    struct advice advices[RS_KINDS];
    size_t advice_count;

    if (!publication_read_all(&page, target->process.file))
        doctor_note(doctor, "memory", NULL, "rmmshim has served no allocation yet");
    for (size_t i = 0; i < page.count; i++)
        add_stack_counters(doctor, &page.stacks[i]);
    advice_count = advice_of(&page, target->process.file, variable_of, target, advices);
    for (size_t i = 0; i < advice_count; i++)
        doctor_note(doctor, "pool", advices[i].step, "%s", advices[i].text);
    publication_release(&page);
}

/* Notes if the driver's pools are not counted. The library only reads them when a setting needs it
 * (rs_limit_follows). */
static void add_uncounted(struct target_process *target)
{
    struct rs_diagnostics nobody = {.write = tool_ignore_line};
    struct rs_config config;

    if (!target->environment)
        return;
    if (doctor_parse(target->environment, &nobody, &config) == 0 &&
        config.statistics == RS_STATISTICS_NONE && !config.any_limit && !config.limit_job &&
        config.control == RS_CONTROL_UNASKED)
        doctor_note(target->doctor, "memory",
                    "set RMM_STATISTICS, RMM_LIMIT or RMM_CONTROL to count them",
                    "stream-ordered pools of the driver (cudaMallocAsync) are not counted with "
                    "these settings");
    rs_config_free(&config);
}

/* ---- the frameworks ---- */

static void add_framework_pools(struct target_process *target)
{
    const char *uncached = variable_of(target, "PYTORCH_NO_CUDA_MEMORY_CACHING");

    if (target->has_torch && target->environment && !(uncached && *uncached))
        doctor_note(target->doctor, "framework",
                    "start the program with `rmmshim run --framework-pools off`",
                    "PyTorch keeps freed memory in a pool of its own: all memory in that pool "
                    "counts as used");
}

/* ---- the process ---- */

static void examine_process(struct target_process *target, bool is_served)
{
    char ours[PATH_MAX];

    process_path(&target->process, "", target->directory);
    target->environment = process_environment(target->directory);
    read_libraries(target);
    look_at_loaded_objects(target);
    if (is_served || target->has_library)
        (void)find_in_preload(target, ours);
    if (is_served) {
        target->doctor->is_served = true;
        add_counters(target);
        add_uncounted(target);
    } else if (target->has_library) {
        explain_not_served(target);
    } else {
        explain_not_loaded(target);
    }
    add_framework_pools(target);
    load_order_free(&target->files);
    process_free_environment(target->environment);
}

static void explain_denied(struct doctor *doctor, int number)
{
    struct stat status;
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d", number);
    if (stat(path, &status) == 0 && status.st_uid == geteuid())
        doctor_problem(
            doctor, "process", "run this command as root",
            "process %d cannot be examined: it runs with elevated privileges, or protects "
            "itself (PR_SET_DUMPABLE)",
            number);
    else
        doctor_problem(doctor, "process", "run this command as that user, or as root",
                       "process %d belongs to another user", number);
}

void doctor_process(struct doctor *doctor, int number)
{
    struct target_process target = {.doctor = doctor};
    enum process_answer answer = process_open(number, &target.process);

    doctor->good = "GPU memory is served";
    doctor->is_unseen =
        answer == PROCESS_DENIED || answer == PROCESS_UNREADABLE || answer == PROCESS_LACKING;
    if (answer == PROCESS_SERVED || answer == PROCESS_UNSERVED)
        examine_process(&target, answer == PROCESS_SERVED);
    else if (answer == PROCESS_DENIED)
        explain_denied(doctor, number);
    else
        doctor_problem(doctor, "process", NULL, "process %d %s", number,
                       process_answer_text(answer));
    process_close(&target.process);
}
