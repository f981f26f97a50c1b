/* SPDX-License-Identifier: Apache-2.0 */
/* `rmmshim doctor PID`: what a running process has loaded, and what its page counts. */
#include "tool/process.h"
#include "base/size.h"
#include "shared/published.h"
#include "tool/advice.h"
#include "tool/doctor/doctor.h"
#include "tool/doctor/patient.h"
#include "tool/library.h"
#include "tool/program/namesake.h"
#include "tool/program/program.h"
#include "tool/publication.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char start_step[] = "start it with `rmmshim run` and an option such as --pool-size";

/* ---- preloaded libraries ---- */

static bool is_ours(const char *name)
{
    return strncmp(name, "librmmshim", strlen("librmmshim")) == 0;
}

static bool is_sanitizer(const char *name)
{
    static const char *const names[] = {"libasan", "libtsan", "liblsan", "libubsan", "libmsan"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(names); i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* Names what stands before the library in LD_PRELOAD, and copies the library's own entry. */
static bool find_in_preload(const struct patient *patient, char ours[PATH_MAX])
{
    const char *list = patient_variable(patient, "LD_PRELOAD");
    char word[PATH_MAX];

    *ours = '\0';
    for (; list && *list; list += strcspn(list, ": ")) {
        const char *name;
        list += strspn(list, ": ");
        if (!*list)
            break;
        snprintf(word, sizeof(word), "%.*s", (int)strcspn(list, ": "), list);
        name = program_base_name(word);
        if (is_ours(name)) {
            snprintf(ours, PATH_MAX, "%s", word);
            return true;
        }
        if (is_sanitizer(name))
            doctor_note(patient->doctor, "preload", NULL,
                        "%s, a sanitizer's runtime, comes before the library, which is allowed",
                        name);
        else
            doctor_note(patient->doctor, "preload",
                        "put librmmshim.so first in LD_PRELOAD if calls are missed",
                        "%s is loaded before librmmshim.so, so its functions take the place of "
                        "the library's of the same name",
                        word);
    }
    return false;
}

/* ---- why the library is not loaded ---- */

static void explain_not_loaded(const struct patient *patient)
{
    struct doctor *doctor = patient->doctor;
    char library[PATH_MAX], path[PATH_MAX], why[LIBRARY_WHY_BYTES], ours[PATH_MAX];
    struct program_refusal refusal;
    bool is_named = find_in_preload(patient, ours);

    if (patient_is_secure(patient))
        doctor_problem(doctor, "loader", "start it as its own user, without setuid or capabilities",
                       "it runs with elevated privileges: the dynamic linker ignores LD_PRELOAD");
    if (library_look(library, why) && patient_executable(patient->directory, path) &&
        !program_loads(library, path, &refusal))
        doctor_problem(doctor, "loader", refusal.step, "%s", refusal.why);
    if (!is_named && !patient->environment)
        doctor_problem(doctor, "preload", start_step,
                       "the library is not loaded; its environment cannot be read");
    else if (!is_named)
        doctor_problem(doctor, "preload", start_step,
                       "it was started without the library: its LD_PRELOAD does not name it");
    else if (access(ours, R_OK) != 0 && *ours == '/')
        doctor_problem(doctor, "preload", start_step, "LD_PRELOAD names %s: %s", ours,
                       strerror(errno));
    else
        doctor_problem(doctor, "preload",
                       "LD_DEBUG=libs before the command shows what the dynamic linker does",
                       "LD_PRELOAD names %s, but the library is not loaded", ours);
}

/* ---- what is in the wrong place ---- */

/* True when one of the first `count` is that file, perhaps by a link. */
static bool is_of(const struct load_order *order, size_t count, const char *path)
{
    char real[PATH_MAX];

    for (size_t i = 0; i < count && i < order->count; i++)
        if (realpath(order->paths[i], real) && strcmp(real, path) == 0)
            return true;
    return false;
}

/* The objects in the order of its start; false where its files are not these, as in a container. */
static bool read_order(const struct patient *patient, struct load_order *order)
{
    char path[PATH_MAX];
    struct stat its, ours;

    *order = (struct load_order){.count = 0};
    return patient->environment && patient_executable(patient->directory, path) &&
           fstatat(patient->directory, "exe", &its, 0) == 0 && stat(path, &ours) == 0 &&
           its.st_dev == ours.st_dev && its.st_ino == ours.st_ino &&
           load_order_read(path, patient->environment, order);
}

/* Objects that it loaded later are behind the library, as those of its start are which stand there.
 * Variables of the program itself come first. */
static void look_at_objects(const struct patient *patient)
{
    const struct load_order *files = &patient->maps.files;
    size_t library = load_order_find(files, "librmmshim"), ours, driver;
    char executable[PATH_MAX];
    struct load_order order;
    struct namesake found;

    if (library == files->count || !read_order(patient, &order))
        return;
    ours = load_order_find(&order, "librmmshim");
    driver = load_order_find(&order, "libcuda.so");
    if (driver < ours && driver < order.count && ours < order.count)
        doctor_driver_first(patient->doctor, order.paths[driver]);
    (void)patient_executable(patient->directory, executable);
    for (size_t i = 0; i < files->count; i++)
        if (i != library && strcmp(files->paths[i], executable) != 0 &&
            !is_of(&order, ours, files->paths[i]) &&
            namesake_look(files->paths[library], files->paths[i], &found))
            doctor_problem(patient->doctor, "names",
                           "start it by `rmmshim run`, or LD_PRELOAD=THAT-OBJECT:librmmshim.so",
                           "%s has %u variable%s with names of the driver's functions (%s): the "
                           "library's functions take their place, and the program crashes",
                           files->paths[i], found.count, found.count == 1 ? "" : "s", found.names);
    load_order_free(&order);
}

/* ---- why a loaded library does not serve ---- */

static bool is_served(int number, const char *executable)
{
    struct process process;
    char path[PATH_MAX];
    bool is_same;

    if (number <= 0 || process_open(number, &process) != PROCESS_SERVED)
        return false;
    is_same = patient_executable(process.directory, path) && strcmp(path, executable) == 0;
    process_close(&process);
    return is_same;
}

/* Without a page the library serves too. */
static void explain_unseen(struct doctor *doctor)
{
    doctor->is_unseen = true;
    doctor_problem(doctor, "page", "ulimit -f unlimited, before it is started",
                   "its limit on file sizes is below the %d MiB that a process publishes, so it "
                   "cannot be examined",
                   RS_PUBLISHED_BYTES >> 20);
}

/* The library of a process with elevated privileges looks at no variable. */
static bool is_named_by_only(const struct patient *patient)
{
    struct rs_only_process process;
    char directory[64];

    /* By the descriptor it cannot be another process with the same number. */
    snprintf(directory, sizeof(directory), "/proc/self/fd/%d", patient->directory);
    rs_only_read(&process, directory);
    return patient_is_secure(patient) ||
           doctor_only(patient->doctor,
                       patient_variable(patient, rs_variables[RS_VARIABLE_ONLY].option.name),
                       &process, true);
}

static void explain_not_served(const struct patient *patient)
{
    struct doctor *doctor = patient->doctor;
    int parent = patient_status_number(patient, "\nPPid:");
    char path[PATH_MAX];
    bool asks = false;

    if (!patient->environment) {
        doctor_problem(doctor, "settings", NULL, "its environment cannot be read");
        return;
    }
    if (!is_named_by_only(patient) || !doctor_settings(doctor, patient->environment, &asks))
        return;
    if (!asks)
        doctor_problem(doctor, "settings", start_step,
                       "the library is loaded, but no RMM_ variable asks for a pool, a limit or a "
                       "report: each call "
                       "goes to the driver");
    else if (patient_is_secure(patient))
        doctor_problem(doctor, "loader", "start it as its own user, without setuid or capabilities",
                       "it runs with elevated privileges, so the library ignores its variables");
    else if (patient_file_size_limit(patient) < RS_PUBLISHED_BYTES && patient->maps.has_driver)
        explain_unseen(doctor);
    else if (patient_executable(patient->directory, path) && is_served(parent, path))
        doctor_problem(doctor, "process",
                       "use CUDA in newly started processes instead (Python: start method spawn)",
                       "it was forked by process %d: CUDA does not work in a forked child of a "
                       "process that has used it, so rmmshim serves only the parent",
                       parent);
    else if (!patient->maps.has_driver)
        doctor_problem(doctor, "driver", "run doctor again when it uses the GPU",
                       "the library is loaded, but libcuda is not: it has made no CUDA "
                       "call yet");
    else
        doctor_problem(
            doctor, "driver",
            "run doctor again when it has allocated; memory from a library that was loaded "
            "with RTLD_DEEPBIND or dlmopen is not seen",
            "libcuda is loaded, but the library has seen no allocation yet");
}

/* ---- what its page counts ---- */

/* Memory that is charged besides the stacks (context/limit.c), and what would change it. */
static const struct {
    const char *counter, *what, *step;
} paths[] = {
    {"driver", "allocated by the driver's cuMemAlloc",
     "set RMM_POOL_SIZE or RMM_RESOURCE, and name device in RMM_HOOKS where that is set"},
    {"managed", "allocated by the driver's cuMemAllocManaged",
     "set RMM_MANAGED_POOL_SIZE or RMM_MANAGED_RESOURCE"},
    {"arrays", "in CUDA arrays: only the driver can allocate these", NULL},
    {"vmm", "mapped by the program (cuMemCreate)",
     "PyTorch: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"},
    {"stream_ordered", "in stream-ordered pools of the driver (cudaMallocAsync)",
     "RMM_HOOKS=all has rmmshim serve cudaMallocAsync"},
    {"graphs", "in CUDA graphs' memory nodes: only the driver can allocate these", NULL},
};

static void add_stack(struct doctor *doctor, const struct publication *page,
                      const struct rs_reported_stack *stack)
{
    const struct rs_report *report = &stack->report;
    char text[RS_SIZE_TEXT_BYTES], limit[RS_SIZE_TEXT_BYTES];
    uint64_t limit_bytes = rs_report_value(report, "account", "limit", 0);

    doctor_note(doctor, "stack", NULL, "device %d, %s memory: %.*s", stack->device,
                rs_kind_names[stack->kind], RS_EXPRESSION_TEXT_BYTES,
                publication_stack(page, stack)->expression);
    if (rs_report_value(report, "account", "charged_peak", 0) || limit_bytes)
        doctor_note(doctor, "memory", NULL, "device %d: %s held for what rmmshim serves, limit %s",
                    stack->device,
                    rs_size_format_short(rs_report_value(report, "account", "served", 0), text),
                    limit_bytes ? rs_size_format_short(limit_bytes, limit) : "none");
    for (size_t i = 0; i < RS_ARRAY_LENGTH(paths); i++) {
        uint64_t bytes = rs_report_value(report, "account", paths[i].counter, 0);
        if (bytes)
            doctor_problem(doctor, "memory", paths[i].step,
                           "device %d: %s not served by rmmshim: %s", stack->device,
                           rs_size_format_short(bytes, text), paths[i].what);
    }
}

static const char *variable_of(void *patient, const char *name)
{
    return patient_variable(patient, name);
}

static void add_page(struct patient *patient, const struct process *process)
{
    struct doctor *doctor = patient->doctor;
    struct publication *page = calloc(1, sizeof(*page));
    struct advice advices[RS_KINDS];
    size_t advice_count;

    if (!page)
        return;
    if (!publication_read(page, process->file))
        doctor_note(doctor, "memory", NULL, "rmmshim has served no allocation yet");
    for (size_t i = 0; i < page->count; i++)
        add_stack(doctor, page, &page->stacks[i]);
    advice_count = advice_of(page, process->file, variable_of, patient, advices);
    for (size_t i = 0; i < advice_count; i++)
        doctor_note(doctor, "pool", advices[i].step, "%s", advices[i].text);
    publication_release(page);
    free(page);
}

static void say_nothing(void *data, const char *line)
{
    (void)data;
    (void)line;
}

/* The library reads the driver's pools only when something depends on them (rs_limit_follows). */
static void add_uncounted(const struct patient *patient)
{
    struct rs_diagnostics nobody = {.write = say_nothing};
    struct rs_config config;

    if (!patient->environment)
        return;
    if (doctor_parse(patient->environment, &nobody, &config) == 0 &&
        config.statistics == RS_STATISTICS_NONE && !config.any_limit && !config.limit_job &&
        config.control == RS_CONTROL_UNASKED)
        doctor_note(patient->doctor, "memory",
                    "set RMM_STATISTICS, RMM_LIMIT or RMM_CONTROL to count them",
                    "stream-ordered pools of the driver (cudaMallocAsync) are not counted with "
                    "these settings");
    rs_config_free(&config);
}

/* ---- the frameworks ---- */

static void add_framework_pools(const struct patient *patient)
{
    const char *uncached = patient_variable(patient, "PYTORCH_NO_CUDA_MEMORY_CACHING");

    if (patient->maps.has_torch && patient->environment && !(uncached && *uncached))
        doctor_note(
            patient->doctor, "framework", "rmmshim run --framework-pools off",
            "PyTorch keeps freed memory in a pool of its own: all that it holds counts as used");
}

/* ---- the process ---- */

static void examine(struct patient *patient, enum process_answer answer,
                    const struct process *process)
{
    char ours[PATH_MAX];

    patient_begin(patient);
    look_at_objects(patient);
    if (answer == PROCESS_SERVED) {
        patient->doctor->is_served = true;
        (void)find_in_preload(patient, ours);
        add_page(patient, process);
        add_uncounted(patient);
    } else if (patient->maps.has_library) {
        (void)find_in_preload(patient, ours);
        explain_not_served(patient);
    } else {
        explain_not_loaded(patient);
    }
    add_framework_pools(patient);
    patient_end(patient);
}

static void explain_denied(struct doctor *doctor, int number)
{
    struct stat status;
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d", number);
    if (stat(path, &status) == 0 && status.st_uid == geteuid())
        doctor_problem(doctor, "process", "run this command as root",
                       "process %d cannot be examined (elevated privileges, or "
                       "PR_SET_DUMPABLE)",
                       number);
    else
        doctor_problem(doctor, "process", "run this command as that user, or as root",
                       "process %d %s", number, process_answer_text(PROCESS_DENIED));
}

void doctor_process(struct doctor *doctor, int number)
{
    struct patient patient = {.doctor = doctor, .number = number};
    struct process process;
    enum process_answer answer = process_open(number, &process);
    char path[64];

    doctor->good = "served";
    snprintf(path, sizeof(path), "/proc/%d", number);
    patient.directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (answer == PROCESS_SERVED || (answer == PROCESS_UNSERVED && patient.directory >= 0))
        examine(&patient, answer, &process);
    else if (answer == PROCESS_DENIED)
        explain_denied(doctor, number);
    else
        doctor_problem(
            doctor, "process",
            answer == PROCESS_UNREADABLE ? "use the command of the version that serves it" : NULL,
            "process %d %s", number, process_answer_text(answer));
    if (answer == PROCESS_SERVED)
        process_close(&process);
    if (patient.directory >= 0)
        close(patient.directory);
}
